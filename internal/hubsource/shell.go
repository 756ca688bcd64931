package hubsource

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/history"
	"github.com/hawser-io/hawser/internal/hubsource/core"
	"github.com/hawser-io/hawser/internal/kubeerror"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// brokerSession is the session with the broker; session.Session implements it.
type brokerSession interface {
	Run(ctx context.Context) error
	// PublishOn sends one event, only on this subscription. The error is a *transport.Error.
	PublishOn(ctx context.Context, subscriptionID string, e codec.Event) (transport.Receipt, error)
	// End ends this subscription, as if its connection had broken.
	End(subscriptionID string)
}

// Workers per queue, and the timeouts of their calls. The number of workers of the broker queue is the largest
// number of publishes in flight.
const (
	specWorkers    = 32
	hubWorkers     = 16
	publishTimeout = 30 * time.Second
	hubTimeout     = 30 * time.Second
)

// shell runs a core. A few workers per queue execute the effects. A lock guards the core and is never held
// during a call.
type shell struct {
	shellConfig
	queues        [core.NumQueues]clusterFairQueue
	initialSynced atomic.Uint64 // number of checks of the initial sync

	mu       sync.Mutex // guards the fields below
	core     *core.Core
	broker   brokerSession   // of the present hub epoch, nil without one
	endEpoch func()          // ends the informers and the session of the epoch
	failing  map[string]bool // operations on the hub whose last request failed
}

// shellConfig holds the dependencies and options of a shell.
type shellConfig struct {
	id      string
	all     bool // serve every namespace
	cleanUp bool // delete completed works
	hub     Hub
	events  *eventRecorder // nil: no Events
	store   *stateStore
	state   core.SavedState // as saved last
	log     *slog.Logger
	metrics *metrics
}

func newShell(c shellConfig) *shell {
	s := &shell{shellConfig: c, failing: map[string]bool{}}
	s.queues[core.BrokerQueue], s.queues[core.HubQueue] = newClusterFairQueue(specWorkers), newClusterFairQueue(hubWorkers)
	s.core = core.New(core.Config{
		Now: time.Now, Jitter: rand.Float64, Waker: s, All: c.all, CleanUp: c.cleanUp, Source: c.id, NewID: uuid.NewString, State: c.state,
		Answered: func(took time.Duration) { c.metrics.answered.Observe(took.Seconds()) },
	})
	return s
}

// suspected passes evidence of the watches and the Lease about the hub's history to the core.
func (s *shell) suspected(e history.Evidence) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.core.Suspected(e == history.Older)
}

// begin begins the present hub epoch. lifetime ends with the epoch.
func (s *shell) begin(ctx context.Context) (epoch int, lifetime context.Context, end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lifetime, s.endEpoch = context.WithCancel(ctx)
	return s.core.Epoch(), lifetime, s.endEpoch
}

// use sets the session on which events are sent.
func (s *shell) use(l brokerSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broker = l
}

// Wake implements [core.Waker].
func (s *shell) Wake(l core.Queue, k core.Key, after time.Duration) {
	if after <= 0 {
		s.queues[l].Add(k)
		return
	}
	s.queues[l].AddAfter(k, after)
}

// Prioritize implements [core.Waker].
func (s *shell) Prioritize(l core.Queue, k core.Key) { s.queues[l].Prioritize(k) }

// shutDown ends the queues, which have goroutines from the start.
func (s *shell) shutDown() {
	for _, l := range s.queues {
		l.ShutDown()
	}
}

// Run executes effects until ctx ends; calls in flight are cancelled.
func (s *shell) Run(ctx context.Context) error {
	read := s.stats
	s.metrics.state.read.Store(&read)
	defer s.metrics.state.read.Store(nil)
	defer context.AfterFunc(ctx, s.shutDown)()
	var tasks []taskgroup.Task
	for l, workers := range [core.NumQueues]int{core.BrokerQueue: specWorkers, core.HubQueue: hubWorkers} {
		for range workers {
			tasks = append(tasks, taskgroup.Task{Name: core.Queue(l).String() + " worker", Run: func(ctx context.Context) error { return s.work(ctx, core.Queue(l)) }})
		}
	}
	return taskgroup.Group(ctx, tasks...)
}

func (s *shell) stats() (core.Stats, [core.NumQueues]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.Stats(), [core.NumQueues]int{s.queues[core.BrokerQueue].Len(), s.queues[core.HubQueue].Len()}
}

// work is one worker of a queue.
func (s *shell) work(ctx context.Context, l core.Queue) error {
	for {
		k, shutdown := s.queues[l].Get()
		if shutdown {
			return nil
		}
		began := time.Now()
		if s.process(ctx, l, k) {
			s.queues[l].Add(k) // more may be due; the key waits behind others
		}
		s.queues[l].End(k, time.Since(began))
		if l == core.BrokerQueue {
			s.feed()
		}
	}
}

// process executes the next effect of a key. It returns false if there was none. The key then waits behind
// other keys, even if its work changes faster than it is processed. After adding a finalizer the key does not
// wait. Otherwise a new work would wait a second time behind all works that came with it.
func (s *shell) process(ctx context.Context, l core.Queue, k core.Key) bool {
	for ctx.Err() == nil {
		s.mu.Lock()
		e, to := s.core.Next(l, k), broker{s, s.broker, s.core.Subscription()}
		s.mu.Unlock()
		if e == nil {
			return false
		}
		r := s.do(ctx, to, k, e)
		s.mu.Lock()
		s.core.Done(l, k, r)
		s.mu.Unlock()
		if _, more := e.(core.AddFinalizer); !more {
			return true
		}
	}
	return false
}

// feed takes keys from the initial sync when the workers have little to do. So a new change does not wait
// behind all works of the hub. It also takes a few keys in any case, so that endless changes cannot stop the
// initial sync.
func (s *shell) feed() {
	const low, seldom = 2 * specWorkers, 4
	n := low
	if s.queues[core.BrokerQueue].Len() >= low {
		if n = 1; s.initialSynced.Add(1)%seldom != 0 {
			return
		}
	}
	s.mu.Lock()
	keys := s.core.NextInitialSync(n)
	s.mu.Unlock()
	for _, k := range keys {
		s.queues[core.BrokerQueue].Add(k)
	}
}

// do executes one effect. Events for the broker go out on the subscription for which they were decided.
func (s *shell) do(ctx context.Context, to broker, k core.Key, e core.Effect) core.Result {
	switch e := e.(type) {
	case core.Tag:
		return core.Result{Tags: e.Tags()}
	case core.BeginHubEpoch:
		s.log.WarnContext(ctx, "the hub is read again; meanwhile nothing is deleted because the hub lacks it", "reason", e.Reason)
		s.mu.Lock()
		s.endEpoch()
		s.mu.Unlock()
	case core.Withhold:
		s.reportWithheld(ctx, e)
	case core.EndSubscription:
		if to.session != nil {
			to.session.End(e.ID)
		}
	case core.ForBroker:
		return to.do(ctx, k, e)
	default:
		return s.onHub(ctx, e)
	}
	return core.Result{}
}

// reportWithheld reports the withheld deletions of works that agents hold and the hub lacks.
func (s *shell) reportWithheld(ctx context.Context, e core.Withhold) {
	const how = "create a ManifestWork of the same name in the namespace of the cluster, and delete it"
	s.withheld(ctx, e.ClusterSyncReport, "the hub lacks this work, and it stays on its cluster until an operator decides ("+how+"): ", "delete_them", how)
}

// withheld reports deletions that wait for an operator, in a log line and in an Event of each of the first
// works.
func (s *shell) withheld(ctx context.Context, o codec.ClusterSyncReport, event string, attrs ...any) {
	const shown = 10
	var names []string
	for _, w := range o.Withheld[:min(len(o.Withheld), shown)] {
		names = append(names, w.Name)
		s.events.record(types.NamespacedName{Namespace: o.Cluster, Name: w.Name}, types.UID(w.ResourceID), corev1.EventTypeWarning, "DeletionWithheld", event+o.Reason)
	}
	s.log.ErrorContext(ctx, "works that the hub lacks stay on the cluster until an operator decides", append([]any{"cluster", o.Cluster, "count", len(o.Withheld), "first_works", names, "reason", o.Reason}, attrs...)...)
}

func (s *shell) onHub(ctx context.Context, e core.Effect) (r core.Result) {
	ctx, cancel := context.WithTimeout(ctx, hubTimeout)
	defer cancel()
	switch e := e.(type) {
	case core.AddFinalizer:
		r.Work, r.Err = s.hub.AddFinalizer(ctx, e.Work)
	case core.RemoveFinalizer:
		r.Work, r.Err = s.hub.RemoveFinalizer(ctx, e.Work)
	case core.PatchStatus:
		r.Work, r.Err = s.hub.PatchStatus(ctx, e.Work, e.Status)
	case core.DeleteCompleted:
		if r.Err = s.hub.Delete(ctx, e.Work); r.Err == nil { // no user sent this deletion, so only the log shows it
			s.log.Info("completed work deleted, its ttlSecondsAfterFinished is over", "cluster", e.Work.Namespace, "work", e.Work.Name, "uid", e.Work.UID)
		}
	case core.Get:
		r.Work, r.Err = s.hub.Get(ctx, e.Namespace, e.Name)
	case core.List:
		r.Present, r.Err = s.hub.Present(ctx, e.Namespace)
	case core.ReadHubPosition:
		var p codec.HubPosition
		p, r.Err = s.hub.Locate(ctx)
		if r.Position = &p; r.Err == nil {
			r.Kept, r.Err = s.store.version(ctx)
		}
	case core.Save:
		r.Kept, r.Err = s.store.save(ctx, e.State)
	}
	s.events.wrote(e, r.Err)
	result := kubeerror.Result(r.Err)
	s.metrics.writes.WithLabelValues(e.Operation(), result).Inc()
	s.logHub(ctx, result, e, r.Err)
	return r
}

// logHub logs once when a kind of request begins to fail, and when it works again. Failures of a single work
// are in its status, or logged at debug level.
func (s *shell) logHub(ctx context.Context, result string, e core.Effect, err error) {
	operation := e.Operation()
	attrs := []any{"operation", operation, "result", result, "err", err}
	if w, ok := e.(interface{ Object() *workv1.ManifestWork }); ok {
		attrs = append(attrs, "cluster", w.Object().Namespace, "work", w.Object().Name)
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
		s.log.Error("hub forbids a request: a role of this service account lacks the right, or a policy denies it", "operation", operation, "err", err)
	case failing && !was:
		s.log.Warn("requests to the hub fail and are retried", "operation", operation, "err", err)
	case !failing && was:
		s.log.Info("requests to the hub work again", "operation", operation)
	}
}
