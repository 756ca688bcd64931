package feedback

import (
	"fmt"

	"k8s.io/client-go/util/jsonpath"
)

// maxVisits bounds the values that a path may visit, maxVisitsTogether those of all paths of an object. The
// visits are estimated by an upper bound that ignores the results.
const (
	maxVisits         = 5_000_000 // less than a second
	maxVisitsTogether = 10_000_000
)

var (
	errTooMuch         = fmt.Errorf("the path would visit too many values of the object, more than %d: use fewer of '..' and of lists in brackets", maxVisits)
	errTooMuchTogether = fmt.Errorf("the paths for this object would visit too many of its values together, more than %d: use fewer paths, or name the fields more directly", maxVisitsTogether)
)

// visitBudget has the size of an object and the visits left for its paths.
type visitBudget struct {
	object        map[string]any
	values, depth int // 0: not counted yet
	// chars is the total length of all texts: '*' and '..' visit each byte of a text.
	chars int
	left  float64
}

func newBudget(object map[string]any) *visitBudget {
	return &visitBudget{object: object, left: maxVisitsTogether}
}

// allows returns nil if the path is cheap enough, and takes its cost. A descent ('..') visits every value again
// for each of its ancestors. A list of names or indexes multiplies by its entries. The steps after an open-ended
// range are evaluated twice: in the range and after it. Several of them multiply. All other steps visit each
// value at most once.
func (b *visitBudget) allows(p path) error {
	var c cost
	c.nodes(p.root)
	visits := float64(c.steps)
	if !c.direct() {
		visits *= b.all(c) * c.lists
	}
	switch {
	case visits > maxVisits:
		return errTooMuch
	case visits > b.left:
		return errTooMuchTogether
	}
	b.left -= visits
	return nil
}

// all returns the number of values that a step can visit in one pass of the path.
func (b *visitBudget) all(c cost) float64 {
	if b.values == 0 {
		b.values, b.depth = b.measure(b.object)
	}
	all := float64(b.values)
	if c.wild {
		all += float64(b.chars)
	}
	for range c.descents {
		all *= float64(b.depth + 1) // plus one, because bytes are below their text
	}
	return all
}

// measure returns the number of values in v and their depth.
func (b *visitBudget) measure(v any) (values, depth int) {
	values = 1
	inner := func(v any) {
		n, d := b.measure(v)
		values, depth = values+n, max(depth, d)
	}
	switch v := v.(type) {
	case string:
		b.chars += len(v)
	case map[string]any:
		for _, e := range v {
			inner(e)
		}
	case []any:
		for _, e := range v {
			inner(e)
		}
	}
	return values, depth + 1
}

// cost has the factors of a path's cost.
type cost struct {
	steps, descents int
	lists           float64
	// many: a step can find several values. wild: these can be bytes.
	many, wild bool
}

// direct reports whether each step finds at most one value.
func (c *cost) direct() bool { return !c.many && !c.wild && c.lists == 1 }

func (c *cost) nodes(l *jsonpath.ListNode) {
	c.lists = max(c.lists, 1)
	if l == nil {
		return
	}
	for _, n := range l.Nodes {
		c.steps++
		switch n := n.(type) {
		case *jsonpath.ListNode:
			c.nodes(n)
		case *jsonpath.FilterNode:
			c.many = true
			c.nodes(n.Left)
			c.nodes(n.Right)
		case *jsonpath.UnionNode:
			c.lists *= float64(max(1, len(n.Nodes)))
			for _, inner := range n.Nodes {
				c.nodes(inner)
			}
		case *jsonpath.ArrayNode:
			c.many = c.many || !n.Params[1].Derived
		case *jsonpath.IdentifierNode:
			c.lists *= 2
		case *jsonpath.WildcardNode:
			c.wild = true
		case *jsonpath.RecursiveNode:
			c.wild = true
			c.descents++
		}
	}
}
