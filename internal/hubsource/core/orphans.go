package core

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Behind a broker that keeps nothing only the agent knows of a work that the hub lacks. That
// is no deletion:
//
//	an agent lists an id ──asked for its status──► it names work and source
//	      a status came for an id that is not there ───────┘
//	                                 │ the source is this one, and the hub says that it has no
//	                                 ▼ such work, or another one of that name
//	       one of ours has listed all that it has, few are missing, and nothing casts doubt on the hub?
//	             │ yes: the hub is asked once more, and      │ no: withheld, for a person
//	             ▼ where it is; then a deletion goes out     ▼
//	       published again until the agent says that it is gone
type orphanTracker struct {
	// unknown are ids of a list that the agent is still to be asked for, listed all those of the
	// last list.
	unknown, listed []string
	// answered: a list was answered on this subscription. wanted paces asking for one.
	answered bool
	wanted   retry
	orphans  map[types.UID]*orphan
	// gone counts those that were deleted since a list explained all, told those withheld that
	// somebody was told of.
	gone, reported int
	requesting     bool
}

// orphan is a work that an agent has and the hub lacks.
type orphan struct {
	name    string
	version int64
	// work is its last state, where that is known. seen: the hub showed its deletion.
	work *workv1.ManifestWork
	seen bool
	// withheld is why it is left to a person, "" if it is not.
	withheld string
	// absent: the hub was asked for it since the last deletion went out, and does not have it.
	absent bool
	times  int
	retry  retry
}

func (l *orphanTracker) subscribe() {
	l.requesting, l.unknown, l.listed, l.reported, l.answered = false, nil, nil, 0, false
	l.wanted.reset()
	for _, one := range l.orphans {
		one.retry.reset()
		one.times, one.absent, one.withheld = 0, false, ""
	}
}

// requestAgain has an agent asked once more for what it has not said: its answer may be lost, and a stock
// agent does not list again before it connects anew.
func (l *orphanTracker) requestAgain() {
	known := func(id string) bool { return l.orphans[types.UID(id)] != nil }
	l.unknown = slices.DeleteFunc(slices.Clone(l.listed), known)
}

// withheld is how many deletions are left to a person.
func (l *orphanTracker) withheld() (n int) {
	for _, one := range l.orphans {
		if one.withheld != "" {
			n++
		}
	}
	return n
}

// trackListedOrphans takes the ids of a list that the hub lacks. Where there is none, nothing that was
// missing is any more.
func (p *agentResponder) trackListedOrphans(cl *cluster, ids []string) {
	cl.agent.unknown, cl.agent.orphanTracker.listed = ids, ids
	if len(ids) == 0 {
		cl.agent.orphans, cl.agent.gone, cl.agent.reported = nil, 0, 0
		p.epochs.clearSuspicion(cl.name)
	}
	cl.agent.answered = true
	p.f.wakeCluster(BrokerQueue, cl)
}

// trackListed takes it that an agent has a work of ours, and that the hub has it not.
func (p *agentResponder) trackListed(cl *cluster, uid types.UID, name string, version int64) {
	if p.f.stateless && cl.agent.orphans[uid] == nil {
		p.trackOrphan(cl, uid, &orphan{name: name, version: version})
	}
}

// trackDeletion takes it that a work left the hub, and its cluster has not said that it is gone.
func (p *agentResponder) trackDeletion(w *work) {
	o := w.hub.object
	p.trackOrphan(w.cl, w.uid, &orphan{name: o.Name, version: o.Generation, work: o, seen: w.hub.ended == deleted})
}

func (p *agentResponder) trackOrphan(cl *cluster, uid types.UID, one *orphan) {
	if cl.agent.orphans == nil {
		cl.agent.orphans = map[types.UID]*orphan{}
	}
	cl.agent.orphans[uid] = one
	if !one.seen {
		one.retry.wait(p.f.Now().Add(missingDelay), false) // so that all that is missing is known by then
		p.epochs.readPositionNow()
	}
	p.f.wakeCluster(BrokerQueue, cl)
}

// forgetOrphan takes it that a work is on the hub, gone that its cluster says that it is gone.
func (cl *cluster) forgetOrphan(uid types.UID) { delete(cl.agent.orphans, uid) }

func (cl *cluster) gone(uid types.UID) {
	if one := cl.agent.orphans[uid]; one != nil {
		if !one.seen {
			cl.agent.gone++
		}
		cl.forgetOrphan(uid)
	}
}

// nextOrphans decides about works that only an agent has.
func (p *agentResponder) nextOrphans(cl *cluster) *todo {
	l := &cl.agent.orphanTracker
	if l.requesting || !p.f.ready(cl.key(), &cl.agent.retry) {
		return nil
	}
	if len(l.unknown) > 0 {
		return p.requestStatuses(cl, l.unknown[:min(len(l.unknown), maxListed)])
	}
	for _, uid := range sortedKeys(l.orphans) {
		if t := p.nextOrphan(cl, uid, l.orphans[uid]); t != nil {
			return t
		}
	}
	if n := l.withheld(); n > l.reported {
		l.reported = n
		return &todo{Effect: p.withheldOf(cl)}
	}
	return nil
}

// withheldOf says what is left to a person.
func (p *agentResponder) withheldOf(cl *cluster) Effect {
	o := codec.ClusterSyncReport{Cluster: cl.name}
	for _, uid := range sortedKeys(cl.agent.orphans) {
		if one := cl.agent.orphans[uid]; one.withheld != "" {
			o.Withheld, o.Reason = append(o.Withheld, codec.WithheldDeletion{ResourceID: string(uid), Name: one.name}), one.withheld
		}
	}
	return Withhold{o}
}

// requestStatuses asks an agent for the statuses of works: they say whose they are, and how they are
// called.
func (p *agentResponder) requestStatuses(cl *cluster, ids []string) *todo {
	var held []StatusRef
	for _, id := range ids {
		held = append(held, StatusRef{UID: types.UID(id), Hash: "none"})
	}
	return p.begin(cl, RequestStatuses{Cluster: cl.name, Held: held, Stamp: p.f.stamp(cl), Limit: p.f.limit}, func(r Result) {
		if !p.f.brokerFailed(cl.key(), &cl.agent.retry, r.Err) {
			cl.agent.unknown = cl.agent.unknown[min(len(ids), len(cl.agent.unknown)):]
		}
	})
}

// begin does one thing at a time for a cluster.
func (p *agentResponder) begin(cl *cluster, e Effect, done func(Result)) *todo {
	cl.agent.requesting = true
	return p.f.ofCluster(cl, e, func(r Result) {
		cl.agent.requesting = false
		done(r)
		p.f.wakeCluster(BrokerQueue, cl)
	})
}

func (p *agentResponder) nextOrphan(cl *cluster, uid types.UID, one *orphan) *todo {
	if one.withheld != "" || !p.f.due(BrokerQueue, cl.key(), &one.retry) {
		return nil
	}
	if !one.seen {
		if one.withheld = p.rollbackSuspicion(cl); one.withheld != "" {
			p.f.wake(HubQueue, Key{}, 0)
			return nil
		}
		if request, judged := p.isVerified(cl); !judged {
			return request
		}
		if !one.absent {
			return p.begin(cl, Get{UID: uid, Namespace: cl.name, Name: one.name}, func(r Result) { p.doneGet(cl, uid, one, r) })
		}
		if !p.epochs.positionRead() {
			return nil // see missing.records
		}
	}
	one.absent = false
	line := p.f.stamp(cl)
	var e Effect = Delete{Record: codec.InventoryRecord{Cluster: cl.name, ResourceID: string(uid), Name: one.name, Version: one.version}, Stamp: line}
	if o := one.work; o != nil {
		e = Publish{Work: o, Action: codec.DeleteRequest, Slim: isLarge(o), Stamp: line}
	}
	return p.begin(cl, e, func(r Result) {
		switch {
		case p.f.brokerFailed(cl.key(), &one.retry, r.Err):
			return
		case r.Err == nil && p.isDropped(cl, line):
			p.f.failed(BrokerQueue, cl.key(), &one.retry, 0)
			return
		}
		one.retry.wait(p.f.Now().Add(p.f.jitteredAbout(againAfter[min(one.times, len(againAfter)-1)])), false)
		one.times++
	})
}

// isVerified reports whether all that may show that the hub went back has been looked at; where the agent
// has not said it, ask asks for it. A lost work alone may be what a restore took:
//
//	t1  A hub is restored to a state in which it lacks one work, and has an older version of
//	    another. A hub-source begins.
//	t2  The status of the lost work comes. The list, and the status of the other, are lost.
//	t3  The hub says that it lacks the work. Nothing that arrived says that it had it once.
//
// Stock agents are asked for statuses alone: a list of theirs comes when they connect.
func (p *agentResponder) isVerified(cl *cluster) (request *todo, judged bool) {
	l := &cl.agent.orphanTracker
	switch {
	case p.f.behind > 0: // the hub is asked, and then in doubt
	case l.answered || !p.f.sessions.IsHawser(cl.name):
		return nil, true
	case p.f.due(BrokerQueue, cl.key(), &l.wanted):
		l.wanted.wait(p.f.Now().Add(missingDelay), false)
		return p.requestAgentList(cl), false
	}
	return nil, false
}

func (p *agentResponder) doneGet(cl *cluster, uid types.UID, one *orphan, r Result) {
	switch {
	case r.isAbsent(uid):
		one.absent = true
		one.retry.reset()
		p.epochs.readPositionNow()
	case r.Err != nil:
		p.f.hubFailed(BrokerQueue, cl.key(), &one.retry, r.Err)
	default: // only the informer does not have it yet
		p.epochs.shown(r.Work)
		cl.forgetOrphan(uid)
	}
}

// rollbackSuspicion returns why nothing may be deleted on a cluster because the hub lacks it, "" when it
// may be.
func (p *agentResponder) rollbackSuspicion(cl *cluster) string {
	missing := max(len(cl.agent.orphanTracker.listed), len(cl.agent.orphans)+cl.agent.gone)
	return p.epochs.suspicionOfMissing(cl.name, missing, len(cl.works)+missing)
}

// located goes on when it is known where the hub is.
func (p *agentResponder) located() {
	for _, cl := range p.f.clusters {
		if len(cl.agent.orphans) > 0 {
			p.f.wakeCluster(BrokerQueue, cl)
		}
	}
}
