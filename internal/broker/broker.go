// Package broker keeps the accepted state of every work and brings it to whom
// it concerns. A [Broker] is the [transport.Server] behind every front:
//
//	Publish:   parse → authorize → queue → commit (one sync for many) → answer
//	routing:   the store's change feed → mailboxes of the subscriptions
//	Subscribe: register → header → mailbox entry → read the record → send
//
// A publish is acknowledged when its commit returned, never earlier. Nothing
// that a subscriber does or fails to do holds up anybody else: a mailbox holds
// keys, each stream is one goroutine, and no lock is held while it sends.
//
// # Who decides what
//
// Versions, owners and names are judged inside the commit, by the store.
// Package route decides order and fairness of deliveries, package resync what a
// party that lists what it holds still needs, package authz who may do what.
// What is left here is moving events between them within bounds.
package broker

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/run"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Broker is one broker over one store. Create it with [New], run it once with
// [Broker.Run]; Publish and Subscribe may be called from the start, and are
// refused when it drains.
type Broker struct {
	cfg     Config
	store   store.Store
	log     *slog.Logger
	metrics *metrics

	commits *committer
	hub     *hub
	lists   *budget
	kept    *budget // of what lists had that no record explains
	// burials are graves that their sources have seen.
	burials *burials
	// ledger is what does not fit together, comparisons who has made sure.
	ledger      *ledger
	unexplained *unexplained
	comparisons *comparisons

	// comparing limits how many comparisons of lists run at a time.
	comparing chan struct{}
	// marking makes looking a cluster's uid up and noting it one step.
	marking sync.Mutex
	// backups makes them one at a time.
	backups sync.Mutex
	// failure is the error of the last commit, nil while commits succeed.
	failure atomic.Pointer[error]
}

var _ transport.Server = (*Broker)(nil)

// New returns a broker over cfg.Store, which the caller closes after Run has
// returned. It starts nothing. The error names the field of cfg that is wrong.
func New(cfg Config) (*Broker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Broker{
		cfg:       cfg,
		store:     cfg.Store,
		log:       cfg.Log,
		lists:     newBudget(cfg.QueueBytes),
		kept:      newBudget(cfg.QueueBytes),
		burials:   newBurials(),
		comparing: make(chan struct{}, cfg.Comparisons),
		ledger:    newLedger(), comparisons: newComparisons(), unexplained: newUnexplained(),
	}
	b.hub = newHub(cfg.Store.Head().Revision, b.ledger)
	b.commits = newCommitter(cfg, func(err error) {
		if err == nil {
			b.failure.Store(nil)
			return
		}
		b.log.Error("commit failed", "error", err)
		b.failure.Store(&err)
	})
	b.metrics = newMetrics(cfg.Registry, b)
	b.commits.metrics = b.metrics
	return b, nil
}

// Run serves until ctx ends, then drains: new calls are refused, streams are
// ended at the configured pace and told why, what was queued is committed. It
// returns when that is done or the drain timeout is over. An error means that
// the broker cannot go on, for instance because its store failed.
func (b *Broker) Run(ctx context.Context) error {
	return run.Group(ctx,
		run.Task{Name: "committer", Run: b.commits.run},
		run.Task{Name: "router", Run: b.runRouter},
		run.Task{Name: "sweeper", Run: b.runSweeper},
		run.Task{Name: "burials", Run: b.runBurials},
		run.Task{Name: "drain", Run: b.runDrain},
	)
}

// Ready returns nil while the broker takes and keeps events. It does not block.
func (b *Broker) Ready() error {
	if b.hub.closing() != nil {
		return errors.New("draining")
	}
	if err := b.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// MaxEventBytes is the largest event that Publish takes; resync requests may be
// larger.
func (b *Broker) MaxEventBytes() int { return b.cfg.MaxEventBytes }

// Panicked counts a call that panicked in a front, beside those that did here.
func (b *Broker) Panicked() { b.metrics.panics.Inc() }

// runRouter feeds the mailboxes from the store's change feed and nothing else.
func (b *Broker) runRouter(ctx context.Context) error {
	const atOnce = 1024
	after := b.hub.position()
	for {
		changes, err := b.store.Changes(ctx, after, atOnce)
		if err != nil {
			return err
		}
		if len(changes) == 0 {
			continue
		}
		after = changes[len(changes)-1].Revision
		// The store may return fewer than it has, so their number says nothing.
		b.hub.route(changes, after >= b.store.Head().Revision)
	}
}

// recovered turns a panic of one call into its error; it must be deferred
// directly.
func (b *Broker) recovered(err *error) {
	p := recover()
	if p == nil {
		return
	}
	b.metrics.panics.Inc()
	b.log.Error("call panicked", "panic", p, "stack", string(debug.Stack()))
	*err = internalError(errors.New("panic"))
}
