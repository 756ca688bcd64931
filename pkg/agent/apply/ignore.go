package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
)

// What a work says in ignoreFields is evaluated here, into places of an object.
// The expressions come from whoever writes works: each is bounded in length, and
// those of a manifest together in steps, in proportion to the object, so that
// one work cannot keep the agent busy or fill its memory.

const (
	maxExpression = 4 << 10 // bytes
	// An expression costs expressionSteps, apart from those it takes itself; a
	// manifest has baseSteps, and stepsPerValue for each value in the object.
	expressionSteps = 1000
	baseSteps       = 100_000
	stepsPerValue   = 200
	// expressionTime is the longest that one expression may take, manifestTime
	// that all of a manifest may.
	expressionTime = time.Second
	manifestTime   = 5 * time.Second
)

var (
	errTooManySteps = errors.New("it takes too many steps: name the fields more directly, or fewer of them")
	errTooLong      = fmt.Errorf("it is longer than %d bytes", maxExpression)
	errWholeObject  = errors.New("it selects the whole object: select fields in it")
)

// ignored are the places of one object that ignoreFields name, by condition.
type ignored struct {
	present *cut // OnSpokePresent
	change  *cut // OnSpokeChange
}

// meter counts the steps that the expressions of a manifest may still take.
type meter struct{ left int }

func newMeter(object any) *meter { return &meter{left: baseSteps + stepsPerValue*values(object)} }

func (m *meter) spend(steps int) error {
	m.left -= steps
	if m.left < 0 {
		return errTooManySteps
	}
	return nil
}

// values counts what an object consists of.
func values(v any) int {
	n := 1
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			n += values(e)
		}
	case []any:
		for _, e := range v {
			n += values(e)
		}
	}
	return n
}

// ignoredIn evaluates ignoreFields on an object, which is not modified. A
// *conditions.IgnoreFieldsError says which expression cannot be evaluated; it is
// permanent unless time ran out. With lenient, the places that an expression
// named before it failed count: on the object as it is on the cluster an
// expression that works on the manifest may look for something that somebody
// took away, and then there is nothing to ignore.
func ignoredIn(ctx context.Context, fields []workv1.IgnoreField, object map[string]any, lenient bool) (ignored, error) {
	ctx, cancel := context.WithTimeout(ctx, manifestTime)
	defer cancel()
	i := ignored{present: &cut{}, change: &cut{}}
	m := newMeter(object)
	for _, f := range fields {
		into := i.present
		if f.Condition == workv1.IgnoreFieldsConditionOnSpokeChange {
			into = i.change
		}
		for _, n := range []struct {
			kind        string
			expressions []string
			evaluate    func(context.Context, string, map[string]any, *meter) ([]place, error)
		}{
			{"JSON path", f.JSONPaths, jsonPathPlaces},
			{"JSON Pointer", f.JSONPointers, pointerPlaces},
			{"JQ expression", f.JQPathExpressions, jqPlaces},
		} {
			for _, e := range n.expressions {
				places, err := evaluate(ctx, n.evaluate, e, object, m)
				if err != nil && (!lenient || limited(err)) {
					return ignored{}, refusal(fmt.Errorf("%s error in '%s': %w", n.kind, e, err))
				}
				for _, p := range places {
					into.add(p)
				}
			}
		}
	}
	return i, nil
}

func evaluate(ctx context.Context, by func(context.Context, string, map[string]any, *meter) ([]place, error), expression string, object map[string]any, m *meter) ([]place, error) {
	if len(expression) > maxExpression {
		return nil, errTooLong
	}
	if err := m.spend(expressionSteps); err != nil {
		return nil, err
	}
	places, err := by(ctx, expression, object, m)
	if slices.ContainsFunc(places, func(p place) bool { return len(p) == 0 }) {
		return nil, errWholeObject
	}
	return places, err
}

// limited reports whether an evaluation was cut short.
func limited(err error) bool {
	return errors.Is(err, errTooManySteps) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

func refusal(err error) error {
	e := &conditions.IgnoreFieldsError{Err: err}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return e
	}
	return permanent{e}
}

// pointerPlaces resolves a JSON Pointer (RFC 6901). One that names nothing
// selects nothing.
func pointerPlaces(_ context.Context, pointer string, object map[string]any, _ *meter) ([]place, error) {
	if pointer == "" {
		return nil, errWholeObject
	}
	tokens := strings.Split(pointer, "/")
	if tokens[0] != "" {
		return nil, errors.New(`it must begin with "/"`)
	}
	var p place
	var at any = object
	for _, token := range tokens[1:] {
		token, err := unescape(token)
		if err != nil {
			return nil, err
		}
		switch v := at.(type) {
		case map[string]any:
			next, has := v[token]
			if !has {
				return nil, nil
			}
			p, at = append(p, token), next
		case []any:
			i, err := position(token)
			if err != nil {
				return nil, err
			}
			if i < 0 || i >= len(v) {
				return nil, nil
			}
			p, at = append(p, i), v[i]
		default:
			return nil, nil
		}
	}
	return []place{p}, nil
}

// unescape turns ~1 into / and ~0 into ~; no other escape exists.
func unescape(token string) (string, error) {
	rest := strings.NewReplacer("~0", "", "~1", "").Replace(token)
	if strings.Contains(rest, "~") {
		return "", errors.New(`"~" must be written as "~0", and "/" in a name as "~1"`)
	}
	return strings.NewReplacer("~1", "/", "~0", "~").Replace(token), nil
}

// position reads an index of a list; -1 stands for the place after the last.
func position(token string) (int, error) {
	if token == "-" {
		return -1, nil
	}
	i, err := strconv.Atoi(token)
	if err != nil || i < 0 || strconv.Itoa(i) != token {
		return 0, fmt.Errorf("%q is no position in a list: use a number from 0", token)
	}
	return i, nil
}
