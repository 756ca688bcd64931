package apply

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// Foreign is a field of an object that another manager has set and that is not in the manifest.
type Foreign struct {
	// Path has the form .spec.template.spec.containers[name="proxy"].
	Path string
	// Manager is its manager; several are joined by commas.
	Manager string
}

// others is the content of an object's managedFields: the fields of this agent, those of all other managers,
// and those of each of them.
type others struct {
	ours, all managed
	by        map[string]managed
}

func readOthers(o *unstructured.Unstructured) others {
	ours, all, by := fieldpath.NewSet(), fieldpath.NewSet(), map[string]*fieldpath.Set{}
	for _, e := range o.GetManagedFields() {
		if e.Subresource == "status" {
			continue // updates of the agent never change the status
		}
		s := setOf(e)
		if e.Manager == kubeclient.UserAgent {
			ours = ours.Union(s)
			continue
		}
		all = all.Union(s)
		if by[e.Manager] != nil {
			s = s.Union(by[e.Manager])
		}
		by[e.Manager] = s
	}
	b := others{ours: managed{below: ours}, all: managed{below: all}, by: map[string]managed{}}
	for name, s := range by {
		b.by[name] = managed{below: s}
	}
	return b
}

// managers names the managers that own a path or something below it.
func (b others) managers(at fieldpath.Path) string {
	var names []string
	for name, m := range b.by {
		for _, pe := range at {
			m = m.at(pe)
		}
		if m.self || !m.empty() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// view is the comparison of an object with its manifest.
type view struct {
	// want is the manifest with the foreign fields that stay.
	want *unstructured.Unstructured
	// kept has the foreign fields that stay, foreign has all foreign fields.
	kept, foreign fieldSet
	// shared: some foreign fields stay.
	shared bool
	// left are those that stay although they are in no table; remove are the others.
	left, remove []Foreign
}

// viewer walks through an object, its manifest and its managedFields.
type viewer struct {
	view
	others
	rows []FilledField
	// alone reports whether a field stays although it is in no table.
	alone      func(Foreign) bool
	live, from *unstructured.Unstructured
}

// lookAt compares an object with its manifest, which it does not modify.
func lookAt(live, manifest *unstructured.Unstructured, alone func(Foreign) bool) view {
	v := viewer{others: readOthers(live), rows: filledOf(live.GroupVersionKind().GroupKind()), alone: alone, live: live, from: manifest}
	want := manifest.DeepCopy()
	for _, pe := range v.others.all.steps() {
		name := ""
		if pe.FieldName != nil {
			name = *pe.FieldName
		}
		if has := live.Object[name]; has != nil && name != "metadata" && name != "apiVersion" && name != "kind" {
			if got := v.visit(spot{fieldpath.Path{pe}, fieldPath{name}, 0, v.ours.at(pe), v.others.all.at(pe)}, has, want.Object[name]); got != nil {
				want.Object[name] = got
			}
		}
	}
	v.completed(want)
	v.want = want
	return v.view
}

// spot is a path in an object, with its managers.
type spot struct {
	path  fieldpath.Path
	field fieldPath
	// wanted is the number of steps of the path that the manifest has.
	wanted       int
	ours, theirs managed
}

// at returns the spot below s, in which the manifest has want.
func (s spot) at(pe fieldpath.PathElement, step, want any) spot {
	if want != nil && s.wanted == len(s.path)-1 {
		s.wanted++
	}
	return spot{append(s.path.Copy(), pe), append(slices.Clone(s.field), step), s.wanted, s.ours.at(pe), s.theirs.at(pe)}
}

// visit returns the wanted value at a path, including the foreign fields that stay; nil: none. A path that the
// manifest does not have is foreign if others own all of it.
func (v *viewer) visit(s spot, live, want any) any {
	if want == nil && (s.theirs.empty() || !s.ours.self && s.ours.empty() && s.theirs.covers(live)) {
		return v.judge(s, live)
	}
	switch l := live.(type) {
	case map[string]any:
		return v.fields(s, l, want)
	case []any:
		return v.items(s, l, want)
	}
	return want
}

// fields is visit for maps.
func (v *viewer) fields(s spot, live map[string]any, want any) any {
	m, isMap := want.(map[string]any)
	if want != nil && !isMap {
		return want // the manifest has another type here
	}
	for _, pe := range s.theirs.steps() {
		if pe.FieldName == nil || live[*pe.FieldName] == nil {
			continue
		}
		name := *pe.FieldName
		if got := v.visit(s.at(pe, name, want), live[name], m[name]); got != nil {
			if m == nil {
				m = map[string]any{}
			}
			m[name] = got
		}
	}
	if m == nil {
		return nil
	}
	return m
}

// items is visit for lists. A list that is atomic to the server has no foreign items.
func (v *viewer) items(s spot, live []any, want any) any {
	list, isList := want.([]any)
	if want != nil && !isList || !s.theirs.keyed() {
		return want
	}
	x, mine := itemsOf(live, s.theirs), itemsOf(list, s.theirs)
	for i, item := range live {
		pe, ok := x.stepOf(item)
		if !ok {
			continue
		}
		sub := s.at(pe, i, want)
		if !sub.theirs.self && sub.theirs.empty() {
			continue
		}
		at := mine.find(pe)
		got := any(nil)
		switch {
		case at >= 0:
			list[at] = v.visit(sub, item, list[at])
		case sub.theirs.self && !sub.ours.self && sub.ours.empty():
			got = v.judge(sub, item) // independent of additions by the server
		default:
			got = v.visit(sub, item, nil)
		}
		if got != nil {
			list = append(list, got)
		}
	}
	if list == nil {
		return nil
	}
	return list
}

// judge decides whether a foreign field stays, and returns its value if it does.
func (v *viewer) judge(s spot, live any) any {
	f := Foreign{Path: s.path.String(), Manager: v.managers(s.path)}
	v.foreign.add(s.field)
	listed := slices.ContainsFunc(v.rows, func(r FilledField) bool {
		steps, ok := r.has(s.path)
		return ok && s.wanted >= steps-1 && (!r.Whole || steps == len(s.path) || v.agrees(s.path[:steps]))
	})
	switch {
	case listed:
	case v.alone(f):
		v.left = append(v.left, f)
	default:
		v.remove = append(v.remove, f)
		return nil
	}
	v.kept.add(s.field)
	v.shared = true
	return runtime.DeepCopyJSONValue(live)
}

// agrees reports whether the object has all values of the manifest at a path.
func (v *viewer) agrees(at fieldpath.Path) bool {
	var names []string
	for _, pe := range at {
		if pe.FieldName == nil {
			return false // no row has such a list
		}
		names = append(names, *pe.FieldName)
	}
	want, _, _ := unstructured.NestedFieldNoCopy(v.from.Object, names...)
	live, _, _ := unstructured.NestedFieldNoCopy(v.live.Object, names...)
	return want == nil || holds(live, want)
}

// completed adds to want the fields that the server never removes. It also marks as kept the fields that had a
// value since the creation.
func (v *viewer) completed(want *unstructured.Unstructured) {
	for _, r := range v.rows {
		names := strings.Split(r.Path, ".")
		value, _, _ := unstructured.NestedFieldCopy(v.live.Object, names...)
		p, in := fieldPath{}, any(want.Object)
		for i, name := range names {
			if p = append(p, name); i < len(names)-1 {
				in = child(in, name)
			}
		}
		last := names[len(names)-1]
		if m, isMap := in.(map[string]any); isMap && m[last] == nil && value != nil && (r.Once || r.Early) {
			v.kept.add(p)
			v.foreign.add(p)
			if r.Once {
				m[last] = value
			}
		}
	}
}

// covers reports whether m owns all of a value.
func (m managed) covers(v any) bool {
	if m.empty() {
		return m.self
	}
	switch v := v.(type) {
	case map[string]any:
		for name, e := range v {
			if e != nil && !m.at(fieldpath.FieldNameElement(name)).covers(e) {
				return false
			}
		}
		return true
	case []any:
		x := itemsOf(v, m)
		return !slices.ContainsFunc(v, func(item any) bool {
			pe, ok := x.stepOf(item)
			return !ok || !m.at(pe).covers(item)
		})
	}
	return m.self
}
