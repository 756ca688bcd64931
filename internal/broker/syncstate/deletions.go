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
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Deletions holds the deletions that were sent to no agent. That cannot be derived from the records. A queued spec
// may replace such a tombstone.
//
// Scenario:
//
//	t1: an agent disconnects.
//	t2: its work is deleted and created again under the same name; the new spec is queued.
//	t3: the agent reconnects with a cursor from before t2.
//
// Result: the agent holds the last spec of the first work, and may be sent the second work instead.
type Deletions struct {
	cfg    *settings.Config
	writer Writer

	mu       sync.Mutex
	clusters map[store.Scope]*offlineChanges
}

// offlineChanges holds the deletions that were committed while a cluster had no agent.
type offlineChanges struct {
	agents int // number of subscribed agents
	// left is the store head when the last agent disconnected.
	left      uint64
	deletions map[string]store.UnsentDeletion // by id
	// waits is true if a spec is queued behind some tombstone.
	waits bool
	// deciding is not nil while works are about to replace tombstones. Until it is closed, nothing is sent to
	// agents of the cluster.
	deciding chan struct{}
}

// cluster returns the entry of a cluster and creates it if needed. The caller holds mu.
func (d *Deletions) cluster(scope store.Scope) *offlineChanges {
	a := d.clusters[scope]
	if a == nil {
		a = &offlineChanges{deletions: map[string]store.UnsentDeletion{}}
		d.clusters[scope] = a
	}
	return a
}

// Enter records that an agent of a cluster is about to subscribe.
func (d *Deletions) Enter(scope store.Scope) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cluster(scope).agents++
}

// Leave records that an agent's subscription ended. head is the store head: no revision above it was sent to
// the agent.
func (d *Deletions) Leave(scope store.Scope, head uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.cluster(scope)
	a.agents--
	a.left = head
}

// changed drops the facts about a deletion once its record is no longer a tombstone.
func (d *Deletions) changed(c *store.Change) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.clusters[scopeOf(c.Key)]
	if a != nil && c.State != store.Tombstone && a.deletions[c.Key.ResourceID].Last < c.Revision {
		delete(a.deletions, c.Key.ResourceID)
		if len(a.deletions) == 0 && a.agents == 0 && a.left == 0 && !a.waits {
			delete(d.clusters, scopeOf(c.Key)) // no agent of the cluster ever subscribed
		}
	}
}

// Begin reads the record of a spec before the spec is queued. The caller calls done, which may be nil, with the
// outcome before it replies to the source.
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
		return nil
	}, nil
}

// deletedRecord returns the record that a deletion will change. It returns nil if the op is no deletion, an
// agent is subscribed, or there is no record.
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

// noteUnsentDeletion records the outcome of a spec. met is the record that a deletion changed while no agent
// was subscribed, or nil.
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
		d.cluster(scope).deletions[k.ResourceID] = u // otherwise the old entry is about a replaced revision and has no effect
	}
}

// ReplaceTombstones lets queued specs replace deletions that no agent was sent, before anything is sent to the
// agent that has just subscribed. cursor is the revision up to which the agent has saved everything, 0 if it
// did not report one.
func (d *Deletions) ReplaceTombstones(ctx context.Context, scope store.Scope, from identity.Identity, cursor uint64) error {
	a, deletions, wait := d.arrive(scope, cursor)
	switch {
	case wait != nil && !taskgroup.Wait(ctx, wait):
		return request.CallerGone(ctx)
	case deletions == nil:
		return nil
	}
	defer d.decided(scope)
	// Another broker may have sent the deletions to an agent. Then the queued specs wait for the confirmation.
	switch live, err := d.cfg.Store.Replicas(ctx); {
	case err != nil:
		return request.Store(err)
	case len(live) > 1 || d.cfg.Replicas.HadOthers():
		return nil
	}
	ops, err := d.takeOvers(ctx, scope, a, deletions)
	if err != nil || len(ops) == 0 {
		return err
	}
	// Wait for the commit even if ctx ends, because no agent may be sent the deletions before.
	outcomes, err := d.writer.Commit(context.WithoutCancel(ctx), from, ops...)
	if err != nil {
		return request.Store(err)
	}
	outcomes = slices.DeleteFunc(outcomes, func(o store.Outcome) bool { return o.Result != store.Confirmed })
	if len(outcomes) > 0 {
		d.cfg.Log.Info("works were created again while their cluster was disconnected; they replace the deleted ones",
			"cluster", scope.Cluster, "count", len(outcomes))
	}
	return nil
}

// arrive removes and returns the offline changes of a cluster if a queued spec may replace a tombstone. Then
// other agents wait until the caller calls decided. If wait is not nil, another agent is deciding, and nothing
// may be sent before wait is closed.
func (d *Deletions) arrive(scope store.Scope, cursor uint64) (a store.Subscriber, deletions map[string]store.UnsentDeletion, wait <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.cluster(scope)
	if c.deciding != nil {
		return a, nil, c.deciding
	}
	deletions, waits := c.deletions, c.waits
	c.deletions, c.waits = map[string]store.UnsentDeletion{}, false // this agent is about to be sent the deletions
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

// takeOvers returns the writes that replace tombstones by their queued specs.
func (d *Deletions) takeOvers(ctx context.Context, scope store.Scope, a store.Subscriber, deletions map[string]store.UnsentDeletion) (ops []store.Op, err error) {
	for _, id := range slices.Sorted(maps.Keys(deletions)) {
		r, err := d.cfg.Store.Get(ctx, store.Key{DataType: scope.DataType, Cluster: scope.Cluster, ResourceID: id})
		switch {
		case errors.Is(err, store.ErrNotFound), errors.As(err, new(*store.DamageError)): // the delivery of a damaged record reports it
		case err != nil:
			return nil, request.Store(err)
		case store.CanReplaceTombstone(r.Meta, deletions[id], a):
			ops = append(ops, store.Op{Kind: store.TakeOver, Key: r.Key, IfRevision: r.SpecRevision, At: d.cfg.Now()})
		}
	}
	return ops, nil
}
