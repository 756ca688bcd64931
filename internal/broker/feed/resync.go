package feed

import (
	"context"

	"github.com/hawser-io/hawser/internal/broker/call"
	"github.com/hawser-io/hawser/internal/broker/claims"
	"github.com/hawser-io/hawser/internal/broker/route"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Resync notes what a party says it has, for the streams that are to answer. A party that is
// not subscribed gets no answer; when it subscribes and does not ask then, it is believed to
// have nothing.
func (f *Feed) Resync(_ context.Context, e *call.Event) (err error) {
	l := list{}
	scope := store.Scope{DataType: e.Env.Type.DataType}
	if e.Env.Type.Subresource == codec.Spec {
		if e.Env.Cluster == "" {
			return call.Missing(codec.ExtClusterName)
		}
		scope.Cluster = e.Env.Cluster
		l.versions, err = codec.DecodeVersions(e.Env.Data)
	} else {
		scope.Owner, l.cluster = e.Env.Source, e.Env.Cluster
		l.hashes, err = codec.DecodeHashes(e.Env.Data)
	}
	if err != nil {
		refused := call.Undecodable(err)
		refused.Attribute = "data"
		return refused
	}
	for _, s := range f.registry.askers(scope, e.Subscription, e.Conn) {
		if !f.cfg.Lists.Reserve(e.From, e.Size) {
			return call.Overloaded("too many lists wait to be compared", call.ComeBack)
		}
		mine := l
		mine.free = func() { f.cfg.Lists.Free(e.From, e.Size) }
		if !s.request(&mine) {
			mine.free()
			return call.Overloaded("too many lists of this subscription wait to be compared", call.ComeBack)
		}
	}
	return nil
}

// compare answers a list: what the party lacks goes into its mailbox. It gives the slot back
// that the caller has occupied.
func (t *stream) compare(ctx context.Context, l *list) (err error) {
	defer l.free()
	defer t.cfg.Slots.Free()
	start := t.cfg.Now()
	var sends int
	if t.sub.part == codec.Spec {
		sends, err = t.compareSpecs(ctx, l)
	} else {
		sends, err = t.compareStatuses(ctx, l)
	}
	if err != nil {
		return call.Store(err)
	}
	end := t.cfg.Now()
	t.calmDown(end, end.Sub(start))
	t.sub.complete(end, l)
	t.metrics.compared(t.sub.part, l.silent, sends, end.Sub(start))
	return nil
}

// specList is the comparison of an agent's list in the making.
type specList struct {
	*stream
	plan   *resync.Specs
	newer  map[string]claims.NewerWork
	hashes []codec.StatusHash
	seen   uint64 // highest revision
	sends  int
}

func (t *stream) compareSpecs(ctx context.Context, l *list) (sends int, err error) {
	c := specList{stream: t, plan: resync.NewSpecs(l.versions), newer: map[string]claims.NewerWork{}, seen: t.cfg.Store.Head().Revision}
	err = t.cfg.Store.Scan(ctx, t.sub.scope, func(m store.Meta) error {
		c.add(&m)
		return nil
	})
	if err != nil {
		return c.sends, err
	}
	t.stock.compared(c.seen)
	var chunks [][]codec.StatusHash
	for chunk := range resync.Chunks(c.hashes) {
		chunks = append(chunks, chunk)
	}
	t.askFor(chunks)
	if !l.silent {
		odd := claims.Odd{
			Place: t.sub.scope, Party: t.sub.party, Unexplained: map[string]int64{}, Newer: c.newer,
			MaxBytes: min(claims.MaxListBytes, t.cfg.MaxEventBytes/2),
		}
		for _, id := range c.plan.Unexplained() {
			odd.Unexplained[id] = c.plan.Version(id)
		}
		t.sub.replaceOdd(t.cfg.Claims.Lists.Replace(t.sub.oddities(), odd))
	}
	return c.sends, nil
}

// add compares one record.
func (c *specList) add(m *store.Meta) {
	c.seen = max(c.seen, m.SpecRevision)
	var flags route.Flags
	if m.State != store.Live {
		flags = route.Deletion
	}
	switch c.plan.Decide(specOf(m)) {
	case resync.SpecThenDeletion:
		flags |= route.SpecFirst
		fallthrough
	case resync.Send:
		c.sub.answer(keyOf(m.Key), m.SpecRevision, flags)
		c.sends++
	case resync.Ahead:
		w := claims.NewerOf(m, c.plan.Version(m.ResourceID))
		if claims.Decide(c.cfg.Claims.About(m, w.Listed)) == claims.Wait {
			c.newer[m.ResourceID] = w
		} else {
			c.force(m.ResourceID, w)
			c.sends++
		}
	case resync.Skip:
	}
	if m.Waiting != nil {
		c.plan.Explain(m.Waiting.ResourceID)
	}
	if m.State != store.Grave && c.plan.Lists(m.ResourceID) {
		// No status has the empty hash: the agent is asked to report.
		c.hashes = append(c.hashes, codec.StatusHash{ResourceID: m.ResourceID, StatusHash: m.StatusHash})
	}
}

// specOf is a record as a comparison sees it.
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
		final := m.State == store.Grave
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

// ask sends an agent the hashes of the statuses that the broker has, so that it reports those
// that differ.
func (t *stream) ask(chunk []codec.StatusHash) error {
	t.metrics.asked.Inc()
	return t.sendEvent(codec.NewStatusResyncRequest(codec.ResyncParams{
		ID: t.cfg.NewID(), Time: t.cfg.Now(), Source: call.BrokerSource, Cluster: t.sub.scope.Cluster, DataType: t.sub.scope.DataType,
	}, chunk))
}

// forceWaiting sends an agent the records of which it has newer versions, where their sources
// have made sure that the records are the truth.
func (t *stream) forceWaiting() {
	for id, w := range t.cfg.Claims.Forced(t.sub.oddities()) {
		t.force(id, w)
	}
}

// force puts one such record into the mailbox. An agent that orders by version gets it without
// one; one of ours is told a deletion with its own, because its confirmation will name it.
func (t *stream) force(id string, w claims.NewerWork) {
	if t.forced == nil {
		t.forced = map[string]int64{}
	}
	t.forced[id] = w.Listed
	t.metrics.forced.Inc()
	t.sub.answer(route.Key{Cluster: t.sub.scope.Cluster, ResourceID: id}, w.Revision, w.Flags|route.Overrule)
}
