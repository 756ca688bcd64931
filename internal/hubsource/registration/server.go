package registration

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// DefaultMaxPending is the default limit of clusters that wait for acceptance.
const DefaultMaxPending = 2000

// Config holds the dependencies and options of a [Server].
type Config struct {
	// ID is the source id of the registration server in the broker's configuration.
	ID  string
	Hub Hub
	// Signers are the signers of add-ons besides the hub's kube-apiserver.
	Signers []string
	// AccessReviews decides whether the hub reviews the access of each request. It needs roles for clusters, which
	// the controllers of OCM create. "" is [Never].
	AccessReviews AccessReviews
	// FindOCM returns what shows that those controllers run on the hub, "" if nothing does. It is needed for
	// [Auto].
	FindOCM func(ctx context.Context) (shownBy string, err error)
	// MaxPending limits the objects of one account: ManagedClusters that are not accepted, and undecided CSRs that
	// no agent of its cluster requested. The limit for all accounts is twice as high.
	MaxPending int
	// Dialer connects to the broker. Changed, which may be nil, and Sessions are passed to session.Config.
	Dialer     transport.Dialer
	Changed    <-chan struct{}
	Sessions   *session.Metrics
	Registerer prometheus.Registerer
	Health     *telemetry.Health
	Log        *slog.Logger
}

// Server serves registration of one hub; see the package comment.
type Server struct {
	cfg     Config
	metrics *metrics
	access  *access
	rights  *bindings
	watches []*watched

	mu        sync.Mutex
	running   bool
	links     []*link // none until all objects are read
	replicas  int     // number of live replicas of the broker, as one of them reported last; 0: unknown
	requests  queue
	renewals  renewals
	undecided undecided
	written   map[string]*written // by accepted cluster
	issues    issues
	warned    fair.Bucket
	// unknownAuthorities is the last error of reading the authorities.
	unknownAuthorities string

	// These bells ring when there may be work: requests to carry out, Leases to write, links to begin or to end.
	requestsReady, leasesReady, linksChanged taskgroup.Bell
}

// New returns a server that is not running.
func New(cfg Config) *Server {
	cfg.MaxPending = cmp.Or(cfg.MaxPending, DefaultMaxPending)
	s := &Server{cfg: cfg, access: newAccess(cfg)}
	s.rights = newBindings(cfg.Hub, cfg.Log, func(cluster string) bool { return s.cluster(cluster).accepted() })
	s.metrics = newMetrics(cfg.Registerer, s)
	cfg.Health.Add("registration", s.healthy)
	return s
}

// Run serves until ctx ends. It may be called again when it has returned.
func (s *Server) Run(ctx context.Context) error {
	s.begin()
	defer s.end()
	tasks := []taskgroup.Task{
		{Name: "links", Run: s.keepLinks},
		{Name: "leases", Run: s.writeLeases},
		{Name: "bindings", Run: func(ctx context.Context) error { return s.rights.Run(ctx, s.of(codec.ManagedClusters).known) }},
		{Name: "access", Run: s.access.Run},
		{Name: "earliest issues", Run: s.keepIssues},
		{Name: "requests", Run: s.work},
	}
	for _, w := range s.allWatches() {
		tasks = append(tasks, taskgroup.Task{Name: "watch " + w.resource.Resource, Run: func(ctx context.Context) error { return w.run(ctx, s) }})
	}
	return taskgroup.Group(ctx, tasks...)
}

func (s *Server) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running, s.watches, s.issues = true, nil, newIssues()
	for n, k := range kinds {
		s.watches = append(s.watches, &watched{kind: k, at: n, known: make(chan struct{})})
	}
	s.requestsReady, s.leasesReady, s.linksChanged = taskgroup.NewBell(), taskgroup.NewBell(), taskgroup.NewBell()
}

// allWatches returns the watches of published objects, and that of the earliest issue times.
func (s *Server) allWatches() []*watched { return append(slices.Clone(s.watches), s.issues.watched) }

func (s *Server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running, s.links, s.replicas = false, nil, 0
	s.requests, s.renewals = queue{}, renewals{}
	s.undecided, s.written = undecided{}, nil
}

// changed handles a change of an object: was is nil for a new object, is for a deleted one.
func (s *Server) changed(w *watched, was, is *object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case w == s.issues.watched:
		s.issuesChanged(is)
		return
	case is.isRenewalOf(was):
		return
	case is == nil:
		s.publishLater(w.keyOf(was), was.UID)
	case was != nil && was.cluster != is.cluster:
		s.publishLater(w.keyOf(was), was.UID)
		fallthrough
	default:
		s.publishLater(w.keyOf(is), "")
	}
	s.undecided.add(w.dataType, was, -1)
	s.undecided.add(w.dataType, is, 1)
	if is != nil {
		s.undecided.release(made{w.dataType, is.Name})
	}
	if w.dataType == codec.ManagedClusters {
		s.clusterChanged(was, is)
	}
}

// publishLater makes each link publish a changed object; gone is its uid if it was deleted. The caller has the lock.
func (s *Server) publishLater(k key, gone types.UID) {
	for _, l := range s.links {
		l.changes.add(k, gone)
		l.objectsReady.Ring()
	}
}

// clusterChanged ends everything that only accepted clusters have.
func (s *Server) clusterChanged(was, is *object) {
	if is == nil || was == nil || was.UID != is.UID {
		s.checkIssues(cmp.Or(is, was).Name)
	}
	if is.accepted() {
		s.judgeRotation(is)
	} else if was.accepted() {
		s.renewals.forget(was.Name)
		s.rights.end(was.Name)
		delete(s.written, was.Name)
		delete(s.issues.shown, was.Name)
	}
}

// publish publishes an event on a subscription, and retries while that may help.
func (s *Server) publish(ctx context.Context, on subscription, e codec.Event) error {
	for delay := 50 * time.Millisecond; ; delay = min(2*delay, 5*time.Second) {
		err := publishOnce(ctx, on, e)
		if err == nil || !transport.Retryable(err) || !s.still(on) || ctx.Err() != nil {
			return err
		}
		if !taskgroup.Sleep(ctx, max(delay, delayOf(err))) {
			return err
		}
	}
}

func publishOnce(ctx context.Context, on subscription, e codec.Event) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	_, err := on.session.PublishOn(ctx, on.id, e)
	return err
}

// publishTimeout limits one publish.
const publishTimeout = 30 * time.Second

// delayOf returns the delay that the broker requests, one minute at most.
func delayOf(err error) time.Duration {
	if e, ok := errors.AsType[*transport.Error](err); ok {
		return min(e.Delay, time.Minute)
	}
	return 0
}

// still reports whether a subscription is the present one of its link.
func (s *Server) still(on subscription) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return on.id != "" && on.on == on.id
}

// envelopeOf returns the envelope of the published events.
func (s *Server) envelopeOf() codec.SyncParams {
	return codec.SyncParams{ID: uuid.NewString(), Time: time.Now(), Source: s.cfg.ID, Owner: s.cfg.ID}
}

// cluster returns the ManagedCluster of this name, nil if there is none.
func (s *Server) cluster(name string) *object { return s.of(codec.ManagedClusters).get("", name) }

// of returns the watch of a data type that is in kinds.
func (s *Server) of(d codec.DataType) *watched {
	for _, w := range s.watches {
		if w.dataType == d {
			return w
		}
	}
	panic("bug: data type " + d.String() + " is not watched")
}

const (
	// maxObjects is the largest JSON size of one message in bytes. envelope is its overhead per message, and
	// perObject the one per object, in bytes.
	maxObjects = 1 << 20
	envelope   = 4 << 10
	perObject  = 1 << 10
)

// publishChanges publishes changed objects over a link, until ctx ends.
func (s *Server) publishChanges(ctx context.Context, l *link) error {
	for {
		if m, on := s.nextMessage(l); m != nil {
			s.send(ctx, on, m)
		} else if !taskgroup.Wait(ctx, l.objectsReady) {
			return nil
		}
	}
}

// nextMessage returns the next message over a link and its subscription, nil for none.
func (s *Server) nextMessage(l *link) (*hawserv1.RegistrationObjects, subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	on := subscription{l, l.on}
	if l.on == "" {
		return nil, on
	}
	if m := l.issues.next(); m != nil { // before a cluster of the same name is accepted
		return m, on
	}
	if !l.changes.any() {
		return nil, on
	}
	m, size := &hawserv1.RegistrationObjects{}, 0
	m.SnapshotComplete = l.changes.take(func(k key, gone types.UID) bool {
		o := s.messageOf(k, gone)
		if size += len(o.GetJson()) + perObject; size > l.limit && len(m.Objects) > 0 {
			return false
		}
		m.Objects = append(m.Objects, o)
		return true
	})
	return m, on
}

// messageOf returns the present state of an object.
func (s *Server) messageOf(k key, gone types.UID) *hawserv1.RegistrationObject {
	w := s.watches[k.kind]
	if o := w.get(k.namespace, k.name); o != nil && o.cluster == k.cluster {
		return w.message(o)
	}
	return &hawserv1.RegistrationObject{DataType: w.dataType.String(), Cluster: k.cluster, Name: k.name, Uid: string(gone)}
}

// send publishes objects. If the broker does not accept the message, each object is published alone. An object
// that the broker still does not accept is left out until it changes.
func (s *Server) send(ctx context.Context, on subscription, m *hawserv1.RegistrationObjects) {
	e, err := codec.NewRegistrationObjects(s.envelopeOf(), m)
	if err == nil {
		err = s.publish(ctx, on, e)
	}
	s.metrics.countPublished(len(m.GetObjects()), err)
	switch {
	case err == nil, ctx.Err() != nil, !s.still(on), transport.Retryable(err):
		return
	case len(m.GetEarliestIssues()) > 0:
		s.cfg.Log.WarnContext(ctx, "the broker does not accept the earliest issue times of clusters; older certificates stay valid", "clusters", len(m.GetEarliestIssues()), "err", err)
		return
	case len(m.GetObjects()) <= 1:
		for _, o := range m.GetObjects() {
			s.cfg.Log.WarnContext(ctx, "the broker does not accept an object; its cluster does not see it", "type", o.GetDataType(), "cluster", o.GetCluster(), "name", o.GetName(), "err", err)
		}
		if m.GetSnapshotComplete() && len(m.GetObjects()) == 1 {
			s.send(ctx, on, &hawserv1.RegistrationObjects{SnapshotComplete: true})
		}
		return
	}
	for i, o := range m.GetObjects() {
		s.send(ctx, on, &hawserv1.RegistrationObjects{Objects: []*hawserv1.RegistrationObject{o}, SnapshotComplete: m.GetSnapshotComplete() && i == len(m.GetObjects())-1})
	}
}
