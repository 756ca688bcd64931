package apply

import (
	"errors"
	"regexp/syntax"
	"strconv"

	"github.com/itchyny/gojq"
)

// The interpreter counts each function as one step, and nothing interrupts a
// function. So what looks at each character or element of what it is given is paid
// before it is called, and so is what looks at each part of it for each part of
// something else.

// Names of functions that no expression can have.
const (
	jqPayParts   = "pay parts"     // of contains and inside: all in the value, for each of the parts that are written out
	jqPayPattern = "pay pattern"   // of test: each character, for each instruction of the pattern
	jqPayLook    = "pay look"      // of functions that look at each character, field or element
	jqPayDigits  = "pay digits"    // of tonumber: each digit, for each digit
	jqPosition   = "only position" // of what is in brackets: a list there is searched for in the other
)

// charsPerStep is how many characters are looked at in a step, digitsPerStep how many
// digits of a number are multiplied with as many others. To put a field in order takes
// stepsPerField.
const (
	charsPerStep  = 16
	digitsPerStep = 64
	stepsPerField = 4
)

var errListAsIndex = errors.New("a list cannot be used in brackets here: select fields by paths and select(...)")

// functions are those that expressions are given by jqPaid and jqIndex.
func (m *meter) functions() []gojq.CompilerOption {
	return []gojq.CompilerOption{
		gojq.WithFunction(jqPayParts, 1, 1, func(v any, args []any) any { return m.pay(v, parts(v), args[0]) }),
		gojq.WithFunction(jqPayPattern, 1, 1, func(v any, args []any) any {
			text, _ := v.(string)
			return m.pay(v, 3+len(text)/8, args[0])
		}),
		gojq.WithFunction(jqPayLook, 1, 1, func(v any, args []any) any { return m.pay(v, look(v), args[0]) }),
		gojq.WithFunction(jqPayDigits, 1, 1, func(v any, args []any) any {
			text, _ := v.(string)
			n := len(text) / digitsPerStep
			return m.pay(v, look(v)+n*n, args[0])
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

// look is what there is to look at in a value, without what is in its fields and
// elements.
func look(v any) int {
	switch v := v.(type) {
	case string:
		return 1 + len(v)/charsPerStep
	case map[string]any:
		return 1 + len(v)*stepsPerField
	case []any:
		return 1 + len(v)
	}
	return 1
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
	times := 1
	switch t.Func.Name {
	case "length", "keys", "startswith", "endswith", "ascii_downcase", "ascii_upcase":
		pay = jqPayLook
	case "tonumber":
		pay = jqPayDigits
	case "IN":
		for i, a := range t.Func.Args {
			t.Func.Args[i] = jqPaidValue(a)
		}
		pay = jqPayParts
	case "contains", "inside":
		pay, times = jqPayParts, 0
		for _, a := range t.Func.Args {
			times += 1 + len(a.String())
		}
	case "test":
		pay, times = jqPayPattern, 0
		for _, a := range t.Func.Args {
			times += patterns(a)
		}
	default:
		return
	}
	t.Query = jqPipe(jqPay(pay, times), &gojq.Query{Term: &gojq.Term{Type: gojq.TermTypeFunc, Func: t.Func}})
	t.Type, t.Func = gojq.TermTypeQuery, nil
}

func jqPay(name string, times int) *gojq.Query {
	return jqCall(name, &gojq.Query{Term: &gojq.Term{Type: gojq.TermTypeNumber, Number: strconv.Itoa(times)}})
}

// jqPaidValue has a value paid that is going to be compared with another.
func jqPaidValue(q *gojq.Query) *gojq.Query {
	if constantQuery(q) {
		return q
	}
	return jqPipe(q, jqPay(jqPayParts, 1))
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
