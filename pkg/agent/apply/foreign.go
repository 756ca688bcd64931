package apply

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// Foreign is a field of an object that its manifest does not have and that
// another manager has set.
type Foreign struct {
	// Path is as in .spec.template.spec.containers[name="proxy"].
	Path string
	// Manager has it; several are joined by commas.
	Manager string
}

// others is what managedFields say of an object: what this agent has, what any
// other manager has, and what each of them has.
type others struct {
	ours, all managed
	by        map[string]managed
}

func readOthers(o *unstructured.Unstructured) others {
	ours, all, by := fieldpath.NewSet(), fieldpath.NewSet(), map[string]*fieldpath.Set{}
	for _, e := range o.GetManagedFields() {
		if e.Subresource == "status" {
			continue // no update of ours reaches it
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

// managers names those that have something at a place or below it.
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

// view is an object beside its manifest: the manifest with the foreign fields that
// stay, and which fields these are.
type view struct {
	// want is the manifest with what stays.
	want *unstructured.Unstructured
	// kept and foreign are places of the object: the foreign fields that stay, and all of them.
	kept, foreign fieldSet
	// shared: some stay.
	shared bool
	// left are those that stay although no table has them, remove the others.
	left, remove []Foreign
}

// viewer walks through an object, its manifest and its managedFields.
type viewer struct {
	view
	others
	rows []Filled
	// alone says which fields stay although no table has them.
	alone      func(Foreign) bool
	live, from *unstructured.Unstructured
}

// lookAt compares an object with its manifest, which stays as it is.
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

// spot is one place of an object, and who has what there.
type spot struct {
	path  fieldpath.Path
	field fieldPath
	// wanted is how many steps of the path the manifest has.
	wanted       int
	ours, theirs managed
}

// at is the spot below s, in which the manifest has want.
func (s spot) at(pe fieldpath.PathElement, step, want any) spot {
	if want != nil && s.wanted == len(s.path)-1 {
		s.wanted++
	}
	return spot{append(s.path.Copy(), pe), append(slices.Clone(s.field), step), s.wanted, s.ours.at(pe), s.theirs.at(pe)}
}

// visit returns what is wanted at a place, with what stays there; nil is nothing.
// Where the manifest has nothing, and others have all of it, the place is foreign.
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
		return want // the manifest makes something else of it
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

// items is visit for lists. One that is one value to the server has no foreign items.
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
			got = v.judge(sub, item) // whatever the server added to it
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

// judge decides about a foreign field, and returns what stays of it.
func (v *viewer) judge(s spot, live any) any {
	f := Foreign{Path: s.path.String(), Manager: v.managers(s.path)}
	v.foreign.add(s.field)
	listed := slices.ContainsFunc(v.rows, func(r Filled) bool {
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

// agrees reports whether all that the manifest says at a place is so on the object.
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

// completed takes into want what the server never takes off, and notes what has
// had a value since the object was made.
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

// covers reports whether all of a value is in the books.
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
