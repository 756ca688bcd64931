package broker

import (
	"context"
	"errors"

	"github.com/hawser-io/hawser/internal/broker/route"
	"github.com/hawser-io/hawser/internal/broker/store"
)

// A store that was restored may hold a deletion that was confirmed since, and
// undone by a new life of the work, which its agent holds. So a deletion of a
// lower version than the agent's waits for its source. One of ours compares. A
// stock source does not, but it publishes what it has again: the deletion, or the
// new life, which then waits behind it. That is its word that the deletion is true.

// stands reports whether a deletion is no older than what the store may have lost:
// it came since the store was opened, or was repeated since.
func (b *Broker) stands(m *store.Meta) bool {
	if m.State == store.Live {
		return false
	}
	return m.SpecRevision >= b.store.Head().TermStart || b.hub.wasRepeated(m.Key, m.SpecRevision)
}

// noteRepeated takes note of what a source published of a work whose deletion is
// older than the opening of the store.
func (b *Broker) noteRepeated(ctx context.Context, op *store.Op, o store.Outcome) error {
	start := b.store.Head().TermStart
	behind := o.Revision == 0 // a tombstone, of this id or of another one
	switch o.Verdict {
	case store.Accepted, store.Unchanged, store.Waits:
		if o.Revision >= start || !op.Deleting && !behind {
			return nil
		}
	default:
		return nil
	}
	r, err := b.store.Get(ctx, op.Key)
	switch {
	case errors.Is(err, store.ErrNotFound): // it waits behind another id's
		return nil
	case err != nil:
		return err
	}
	if r.State == store.Tombstone && r.SpecRevision < start {
		b.hub.repeat(op.Key, r.SpecRevision)
	}
	return nil
}

// repeat notes that a deletion of before the store was opened was published again,
// or what waits behind it. There are at most as many as the store had then.
func (h *hub) repeat(k store.Key, revision uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.repeated[k] == revision {
		return
	}
	h.repeated[k] = revision
	for _, s := range h.index.Get(route.Scope{DataType: k.DataType, Cluster: k.Cluster}) {
		s.recheck()
	}
}

// wasRepeated reports whether repeat was called of this deletion.
func (h *hub) wasRepeated(k store.Key, revision uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return revision != 0 && h.repeated[k] == revision
}
