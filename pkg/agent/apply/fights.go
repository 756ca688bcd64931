package apply

import (
	"crypto/sha256"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// maxFights is the number of removals after which a foreign field stays. A field that the manifest does not
// have is removed, as OCM does. Another manager that sets it again may have a reason, and neither side would
// win:
//
// Scenario:
//
//	t1: the other manager sets the field.
//	t2: the agent removes it.
//	t3: the other manager sets it again.
//
// Result: after maxFights removals the field stays.
const maxFights = 3

// knownFights bounds the counted fields of one object; the oldest are dropped first.
const knownFights = 64

// fights is the remembered state of the foreign fields of one object. It is immutable.
type fights struct {
	counts []fight
	// left are the fields that are left alone and existed at the last read.
	left []Foreign
}

// fight counts how often a write of the agent removed a field of this manager.
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

// next returns f after a read of the object. left are the fields that were left alone. removed are those that
// the step removed.
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

// yield returns f with these fields left alone from now on.
func (f *fights) yield(fields []Foreign) *fights {
	n := f
	for range maxFights {
		n = n.next(nil, fields)
	}
	return n
}

// YieldedFields returns the fields of other managers that are in no table and are left alone because these
// managers keep setting them.
func (k KnownState) YieldedFields() []Foreign {
	if k.fights == nil {
		return nil
	}
	return k.fights.left
}

// Contested reports whether any state about fields of other managers is remembered.
func (k KnownState) Contested() bool { return k.fights != nil }

// Forget returns k without its counts of fields of other managers.
func (k KnownState) Forget() KnownState {
	k.fights = nil
	return k
}

// Forgive returns k with one more try for each field that is left alone. The counts of other fields are
// dropped.
func (k KnownState) Forgive() KnownState {
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

// beside compares the object with its manifest, if Update manages the content of its kind. It returns the
// manifest with the foreign fields that stay.
func (s *Step) beside(want *unstructured.Unstructured, content bool, owner Owner) *unstructured.Unstructured {
	if s.known.want != wanted(s.Manifest, owner) {
		s.known.fights = nil // another manifest may want the field
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

// remember returns the state to remember of an object that is as wanted.
func (s *Step) remember(a Action, o *unstructured.Unstructured, owner Owner) KnownState {
	k, v := KnownState{UID: o.GetUID(), want: wanted(s.Manifest, owner)}, s.view
	if s.manifest != nil {
		f := s.known.fights
		if a == Create || a == Recreate {
			f = nil
		}
		if a != Unchanged {
			v = lookAt(o, s.manifest, f.over)
		}
		var removed []Foreign
		if a == Update { // a field that is present after an update is a default of the server
			removed = slices.DeleteFunc(slices.Clone(s.view.remove), func(r Foreign) bool { return slices.Contains(v.remove, r) })
		}
		k.fights = f.next(v.left, removed)
	}
	k.content = s.digest(o, v.kept)
	return k
}

// digest returns the hash of the result of such a write, without the foreign fields that stay.
func (s *Step) digest(o *unstructured.Unstructured, kept fieldSet) [sha256.Size]byte {
	if s.by.Name != "" {
		return appliedDigest(o, s.by.Name)
	}
	return digestBesides(o, kept)
}

// yields leaves an object unchanged that has all values of its manifest, if the server refused only the removal
// of fields that others added.
func (s *Step) yields(r *Result, owner Owner) bool {
	if s.Action != Update || r.Action != Update || len(s.view.remove) == 0 || s.metadata || !s.known.Matches(s.Manifest, owner) ||
		s.known.content != digestBesides(s.Live, s.view.foreign) && !holds(withoutMetadata(s.Live), withoutMetadata(s.manifest)) {
		return false
	}
	f := s.known.fights.yield(s.view.remove)
	v := lookAt(s.Live, s.manifest, f.over)
	r.Action, r.Err, r.Live, r.Presence, r.ReadErr = Unchanged, nil, s.Live, s.Presence, s.ReadErr
	r.Known = KnownState{UID: s.Live.GetUID(), want: wanted(s.Manifest, owner), content: s.digest(s.Live, v.kept), dropped: s.known.dropped, fights: f.next(v.left, nil)}
	r.Err = r.Known.missing()
	return true
}
