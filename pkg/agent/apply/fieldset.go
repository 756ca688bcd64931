package apply

import (
	"maps"

	"k8s.io/apimachinery/pkg/runtime"
)

// fieldPath is the path of a field in an object: names of fields (string) and indexes of lists (int). The empty
// path is the object itself.
type fieldPath []any

// fieldSet is a set of paths in one object. nil is the empty set.
type fieldSet struct {
	whole bool              // this path, with everything below it
	below map[any]*fieldSet // sets below, by the next step; empty if whole
}

// add adds a path to the set.
func (c *fieldSet) add(p fieldPath) {
	for _, step := range p {
		if c.whole {
			return
		}
		c = c.open(step)
	}
	c.whole, c.below = true, nil
}

// open returns the set below a step, to add to it.
func (c *fieldSet) open(step any) *fieldSet {
	if c.below == nil {
		c.below = map[any]*fieldSet{}
	}
	if c.below[step] == nil {
		c.below[step] = &fieldSet{}
	}
	return c.below[step]
}

// spare removes a step, and everything below it, from the set.
func (c *fieldSet) spare(step any) { delete(c.below, step) }

// at returns the set below a step; nil if it is empty.
func (c *fieldSet) at(step any) *fieldSet {
	if c == nil {
		return nil
	}
	return c.below[step]
}

// all reports whether the path itself is in the set.
func (c *fieldSet) all() bool { return c != nil && c.whole }

// steps returns the steps below which either set has paths.
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

// union returns the paths of both sets.
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

// without returns a copy of v without the paths of c, which must not contain the whole of v. Paths that v does
// not have are ignored. Maps and lists that lose everything stay, empty.
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
