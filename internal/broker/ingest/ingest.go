// Package ingest brings events into the store:
//
//	Publish ─► check ─► begin (hooks) ─► queue ─► commit, one sync for many ─► done (hooks) ─► receipt
//
// A publish is acknowledged when its commit has returned, never earlier. A late event is rejected before it is
// queued, because its subscription has ended or a later event supersedes it (see [Fences]). Inside the commit,
// the store decides about versions, owners and names.
//
// The package imports neither streams nor delivery queues. Other packages learn of an event through a
// [CommitHook], before and after its commit.
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

// CommitHook is called for each spec and each status.
type CommitHook interface {
	// Begin is called before the op is queued. done, which may be nil, is called with the outcome before the reply
	// to the publisher. The outcome is the zero value if the op was not committed.
	Begin(ctx context.Context, op *store.Op, env *codec.Envelope) (done func(store.Outcome) error, err error)
}

// SyncInvalidator returns the writes that drop the sync reports of a source about a cluster that it releases.
type SyncInvalidator interface {
	Release(owner, cluster string) []store.Op
}

// Intake accepts events. Its methods are safe for concurrent use.
type Intake struct {
	*Fences

	cfg         *settings.Config
	invalidator SyncInvalidator
	commitHooks []CommitHook
	commits     *committer
	gc          *tombstoneGC
}

// New returns an intake. It starts no goroutine.
func New(cfg *settings.Config, v SyncInvalidator) *Intake {
	m, queue := newMetrics(cfg.Meter()), newQueue(cfg.QueueBytes)
	cfg.Meter().GaugeFunc("queue_bytes", "Bytes of publishes that wait for their commit.", nil, func() float64 { return float64(queue.budget.Used()) })
	c := &committer{cfg: cfg, queue: queue, metrics: m}
	return &Intake{
		Fences: newFences(cfg.Store), cfg: cfg, invalidator: v, commits: c,
		gc: &tombstoneGC{cfg: cfg, commits: c, metrics: m, upTo: map[store.Scope]uint64{}, wake: taskgroup.NewBell()},
	}
}

// Connect sets the hooks for specs and statuses. Call it once, before the first event.
func (i *Intake) Connect(w ...CommitHook) { i.commitHooks = w }

// Tasks returns the tasks that the caller must run.
func (i *Intake) Tasks() []taskgroup.Task {
	return []taskgroup.Task{{Name: "committer", Run: i.commits.run}, {Name: "tombstone-gc", Run: i.gc.run}}
}

// Failure returns the error of the last commit, nil while commits succeed. It does not block.
func (i *Intake) Failure() error { return i.commits.failed() }

// Commit writes ops for a client. It splits a long list, so that the commits of other publishes run in between.
// It returns the outcomes of the written ops.
func (i *Intake) Commit(ctx context.Context, from identity.Identity, ops ...store.Op) ([]store.Outcome, error) {
	return i.commits.commit(ctx, from, nil, ops...)
}

// AckStatuses records that a source has acknowledged the statuses of its works up to a revision.
func (i *Intake) AckStatuses(owner store.Scope, revision uint64) { i.gc.seen(owner, revision) }

// Supersede ends the earlier subscriptions of the source that has this one, at all brokers. No event of them is
// committed after it. It waits until no event of this one is queued any more.
func (i *Intake) Supersede(ctx context.Context, subscription string, from identity.Identity) error {
	f := i.Find(subscription, from)
	if f == nil {
		return request.NoSubscription(from)
	}
	return i.takeOver(ctx, from, f, nil)
}

// takeOver ends the earlier subscriptions of the source of f, here and at the other brokers. It also waits for the
// publishes that its client has queued. Without a fence it only waits.
func (i *Intake) takeOver(ctx context.Context, from identity.Identity, f *Fence, checkValid func() *transport.Error) error {
	var ops []store.Op
	if f != nil {
		ops = append(ops, f.shared.Takeover())
	}
	outcomes, err := i.commits.commit(ctx, from, checkValid, ops...)
	switch {
	case err != nil:
		return request.Store(err)
	case f == nil:
		return nil
	case outcomes[0].Result == store.Fenced:
		return request.SubscriptionOver()
	case outcomes[0].Result == store.Invalid:
		return request.Invalid("source", outcomes[0].Detail, "choose another source id")
	}
	return nil
}

// put queues one op and calls the hooks before and after its commit.
func (i *Intake) put(ctx context.Context, e *request.Event, op store.Op) (r transport.Receipt, err error) {
	f, checkValid, err := i.guard(e)
	if err != nil {
		return r, err
	}
	var outcome store.Outcome
	dones := make([]func(store.Outcome) error, 0, 2)
	defer func() {
		for _, done := range dones {
			if failed := done(outcome); failed != nil && err == nil {
				r, err = transport.Receipt{}, request.Store(failed)
			}
		}
	}()
	for _, w := range i.commitHooks {
		done, err := w.Begin(ctx, &op, e.Env)
		if err != nil {
			return r, request.Store(err)
		}
		if done != nil {
			dones = append(dones, done)
		}
	}
	outcomes, err := i.commits.commit(ctx, e.From, checkValid, i.fenced(f, op)...)
	if err != nil {
		return r, request.Store(err)
	}
	outcome = outcomes[len(outcomes)-1]
	i.commits.metrics.refused(outcome.Excess)
	return receiptOf(outcome, e.Env)
}
