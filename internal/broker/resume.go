package broker

import (
	"context"

	"github.com/hawser-io/hawser/internal/broker/route"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// cursorOf returns where a party continues from; nil when it has to say what it
// holds: it gave no cursor, or one that is no position of this store.
func (b *Broker) cursorOf(h transport.Hello) *codec.Cursor {
	if h.Protocol == 0 || h.Cursor == "" {
		return nil
	}
	c, err := codec.ParseCursor(h.Cursor)
	if err != nil || !b.store.ValidCursor(c) {
		return nil
	}
	return &c
}

// resume prepares what a party needs that continues from its cursor. It comes
// after the registration: what changes from then on reaches the mailbox anyway.
func (b *Broker) resume(s *subscription) {
	if s.cursor == nil {
		return
	}
	filling := true
	if s.part == codec.Spec {
		head := b.store.ClusterHead(s.scope.DataType, s.scope.Cluster)
		filling = head.SpecRevision > s.cursor.Revision || head.Tombstones > 0
	} else {
		// Whoever continues from a cursor has taken what lies before it.
		b.burials.put(ownership{s.scope.DataType, s.scope.Owner}, s.cursor.Revision)
	}
	s.mu.Lock()
	s.asked, s.filling = true, filling
	s.mu.Unlock()
	if !filling {
		s.begin(b.cfg.Now())
	}
}

// fill puts what changed since the cursor of s into its mailbox, and every
// tombstone. It gives the slot back that the caller has taken.
func (b *Broker) fill(ctx context.Context, s *subscription) error {
	defer func() { <-b.comparing }()
	start := b.cfg.Now()
	records := 0
	put := func(m store.Meta) error {
		revision, flags := m.StatusRevision, route.Flags(0)
		if s.part == codec.Spec {
			revision = m.SpecRevision
			if m.State == store.Tombstone {
				flags = route.Deletion
			}
		}
		s.answer(route.Key{Cluster: m.Cluster, ResourceID: m.ResourceID}, revision, flags)
		records++
		return nil
	}
	scope := store.Scope{DataType: s.scope.DataType, Cluster: s.scope.Cluster, Owner: s.scope.Owner}
	part := store.StatusPart
	if s.part == codec.Spec {
		part = store.SpecPart
	}
	if err := b.store.Since(ctx, scope, part, s.cursor.Revision, put); err != nil {
		return storeError(err)
	}
	changed := records
	if s.part == codec.Spec {
		// Those that are newer than the cursor come again, in vain.
		if err := b.store.Tombstones(ctx, s.scope.DataType, s.scope.Cluster, put); err != nil {
			return storeError(err)
		}
	}
	now := b.cfg.Now()
	s.begin(now)
	b.metrics.resumed(s.part, changed, now.Sub(start))
	return nil
}
