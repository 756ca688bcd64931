package feed

import (
	"context"

	"github.com/hawser-io/hawser/internal/broker/call"
	"github.com/hawser-io/hawser/internal/broker/route"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// cursorOf returns where a party continues from; nil when it has to say what it has: it gave
// no cursor, or one that is no position of this store.
func (f *Feed) cursorOf(h transport.Hello) *codec.Cursor {
	if h.Protocol == 0 || h.Cursor == "" {
		return nil
	}
	c, err := codec.ParseCursor(h.Cursor)
	if err != nil || !f.cfg.Store.ValidCursor(c) {
		return nil
	}
	return &c
}

// cursorRevision is up to where a party has everything, 0 if it does not say.
func cursorRevision(c *codec.Cursor) uint64 {
	if c == nil {
		return 0
	}
	return c.Revision
}

// resume prepares what a party needs that continues from its cursor. It comes after the
// registration: what changes from then on reaches the mailbox anyway.
func (t *stream) resume() {
	s := t.sub
	switch {
	case s.cursor == nil:
		return
	case s.part == codec.Status:
		// Whoever continues from a cursor has accepted what lies before it.
		t.cfg.Graves.Seen(s.scope, s.cursor.Revision)
	default:
		head := t.cfg.Store.ClusterHead(s.scope.DataType, s.scope.Cluster)
		if head.SpecRevision <= s.cursor.Revision && head.Tombstones == 0 {
			s.resume(unchanged)
			s.begin(t.cfg.Now())
			return
		}
	}
	s.resume(changed)
}

// fill puts what changed since the cursor into the mailbox, and every tombstone. It gives the
// slot back that the caller has occupied.
func (t *stream) fill(ctx context.Context) error {
	defer t.cfg.Slots.Free()
	s := t.sub
	start := t.cfg.Now()
	records := 0
	put := func(m store.Meta) error {
		revision, flags := m.StatusRevision, route.Flags(0)
		if s.part == codec.Spec {
			revision = m.SpecRevision
			if m.State == store.Tombstone {
				flags = route.Deletion
			}
		}
		s.answer(keyOf(m.Key), revision, flags)
		records++
		return nil
	}
	part := store.StatusPart
	if s.part == codec.Spec {
		part = store.SpecPart
	}
	if err := t.cfg.Store.Since(ctx, s.scope, part, s.cursor.Revision, put); err != nil {
		return call.Store(err)
	}
	changed := records
	if s.part == codec.Spec {
		// Those that are newer than the cursor come once more, in vain.
		if err := t.cfg.Store.Tombstones(ctx, s.scope.DataType, s.scope.Cluster, put); err != nil {
			return call.Store(err)
		}
	}
	now := t.cfg.Now()
	s.complete(now, nil)
	t.metrics.resumed(s.part, changed, now.Sub(start))
	return nil
}
