package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/client-go/util/jsonpath"
)

// The JSONPath syntax is that of Kubernetes, parsed by its parser. It is evaluated here, because paths are
// needed instead of values, and because the steps must be counted.

// found is a value and its path in the object; the path is nil for a literal.
type found struct {
	path  fieldPath
	value any
}

var errNoField = errors.New("it must end with the name of a field, as in .spec.replicas: items of lists can be selected with jqPathExpressions")

// jsonPaths evaluates a JSONPath that ends with the name of a field. A path to an absent field selects nothing.
func jsonPaths(_ context.Context, path string, object map[string]any, m *meter) ([]fieldPath, error) {
	nodes, err := parseJSONPath(path)
	if err != nil {
		return nil, err
	}
	if len(nodes) == 0 {
		return nil, errWholeObject
	}
	if _, field := nodes[len(nodes)-1].(*jsonpath.FieldNode); !field {
		return nil, errNoField
	}
	results, err := pathQuery{m}.list(nodes, []found{{fieldPath{}, object}})
	if err != nil {
		return nil, err
	}
	var paths []fieldPath
	for _, r := range results {
		paths = append(paths, r.path)
	}
	return paths, nil
}

// parseJSONPath parses a path with or without braces, and with or without the leading dot or "$".
func parseJSONPath(path string) ([]jsonpath.Node, error) {
	path = strings.TrimSpace(path)
	if strings.HasPrefix(path, "{") && strings.HasSuffix(path, "}") {
		path = path[1 : len(path)-1]
	}
	if path != "" && !strings.ContainsAny(path[:1], ".[$@") {
		path = "." + path
	}
	p, err := jsonpath.Parse("ignoreFields", "{"+path+"}")
	if err != nil {
		return nil, err
	}
	if len(p.Root.Nodes) != 1 {
		return nil, errors.New("it must be one path")
	}
	l, ok := p.Root.Nodes[0].(*jsonpath.ListNode)
	if !ok {
		return nil, errors.New("it must be a path")
	}
	return l.Nodes, nil
}

// pathQuery evaluates the nodes of a path.
type pathQuery struct{ *meter }

func (q pathQuery) list(nodes []jsonpath.Node, in []found) ([]found, error) {
	for _, n := range nodes {
		out, err := q.node(n, in)
		if err != nil {
			return nil, err
		}
		in = out
	}
	return in, nil
}

func (q pathQuery) node(n jsonpath.Node, in []found) ([]found, error) {
	switch n := n.(type) {
	case *jsonpath.ListNode:
		return q.list(n.Nodes, in)
	case *jsonpath.UnionNode:
		var out []found
		for _, l := range n.Nodes {
			more, err := q.list(l.Nodes, in)
			if err != nil {
				return nil, err
			}
			out = append(out, more...)
		}
		return out, nil
	case *jsonpath.IdentifierNode:
		return nil, fmt.Errorf("unrecognized identifier %s", n.Name)
	case *jsonpath.ArrayNode:
		if n.Params[2].Known && n.Params[2].Value <= 0 {
			return nil, errors.New("step must be > 0")
		}
	}
	var out []found
	for _, f := range in {
		more, err := q.step(n, f)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// step evaluates a node that processes one value at a time.
func (q pathQuery) step(n jsonpath.Node, f found) ([]found, error) {
	switch n := n.(type) {
	case *jsonpath.TextNode:
		return []found{{nil, n.Text}}, q.spend(1)
	case *jsonpath.IntNode:
		return []found{{nil, int64(n.Value)}}, q.spend(1)
	case *jsonpath.FloatNode:
		return []found{{nil, n.Value}}, q.spend(1)
	case *jsonpath.BoolNode:
		return []found{{nil, n.Value}}, q.spend(1)
	case *jsonpath.FieldNode:
		return q.field(n.Value, f)
	case *jsonpath.WildcardNode:
		return q.children(f)
	case *jsonpath.ArrayNode:
		return q.slice(n.Params, f)
	case *jsonpath.RecursiveNode:
		return q.descend(f)
	case *jsonpath.FilterNode:
		return q.filter(n, f)
	}
	return nil, fmt.Errorf("unexpected %v", n)
}

// pay takes the steps for n direct children of a value.
func (q pathQuery) pay(f found, n int) error { return q.spend(1 + n*(foundSteps+len(f.path))) }

// below returns a direct child of a value.
func (f found) below(step, v any) found {
	p := make(fieldPath, len(f.path), len(f.path)+1)
	copy(p, f.path)
	return found{append(p, step), v}
}

// field returns the field of a map.
func (q pathQuery) field(name string, f found) ([]found, error) {
	m, _ := f.value.(map[string]any)
	v, has := m[name]
	if !has {
		return nil, q.pay(f, 0)
	}
	return []found{f.below(name, v)}, q.pay(f, 1)
}

// children returns the direct children of a value; those of maps in the order of names.
func (q pathQuery) children(f found) ([]found, error) {
	var out []found
	switch v := f.value.(type) {
	case map[string]any:
		if err := q.pay(f, len(v)); err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			out = append(out, f.below(name, v[name]))
		}
	case []any:
		if err := q.pay(f, len(v)); err != nil {
			return nil, err
		}
		for i, e := range v {
			out = append(out, f.below(i, e))
		}
	default:
		return nil, q.pay(f, 0)
	}
	return out, nil
}

// slice returns items of a list; indexes outside select nothing.
func (q pathQuery) slice(p [3]jsonpath.ParamsEntry, f found) ([]found, error) {
	l, ok := f.value.([]any)
	if !ok {
		return nil, q.spend(1)
	}
	from, to, by := 0, len(l), 1
	if p[0].Known {
		if from = p[0].Value; from < 0 {
			from += len(l)
		}
	}
	if p[1].Known {
		if to = p[1].Value; to < 0 || to == 0 && p[1].Derived {
			to += len(l)
		}
	}
	if p[2].Known {
		by = p[2].Value
	}
	from, to = min(from, len(l)), min(to, len(l)) // before the first index there are no items, but steps are counted from there
	if from < 0 {
		from = (by - -from%by) % by
	}
	var out []found
	for i := from; i < to; i += by {
		if err := q.pay(f, 1); err != nil {
			return nil, err
		}
		out = append(out, f.below(i, l[i]))
		if by > len(l) {
			break
		}
	}
	return out, q.spend(1)
}

// descend returns a value and all its descendants that have children.
func (q pathQuery) descend(f found) ([]found, error) {
	below, err := q.children(f)
	if err != nil || len(below) == 0 {
		return nil, err
	}
	out := []found{f}
	for _, b := range below {
		more, err := q.descend(b)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// filter returns the items of a list for which the condition is true.
func (q pathQuery) filter(n *jsonpath.FilterNode, f found) ([]found, error) {
	l, ok := f.value.([]any)
	if !ok {
		return nil, errors.New("only a list can be filtered")
	}
	if err := q.pay(f, len(l)); err != nil {
		return nil, err
	}
	var out []found
	for i, e := range l {
		item := f.below(i, e)
		holds, err := q.holds(n, item)
		if err != nil {
			return nil, err
		}
		if holds {
			out = append(out, item)
		}
	}
	return out, nil
}

func (q pathQuery) holds(n *jsonpath.FilterNode, item found) (bool, error) {
	left, err := q.list(n.Left.Nodes, []found{item})
	if err != nil {
		return false, err
	}
	if n.Operator == "exists" {
		return len(left) > 0, nil
	}
	right, err := q.list(n.Right.Nodes, []found{item})
	if err != nil {
		return false, err
	}
	if len(left) > 1 || len(right) > 1 {
		return false, errors.New("can only compare one element at a time")
	}
	if len(left) == 0 || len(right) == 0 {
		return false, nil
	}
	order, err := compareScalars(left[0].value, right[0].value)
	if err != nil {
		return false, err
	}
	switch n.Operator {
	case "==":
		return order == 0, nil
	case "!=":
		return order != 0, nil
	case "<":
		return order < 0, nil
	case "<=":
		return order <= 0, nil
	case ">":
		return order > 0, nil
	case ">=":
		return order >= 0, nil
	}
	return false, fmt.Errorf("unrecognized filter operator %s", n.Operator)
}

// compareScalars orders two texts, two numbers or two booleans (false first).
func compareScalars(a, b any) (int, error) {
	if x, ok := number(a); ok {
		if y, ok := number(b); ok {
			return cmp.Compare(x, y), nil
		}
	}
	switch x := a.(type) {
	case string:
		if y, ok := b.(string); ok {
			return strings.Compare(x, y), nil
		}
	case bool:
		if y, ok := b.(bool); ok {
			if x == y {
				return 0, nil
			}
			if y {
				return -1, nil
			}
			return 1, nil
		}
	}
	return 0, errors.New("incompatible types for comparison")
}

func number(v any) (float64, bool) {
	switch v := v.(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}
