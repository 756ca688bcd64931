package pebble

import "github.com/hawser-io/hawser/internal/broker/store"

// ring holds the last changes, one per revision.
type ring struct {
	slots []slot
	// first is the lowest revision in the ring, next the one that comes.
	first, next uint64
	gone        map[half]uint64 // revisions of the entries in the ring that say so
}

type slot struct {
	store.Change
	obsolete bool // a later change is about the same half
}

// half is one half of a record.
type half struct {
	key  store.Key
	part store.Part
}

func newRing(size, next uint64) ring {
	return ring{slots: make([]slot, size), first: next, next: next, gone: make(map[half]uint64)}
}

func (r *ring) at(revision uint64) *slot { return &r.slots[revision%uint64(len(r.slots))] }

// forget marks what old had in the feed and n has not.
func (r *ring) forget(old, n *store.Meta) {
	oldSpec, oldStatus := store.Entries(old)
	spec, status := store.Entries(n)
	if oldSpec != spec {
		r.drop(oldSpec)
	}
	if oldStatus != status {
		r.drop(oldStatus)
	}
}

func (r *ring) drop(revision uint64) {
	if revision >= r.first && revision < r.next {
		r.at(revision).obsolete = true
	}
}

// append adds the change with revision next.
func (r *ring) append(c store.Change) {
	if r.next-r.first == uint64(len(r.slots)) {
		if old := r.at(r.first); old.Gone {
			if h := (half{old.Key, old.Part}); r.gone[h] == r.first {
				delete(r.gone, h)
			}
		}
		r.first++
	}
	h := half{c.Key, c.Part}
	if revision, ok := r.gone[h]; ok {
		r.drop(revision)
		delete(r.gone, h)
	}
	if c.Gone {
		r.gone[h] = c.Revision
	}
	*r.at(c.Revision) = slot{Change: c}
	r.next = c.Revision + 1
}

// from returns at most limit changes from a revision in the ring on.
func (r *ring) from(revision uint64, limit int) []store.Change {
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
