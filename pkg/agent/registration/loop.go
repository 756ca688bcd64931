package registration

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
)

// loop owns the core: only its goroutine calls it.
type loop struct {
	*Registration
	ctx      context.Context //nolint:containedctx // of the one run that the loop is for
	core     *Core
	sessions *sessions // nil before the first
	// work has the operations in progress other than sessions.
	work sync.WaitGroup
	// taken is the error that shows that another process uses the Secret.
	taken error
}

// run drives the core until ctx ends.
func (l *loop) run(ctx context.Context) error {
	defer l.work.Wait()
	defer func() { l.sessions.end() }()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for l.taken == nil {
		l.step()
		wait := time.Duration(1<<63 - 1)
		if next := l.core.Next(); !next.IsZero() {
			wait = max(next.Sub(l.c.Now()), 0)
		}
		timer.Reset(wait)
		select {
		case e := <-l.events:
			e(l.core, l.c.Now())
		case <-l.c.Changed:
			l.core.Bootstrap(l.bootstrapID(ctx))
			l.sessions.hurry()
			l.c.Retry()
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
	}
	return l.taken
}

// step performs the effects of one Step.
func (l *loop) step() {
	for _, e := range l.core.Step(l.c.Now()) {
		switch e := e.(type) {
		case Connect:
			l.connect(e.Credential)
		case ActivateCertificate:
			l.use(e.Credential)
		case MigrateConnections:
			l.work.Go(l.move)
		case Save:
			l.work.Go(func() { l.save(e.State) })
		case Publish:
			l.sessions.publish(e)
		case NotifyAccepted:
			l.c.Log.InfoContext(l.ctx, "the hub has accepted the cluster")
			l.c.Retry()
		}
	}
	l.show()
}

func (l *loop) use(c *Credential) {
	l.c.ActivateCertificate(c)
	if c == nil {
		l.c.Log.InfoContext(l.ctx, "there is no client certificate")
		return
	}
	l.metrics.issued.Inc()
	l.c.Log.InfoContext(l.ctx, "a client certificate is in use", "not_after", c.NotAfter.UTC(), "renewed_at", l.core.RenewAt().UTC())
	l.c.Retry()
}

// move migrates connections to the new certificate. If the broker refuses it or is unreachable, the present
// connections stay.
func (l *loop) move() {
	if l.c.MigrateConnections == nil {
		return
	}
	ctx, cancel := context.WithTimeout(l.ctx, publishTimeout)
	defer cancel()
	if err := l.c.MigrateConnections(ctx); err != nil && l.ctx.Err() == nil {
		l.c.Log.WarnContext(ctx, "connections keep the former certificate for now", "error", err)
	}
}

func (l *loop) save(k SavedState) {
	ctx, cancel := context.WithTimeout(l.ctx, storeTimeout)
	defer cancel()
	err := l.c.Store.Save(ctx, k.Data())
	l.dispatch(l.ctx, func(c *Core, now time.Time) {
		if errors.Is(err, ErrTaken) {
			l.taken = err
		}
		c.Saved(now, k, err)
	})
}

// show publishes the progress of the registration and logs its changes.
func (l *loop) show() {
	before, now := l.progress.Load(), &Progress{As: l.core.credentialKind, WaitReason: l.core.WaitReason(), Trouble: l.core.Trouble(), Credential: l.core.state.Credential}
	l.progress.Store(now)
	switch {
	case text(now.WaitReason) != text(before.WaitReason) && now.WaitReason != nil:
		l.c.Log.InfoContext(l.ctx, "the registration waits", "for", now.WaitReason)
	case now.WaitReason == nil && before.WaitReason != nil:
		l.c.Log.InfoContext(l.ctx, "the cluster is part of the fleet")
	}
	if text(now.Trouble) != text(before.Trouble) && now.Trouble != nil {
		l.c.Log.WarnContext(l.ctx, "the registration has a problem", "error", now.Trouble)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// sessions has the sessions of one identity.
type sessions struct {
	loop     *loop
	ctx      context.Context //nolint:containedctx // ends the sessions
	cancel   context.CancelFunc
	sessions [numKinds]*session.Session // nil: there is none of this kind
	hints    [numKinds]taskgroup.Bell
	running  sync.WaitGroup
}

// connect replaces the sessions.
func (l *loop) connect(as CredentialKind) {
	l.sessions.end()
	n := &sessions{loop: l}
	n.ctx, n.cancel = context.WithCancel(l.ctx)
	dialer, streams := l.c.Registered, []Kind{Clusters, Requests, Leases}
	if as == Bootstrapping {
		dialer, streams = l.c.Bootstrap, []Kind{Clusters, Requests}
	}
	l.sessions = n
	for _, k := range streams {
		p := &sessionHandler{sessions: n, kind: k}
		n.hints[k] = taskgroup.NewBell()
		n.sessions[k] = session.New(session.Config{
			Dialer: dialErrorReporter{dialer, p}, Filter: transport.Filter{Cluster: l.c.Cluster, DataType: dataTypes[k]}, Handler: p,
			Changed: n.hints[k], Backoff: sessionBackoff, Log: l.c.Log,
		})
		n.running.Go(func() {
			if err := n.sessions[k].Run(n.ctx); err != nil { // an error of the configuration
				l.dispatch(n.ctx, func(c *Core, _ time.Time) { c.Disconnected(k, err) })
			}
		})
	}
}

// end stops the sessions and their publishes, and waits for them.
func (n *sessions) end() {
	if n != nil {
		n.cancel()
		n.running.Wait()
	}
}

// hurry makes sessions that back off retry at once.
func (n *sessions) hurry() {
	if n == nil {
		return
	}
	for _, hint := range n.hints {
		hint.Ring() // no effect for a missing session
	}
}

// publish sends a request to the hub and reports the result to the core.
func (n *sessions) publish(p Publish) {
	l := n.loop
	n.running.Go(func() {
		e, err := newEnvelope(l.c.Cluster).event(p)
		if err == nil {
			ctx, cancel := context.WithTimeout(n.ctx, publishTimeout)
			_, err = n.sessions[subscriptions[p.Request].kind].Publish(ctx, e)
			cancel()
		}
		if n.ctx.Err() != nil {
			return
		}
		l.metrics.requested(p.Request, err)
		if err != nil {
			l.c.Log.DebugContext(n.ctx, "a request to the hub failed", "what", p.Request.String(), "error", err)
		}
		l.dispatch(n.ctx, func(c *Core, now time.Time) { c.Published(now, p, err) })
	})
}

// sessionHandler handles one stream.
type sessionHandler struct {
	sessions *sessions
	kind     Kind
}

func (p *sessionHandler) dispatch(e event) { p.sessions.loop.dispatch(p.sessions.ctx, e) }

// dialErrorReporter reports dial errors to the core. A session does not report them to its Handler.
type dialErrorReporter struct {
	transport.Dialer
	handler *sessionHandler
}

// Dial implements transport.Dialer.
func (d dialErrorReporter) Dial(ctx context.Context) (transport.Conn, error) {
	c, err := d.Dialer.Dial(ctx)
	if err != nil && ctx.Err() == nil {
		d.handler.Disconnected(err)
	}
	return c, err
}

// Hello implements session.Handler. Apart from the interval of heartbeats, the agent sends the headers of an OCM
// agent. It has several streams of registration beside that of its works, and they are quiet for hours.
func (p *sessionHandler) Hello() transport.Hello { return transport.Hello{Heartbeat: time.Minute} }

// Subscribed implements session.Handler.
func (p *sessionHandler) Subscribed(ctx context.Context, _ transport.Accepted) ([]codec.Event, error) {
	answer := make(chan codec.Event, 1)
	var failed error
	p.dispatch(func(c *Core, now time.Time) {
		c.Connected(now, p.kind)
		var e codec.Event
		e, failed = newEnvelope(p.sessions.loop.c.Cluster).list(p.kind, c.ObjectUIDs(p.kind))
		answer <- e
	})
	select {
	case e := <-answer:
		return []codec.Event{e}, failed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Handle implements session.Handler. An unreadable event does not end the connection: it would be sent again.
func (p *sessionHandler) Handle(ctx context.Context, e codec.Event) error {
	s, err := read(p.kind, e)
	if err != nil {
		p.sessions.loop.c.Log.WarnContext(ctx, "unusable event of the hub", "error", err)
		return nil
	}
	p.dispatch(func(c *Core, now time.Time) {
		if s.object == nil {
			c.RemoveObject(now, p.kind, s.uid)
			return
		}
		c.StoreObject(s.object)
	})
	return nil
}

// Disconnected implements session.Handler.
func (p *sessionHandler) Disconnected(err error) {
	p.dispatch(func(c *Core, _ time.Time) { c.Disconnected(p.kind, err) })
}
