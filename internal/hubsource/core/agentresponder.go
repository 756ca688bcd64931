package core

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/internal/sessionfence"
	"github.com/hawser-io/hawser/pkg/codec"
)

// agentResponder does a broker's work behind a stateless broker. It answers the lists of agents, requests
// statuses that may be lost, and publishes unconfirmed works again. Works that an agent holds and the hub lacks
// are in orphans.go.
type agentResponder struct {
	f         *workIndex
	epochs    *hubEpochs
	questions *hubQueries
	cursor    *cursor
	// noticeLimit paces status writes that report an agent as disconnected, or as connected again.
	noticeLimit  fair.Bucket
	disconnected disconnectedClusters
}

// remoteAgent is the known state of the agent of one cluster behind a stateless broker.
type remoteAgent struct {
	// list is the agent's list that waits for its answer. hub holds the works of the hub at that moment, nil before
	// the hub was queried. untagged are the works whose tags the answer needs.
	list     *AgentList
	hub      Present
	untagged []*work
	retry    retry
	// requestAt is when statuses are requested again. noticeAt is the earliest time for the next session notice;
	// noticeDue: the agent has to get a notice.
	requestAt, noticeAt time.Time
	noticeDue           bool
	digests             digestReport
	liveness
	orphanTracker
}

// AgentList is the list of the works that an agent holds.
type AgentList struct {
	Cluster  string
	Versions []codec.ResourceVersion
	Stamp    sessionfence.Stamp
}

// ParseAgentList reads a spec resync request. The error is a *codec.AttributeError, or
// codec.ErrNoPayload.
func ParseAgentList(e codec.Event) (l *AgentList, err error) {
	l = &AgentList{}
	if l.Cluster, _, err = codec.StringExtension(e, codec.ExtClusterName); err != nil {
		return nil, err
	}
	if l.Stamp, err = sessionfence.StampOf(e); err != nil {
		return nil, err
	}
	l.Versions, err = codec.DecodeVersions(e.Data())
	return l, err
}

const (
	// requestEvery is how often the statuses of a cluster are requested. Behind a stateless broker only the agent
	// still has a lost report.
	requestEvery = 30 * time.Minute
	// noticeEvery is the shortest time between two session notices to an agent.
	noticeEvery = 10 * time.Second
)

// repairs limits the events that repeat what agents should know already: answers to lists, redeliveries, and
// all works at the start. Brokers in the cloud accept 100 events a second on one connection. A change on the
// hub does not wait for this limit.
var repairs = fair.Rate{PerSecond: 50, Burst: 100}

// redelivery decides when a state of a work is published again, because no agent has confirmed it.
type redelivery struct {
	fingerprint specFingerprint
	times       int
	at          time.Time
	// since is when the state was published first.
	since time.Time
	// known: an agent has listed this state.
	known bool
	// went is the kind of the last publish.
	went publishKind
}

// publishKind is the kind of a publish.
type publishKind uint8

const (
	publishSpec publishKind = iota
	// publishLastSpec: the spec of a work under deletion, which the agent needs before the deletion.
	publishLastSpec
	// publishDeletion: the deletion. All later publishes to the agent are deletions too.
	publishDeletion
)

// againAfter are the redelivery delays; the last one repeats.
var againAfter = []time.Duration{time.Minute, 4 * time.Minute, 30 * time.Minute}

// jitteredAbout returns a random duration within 5 % of d.
func (a *agenda) jitteredAbout(d time.Duration) time.Duration { return d - d/20 + a.jittered(d/10) }

// goes records the state that is published next. Another state starts the delays again.
func (g *redelivery) goes(e Publish) {
	m, goes := e.fingerprint(), publishSpec
	switch {
	case e.First == PriorLastSpec:
		goes = publishLastSpec
	case m.deleting:
		goes = publishDeletion
	}
	if !g.fingerprint.equal(m) || g.went != goes {
		*g = redelivery{fingerprint: m, went: goes}
	}
}

// sent records that the broker accepted the state, and plans the next redelivery.
func (g *redelivery) sent(a *agenda) {
	if g.times == 0 {
		g.since = a.Now()
	}
	g.at = a.Now().Add(a.jitteredAbout(againAfter[min(g.times, len(againAfter)-1)]))
	g.times++
}

// listed records whether an agent lists the state m.
func (g *redelivery) listed(m specFingerprint, has bool) {
	if g.known = has; !g.fingerprint.equal(m) {
		*g = redelivery{fingerprint: m, known: has, went: g.went}
	}
}

// restart begins again with the last spec: the cluster does not know of the deletion.
func (g *redelivery) restart() { *g = redelivery{} }

// arrived reports whether the agent has confirmed the present state of a work. Under rollback suspicion the hub
// may use a generation a second time, so only an exact match counts.
func (p *agentResponder) arrived(w *work) bool {
	m := w.hub.fingerprint()
	switch {
	case m.deleting:
		return false // the agent reports the deletion itself
	case w.spec.redelivery.known && w.spec.redelivery.fingerprint.equal(m):
		return true
	case p.epochs.rollbackSuspicion(everywhere) != "":
		return w.report.last == w.hub.object.Generation
	}
	return reportedVersion(w) >= w.hub.object.Generation
}

// dueAgain reports whether a published work is due for a redelivery.
func (p *agentResponder) dueAgain(w *work) bool {
	switch {
	case !p.f.stateless, p.arrived(w):
		return false
	case w.spec.redelivery.went == publishLastSpec && p.first(w, w.hub.fingerprint()) == PriorNone:
		return true
	}
	return !p.f.until(BrokerQueue, w.key(), w.spec.redelivery.at)
}

// isDropped reports whether the agent drops a published event. It does if it began a session, or announced its
// present one, while the event was in flight.
//
// Scenario:
//
//	t1: a spec is published. It names no session of the agent.
//	t2: the agent drops it, and its list or a report names its session.
//	t3: the broker acknowledges the publish of t1.
//
// Result: the acknowledged spec is published again.
func (p *agentResponder) isDropped(cl *cluster, m sessionfence.Stamp) bool {
	return p.f.stateless && !p.f.sessions.Counts(cl.name, m)
}

// paced reports whether a work may be published now. Only publishes that repeat a state wait for the limit
// repairs.
func (p *agentResponder) paced(w *work) bool {
	has := w.broker.on(p.f.sub)
	if repeats := has == recordUnknown || has == recordMatches && w.broker.fingerprint.equal(w.hub.fingerprint()); !p.f.stateless || !repeats {
		return true
	}
	w.spec.retry.plan(func() time.Time { return p.f.Now().Add(p.f.repaired.Reserve(repairs, p.f.Now(), 1)) })
	return p.f.due(BrokerQueue, w.key(), &w.spec.retry)
}

// acceptsStamp reports whether an event of a cluster's agent is of the current session. An agent that does not
// know this session gets a session notice. The first event of a new agent session starts a new status request,
// because the agent dropped the earlier one.
func (p *agentResponder) acceptsStamp(cluster string, m sessionfence.Stamp) bool {
	cl := p.f.clusters[cluster]
	if !p.f.stateless || cl == nil {
		return true
	}
	v := p.f.sessions.Observe(cluster, m)
	if v != sessionfence.OldSession {
		p.noteLastSeen(cl)
	}
	switch {
	case !cl.selected:
	case v == sessionfence.CurrentFirst:
		p.requestAllStatuses(cl)
	case !v.IsAccepted():
		cl.agent.noticeDue = true
		p.f.wakeCluster(BrokerQueue, cl)
	}
	return v.IsAccepted()
}

// requestAllStatuses starts a request for all statuses of a cluster.
func (p *agentResponder) requestAllStatuses(cl *cluster) {
	cl.lists.repeat(p.cursor, true)
	p.f.wakeCluster(BrokerQueue, cl)
}

// listed stores the list of an agent and replaces the list before. An agent lists after it subscribed or
// learned of this session. It may have missed earlier requests and events in flight.
//
// Scenario:
//
//	t1: a broker that lost its sessions restarts. hub-source subscribes, requests statuses and publishes; no
//	agent is subscribed.
//	t2: the agent subscribes and lists. The broker has lost its earlier reports.
//	t3: the broker acknowledges a spec of t1.
//
// Result: all statuses are requested again, and the answer to the list publishes the spec again.
func (p *agentResponder) listed(l *AgentList) {
	if cl := p.f.clusters[l.Cluster]; cl != nil && p.f.mayReport(cl) && p.f.stateless {
		cl.agent.list, cl.agent.hub, cl.agent.untagged = l, nil, nil
		cl.agent.retry.reset()
		p.requestAllStatuses(cl)
	}
}

// subscribe resets the state that belongs to the subscription before.
func (p *agentResponder) subscribe(cl *cluster) {
	cl.agent.list, cl.agent.hub, cl.agent.untagged, cl.agent.noticeDue = nil, nil, nil, false
	cl.agent.digests = digestReport{}
	cl.agent.requestAt = p.f.Now().Add(p.f.jitteredAbout(requestEvery))
	cl.agent.orphanTracker.subscribe()
	cl.agent.clearGoodbye()
}

// waits reports whether the agent has to get an answer, a request or a session notice.
func (r *remoteAgent) waits() bool {
	return r.list != nil || r.noticeDue || len(r.unknown) > 0 || len(r.orphans) > 0
}

// forgetAgent drops the state of the agent of a cluster that is no longer served.
func (cl *cluster) forgetAgent() { cl.agent = remoteAgent{} }

// next decides the next step for the agent of a cluster.
func (p *agentResponder) next(cl *cluster) *todo {
	if !p.f.stateless || !p.f.mayReport(cl) {
		return nil
	}
	if !p.f.until(BrokerQueue, cl.key(), cl.agent.requestAt) {
		cl.agent.requestAt = p.f.Now().Add(p.f.jitteredAbout(requestEvery))
		cl.agent.digests = digestReport{}
		cl.agent.orphanTracker.requestAgain()
		p.requestAllStatuses(cl)
	}
	return first(cl, p.nextAnswer, p.nextSum, p.nextSessionNotice, p.nextOrphans)
}

// emptyStatusRequest requests no status; it only carries the session of this source.
var emptyStatusRequest = []StatusRef{{UID: "none", Hash: "none"}}

// nextSessionNotice sends this session to an agent. The notice is a request for the statuses of its works, or
// an empty request if there are no works. A notice that comes too soon after the last one waits.
//
// Scenario:
//
//	t1: the agent gets a session notice.
//	t2: it restarts, begins a session, and has nothing to report after that.
//	t3: noticeEvery after t1 it gets another notice.
//
// Without this: the agent would not learn of this session before its next report.
func (p *agentResponder) nextSessionNotice(cl *cluster) *todo {
	if !cl.agent.noticeDue || p.f.until(BrokerQueue, cl.key(), cl.agent.noticeAt) || !p.f.ready(cl.key(), &cl.agent.retry) {
		return nil
	}
	cl.agent.noticeDue, cl.agent.noticeAt = false, p.f.Now().Add(noticeEvery)
	if len(cl.works) > 0 {
		p.requestAllStatuses(cl)
		return nil
	}
	return p.f.ofCluster(cl, RequestStatuses{Cluster: cl.name, Statuses: emptyStatusRequest, Stamp: p.f.stamp(cl), Limit: p.f.limit}, func(r Result) {
		if p.f.brokerFailed(cl.key(), &cl.agent.retry, r.Err) {
			cl.agent.noticeDue = true
		}
	})
}

// nextAnswer decides the answer to an agent's list. The answer waits until the informers have shown all works
// that the hub has on the cluster. A work that they have not shown yet would look missing.
func (p *agentResponder) nextAnswer(cl *cluster) *todo {
	r := &cl.agent
	l := r.list
	if l == nil || !p.f.due(BrokerQueue, cl.key(), &r.retry) {
		return nil
	}
	if r.hub == nil {
		return p.f.ofCluster(cl, List{Namespace: cl.name}, func(r Result) {
			if cl.agent.list == l {
				p.doneList(cl, r)
			}
		})
	}
	if t := p.f.nextTag(cl, &r.untagged); t != nil {
		return t
	}
	r.list = nil
	p.answer(cl, resync.NewSpecs(l.Versions), r.hub)
	return p.nextOrphans(cl)
}

func (p *agentResponder) doneList(cl *cluster, r Result) {
	switch {
	case r.Err != nil:
		p.f.hubFailed(BrokerQueue, cl.key(), &cl.agent.retry, r.Err)
	case !p.isShown(cl, r.Present):
		p.f.failed(BrokerQueue, cl.key(), &cl.agent.retry, 0)
	default:
		cl.agent.retry.reset()
		cl.agent.hub = r.Present
		if len(cl.agent.list.Versions) > 0 && cl.agent.list.Versions[0].Tag != "" {
			cl.agent.tagAll(cl)
		}
		p.f.wakeCluster(BrokerQueue, cl)
	}
}

// tagAll queues all works without a tag for tagging.
func (r *remoteAgent) tagAll(cl *cluster) { r.untagged = append(r.untagged, cl.untagged()...) }

// untagged returns the works of a cluster that need a tag before they can be compared.
func (cl *cluster) untagged() (works []*work) {
	for _, w := range cl.works {
		if w.comparable() != nil && !w.hub.isTagged() {
			works = append(works, w)
		}
	}
	return works
}

// isShown reports whether the informers have shown all works that the hub has on a cluster.
func (p *agentResponder) isShown(cl *cluster, has Present) bool {
	for uid, version := range has {
		w := cl.works[uid]
		if w == nil || w.hub.object == nil || olderVersion(w.hub.object.ResourceVersion, version) {
			return false
		}
	}
	return true
}

// answer compares the list of an agent with the hub. Each work that differs is then published on its own.
func (p *agentResponder) answer(cl *cluster, s *resync.Specs, has Present) {
	for uid, w := range cl.works {
		switch {
		case w.hub.object == nil:
		case w.hub.ended == alive && has[uid] == "": // the informer lags behind the deletion
			s.MarkKnown(string(uid))
			p.questions.query(w)
		case isLarge(w.hub.object) && !w.hub.deleting():
			s.MarkKnown(string(uid))
		default:
			p.answerOf(w, s)
		}
	}
	p.trackListedOrphans(cl, s.Orphans())
}

// answerOf decides the answer for one work of an agent's list.
func (p *agentResponder) answerOf(w *work, s *resync.Specs) {
	id, m := string(w.uid), w.hub.fingerprint()
	spec := resync.Spec{ID: id, State: resync.Live, Version: m.generation, Tag: w.hub.tag, Reported: reportedVersion(w) > 0, ReportedVersion: reportedVersion(w)}
	if m.deleting {
		spec.State = resync.Deleted
	}
	decision := s.Decide(spec)
	w.spec.overtake(decision != resync.Skip, p.f.sub)
	switch decision {
	case resync.Skip:
		w.spec.redelivery.listed(m, true)
		w.broker.sync(p.f.sub, m, 0, p.f.tick())
		w.spec.setInSync()
	case resync.SpecThenDeletion:
		w.spec.redelivery.restart()
		w.broker.forget()
	case resync.Ahead:
		p.ahead(w, s.Version(id))
	case resync.Send:
		w.spec.redelivery.listed(m, false)
		w.broker.forget()
	}
	p.f.recount(w)
	p.f.wakeWork(w)
}

// ahead records that an agent holds a later version of a work than the hub has shown. The hub is then queried:
// either the informer lags, or the hub went back in time.
func (p *agentResponder) ahead(w *work, version int64) {
	w.broker.forget()
	if !w.hub.deleting() {
		w.broker.list(p.f.sub, 0, &codec.InventoryRecord{ResourceID: string(w.uid), Version: version}, p.f.tick())
	}
}

// reported records a report about a version that the hub has not shown.
func (p *agentResponder) reported(w *work, r *Report) {
	if p.f.stateless && !r.Unversioned && r.Version > w.hub.object.Generation {
		p.ahead(w, r.Version)
		p.f.recount(w)
		p.f.wakeWork(w)
	}
}

// isForeign reports whether a report is about a work of another source or of another cluster. A stateless
// broker does not check the owner.
func (p *agentResponder) isForeign(w *work, cl *cluster, r *Report) bool {
	return p.f.stateless && (r.Source != p.f.Source || w != nil && w.cl != cl)
}

// noteReport wakes a work when its cluster has reported: the agent may have the last spec now.
func (p *agentResponder) noteReport(w *work) {
	if w.spec.redelivery.went == publishLastSpec {
		p.f.wake(BrokerQueue, w.key(), 0)
	}
}

// first returns what goes out before the state m. An OCM agent reads the delete option from the last spec, and
// ignores the one in the deletion. So it must confirm the last spec before the deletion goes out. A spec after
// the deletion would create the work again.
func (p *agentResponder) first(w *work, m specFingerprint) PriorEvent {
	switch behind := w.isBehind(p.f.sub) || p.epochs.rollbackSuspicion(everywhere) != ""; {
	case !m.deleting && behind:
		return PriorUnversioned
	case !m.deleting, w.spec.redelivery.went == publishDeletion, p.f.sessions.IsHawser(w.cl.name):
		return PriorNone // a Hawser agent reads the data of the deletion
	case reportedVersion(w) >= m.generation, w.hub.object.Spec.DeleteOption == nil && reportedVersion(w) >= m.generation-1:
		return PriorNone
	}
	return PriorLastSpec
}

// sortedKeys returns the uids of a map, sorted.
func sortedKeys[V any](m map[types.UID]V) []types.UID { return slices.Sorted(maps.Keys(m)) }
