package core

import (
	"time"

	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/sessionfence"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Behind a stateless broker only the agent itself can show that it is connected. Liveness changes the
// conditions of works and the metrics, and nothing else. No work is deleted, given up or withheld because an
// agent is disconnected.

// liveness records whether an agent is connected.
type liveness struct {
	// lastSeen is the time of the agent's last event.
	lastSeen time.Time
	// goodbye: the last will of the agent came after lastSeen.
	goodbye bool
}

// clearGoodbye drops a last will that came on another connection of this source.
func (h *liveness) clearGoodbye() { h.goodbye = false }

// presence returns the connection state of a cluster's agent. It is unknown while this source is disconnected.
func (f *workIndex) presence(cl *cluster) sessionfence.ConnectionState {
	if !f.connected {
		return sessionfence.Unknown
	}
	return sessionfence.ConnectionStateOf(f.Now(), cl.agent.lastSeen, f.connectedAt, cl.agent.goodbye)
}

// isDisconnected reports whether a cluster's Hawser agent is disconnected. For OCM agents it returns false:
// they send no keepalives.
func (f *workIndex) isDisconnected(cl *cluster) bool {
	return f.stateless && f.sessions.IsHawser(cl.name) && f.presence(cl) == sessionfence.Disconnected
}

// noteLastSeen records that an agent sent an event.
func (p *agentResponder) noteLastSeen(cl *cluster) {
	was := p.f.presence(cl)
	cl.agent.liveness = liveness{lastSeen: p.f.Now()}
	if was != sessionfence.Connected {
		p.rejudge(cl)
	}
}

// handleGoodbye handles the last will of an agent. It is a hint: it may never come. If it comes late, the
// agent's next event clears it within a minute.
func (p *agentResponder) handleGoodbye(a *Keepalive) {
	cl := p.f.clusters[a.Cluster]
	if cl != nil && p.f.stateless && p.f.sessions.MatchesGoodbye(a.Cluster, a.Stamp) && !cl.agent.goodbye {
		cl.agent.goodbye = true
		p.rejudge(cl)
	}
}

// rejudge wakes the works whose condition Delivered may have to change with the state of their agent.
func (p *agentResponder) rejudge(cl *cluster) {
	for _, w := range cl.works {
		if w.problems.agent != nil || w.hub.object != nil && !p.arrived(w) {
			p.f.wake(HubQueue, w.key(), 0)
		}
	}
}

// tellings limits the status writes that report an agent as disconnected or connected again. A cluster may have
// thousands of works, and the hub has other writes to do.
var tellings = fair.Rate{PerSecond: 20, Burst: 1}

// updateAgentProblem updates the agent problem of a work, within the limit tellings. While the state of the
// agent is unknown, the condition stays, even one of an earlier process.
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
		return // the condition keeps its time
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

// agentProblem returns the agent problem of a work, nil for none. reported is false if the state of the agent
// is unknown.
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
	case w.broker.on(f.sub) != recordMatches:
		return nil, false // the work was not published yet
	}
	listening, goodbye := f.connectedAt, r.goodbye
	if !f.sessions.IsHawser(w.cl.name) { // an OCM agent is silent until it has a report
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

// reportedWithin is how long a broker may take to report disconnected clusters. A broker that has not reported
// by then does not support it.
const reportedWithin = 3 * time.Minute

// disconnectedClusters are the clusters without a connected agent, as reported by a broker with records.
type disconnectedClusters struct {
	// sub is the subscription of the last complete report, 0 before the first. coming are the clusters of pages
	// that more pages follow.
	sub    int
	now    map[string]codec.DisconnectedCluster
	coming []codec.DisconnectedCluster
}

// subscribe begins a subscription. It drops incomplete reports of the previous one, whose other pages no longer
// come.
func (a *disconnectedClusters) subscribe() { a.coming = nil }

// DisconnectedClusters handles an event of the broker about clusters without a connected agent. The last event
// of a report completes it, and it replaces the previous report.
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

// disconnectedProblemOf returns the agent problem behind a broker that reports which clusters have no agent.
// The results are those of agentProblem.
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

// keepAgentProblem keeps the agent problem that an earlier process wrote, until something else is known of the
// work.
func (f *workIndex) keepAgentProblem(w *work) {
	if p := ofAgent(w); p != nil && w.problems.agent == nil {
		f.setAgentProblem(w, p)
	}
}

// ofAgent returns the agent problem of a work on the hub, nil for none.
func ofAgent(w *work) *problem {
	return problemOnHub(w, ReasonAgentDisconnected, ReasonAgentNeverConnected)
}
