package apply

import (
	"context"
	"fmt"
	"slices"

	"github.com/itchyny/gojq"
	"k8s.io/apimachinery/pkg/runtime"
)

// The jq of ignoreFields is limited to what names fields: paths, pipes, commas, conditions. Arithmetic,
// interpolation, encoders, and arrays or objects with computed content can make a value bigger than its input
// in a single step. Counted steps cannot bound them, so they are rejected, as are loops and definitions.

// jqFilters are functions whose arguments are again such expressions.
var jqFilters = []string{
	"select", "any", "all", "first", "last", "recurse", "empty", "not", "type", "length", "keys", "has", "startswith", "endswith", "IN", "getpath",
	"values", "nulls", "strings", "numbers", "booleans", "arrays", "objects", "iterables", "scalars", "tonumber", "ascii_downcase", "ascii_upcase",
	"true", "false", "null",
}

// jqComparisons are functions whose time depends on the size of their arguments. These must be constants.
var jqComparisons = []string{"contains", "inside", "test"}

// maxPattern bounds the length of regular expressions, in bytes.
const maxPattern = 256

// jqPaths evaluates a jq path expression. It returns the paths that del(expression) would remove.
func jqPaths(ctx context.Context, expression string, object map[string]any, m *meter) ([]fieldPath, error) {
	q, err := gojq.Parse(expression)
	if err != nil {
		return nil, err
	}
	if err := jqQuery(q); err != nil {
		return nil, err
	}
	code, err := gojq.Compile(pathOf(q), m.functions()...)
	if err != nil {
		return nil, err
	}
	copied := runtime.DeepCopyJSONValue(object) // jq converts numbers in its input
	iter := code.RunWithContext(&jqContext{Context: ctx, meter: m}, copied)
	var paths []fieldPath
	for {
		v, more := iter.Next()
		if !more {
			return paths, nil
		}
		switch v := v.(type) {
		case error:
			if limited(v) {
				return nil, v
			}
			return paths, v
		case []any:
			steps, err := jqSteps(object, v, m)
			if limited(err) {
				return nil, err
			}
			if err != nil {
				return paths, err
			}
			paths = append(paths, steps...)
		default:
			return paths, fmt.Errorf("it selects %v, which is no field", v)
		}
	}
}

// pathOf returns path(q).
func pathOf(q *gojq.Query) *gojq.Query {
	return &gojq.Query{Term: &gojq.Term{Type: gojq.TermTypeFunc, Func: &gojq.Func{Name: "path", Args: []*gojq.Query{q}}}}
}

// jqContext stops an evaluation when its steps are used up: the interpreter calls Done before each step.
type jqContext struct {
	context.Context //nolint:containedctx // it is one
	meter           *meter
}

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Done implements context.Context.
func (c *jqContext) Done() <-chan struct{} {
	if c.meter.spend(1) != nil {
		return closed
	}
	return c.Context.Done()
}

// Err implements context.Context.
func (c *jqContext) Err() error {
	if c.meter.err != nil {
		return c.meter.err
	}
	return c.Context.Err()
}

// jqSteps converts a jq path to field paths. Indexes may count from the end; a slice yields several paths.
func jqSteps(object any, path []any, m *meter) ([]fieldPath, error) {
	paths, at := []fieldPath{nil}, []any{object}
	for _, step := range path {
		var nextPlaces []fieldPath
		var next []any
		for n, v := range at {
			steps, err := jqStep(v, step)
			if err == nil {
				err = m.spend(1 + len(steps)*(foundSteps+len(paths[n])))
			}
			if err != nil {
				return nil, err
			}
			for _, s := range steps {
				nextPlaces = append(nextPlaces, append(slices.Clone(paths[n]), s))
				next = append(next, child(v, s))
			}
		}
		paths, at = nextPlaces, next
	}
	return paths, nil
}

// jqStep resolves one step of a path at a value. It returns none if the value has nothing there.
func jqStep(v, step any) ([]any, error) {
	l, isList := v.([]any)
	switch s := step.(type) {
	case string:
		if m, ok := v.(map[string]any); ok {
			if _, has := m[s]; has {
				return []any{s}, nil
			}
		}
		return nil, nil
	case int:
		if s < 0 {
			s += len(l)
		}
		if isList && s >= 0 && s < len(l) {
			return []any{s}, nil
		}
		return nil, nil
	case map[string]any: // a slice
		from, ok1 := jqBound(s["start"], 0, len(l))
		to, ok2 := jqBound(s["end"], len(l), len(l))
		if !ok1 || !ok2 {
			break
		}
		var steps []any
		for i := from; i < to; i++ {
			steps = append(steps, i)
		}
		return steps, nil
	}
	return nil, fmt.Errorf("it selects by %v, which is neither the name of a field nor a position in a list", step)
}

// jqBound returns one end of a slice within a list of n items.
func jqBound(v any, absent, n int) (int, bool) {
	switch v := v.(type) {
	case nil:
		return absent, true
	case int:
		if v < 0 {
			v += n
		}
		return min(max(v, 0), n), true
	}
	return 0, false
}

func child(v, step any) any {
	switch v := v.(type) {
	case map[string]any:
		if s, ok := step.(string); ok {
			return v[s]
		}
	case []any:
		if i, ok := step.(int); ok && i < len(v) {
			return v[i]
		}
	}
	return nil
}
