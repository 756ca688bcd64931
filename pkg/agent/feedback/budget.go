package feedback

import (
	"errors"

	"k8s.io/client-go/util/jsonpath"
)

// maxVisits is how many values of the object a path may visit, by an upper
// bound that does not look at what the path finds; they take less than a second.
const maxVisits = 5_000_000

// errTooMuch says that a path goes over that bound.
var errTooMuch = errors.New("the path would visit too many values of the object: use fewer of '..' and of lists in brackets")

// budget knows how large an object is.
type budget struct {
	object        map[string]any
	values, depth int // 0: not counted yet
}

func newBudget(object map[string]any) *budget { return &budget{object: object} }

// allows returns nil if the path is cheap enough. A descent ('..') finds every
// value again for each of its ancestors, and a list of names or indexes finds as
// many as it has entries; one after the other they multiply. Everything else
// finds each value at most once.
func (b *budget) allows(p path) error {
	if b.values == 0 {
		b.values, b.depth = measure(b.object)
	}
	var c cost
	c.nodes(p.root)
	visits := float64(c.steps) * float64(b.values) * c.lists
	for range c.descents {
		visits *= float64(b.depth)
	}
	if visits > maxVisits {
		return errTooMuch
	}
	return nil
}

// measure counts the values in v, and how deep they go.
func measure(v any) (values, depth int) {
	values = 1
	inner := func(v any) {
		n, d := measure(v)
		values, depth = values+n, max(depth, d)
	}
	switch v := v.(type) {
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

// cost is what multiplies in a path.
type cost struct {
	steps, descents int
	lists           float64
}

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
			c.nodes(n.Left)
			c.nodes(n.Right)
		case *jsonpath.UnionNode:
			c.lists *= float64(max(1, len(n.Nodes)))
			for _, inner := range n.Nodes {
				c.nodes(inner)
			}
		case *jsonpath.RecursiveNode:
			c.descents++
		}
	}
}
