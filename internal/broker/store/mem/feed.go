package mem

import (
	"cmp"
	"maps"
	"slices"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// keepGone is how many revisions back the feed still tells what is gone.
const keepGone = 4096

// half is one half of a record.
type half struct {
	key  store.Key
	part store.Part
}

// feed is the list of changes by revision. What a later change made obsolete
// becomes a hole; holes leave when they are half of the list.
type feed struct {
	entries []entry
	gone    map[half]uint64 // revisions of the entries that say so
	holes   int
}

type entry struct {
	store.Change
	hole bool
}

func newFeed() feed { return feed{gone: make(map[half]uint64)} }

func (f *feed) clone() feed {
	return feed{entries: slices.Clone(f.entries), gone: maps.Clone(f.gone), holes: f.holes}
}

// find returns the position of the first entry with a revision of at least r.
func (f *feed) find(r uint64) int {
	i, _ := slices.BinarySearchFunc(f.entries, r, func(e entry, r uint64) int { return cmp.Compare(e.Revision, r) })
	return i
}

// key returns whose half a revision in the feed is.
func (f *feed) key(revision uint64) store.Key { return f.entries[f.find(revision)].Key }

// forget makes holes of the entries of old that are not n's.
func (f *feed) forget(old, n *store.Meta) {
	oldSpec, oldStatus := store.Entries(old)
	spec, status := store.Entries(n)
	if oldSpec != 0 && oldSpec != spec {
		f.drop(oldSpec)
	}
	if oldStatus != 0 && oldStatus != status {
		f.drop(oldStatus)
	}
}

func (f *feed) drop(revision uint64) {
	f.entries[f.find(revision)].hole = true
	f.holes++
}

func (f *feed) append(c store.Change) {
	h := half{c.Key, c.Part}
	if r, ok := f.gone[h]; ok {
		f.drop(r)
		delete(f.gone, h)
	}
	if c.Gone {
		f.gone[h] = c.Revision
	}
	f.entries = append(f.entries, entry{Change: c})
	if f.holes > max(64, len(f.entries)/2) || len(f.gone) > 2*keepGone {
		f.compact(c.Revision)
	}
}

func (f *feed) compact(head uint64) {
	f.entries = slices.DeleteFunc(f.entries, func(e entry) bool {
		if !e.hole && e.Gone && e.Revision+keepGone <= head {
			delete(f.gone, half{e.Key, e.Part})
			return true
		}
		return e.hole
	})
	f.holes = 0
}

// after returns the changes above a revision, at most limit.
func (f *feed) after(revision uint64, limit int) []store.Change {
	var out []store.Change
	for i := f.find(revision + 1); i < len(f.entries) && len(out) < limit; i++ {
		if !f.entries[i].hole {
			out = append(out, f.entries[i].Change)
		}
	}
	return out
}
