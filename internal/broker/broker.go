// Package broker stores the accepted state of every work and delivers it to the subscribers. A [Broker] is the
// [transport.Server] behind every protocol. It passes each call to one of these components:
//
//	publish ─► parse, authorize, one switch by kind of event
//	             ├─ spec, status, release ──► ingest ─► store
//	             ├─ sync report ────────────► syncstate
//	             ├─ registration ───────────► registration ─► a source
//	             └─ resync, ack, inventory, orphan report ─► delivery
//	subscribe ─► delivery ◄─ changes of the store
//	operators ─► admin
//	connects, disconnects and rejections ─► agentstatus
//
// Package ingest commits events. Package delivery sends changes to the subscriptions. Package syncstate holds
// the sync reports of sources and agents, and the discrepancies. Package admin serves operators and viewers.
// All use package request, which has the parsed event and the errors for the publisher.
//
// Versions, owners and names are checked inside the commit, by package store. Package deliveryqueue decides
// order and fairness of deliveries, package authz decides access.
package broker

import (
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/admin"
	"github.com/hawser-io/hawser/internal/broker/agentstatus"
	"github.com/hawser-io/hawser/internal/broker/changefeed"
	"github.com/hawser-io/hawser/internal/broker/delivery"
	"github.com/hawser-io/hawser/internal/broker/denylist"
	"github.com/hawser-io/hawser/internal/broker/ingest"
	"github.com/hawser-io/hawser/internal/broker/registration"
	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/syncstate"
	"github.com/hawser-io/hawser/internal/bytebudget"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Broker is one broker over one store. Create it with [New], run it once with [Broker.Run]. Publish and
// Subscribe may be called before Run; they return an error while the broker drains. [admin.Admin] serves
// operators and viewers.
type Broker struct {
	*admin.Admin

	cfg    Config
	sync   *syncstate.State
	intake *ingest.Intake
	feed   *delivery.Feed
	// changes passes the changes of the store to the denylist, to registration, to the intake, and then to the feed.
	changes *changefeed.Follower
	// registration is nil if no source is configured for it.
	registration *registration.Service
	peers        *agentstatus.Peers
	// reading is the memory budget of lists and sync events while they are decoded.
	reading *bytebudget.Budget
	// moving: MoveClients was called, and there was another replica.
	moving atomic.Bool

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

// showStore registers the metrics of the store of a broker.
func showStore(meter telemetry.Meter, s store.Store) {
	meter.GaugeFunc("store_revision", "Revision of the last commit.", nil, func() float64 { return float64(s.Head().Revision) })
	for _, state := range writeStates {
		meter.Flag("store_write_state", "1 for the present state of the store, 0 for the others: ok, low_space (deletions only) or blocked (no writes).",
			prometheus.Labels{"state": state}, func() bool { return writeState(s.Err()) == state })
	}
}

// New returns a broker over cfg.Store, which the caller closes after Run has returned. It starts no goroutine.
// An error names the invalid field of cfg, or the invalid data in the store.
func New(cfg Config) (*Broker, error) {
	cfg, err := withDefaults(cfg)
	if err != nil {
		return nil, err
	}
	meter := cfg.Meter()
	cfg.Times = settings.NewTimes(&cfg)
	cfg.Beats = settings.NewBeats(&cfg)
	cfg.Replicas = settings.NewReplicas(&cfg)
	b := &Broker{
		cfg:             cfg,
		changes:         changefeed.New(cfg.Store),
		sync:            syncstate.New(&cfg),
		reading:         bytebudget.NewBudget(cfg.QueueBytes),
		publishes:       meter.Counters("publishes_total", "Publish calls by kind of event and result.", "kind", "result"),
		publishDuration: meter.Seconds("publish_duration_seconds", "Time from an event's arrival to its answer.", "kind"),
		panics:          meter.Counter("panics_total", "Calls that panicked; each is a bug."),
	}
	showStore(meter, cfg.Store)
	denied, err := denylist.New(cfg.Store, b.changes)
	if err != nil {
		return nil, err
	}
	b.intake = ingest.New(&cfg, b.sync.Sources)
	b.peers = agentstatus.New(&cfg)
	b.feed = delivery.New(&cfg, b.sync, b.intake, b.peers, b.changes.Await)
	b.Admin = admin.New(&cfg, admin.Parts{Sync: b.sync, Agents: b.feed, Writer: b.intake, Peers: b.peers, Denials: denied})
	if cfg.Registration != "" {
		b.registration = registration.New(&cfg, b.feed.EndCluster, denied.Raise)
		b.changes.Add(b.registration.Follow)
		b.feed.Admit(b.registration.Accepted)
		b.Admin.Show(b.registration)
	}
	b.changes.Add(b.intake.Follow)
	b.changes.Add(b.peers.Follow)
	b.changes.Add(b.feed.Route)
	b.peers.Connect(b.feed)
	cfg.Audit.OnRefused(b.peers.Refused)
	b.sync.Connect(b.feed, b.intake, b.changes.Await)
	b.intake.Connect(b.sync.Deletions, b.feed)
	return b, nil
}

// Run serves until ctx ends, and then drains. It rejects new calls, ends streams with the reason, and commits
// what is queued. It returns when that is done or the drain timeout is over. An error
// means that the broker cannot continue, for example because its store failed.
func (b *Broker) Run(ctx context.Context) error {
	tasks := slices.Concat([]taskgroup.Task{
		{Name: "store", Run: b.watchStore}, {Name: "replicas", Run: b.cfg.Replicas.Run}, {Name: "changes", Run: b.changes.Run},
		{Name: "balance", Run: b.balance},
	}, b.intake.Tasks(), b.feed.Tasks())
	if b.registration != nil {
		tasks = append(tasks, b.registration.Tasks()...)
	}
	return taskgroup.Group(ctx, tasks...)
}

// watchStore returns an error when the store cannot continue; that ends the broker.
func (b *Broker) watchStore(ctx context.Context) error {
	select {
	case err := <-b.cfg.Store.Fatal():
		return err
	case <-ctx.Done():
		return nil
	}
}

// Ready returns nil while the broker accepts and stores events. It does not block.
func (b *Broker) Ready() error {
	if b.moving.Load() || b.feed.Closing() != nil {
		return errors.New("draining")
	}
	return b.intake.Failure()
}

// MaxEventBytes returns the maximum size of an event. Resync requests may be larger.
func (b *Broker) MaxEventBytes() int { return b.cfg.MaxEventBytes }

// Panicked counts a call that panicked in a protocol server.
func (b *Broker) Panicked() { b.panics.Inc() }

// Subscribe runs a subscription until ctx ends, the broker ends it or out fails. It returns the reason.
func (b *Broker) Subscribe(ctx context.Context, p transport.Peer, raw transport.RawSubscription, out transport.Stream) error {
	ended := make(chan error, 1)
	b.Start(ctx, p, raw, out, func(err error) { ended <- err })
	return <-ended
}

// Start is Subscribe without a goroutine between two events. It returns when nothing is due, and calls ended
// with the reason after the end of the subscription. ctx must end at some time.
func (b *Broker) Start(ctx context.Context, p transport.Peer, raw transport.RawSubscription, out transport.Stream, ended func(error)) {
	s, err := b.openStream(ctx, p, raw, out)
	if err != nil {
		ended(err)
		return
	}
	request.Serve(ctx, guarded{s, b.recovered}, b.cfg.Now, ended)
}

func (b *Broker) openStream(ctx context.Context, p transport.Peer, raw transport.RawSubscription, out transport.Stream) (s request.Stream, err error) {
	defer b.recovered(&err)
	if d, err := codec.ParseDataType(raw.DataType); err == nil && b.registration != nil && registration.Serves(d) {
		return b.registration.Open(ctx, p, raw, out)
	}
	return b.feed.Open(ctx, p, raw, out)
}

// guarded is a stream that ends with an error if a turn panics.
type guarded struct {
	request.Stream
	recovered func(*error)
}

// Turn implements [request.Stream].
func (g guarded) Turn(ctx context.Context) (next time.Time, err error) {
	defer g.recovered(&err)
	return g.Stream.Turn(ctx)
}

// Registration returns the registration service; nil if no source is configured for it.
func (b *Broker) Registration() *registration.Service { return b.registration }

// recovered converts a panic of a call into its error. It must be deferred directly.
func (b *Broker) recovered(err *error) {
	p := recover()
	if p == nil {
		return
	}
	b.panics.Inc()
	b.cfg.Log.Error("call panicked", "panic", p, "stack", string(debug.Stack()))
	*err = request.Internal(errors.New("panic"))
}
