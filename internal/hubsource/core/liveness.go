package core

import (
	"time"

	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/sessionfence"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Where no broker keeps anything nobody but the agent itself can say that it is there. What is
// known of that changes what works and metrics say, and nothing else: nothing is deleted, given
// up or withheld because an agent is not heard.

// liveness is what is known of whether an agent is there.
type liveness struct {
	// lastSeen is when it was heard last.
	lastSeen time.Time
	// goodbye: the broker has said since that it is gone.
	goodbye bool
}

// clearGoodbye drops a farewell that was told on another connection of ours.
func (h *liveness) clearGoodbye() { h.goodbye = false }

// presence is that of a cluster's agent. Without a connection of our own nobody is heard.
func (f *workIndex) presence(cl *cluster) sessionfence.ConnectionState {
	if !f.connected {
		return sessionfence.Unknown
	}
	return sessionfence.ConnectionStateOf(f.Now(), cl.agent.lastSeen, f.connectedAt, cl.agent.goodbye)
}

// isDisconnected reports whether a cluster's agent, which is one of ours, is away. Of others nobody
// can tell: they speak when they have something to say.
func (f *workIndex) isDisconnected(cl *cluster) bool {
	return f.stateless && f.sessions.IsHawser(cl.name) && f.presence(cl) == sessionfence.Disconnected
}

// noteLastSeen takes it that an agent said something.
func (p *agentResponder) noteLastSeen(cl *cluster) {
	was := p.f.presence(cl)
	cl.agent.liveness = liveness{lastSeen: p.f.Now()}
	if was != sessionfence.Connected {
		p.rejudge(cl)
	}
}

// handleGoodbye takes the farewell of an agent. It is a hint: it may never come, and where it comes late
// it is void with the agent's next word, within a minute.
func (p *agentResponder) handleGoodbye(a *Keepalive) {
	cl := p.f.clusters[a.Cluster]
	if cl != nil && p.f.stateless && p.f.sessions.MatchesGoodbye(a.Cluster, a.Stamp) && !cl.agent.goodbye {
		cl.agent.goodbye = true
		p.rejudge(cl)
	}
}

// rejudge has another look at what works say of their agent.
func (p *agentResponder) rejudge(cl *cluster) {
	for _, w := range cl.works {
		if w.problems.agent != nil || w.hub.object != nil && !p.arrived(w) {
			p.f.wake(HubQueue, w.key(), 0)
		}
	}
}

// tellings is how fast works say that their agent is not heard, or is heard again: a cluster
// may have thousands, and the hub has other things to write.
var tellings = fair.Rate{PerSecond: 20, Burst: 1}

// updateAgentProblem brings up to date what a work says of its agent, in its turn. As long as nobody can tell,
// it says what it said, also what an earlier process had it say.
func (p *agentResponder) updateAgentProblem(w *work) {
	message, reported := p.agentProblem(w)
	if !reported || !w.problems.known {
		p.f.keepAgentProblem(w)
	}
	if !reported {
		w.nextTurn = time.Time{}
		return
	}
	if has := w.problems.agent; message == nil && has == nil || message != nil && has != nil && message.generation == has.generation && message.reason == has.reason {
		w.nextTurn = time.Time{}
		return // it goes on with the time that it names
	}
	if w.nextTurn.IsZero() {
		w.nextTurn = p.f.Now().Add(p.noticeLimit.Reserve(tellings, p.f.Now(), 1))
	}
	if p.f.until(HubQueue, w.key(), w.nextTurn) {
		return
	}
	w.nextTurn = time.Time{}
	p.f.setAgentProblem(w, message)
}

// agentProblem is what a work is to say of its agent, nil if it has nothing to say; told: somebody
// can tell.
func (p *agentResponder) agentProblem(w *work) (message *problem, reported bool) {
	f, r := p.f, &w.cl.agent
	switch {
	case !w.cl.selected:
		return nil, true
	case !f.connected:
		return nil, false
	case !f.stateless:
		return p.disconnectedProblemOf(w)
	case p.arrived(w):
		return nil, true
	case w.broker.on(f.sub) != holds:
		return nil, false // it was not published yet
	}
	listening, goodbye := f.connectedAt, r.goodbye
	if !f.sessions.IsHawser(w.cl.name) { // it need not speak before it has something to say
		listening, goodbye = sessionfence.Latest(listening, w.spec.redelivery.since), false
	}
	since := sessionfence.Latest(r.lastSeen, listening)
	switch sessionfence.ConnectionStateOf(f.Now(), r.lastSeen, listening, goodbye) {
	case sessionfence.Disconnected:
		return disconnectedProblem(w.hub.object, since, !r.lastSeen.IsZero()), true
	case sessionfence.Connected:
		reported = true
	case sessionfence.Unknown:
	}
	f.wakeAt(HubQueue, w.key(), since.Add(sessionfence.DisconnectedAfter))
	return nil, reported
}

// reportedWithin is how long a broker that tells of absent agents may take until it does. One that has not
// by then does not tell.
const reportedWithin = 3 * time.Minute

// disconnectedClusters are the clusters without an agent, as a broker tells that keeps works.
type disconnectedClusters struct {
	// sub is the subscription on which it has told, 0 before the first. coming are those of pages
	// behind which more follow.
	sub    int
	now    map[string]codec.DisconnectedCluster
	coming []codec.DisconnectedCluster
}

// subscribe begins a subscription: of pages that came on another one no more follow.
func (a *disconnectedClusters) subscribe() { a.coming = nil }

// DisconnectedClusters receives an event of the broker about clusters without a connected agent. Once no
// more of them follow, they replace the ones before.
func (c *Core) DisconnectedClusters(d codec.DisconnectedClusters) {
	f, a := c.index, &c.responder.disconnected
	if a.coming = append(a.coming, d.Clusters...); d.More {
		return
	}
	before, first := a.now, a.sub != f.sub
	a.sub, a.now = f.sub, make(map[string]codec.DisconnectedCluster, len(a.coming))
	for _, away := range a.coming {
		a.now[away.Cluster] = away
	}
	a.coming = nil
	for name, cl := range f.clusters {
		if first || before[name] != a.now[name] {
			c.responder.rejudge(cl)
		}
	}
}

// disconnectedProblemOf is disconnectedProblem where the broker tells which clusters have no agent.
func (p *agentResponder) disconnectedProblemOf(w *work) (message *problem, reported bool) {
	if p.disconnected.sub != p.f.sub {
		reports := w.problems.agent != nil || ofAgent(w) != nil
		return nil, !reports || !p.f.until(HubQueue, w.key(), p.f.connectedAt.Add(reportedWithin))
	}
	c, away := p.disconnected.now[w.cl.name]
	if !away || p.arrived(w) {
		return nil, true
	}
	return offline(w.hub.object, c), true
}

// keepAgentProblem lets stand what an earlier process had a work say of its agent, until something else is
// known of the work.
func (f *workIndex) keepAgentProblem(w *work) {
	if p := ofAgent(w); p != nil && w.problems.agent == nil {
		f.setAgentProblem(w, p)
	}
}

// ofAgent is what a work says of its agent on the hub, nil if it says nothing.
func ofAgent(w *work) *problem {
	return problemOnHub(w, ReasonAgentDisconnected, ReasonAgentNeverConnected)
}
