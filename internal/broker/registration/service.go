// Package registration is the part of the broker through which clusters join a hub:
//
//	agent ── request ──► requestQueue ── request ──► the source that serves registration ──► the hub
//	agent ◄─ objects ── hubCache ◄─ objects, answer, keys ──┘
//
// The hub makes all decisions. A request of an agent (for a ManagedCluster, a certificate, a token, …) waits
// in the [requestQueue] and goes to the source. Its publish returns with the answer of the hub.
//
// The [hubCache] keeps the objects of the hub in memory, as the source reports them. A [stream] sends each
// agent the objects that it may see, without a request. Agents of Open Cluster Management do not compare
// versions and list at most once. The broker itself answers Lease renewals, and sends them to the source in
// batches.
//
// The store keeps only the set of accepted clusters. Only these get works, also when the broker starts without
// the source.
//
// Why this is a cache and nothing else is stored: docs/adr/013-registration-cache.md.
package registration

import (
	"cmp"
	"context"
	"hash/fnv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/authz"
	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/bytebudget"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/subscribers"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Service serves registration. Its methods may be called concurrently.
type Service struct {
	cfg      *settings.Config
	endWorks func(cluster string, why *transport.Error)
	raise    func(ctx context.Context, earliest map[string]time.Time) error
	cache    *hubCache
	requests *requestQueue
	renewals pendingLeaseRenewals
	agents   *agents
	keys     keys
	lists    *bytebudget.Budget
	metrics  *metrics

	// serving is held while one subscription of the source replaces another. source is the current one, nil while
	// there is none.
	serving sync.Mutex
	source  atomic.Pointer[sourceStream]
	// unsaved rings when there are unsaved changes.
	unsaved taskgroup.Bell
}

// New returns the service for the source that cfg.Registration names. It starts nothing. endWorks ends the work
// subscriptions of a cluster whose acceptance is withdrawn. raise sets the earliest issue time of valid
// certificates, by cluster.
func New(cfg *settings.Config, endWorks func(cluster string, why *transport.Error), raise func(context.Context, map[string]time.Time) error) *Service {
	r := &Service{
		cfg: cfg, endWorks: endWorks, raise: raise, cache: newHubCache(cfg.Store.Bookmarks(bookmarkPrefix)),
		agents: &agents{Set: subscribers.New[streamScope, *subscription](), perShare: subscribers.Counts[share]{}},
		lists:  bytebudget.NewBudget(cfg.QueueBytes), unsaved: taskgroup.NewBell(),
		renewals: pendingLeaseRenewals{last: map[string]renewalTime{}, waiting: map[string]struct{}{}},
	}
	r.requests, r.metrics = newRequestQueue(cfg.QueueBytes, r.wakeSource), newMetrics(cfg.Meter(), r)
	cfg.Replicas.OnChange(r.wakeSource)
	return r
}

// Tasks returns the tasks that the caller runs.
func (r *Service) Tasks() []taskgroup.Task {
	return []taskgroup.Task{{Name: "acceptance", Run: r.save}, {Name: "registration", Run: r.drain}}
}

// Serves reports whether this package handles events of a data type.
func Serves(d codec.DataType) bool {
	_, ok := codec.Registration(d)
	return ok || d == codec.Registrations
}

// Open begins a subscription of an agent, or of the source. The caller takes its turns until ctx ends, the
// service drains or out fails.
func (r *Service) Open(ctx context.Context, p transport.Peer, raw transport.RawSubscription, out transport.Stream) (request.Stream, error) {
	d, err := codec.ParseDataType(raw.DataType)
	if err = cmp.Or(err, codec.CheckName("source", raw.Source), codec.CheckName("cluster_name", raw.Cluster)); err != nil {
		return nil, transport.Undecodable(err)
	}
	if d == codec.Registrations {
		return r.openSource(ctx, p, raw, out)
	}
	s, err := r.open(p, raw, d)
	if err == nil {
		err = r.agents.add(s, r.cfg.StreamsPerClient)
	}
	r.metrics.subscribed(d, err)
	if err != nil {
		return nil, err
	}
	t := &stream{sender: r.sender(p, raw.Hello, out), sub: s, sent: map[string]sent{}}
	if err := out.Accept(r.cfg.Accepted(s.id, raw.Hello.Protocol)); err != nil {
		t.Leave()
		return nil, request.StreamBroken(ctx, err)
	}
	return t, nil
}

// open checks the client and the subscription, and returns it with its visibility.
func (r *Service) open(p transport.Peer, raw transport.RawSubscription, d codec.DataType) (*subscription, error) {
	client, err := authz.Subscriber(p, raw, codec.EventType{DataType: d, Subresource: codec.Spec}, r.cfg.Insecure)
	if err != nil {
		return nil, Refusal(err)
	}
	row, _ := codec.Registration(d)
	s := &subscription{
		running: newRunning(r.cfg.NewID(), client), conn: p.Conn,
		visibility: visibility{streamScope: streamScope{d, raw.Cluster}, early: row.Joining},
	}
	switch {
	case client.Role == identity.Bootstrap:
		s.user = cmp.Or(p.User, client.Name)
	case p.User != "": // without a user the hub cannot separate its requests from those of other clients
		s.user, s.agents = p.User, identity.UserPrefix(raw.Cluster)
	}
	return s, nil
}

// Accepted returns nil if the hub has accepted a cluster, else the reason why it gets no works. Before the
// first report no cluster is accepted.
func (r *Service) Accepted(cluster string) error {
	if r.cache.isAccepted(cluster) {
		return nil
	}
	return r.notAccepted(cluster)
}

// notAccepted is the error of a cluster that the hub has not accepted, or does not have. Its delay is 10 to 59
// s, by the name of the cluster, so that clusters do not retry at the same time.
func (r *Service) notAccepted(cluster string) *transport.Error {
	message, advice := "the hub has not accepted cluster "+cluster, "hawser accept "+cluster
	if r.Facts(cluster).Absent {
		message, advice = "the hub has no ManagedCluster "+cluster, "hawser token create prints how it joins"
	}
	const least, spread = 10 * time.Second, 50
	h := fnv.New32a()
	_, _ = h.Write([]byte(cluster)) // never fails
	return &transport.Error{
		Code: transport.CodeDenied, Next: transport.NextBackOff, Delay: least + time.Duration(h.Sum32()%spread)*time.Second,
		Attribute: codec.ExtClusterName,
		Message:   message, Hint: advice,
	}
}

// Clusters returns the names of the ManagedClusters and accepted clusters of the hub, sorted.
func (r *Service) Clusters() []string { return r.cache.clusters() }

// Facts returns the states of a cluster on the hub.
func (r *Service) Facts(cluster string) Facts { return r.cache.factsOf(cluster) }

// Move rejects new subscriptions with an error. It returns one function for each running one, which ends it with the
// same error.
func (r *Service) Move(why *transport.Error) (ends []func()) {
	for _, s := range r.agents.move(why) {
		ends = append(ends, func() { s.stop(why) })
	}
	if s := r.source.Load(); s != nil {
		ends = append(ends, func() { s.stop(why) })
	}
	return ends
}

// drain waits for ctx to end. Then it rejects new calls, fails the waiting ones, and ends the streams.
func (r *Service) drain(ctx context.Context) error {
	<-ctx.Done()
	r.requests.close(unavailable("the broker is shutting down"))
	for _, end := range r.Move(request.ErrDraining()) {
		end()
	}
	r.agents.close()
	if !r.cfg.Drained(r.agents.Empty()) {
		r.cfg.Log.Warn("drain timeout is over, some streams of registration did not end", "streams", r.agents.size())
	}
	return nil
}

// metrics are documented in docs/metrics.md.
type metrics struct {
	requests, subscribes *prometheus.CounterVec
	answers              prometheus.Counter
}

func newMetrics(m telemetry.Meter, r *Service) *metrics {
	m.Flag("registration_source_connected", "1 while the source that serves registration is connected, else 0.", nil, func() bool { return r.source.Load() != nil })
	m.GaugeFunc("registration_pending", "Requests of agents that are queued, or wait for the answer of the hub.", nil, func() float64 { return float64(r.requests.size()) })
	m.GaugeFunc("registration_renewals", "Clusters with a Lease renewal that was not sent to the source yet.", nil, func() float64 { return float64(r.renewals.size()) })
	m.GaugeFunc("registration_objects", "Objects of the hub in memory.", nil, func() float64 {
		n, _ := r.cache.size()
		return float64(n)
	})
	m.GaugeFunc("accepted_clusters", "Clusters that the hub has accepted.", nil, func() float64 {
		_, n := r.cache.size()
		return float64(n)
	})
	m.GaugeFunc("registration_subscriptions", "Running subscriptions of agents to objects of the hub.", nil, func() float64 { return float64(r.agents.size()) })
	return &metrics{
		requests:   m.Counters("registration_requests_total", "Requests to the hub by resource and result.", "resource", "result"),
		subscribes: m.Counters("registration_subscribes_total", "Subscribe calls of agents by resource and result.", "resource", "result"),
		answers:    m.Counter("registration_deliveries_total", "Objects and deletions sent to agents."),
	}
}

func (m *metrics) requested(resource string, err error) {
	m.requests.WithLabelValues(resource, outcomeOf(err)).Inc()
}

func (m *metrics) subscribed(d codec.DataType, err error) {
	if _, ok := codec.Registration(d); ok {
		m.subscribes.WithLabelValues(d.Resource, outcomeOf(err)).Inc()
	}
}

// outcomeOf returns the result of a call as a label value.
func outcomeOf(err error) string {
	if err == nil {
		return "done"
	}
	return transport.CodeOf(err).String()
}
