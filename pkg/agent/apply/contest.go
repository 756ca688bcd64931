package apply

import (
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// Contest returns which field of an object a step repairs, and which manager or which other works changed it,
// if the object shows that. Works are names of AppliedManifestWorks.
func (s *Step) Contest(owner Owner) conditions.Contest {
	if s.Live == nil {
		return conditions.Contest{Missing: true}
	}
	var c conditions.Contest
	for _, r := range s.Live.GetOwnerReferences() {
		if ofWork(r) && !owner.is(r) {
			c.Works = append(c.Works, r.Name)
		}
	}
	b := readOthers(s.Live)
	all := managed{below: b.all.below.Union(b.ours.below)}
	var at fieldpath.Path
	if s.body != nil {
		at = unlikeObject(s.Live.Object, s.body.Object, all)
	}
	switch {
	case at != nil:
		c.Path, c.Manager = at.String(), b.holders(at, s.by.Name)
	case len(s.view.remove) > 0:
		c.Path, c.Manager = s.view.remove[0].Path, s.view.remove[0].Manager
	}
	if c.Manager == "" && len(c.Works) == 0 {
		c.Manager = s.lastWriter()
	}
	return c
}

// unlikeObject is unlike for a whole object. It ignores metadata except labels and annotations: the server owns
// it.
func unlikeObject(live, want map[string]any, all managed) fieldpath.Path {
	l, w := maps.Clone(live), maps.Clone(want)
	for _, name := range []string{"apiVersion", "kind", "status"} {
		delete(w, name)
	}
	if m, isMap := w["metadata"].(map[string]any); isMap {
		w["metadata"] = maps.Collect(func(yield func(string, any) bool) {
			for _, name := range []string{"labels", "annotations"} {
				if v, has := m[name]; has && !yield(name, v) {
					return
				}
			}
		})
	}
	return unlike(l, w, all, nil)
}

// unlike returns the first path where an object lacks a wanted value, nil if there is none.
func unlike(live, want any, all managed, at fieldpath.Path) fieldpath.Path {
	below := func(pe fieldpath.PathElement, live, want any) fieldpath.Path {
		return unlike(live, want, all.at(pe), append(at.Copy(), pe))
	}
	switch w := want.(type) {
	case map[string]any:
		l, isMap := live.(map[string]any)
		if !isMap && live != nil {
			return at
		}
		for _, name := range slices.Sorted(maps.Keys(w)) {
			if p := below(fieldpath.FieldNameElement(name), l[name], w[name]); p != nil {
				return p
			}
		}
		return nil
	case []any:
		l, isList := live.([]any)
		if !isList || !all.keyed() {
			break
		}
		x := itemsOf(l, all)
		for _, item := range w {
			pe, ok := x.stepOf(item)
			i := x.find(pe)
			if !ok || i < 0 {
				return at
			}
			if p := below(pe, l[i], item); p != nil {
				return p
			}
		}
		return nil
	}
	if sameValue(live, want) {
		return nil
	}
	return at
}

// holders names the managers other than ours that own a path, a part of it, or the value that contains it.
func (b others) holders(at fieldpath.Path, ours string) string {
	var names []string
	for name, m := range b.by {
		for _, pe := range at {
			if m.one() {
				break
			}
			m = m.at(pe)
		}
		if name != ours && (m.self || !m.empty()) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// lastWriter returns the manager other than ours with the latest change. A manager that removed a field no
// longer owns it.
func (s *Step) lastWriter() string {
	name, last := "", int64(0)
	for _, e := range s.Live.GetManagedFields() {
		if e.Manager != kubeclient.UserAgent && e.Manager != s.by.Name && e.Subresource == "" && e.Time != nil && e.Time.Unix() > last {
			name, last = e.Manager, e.Time.Unix()
		}
	}
	return name
}
