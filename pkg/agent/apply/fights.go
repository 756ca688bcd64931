package apply

import (
	"crypto/sha256"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A field that the manifest does not have is removed, as OCM does. Another
// manager that sets it again may have a reason: after maxFights the field stays,
// since neither of the two would have it for more than moments.
//
//	t1 the other sets the field, t2 we remove it, t3 the other sets it again, and so on
const maxFights = 3

// knownFights bounds how many fields of one object are counted; the oldest go first.
const knownFights = 64

// fights is what is remembered about the foreign fields of one object. It never changes.
type fights struct {
	counts []fight
	// left are the fields that are left alone and were there when the object was read last.
	left []Foreign
}

// fight counts how often a write of ours removed a field of this manager.
type fight struct {
	Foreign
	times int
}

func (f *fights) times(of Foreign) int {
	if f == nil {
		return 0
	}
	if i := slices.IndexFunc(f.counts, func(k fight) bool { return k.Foreign == of }); i >= 0 {
		return f.counts[i].times
	}
	return 0
}

// over reports whether a field is left alone.
func (f *fights) over(of Foreign) bool { return f.times(of) >= maxFights }

// next is f after a look at the object: left are the fields that were left alone, removed
// those that a write took away.
func (f *fights) next(left, removed []Foreign) *fights {
	n := fights{left: left}
	if f != nil {
		n.counts = slices.Clone(f.counts)
	}
	for _, r := range removed {
		if i := slices.IndexFunc(n.counts, func(k fight) bool { return k.Foreign == r }); i >= 0 {
			n.counts[i].times++
		} else {
			n.counts = append(n.counts, fight{r, 1})
		}
	}
	if more := len(n.counts) - knownFights; more > 0 {
		n.counts = slices.Delete(n.counts, 0, more)
	}
	if len(n.counts) == 0 && len(n.left) == 0 {
		return nil
	}
	return &n
}

// yield is f with fields that are left alone from now on, whatever was before.
func (f *fights) yield(fields []Foreign) *fights {
	n := f
	for range maxFights {
		n = n.next(nil, fields)
	}
	return n
}

// Left returns the fields of other managers that no table has and that are left
// alone, because these managers set them again and again.
func (k Known) Left() []Foreign {
	if k.fights == nil {
		return nil
	}
	return k.fights.left
}

// Contested reports whether anything is remembered about fields of other managers.
func (k Known) Contested() bool { return k.fights != nil }

// Forget is k without what was counted about fields of other managers.
func (k Known) Forget() Known {
	k.fights = nil
	return k
}

// Forgive is k with one more try for each field that is left alone; of the others
// nothing is remembered.
func (k Known) Forgive() Known {
	if k.fights == nil {
		return k
	}
	n := fights{left: k.fights.left}
	for _, c := range k.fights.counts {
		if c.times >= maxFights {
			n.counts = append(n.counts, fight{c.Foreign, maxFights - 1})
		}
	}
	if k.fights = &n; len(n.counts) == 0 && len(n.left) == 0 {
		k.fights = nil
	}
	return k
}

// beside looks at the object beside its manifest, if Update looks at the content of
// its kind, and returns the manifest with the foreign fields that stay.
func (s *Step) beside(want *unstructured.Unstructured, content bool, owner Owner) *unstructured.Unstructured {
	if s.known.want != wanted(s.Manifest, owner) {
		s.known.fights = nil // another manifest may mean it
	}
	if !content {
		return want
	}
	for _, r := range filledOf(want.GroupVersionKind().GroupKind()) {
		if r.Blank {
			r.vacate(want.Object, strings.Split(r.Path, "."))
		}
	}
	if s.manifest = want; s.Live == nil {
		return want
	}
	s.view = lookAt(s.Live, want, s.known.fights.over)
	return s.view.want
}

// remember returns what to remember of an object that is as it should be.
func (s *Step) remember(a Action, o *unstructured.Unstructured, owner Owner) Known {
	k, v := Known{UID: o.GetUID(), want: wanted(s.Manifest, owner)}, s.view
	if s.manifest != nil {
		f := s.known.fights
		if a == Create || a == Recreate {
			f = nil
		}
		if a != Unchanged {
			v = lookAt(o, s.manifest, f.over)
		}
		var removed []Foreign
		if a == Update { // what is still there was put back by the server: it is its default
			removed = slices.DeleteFunc(slices.Clone(s.view.remove), func(r Foreign) bool { return slices.Contains(v.remove, r) })
		}
		k.fights = f.next(v.left, removed)
	}
	k.content = s.digest(o, v.kept)
	return k
}

// digest identifies what a write of this kind left, without the fields of others that stay.
func (s *Step) digest(o *unstructured.Unstructured, kept fieldSet) [sha256.Size]byte {
	if s.by.Name != "" {
		return appliedDigest(o, s.by.Name)
	}
	return digestBesides(o, kept)
}

// yields leaves an object as it is whose manifest has all it wants: the server
// refused to take off what others added, and there was nothing else to do.
func (s *Step) yields(r *Result, owner Owner) bool {
	if s.Action != Update || r.Action != Update || len(s.view.remove) == 0 || s.metadata || !s.known.Same(s.Manifest, owner) ||
		s.known.content != digestBesides(s.Live, s.view.foreign) && !holds(withoutMetadata(s.Live), withoutMetadata(s.manifest)) {
		return false
	}
	f := s.known.fights.yield(s.view.remove)
	v := lookAt(s.Live, s.manifest, f.over)
	r.Action, r.Err, r.Live, r.Presence, r.ReadErr = Unchanged, nil, s.Live, s.Presence, s.ReadErr
	r.Known = Known{UID: s.Live.GetUID(), want: wanted(s.Manifest, owner), content: s.digest(s.Live, v.kept), dropped: s.known.dropped, fights: f.next(v.left, nil)}
	r.Err = r.Known.missing()
	return true
}
