package agent

import (
	"context"
	"time"

	"github.com/hawser-io/hawser/internal/sessionfence"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// sourceSessions is the place of the agent's events, and of its source's, where no broker keeps
// anything between the two; see package plain. Guarded by works.mu.
type sourceSessions struct {
	*sessionfence.Tracker
	// peer is the source that was heard last: there is one, to which the topic of the agent's
	// events leads.
	peer string
}

func newSourceSessions(c *CoreConfig) *sourceSessions {
	return &sourceSessions{Tracker: sessionfence.NewTracker(uint64(max(c.Now().UnixMilli(), 1)), c.NewID())}
}

// stamp gives an event to a source its place.
func (n *sourceSessions) stamp(l *subscriptionState, source string, e *codec.Event) {
	if l.stateless {
		n.Stamp(source).Put(e)
	}
}

// keepAliveEvery is how often a source hears that the agent is there, and what it holds in sum.
const keepAliveEvery = time.Minute

// KeepAlive has the source told that the agent is there, if nobody else would say so. It says
// when to call it next.
func (c *Core) KeepAlive() (next time.Duration) {
	c.mu.Lock()
	due := c.connected && c.subscription.stateless && c.sessions.IsHawser(c.sessions.peer)
	c.subscription.alive(due)
	c.mu.Unlock()
	if due {
		c.config.Sync(0)
	}
	return keepAliveEvery
}

// keepAlive is the event that says so.
func (c *Core) keepAlive() (codec.Event, error) {
	c.subscription.alive(false)
	d := c.set.DigestOf(c.sessions.peer)
	e, err := codec.NewKeepalive(codec.SyncParams{
		ID: c.config.NewID(), Time: c.config.Now(), Source: c.config.ClientID, Cluster: c.config.Cluster, Owner: c.sessions.peer,
	}, d)
	if err == nil {
		c.sessions.stamp(c.subscription, c.sessions.peer, &e)
	}
	return e, err
}

// Goodbye is the event that says that the agent is gone. A broker that keeps nothing has it from
// the beginning of a connection, when the agent may not have heard of its source yet.
func (c *Core) Goodbye() (codec.Event, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, err := codec.NewGoodbye(codec.SyncParams{
		ID: c.config.NewID(), Time: c.config.Now(), Source: c.config.ClientID, Cluster: c.config.Cluster, Owner: c.sessions.peer,
	})
	if err == nil {
		c.sessions.Goodbye(c.sessions.peer).Put(&e)
	}
	return e, err
}

// keepaliveEvery bounds how often a source is told what is held because it does not know this agent.
const keepaliveEvery = 5 * time.Second

// counts reports whether an event of a source counts. The first of a session does, and the
// source is told what is held; so it is when it has not heard of this agent yet. That is told
// at once to a session that is new here, and else when keepaliveEvery has passed, but never not at all:
//
//	t1  The agent lists what it holds; hub-source is about to subscribe, and does not get it.
//	t2  hub-source publishes a spec, which names no session of the agent, and is dropped.
//	t3  Only another list tells hub-source of the session, and that it has to publish again.
func (c *Core) counts(ctx context.Context, e codec.Event) bool {
	c.mu.Lock()
	if !c.subscription.stateless {
		c.mu.Unlock()
		return true
	}
	m, err := sessionfence.StampOf(e)
	if err != nil {
		c.mu.Unlock()
		c.config.Metrics.event(eventUndecodable)
		c.config.Log.WarnContext(ctx, "event without a place among the others", "source", e.Source(), "error", err)
		return false
	}
	c.sessions.peer = e.Source()
	v := c.sessions.Observe(e.Source(), m)
	if v == sessionfence.CurrentFirst {
		c.set.Session(e.Source())
	}
	var after time.Duration
	report := false
	switch v {
	case sessionfence.CurrentFirst, sessionfence.NewPeerUnaware:
		after, report = c.subscription.list(c.config.Now(), 0)
	case sessionfence.OldSession, sessionfence.PeerUnaware:
		after, report = c.subscription.list(c.config.Now(), keepaliveEvery)
	case sessionfence.NoSession, sessionfence.Current:
	}
	c.mu.Unlock()
	if report {
		c.config.Sync(after)
	}
	if !v.IsAccepted() {
		c.drop(ctx, eventStaleSession, e)
	}
	return v.IsAccepted()
}

// number puts the number of an event where a broker would have put its own.
func (c *Core) number(spec *manifestwork.Spec, e codec.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m, err := sessionfence.StampOf(e); c.subscription.stateless && err == nil {
		spec.Revision = 0
		if m.Session != (codec.Session{}) {
			spec.Revision = m.Fence
		}
	}
}
