package conditionrules

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/ext"
	"k8s.io/apiserver/pkg/cel/library"
	"k8s.io/utils/lru"
)

const (
	// maxExpression bounds the length of an expression, in bytes.
	maxExpression = 8 << 10
	// maxLoops bounds the loops (macros such as all, exists, map, filter) in one expression. Each loop can nest the
	// value of the previous one once more, and the type check takes the cube of the depth.
	maxLoops = 32
	// maxDepth bounds the nesting of an expression, for the same reason. Chains of calls and additions count too.
	maxDepth = 64
	// maxCopies bounds optMap and optFlatMap: the parser expands each to two copies of everything before it.
	maxCopies = 4
	// maxNested bounds the nesting of lists and maps: the type check takes the cube of it.
	maxNested = 100
	// maxPrograms bounds the cached programs; one takes some 10 KiB.
	maxPrograms = 256
)

// Evaluator evaluates rules. The zero value is ready. Its methods may be called concurrently.
type Evaluator struct {
	// limits is zero for the default limits.
	limits limits

	mu sync.Mutex
	// rules and messages are the environments of the two kinds of expressions. They and programs are nil until they
	// are needed. The cache has its own lock; no lock is held during a compilation.
	rules, messages *environment
	programs        *lru.Cache
}

// limits bound the cost of rules.
type limits struct {
	// expression bounds the units of one expression, manifest those of all rules of one manifest.
	expression, manifest uint64
	// time bounds the time of all rules of one manifest.
	time time.Duration
}

var usual = limits{expression: 1_000_000, manifest: 10_000_000, time: 2 * time.Second}

func (e *Evaluator) bounds() limits {
	if e.limits == (limits{}) {
		return usual
	}
	return e.limits
}

// program identifies a compiled expression.
type program struct {
	text    string
	message bool
}

// compiled is a compiled expression, or the error of its compilation.
type compiled struct {
	cel.Program
	// units is its cost without calls and loop iterations.
	units float64
	err   error
}

// internalError is an error that no expression caused.
type internalError struct{ error }

func (e *internalError) Unwrap() error { return e.error }

// environment defines what expressions may use.
type environment struct {
	*cel.Env
	guard guard
}

// evaluate evaluates an expression within the remaining budget of the manifest.
func (r *run) evaluate(ctx context.Context, p program, variables map[string]any) (ref.Val, error) {
	if r.left == 0 {
		return nil, r.overBudget()
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	c := r.compiled(p)
	if c.err != nil {
		return nil, c.err
	}
	m := newMeter(ctx, min(r.bounds().expression, r.left))
	v, err := m.run(c, variables)
	r.left -= m.spent()
	if errors.As(err, new(*costError)) && r.left == 0 {
		return nil, r.overBudget()
	}
	return v, err
}

// run evaluates an expression.
func (m *meter) run(c compiled, variables map[string]any) (ref.Val, error) {
	if c.units > m.left {
		m.left = 0
		return nil, m.tooMuch("it is too long")
	}
	m.left -= c.units
	variables[meterName] = m
	v, _, err := c.Eval(variables)
	if m.err != nil {
		return nil, m.err
	}
	return v, err
}

// compiled returns the compiled form of an expression.
func (e *Evaluator) compiled(p program) compiled {
	if len(p.text) > maxExpression {
		return compiled{err: fmt.Errorf("the expression has %d bytes, use at most %d", len(p.text), maxExpression)}
	}
	env, err := e.environment(p.message)
	if err != nil {
		return compiled{err: &internalError{err}}
	}
	if c, has := e.programs.Get(p); has {
		return c.(compiled)
	}
	var c compiled
	c.Program, c.units, c.err = env.compile(p.text)
	e.programs.Add(p, c)
	return c
}

// environment returns the environment of rules or of messages. The first call creates both.
func (e *Evaluator) environment(message bool) (*environment, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.rules == nil {
		rules, err := cel.NewEnv(options()...)
		if err != nil {
			return nil, fmt.Errorf("prepare CEL: %w", err)
		}
		messages, err := rules.Extend(cel.Variable("result", cel.BoolType))
		if err != nil {
			return nil, fmt.Errorf("prepare CEL: %w", err)
		}
		guard, err := newGuard(rules)
		if err != nil {
			return nil, fmt.Errorf("prepare CEL: %w", err)
		}
		e.programs = lru.New(maxPrograms)
		e.rules, e.messages = &environment{rules, guard}, &environment{messages, guard}
	}
	if message {
		return e.messages, nil
	}
	return e.rules, nil
}

// options returns the libraries that rules may use, and the object.
func options() []cel.EnvOption {
	return append([]cel.EnvOption{
		cel.Variable("object", cel.DynType), cel.OptionalTypes(), cel.DefaultUTCTimeZone(true), cel.ParserRecursionLimit(maxDepth),
		ext.Strings(), library.Lists(), library.Regex(), library.URLs(), library.Quantity(), library.IP(), library.CIDR(), library.Format(), library.SemverLib(),
		cel.Function("hasConditions", cel.Overload("has_conditions_map", []*cel.Type{cel.MapType(cel.StringType, cel.DynType)}, cel.BoolType, cel.UnaryBinding(hasConditions))),
	}, hidden()...)
}

// hasConditions reports whether a map, usually a status, has a non-empty list of conditions.
func hasConditions(status ref.Val) ref.Val {
	m, ok := status.(traits.Mapper)
	if !ok {
		return types.MaybeNoSuchOverloadErr(status)
	}
	v, found := m.Find(types.String("conditions"))
	list, ok := v.(traits.Lister)
	return types.Bool(found && ok && list.Size() != types.IntZero)
}

func (e *environment) compile(text string) (cel.Program, float64, error) {
	if n := strings.Count(text, "optMap") + strings.Count(text, "optFlatMap"); n > maxCopies {
		return nil, 0, fmt.Errorf("the expression has %d times optMap or optFlatMap, use them at most %d times", n, maxCopies)
	}
	parsed, issues := e.Parse(text)
	if issues.Err() != nil {
		return nil, 0, issues.Err()
	}
	if err := acceptable(parsed.NativeRep()); err != nil {
		return nil, 0, err
	}
	units := plan(parsed.NativeRep())
	checked, issues := e.Check(parsed)
	if issues.Err() != nil {
		return nil, 0, issues.Err()
	}
	program, err := e.Program(checked, cel.CustomDecoratorV2(e.guard.decorate))
	return program, units, err
}

// acceptable returns why an expression is not allowed in a rule. Values in protocol buffer messages would be
// copied without a price.
func acceptable(a *ast.AST) error {
	loops, messages := 0, 0
	ast.PreOrderVisit(a.Expr(), ast.NewExprVisitor(func(x ast.Expr) {
		switch x.Kind() {
		case ast.ComprehensionKind:
			loops++
		case ast.StructKind:
			messages++
		case ast.UnspecifiedExprKind, ast.CallKind, ast.IdentKind, ast.ListKind, ast.LiteralKind, ast.MapKind, ast.SelectKind:
		}
	}))
	switch {
	case loops > maxLoops:
		return fmt.Errorf("the expression has %d loops (all, exists, exists_one, filter, map), use at most %d", loops, maxLoops)
	case messages > 0:
		return errors.New("messages of protocol buffers cannot be made in rules")
	case nested(a.Expr()) > maxNested:
		return fmt.Errorf("the expression makes lists and maps in others, more than %d deep: use fewer of them", maxNested)
	}
	return nil
}

// nested returns an upper bound of the nesting of an expression's value. The value of a loop can be as deep as
// its input plus its step.
func nested(e ast.Expr) int {
	switch e.Kind() {
	case ast.ListKind:
		return 1 + deepest(e.AsList().Elements()...)
	case ast.MapKind:
		n := 0
		for _, entry := range e.AsMap().Entries() {
			n = max(n, deepest(entry.AsMapEntry().Key(), entry.AsMapEntry().Value()))
		}
		return 1 + n
	case ast.CallKind:
		n := deepest(e.AsCall().Args()...)
		if e.AsCall().IsMemberFunction() {
			n = max(n, nested(e.AsCall().Target()))
		}
		switch strings.TrimPrefix(e.AsCall().FunctionName(), "optional.") {
		case "of", "ofNonZeroValue", "first", "last", operators.OptIndex, operators.OptSelect: // an optional value is nested too
			n++
		}
		return n
	case ast.SelectKind:
		return nested(e.AsSelect().Operand())
	case ast.ComprehensionKind:
		l := e.AsComprehension()
		return nested(l.IterRange()) + deepest(l.AccuInit(), l.LoopCondition(), l.LoopStep(), l.Result())
	case ast.IdentKind, ast.LiteralKind, ast.StructKind, ast.UnspecifiedExprKind:
	}
	return 0
}

func deepest(list ...ast.Expr) int {
	n := 0
	for _, e := range list {
		n = max(n, nested(e))
	}
	return n
}
