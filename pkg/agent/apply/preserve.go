package apply

import (
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// An apply is complete: fields that a manager applied before and omits now are removed. So an ignored field
// cannot simply be omitted after the agent has applied it, which it did at the creation. If no other manager
// owns it, the server removes it or sets its default. The apply therefore contains for an ignored field:
//
//   - the value of the object, if our manager owns the field: nothing changes, and another client can update it
//     without a conflict;
//   - nothing, if our manager does not own it: another manager owns it, or the manifest never had it, and it stays;
//   - in an atomic list, the value of the object at the same index: the list can only be sent as a whole.
//
// The object is read before. The apply is conditional on that state, so that a change in between is not undone.

// preserveIgnored replaces the ignored paths of body, a copy of the manifest, by the values to send. here has
// the ignored paths of live, the object. drop has those of body; after the call it has the paths to omit. A
// path that one of them selects is ignored in both, because a condition on a value may hold in one of them
// only.
func preserveIgnored(body, live any, b managedFields, here, drop *fieldSet) any {
	switch l := live.(type) {
	case map[string]any:
		m, isMap := body.(map[string]any)
		if body != nil && !isMap {
			return body // the manifest has another type here
		}
		for step := range steps(here, drop) {
			name, _ := step.(string)
			v, has := l[name]
			if !has {
				continue
			}
			e, wanted := m[name]
			c := carried{body: e, wanted: wanted, live: v, managed: b.at(fieldpath.FieldNameElement(name)), here: here.at(name)}
			if sent, ok := c.decide(drop, name); ok {
				if m == nil {
					m = map[string]any{}
				}
				m[name] = sent
			}
		}
		if m == nil {
			return nil
		}
		return m
	case []any:
		return carryItems(body, l, b, here, drop)
	}
	return body
}

func (b managedFields) at(pe fieldpath.PathElement) managedFields {
	return managedFields{b.own.at(pe), b.all.at(pe)}
}

// carried is one path with something ignored there or below.
type carried struct {
	body    any // the value of the manifest, if wanted
	wanted  bool
	live    any
	managed managedFields
	here    *fieldSet
}

// decide returns the value to send for a path, which is a step below parent. ok is false if body stays
// unchanged.
func (c carried) decide(parent *fieldSet, step any) (sent any, ok bool) {
	if c.here.all() || parent.at(step).all() {
		if v, ours := c.managed.own.project(c.live); ours {
			parent.spare(step)
			return v, true
		}
		if c.wanted {
			parent.open(step).add(nil)
		}
		return nil, false
	}
	if c.managed.all.one() && filled(c.live) {
		ignored := c.here.union(parent.at(step))
		parent.spare(step)
		if !c.wanted {
			return nil, false
		}
		return overlay(c.body, c.live, ignored), true
	}
	sent = preserveIgnored(c.body, c.live, c.managed, c.here, parent.open(step))
	return sent, sent != nil
}

// filled reports whether v is a non-empty map or list. Empty ones are managed as one value in any case.
func filled(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) > 0
	case []any:
		return len(v) > 0
	}
	return false
}

// carryItems is preserveIgnored for lists.
func carryItems(body any, live []any, b managedFields, here, drop *fieldSet) any {
	l, isList := body.([]any)
	if body != nil && !isList || len(live) == 0 {
		return body
	}
	if !b.all.keyed() {
		ignored := here.union(drop)
		drop.below = nil
		return overlay(body, live, ignored)
	}
	x, mine := itemsOf(live, b.all), itemsOf(l, b.all)
	for i, item := range live { // in the order of the object
		pe, ok := x.stepOf(item)
		if !ok {
			continue
		}
		at := mine.find(pe)
		if here.at(i) == nil && drop.at(at) == nil {
			continue
		}
		c := carried{wanted: at >= 0, live: item, managed: b.at(pe), here: here.at(i)}
		if c.wanted {
			c.body = l[at]
		}
		sent, ok := c.decide(drop, at)
		switch {
		case !ok:
		case c.wanted:
			l[at] = sent
		default:
			l = append(l, sent)
		}
	}
	if l == nil {
		return nil
	}
	return l
}

// overlay copies the values of live at the ignored paths into body, by index. Paths that are absent in one of
// them stay unchanged.
func overlay(body, live any, ignored *fieldSet) any {
	if ignored.all() {
		return runtime.DeepCopyJSONValue(live)
	}
	for step := range steps(ignored, nil) {
		v, sub := child(live, step), ignored.at(step)
		if v == nil {
			continue
		}
		switch s := step.(type) {
		case string:
			if m, ok := body.(map[string]any); ok {
				if e, has := m[s]; has || sub.all() {
					m[s] = overlay(e, v, sub)
				}
			}
		case int:
			if l, ok := body.([]any); ok && s >= 0 && s < len(l) {
				l[s] = overlay(l[s], v, sub)
			}
		}
	}
	return body
}
