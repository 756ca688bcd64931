package rule

import (
	"fmt"
	"math"
	"regexp/syntax"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
	"k8s.io/apiserver/pkg/cel/library"
)

// CEL counts what a function costs after it was called, and does not look at
// what lists contain; nothing interrupts a function. Two characters of an
// expression double a value, so that thirty of them fill the memory. Therefore
// the arguments of functions are weighed before.

// unit is the weight that costs one unit of CEL, as it is for characters that
// Kubernetes counts.
const unit = 10

// light are the functions that take the same time whatever they are given, or
// are none.
var light = map[string]bool{
	operators.Index: true, operators.OptIndex: true, operators.OptSelect: true,
	operators.LogicalAnd: true, operators.LogicalOr: true, operators.LogicalNot: true, operators.Conditional: true,
	operators.NotStrictlyFalse: true,
	"size":                     true, "type": true, "dyn": true, "hasConditions": true,
	"or": true, "orValue": true, "hasValue": true, "value": true, "optional.of": true, "optional.none": true,
}

// guard has the implementations of functions, by name.
type guard struct {
	functions map[string]*functions.Overload
	weigher
}

func newGuard(env *cel.Env, w weigher) (guard, error) {
	g := guard{functions: map[string]*functions.Overload{}, weigher: w}
	for name, f := range env.Functions() {
		bindings, err := f.Bindings()
		if err != nil {
			return g, fmt.Errorf("%s: %w", name, err)
		}
		for _, b := range bindings {
			if b.Operator == name && !b.NonStrict {
				g.functions[name] = b
			}
		}
	}
	return g, nil
}

// decorate puts the weighing in front of a call.
func (g guard) decorate(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	call, ok := i.(interpreter.InterpretableCall)
	if !ok || light[call.Function()] || len(call.Args()) == 0 {
		return i, nil
	}
	name := call.Function()
	invoke := g.implementation(name)
	if invoke == nil {
		return i, nil
	}
	return interpreter.NewCall(call.ID(), name, call.OverloadID(), opaque(call.Args()), func(args ...ref.Val) ref.Val {
		if err := g.affordable(name, args); err != nil {
			return types.WrapErr(err)
		}
		return invoke(args...)
	}), nil
}

// operand hides that an argument is a constant: a regular expression that is one
// would be compiled ahead, and its call be replaced by another.
type operand struct{ interpreter.InterpretableV2 }

func opaque(args []interpreter.InterpretableV2) []interpreter.InterpretableV2 {
	hidden := make([]interpreter.InterpretableV2, 0, len(args))
	for _, a := range args {
		hidden = append(hidden, operand{a})
	}
	return hidden
}

// implementation is how a function is called with arguments that were
// evaluated; nil if it is not known.
func (g guard) implementation(name string) functions.FunctionOp {
	switch name {
	case operators.Equals:
		return func(args ...ref.Val) ref.Val { return types.Equal(args[0], args[1]) }
	case operators.NotEquals:
		return func(args ...ref.Val) ref.Val { return types.Bool(types.Equal(args[0], args[1]) != types.True) }
	}
	f := g.functions[name]
	if f == nil {
		return nil
	}
	return func(args ...ref.Val) ref.Val {
		if name == operators.Add {
			if v := concatenated(args); v != nil {
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

// concatenated joins two lists into one that is as fast as they are: CEL would
// only link them, and every later use would follow all links. It returns nil for
// anything else, and for the list that a loop is filling.
func concatenated(args []ref.Val) ref.Val {
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

// weigher says what arguments weigh: characters, and elements of lists and
// maps, each as often as it would be visited. Above limit it is not exact.
type weigher struct{ limit float64 }

// affordable returns why a function must not be called with these arguments.
func (w weigher) affordable(name string, args []ref.Val) error {
	if simple(args) {
		return nil
	}
	if steps, ok := regexSteps(name, args); ok && steps > w.limit*unit {
		return fmt.Errorf("%s: the text is too long for this regular expression", name)
	}
	if w.call(name, args) > w.limit {
		return fmt.Errorf("%s: the arguments have more than %.0f characters and elements", readable(name), w.limit)
	}
	return nil
}

// simple reports whether there is nothing to weigh.
func simple(args []ref.Val) bool {
	for _, a := range args {
		switch a.(type) {
		case types.Bool, types.Int, types.Uint, types.Double, types.Null, types.Duration, types.Timestamp:
		default:
			return false
		}
	}
	return true
}

func readable(name string) string {
	if symbol, ok := operators.FindReverse(name); ok && symbol != "" {
		return symbol
	}
	return name
}

// call is what a call may visit or make.
func (w weigher) call(name string, args []ref.Val) float64 {
	if _, filling := args[0].(traits.MutableLister); filling {
		return 1
	}
	switch name {
	case operators.Equals, operators.NotEquals:
		if args[0].Type() != args[1].Type() {
			return 1
		}
		return min(w.value(args[0]), w.value(args[1]))
	case "replace":
		if text, old, with := length(args, 0), length(args, 1), length(args, 2); with > old {
			return text + (text/max(old, 1)+1)*with
		}
	case "join":
		if list, ok := args[0].(traits.Sizer); ok && len(args) > 1 {
			n, _ := list.Size().(types.Int)
			return w.value(args[0]) + float64(n)*length(args, 1)
		}
	}
	total := 0.0
	for _, a := range args {
		total += weigh(a, w.limit-total)
	}
	return total
}

func (w weigher) value(v ref.Val) float64 { return weigh(v, w.limit) }

// length is that of a text, 0 if the argument is none.
func length(args []ref.Val, i int) float64 {
	if i >= len(args) {
		return 0
	}
	s, _ := args[i].(types.String)
	return float64(len(s))
}

// weigh counts what there is in a value, until it is more than limit.
func weigh(v ref.Val, limit float64) float64 {
	total := 1.0
	switch v := v.(type) {
	case types.String:
		return total + float64(len(v))
	case types.Bytes:
		return total + float64(len(v))
	case *types.Optional:
		if v.HasValue() {
			return total + weigh(v.GetValue(), limit-total)
		}
	case traits.Mapper:
		for it := v.Iterator(); total <= limit && it.HasNext() == types.True; {
			key := it.Next()
			total += weigh(key, limit-total)
			if e, found := v.Find(key); found {
				total += weigh(e, limit-total)
			}
		}
	case traits.Lister:
		for it := v.Iterator(); total <= limit && it.HasNext() == types.True; {
			total += weigh(it.Next(), limit-total)
		}
	}
	return total
}

// regexSteps is how many steps a regular expression can take on a text; ok is
// false for functions without one, and for expressions that are none.
func regexSteps(name string, args []ref.Val) (steps float64, ok bool) {
	switch name {
	case "matches", "find", "findAll":
	default:
		return 0, false
	}
	if len(args) < 2 {
		return 0, false
	}
	text := length(args, 0) + 1
	pattern, isText := args[1].(types.String)
	if !isText || len(pattern) > maxExpression {
		return math.Inf(1), isText
	}
	parsed, err := syntax.Parse(string(pattern), syntax.Perl)
	if err != nil {
		return 0, false // the function says so
	}
	p, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0, false
	}
	return text * float64(len(p.Inst)), true
}

// estimator says what a call has cost: what Kubernetes says, but at least what
// its arguments weigh.
type estimator struct {
	library.CostEstimator
	weigher
}

// CallCost implements interpreter.ActualCostEstimator.
func (e *estimator) CallCost(function, overload string, args []ref.Val, result ref.Val) *uint64 {
	known := e.CostEstimator.CallCost(function, overload, args, result)
	if light[function] || len(args) == 0 || simple(args) || types.IsError(result) { // refused, perhaps
		return known
	}
	own := e.call(function, args)
	if steps, ok := regexSteps(function, args); ok {
		own = max(own, steps)
	}
	cost := uint64(math.Ceil(min(own/unit, 2*e.limit)))
	if cost <= 1 || known != nil && *known >= cost {
		return known
	}
	return &cost
}
