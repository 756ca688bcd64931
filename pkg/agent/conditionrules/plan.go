package conditionrules

import (
	"fmt"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// Calls are not the only cost of an expression. A loop has iterations, it first copies the keys of a map, and a
// key lookup reads the whole key. Hidden functions, which no expression can name, are inserted there.
const (
	loopFunction  = "@turn"  // of the condition of a loop, with the units of an iteration
	rangeFunction = "@range" // of the input of a loop
	keyFunction   = "@key"   // of a computed index
)

// hidden declares them; guard.decorate implements them.
func hidden() []cel.EnvOption {
	of := cel.TypeParamType("A")
	same := cel.UnaryBinding(func(v ref.Val) ref.Val { return v })
	return []cel.EnvOption{
		cel.Function(loopFunction, cel.Overload(loopFunction, []*cel.Type{cel.BoolType, cel.IntType}, cel.BoolType, cel.BinaryBinding(func(v, _ ref.Val) ref.Val { return v }))),
		cel.Function(rangeFunction, cel.Overload(rangeFunction, []*cel.Type{of}, of, same)),
		cel.Function(keyFunction, cel.Overload(keyFunction, []*cel.Type{of}, of, same)),
	}
}

// planner inserts them into a parsed expression.
type planner struct {
	ast.ExprFactory
	id int64
}

// plan changes an expression. It returns its cost in units without calls and loop iterations.
func plan(a *ast.AST) float64 {
	p := &planner{ast.NewExprFactory(), ast.MaxID(a)}
	return p.expr(a.Expr())
}

func (p *planner) next() int64 {
	p.id++
	return p.id
}

// text returns the cost of a name or text constant at each use.
func text(s string) float64 { return float64(len(s)) / 100 }

func (p *planner) expr(e ast.Expr) float64 {
	switch e.Kind() {
	case ast.LiteralKind:
		s, _ := e.AsLiteral().(types.String)
		return text(string(s))
	case ast.SelectKind:
		return 1 + text(e.AsSelect().FieldName()) + p.expr(e.AsSelect().Operand())
	case ast.ListKind:
		elements := e.AsList().Elements()
		return 10 + float64(len(elements))/2 + p.exprs(elements)
	case ast.MapKind:
		units := 30.0
		for _, entry := range e.AsMap().Entries() {
			units += 2 + p.expr(entry.AsMapEntry().Key()) + p.expr(entry.AsMapEntry().Value())
		}
		return units
	case ast.CallKind:
		return p.call(e)
	case ast.ComprehensionKind:
		return p.loop(e)
	case ast.IdentKind, ast.StructKind, ast.UnspecifiedExprKind: // structs are rejected
	}
	return 1
}

func (p *planner) exprs(list []ast.Expr) float64 {
	units := 0.0
	for _, e := range list {
		units += p.expr(e)
	}
	return units
}

func (p *planner) call(e ast.Expr) float64 {
	c := e.AsCall()
	units := 1 + p.exprs(c.Args())
	if c.IsMemberFunction() {
		return units + p.expr(c.Target())
	}
	switch c.FunctionName() {
	case operators.Index, operators.OptIndex:
		if args := c.Args(); len(args) == 2 && args[1].Kind() != ast.LiteralKind && !isCall(args[1], keyFunction) {
			e.SetKindCase(p.NewCall(e.ID(), c.FunctionName(), args[0], p.NewCall(p.next(), keyFunction, args[1])))
		}
	}
	return units
}

// loop returns the cost of a loop without its iterations. Macros use an expression more than once, so it may be
// changed already.
func (p *planner) loop(e ast.Expr) float64 {
	l := e.AsComprehension()
	units := 5 + p.expr(l.IterRange()) + p.expr(l.AccuInit()) + p.expr(l.Result())
	if isCall(l.LoopCondition(), loopFunction) {
		return units
	}
	each := p.expr(l.LoopCondition()) + p.expr(l.LoopStep())
	condition := p.NewCall(p.next(), loopFunction, l.LoopCondition(), p.NewLiteral(p.next(), types.Int(each+1)))
	over := p.NewCall(p.next(), rangeFunction, l.IterRange())
	e.SetKindCase(p.NewComprehensionTwoVar(e.ID(), over, l.IterVar(), l.IterVar2(), l.AccuVar(), l.AccuInit(), condition, l.LoopStep(), l.Result()))
	return units
}

func isCall(e ast.Expr, function string) bool {
	return e.Kind() == ast.CallKind && e.AsCall().FunctionName() == function
}

// guard has the implementations of functions, by name.
type guard map[string]*functions.Overload

// newGuard rejects an environment that has a function without a price.
func newGuard(env *cel.Env) (guard, error) {
	g := guard{}
	for name, f := range env.Functions() {
		if _, has := prices[name]; !has {
			return nil, fmt.Errorf("the function %s has no price", name)
		}
		bindings, err := f.Bindings()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, b := range bindings {
			if b.Operator == name && !b.NonStrict {
				g[name] = b
			}
		}
	}
	return g, nil
}

// decorate puts the meter before a call.
func (g guard) decorate(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	c, ok := i.(interpreter.InterpretableCall)
	if !ok {
		return i, nil
	}
	name, args := c.Function(), c.Args()
	switch name {
	case loopFunction:
		units, ok := args[1].(interpreter.InterpretableConst)
		if !ok {
			return nil, fmt.Errorf("%s without its units", name)
		}
		n, _ := units.Value().(types.Int)
		return &loopStep{args[0], float64(n)}, nil
	case rangeFunction:
		return &paid{args[0], payRange}, nil
	case keyFunction:
		return &paid{args[0], payKey}, nil
	}
	price, has := prices[name]
	switch {
	case !has:
		return nil, fmt.Errorf("the function %s has no price", name)
	case price == nil:
		return i, nil
	}
	invoke := g.implementation(name)
	if invoke == nil {
		return nil, fmt.Errorf("the function %s is not known", name)
	}
	return &call{c, name, args, price, invoke}, nil
}

func payRange(m *meter, v ref.Val) {
	if l, ok := v.(traits.Mapper); ok {
		m.pay("a map that it loops over is too large", size(l))
	}
}

func payKey(m *meter, v ref.Val) { m.pay("a key is too long", chars(v)/10) }

// implementation returns a function with evaluated arguments; nil if it is unknown.
func (g guard) implementation(name string) func(*meter, []ref.Val) ref.Val {
	switch name {
	case operators.Equals:
		return func(_ *meter, args []ref.Val) ref.Val { return types.Equal(args[0], args[1]) }
	case operators.NotEquals:
		return func(_ *meter, args []ref.Val) ref.Val {
			return types.Bool(types.Equal(args[0], args[1]) != types.True)
		}
	}
	f := g[name]
	if f == nil {
		return nil
	}
	return func(m *meter, args []ref.Val) ref.Val {
		if own := instead[name]; own != nil && m != nil {
			if v := own(m, args); v != nil {
				return v
			}
		}
		switch {
		case f.OperandTrait != 0 && !args[0].Type().HasTrait(f.OperandTrait):
		case len(args) == 1 && f.Unary != nil:
			return f.Unary(args[0])
		case len(args) == 2 && f.Binary != nil:
			return f.Binary(args[0], args[1])
		case f.Function != nil:
			return f.Function(args...)
		}
		return types.NewErr("no such overload: %s", name)
	}
}

// instead has the functions that are implemented here, unless they return nil.
var instead = map[string]func(*meter, []ref.Val) ref.Val{
	operators.Add: concatenated, "matches": matches, "find": find, "findAll": findAll,
}

// concatenated joins two lists into one with the same access time. CEL would only link them, and each use would
// follow all links. It returns nil for other values, and for the list that a loop is filling.
func concatenated(_ *meter, args []ref.Val) ref.Val {
	a, ok := args[0].(traits.Lister)
	b, ok2 := args[1].(traits.Lister)
	if _, filling := args[0].(traits.MutableLister); !ok || !ok2 || filling {
		return nil
	}
	var all []ref.Val
	for _, l := range []traits.Lister{a, b} {
		for it := l.Iterator(); it.HasNext() == types.True; {
			all = append(all, it.Next())
		}
	}
	return types.DefaultTypeAdapter.NativeToValue(all)
}
