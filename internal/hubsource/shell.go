package hubsource

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"k8s.io/client-go/util/workqueue"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/run"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Publisher sends one event to the broker, but only on this subscription;
// session.Session is one. Errors are *transport.Error.
type Publisher interface {
	PublishOn(ctx context.Context, subscriptionID string, e codec.Event) (transport.Receipt, error)
}

// Workers per lane, and the deadlines of their calls. The spec lane's number is
// the number of publishes in flight.
const (
	specWorkers    = 32
	hubWorkers     = 16
	publishTimeout = 30 * time.Second
	hubTimeout     = 30 * time.Second
)

// shell runs a core: it carries out effects with a few workers per lane, and
// guards the core with a lock that is never held across a call.
type shell struct {
	id      string
	hub     Hub
	keeper  *keeper
	broker  Publisher
	log     *slog.Logger
	metrics *metrics
	now     func() time.Time
	queues  [lanes]workqueue.TypedDelayingInterface[Key]

	mu      sync.Mutex // guards what follows
	core    *Core
	failing map[string]bool // operations on the hub whose last request failed
}

// shellConfig is what a shell is made of; the link to the broker follows.
type shellConfig struct {
	id      string
	all     bool // serve every namespace
	cleanUp bool // delete completed works
	hub     Hub
	keeper  *keeper
	state   State // saved last
	log     *slog.Logger
	metrics *metrics
}

func newShell(c shellConfig) *shell {
	s := &shell{id: c.id, hub: c.hub, keeper: c.keeper, log: c.log, metrics: c.metrics, now: time.Now, failing: map[string]bool{}}
	for l := range s.queues {
		s.queues[l] = workqueue.NewTypedDelayingQueue[Key]()
	}
	s.core = NewCore(CoreConfig{
		Now: time.Now, Jitter: rand.Float64, Waker: s, All: c.all, CleanUp: c.cleanUp, NewID: uuid.NewString, State: c.state,
	})
	return s
}

// Wake implements [Waker].
func (s *shell) Wake(l Lane, k Key, after time.Duration) {
	if after <= 0 {
		s.queues[l].Add(k)
		return
	}
	s.queues[l].AddAfter(k, after)
}

// shutDown ends the queues, which have goroutines from the beginning.
func (s *shell) shutDown() {
	for _, q := range s.queues {
		q.ShutDown()
	}
}

// Run carries out effects until ctx ends; calls in flight are cancelled.
func (s *shell) Run(ctx context.Context) error {
	s.metrics.state.set(s.stats)
	defer s.metrics.state.set(nil)
	defer context.AfterFunc(ctx, s.shutDown)()
	var tasks []run.Task
	for range specWorkers {
		tasks = append(tasks, run.Task{Name: "spec worker", Run: func(ctx context.Context) error { return s.work(ctx, SpecLane) }})
	}
	for range hubWorkers {
		tasks = append(tasks, run.Task{Name: "hub worker", Run: func(ctx context.Context) error { return s.work(ctx, HubLane) }})
	}
	return run.Group(ctx, tasks...)
}

func (s *shell) stats() (Stats, [lanes]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.Stats(), [lanes]int{s.queues[SpecLane].Len(), s.queues[HubLane].Len()}
}

// work is one worker of a lane.
func (s *shell) work(ctx context.Context, l Lane) error {
	for {
		k, shutdown := s.queues[l].Get()
		if shutdown {
			return nil
		}
		s.process(ctx, l, k)
		s.queues[l].Done(k)
		if l == SpecLane {
			s.feed()
		}
	}
}

// process does everything that is to be done for a key now.
func (s *shell) process(ctx context.Context, l Lane, k Key) {
	for ctx.Err() == nil {
		s.mu.Lock()
		e, on := s.core.Next(l, k), s.core.Subscription()
		s.mu.Unlock()
		if e == nil {
			return
		}
		r := s.do(ctx, on, e)
		s.mu.Lock()
		s.core.Done(e, r)
		s.mu.Unlock()
	}
}

// feed takes more of the sweep when the workers are about to run dry, so that a
// fresh change never waits behind all works of the hub.
func (s *shell) feed() {
	const low = 2 * specWorkers
	if s.queues[SpecLane].Len() >= low {
		return
	}
	s.mu.Lock()
	keys := s.core.Sweep(low)
	s.mu.Unlock()
	for _, k := range keys {
		s.queues[SpecLane].Add(k)
	}
}

// do carries out one effect; what is for the broker, on this subscription.
func (s *shell) do(ctx context.Context, on string, e Effect) Result {
	switch e := e.(type) {
	case Publish:
		return s.publish(ctx, on, e)
	case Release:
		return s.release(ctx, on, e)
	case Ask:
		return s.ask(ctx, on, e)
	case Tag:
		return Result{Tags: e.Tags()}
	case Delete:
		return s.delete(ctx, on, e)
	case AskInventory:
		event, err := e.Event(s.now(), s.id)
		return s.request(ctx, on, "inventory", event, err)
	case SendCompared:
		event, err := e.Event(uuid.NewString(), s.now(), s.id)
		s.logCompared(ctx, e)
		return s.request(ctx, on, "compared", event, err)
	case SendAck:
		event, err := e.Event(uuid.NewString(), s.now(), s.id)
		return s.request(ctx, on, "ack", event, err)
	default:
		return s.onHub(ctx, e)
	}
}

func (s *shell) onHub(ctx context.Context, e Effect) (r Result) {
	ctx, cancel := context.WithTimeout(ctx, hubTimeout)
	defer cancel()
	var operation string
	switch e := e.(type) {
	case AddFinalizer:
		operation = "add_finalizer"
		r.Work, r.Err = s.hub.AddFinalizer(ctx, e.Work)
	case RemoveFinalizer:
		operation = "remove_finalizer"
		r.Work, r.Err = s.hub.RemoveFinalizer(ctx, e.Work)
	case PatchStatus:
		operation = "patch_status"
		r.Work, r.Err = s.hub.PatchStatus(ctx, e.Work, e.Status)
	case DeleteCompleted:
		operation = "delete_completed"
		r.Err = s.deleteCompleted(ctx, e.Work)
	case CheckGone:
		operation = "get"
		r.Work, r.Err = s.hub.Get(ctx, e.Work.Namespace, e.Work.Name)
	case Lookup:
		operation = "get"
		r.Work, r.Err = s.hub.Get(ctx, e.Namespace, e.Name)
	case CheckBehind:
		operation = "get"
		r.Work, r.Err = s.hub.Get(ctx, e.Work.Namespace, e.Work.Name)
	case CheckMissing:
		operation = "get"
		r.Work, r.Err = s.hub.Get(ctx, e.Namespace, e.Name)
	case ListAlive:
		operation = "list"
		r.Alive, r.Err = s.hub.Alive(ctx, e.Namespace)
	case Locate:
		operation = "locate"
		var p codec.HubPosition
		p, r.Err = s.hub.Locate(ctx)
		r.Position = &p
	case Save:
		operation = "save"
		r.Err = s.keeper.save(ctx, e.State)
	}
	result := hubResult(r.Err)
	s.metrics.writes.WithLabelValues(operation, result).Inc()
	s.logHub(ctx, operation, result, e, r.Err)
	return r
}

// deleteCompleted deletes a work, and says so: nobody asked for it at this moment.
func (s *shell) deleteCompleted(ctx context.Context, o *workv1.ManifestWork) error {
	err := s.hub.Delete(ctx, o)
	if err == nil {
		s.log.Info("completed work deleted, its ttlSecondsAfterFinished is over", "cluster", o.Namespace, "work", o.Name, "uid", o.UID)
	}
	return err
}

// logHub tells once when a kind of request begins to fail and when it works
// again; what concerns a single work is on the work, or at debug level.
func (s *shell) logHub(ctx context.Context, operation, result string, e Effect, err error) {
	attrs := []any{"operation", operation, "result", result, "err", err}
	if o := workOf(e); o != nil {
		attrs = append(attrs, "cluster", o.Namespace, "work", o.Name)
	}
	s.log.DebugContext(ctx, "request to the hub", attrs...)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return
	}
	failing := result == "forbidden" || result == "error"
	s.mu.Lock()
	was := s.failing[operation]
	s.failing[operation] = failing
	s.mu.Unlock()
	switch {
	case failing && !was && result == "forbidden":
		s.log.Error("hub forbids a request, grant it to the service account", "operation", operation, "err", err)
	case failing && !was:
		s.log.Warn("requests to the hub fail and are retried", "operation", operation, "err", err)
	case !failing && was:
		s.log.Info("requests to the hub work again", "operation", operation)
	}
}

func workOf(e Effect) *workv1.ManifestWork {
	switch e := e.(type) {
	case AddFinalizer:
		return e.Work
	case RemoveFinalizer:
		return e.Work
	case PatchStatus:
		return e.Work
	case DeleteCompleted:
		return e.Work
	case CheckGone:
		return e.Work
	case CheckBehind:
		return e.Work
	}
	return nil
}

// send publishes one event within a deadline; err is that of making it.
func (s *shell) send(ctx context.Context, on string, e codec.Event, err error) (r Result) {
	if err != nil {
		return Result{Err: unencodable(err)}
	}
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	r.Receipt, r.Err = s.broker.PublishOn(ctx, on, e)
	return r
}

// unencodable is the error of an event that cannot be built.
func unencodable(err error) error {
	return &transport.Error{Code: transport.CodeInvalid, Message: "cannot be encoded: " + err.Error(), Err: err}
}

func (s *shell) publish(ctx context.Context, on string, p Publish) (r Result) {
	event, err := p.Event(uuid.NewString(), s.now(), s.id)
	r = s.send(ctx, on, event, err)
	s.metrics.publishes.WithLabelValues(brokerResult(r)).Inc()
	level := slog.LevelDebug
	if r.Err != nil && !transport.Retryable(r.Err) {
		level = slog.LevelWarn
	}
	s.log.Log(ctx, level, "spec published", "cluster", p.Work.Namespace, "work", p.Work.Name, "uid", p.Work.UID,
		"action", p.Action, "generation", p.Work.Generation, "outcome", r.Receipt.Outcome, "err", r.Err)
	return r
}

func (s *shell) release(ctx context.Context, on string, e Release) (r Result) {
	event, err := e.Event(uuid.NewString(), s.now(), s.id)
	r = s.send(ctx, on, event, err)
	s.metrics.clusters.WithLabelValues("release", brokerResult(r)).Inc()
	s.logCluster(ctx, "release", e.Cluster, r)
	return r
}

func (s *shell) ask(ctx context.Context, on string, e Ask) (r Result) {
	events, err := e.Events(uuid.NewString, s.now(), s.id)
	if err != nil {
		r.Err = unencodable(err)
	}
	for i, event := range events {
		r = s.send(ctx, on, event, nil)
		if r.Lists = i + 1; r.Err != nil {
			break
		}
	}
	s.metrics.clusters.WithLabelValues("ask", brokerResult(r)).Inc()
	s.logCluster(ctx, "ask", e.Cluster, r)
	return r
}

// logCluster tells of a request about a whole cluster; what is retried, at
// debug level only.
func (s *shell) logCluster(ctx context.Context, operation, cluster string, r Result) {
	level := slog.LevelDebug
	if r.Err != nil && !transport.Retryable(r.Err) {
		level = slog.LevelWarn
	}
	s.log.Log(ctx, level, "request about a cluster", "operation", operation, "cluster", cluster, "outcome", r.Receipt.Outcome, "err", r.Err)
}
