package memindex

import "github.com/hawser-io/hawser/internal/broker/store"

// Ring holds the last changes of a store, one per revision. Changes that removed a record or a part are only in
// the ring. An engine can derive the other changes from its records.
//
// It is not safe for concurrent use.
type Ring struct {
	slots []slot
	// First is the lowest revision in the ring, next the one after the last.
	First, next uint64
	gone        map[RecordPart]uint64 // revisions of the Gone entries in the ring
}

type slot struct {
	store.Change
	obsolete bool // a later change replaces this one
}

// RecordPart is one part of a record, or a bookmark.
type RecordPart struct {
	Key  store.Key
	Part store.Part
}

// NewRing returns a ring for size changes, of which the first gets revision next.
func NewRing(size, next uint64) *Ring {
	return &Ring{slots: make([]slot, size), First: next, next: next, gone: make(map[RecordPart]uint64)}
}

func (r *Ring) at(revision uint64) *slot { return &r.slots[revision%uint64(len(r.slots))] }

// Forget marks the changes of old as obsolete that n no longer has.
func (r *Ring) Forget(old, n *store.Meta) {
	oldSpec, oldStatus := store.Entries(old)
	spec, status := store.Entries(n)
	if oldSpec != spec {
		r.Drop(oldSpec)
		r.deleted(oldSpec, spec)
	}
	if oldStatus != status {
		r.Drop(oldStatus)
	}
}

// deleted sets LastSpec in the change spec, if that is a deletion. The change before has the revision last.
func (r *Ring) deleted(last, spec uint64) {
	if !r.has(last) || !r.has(spec) || r.at(spec).State != store.Tombstone {
		return
	}
	if s := r.at(last); s.State == store.Live {
		r.at(spec).LastSpec = last
	} else {
		r.at(spec).LastSpec = s.LastSpec // the deletion was repeated
	}
}

func (r *Ring) has(revision uint64) bool { return revision >= r.First && revision < r.next }

// Drop marks the change with this revision as obsolete; 0 has no effect.
func (r *Ring) Drop(revision uint64) {
	if r.has(revision) {
		r.at(revision).obsolete = true
	}
}

// Append adds the next change.
func (r *Ring) Append(c store.Change) {
	if r.next-r.First == uint64(len(r.slots)) {
		if old := r.at(r.First); old.Gone {
			if h := (RecordPart{old.Key, old.Part}); r.gone[h] == r.First {
				delete(r.gone, h)
			}
		}
		r.First++
	}
	h := RecordPart{c.Key, c.Part}
	if revision, ok := r.gone[h]; ok {
		r.Drop(revision)
		delete(r.gone, h)
	}
	if c.Gone {
		r.gone[h] = c.Revision
	}
	*r.at(c.Revision) = slot{Change: c}
	r.next = c.Revision + 1
}

// ChangesFrom returns at most limit changes from revision on. revision must not be below First.
func (r *Ring) ChangesFrom(revision uint64, limit int) []store.Change {
	if revision >= r.next {
		return nil
	}
	out := make([]store.Change, 0, min(uint64(limit), r.next-revision))
	for ; revision < r.next && len(out) < limit; revision++ {
		if s := r.at(revision); !s.obsolete {
			out = append(out, s.Change)
		}
	}
	return out
}
