// Package delivery sends changes of the store to the subscribers:
//
//	routing:   change feed of the store ─► sync state ─► queues of the subscriptions
//	Subscribe: registry ─► header ─► fill or compare ─► queue entry ─► read the record ─► send
//
// A slow subscriber never delays others. A queue has keys and no events, a goroutine serves only one stream, and
// no lock is held while it sends. A stream to which nothing is due has no goroutine.
//
// A [subscription] is the shared state of a subscribed client: other goroutines put changes, lists and the end
// into it. A [stream] serves it, in turns. A turn calls [stream.next] in a loop and performs the returned steps,
// until none is due.
//
// ocmagents.go has the code that only OCM clients need.
package delivery

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/agentstatus"
	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/syncstate"
	"github.com/hawser-io/hawser/internal/bytebudget"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Intake is informed about running subscriptions of Hawser clients. Events of such a client are accepted only
// while its subscription runs.
type Intake interface {
	// Open begins a subscription. The function end ends it.
	Open(id string, client identity.Identity, scope store.Scope, end func(*transport.Error))
	// End: the subscription is about to end. Close: it has ended.
	End(id string)
	Close(id string)
	// Supersede ends the earlier subscriptions of the source that has this one, at all brokers. No event of them is
	// committed after it.
	Supersede(ctx context.Context, subscription string, from identity.Identity) error
	// AckStatuses records that a source has acknowledged the statuses of its works up to a revision.
	AckStatuses(owner store.Scope, revision uint64)
}

// Feed serves subscriptions. Its methods are safe for concurrent use.
type Feed struct {
	cfg    *settings.Config
	sync   *syncstate.State
	intake Intake
	// lists is the memory budget for lists that wait for a comparison, orphanBudget that for reports of orphan
	// AppliedManifestWorks.
	lists, orphanBudget *bytebudget.Budget
	peers               *agentstatus.Peers
	// await waits until all parts of the broker have followed the store up to a revision.
	await func(ctx context.Context, revision uint64) error
	// admits returns the error for agents of a cluster that may not subscribe to works, else nil.
	admits   func(cluster string) error
	registry *registry
	// incarnation is that of the store when the sources subscribed. Only followIncarnation changes it.
	incarnation string
	metrics     *metrics
}

// incarnationEvery is the interval at which the feed looks for another incarnation of the store.
const incarnationEvery = time.Minute

// New returns a feed of the changes that Route gets, which begin at the head of the store. await waits
// until all parts of the broker have followed the store up to a revision. New starts no goroutine.
func New(cfg *settings.Config, c *syncstate.State, i Intake, p *agentstatus.Peers, await func(ctx context.Context, revision uint64) error) *Feed {
	r, lists := newRegistry(cfg.Store.Head().Revision), bytebudget.NewBudget(cfg.QueueBytes)
	return &Feed{
		cfg: cfg, sync: c, intake: i, lists: lists, orphanBudget: bytebudget.NewBudget(cfg.QueueBytes),
		await: await, admits: func(string) error { return nil }, peers: p, registry: r, metrics: newMetrics(cfg.Meter(), r, lists),
		incarnation: cfg.Store.Head().Incarnation,
	}
}

// Admit sets the function that decides whether agents of a cluster may subscribe: they may while it returns
// nil. Call it once, before the first subscription.
func (f *Feed) Admit(admits func(cluster string) error) { f.admits = admits }

// EndCluster ends the subscriptions of a cluster's agents with the error why.
func (f *Feed) EndCluster(cluster string, why *transport.Error) {
	for _, s := range f.registry.agents(cluster) {
		s.stop(why)
	}
}

// Tasks returns the tasks that the caller must run.
func (f *Feed) Tasks() []taskgroup.Task {
	return []taskgroup.Task{{Name: "drain", Run: f.drain}, {Name: "incarnation", Run: f.followIncarnation}, {Name: "peers", Run: f.peers.Run}, {Name: "agent rows", Run: f.peers.Publish}}
}

// Closing returns the error for new calls while the feed drains, otherwise nil.
func (f *Feed) Closing() error {
	if err := f.registry.end.Load(); err != nil {
		return err
	}
	return nil
}

// followIncarnation ends the subscriptions of sources when the store has begun another incarnation, until ctx ends.
//
// Scenario without it:
//
//	t1: PostgreSQL fails over, and the brokers run on. No source counts as synced in the new incarnation.
//	t2: an agent lists a work that its source deleted before t1. The agent keeps it until the source is synced.
//	t3: the source reports what it has after it has subscribed, and its subscription runs on for hours.
//
// Result: the agent keeps the work for hours.
func (f *Feed) followIncarnation(ctx context.Context) error {
	taskgroup.Every(ctx, incarnationEvery, func() {
		if now := f.cfg.Store.Head().Incarnation; now != f.incarnation {
			f.incarnation = now
			for _, s := range f.registry.all(codec.Status) {
				s.stop(request.Unavailable("", "the store has begun another incarnation", "connect again, and report what the source has"))
			}
		}
	})
	return nil
}

// Route puts changes of the store into the queues.
func (f *Feed) Route(changes []store.Change) error {
	for i := range changes {
		f.sync.Changed(&changes[i])
	}
	// The store may pass fewer changes than it has, so only its head shows that none are left.
	f.registry.route(changes, changes[len(changes)-1].Revision >= f.cfg.Store.Head().Revision)
	f.judge(changes)
	return nil
}

// judge updates the state of the clusters in changes.
func (f *Feed) judge(changes []store.Change) {
	scopes := make(map[store.Scope]struct{}, 8)
	for i := range changes {
		c := &changes[i]
		if c.Part != store.BookmarkPart {
			scopes[scopeOf(c.Key)] = struct{}{}
		} else if dt, cluster, ok := store.ParseBinding(c.Key.ResourceID); ok {
			scopes[store.Scope{DataType: dt, Cluster: cluster}] = struct{}{}
		}
	}
	for scope := range scopes {
		f.peers.Refresh(scope)
	}
}

// Begin is called for a spec or a status before it is queued. The caller calls done with the outcome before it
// replies to the publisher.
func (f *Feed) Begin(_ context.Context, op *store.Op, env *codec.Envelope) (done func(store.Outcome) error, err error) {
	key := op.Key
	switch {
	case op.Kind == store.PutSpec && !op.Deleting:
		return func(o store.Outcome) error {
			if o.Result == store.Accepted {
				f.registry.accepted(key, o.Revision)
			}
			return nil
		}, nil
	case op.Kind == store.PutStatus:
		if err := f.checkSequence(op); err != nil {
			return nil, err
		}
		if op.Deleted {
			f.registry.rest(key, env.ObjectName, unanswered)
		}
		return func(o store.Outcome) error {
			for _, s := range f.registry.of(scopeOf(key)) {
				switch o.Result {
				case store.ResendSpec:
					s.answer(keyOf(key), max(o.Revision, 1), 0)
				case store.Stale:
					// The sequence id is too low. A higher one may have been accepted after the last checkpoint, from an earlier
					// process of the agent.
					s.touch()
				}
			}
			if op.Deleted {
				f.registry.rest(key, env.ObjectName, f.cfg.Now().Add(f.cfg.Rest))
			}
			return nil
		}, nil
	}
	return nil, nil
}

// checkSequence rejects a status whose sequence id would make all later ones stale. The next checkpoint sends
// the broker's time and the highest sequence id to the agents of the cluster.
func (f *Feed) checkSequence(op *store.Op) error {
	err := codec.CheckSequence(op.Sequence, op.At)
	if err == nil {
		return nil
	}
	for _, s := range f.registry.of(scopeOf(op.Key)) {
		s.touch()
	}
	return transport.Undecodable(err)
}

// Recheck makes agents check their ahead works again: other sources are synced for their clusters than before.
func (f *Feed) Recheck(c syncstate.Change) {
	if c.Everywhere {
		for _, s := range f.registry.agents("") {
			if s.scope.DataType == c.DataType {
				s.recheck()
			}
		}
		return
	}
	for _, cluster := range c.Clusters {
		for _, s := range f.registry.of(store.Scope{DataType: c.DataType, Cluster: cluster}) {
			s.recheck()
		}
	}
}

// End ends those subscriptions of a cluster's agents that reported another cluster uid than uid.
func (f *Feed) End(scope store.Scope, uid string, why *transport.Error) {
	for _, s := range f.registry.of(scope) {
		if s.hello.ClusterUID != "" && s.hello.ClusterUID != uid {
			s.stop(why)
		}
	}
}

// Agent describes one running subscription of an agent for the operator API.
type Agent struct {
	Scope     store.Scope
	Transport string    // transport of the connection
	Since     time.Time // time of the subscription
	Pending   int       // number of works that are still to be sent
	Acked     uint64    // acknowledged revision; 0: none
	Sync      SyncResult
	// Applied are the orphan AppliedManifestWorks on its cluster.
	Applied codec.OrphanReport
}

// State returns the sync state of the agent. head is the store's summary of its cluster.
func (a *Agent) State(head store.ClusterHead) agentstatus.State {
	return stateOf(a.Sync, a.Acked, a.Pending, head)
}

func stateOf(proof SyncResult, acked uint64, pending int, head store.ClusterHead) agentstatus.State {
	switch {
	case proof == OutOfSync:
		return agentstatus.OutOfSync
	case proof == Unverified:
		return agentstatus.Unverified
	case acked < head.SpecRevision || pending > 0:
		return agentstatus.Syncing
	}
	return agentstatus.InSync
}

// StateOf implements [agentstatus.Agents].
func (f *Feed) StateOf(scope store.Scope, head store.ClusterHead) (worst agentstatus.State) {
	f.registry.each(scope, func(s *subscription) { worst = max(worst, s.state(head)) })
	return worst
}

// ConnectionOf implements [agentstatus.Agents].
func (f *Feed) ConnectionOf(scope store.Scope, head store.ClusterHead) agentstatus.Connection {
	var all []Agent
	f.registry.each(scope, func(s *subscription) { all = append(all, s.snapshot()) })
	c := Summarize(all, head)
	for _, d := range f.sync.Lists.Findings(scope) {
		c.Listed = append(c.Listed, agentstatus.Listed{ID: d.ResourceID, Ahead: d.Cause == syncstate.Ahead, More: d.Omitted})
	}
	slices.SortFunc(c.Listed, func(a, b agentstatus.Listed) int { return cmp.Or(cmp.Compare(a.More, b.More), cmp.Compare(a.ID, b.ID)) })
	return c
}

// Summarize returns what the agents of one cluster have in common. head is the store's summary of the cluster.
func Summarize(agents []Agent, head store.ClusterHead) (c agentstatus.Connection) {
	c.Subscriptions = len(agents)
	for i, a := range agents {
		c.State, c.Pending = max(c.State, a.State(head)), max(c.Pending, a.Pending)
		if i == 0 || a.Since.Before(c.Since) {
			c.Since = a.Since
		}
		if i == 0 || a.Acked < c.Acked {
			c.Acked = a.Acked
		}
		c.Applied.Records, c.Applied.More = append(c.Applied.Records, a.Applied.Records...), c.Applied.More+a.Applied.More
		if a.Transport != "" && !slices.Contains(c.Transports, a.Transport) {
			c.Transports = append(c.Transports, a.Transport)
		}
	}
	return c
}

// EndFormer implements [agentstatus.Agents]: an agent has subscribed again, and named the subscriptions that it had
// before. They may still run here, for example if the network between them and the agent is gone.
func (f *Feed) EndFormer(scope store.Scope, subscriptions []string) {
	for _, s := range f.registry.of(scope) {
		if slices.Contains(subscriptions, s.id) {
			s.stop(request.Unavailable(codec.HeaderSubscriptionID, "the agent has subscribed again", "use the new subscription"))
		}
	}
	f.sync.Lists.Forget(scope)
}

// Agents returns the running subscriptions of a cluster's agents, sorted by cluster, data type and age. The
// cluster "" selects all.
func (f *Feed) Agents(cluster string) []Agent {
	all := f.registry.agents(cluster)
	slices.SortFunc(all, func(a, b *subscription) int {
		return cmp.Or(cmp.Compare(a.scope.Cluster, b.scope.Cluster), cmp.Compare(a.scope.DataType.String(), b.scope.DataType.String()),
			a.since.Compare(b.since), cmp.Compare(a.id, b.id))
	})
	list := make([]Agent, 0, len(all))
	for _, s := range all {
		list = append(list, s.snapshot())
	}
	return list
}

// Sources returns the names of the connected sources.
func (f *Feed) Sources() []string { return f.registry.sources() }

// metrics are described in docs/metrics.md. No label grows with works, clusters or sources.
type metrics struct {
	subscribes, resyncs, resyncRecords, resumes, resumeRecords, checkpoints, acks *prometheus.CounterVec
	resyncDuration, resumeDuration                                                *prometheus.HistogramVec
	statusRequests, heartbeats, damaged, pages, forced                            prometheus.Counter

	// spec and status count deliveries by part.
	spec, status delivery
}

type delivery struct{ events, bytes prometheus.Counter }

func newMetrics(f telemetry.Meter, x *registry, lists *bytebudget.Budget) *metrics {
	m := &metrics{
		subscribes:     f.Counters("subscribes_total", "Subscribe calls by role and result.", "role", "result"),
		resyncs:        f.Counters("resyncs_total", "Comparisons of lists by subresource and cause.", "subresource", "cause"),
		resyncRecords:  f.Counters("resync_records_total", "Records found missing by comparisons.", "subresource"),
		resyncDuration: f.Seconds("resync_duration_seconds", "Time of one comparison, sending not included.", "subresource"),
		statusRequests: f.Counter("status_requests_total", "Requests to agents to report statuses that differ."),
		heartbeats:     f.Counter("heartbeats_total", "Heartbeats sent."),
		damaged:        f.Counter("damaged_records_total", "Deliveries skipped because the record is damaged on disk."),
		resumes:        f.Counters("resumes_total", "Accepted subscriptions of Hawser clients by subresource and how they continue.", "subresource", "resync"),
		resumeRecords:  f.Counters("resume_records_total", "Records that had changed since the cursors of clients that continue.", "subresource"),
		resumeDuration: f.Seconds("resume_duration_seconds", "Time to find out what changed since a cursor, sending not included.", "subresource"),
		checkpoints:    f.Counters("checkpoints_total", "Checkpoints sent by subresource.", "subresource"),
		acks:           f.Counters("acks_total", "Acknowledged checkpoints by subresource and what they prove.", "subresource", "result"),
		pages:          f.Counter("inventory_pages_total", "Pages of inventories sent to sources."),
		forced:         f.Counter("forced_deliveries_total", "Records sent to agents that held a newer version, because their source confirmed the record."),
	}
	deliveries := f.Counters("deliveries_total", "Events sent to subscribers by subresource, heartbeats aside.", "subresource")
	bytes := f.Counters("delivered_bytes_total", "Bytes of events sent to subscribers by subresource.", "subresource")
	of := func(s codec.Subresource) delivery {
		return delivery{deliveries.WithLabelValues(string(s)), bytes.WithLabelValues(string(s))}
	}
	m.spec, m.status = of(codec.Spec), of(codec.Status)
	f.GaugeFunc("delivery_queue_records", "Records in the delivery queues of all subscribers.", nil, func() float64 {
		return float64(x.mailed())
	})
	for role, part := range map[string]codec.Subresource{"agent": codec.Spec, "source": codec.Status} {
		for _, over := range []string{transport.GRPC, transport.MQTT} {
			f.GaugeFunc("subscriptions", "Running subscriptions by role and transport.", prometheus.Labels{"role": role, "transport": over}, func() float64 {
				return float64(x.count(part, over))
			})
		}
	}
	f.GaugeFunc("pending_list_bytes", "Bytes of resync requests that wait for their comparison.", nil, func() float64 { return float64(lists.Used()) })
	f.GaugeFunc("routed_revision", "Revision up to which changes are in the delivery queues.", nil, func() float64 { return float64(x.position()) })
	return m
}

func (m *metrics) subscribed(raw transport.RawSubscription, err error) {
	role, result := "agent", codec.OutcomeAccepted
	if raw.Source != "" {
		role = "source"
	}
	if err != nil {
		result = transport.CodeOf(err).String()
	}
	m.subscribes.WithLabelValues(role, result).Inc()
}

func (m *metrics) accepted(s codec.Subresource, a transport.Accepted) {
	if a.Protocol > 0 {
		m.resumes.WithLabelValues(string(s), a.Resync).Inc()
	}
}

func (m *metrics) resumed(s codec.Subresource, records int, took time.Duration) {
	m.resumeRecords.WithLabelValues(string(s)).Add(float64(records))
	m.resumeDuration.WithLabelValues(string(s)).Observe(took.Seconds())
}

// acked counts an ack by its sync result.
func (m *metrics) acked(s codec.Subresource, p SyncResult) {
	m.acks.WithLabelValues(string(s), map[SyncResult]string{Unverified: "Noted", InSync: "InSync", OutOfSync: "OutOfSync"}[p]).Inc()
}

func (m *metrics) delivered(s codec.Subresource, event [][]byte) {
	size := 0
	for _, part := range event {
		size += len(part)
	}
	d := &m.spec
	if s == codec.Status {
		d = &m.status
	}
	d.events.Inc()
	d.bytes.Add(float64(size))
}

func (m *metrics) countSync(s codec.Subresource, muted bool, sends int, took time.Duration) {
	cause := "request"
	if muted {
		cause = "timeout"
	}
	m.resyncs.WithLabelValues(string(s), cause).Inc()
	m.resyncRecords.WithLabelValues(string(s)).Add(float64(sends))
	m.resyncDuration.WithLabelValues(string(s)).Observe(took.Seconds())
}
