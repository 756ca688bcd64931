package apply

import (
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// An apply says everything that a manager wants of an object: what it said
// before and leaves out now is removed. So a field that is to be left alone
// cannot simply be left out once we have applied it, as we do when the object is
// made: nobody else may manage it, and then the server removes it or puts its
// default there. What is sent for an ignored field is therefore
//
//   - what the object holds, if our manager has the field: nothing changes, and
//     whoever updates it takes it over without a conflict;
//   - nothing, if our manager does not have it: somebody else took it over, or
//     the manifest never had it; it stays theirs;
//   - inside a list that is one value to the server, what the object holds at
//     the same position: the list can only be sent as a whole.
//
// The object is read before, and the apply says which state of it was read, so
// that a change between the two is not undone.

// preserveIgnored replaces the ignored places of body, a copy of the manifest, by what is
// to be sent for them. here are the ignored places of live, the object; drop
// those of body, and what is left of them afterwards is to be left out. What one
// of the two selects is ignored in both: a condition on a value may hold here
// and not there.
func preserveIgnored(body, live any, b managedFields, here, drop *fieldSet) any {
	switch l := live.(type) {
	case map[string]any:
		m, isMap := body.(map[string]any)
		if body != nil && !isMap {
			return body // the manifest makes something else of it
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

// carried is one place with something ignored there or below.
type carried struct {
	body    any // what the manifest has there, if wanted
	wanted  bool
	live    any
	managed managedFields
	here    *fieldSet
}

// decide returns what to send for a place, which is a step below parent; ok is
// false if the body stays as it is.
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

// filled reports whether there is something in v; a map or list that is empty is
// managed as one value in any case.
func filled(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) > 0
	case []any:
		return len(v) > 0
	}
	return false
}

// carryItems is carry for lists.
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

// overlay puts what live has at the ignored places over body, by position.
// Places that either does not have stay as they are.
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
