package agent

import (
	"context"
	"time"

	"github.com/hawser-io/hawser/internal/sessionfence"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// sourceSessions stamps the agent's events behind a stateless broker, and checks the stamps of its source. See
// package sessionfence. Guarded by works.mu.
type sourceSessions struct {
	*sessionfence.Tracker
	// peer is the source of the last received event. There is one source: the topic of the agent's events leads to
	// it.
	peer string
}

func newSourceSessions(c *CoreConfig) *sourceSessions {
	return &sourceSessions{Tracker: sessionfence.NewTracker(uint64(max(c.Now().UnixMilli(), 1)), c.NewID())}
}

// stamp adds the session stamp to an event for a source.
func (n *sourceSessions) stamp(l *subscriptionState, source string, e *codec.Event) {
	if l.stateless {
		n.Stamp(source).Put(e)
	}
}

// keepaliveEvery is the interval of keepalives to a source, with the digest of the held works.
const keepaliveEvery = time.Minute

// KeepAlive sends a keepalive to the source if the broker is stateless. It returns when to call it next.
func (c *Core) KeepAlive() (next time.Duration) {
	c.mu.Lock()
	due := c.connected && c.subscription.stateless && c.sessions.IsHawser(c.sessions.peer)
	c.subscription.alive(due)
	c.mu.Unlock()
	if due {
		c.config.Sync(0)
	}
	return keepaliveEvery
}

// keepAlive returns the keepalive event.
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

// Goodbye returns the event that reports the agent as gone. A stateless broker gets it as the last will at the
// start of a connection, when the agent may not know its source yet.
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

// listEvery is the minimum interval of lists to a source that does not know this agent.
const listEvery = 5 * time.Second

// counts reports whether an event of a source belongs to the current session. It also schedules a list of all
// works for a source with a new session, and for one that does not know this agent yet. For a new session
// the list is sent at once. Otherwise it waits until listEvery has passed since the last one; it is never
// dropped:
//
// Scenario:
//
//	t1: the agent sends its list; hub-source is about to subscribe and does not get it.
//	t2: hub-source publishes a spec that names no session of the agent; it is dropped.
//	t3: hub-source learns the session only from another list, and then publishes again.
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
		c.config.Log.WarnContext(ctx, "event without a session stamp", "source", e.Source(), "error", err)
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
		after, report = c.subscription.list(c.config.Now(), listEvery)
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

// number sets the revision of a spec to the number of its event, if the broker is stateless.
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
