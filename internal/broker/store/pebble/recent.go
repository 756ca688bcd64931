package pebble

import (
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/resident"
)

// What the two recents of a store keep in each half.
const (
	recentMetas = 4096 // a meta takes some 500 bytes
	recentBytes = 1 << 20
	// keyBytes is what an event takes besides its bytes.
	keyBytes = 256
)

// recent keeps what commits wrote last. Much of what is published is about a
// record that was written a moment ago, as the status after its spec is, and much
// of what is read is what a subscriber waits for: then nothing has to be looked up
// on disk. It has two halves: when the young one is full, what was not written
// since the last time is forgotten. Its values are shared and not modified.
type recent[K comparable, V any] struct {
	limit      int         // of each half
	size       func(V) int // what a value counts for
	young, old map[K]V
	used       int // by young
}

func newRecent[K comparable, V any](limit int, size func(V) int) recent[K, V] {
	return recent[K, V]{limit: limit, size: size, young: make(map[K]V), old: make(map[K]V)}
}

func newMetas() recent[store.Key, *store.Meta] {
	return newRecent[store.Key](recentMetas, func(*store.Meta) int { return 1 })
}

// newEvents keeps payloads.
func newEvents() recent[resident.Half, []byte] {
	return newRecent[resident.Half](recentBytes, func(event []byte) int { return len(event) + keyBytes })
}

// get returns the present value of what exists; false: it is not known whether it
// does.
func (r *recent[K, V]) get(k K) (v V, ok bool) {
	if v, ok = r.young[k]; !ok {
		v, ok = r.old[k]
	}
	return v, ok
}

// put takes what a commit wrote.
func (r *recent[K, V]) put(k K, v V) {
	size := r.size(v)
	if size > r.limit/4 { // a few of these would drive out all others
		r.remove(k)
		return
	}
	if was, has := r.young[k]; has {
		r.used -= r.size(was)
	}
	if r.used+size > r.limit {
		r.young, r.old, r.used = r.old, r.young, 0
		clear(r.young)
	}
	r.young[k] = v
	r.used += size
}

// remove takes note that something is gone.
func (r *recent[K, V]) remove(k K) {
	if was, has := r.young[k]; has {
		r.used -= r.size(was)
	}
	delete(r.young, k)
	delete(r.old, k)
}
