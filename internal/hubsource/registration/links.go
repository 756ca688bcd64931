package registration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// redialWithin is the longest back-off of a link. Meanwhile no cluster can join at the replica that has none.
const redialWithin = 5 * time.Second

// link keeps the subscription at one replica of the broker. Any link may reach any replica: the address does not tell
// which. A replica at which another link is subscribed rejects it, so it dials until it finds another one.
type link struct {
	session *session.Session
	// stop ends the link. Only keepLinks uses it.
	stop context.CancelFunc
	// These bells ring when there may be work: objects to publish, keys to send, changed files.
	objectsReady, newSession, changed taskgroup.Bell

	// The lock of the server guards these.
	on      string    // the subscription; "" without one
	since   time.Time // when it began
	replica string    // the id of the broker; "" until it has reported it
	limit   int       // largest event in bytes
	changes changes
	issues  unreported
}

// subscription is a subscription of a link.
type subscription struct {
	*link
	id string
}

// keepLinks keeps one link for each live replica, once all objects are read.
func (s *Server) keepLinks(ctx context.Context) error {
	for _, w := range s.allWatches() {
		if !taskgroup.Wait(ctx, w.known) {
			return ctx.Err()
		}
	}
	s.mu.Lock()
	s.readIssues()
	s.mu.Unlock()
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error {
		for taskgroup.Wait(ctx, s.cfg.Changed) {
			s.eachLink(func(l *link) { l.changed.Ring() })
		}
		return nil
	})
	for {
		added, removed := s.adjustLinks()
		for _, l := range removed {
			l.stop()
		}
		for _, l := range added {
			alone, stop := context.WithCancel(ctx)
			l.stop = stop
			running.Go(func() error { return s.runLink(alone, l) })
		}
		if !taskgroup.Wait(ctx, s.linksChanged) {
			return running.Wait()
		}
	}
}

// adjustLinks makes the number of links equal to that of the live replicas. It removes only links without a
// subscription.
func (s *Server) adjustLinks() (added, removed []*link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := max(1, s.replicas)
	for len(s.links) < want {
		l := &link{objectsReady: taskgroup.NewBell(), newSession: taskgroup.NewBell(), changed: taskgroup.NewBell()}
		l.session = session.New(session.Config{
			Dialer: s.cfg.Dialer, Changed: l.changed, Filter: transport.Filter{Source: s.cfg.ID, DataType: codec.Registrations},
			Handler: sessionHandler{s, l}, Log: s.cfg.Log, Metrics: s.cfg.Sessions, Backoff: session.Backoff{Max: redialWithin},
		})
		s.links, added = append(s.links, l), append(added, l)
	}
	s.links = slices.DeleteFunc(s.links, func(l *link) bool {
		surplus := len(s.links)-len(removed) > want && l.on == ""
		if surplus {
			removed = append(removed, l)
		}
		return surplus
	})
	return added, removed
}

// runLink runs a link until ctx ends.
func (s *Server) runLink(ctx context.Context, l *link) error {
	return taskgroup.Group(ctx,
		taskgroup.Task{Name: "session", Run: l.session.Run},
		taskgroup.Task{Name: "objects", Run: func(ctx context.Context) error { return s.publishChanges(ctx, l) }},
		taskgroup.Task{Name: "keys", Run: func(ctx context.Context) error { return s.sendKeys(ctx, l) }},
	)
}

// eachLink calls f for all links, with the lock held.
func (s *Server) eachLink(f func(*link)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.links {
		f(l)
	}
}

// healthy returns why clusters cannot register although this replica leads, nil if they can.
func (s *Server) healthy() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running && len(s.links) == 0 {
		return errors.New("the registration objects of the hub are not read yet")
	}
	for _, l := range s.links {
		if l.on != "" {
			return nil // at the replicas without a subscription they try again
		}
		err = fmt.Errorf("no session with the broker for registration: %w", l.session.Err())
	}
	return err
}

// Connected reports whether there is a session with each live replica of the broker, and when the last one began. An
// agent may send its renewals to any replica.
func (s *Server) Connected() (now bool, since time.Time) {
	now = true
	n := 0
	s.eachLink(func(l *link) {
		n++
		now = now && l.on != ""
		if l.since.After(since) {
			since = l.since
		}
	})
	return now && n > 0, since
}

// sessionHandler is the source's side of the session of a link; see session.Handler.
type sessionHandler struct {
	*Server
	*link
}

// Hello implements session.Handler.
func (p sessionHandler) Hello() transport.Hello {
	var at []string
	p.eachLink(func(l *link) {
		if l.replica != "" {
			at = append(at, l.replica)
		}
	})
	return transport.Hello{Protocol: transport.Protocol, SubscribedAt: strings.Join(at, ",")}
}

// Subscribed starts again with all objects: the broker may know none.
func (p sessionHandler) Subscribed(_ context.Context, a transport.Accepted) ([]codec.Event, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on, p.since, p.limit = a.SubscriptionID, time.Now(), maxObjects
	if a.MaxEventBytes > 0 {
		p.limit = min(maxObjects, a.MaxEventBytes-envelope)
	}
	var all []key
	for _, w := range p.watches {
		// Scenario:
		//   t1: an object changes, and its handler has not run.
		//   t2: the keys are read here.
		//   t3: the handler adds the key.
		// Result: no change is missed; at worst the object is published twice.
		all = append(all, w.keys()...)
	}
	p.changes.restart(all)
	p.link.issues = maps.Clone(p.Server.issues.from)
	p.objectsReady.Ring()
	p.newSession.Ring()
	return nil, nil
}

// Disconnected implements session.Handler: requests are not carried out, because no client waits for the answers.
func (p sessionHandler) Disconnected(error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on, p.replica = "", ""
	p.changes.stop()
	p.renewals.hasten(time.Now())
	p.leasesReady.Ring()
	p.linksChanged.Ring() // there may be more links than replicas
}

// Handle handles a request of the broker.
func (p sessionHandler) Handle(ctx context.Context, e codec.Event) error {
	if e.Type() != codec.TypeRegistrationRequest {
		p.cfg.Log.DebugContext(ctx, "event is not part of registration", "type", e.Type())
		return nil
	}
	r, err := codec.ParseRegistrationRequest(e)
	if err != nil {
		p.cfg.Log.WarnContext(ctx, "request of the broker cannot be read", "event", e.ID(), "err", err)
		return nil // the same event would come again after a reconnect
	}
	switch m := r.GetRequest().(type) {
	case *hawserv1.RegistrationRequest_Renewals:
		p.renewed(m.Renewals)
	case *hawserv1.RegistrationRequest_Replicas:
		p.found(m.Replicas.GetIds())
	default:
		p.take(ctx, r, p.link)
	}
	return nil
}

// found records the live replicas: that of this link, and their number.
func (p sessionHandler) found(ids []string) {
	if len(ids) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replica, p.replicas = ids[0], len(ids)
	p.linksChanged.Ring()
}
