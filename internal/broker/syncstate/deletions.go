package syncstate

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Deletions knows what of deletions the records do not say: which of those from before the
// store was opened were published again since, and which no agent has heard of.
//
// The second is the proof for a take-over:
//
//	t1  an agent leaves
//	t2  its work is deleted, and made anew under its name; the new one waits
//	t3  the agent comes back with a cursor from before t2
//
// Therefore it holds the first work as it was last, and may be sent the second in its place.
type Deletions struct {
	cfg    *settings.Config
	agents Agents
	writer Writer

	mu sync.Mutex
	// repeated are revisions of deletions from before the store was opened that their
	// sources have published again. There are at most as many as the store had then.
	repeated map[store.Key]uint64
	clusters map[store.Scope]*offlineChanges
}

// offlineChanges is what was committed while a cluster had no agent.
type offlineChanges struct {
	agents int // that are subscribed now
	// left is the head of the store when the last agent left.
	left      uint64
	deletions map[string]store.UnsentDeletion // by id
	// waits: some spec waits behind a tombstone.
	waits bool
	// deciding is there while an agent is not sent anything yet, because works are about to
	// take over; others wait until it is closed.
	deciding chan struct{}
}

// cluster returns what is known of a cluster, to change it. The caller holds mu.
func (d *Deletions) cluster(scope store.Scope) *offlineChanges {
	a := d.clusters[scope]
	if a == nil {
		a = &offlineChanges{deletions: map[string]store.UnsentDeletion{}}
		d.clusters[scope] = a
	}
	return a
}

// Enter says that an agent of a cluster is about to be subscribed.
func (d *Deletions) Enter(scope store.Scope) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cluster(scope).agents++
}

// Leave says that it is subscribed no longer. head is that of the store: of what is above
// it nothing was sent.
func (d *Deletions) Leave(scope store.Scope, head uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.cluster(scope)
	a.agents--
	a.left = head
}

// changed drops what was known of a deletion, once the record is none any more.
func (d *Deletions) changed(c *store.Change) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.Part == store.SpecPart || c.State == store.ConfirmedTombstone {
		delete(d.repeated, c.Key)
	}
	a := d.clusters[scopeOf(c.Key)]
	if a != nil && c.State != store.Tombstone && a.deletions[c.Key.ResourceID].Last < c.Revision {
		delete(a.deletions, c.Key.ResourceID)
		if len(a.deletions) == 0 && a.agents == 0 && a.left == 0 && !a.waits {
			delete(d.clusters, scopeOf(c.Key)) // no agent of it ever came
		}
	}
}

// Begin looks at a spec before it is queued; done, which may be nil, is called with its
// outcome before the source is told.
func (d *Deletions) Begin(ctx context.Context, op *store.Op, env *codec.Envelope) (done func(store.Outcome) error, err error) {
	if op.Kind != store.PutSpec {
		return nil, nil
	}
	met, err := d.deletedRecord(ctx, op, env)
	if err != nil {
		return nil, err
	}
	return func(o store.Outcome) error {
		d.noteUnsentDeletion(op.Key, o, met)
		return d.noteRepeated(ctx, op, o)
	}, nil
}

// deletedRecord looks up what a deletion is about to meet; nil: some agent hears of it, or it is
// no deletion, or there is nothing.
func (d *Deletions) deletedRecord(ctx context.Context, op *store.Op, env *codec.Envelope) (*store.DeletedRecord, error) {
	if !op.Deleting || d.hasAgent(scopeOf(op.Key)) {
		return nil, nil
	}
	r, err := d.cfg.Store.Get(ctx, op.Key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	m := &store.DeletedRecord{State: r.State, Revision: r.SpecRevision}
	if r.Spec != nil {
		before, err := codec.ParseEnvelope(r.Spec)
		m.Unchanged = err == nil && (op.Event == nil || bytes.Equal(before.Data, env.Data))
	}
	return m, nil
}

func (d *Deletions) hasAgent(scope store.Scope) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.clusters[scope]
	return a != nil && a.agents > 0
}

// noteUnsentDeletion notes what became of a spec; met is what a deletion met that no agent hears
// of, else nil.
func (d *Deletions) noteUnsentDeletion(k store.Key, o store.Outcome, met *store.DeletedRecord) {
	if met == nil && o.Result != store.Queued {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	scope := scopeOf(k)
	var known store.UnsentDeletion
	if a := d.clusters[scope]; a != nil {
		if a.agents > 0 {
			return
		}
		known = a.deletions[k.ResourceID]
	}
	if met == nil {
		d.cluster(scope).waits = true
		return
	}
	if u := known.Deleted(*met, o); u.Last != 0 {
		d.cluster(scope).deletions[k.ResourceID] = u // else what is known is about a revision that is no more
	}
}

// noteRepeated notes what a source published of a work whose deletion is older
// than the opening of the store: the deletion again, or what waits behind it.
func (d *Deletions) noteRepeated(ctx context.Context, op *store.Op, o store.Outcome) error {
	start := d.cfg.Store.Head().TermStart
	behind := o.Revision == 0 // a tombstone, of this id or of another one
	switch o.Result {
	case store.Accepted, store.Unchanged, store.Queued:
		if o.Revision >= start || !op.Deleting && !behind {
			return nil
		}
	default:
		return nil
	}
	r, err := d.cfg.Store.Get(ctx, op.Key)
	switch {
	case errors.Is(err, store.ErrNotFound): // it waits behind another id's
		return nil
	case err != nil:
		return err
	}
	if r.State == store.Tombstone && r.SpecRevision < start && d.repeat(op.Key, r.SpecRevision) {
		d.agents.Recheck(Change{DataType: op.Key.DataType, Clusters: []string{op.Key.Cluster}})
	}
	return nil
}

// repeat remembers that a deletion was published again. It reports false where that was
// remembered before.
func (d *Deletions) repeat(k store.Key, revision uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.repeated[k] == revision {
		return false
	}
	d.repeated[k] = revision
	return true
}

// inForce reports whether a deletion is no older than what the store may have lost.
func (d *Deletions) inForce(k store.Key, revision uint64) bool {
	if revision >= d.cfg.Store.Head().TermStart {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return revision != 0 && d.repeated[k] == revision
}

// ReplaceTombstones lets works that wait behind deletions which no agent has heard of take over,
// before anything is sent to the agent that has just entered. cursor is up to where that
// has everything safe, 0 if it does not say.
func (d *Deletions) ReplaceTombstones(ctx context.Context, scope store.Scope, from identity.Identity, cursor uint64) error {
	a, deletions, wait := d.arrive(scope, cursor)
	if wait != nil {
		select {
		case <-wait:
			return nil
		case <-ctx.Done():
			return request.CallerGone(ctx)
		}
	}
	if deletions == nil {
		return nil
	}
	defer d.decided(scope)
	ops, err := d.takeOvers(ctx, scope, a, deletions)
	if err != nil || len(ops) == 0 {
		return err
	}
	// It is waited for to the end: until then nobody may be sent the deletions.
	outcomes, err := d.writer.Commit(context.WithoutCancel(ctx), from, ops...)
	if err != nil {
		return request.Store(err)
	}
	outcomes = slices.DeleteFunc(outcomes, func(o store.Outcome) bool { return o.Result != store.Confirmed })
	if len(outcomes) > 0 {
		d.cfg.Log.Info("works that were made anew while their cluster was away take over from those that were deleted",
			"cluster", scope.Cluster, "count", len(outcomes))
	}
	return nil
}

// arrive takes out what was committed while the cluster had no agent, if something may take
// over: then others wait until decided is called. Else nothing is sent before wait is
// closed, if that is not nil.
func (d *Deletions) arrive(scope store.Scope, cursor uint64) (a store.Subscriber, deletions map[string]store.UnsentDeletion, wait <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.cluster(scope)
	if c.deciding != nil {
		return a, nil, c.deciding
	}
	deletions, waits := c.deletions, c.waits
	c.deletions, c.waits = map[string]store.UnsentDeletion{}, false // it is about to hear of it
	if cursor == 0 || !waits {
		return a, nil, nil
	}
	c.deciding = make(chan struct{})
	return store.Subscriber{Cursor: cursor, Sent: c.left, Alone: c.agents == 1}, deletions, nil
}

func (d *Deletions) decided(scope store.Scope) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.cluster(scope)
	close(c.deciding)
	c.deciding = nil
}

// takeOvers are the writes for what takes over.
func (d *Deletions) takeOvers(ctx context.Context, scope store.Scope, a store.Subscriber, deletions map[string]store.UnsentDeletion) (ops []store.Op, err error) {
	for _, id := range slices.Sorted(maps.Keys(deletions)) {
		r, err := d.cfg.Store.Get(ctx, store.Key{DataType: scope.DataType, Cluster: scope.Cluster, ResourceID: id})
		switch {
		case errors.Is(err, store.ErrNotFound), errors.As(err, new(*store.DamageError)): // its delivery tells of it
		case err != nil:
			return nil, request.Store(err)
		case store.CanReplaceTombstone(r.Meta, deletions[id], a):
			ops = append(ops, store.Op{Kind: store.TakeOver, Key: r.Key, IfRevision: r.SpecRevision, At: d.cfg.Now()})
		}
	}
	return ops, nil
}
