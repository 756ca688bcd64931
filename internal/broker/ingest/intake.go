// Package ingest is the way of an event into the store:
//
//	Publish ─► check ─► begin (witnesses) ─► queue ─► commit, one sync for many ─► done (witnesses) ─► receipt
//
// A publish is acknowledged when its commit returned, never earlier. What comes too late to
// count is refused where it would be queued: of a subscription that ended, and what its
// source has superseded (see [Fences]). Versions, owners and names are judged inside the
// commit, by the store.
//
// The package knows no stream and no mailbox. What others have to know of an event they
// learn as a [CommitHook], around its commit.
package ingest

import (
	"context"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// CommitHook is told of each spec and each status.
type CommitHook interface {
	// Begin is called before the op is queued. done, which may be nil, is called with the
	// outcome, the zero value if there is none, before the publisher is told.
	Begin(ctx context.Context, op *store.Op, env *codec.Envelope) (done func(store.Outcome) error, err error)
}

// SyncInvalidator forget what a source said of a cluster that it releases. tell is called
// afterwards, when no lock is held.
type SyncInvalidator interface {
	Release(owner, cluster string) (report func())
}

// Intake takes events in. Its methods may be called concurrently.
type Intake struct {
	*Fences

	cfg         *settings.Config
	invalidator SyncInvalidator
	witnesses   []CommitHook
	commits     *committer
	gc          *tombstoneGC
}

// New returns an intake. It starts nothing.
func New(cfg *settings.Config, v SyncInvalidator) *Intake {
	m, queue := newMetrics(cfg.Meter()), newQueue(cfg.QueueBytes)
	cfg.Meter().Shown("queue_bytes", "Bytes of publishes that wait for their commit.", nil, func() float64 { return float64(queue.budget.Used()) })
	c := &committer{cfg: cfg, queue: queue, metrics: m}
	return &Intake{
		Fences: newFences(), cfg: cfg, invalidator: v, commits: c,
		gc: &tombstoneGC{cfg: cfg, commits: c, metrics: m, upTo: map[store.Scope]uint64{}, wake: taskgroup.NewBell()},
	}
}

// Connect says who is told of specs and statuses. It is called once, before any comes.
func (i *Intake) Connect(w ...CommitHook) { i.witnesses = w }

// Tasks are what has to run.
func (i *Intake) Tasks() []taskgroup.Task {
	return []taskgroup.Task{{Name: "committer", Run: i.commits.run}, {Name: "graves", Run: i.gc.run}}
}

// Failure is why the last commit failed, nil while commits succeed. It does not block.
func (i *Intake) Failure() error { return i.commits.failed() }

// Commit writes ops in the name of a party, a long list in parts, so that publishes get
// their turn between them. It returns the outcomes of what was written.
func (i *Intake) Commit(ctx context.Context, from identity.Identity, ops ...store.Op) ([]store.Outcome, error) {
	return i.commits.commit(ctx, from, nil, ops...)
}

// Seen says that a source has seen the statuses of its works up to a revision.
func (i *Intake) Seen(owner store.Scope, revision uint64) { i.gc.seen(owner, revision) }

// Supersede ends the earlier subscriptions of the source that has this one, and waits until
// nothing that they published is queued any more.
func (i *Intake) Supersede(ctx context.Context, subscription string, from identity.Identity) error {
	f := i.Find(subscription, from)
	if f == nil {
		return request.NoSubscription(from)
	}
	i.endBefore(f)
	// Commits of one party keep their order, so an empty one comes behind what is queued.
	if _, err := i.Commit(ctx, from); err != nil {
		return request.Store(err)
	}
	return nil
}

// put queues one op and has the witnesses see it.
func (i *Intake) put(ctx context.Context, e *request.Event, op store.Op) (r transport.Receipt, err error) {
	_, void, err := i.guard(e)
	if err != nil {
		return r, err
	}
	var outcome store.Outcome
	dones := make([]func(store.Outcome) error, 0, len(i.witnesses))
	defer func() {
		for _, done := range dones {
			if failed := done(outcome); failed != nil && err == nil {
				r, err = transport.Receipt{}, request.Store(failed)
			}
		}
	}()
	for _, w := range i.witnesses {
		done, err := w.Begin(ctx, &op, e.Env)
		if err != nil {
			return r, request.Store(err)
		}
		if done != nil {
			dones = append(dones, done)
		}
	}
	outcomes, err := i.commits.commit(ctx, e.From, void, op)
	if err != nil {
		return r, request.Store(err)
	}
	outcome = outcomes[0]
	i.commits.metrics.refused(outcome.Excess)
	return receiptOf(outcome, e.Env)
}
