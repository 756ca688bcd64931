package delivery

import (
	"context"

	"github.com/hawser-io/hawser/internal/broker/deliveryqueue"
	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/syncstate"
	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// cursorOf returns the cursor that a client continues from. It returns nil if the client must send a list,
// because it sent no cursor, or one that is no position of this store.
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

// cursorRevision returns the revision up to which a client has everything, 0 without a cursor.
func cursorRevision(c *codec.Cursor) uint64 {
	if c == nil {
		return 0
	}
	return c.Revision
}

// resume prepares the subscription of a client that continues from its cursor. It runs after the subscription
// is registered, so the router already puts later changes into the queue.
func (t *stream) resume() {
	s := t.sub
	switch {
	case s.cursor == nil:
		return
	case s.part == codec.Status:
		// A client that continues from a cursor has accepted every event up to it.
		t.intake.AckStatuses(s.scope, s.cursor.Revision)
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

// fillFromCursor puts the changes since the cursor into the queue, and all tombstones. It frees the slot that
// the caller has taken.
func (t *stream) fillFromCursor(ctx context.Context) error {
	defer t.sync.Slots.Free()
	s := t.sub
	start := t.cfg.Now()
	records := 0
	put := func(m store.Meta) error {
		revision, flags := m.StatusRevision, deliveryqueue.Flags(0)
		if s.part == codec.Spec {
			revision = m.SpecRevision
			if m.State == store.Tombstone {
				flags = deliveryqueue.Deletion
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
		return request.Store(err)
	}
	changed := records
	if s.part == codec.Spec {
		// Tombstones newer than the cursor are put twice; the second time has no effect.
		if err := t.cfg.Store.Tombstones(ctx, s.scope.DataType, s.scope.Cluster, put); err != nil {
			return request.Store(err)
		}
	}
	now := t.cfg.Now()
	s.complete(now, nil)
	t.metrics.resumed(s.part, changed, now.Sub(start))
	return nil
}

// Resync passes the list of a client to the streams that answer it. A client without a subscription gets no
// answer. If it subscribes and then sends no list, its list counts as empty.
func (f *Feed) Resync(ctx context.Context, e *request.Event) error {
	scope := store.Scope{DataType: e.Env.Type.DataType}
	if e.Env.Type.Subresource == codec.Spec {
		if e.Env.Cluster == "" {
			return request.Missing(codec.ExtClusterName)
		}
		scope.Cluster = e.Env.Cluster
	} else {
		scope.Owner = e.Env.Source
	}
	for _, s := range f.registry.requesters(scope, e.Subscription, e.Conn) {
		if ctx.Err() != nil {
			return request.CallerGone(ctx)
		}
		if err := f.hand(s, e); err != nil {
			return err
		}
	}
	return nil
}

// hand reserves memory for a list and passes the list to a stream.
func (f *Feed) hand(s *subscription, e *request.Event) (err error) {
	if !f.lists.Reserve(e.From, e.Payload) {
		return request.Overloaded("too many lists wait to be compared", request.RetryAfter)
	}
	l := list{free: func() { f.lists.Free(e.From, e.Payload) }}
	if e.Env.Type.Subresource == codec.Spec {
		l.versions, err = codec.DecodeVersions(e.Env.Data)
	} else {
		l.cluster = e.Env.Cluster
		l.hashes, err = codec.DecodeHashes(e.Env.Data)
	}
	switch {
	case err != nil:
		l.free()
		return transport.Undecodable(err)
	case !s.request(&l):
		l.free()
		return request.Overloaded("too many lists of this subscription wait to be compared", request.RetryAfter)
	}
	return nil
}

// compare answers a list: it puts the records that the client lacks into its queue. It frees the slot that the
// caller has taken.
func (t *stream) compare(ctx context.Context, l *list) (err error) {
	defer l.free()
	defer t.sync.Slots.Free()
	start := t.cfg.Now()
	var sends int
	if t.sub.part == codec.Spec {
		sends, err = t.compareSpecs(ctx, l)
	} else {
		sends, err = t.compareStatuses(ctx, l)
	}
	if err != nil {
		return request.Store(err)
	}
	end := t.cfg.Now()
	t.calmDown(end, end.Sub(start))
	t.sub.complete(end, l)
	t.metrics.countSync(t.sub.part, l.timedOut, sends, end.Sub(start))
	return nil
}

// specList is the running comparison of an agent's list.
type specList struct {
	*stream
	plan      *resync.Specs
	newer     map[string]syncstate.AheadWork
	hashes    []codec.StatusHash
	confirmed []store.Meta // listed by an OCM agent
	seen      uint64       // highest revision
	sends     int
}

func (t *stream) compareSpecs(ctx context.Context, l *list) (sends int, err error) {
	c := specList{stream: t, plan: resync.NewSpecs(l.versions), newer: map[string]syncstate.AheadWork{}, seen: t.cfg.Store.Head().Revision}
	err = t.cfg.Store.Scan(ctx, t.sub.scope, func(m store.Meta) error {
		c.add(&m)
		return nil
	})
	if err == nil {
		err = c.answerConfirmed(ctx)
	}
	if err == nil {
		// The scan may have read what this replica has not followed yet, for example that a release dropped a record.
		// Then its source is not synced any more, and a checkpoint must not say that it is.
		err = t.cfg.Store.Reach(ctx)
	}
	if err != nil {
		return c.sends, err
	}
	for id, w := range c.sync.ForcedOf(t.sub.scope, c.newer) {
		delete(c.newer, id)
		t.recheckAhead(id, w)
		c.sends++
	}
	t.ocm.synced(c.seen)
	var chunks [][]codec.StatusHash
	for chunk := range resync.Chunks(c.hashes) {
		chunks = append(chunks, chunk)
	}
	t.request(chunks)
	if !l.timedOut {
		odd := syncstate.Mismatch{Orphans: map[string]int64{}, Newer: c.newer, MaxBytes: min(syncstate.MaxListBytes, t.cfg.MaxEventBytes/2)}
		for _, id := range c.plan.Orphans() {
			odd.Orphans[id] = c.plan.Version(id)
		}
		t.sub.list.Replace(odd)
		t.peers.Reported(t.sub.scope)
	}
	return c.sends, nil
}

// add compares one record.
func (c *specList) add(m *store.Meta) {
	c.seen = max(c.seen, m.SpecRevision)
	var flags deliveryqueue.Flags
	if m.State != store.Live {
		flags = deliveryqueue.Deletion
	}
	switch c.plan.Decide(specOf(m)) {
	case resync.SpecThenDeletion:
		flags |= deliveryqueue.SpecFirst
		fallthrough
	case resync.Send:
		if m.State == store.ConfirmedTombstone && c.sub.hello.Protocol == 0 {
			c.confirmed = append(c.confirmed, *m)
			break
		}
		c.sub.answer(keyOf(m.Key), m.SpecRevision, flags)
		c.sends++
	case resync.Ahead:
		c.newer[m.ResourceID] = syncstate.NewerOf(m, c.plan.Version(m.ResourceID))
	case resync.Skip:
	}
	if m.Queued != nil {
		c.plan.MarkKnown(m.Queued.ResourceID)
	}
	if m.State != store.ConfirmedTombstone && c.plan.Lists(m.ResourceID) {
		// A record without a status has the empty hash, so the agent is asked to report.
		c.hashes = append(c.hashes, codec.StatusHash{ResourceID: m.ResourceID, StatusHash: m.StatusHash})
	}
}

// answerConfirmed sends the deletions of confirmed works that an OCM agent still lists. It sends no deletion
// for a work whose name now belongs to a live work.
//
// Scenario:
//
//	t1: an agent has the first work, and disconnects.
//	t2: its source publishes the next work of that name, which replaces the first one.
//	t3: the source deletes the first work. The deletion is confirmed at once, because the name belongs to the next work.
//	t4: the agent reconnects and lists the first work.
//
// Result: only the next work is sent; it replaces the first one.
//
// An agent that got both events could delete objects of the next work. On the cluster, the owner of an object is
// a work name.
func (c *specList) answerConfirmed(ctx context.Context) error {
	if len(c.confirmed) == 0 {
		return nil
	}
	names := map[string]bool{} // of confirmed tombstones; true: a live work has the name
	for _, m := range c.confirmed {
		names[m.Name] = false
	}
	err := c.cfg.Store.Scan(ctx, c.sub.scope, func(m store.Meta) error {
		if _, requested := names[m.Name]; requested && m.State == store.Live {
			names[m.Name] = true
		}
		return nil
	})
	for _, m := range c.confirmed {
		if err == nil && !names[m.Name] {
			c.sub.answer(keyOf(m.Key), m.SpecRevision, deliveryqueue.Deletion)
			c.sends++
		}
	}
	return err
}

// specOf returns a record in the form for a comparison.
func specOf(m *store.Meta) resync.Spec {
	r := resync.Spec{
		ID: m.ResourceID, Version: m.Version, Tag: m.Tag, Supersedes: m.SpecSupersedes,
		Reported: m.StatusRevision != 0, ReportedVersion: m.StatusVersion,
	}
	switch {
	case m.State == store.Live:
		r.State = resync.Live
	case m.State == store.Tombstone:
		r.State = resync.Deleted
	case m.DeletedAt.IsZero():
		r.State = resync.GivenUp
	default:
		r.State = resync.Confirmed
	}
	return r
}

func (t *stream) compareStatuses(ctx context.Context, l *list) (sends int, err error) {
	plan := resync.NewStatuses(l.hashes)
	scope := t.sub.scope
	scope.Cluster = l.cluster
	err = t.cfg.Store.Scan(ctx, scope, func(m store.Meta) error {
		final := m.State == store.ConfirmedTombstone
		if m.StatusRevision == 0 && !final {
			return nil
		}
		if plan.Needs(resync.Status{ID: m.ResourceID, Hash: m.StatusHash, Final: final}) {
			t.sub.answer(keyOf(m.Key), m.StatusRevision, 0)
			sends++
		}
		return nil
	})
	return sends, err
}

// requestStatuses sends an agent the hashes of the stored statuses, so that it reports those that differ.
func (t *stream) requestStatuses(chunk []codec.StatusHash) error {
	t.metrics.statusRequests.Inc()
	return t.sendEvent(codec.NewStatusResyncRequest(codec.ResyncParams{
		ID: t.cfg.NewID(), Time: t.cfg.Now(), Source: request.BrokerSource, Cluster: t.sub.scope.Cluster, DataType: t.sub.scope.DataType,
	}, chunk))
}

// forceQueued queues the records of ahead works that their sources have confirmed.
func (t *stream) forceQueued() {
	for id, w := range t.sync.Forced(t.sub.list) {
		t.recheckAhead(id, w)
	}
}

// recheckAhead puts the record of one ahead work into the queue, with the flag Force. An agent that orders by
// version gets the spec without a version. A Hawser agent gets a deletion with the version that it listed,
// because its confirmation names that version.
func (t *stream) recheckAhead(id string, w syncstate.AheadWork) {
	if t.forced == nil {
		t.forced = map[string]int64{}
	}
	t.forced[id] = w.Listed
	t.metrics.forced.Inc()
	t.sub.answer(deliveryqueue.Key{Cluster: t.sub.scope.Cluster, ResourceID: id}, w.Revision, w.Flags|deliveryqueue.Force)
}
