// Package broker keeps the accepted state of every work and brings it to whom it concerns. A
// [Broker] is the [transport.Server] behind every front. It is made of rooms, and does nothing
// itself but open the doors between them:
//
//	publish ─► parse, authorize, one switch by kind of event
//	             ├─ spec, status, release ─► intake ─► store
//	             ├─ compared ──────────────► claims
//	             ├─ of a cluster that joins ► registration ─► a source
//	             └─ resync, ack, inventory, unexplained ─► feed
//	subscribe ─► feed ◄─ changes of the store
//	operators ─► admin
//	who came, went and was refused ─► peers
//
// Package intake commits, package feed brings what changed to the subscriptions, package claims
// keeps what parties vouch for and what does not fit together, package admin is for people.
// They share package call: an event, and the errors that a caller is told. Versions, owners and
// names are judged inside the commit, by package store; order and fairness of deliveries are
// decided by package route, who may do what by package authz.
package broker

import (
	"context"
	"errors"
	"runtime/debug"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/admin"
	"github.com/hawser-io/hawser/internal/broker/agentstatus"
	"github.com/hawser-io/hawser/internal/broker/delivery"
	"github.com/hawser-io/hawser/internal/broker/ingest"
	"github.com/hawser-io/hawser/internal/broker/registration"
	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/syncstate"
	"github.com/hawser-io/hawser/internal/bytebudget"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Broker is one broker over one store. Create it with [New], run it once with [Broker.Run];
// Publish and Subscribe may be called from the start, and are refused when it drains. What
// operators and viewers ask for is [admin.Admin]'s.
type Broker struct {
	*admin.Admin

	cfg    Config
	sync   *syncstate.State
	intake *ingest.Intake
	feed   *delivery.Feed
	// registration is nil where no source serves it.
	registration *registration.Service
	// reading is for what is being read of lists and sync events.
	reading *bytebudget.Budget

	publishes       *prometheus.CounterVec
	publishDuration *prometheus.HistogramVec
	panics          prometheus.Counter
}

var _ transport.Server = (*Broker)(nil)

const (
	writesAll     = "ok"
	writesLow     = "low_space"
	writesBlocked = "blocked"
)

// writeStates are the values of the label state of the metric store_write_state.
var writeStates = []string{writesAll, writesLow, writesBlocked}

// writeState returns the value for the error of a store.
func writeState(err error) string {
	switch {
	case err == nil:
		return writesAll
	case errors.Is(err, store.ErrLow):
		return writesLow
	}
	return writesBlocked
}

// New returns a broker over cfg.Store, which the caller closes after Run has returned. It
// starts nothing. The error names the field of cfg that is wrong, or what in the store is.
func New(cfg Config) (*Broker, error) {
	cfg, err := withDefaults(cfg)
	if err != nil {
		return nil, err
	}
	meter := cfg.Meter()
	cfg.Times = settings.NewTimes(&cfg)
	b := &Broker{
		cfg:             cfg,
		sync:            syncstate.New(&cfg),
		reading:         bytebudget.NewBudget(cfg.QueueBytes),
		publishes:       meter.Counters("publishes_total", "Publish calls by kind of event and result.", "kind", "result"),
		publishDuration: meter.Seconds("publish_duration_seconds", "Time from an event's arrival to its answer.", "kind"),
		panics:          meter.Counter("panics_total", "Calls that panicked; each is a bug."),
	}
	meter.Shown("store_revision", "Revision of the last commit.", nil, func() float64 { return float64(cfg.Store.Head().Revision) })
	for _, state := range writeStates {
		meter.Shown("store_write_state", "1 for the present state of the store, 0 for the others: ok, low_space (deletions only) or blocked (no writes).",
			prometheus.Labels{"state": state}, func() float64 {
				if writeState(cfg.Store.Err()) == state {
					return 1
				}
				return 0
			})
	}
	b.intake = ingest.New(&cfg, b.sync.Sources)
	known := agentstatus.New(&cfg)
	b.feed = delivery.New(&cfg, b.sync, b.intake, known)
	if b.Admin, err = admin.New(&cfg, b.sync, b.feed, b.intake, known); err != nil {
		return nil, err
	}
	if cfg.Registration != "" {
		b.registration = registration.New(&cfg, b.feed.EndCluster, b.Denials().Raise)
		b.feed.Admit(b.registration.Accepted)
		b.Admin.Show(b.registration)
	}
	known.Connect(b.feed)
	cfg.Audit.OnRefused(known.Refused)
	b.sync.Connect(b.feed, b.intake)
	b.intake.Connect(b.sync.Deletions, b.feed)
	return b, nil
}

// Run serves until ctx ends, then drains: new calls are refused, streams are ended at the
// configured pace and told why, what was queued is committed. It returns when that is done or
// the drain timeout is over. An error means that the broker cannot go on, for instance because
// its store failed.
func (b *Broker) Run(ctx context.Context) error {
	tasks := slices.Concat([]taskgroup.Task{{Name: "store", Run: b.watchStore}}, b.intake.Tasks(), b.feed.Tasks())
	if b.registration != nil {
		tasks = append(tasks, b.registration.Tasks()...)
	}
	return taskgroup.Group(ctx, tasks...)
}

// watchStore ends the broker when its store cannot go on.
func (b *Broker) watchStore(ctx context.Context) error {
	select {
	case err := <-b.cfg.Store.Fatal():
		return err
	case <-ctx.Done():
		return nil
	}
}

// Ready returns nil while the broker accepts and keeps events. It does not block.
func (b *Broker) Ready() error {
	if b.feed.Closing() != nil {
		return errors.New("draining")
	}
	return b.intake.Failure()
}

// MaxEventBytes is the largest event that Publish accepts; resync requests may be larger.
func (b *Broker) MaxEventBytes() int { return b.cfg.MaxEventBytes }

// Panicked counts a call that panicked in a front, beside those that did here.
func (b *Broker) Panicked() { b.panics.Inc() }

// Subscribe implements [transport.Server].
func (b *Broker) Subscribe(ctx context.Context, p transport.Peer, raw transport.RawSubscription, out transport.Stream) (err error) {
	defer b.recovered(&err)
	if d, err := codec.ParseDataType(raw.DataType); err == nil && b.registration != nil && registration.Serves(d) {
		return b.registration.Subscribe(ctx, p, raw, out)
	}
	return b.feed.Subscribe(ctx, p, raw, out)
}

// Registration is the room in which clusters join; nil where no source serves registration.
func (b *Broker) Registration() *registration.Service { return b.registration }

// recovered turns a panic of one call into its error; it must be deferred directly.
func (b *Broker) recovered(err *error) {
	p := recover()
	if p == nil {
		return
	}
	b.panics.Inc()
	b.cfg.Log.Error("call panicked", "panic", p, "stack", string(debug.Stack()))
	*err = request.Internal(errors.New("panic"))
}
