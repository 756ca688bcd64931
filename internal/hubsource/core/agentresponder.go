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

// agentResponder stands in for a broker that keeps nothing: it answers the lists of agents, asks them
// for what they may have said to nobody, and publishes again what was not answered. What an
// agent has that the hub lacks is in orphans.go.
type agentResponder struct {
	f         *workIndex
	epochs    *hubEpochs
	questions *hubQueries
	cursor    *cursor
	// noticeLimit is how many works were told of late that their agent is not heard, or that it is.
	noticeLimit  fair.Bucket
	disconnected disconnectedClusters
}

// remoteAgent is what is known of the agent of one cluster across a broker that keeps nothing.
type remoteAgent struct {
	// list waits for its answer; hub is what the hub has at that moment, nil before it was
	// asked. untagged are works whose tags have to be computed for the answer.
	list     *Listed
	hub      Present
	untagged []*work
	retry    retry
	// requestAt is when statuses are to be asked for again. noticeAt is when an agent may be told
	// again that it has not heard of us; greet: it is to be told.
	requestAt, noticeAt time.Time
	noticeDue           bool
	digests             digestReport
	liveness
	orphanTracker
}

// Listed is what an agent says that it holds.
type Listed struct {
	Cluster  string
	Versions []codec.ResourceVersion
	Stamp    sessionfence.Stamp
}

// ListedOf reads a spec resync request. The error is a *codec.AttributeError, or
// codec.ErrNoPayload.
func ListedOf(e codec.Event) (l *Listed, err error) {
	l = &Listed{}
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
	// requestEvery is how often the statuses of a cluster are asked for: of a report that was
	// lost nobody else knows.
	requestEvery = 30 * time.Minute
	// noticeEvery bounds how often an agent is told that it has not heard of us.
	noticeEvery = 10 * time.Second
)

// repairs is how fast the agents are told what they should know already: answers to lists,
// what is published again, and all works at the start. Brokers in the cloud take 100 events a
// second from one connection. A change on the hub does not wait for that.
var repairs = fair.Rate{PerSecond: 50, Burst: 100}

// redelivery says when a state of a work is published once more, because nobody has said that it
// arrived.
type redelivery struct {
	fingerprint specFingerprint
	times       int
	at          time.Time
	// since is when the state went out first.
	since time.Time
	// known: an agent has listed this state.
	known bool
	// went is what went out last.
	went publishKind
}

// publishKind is what was published of a work.
type publishKind uint8

const (
	publishSpec publishKind = iota
	// publishLastSpec: it is to be deleted, and an agent has to have this before.
	publishLastSpec
	// publishDeletion: what its agent gets after that it has to get as a deletion.
	publishDeletion
)

// againAfter is after how long that is, and then as often as the last.
var againAfter = []time.Duration{time.Minute, 4 * time.Minute, 30 * time.Minute}

// jitteredAbout is a time near another one.
func (a *agenda) jitteredAbout(d time.Duration) time.Duration { return d - d/20 + a.jittered(d/10) }

// goes takes it that a state is about to be published.
func (g *redelivery) goes(e Publish) {
	m, goes := e.fingerprint(), publishSpec
	switch {
	case e.First == LastSpec:
		goes = publishLastSpec
	case m.deleting:
		goes = publishDeletion
	}
	if !g.fingerprint.equal(m) || g.went != goes {
		*g = redelivery{fingerprint: m, went: goes}
	}
}

// sent takes it that it was.
func (g *redelivery) sent(a *agenda) {
	if g.times == 0 {
		g.since = a.Now()
	}
	g.at = a.Now().Add(a.jitteredAbout(againAfter[min(g.times, len(againAfter)-1)]))
	g.times++
}

// listed takes it that an agent lists a state, or something else.
func (g *redelivery) listed(m specFingerprint, has bool) {
	if g.known = has; !g.fingerprint.equal(m) {
		*g = redelivery{fingerprint: m, known: has, went: g.went}
	}
}

// restart takes it that the cluster knows nothing of a work's end.
func (g *redelivery) restart() { *g = redelivery{} }

// arrived reports whether its cluster has said something of the present state of a work. A hub
// in doubt may count a generation once more.
func (p *agentResponder) arrived(w *work) bool {
	m := w.hub.fingerprint()
	switch {
	case m.deleting:
		return false // then it says that it is gone
	case w.spec.redelivery.known && w.spec.redelivery.fingerprint.equal(m):
		return true
	case p.epochs.rollbackSuspicion(everywhere) != "":
		return w.report.last == w.hub.object.Generation
	}
	return reportedVersion(w) >= w.hub.object.Generation
}

// dueAgain reports whether a work that was published is to be published once more.
func (p *agentResponder) dueAgain(w *work) bool {
	switch {
	case !p.f.stateless, p.arrived(w):
		return false
	case w.spec.redelivery.went == publishLastSpec && p.first(w, w.hub.fingerprint()) == Nothing:
		return true
	}
	return !p.f.until(BrokerQueue, w.key(), w.spec.redelivery.at)
}

// isDropped reports whether an event that was published does not count at its agent: it began a
// session, or told of its present one, while the event was on its way.
//
//	t1  A spec is published. It names no session of the agent.
//	t2  The agent drops it and says so, by its list or a report.
//	t3  The broker acknowledges what was published at t1.
func (p *agentResponder) isDropped(cl *cluster, m sessionfence.Stamp) bool {
	return p.f.stateless && !p.f.sessions.Counts(cl.name, m)
}

// paced reports whether it is the turn of a work that the broker may be told already.
func (p *agentResponder) paced(w *work) bool {
	has := w.broker.on(p.f.sub)
	if repeats := has == unknown || has == holds && w.broker.fingerprint.equal(w.hub.fingerprint()); !p.f.stateless || !repeats {
		return true
	}
	w.spec.retry.plan(func() time.Time { return p.f.Now().Add(p.f.repaired.Reserve(repairs, p.f.Now(), 1)) })
	return p.f.due(BrokerQueue, w.key(), &w.spec.retry)
}

// acceptsStamp reports whether an event of a cluster's agent counts. One that has not heard of this
// session is told of it. One whose session was not known when its statuses were asked for is asked
// again: it dropped the request.
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

// requestAllStatuses has all statuses of a cluster asked for.
func (p *agentResponder) requestAllStatuses(cl *cluster) {
	cl.lists.repeat(p.cursor, true)
	p.f.wakeCluster(BrokerQueue, cl)
}

// listed takes the list of an agent, in the place of the one before. Who lists has just subscribed,
// or heard of us, and may not have got what it was asked before, nor what is on its way:
//
//	t1  A broker comes back that has forgotten its sessions. hub-source subscribes and asks for
//	    statuses, and publishes; nobody is there.
//	t2  The agent subscribes and lists. What it had reported went with the broker.
//	t3  The broker acknowledges a spec of t1.
func (p *agentResponder) listed(l *Listed) {
	if cl := p.f.clusters[l.Cluster]; cl != nil && p.f.mayReport(cl) && p.f.stateless {
		cl.agent.list, cl.agent.hub, cl.agent.untagged = l, nil, nil
		cl.agent.retry.reset()
		p.requestAllStatuses(cl)
	}
}

// subscribe begins anew with a subscription.
func (p *agentResponder) subscribe(cl *cluster) {
	cl.agent.list, cl.agent.hub, cl.agent.untagged, cl.agent.noticeDue = nil, nil, nil, false
	cl.agent.digests = digestReport{}
	cl.agent.requestAt = p.f.Now().Add(p.f.jitteredAbout(requestEvery))
	cl.agent.orphanTracker.subscribe()
	cl.agent.clearGoodbye()
}

// waits reports whether something is still to be done for an agent.
func (r *remoteAgent) waits() bool {
	return r.list != nil || r.noticeDue || len(r.unknown) > 0 || len(r.orphans) > 0
}

// forgetAgent ends what is known of a cluster that is served no longer.
func (cl *cluster) forgetAgent() { cl.agent = remoteAgent{} }

// next decides about a cluster.
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

// emptyStatusRequest is a list of statuses that asks for none.
var emptyStatusRequest = []StatusRef{{UID: "none", Hash: "none"}}

// nextSessionNotice tells an agent of this session, with a request for its statuses or, where there are
// no works, for none. One that comes too early after the last is owed:
//
//	t1  The agent is told of this session.
//	t2  It is restarted, says so, and has nothing to say after that.
//	t3  noticeEvery after t1 it is told once more. Before its next report nothing else would.
func (p *agentResponder) nextSessionNotice(cl *cluster) *todo {
	if !cl.agent.noticeDue || p.f.until(BrokerQueue, cl.key(), cl.agent.noticeAt) || !p.f.ready(cl.key(), &cl.agent.retry) {
		return nil
	}
	cl.agent.noticeDue, cl.agent.noticeAt = false, p.f.Now().Add(noticeEvery)
	if len(cl.works) > 0 {
		p.requestAllStatuses(cl)
		return nil
	}
	return p.f.ofCluster(cl, RequestStatuses{Cluster: cl.name, Held: emptyStatusRequest, Stamp: p.f.stamp(cl), Limit: p.f.limit}, func(r Result) {
		if p.f.brokerFailed(cl.key(), &cl.agent.retry, r.Err) {
			cl.agent.noticeDue = true
		}
	})
}

// nextAnswer decides about the list of an agent. It is answered when the informers have shown
// all that the hub has on that cluster: what they have not shown yet is not missing.
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

// tagAll has the tags of all works computed that have none.
func (r *remoteAgent) tagAll(cl *cluster) { r.untagged = append(r.untagged, cl.untagged()...) }

// untagged are the works of a cluster that can be compared once they have a tag.
func (cl *cluster) untagged() (works []*work) {
	for _, w := range cl.works {
		if w.comparable() != nil && !w.hub.isTagged() {
			works = append(works, w)
		}
	}
	return works
}

// isShown reports whether the informers have shown all that the hub has on a cluster.
func (p *agentResponder) isShown(cl *cluster, has Present) bool {
	for uid, version := range has {
		w := cl.works[uid]
		if w == nil || w.hub.object == nil || olderVersion(w.hub.object.ResourceVersion, version) {
			return false
		}
	}
	return true
}

// answer compares what an agent lists with the hub. Each work is published on its own, in its
// turn.
func (p *agentResponder) answer(cl *cluster, s *resync.Specs, has Present) {
	for uid, w := range cl.works {
		switch {
		case w.hub.object == nil:
		case w.hub.ended == alive && has[uid] == "": // the informer lags behind its end
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

// answerOf decides about one work of an agent's list.
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
		w.spec.agreed()
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

// ahead takes it that an agent has a later version of a work than the hub has shown. The hub is asked:
// the informer may lag, or the hub went back.
func (p *agentResponder) ahead(w *work, version int64) {
	w.broker.forget()
	if !w.hub.deleting() {
		w.broker.list(p.f.sub, 0, &codec.InventoryRecord{ResourceID: string(w.uid), Version: version}, p.f.tick())
	}
}

// reported takes it that an agent has said something of a version that the hub has not shown.
func (p *agentResponder) reported(w *work, r *Report) {
	if p.f.stateless && !r.Unversioned && r.Version > w.hub.object.Generation {
		p.ahead(w, r.Version)
		p.f.recount(w)
		p.f.wakeWork(w)
	}
}

// isForeign reports whether a report is about another source's work, or one of another cluster:
// nobody on the way has looked whose it is.
func (p *agentResponder) isForeign(w *work, cl *cluster, r *Report) bool {
	return p.f.stateless && (r.Source != p.f.Source || w != nil && w.cl != cl)
}

// noteReport takes it that a cluster has said something of a work: it may have the last spec.
func (p *agentResponder) noteReport(w *work) {
	if w.spec.redelivery.went == publishLastSpec {
		p.f.wake(BrokerQueue, w.key(), 0)
	}
}

// first says what an agent of OCM has to have before what is published now. The last spec says
// what deletion means, and a deletion that it has means nothing without: so it has to say first
// that it has that. After the deletion went out the spec would bring the work back.
func (p *agentResponder) first(w *work, m specFingerprint) Before {
	switch behind := w.isBehind(p.f.sub) || p.epochs.rollbackSuspicion(everywhere) != ""; {
	case !m.deleting && behind:
		return Unversioned
	case !m.deleting, w.spec.redelivery.went == publishDeletion, p.f.sessions.IsHawser(w.cl.name):
		return Nothing // ours takes the data of the deletion
	case reportedVersion(w) >= m.generation, w.hub.object.Spec.DeleteOption == nil && reportedVersion(w) >= m.generation-1:
		return Nothing
	}
	return LastSpec
}

// sortedKeys returns the uids of a map, sorted.
func sortedKeys[V any](m map[types.UID]V) []types.UID { return slices.Sorted(maps.Keys(m)) }
