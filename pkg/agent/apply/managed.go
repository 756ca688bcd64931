package apply

import (
	"maps"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// managed is the content of managedFields for one path of an object: whether the path itself is managed, and
// what is managed below it. A path with nothing below is atomic to the server, with any content.
type managed struct {
	self  bool
	below *fieldpath.Set // nil: none
}

// managedFields is the content of an object's managedFields: the fields that our manager applied, and the
// fields of all managers. The latter distinguish lists merged by key from atomic lists, without a schema.
type managedFields struct{ own, all managed }

// readManagedFields reads the entries of the version in which the object was read. An unreadable entry counts
// as absent, which costs at most one apply.
func readManagedFields(o *unstructured.Unstructured, manager string) managedFields {
	own, all := fieldpath.NewSet(), fieldpath.NewSet()
	for _, e := range o.GetManagedFields() {
		if e.FieldsV1 == nil || e.APIVersion != o.GetAPIVersion() {
			continue
		}
		s := setOf(e)
		all = all.Union(s)
		if bookedBy(e, o, manager, metav1.ManagedFieldsOperationApply) {
			own = own.Union(s)
		}
	}
	return managedFields{managed{below: own}, managed{below: all}}
}

func (m managed) empty() bool { return m.below == nil || m.below.Empty() }

// one reports whether the path is managed as one value.
func (m managed) one() bool { return m.self && m.empty() }

func (m managed) at(pe fieldpath.PathElement) managed {
	if m.below == nil {
		return managed{}
	}
	sub := managed{self: m.below.Members.Has(pe)}
	sub.below, _ = m.below.Children.Get(pe)
	return sub
}

// steps returns the direct children, each once.
func (m managed) steps() []fieldpath.PathElement {
	if m.below == nil {
		return nil
	}
	var steps []fieldpath.PathElement
	m.below.Members.Iterate(func(pe fieldpath.PathElement) { steps = append(steps, pe) })
	m.below.Children.Iterate(func(pe fieldpath.PathElement) {
		if !m.below.Members.Has(pe) {
			steps = append(steps, pe)
		}
	})
	return steps
}

// keyed reports whether the path is a list that is merged by keys or values.
func (m managed) keyed() bool {
	return slices.ContainsFunc(m.steps(), func(pe fieldpath.PathElement) bool { return pe.Key != nil || pe.Value != nil })
}

// items finds the items of a keyed list by their keys.
type items struct {
	list   []any
	byStep map[string]int
	fields []string // names of the key fields
}

// itemsOf indexes list by the steps below m.
func itemsOf(list []any, m managed) items {
	x := items{list: list, byStep: make(map[string]int, len(list))}
	for _, pe := range m.steps() {
		if pe.Key != nil {
			for _, f := range *pe.Key {
				x.fields = append(x.fields, f.Name)
			}
			break
		}
	}
	for i, item := range list {
		if pe, ok := x.stepOf(item); ok {
			if _, taken := x.byStep[pe.String()]; !taken {
				x.byStep[pe.String()] = i
			}
		}
	}
	return x
}

// stepOf returns the path element of an item. ok is false if the item lacks a key field, which the server may
// fill in.
func (x items) stepOf(item any) (pe fieldpath.PathElement, ok bool) {
	if len(x.fields) == 0 {
		v := value.NewValueInterface(item)
		return fieldpath.ValueElement(v), true
	}
	m, isMap := item.(map[string]any)
	if !isMap {
		return pe, false
	}
	var fields value.FieldList
	for _, name := range x.fields {
		v, has := m[name]
		if !has {
			return pe, false
		}
		fields = append(fields, value.Field{Name: name, Value: value.NewValueInterface(v)})
	}
	return fieldpath.KeyElement(fields...), true
}

// find returns the index of the item of a path element; -1 if there is none. An item that lacks key fields is
// found by the others.
func (x items) find(pe fieldpath.PathElement) int {
	if i, has := x.byStep[pe.String()]; has {
		return i
	}
	if pe.Key == nil || len(x.byStep) == len(x.list) {
		return -1
	}
	return slices.IndexFunc(x.list, func(item any) bool {
		m, isMap := item.(map[string]any)
		if _, whole := x.stepOf(item); !isMap || whole {
			return false
		}
		matched := 0
		for _, f := range *pe.Key {
			v, has := m[f.Name]
			if has && !sameValue(v, f.Value.Unstructured()) {
				return false
			}
			if has {
				matched++
			}
		}
		return matched > 0
	})
}

// project returns a copy of the part of v that m manages.
func (m managed) project(v any) (any, bool) {
	if m.one() {
		return runtime.DeepCopyJSONValue(v), true
	}
	if m.empty() {
		return nil, false
	}
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for _, pe := range m.steps() {
			if pe.FieldName == nil {
				continue
			}
			if e, has := v[*pe.FieldName]; has {
				if sub, ok := m.at(pe).project(e); ok {
					out[*pe.FieldName] = sub
				}
			}
		}
		return out, true
	case []any:
		out := []any{}
		x := itemsOf(v, m)
		for _, item := range v {
			if pe, ok := x.stepOf(item); ok {
				if sub, ok := m.at(pe).project(item); ok {
					out = append(out, sub)
				}
			}
		}
		return out, true
	}
	return v, true
}

// hold reports whether live has all values of want, and our manager owns all of them. Then another apply could
// only remove fields. Values that the server converts count as different.
func (b managedFields) hold(live, want any) bool {
	if b.own.one() {
		return sameValue(live, want)
	}
	switch w := want.(type) {
	case map[string]any:
		l, ok := live.(map[string]any)
		if !ok || len(w) == 0 {
			return false
		}
		for name, e := range w {
			if v, has := l[name]; !has || !b.at(fieldpath.FieldNameElement(name)).hold(v, e) {
				return false
			}
		}
		return true
	case []any:
		l, ok := live.([]any)
		if !ok || !b.own.keyed() {
			return false
		}
		x := itemsOf(l, b.own)
		for _, item := range w {
			pe, ok := x.stepOf(item)
			if !ok {
				return false
			}
			if i := x.find(pe); i < 0 || !b.at(pe).hold(l[i], item) {
				return false
			}
		}
		return true
	}
	return false
}

// exceeds reports whether m manages something that want does not have: an apply of want would remove it.
func (m managed) exceeds(want any) bool {
	if m.empty() {
		return false
	}
	switch w := want.(type) {
	case map[string]any:
		return slices.ContainsFunc(m.steps(), func(pe fieldpath.PathElement) bool {
			if pe.FieldName == nil {
				return true
			}
			e, has := w[*pe.FieldName]
			return !has || m.at(pe).exceeds(e)
		})
	case []any:
		x := itemsOf(w, m)
		return slices.ContainsFunc(m.steps(), func(pe fieldpath.PathElement) bool {
			i := x.find(pe)
			return i < 0 || m.at(pe).exceeds(w[i])
		})
	}
	return true
}

// sameValue compares two values, numbers by value.
func sameValue(a, b any) bool {
	if x, ok := number(a); ok {
		y, ok := number(b)
		return ok && x == y
	}
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, sameValue)
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, sameValue)
	}
	return reflect.DeepEqual(a, b)
}
