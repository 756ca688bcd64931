package apply

import (
	"maps"

	"k8s.io/apimachinery/pkg/runtime"
)

// fieldPath is a field within an object, from the top: names of fields (string) and
// positions in lists (int). The empty place is the object itself.
type fieldPath []any

// fieldSet is a set of places in one object. nil is the empty set.
type fieldSet struct {
	whole bool              // this place, with all below it
	below map[any]*fieldSet // places below, by the next step; nothing if whole
}

// add puts a place into the set.
func (c *fieldSet) add(p fieldPath) {
	for _, step := range p {
		if c.whole {
			return
		}
		c = c.open(step)
	}
	c.whole, c.below = true, nil
}

// open returns what is below a step, to add to it.
func (c *fieldSet) open(step any) *fieldSet {
	if c.below == nil {
		c.below = map[any]*fieldSet{}
	}
	if c.below[step] == nil {
		c.below[step] = &fieldSet{}
	}
	return c.below[step]
}

// spare takes a step, and all below it, out of the set.
func (c *fieldSet) spare(step any) { delete(c.below, step) }

// at returns what is below a step; nil if nothing is.
func (c *fieldSet) at(step any) *fieldSet {
	if c == nil {
		return nil
	}
	return c.below[step]
}

// all reports whether the place itself is in the set.
func (c *fieldSet) all() bool { return c != nil && c.whole }

// steps returns the steps below which either set has places.
func steps(a, b *fieldSet) map[any]bool {
	s := map[any]bool{}
	for _, c := range []*fieldSet{a, b} {
		if c != nil {
			for step := range c.below {
				s[step] = true
			}
		}
	}
	return s
}

// union returns the places of either set.
func (c *fieldSet) union(o *fieldSet) *fieldSet {
	switch {
	case o == nil:
		return c.clone()
	case c == nil:
		return o.clone()
	case c.whole || o.whole:
		return &fieldSet{whole: true}
	}
	u := c.clone()
	for step, sub := range o.below {
		u.open(step)
		u.below[step] = c.at(step).union(sub)
	}
	return u
}

func (c *fieldSet) clone() *fieldSet {
	if c == nil {
		return &fieldSet{}
	}
	n := &fieldSet{whole: c.whole, below: maps.Clone(c.below)}
	for step, sub := range n.below {
		n.below[step] = sub.clone()
	}
	return n
}

// without returns a copy of v, which is not whole in c, without the places.
// Places that v does not have do not matter; maps and lists that lose
// everything stay, empty.
func (c *fieldSet) without(v any) any {
	if c == nil || len(c.below) == 0 {
		return runtime.DeepCopyJSONValue(v)
	}
	switch v := v.(type) {
	case map[string]any:
		m := make(map[string]any, len(v))
		for name, e := range v {
			if sub := c.at(name); sub == nil || !sub.whole {
				m[name] = sub.without(e)
			}
		}
		return m
	case []any:
		l := make([]any, 0, len(v))
		for i, e := range v {
			if sub := c.at(i); sub == nil || !sub.whole {
				l = append(l, sub.without(e))
			}
		}
		return l
	}
	return v
}
