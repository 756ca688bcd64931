package apply

import (
	"fmt"
	"slices"

	"github.com/itchyny/gojq"
)

var jqOperators = []gojq.Operator{
	gojq.OpPipe, gojq.OpComma, gojq.OpAnd, gojq.OpOr, gojq.OpAlt, gojq.OpEq, gojq.OpNe, gojq.OpGt, gojq.OpLt, gojq.OpGe, gojq.OpLe,
}

// jqComparing has the operators that compare two whole values.
var jqComparing = []gojq.Operator{gojq.OpEq, gojq.OpNe, gojq.OpGt, gojq.OpLt, gojq.OpGe, gojq.OpLe}

func jqRefuse(what string) error {
	return fmt.Errorf("%s cannot be used here: select fields by paths and select(...)", what)
}

// jqQuery rejects forbidden parts of an expression, and inserts payments for functions that cost more than one
// step.
func jqQuery(q *gojq.Query) error {
	switch {
	case q == nil:
		return nil
	case q.Meta != nil || len(q.Imports) > 0:
		return jqRefuse("a module")
	case len(q.FuncDefs) > 0:
		return jqRefuse("a definition")
	case q.Term != nil:
		return jqTerm(q.Term)
	case q.Func != "":
		return jqFunc(&gojq.Func{Name: q.Func})
	case q.Right == nil || q.Left == nil:
		return jqRefuse("an empty expression")
	case !slices.Contains(jqOperators, q.Op):
		return jqRefuse("the operator " + q.Op.String())
	}
	if err := jqQueries(q.Left, q.Right); err != nil || !slices.Contains(jqComparing, q.Op) {
		return err
	}
	q.Left, q.Right = jqPaidValue(q.Left), jqPaidValue(q.Right)
	return nil
}

func jqQueries(list ...*gojq.Query) error {
	for _, q := range list {
		if err := jqQuery(q); err != nil {
			return err
		}
	}
	return nil
}

func jqTerm(t *gojq.Term) error {
	var err error
	switch t.Type {
	case gojq.TermTypeIdentity, gojq.TermTypeRecurse, gojq.TermTypeNull, gojq.TermTypeTrue, gojq.TermTypeFalse, gojq.TermTypeNumber:
	case gojq.TermTypeIndex:
		err = jqIndex(t.Index)
	case gojq.TermTypeFunc:
		if err = jqFunc(t.Func); err == nil {
			jqPaid(t)
		}
	case gojq.TermTypeQuery:
		err = jqQuery(t.Query)
	case gojq.TermTypeTry:
		err = jqQueries(t.Try.Body, t.Try.Catch)
	case gojq.TermTypeIf:
		err = jqIf(t.If)
	case gojq.TermTypeString, gojq.TermTypeArray, gojq.TermTypeObject, gojq.TermTypeUnary:
		if !constant(&gojq.Term{Type: t.Type, Str: t.Str, Array: t.Array, Object: t.Object, Unary: t.Unary}) {
			err = jqRefuse("a text, list or object with computed content")
		}
	default:
		err = jqRefuse(fmt.Sprintf("%q", t.String()))
	}
	for _, s := range t.SuffixList {
		switch {
		case err != nil:
		case s.Bind != nil:
			err = jqRefuse("a variable")
		case s.Index != nil:
			err = jqIndex(s.Index)
		}
	}
	return err
}

func jqIndex(i *gojq.Index) error {
	if i.Str != nil && len(i.Str.Queries) > 0 {
		return jqRefuse("a text with computed content")
	}
	if err := jqQueries(i.Start, i.End); err != nil || i.Start == nil || i.IsSlice {
		return err
	}
	if t := i.Start.Term; t != nil && t.Type != gojq.TermTypeArray && constant(t) {
		return nil
	}
	i.Start = jqPipe(i.Start, jqCall(jqPosition))
	return nil
}

func jqIf(i *gojq.If) error {
	list := []*gojq.Query{i.Cond, i.Then, i.Else}
	for _, e := range i.Elif {
		list = append(list, e.Cond, e.Then)
	}
	return jqQueries(list...)
}

func jqFunc(f *gojq.Func) error {
	switch {
	case slices.Contains(jqComparisons, f.Name):
		for _, a := range f.Args {
			if !constantQuery(a) {
				return jqRefuse(f.Name + " of something computed")
			}
			if f.Name == "test" && len(a.String()) > maxPattern {
				return fmt.Errorf("a regular expression is longer than %d bytes", maxPattern)
			}
		}
		return nil
	case f.Name == "recurse" && len(f.Args) > 0, !slices.Contains(jqFilters, f.Name):
		return jqRefuse(fmt.Sprintf("%s/%d", f.Name, len(f.Args)))
	}
	return jqQueries(f.Args...)
}

// constantQuery reports whether a query is a constant, or several constants with commas.
func constantQuery(q *gojq.Query) bool {
	switch {
	case q == nil || q.Meta != nil || len(q.Imports) > 0 || len(q.FuncDefs) > 0:
		return false
	case q.Term != nil:
		return constant(q.Term)
	}
	return q.Op == gojq.OpComma && constantQuery(q.Left) && constantQuery(q.Right)
}

func constant(t *gojq.Term) bool {
	if len(t.SuffixList) > 0 {
		return false
	}
	switch t.Type {
	case gojq.TermTypeNull, gojq.TermTypeTrue, gojq.TermTypeFalse, gojq.TermTypeNumber:
		return true
	case gojq.TermTypeString:
		return len(t.Str.Queries) == 0
	case gojq.TermTypeUnary:
		return t.Unary.Term.Type == gojq.TermTypeNumber && len(t.Unary.Term.SuffixList) == 0
	case gojq.TermTypeArray:
		return t.Array.Query == nil || constantQuery(t.Array.Query)
	case gojq.TermTypeObject:
		for _, kv := range t.Object.KeyVals {
			if kv.KeyQuery != nil || kv.KeyString != nil && len(kv.KeyString.Queries) > 0 || !constantQuery(kv.Val) {
				return false
			}
		}
		return true
	}
	return false
}
