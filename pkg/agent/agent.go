package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"

	"github.com/hawser-io/hawser/internal/history"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/feedback"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/workpolicy"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Config configures an Agent. Zero values mean the defaults. Cluster, HubIdentity, Dialer, Client and Metadata
// are required.
type Config struct {
	// Cluster is the name of the cluster on the hub.
	Cluster string
	// HubIdentity names the hub, independent of its address. Its hash is part of the names of AppliedManifestWorks.
	// A different identity means a different hub.
	HubIdentity string
	// AgentID is recorded in AppliedManifestWorks; the agent manages those that have its own id. Default: the hash
	// of HubIdentity.
	AgentID string
	// ClientID is the source of the events that the agent sends. Default:
	// "<Cluster>-work-agent".
	ClientID string
	// Version is the release of the agent. The broker shows it to operators. It may be empty.
	Version string
	// Workers is the number of works that are reconciled concurrently. Default 20.
	Workers int
	// InFlight is the number of objects of one work that are read or written concurrently. Default
	// kubeclient.DefaultInFlight.
	InFlight int
	// StatusSyncInterval is the interval at which objects are read that cannot be watched. Default 10 s.
	StatusSyncInterval time.Duration
	// Feedback reads the status values that works request.
	Feedback feedback.Reader
	// EvictionGracePeriod is the time from the proof that no source wants the work of an AppliedManifestWork until
	// it is removed. Default 1 h; 100 years or more disable eviction.
	EvictionGracePeriod time.Duration

	// KeepPermits reuses the permissions of an executor until roles change. If false, they are also checked before
	// each write.
	KeepPermits bool

	// Guard decides which objects no work may have. Default: a guard that knows agents by their names. New may set
	// its Objects.
	Guard *workpolicy.Guard

	// OwnWrites are the writes of the process on the cluster besides AppliedManifestWorks. The agent dry-runs them
	// after a work has written an object that could reject them.
	OwnWrites []kubeclient.Write

	// Journal stores the desired state across restarts. The agent does not close it. nil: a restarted agent has no
	// desired state until the broker sends it.
	Journal Journal

	// Dialer connects to the broker.
	Dialer transport.Dialer
	// Changed is passed to the session: it signals that a cause of failure may be fixed; see [session.Config].
	Changed <-chan struct{}
	// Refused is the wait after a refused connection; see [session.Backoff]. An agent that registers itself gets
	// its rights some time after its certificate.
	Refused time.Duration
	// Admit decides whether HubIdentity may be used through the broker that accepted a subscription. The agent
	// applies and deletes nothing for a broker before that. Admit returns a *hubidentity.RefusedError if it may not
	// be used, and another error if this is unknown. nil: every broker is admitted.
	Admit func(ctx context.Context, a transport.Accepted) error
	// Lease is the Lease that makes this agent the active one; nil if there is no Lease.
	Lease OwnWrite
	// Client and Metadata access the cluster.
	Client   kubeclient.Client
	Metadata func(drift.Scope) drift.Source

	// Log and Registry may be nil: then nothing is logged, or no metrics are registered.
	Log      *slog.Logger
	Registry prometheus.Registerer
}

// Defaults of Config.
const (
	DefaultWorkers            = kubeclient.DefaultInFlight // one request each
	DefaultStatusSyncInterval = 10 * time.Second
	DefaultEvictionGrace      = time.Hour
)

// Failed reconciliations and rejected statuses are retried after waits that begin at firstRetry and double.
const (
	firstRetry       = 5 * time.Millisecond
	lastRetry        = 5 * time.Minute
	firstReportRetry = 100 * time.Millisecond
	lastReportRetry  = 30 * time.Second
	// publishesInFlight bounds the statuses in flight.
	publishesInFlight = 32
	// quietRetries is the number of consecutive failures that are not logged. Many first failures only wait for an
	// object that does not exist yet.
	quietRetries = 6
)

// Agent applies the works of one cluster; see the package comment. Its methods may be called concurrently.
type Agent struct {
	config  Config
	core    *Core
	watcher *drift.Watcher
	roles   *roleWatch
	// policies watches admission policies.
	policies *roleWatch
	history  *history.History
	session  *session.Session
	dialer   *identityGuardDialer
	metrics  *Metrics
	pool     *workerPool

	clusterUID atomic.Pointer[string]
	started    chan struct{} // closed after the journal is read
	// works and reports are queues of keys and ids. saves is a queue with one item, saveItem. They exist while Run
	// runs.
	works, reports, saves atomic.Pointer[queue]
}

type queue struct {
	workqueue.TypedRateLimitingInterface[string]
}

// New checks the configuration and returns an Agent that is not running. The error names the wrong field, or
// the metric that is already registered.
func New(c Config) (*Agent, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	a := &Agent{config: c, started: make(chan struct{})}
	hubHash := appliedwork.HubHash(c.HubIdentity)
	c.AgentID = cmp.Or(c.AgentID, hubHash)
	var sessions *session.Metrics
	if c.Registry != nil {
		var err error
		if a.metrics, err = NewMetrics(c.Registry); err != nil {
			return nil, err
		}
		if sessions, err = session.NewMetrics(c.Registry); err != nil {
			return nil, err
		}
	}
	a.history = history.New(history.Config{OwnWrites: a.readBack, Ended: a.historyEnded, Log: c.Log})
	a.watcher = drift.New(drift.Config{
		Source:  c.Metadata,
		History: a.history,
		Changed: a.drifted,
		Permanent: map[schema.GroupVersionResource]drift.Permanent{appliedwork.Resource: {
			Seen: func(m *metav1.PartialObjectMetadata) (string, bool) { return m.Name, a.core.Discovered(m) },
			Gone: func(name string) { a.core.Vanished(name) },
		}},
		Log: c.Log,
	})
	watch := drift.Config{Source: c.Metadata, History: a.history, Log: c.Log}
	a.roles = newRoleWatch(watch, roleResources, func() { a.changed(a.core.RolesChanged()) })
	a.policies = newRoleWatch(watch, policies, func() { a.changed(a.core.PoliciesChanged()) })
	a.core = NewCore(CoreConfig{
		Cluster: c.Cluster, ClientID: c.ClientID, Version: c.Version, HubHash: hubHash, AgentID: c.AgentID,
		StatusSyncInterval: c.StatusSyncInterval, EvictionGracePeriod: c.EvictionGracePeriod, Feedback: c.Feedback,
		Client: c.Client, Tracker: a.watcher, Roles: a.roles, Policies: a.policies, KeepPermits: c.KeepPermits, Guard: c.Guard, OwnWrites: c.OwnWrites, InFlight: c.InFlight,
		Wait: jittered, Now: time.Now, Random: rand.Float64, NewID: uuid.NewString,
		Wake: a.wake, Later: a.later, Send: a.send, Sync: a.sync, Save: a.save, Journal: c.Journal, Log: c.Log, Metrics: a.metrics,
	})
	a.pool = newWorkerPool(c.Workers, a.reconcile)
	a.dialer = &identityGuardDialer{Dialer: c.Dialer, admit: c.Admit, identity: c.HubIdentity, log: c.Log}
	a.session = session.New(session.Config{
		Dialer: a.dialer, Changed: c.Changed, Backoff: session.Backoff{Refused: c.Refused}, Handler: sessionHandler{a}, Log: c.Log, Metrics: sessions,
		Filter: transport.Filter{Cluster: c.Cluster, DataType: codec.ManifestBundles},
	})
	return a, a.metrics.observe(a)
}

// complete fills in defaults. The error names the missing field.
func (c *Config) complete() error {
	switch {
	case c.Cluster == "":
		return errors.New("agent: no cluster name")
	case c.HubIdentity == "":
		return errors.New("agent: no hub identity")
	case c.Dialer == nil || c.Client == nil || c.Metadata == nil:
		return errors.New("agent: dialer, client and metadata are required")
	case c.Workers < 0 || c.InFlight < 0 || c.StatusSyncInterval < 0 || c.EvictionGracePeriod < 0:
		return fmt.Errorf("agent: %d workers, %d objects in flight, a status sync interval of %v and an eviction grace period of %v must be positive, or 0 for the default",
			c.Workers, c.InFlight, c.StatusSyncInterval, c.EvictionGracePeriod)
	}
	c.ClientID = cmp.Or(c.ClientID, c.Cluster+"-work-agent")
	c.Workers = cmp.Or(c.Workers, DefaultWorkers)
	c.InFlight = cmp.Or(c.InFlight, kubeclient.DefaultInFlight)
	c.StatusSyncInterval = cmp.Or(c.StatusSyncInterval, DefaultStatusSyncInterval)
	c.EvictionGracePeriod = cmp.Or(c.EvictionGracePeriod, DefaultEvictionGrace)
	c.Log = cmp.Or(c.Log, slog.Default())
	c.Guard = c.guard()
	return nil
}

func (c *Config) guard() *workpolicy.Guard {
	g := c.Guard
	if g == nil {
		g = &workpolicy.Guard{Hub: c.HubIdentity}
	}
	if g.Objects == nil {
		g.Objects = c.Client
	}
	return g
}

// Run works until ctx ends, and then returns nil. It must be called once. The objects on the cluster stay.
func (a *Agent) Run(ctx context.Context) error {
	works, reports, saves := newQueue(firstRetry, lastRetry), newQueue(firstReportRetry, lastReportRetry), newQueue(firstRetry, lastRetry)
	a.works.Store(works)
	a.reports.Store(reports)
	a.saves.Store(saves)
	err := taskgroup.Group(ctx,
		taskgroup.Task{Name: "watches", Run: a.watcher.Run},
		taskgroup.Task{Name: "roles", Run: a.roles.Run},
		taskgroup.Task{Name: "policies", Run: a.policies.Run},
		taskgroup.Task{Name: "workers", Run: func(ctx context.Context) error {
			// The desired state is unknown until the journal is read.
			select {
			case <-a.started:
			case <-ctx.Done():
			}
			return a.pool.serve(ctx, works, a.config.Workers)
		}},
		taskgroup.Task{Name: "watchdog", Run: a.reportSlow},
		taskgroup.Task{Name: "reports", Run: func(ctx context.Context) error { return reports.serve(ctx, publishesInFlight, a.publish) }},
		taskgroup.Task{Name: "journal", Run: func(ctx context.Context) error { return saves.serve(ctx, 1, a.saveNow) }},
		taskgroup.Task{Name: "session", Run: a.connect},
		taskgroup.Task{Name: "keepalive", Run: a.keepAlive},
	)
	a.core.Stop(context.WithoutCancel(ctx))
	return err
}

// Follow sets the cluster owner's rules for objects that works of this hub may have. They apply at once.
func (a *Agent) Follow(r workpolicy.Rules) {
	a.config.Guard.Follow(r)
	a.core.RulesChanged()
}

// Limit restricts the agent to corrections and deletions of admission configurations of works. cause is the
// reason; nil ends the restriction. Without its Lease, this agent may not be the only active one.
func (a *Agent) Limit(cause error) {
	if cause != nil {
		a.config.Log.Warn("admission keeps this agent from its leader lease: until it has that, it only corrects and deletes admission configurations", "error", cause)
	}
	a.core.Limit(cause)
}

// reportSlow reports each slow work in its status.
func (a *Agent) reportSlow(ctx context.Context) error {
	taskgroup.Every(ctx, lookForLate, func() {
		for _, w := range a.pool.late(true) {
			if w.news {
				a.config.Log.WarnContext(ctx, "the reconciliation of a work is slow", "applied_manifest_work", w.key, "since", w.since, "waits_for", w.waits)
				a.core.TakesLong(w.key, w.since, w.waits)
				if !a.pool.goesOn(w) {
					a.wake(w.key, false) // the run ended in the meantime, so its status must not show the work as slow
				}
			}
		}
	})
	return nil
}

// SlowWorks names the slow works and the request that each waits for; "" if there are none. Slow works do not
// block other works.
func (a *Agent) SlowWorks() string {
	var names []string
	for _, w := range a.pool.late(false) {
		names = append(names, w.String())
	}
	return strings.Join(names, "; ")
}

// ClusterReady returns nil once the agent can read the cluster.
func (a *Agent) ClusterReady() error {
	if a.clusterUID.Load() == nil {
		return errors.New("the cluster has not answered yet")
	}
	return a.watcher.Ready()
}

// BrokerReady returns nil while the agent is subscribed, else the reason.
func (a *Agent) BrokerReady() error { return a.session.Err() }

// IdentityReady returns why the agent may not act under its hub identity. nil: it may, or no refusal is known.
func (a *Agent) IdentityReady() error { return a.dialer.err() }

// LastWill returns the last will of the agent. A stateless broker publishes it when the agent disconnects; see
// mqtt.Options. ok is false if the event cannot be encoded.
func (a *Agent) LastWill() (e codec.Event, ok bool) {
	e, err := a.core.Goodbye()
	if err != nil {
		a.config.Log.Error("bug: the agent has no last will", "error", err)
	}
	return e, err == nil
}

// connect reads the identity of the cluster, then runs the session.
func (a *Agent) connect(ctx context.Context) error {
	namespace := kubeclient.Ref{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, Name: metav1.NamespaceSystem}
	for wait := time.Second; ; wait = min(2*wait, lastReportRetry) {
		o, err := a.config.Client.Get(ctx, namespace)
		if err == nil {
			uid := string(o.GetUID())
			if err := a.core.Start(uid); err != nil {
				return err
			}
			close(a.started)
			a.clusterUID.Store(&uid)
			return a.session.Run(ctx)
		}
		if ctx.Err() == nil {
			a.config.Log.WarnContext(ctx, "the cluster cannot be identified: waiting for the uid of namespace kube-system", "error", err, "retry_in", wait)
		}
		if err := jittered(ctx, wait); err != nil {
			return err
		}
	}
}

func newQueue(first, last time.Duration) *queue {
	return &queue{workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](first, last))}
}

// serve passes items to n workers until ctx ends.
func (q *queue) serve(ctx context.Context, n int, work func(context.Context, *queue, string)) error {
	stop := context.AfterFunc(ctx, q.ShutDown)
	defer stop()
	var workers sync.WaitGroup
	for range n {
		workers.Go(func() {
			for {
				item, ended := q.Get()
				if ended {
					return
				}
				if ctx.Err() == nil {
					work(ctx, q, item)
				}
				q.Done(item)
			}
		})
	}
	workers.Wait()
	return ctx.Err()
}

func (a *Agent) wake(key string, fresh bool) {
	if q := a.works.Load(); q != nil {
		if fresh {
			q.Forget(key)
		}
		q.Add(key)
	}
}

func (a *Agent) later(key string, after time.Duration) {
	if q := a.works.Load(); q != nil {
		q.AddAfter(key, after)
	}
}

func (a *Agent) drifted(key string) {
	if q := a.works.Load(); q != nil {
		q.AddAfter(key, a.core.Drifted(key))
	}
}

// changed queues keys for reconciliation after the given time, because roles or policies changed.
func (a *Agent) changed(keys []string, after time.Duration) {
	if q := a.works.Load(); q != nil {
		for _, key := range keys {
			q.AddAfter(key, after)
		}
	}
}

func (a *Agent) send(id string) {
	if q := a.reports.Load(); q != nil {
		q.Forget(id)
		q.Add(id)
	}
}

// syncItem is the item of the reports queue for events about the subscription. No work has this id.
const syncItem = ""

// sync queues syncItem after the given time. If it is queued already, the earlier time stays.
func (a *Agent) sync(after time.Duration) {
	if q := a.reports.Load(); q != nil && after > 0 {
		q.AddAfter(syncItem, after)
		return
	}
	a.send(syncItem)
}

func (a *Agent) save(after time.Duration) {
	if q := a.saves.Load(); q != nil {
		q.AddAfter(saveItem, after)
	}
}

// saveItem is the only item of the saves queue.
const saveItem = "journal"

func (a *Agent) saveNow(ctx context.Context, q *queue, item string) {
	if next := a.core.Save(ctx); next > 0 {
		q.AddAfter(item, next)
	}
}

// reconcile runs one reconciliation.
func (a *Agent) reconcile(ctx context.Context, q *queue, key string) {
	next, err := a.guarded(ctx, key)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		level := slog.LevelDebug
		if q.NumRequeues(key) >= quietRetries {
			level = slog.LevelWarn
		}
		a.config.Log.Log(ctx, level, "work is not applied as specified, trying again", "applied_manifest_work", key, "failures", q.NumRequeues(key)+1, "error", err)
		q.AddRateLimited(key)
	default:
		q.Forget(key)
	}
	if next > 0 && ctx.Err() == nil {
		q.AddAfter(key, next) // if it is queued already, the earlier time stays
	}
}

// guarded recovers panics, so that a bug triggered by one work does not stop the others.
func (a *Agent) guarded(ctx context.Context, key string) (next time.Duration, err error) {
	defer func() {
		if p := recover(); p != nil {
			a.metrics.panicked()
			a.config.Log.ErrorContext(ctx, "bug: a reconciliation panicked", "applied_manifest_work", key, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return a.core.Reconcile(ctx, key)
}

// publish sends the status of one work, if one is due, or an event about the subscription.
func (a *Agent) publish(ctx context.Context, q *queue, id string) {
	var again, ok bool
	var err error
	if id == syncItem {
		again, ok, err = a.publishSync(ctx)
	} else {
		again, ok, err = a.publishReport(ctx, id)
	}
	if !ok {
		q.Forget(id)
		return
	}
	switch {
	case err == nil || !again:
		q.Forget(id)
		if again {
			q.Add(id)
		}
	default:
		q.AddRateLimited(id)
	}
}

func (a *Agent) publishReport(ctx context.Context, id string) (again, ok bool, err error) {
	l, ok := a.core.NextReport(id)
	if !ok {
		return false, false, nil
	}
	receipt, err := a.session.Publish(ctx, l.Event)
	return a.core.ReportDone(l, receipt, err), true, err
}

func (a *Agent) publishSync(ctx context.Context) (again, ok bool, err error) {
	l, ok := a.core.NextSync()
	if !ok {
		return false, false, nil
	}
	_, err = a.session.PublishOn(ctx, l.Subscription, l.Event)
	return a.core.SyncDone(l, err), true, err
}

// keepAlive sends the agent's keepalive to its source at regular intervals.
func (a *Agent) keepAlive(ctx context.Context) error {
	for jittered(ctx, a.core.KeepAlive()) == nil {
	}
	return nil
}

// jittered waits between d and 1.1 d. It returns the error of ctx if ctx ends first.
func jittered(ctx context.Context, d time.Duration) error {
	if !taskgroup.Sleep(ctx, d+time.Duration(rand.Float64()*float64(d)/10)) {
		return ctx.Err()
	}
	return nil
}
