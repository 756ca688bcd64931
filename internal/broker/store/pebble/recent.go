package pebble

import "github.com/hawser-io/hawser/internal/broker/store"

// recentMetas bounds each half of recent; a meta takes some 500 bytes.
const recentMetas = 2048

// recent keeps the metas that commits wrote last. Much of what is published is
// about a record that was written a moment ago, as the status after its spec is,
// and then nothing has to be looked up on disk. It has two halves: when the
// young one is full, what was not used since the last time is forgotten. Only
// commits use it, one at a time.
type recent struct {
	young, old map[store.Key]*store.Meta
}

// get returns the meta of a record that exists; nil: it may, or may not.
func (r *recent) get(k store.Key) *store.Meta {
	if m := r.young[k]; m != nil {
		return m
	}
	m := r.old[k]
	if m != nil {
		r.put(k, m)
	}
	return m
}

// put takes what a commit wrote; nil: the record is gone.
func (r *recent) put(k store.Key, m *store.Meta) {
	if m == nil {
		delete(r.young, k)
		delete(r.old, k)
		return
	}
	if r.young == nil || len(r.young) >= recentMetas {
		r.young, r.old = make(map[store.Key]*store.Meta), r.young
	}
	r.young[k] = m
}
