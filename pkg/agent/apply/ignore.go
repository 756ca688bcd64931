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

// ignoreFields of a work are evaluated here into paths of an object. The expressions come from the authors of
// works. The length of each is bounded. The steps of all expressions of a manifest are bounded in proportion to
// the object. So one work cannot keep the agent busy or fill its memory.

const (
	maxExpression = 4 << 10 // bytes
	// An expression costs expressionSteps plus its own steps. Each path that it finds costs foundSteps, because it
	// is stored. A manifest has baseSteps, and stepsPerValue for each value in the object, at most maxSteps.
	expressionSteps = 1000
	foundSteps      = 8
	maxSteps        = 5_000_000
	baseSteps       = 100_000
	stepsPerValue   = 200
	// expressionTime bounds the time of one expression, manifestTime that of all expressions of a manifest.
	expressionTime = time.Second
	manifestTime   = 5 * time.Second
)

var (
	errTooManySteps = fmt.Errorf("it takes too many steps (limit of a manifest: %d, and %d for each value in the object, at most %d): name the fields more directly, or fewer of them", baseSteps, stepsPerValue, maxSteps)
	errTooLong      = fmt.Errorf("it is longer than %d bytes", maxExpression)
	errWholeObject  = errors.New("it selects the whole object: select fields in it")
)

// ignored has the paths of one object that ignoreFields select, by condition.
type ignored struct {
	present *fieldSet // OnSpokePresent
	change  *fieldSet // OnSpokeChange
}

// meter counts the steps left for the expressions of a manifest.
type meter struct {
	ctx context.Context //nolint:containedctx // it is that of the evaluation
	// until is the deadline of the current expression.
	until time.Time
	// left is the number of steps left. When it falls to look, context and time are checked.
	left, look int
	// err is why an evaluation was stopped.
	err error
}

// lookEvery is the number of steps between two checks.
const lookEvery = 1000

func newMeter(ctx context.Context, object any) *meter {
	return &meter{ctx: ctx, left: min(maxSteps, baseSteps+stepsPerValue*values(object))}
}

// begin starts an expression.
func (m *meter) begin() error {
	m.until, m.look = time.Now().Add(expressionTime), m.left
	return m.spend(expressionSteps)
}

// spend takes steps before they are executed.
func (m *meter) spend(steps int) error {
	switch {
	case m.err != nil:
		return m.err
	case steps > m.left:
		m.err = errTooManySteps
		return m.err
	}
	if m.left -= steps; m.left > m.look {
		return nil
	}
	m.look = m.left - lookEvery
	if m.err = m.ctx.Err(); m.err == nil && time.Now().After(m.until) {
		m.err = context.DeadlineExceeded
	}
	return m.err
}

// values returns the number of values in v.
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

// ignoredIn evaluates ignoreFields on an object without modifying it. A *conditions.IgnoreFieldsError names the
// expression that failed; it is permanent unless time ran out. With lenient, the paths found before a failure
// count. On the live object an expression that works on the manifest may look for a removed field; then there
// is nothing to ignore.
func ignoredIn(ctx context.Context, fields []workv1.IgnoreField, object map[string]any, lenient bool) (ignored, error) {
	ctx, cancel := context.WithTimeout(ctx, manifestTime)
	defer cancel()
	i := ignored{present: &fieldSet{}, change: &fieldSet{}}
	m := newMeter(ctx, object)
	for _, f := range fields {
		into := i.present
		if f.Condition == workv1.IgnoreFieldsConditionOnSpokeChange {
			into = i.change
		}
		for _, n := range []struct {
			kind        string
			expressions []string
			evaluate    func(context.Context, string, map[string]any, *meter) ([]fieldPath, error)
		}{
			{"JSON path", f.JSONPaths, jsonPaths},
			{"JSON Pointer", f.JSONPointers, pointerPaths},
			{"JQ expression", f.JQPathExpressions, jqPaths},
		} {
			for _, e := range n.expressions {
				paths, err := evaluate(ctx, n.evaluate, e, object, m)
				if err != nil && (!lenient || limited(err)) {
					return ignored{}, refusal(fmt.Errorf("%s error in '%s': %w", n.kind, e, err))
				}
				for _, p := range paths {
					into.add(p)
				}
			}
		}
	}
	return i, nil
}

func evaluate(ctx context.Context, by func(context.Context, string, map[string]any, *meter) ([]fieldPath, error), expression string, object map[string]any, m *meter) ([]fieldPath, error) {
	if len(expression) > maxExpression {
		return nil, errTooLong
	}
	if err := m.begin(); err != nil {
		return nil, timed(err)
	}
	paths, err := by(ctx, expression, object, m)
	err = timed(err)
	if slices.ContainsFunc(paths, func(p fieldPath) bool { return len(p) == 0 }) {
		return nil, errWholeObject
	}
	return paths, err
}

// timed replaces a deadline error by one that names the time limit.
func timed(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("it takes longer than %v, or all of the manifest longer than %v: %w", expressionTime, manifestTime, err)
	}
	return err
}

// limited reports whether an evaluation was stopped by a limit.
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

// pointerPaths resolves a JSON Pointer (RFC 6901). A pointer to an absent field selects nothing.
func pointerPaths(_ context.Context, pointer string, object map[string]any, _ *meter) ([]fieldPath, error) {
	if pointer == "" {
		return nil, errWholeObject
	}
	tokens := strings.Split(pointer, "/")
	if tokens[0] != "" {
		return nil, errors.New(`it must begin with "/"`)
	}
	var p fieldPath
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
	return []fieldPath{p}, nil
}

// unescape replaces ~1 by / and ~0 by ~; no other escape exists.
func unescape(token string) (string, error) {
	rest := strings.NewReplacer("~0", "", "~1", "").Replace(token)
	if strings.Contains(rest, "~") {
		return "", errors.New(`"~" must be written as "~0", and "/" in a name as "~1"`)
	}
	return strings.NewReplacer("~1", "/", "~0", "~").Replace(token), nil
}

// position parses an index of a list; -1 means the end of the list.
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
