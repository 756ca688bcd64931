package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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

// DefaultMaxPending is how many clusters may wait for being accepted unless the configuration says
// otherwise.
const DefaultMaxPending = 2000

// Config is what a [Server] is made of.
type Config struct {
	// ID is the source id, by which the broker's configuration names who serves registration.
	ID  string
	Hub Hub
	// Signers are those of add-ons besides the hub's kube-apiserver.
	Signers []string
	// AccessReviews says whether the hub is asked if who asks may do so, which makes sense where
	// somebody makes roles for clusters, as the controllers of OCM do; "" is [Never].
	AccessReviews AccessReviews
	// FindOCM says by what those controllers are known to run on the hub, "" if nothing shows it;
	// for [Auto].
	FindOCM func(ctx context.Context) (shownBy string, err error)
	// MaxPending bounds, of what one account asks for, the ManagedClusters that are not accepted, and the
	// undecided CSRs that no agent of its cluster asked for. Of all accounts there may be twice as many.
	MaxPending int
	// Dialer reaches the broker. Changed, which may be nil, and Sessions are those of
	// session.Config.
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

	// unknownAuthorities is why those of the hub were not known last; of who sends keys.
	unknownAuthorities string

	mu            sync.Mutex
	running       bool
	brokerSession *session.Session // nil until everything is read
	on            string           // the subscription; "" while there is none
	since         time.Time        // when it began
	limit         int              // bytes of an event
	changes       changes
	requests      queue
	renewals      renewals
	undecided     undecided
	written       map[string]*written // by accepted cluster
	issues        issues
	warned        fair.Bucket

	// objectsReady, requestsReady, leasesReady and newSession ring when there may be something: objects to publish,
	// requests to carry out, Leases to write, keys to send.
	objectsReady, requestsReady, leasesReady, newSession taskgroup.Bell
}

// New returns a server that is not running.
func New(cfg Config) *Server {
	if cfg.MaxPending == 0 {
		cfg.MaxPending = DefaultMaxPending
	}
	s := &Server{cfg: cfg, access: newAccess(cfg)}
	s.rights = newBindings(cfg.Hub, cfg.Log, func(cluster string) bool { return s.cluster(cluster).accepted() })
	s.metrics = newMetrics(cfg.Registerer, s)
	cfg.Health.Add("registration", s.healthy)
	return s
}

// healthy says why clusters cannot register although this replica leads.
func (s *Server) healthy() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.running:
		return nil
	case s.brokerSession == nil:
		return errors.New("what the hub has of registration is not read yet")
	case s.on == "":
		return fmt.Errorf("no session with the broker for registration: %w", s.brokerSession.Err())
	}
	return nil
}

// Connected reports whether there is a session with the broker, and when the last one began.
func (s *Server) Connected() (now bool, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.on != "", s.since
}

// Run serves until ctx ends. It may be called again when it has returned.
func (s *Server) Run(ctx context.Context) error {
	s.begin()
	defer s.end()
	tasks := []taskgroup.Task{
		{Name: "session", Run: s.session},
		{Name: "objects", Run: s.publishChanges},
		{Name: "leases", Run: s.writeLeases},
		{Name: "keys", Run: s.sendKeys},
		{Name: "bindings", Run: func(ctx context.Context) error { return s.rights.Run(ctx, s.of(codec.ManagedClusters).known) }},
		{Name: "access", Run: s.access.Run},
		{Name: "earliest issues", Run: s.keepIssues},
	}
	for _, w := range s.allWatches() {
		tasks = append(tasks, taskgroup.Task{Name: "watch " + w.resource.Resource, Run: func(ctx context.Context) error { return w.run(ctx, s) }})
	}
	for range workers {
		tasks = append(tasks, taskgroup.Task{Name: "requests", Run: s.work})
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
	s.objectsReady, s.requestsReady, s.leasesReady, s.newSession = taskgroup.NewBell(), taskgroup.NewBell(), taskgroup.NewBell(), taskgroup.NewBell()
}

// allWatches are those of objects that the broker is sent, and that of the earliest issue times.
func (s *Server) allWatches() []*watched { return append(slices.Clone(s.watches), s.issues.watched) }

func (s *Server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running, s.brokerSession, s.on = false, nil, ""
	s.changes.stop()
	s.requests, s.renewals = queue{}, renewals{}
	s.undecided, s.written = undecided{}, nil
}

// session keeps the session with the broker, once everything is read.
func (s *Server) session(ctx context.Context) error {
	for _, w := range s.allWatches() {
		select {
		case <-w.known:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	link := session.New(session.Config{
		Dialer: s.cfg.Dialer, Changed: s.cfg.Changed, Filter: transport.Filter{Source: s.cfg.ID, DataType: codec.Registrations},
		Handler: sessionHandler{s}, Log: s.cfg.Log, Metrics: s.cfg.Sessions,
	})
	s.mu.Lock()
	s.brokerSession = link
	s.readIssues()
	s.mu.Unlock()
	return link.Run(ctx)
}

// changed takes a change of an object: was is nil of a new one, is of one that is gone.
func (s *Server) changed(w *watched, was, is *object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case w == s.issues.watched:
		s.issuesChanged(is)
		return
	case is == nil:
		s.changes.add(w.keyOf(was), was.UID)
	case was != nil && was.cluster != is.cluster:
		s.changes.add(w.keyOf(was), was.UID)
		fallthrough
	default:
		s.changes.add(w.keyOf(is), "")
	}
	s.undecided.add(w.dataType, was, -1)
	s.undecided.add(w.dataType, is, 1)
	if is != nil {
		s.undecided.release(made{w.dataType, is.Name})
	}
	if w.dataType == codec.ManagedClusters {
		s.clusterChanged(was, is)
	}
	s.objectsReady.Ring()
}

// clusterChanged ends what is for accepted clusters only.
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

// sessionHandler is the source's side of the session; see session.Handler.
type sessionHandler struct{ *Server }

// Hello implements session.Handler.
func (p sessionHandler) Hello() transport.Hello { return transport.Hello{Protocol: transport.Protocol} }

// Subscribed begins anew: the broker may know nothing.
func (p sessionHandler) Subscribed(_ context.Context, a transport.Accepted) ([]codec.Event, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on, p.since, p.limit = a.SubscriptionID, time.Now(), maxObjects
	if a.MaxEventBytes > 0 {
		p.limit = min(maxObjects, a.MaxEventBytes-envelope)
	}
	var all []key
	for _, w := range p.watches {
		// t1 an object changes and its handler has not run, t2 the keys are taken here, t3 the
		// handler adds the key; therefore nothing is missed, and at worst it is said twice.
		all = append(all, w.keys()...)
	}
	p.changes.restart(all)
	p.issues.unreported = maps.Clone(p.issues.from)
	p.objectsReady.Ring()
	p.newSession.Ring()
	return nil, nil
}

// Disconnected implements session.Handler: nobody waits for answers any more.
func (p sessionHandler) Disconnected(error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on = ""
	p.changes.stop()
	p.requests = queue{}
}

// Handle takes a request of the broker.
func (p sessionHandler) Handle(ctx context.Context, e codec.Event) error {
	if e.Type() != codec.TypeRegistrationRequest {
		p.cfg.Log.DebugContext(ctx, "event that means nothing for registration", "type", e.Type())
		return nil
	}
	r, err := codec.ParseRegistrationRequest(e)
	if err != nil {
		p.cfg.Log.WarnContext(ctx, "request of the broker cannot be read", "event", e.ID(), "err", err)
		return nil // the same would come again after a reconnect
	}
	if l := r.GetRenewals(); l != nil {
		p.renewed(l)
		return nil
	}
	p.take(ctx, r)
	return nil
}

// publish publishes an event on a subscription, and tries again for as long as that may help.
func (s *Server) publish(ctx context.Context, on string, e codec.Event) error {
	for delay := 50 * time.Millisecond; ; delay = min(2*delay, 5*time.Second) {
		err := s.publishOnce(ctx, on, e)
		if err == nil || !transport.Retryable(err) || !s.still(on) || ctx.Err() != nil {
			return err
		}
		if !taskgroup.Sleep(ctx, max(delay, delayOf(err))) {
			return err
		}
	}
}

func (s *Server) publishOnce(ctx context.Context, on string, e codec.Event) error {
	s.mu.Lock()
	link := s.brokerSession
	s.mu.Unlock()
	if link == nil {
		return &transport.Error{Code: transport.CodeUnavailable, Message: "there is no session with the broker"}
	}
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	_, err := link.PublishOn(ctx, on, e)
	return err
}

// publishTimeout bounds one publish.
const publishTimeout = 30 * time.Second

// delayOf is how long the broker wants to be left alone.
func delayOf(err error) time.Duration {
	if e, ok := errors.AsType[*transport.Error](err); ok {
		return min(e.Delay, time.Minute)
	}
	return 0
}

// still reports whether a subscription is the present one.
func (s *Server) still(on string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return on != "" && s.on == on
}

// envelopeOf is the envelope of what is published here.
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
	// maxObjects is how many bytes of JSON one message has at most, envelope what it has besides
	// them, and perObject what each object has besides its JSON.
	maxObjects = 1 << 20
	envelope   = 4 << 10
	perObject  = 1 << 10
)

// publishChanges publishes what changes.
func (s *Server) publishChanges(ctx context.Context) error {
	for {
		m, on := s.nextMessage()
		if m == nil {
			select {
			case <-ctx.Done():
				return nil
			case <-s.objectsReady:
			}
			continue
		}
		s.send(ctx, on, m)
	}
}

// nextMessage is what to publish next, and on which subscription; nil: nothing.
func (s *Server) nextMessage() (*hawserv1.RegistrationObjects, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.on == "" {
		return nil, ""
	}
	if m := s.nextIssues(); m != nil { // before a cluster of the same name is accepted
		return m, s.on
	}
	if !s.changes.any() {
		return nil, ""
	}
	m, size := &hawserv1.RegistrationObjects{}, 0
	m.SnapshotComplete = s.changes.take(func(k key, gone types.UID) bool {
		o := s.messageOf(k, gone)
		if size += len(o.GetJson()) + perObject; size > s.limit && len(m.Objects) > 0 {
			return false
		}
		m.Objects = append(m.Objects, o)
		return true
	})
	return m, s.on
}

// messageOf is an object as it is now.
func (s *Server) messageOf(k key, gone types.UID) *hawserv1.RegistrationObject {
	w := s.watches[k.kind]
	if o := w.get(k.namespace, k.name); o != nil && o.cluster == k.cluster {
		return w.message(o)
	}
	return &hawserv1.RegistrationObject{DataType: w.dataType.String(), Cluster: k.cluster, Name: k.name, Uid: string(gone)}
}

// send publishes objects. What the broker does not take as it is, is published object by object,
// and what it does not take then is left out until it changes.
func (s *Server) send(ctx context.Context, on string, m *hawserv1.RegistrationObjects) {
	e, err := codec.NewRegistrationObjects(s.envelopeOf(), m)
	if err == nil {
		err = s.publish(ctx, on, e)
	}
	s.metrics.countPublished(len(m.GetObjects()), err)
	switch {
	case err == nil, ctx.Err() != nil, !s.still(on), transport.Retryable(err):
		return
	case len(m.GetEarliestIssues()) > 0:
		s.cfg.Log.WarnContext(ctx, "the broker does not take from when on certificates of clusters count, those from before go on", "clusters", len(m.GetEarliestIssues()), "err", err)
		return
	case len(m.GetObjects()) <= 1:
		for _, o := range m.GetObjects() {
			s.cfg.Log.WarnContext(ctx, "the broker does not take an object, its cluster does not see it", "type", o.GetDataType(), "cluster", o.GetCluster(), "name", o.GetName(), "err", err)
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
