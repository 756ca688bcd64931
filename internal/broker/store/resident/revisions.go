package resident

import (
	"cmp"
	"slices"
)

// revisions is an ascending list of revisions, 8 bytes each. New ones are higher
// than all before, so adding appends; what is removed stays as a hole until
// there are too many of them.
type revisions struct {
	list  []uint64 // twice the revision, plus one for a hole
	holes int
}

// fewHoles are not worth moving the others.
const fewHoles = 16

func (r *revisions) count() int { return len(r.list) - r.holes }

// find returns where a revision is, or would be.
func (r *revisions) find(revision uint64) (i int, ok bool) {
	return slices.BinarySearchFunc(r.list, revision, func(e, revision uint64) int { return cmp.Compare(e>>1, revision) })
}

// add puts a revision into its place.
func (r *revisions) add(revision uint64) {
	if n := len(r.list); n == 0 || r.list[n-1]>>1 < revision {
		r.list = append(r.list, revision<<1)
		return
	}
	i, ok := r.find(revision)
	switch {
	case !ok:
		r.list = slices.Insert(r.list, i, revision<<1)
	case r.list[i]&1 != 0: // it is back
		r.list[i] &^= 1
		r.holes--
	}
}

// load adds a revision without regard to order; sort puts that right.
func (r *revisions) load(revision uint64) { r.list = append(r.list, revision<<1) }

func (r *revisions) sort() {
	slices.Sort(r.list)
	r.list = slices.Clip(r.list)
}

func (r *revisions) remove(revision uint64) {
	i, ok := r.find(revision)
	if !ok || r.list[i]&1 != 0 {
		return
	}
	r.list[i] |= 1
	if r.holes++; r.holes <= fewHoles+len(r.list)/4 {
		return
	}
	r.list = slices.DeleteFunc(r.list, func(e uint64) bool { return e&1 != 0 })
	r.holes = 0
	if len(r.list) < cap(r.list)/4 {
		r.list = slices.Clone(r.list)
	}
}

// after returns the revisions above one.
func (r *revisions) after(revision uint64) []uint64 {
	i, ok := r.find(revision)
	if ok {
		i++
	}
	out := make([]uint64, 0, len(r.list)-i)
	for _, e := range r.list[i:] {
		if e&1 == 0 {
			out = append(out, e>>1)
		}
	}
	return out
}

// upTo returns the lowest revisions that are not above one, at most limit.
func (r *revisions) upTo(revision uint64, limit int) []uint64 {
	var out []uint64
	for _, e := range r.list {
		if e>>1 > revision || len(out) >= limit {
			break
		}
		if e&1 == 0 {
			out = append(out, e>>1)
		}
	}
	return out
}

func (r *revisions) clone() revisions {
	return revisions{list: slices.Clone(r.list), holes: r.holes}
}
