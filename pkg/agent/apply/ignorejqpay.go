package apply

import (
	"errors"
	"regexp/syntax"
	"strconv"

	"github.com/itchyny/gojq"
)

// The interpreter counts each function as one step. Most look once at what they
// are given, and the time that an expression has ends many of them. Some look at
// each part of it for each part of something else; nothing interrupts a function,
// so these are paid before they are called.

// Names of functions that no expression can have.
const (
	jqPayParts   = "pay parts"     // of contains and inside: all in the value, for each of the parts that are written out
	jqPayPattern = "pay pattern"   // of test: each character, for each instruction of the pattern
	jqPosition   = "only position" // of what is in brackets: a list there is searched for in the other
)

// charsPerStep is how many characters are looked at in a step.
const charsPerStep = 16

var errListAsIndex = errors.New("a list cannot be used in brackets here: select fields by paths and select(...)")

// functions are those that expressions are given by jqPaid and jqIndex.
func (m *meter) functions() []gojq.CompilerOption {
	return []gojq.CompilerOption{
		gojq.WithFunction(jqPayParts, 1, 1, func(v any, args []any) any { return m.pay(v, parts(v), args[0]) }),
		gojq.WithFunction(jqPayPattern, 1, 1, func(v any, args []any) any {
			text, _ := v.(string)
			return m.pay(v, 3+len(text)/8, args[0])
		}),
		gojq.WithFunction(jqPosition, 0, 0, func(v any, _ []any) any {
			if _, is := v.([]any); is {
				return errListAsIndex
			}
			return v
		}),
	}
}

// pay returns the value, or why it is too large.
func (m *meter) pay(v any, much int, times any) any {
	n, _ := times.(int)
	if err := m.spend(much * n); err != nil {
		return err
	}
	return v
}

// parts is what there is to look at in a value.
func parts(v any) int {
	n := 1
	switch v := v.(type) {
	case string:
		n += len(v) / charsPerStep
	case map[string]any:
		for k, e := range v {
			n += len(k)/charsPerStep + parts(e)
		}
	case []any:
		for _, e := range v {
			n += parts(e)
		}
	}
	return n
}

// jqPaid puts the payment in front of a function that was found to be allowed.
func jqPaid(t *gojq.Term) {
	var pay string
	times := 0
	switch t.Func.Name {
	case "contains", "inside":
		pay = jqPayParts
		for _, a := range t.Func.Args {
			times += 1 + len(a.String())
		}
	case "test":
		pay = jqPayPattern
		for _, a := range t.Func.Args {
			times += patterns(a)
		}
	default:
		return
	}
	first := jqCall(pay, &gojq.Query{Term: &gojq.Term{Type: gojq.TermTypeNumber, Number: strconv.Itoa(times)}})
	t.Query = jqPipe(first, &gojq.Query{Term: &gojq.Term{Type: gojq.TermTypeFunc, Func: t.Func}})
	t.Type, t.Func = gojq.TermTypeQuery, nil
}

func jqCall(name string, args ...*gojq.Query) *gojq.Query {
	return &gojq.Query{Term: &gojq.Term{Type: gojq.TermTypeFunc, Func: &gojq.Func{Name: name, Args: args}}}
}

func jqPipe(left, right *gojq.Query) *gojq.Query {
	return &gojq.Query{Left: left, Op: gojq.OpPipe, Right: right}
}

// patterns counts the instructions of all regular expressions in a value that is
// written out.
func patterns(q *gojq.Query) int {
	switch {
	case q == nil:
		return 0
	case q.Term == nil:
		return patterns(q.Left) + patterns(q.Right)
	case q.Term.Array != nil:
		return patterns(q.Term.Array.Query)
	case q.Term.Str != nil:
		if parsed, err := syntax.Parse(q.Term.Str.Str, syntax.Perl); err == nil {
			return instructions(parsed)
		}
	}
	return 1
}

// instructions bounds the length of the program of a regular expression.
func instructions(r *syntax.Regexp) int {
	n := 2 + len(r.Rune)
	for _, s := range r.Sub {
		n += instructions(s)
	}
	if r.Op == syntax.OpRepeat {
		n *= max(r.Min+1, r.Max)
	}
	return n
}
