package apply

import (
	"errors"
	"regexp/syntax"
	"strconv"

	"github.com/itchyny/gojq"
)

// The interpreter counts each function as one step and cannot interrupt it. Therefore a function that reads
// each character or element of its input is paid for before the call. The same applies to a function that reads
// each part of its input for each part of another value.

// Names of functions that no expression can contain.
const (
	jqPayParts   = "pay parts"     // of contains and inside: the whole value, for each part of the constant
	jqPayPattern = "pay pattern"   // of test: each character, for each instruction of the pattern
	jqPayLook    = "pay look"      // of functions that read each character, field or element
	jqPayDigits  = "pay digits"    // of tonumber: each digit, for each digit
	jqPosition   = "only position" // of brackets: a list there would be searched for in the other list
)

// charsPerStep is the number of characters read in one step. digitsPerStep is the number of digits multiplied
// with as many others in one step. Sorting a field costs stepsPerField.
const (
	charsPerStep  = 16
	digitsPerStep = 64
	stepsPerField = 4
)

var errListAsIndex = errors.New("a list cannot be used in brackets here: select fields by paths and select(...)")

// functions returns the functions that jqPaid and jqIndex insert.
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

// pay returns the value after its steps are paid, or the error that the limit is exceeded.
func (m *meter) pay(v any, much int, times any) any {
	n, _ := times.(int)
	if err := m.spend(much * n); err != nil {
		return err
	}
	return v
}

// look returns the cost of reading a value without the contents of its fields and elements.
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

// parts returns the cost of reading a whole value.
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

// jqPaid inserts the payment before an allowed function.
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

// jqPaidValue inserts the payment of a value that is compared with another.
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

// patterns returns the number of instructions of all regular expressions in a constant.
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

// instructions returns an upper bound of the program length of a regular expression.
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
