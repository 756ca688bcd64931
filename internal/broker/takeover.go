package broker

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/hawser-io/hawser/internal/broker/route"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// unheard are the deletions that no agent has heard of, and when agents left. It is
// guarded by hub.mu.
//
// t1 An agent leaves. t2 Its work is deleted, and made anew under its name. t3 The
// agent comes back with a cursor from before t2. Therefore it holds the first work
// as it was last, and may be sent the second in its place.
type unheard struct {
	// at are clusters that had no agent when something was committed.
	at map[place]*away
	// left is the head of the store when the last agent of a cluster left.
	left map[place]uint64
	// settling are clusters with an agent that is not sent anything yet, because
	// works are about to take over; others wait until the channel is closed.
	settling map[place]chan struct{}
}

// away is what was committed while a cluster had no agent.
type away struct {
	deletions map[string]store.Unheard // by id
	// waits: some spec waits behind a tombstone.
	waits bool
}

func newUnheard() unheard {
	return unheard{at: map[place]*away{}, left: map[place]uint64{}, settling: map[place]chan struct{}{}}
}

// of returns what was committed while a cluster was away, to add to it.
func (u *unheard) of(p place) *away {
	if u.at[p] == nil {
		u.at[p] = &away{deletions: map[string]store.Unheard{}}
	}
	return u.at[p]
}

// changed drops what was known of a deletion, once the record is none any more.
func (u *unheard) changed(c *store.Change) {
	a := u.at[placeOf(c.Key)]
	if a == nil || c.State == store.Tombstone || a.deletions[c.Key.ResourceID].Last >= c.Revision {
		return
	}
	if delete(a.deletions, c.Key.ResourceID); len(a.deletions) == 0 {
		delete(u.at, placeOf(c.Key))
	}
}

// meets looks up what a deletion is about to meet; nil: some agent hears of it, or
// it is no deletion, or there is nothing.
func (b *Broker) meets(ctx context.Context, op *store.Op, env *codec.Envelope) (*store.Met, error) {
	if !op.Deleting || b.hub.hasAgent(placeOf(op.Key)) {
		return nil, nil
	}
	r, err := b.store.Get(ctx, op.Key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	m := &store.Met{State: r.State, Revision: r.SpecRevision}
	if r.Spec != nil {
		before, err := codec.ParseEnvelope(r.Spec)
		m.Unchanged = err == nil && (op.Event == nil || bytes.Equal(before.Data, env.Data))
	}
	return m, nil
}

// noteUnheard notes what became of a spec; met is what a deletion met that no agent
// hears of, else nil.
func (h *hub) noteUnheard(k store.Key, o store.Outcome, met *store.Met) {
	if met == nil && o.Verdict != store.Waits {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.index.Get(route.Scope{DataType: k.DataType, Cluster: k.Cluster})) > 0 {
		return
	}
	a := h.unheard.of(placeOf(k))
	if met == nil {
		a.waits = true
		return
	}
	if u := a.deletions[k.ResourceID].Deleted(*met, o); u.Last != 0 {
		a.deletions[k.ResourceID] = u // else what is known is about a revision that is no more
	}
}

// hasAgent reports whether some agent of a cluster is subscribed.
func (h *hub) hasAgent(p place) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.index.Get(route.Scope{DataType: p.dataType, Cluster: p.cluster})) > 0
}

// arrive takes note of an agent that has just been added, and is sent nothing yet. It
// returns what was committed while its cluster had none, if something may take over:
// then others wait until end is called. Else end is nil, and s is sent nothing before
// wait is closed, if that is not nil.
func (h *hub) arrive(s *subscription) (a store.Arrival, missed *away, end func(), wait <-chan struct{}) {
	p := place{s.scope.DataType, s.scope.Cluster}
	h.mu.Lock()
	defer h.mu.Unlock()
	if other := h.unheard.settling[p]; other != nil {
		return a, nil, nil, other
	}
	missed = h.unheard.at[p]
	delete(h.unheard.at, p) // it is about to hear of it
	a = store.Arrival{Sent: h.unheard.left[p], Alone: len(h.index.Get(s.scope)) == 1}
	if s.cursor == nil || missed == nil || !missed.waits {
		return a, nil, nil, nil
	}
	a.Cursor = s.cursor.Revision
	done := make(chan struct{})
	h.unheard.settling[p] = done
	return a, missed, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.unheard.settling, p)
		close(done)
	}, nil
}

// takeOver lets works that wait behind deletions which no agent has heard of take
// over, before anything is sent to s.
func (b *Broker) takeOver(ctx context.Context, s *subscription) error {
	if s.part != codec.Spec {
		return nil
	}
	a, missed, end, wait := b.hub.arrive(s)
	if wait != nil {
		select {
		case <-wait:
			return nil
		case <-ctx.Done():
			return callerGone(ctx)
		}
	}
	if end == nil {
		return nil
	}
	defer end()
	ops, err := b.takeOvers(ctx, s, a, missed)
	if err != nil {
		return storeError(err)
	}
	taken := 0
	for batch := range slices.Chunk(ops, jobOps) {
		// It is waited for to the end: until then nobody may be sent the deletions.
		outcomes, err := b.commits.commit(context.WithoutCancel(ctx), s.party, batch...)
		if err != nil {
			return storeError(err)
		}
		for _, o := range outcomes {
			if o.Verdict == store.Confirmed {
				taken++
			}
		}
	}
	if taken > 0 {
		b.log.Info("works that were made anew while their cluster was away take over from those that were deleted",
			"cluster", s.scope.Cluster, "count", taken)
	}
	return nil
}

// takeOvers are the writes for what takes over when s arrives.
func (b *Broker) takeOvers(ctx context.Context, s *subscription, a store.Arrival, missed *away) (ops []store.Op, err error) {
	for _, id := range slices.Sorted(maps.Keys(missed.deletions)) {
		r, err := b.store.Get(ctx, store.Key{DataType: s.scope.DataType, Cluster: s.scope.Cluster, ResourceID: id})
		var damaged *store.DamageError
		switch {
		case errors.Is(err, store.ErrNotFound), errors.As(err, &damaged): // its delivery tells of it
		case err != nil:
			return nil, err
		case store.TakesOver(r.Meta, missed.deletions[id], a):
			ops = append(ops, store.Op{Kind: store.TakeOver, Key: r.Key, IfRevision: r.SpecRevision, At: b.cfg.Now()})
		}
	}
	return ops, nil
}
