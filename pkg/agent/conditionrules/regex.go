package conditionrules

import (
	"fmt"
	"math"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// pattern is a regular expression, compiled once per evaluation.
type pattern struct {
	*regexp.Regexp
	// size is the number of its instructions. For each character, each of them may be tried.
	size float64
	// assertions: it contains assertions such as ^ or \b, so a match depends on the text before it.
	assertions bool
}

// stepsPerUnit is the number of instructions tried per unit.
const stepsPerUnit = 8

// perSearch is the fixed cost of a search.
const perSearch = 5

const longText = "the text is too long for this regular expression"

// compile returns a pattern; nil if it is invalid, which the function itself reports.
func (m *meter) compile(function string, v ref.Val) *pattern {
	text, ok := v.(types.String)
	if !ok {
		return nil
	}
	if len(text) > maxExpression {
		m.pay(fmt.Sprintf("%s: the regular expression has more than %d bytes", function, maxExpression), math.Inf(1))
	}
	if p, has := m.patterns[string(text)]; has {
		return p
	}
	m.pay(function+": "+longText, 40*chars(v))
	var p *pattern
	if parsed, err := syntax.Parse(string(text), syntax.Perl); err == nil {
		p = &pattern{}
		p.size, p.assertions = instructions(parsed)
		m.pay(function+": "+longText, 8*p.size)
		p.Regexp = regexp.MustCompile(string(text))
	}
	if m.patterns == nil {
		m.patterns = map[string]*pattern{}
	}
	m.patterns[string(text)] = p
	return p
}

// instructions returns an upper bound of the program length of a regular expression.
func instructions(r *syntax.Regexp) (n float64, assertions bool) {
	n = 2
	for _, s := range r.Sub {
		k, has := instructions(s)
		n, assertions = n+k, assertions || has
	}
	switch r.Op {
	case syntax.OpLiteral:
		n += float64(len(r.Rune))
	case syntax.OpCharClass:
		n += float64(len(r.Rune)) / 8
	case syntax.OpRepeat:
		n *= float64(max(r.Min+1, r.Max))
	case syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText, syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		assertions = true
	case syntax.OpNoMatch, syntax.OpEmptyMatch, syntax.OpAnyCharNotNL, syntax.OpAnyChar, syntax.OpCapture, syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpConcat, syntax.OpAlternate:
	}
	return n, assertions
}

// steps returns the units of one pass over a text.
func (p *pattern) steps(text float64) float64 { return (text + 1) * p.size / stepsPerUnit }

// matching is the price of one pass over a text. findAll pays for its own passes.
func matching(_ *meter, args []ref.Val) float64 { return chars(args[0]) / 10 }

func matches(m *meter, args []ref.Val) ref.Val {
	text, ok := args[0].(types.String)
	p := m.compile("matches", args[1])
	if !ok || p == nil {
		return nil
	}
	m.pay("matches: "+longText, p.steps(chars(text)))
	return types.Bool(p.MatchString(string(text)))
}

func find(m *meter, args []ref.Val) ref.Val {
	text, ok := args[0].(types.String)
	p := m.compile("find", args[1])
	if !ok || p == nil {
		return nil
	}
	m.pay("find: "+longText, p.steps(chars(text)))
	return types.String(p.FindString(string(text)))
}

// findAll finds one match after the other. Each search may read the whole text to confirm a short match. So in
// the worst case all together read the square of its length.
func findAll(m *meter, args []ref.Val) ref.Val {
	text, ok := args[0].(types.String)
	p := m.compile("findAll", args[1])
	if !ok || p == nil {
		return nil
	}
	most := len(text) + 1
	if len(args) > 2 {
		n, ok := args[2].(types.Int)
		if !ok {
			return nil
		}
		if n >= 0 {
			most = min(most, int(min(n, types.Int(most))))
		}
	}
	if p.assertions {
		m.pay("findAll: "+longText, float64(most)*p.steps(chars(text)))
		return types.NewStringList(types.DefaultTypeAdapter, p.FindAllString(string(text), most))
	}
	return types.NewStringList(types.DefaultTypeAdapter, p.all(m, string(text), most))
}

// all is FindAllString of a pattern without assertions. The searches pay while they read.
func (p *pattern) all(m *meter, text string, most int) []string {
	var found []string
	for at, end := 0, -1; at <= len(text) && len(found) < most; {
		m.pay("findAll: "+longText, perSearch)
		loc := p.FindReaderIndex(&metered{Reader: strings.NewReader(text[at:]), meter: m, units: p.size / stepsPerUnit})
		if loc == nil {
			break
		}
		from, to := at+loc[0], at+loc[1]
		if to > at {
			at = to
		} else {
			_, width := utf8.DecodeRuneInString(text[at:])
			at += max(width, 1)
		}
		if to > from || from != end { // an empty match directly after a match is skipped
			found = append(found, text[from:to])
		}
		end = to
	}
	return found
}

// metered pays for each character that is read.
type metered struct {
	*strings.Reader
	meter *meter
	units float64
}

// ReadRune implements io.RuneReader.
func (r *metered) ReadRune() (rune, int, error) {
	r.meter.pay("findAll: "+longText, r.units)
	return r.Reader.ReadRune()
}
