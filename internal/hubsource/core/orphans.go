package core

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
)

// orphanTracker finds works that an agent holds and the hub lacks. Behind a stateless broker only the agent
// knows of them. Such a work is no proof of a deletion:
//
//	an agent lists an id ──request its status──► the status names work and source
//	     or a status arrives for an unknown id ──────┘
//	                                 │ this source owns it, and the hub returns that it has no
//	                                 ▼ such work, or another one of that name
//	     the agent has listed all its works, few are missing, and there is no rollback suspicion?
//	             │ yes: query the hub once more, and         │ no: withheld, for the operator
//	             ▼ read its position; publish a deletion     ▼
//	     publish again until the agent confirms the deletion
type orphanTracker struct {
	// unknown are the listed ids whose status is still to be requested. listed are all ids of the last list.
	unknown, listed []string
	// answered: a list was answered on this subscription. wanted limits how often a list is requested.
	answered bool
	wanted   retry
	orphans  map[types.UID]*orphan
	// gone counts the orphans that were deleted since the last list without orphans. reported counts the withheld
	// deletions that were reported.
	gone, reported int
	requesting     bool
}

// orphan is a work that an agent holds and the hub lacks.
type orphan struct {
	name    string
	version int64
	// work is the last known state, nil if it is unknown. seen: the hub showed the deletion.
	work *workv1.ManifestWork
	seen bool
	// withheld is why the deletion is withheld, "" if it is not.
	withheld string
	// absent: the hub was queried since the last deletion was published, and lacks the work.
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

// requestAgain requests the statuses of unknown works again: the answer may be lost, and an OCM agent lists
// only when it connects.
func (l *orphanTracker) requestAgain() {
	known := func(id string) bool { return l.orphans[types.UID(id)] != nil }
	l.unknown = slices.DeleteFunc(slices.Clone(l.listed), known)
}

// withheld returns the number of withheld deletions.
func (l *orphanTracker) withheld() (n int) {
	for _, one := range l.orphans {
		if one.withheld != "" {
			n++
		}
	}
	return n
}

// trackListedOrphans stores the listed ids that the hub lacks. An empty list ends all orphans of the cluster.
func (p *agentResponder) trackListedOrphans(cl *cluster, ids []string) {
	cl.agent.unknown, cl.agent.orphanTracker.listed = ids, ids
	if len(ids) == 0 {
		cl.agent.orphans, cl.agent.gone, cl.agent.reported = nil, 0, 0
		p.epochs.clearSuspicion(cl.name)
	}
	cl.agent.answered = true
	p.f.wakeCluster(BrokerQueue, cl)
}

// trackListed tracks a work of this source that an agent holds and the hub lacks.
func (p *agentResponder) trackListed(cl *cluster, uid types.UID, name string, version int64) {
	if p.f.stateless && cl.agent.orphans[uid] == nil {
		p.trackOrphan(cl, uid, &orphan{name: name, version: version})
	}
}

// trackDeletion tracks a work that left the hub before its cluster confirmed the deletion.
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
		one.retry.wait(p.f.Now().Add(missingDelay), false) // by then all missing works are known
		p.epochs.readPositionNow()
	}
	p.f.wakeCluster(BrokerQueue, cl)
}

// forgetOrphan drops a work that is on the hub again. gone drops a work whose deletion the cluster has
// confirmed.
func (cl *cluster) forgetOrphan(uid types.UID) { delete(cl.agent.orphans, uid) }

func (cl *cluster) gone(uid types.UID) {
	if one := cl.agent.orphans[uid]; one != nil {
		if !one.seen {
			cl.agent.gone++
		}
		cl.forgetOrphan(uid)
	}
}

// nextOrphans decides the next step for the orphans of a cluster.
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

// withheldOf returns the report of the withheld deletions.
func (p *agentResponder) withheldOf(cl *cluster) Effect {
	o := codec.ClusterSyncReport{Cluster: cl.name}
	for _, uid := range sortedKeys(cl.agent.orphans) {
		if one := cl.agent.orphans[uid]; one.withheld != "" {
			o.Withheld, o.Reason = append(o.Withheld, codec.WithheldDeletion{ResourceID: string(uid), Name: one.name}), one.withheld
		}
	}
	return Withhold{o}
}

// requestStatuses requests the statuses of works from an agent: they contain the source and the name.
func (p *agentResponder) requestStatuses(cl *cluster, ids []string) *todo {
	var held []StatusRef
	for _, id := range ids {
		held = append(held, StatusRef{UID: types.UID(id), Hash: "none"})
	}
	return p.begin(cl, RequestStatuses{Cluster: cl.name, Statuses: held, Stamp: p.f.stamp(cl), Limit: p.f.limit}, func(r Result) {
		if !p.f.brokerFailed(cl.key(), &cl.agent.retry, r.Err) {
			cl.agent.unknown = cl.agent.unknown[min(len(ids), len(cl.agent.unknown)):]
		}
	})
}

// begin starts an effect; one runs at a time for a cluster.
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

// isVerified reports whether everything that could show a rollback of the hub has been checked. If the agent
// has not listed its works yet, request makes it list them. A single orphan may be the result of a restore.
//
// Scenario:
//
//	t1: a hub is restored. It lacks one work, and has an older version of another. A hub-source starts.
//	t2: the status of the first work arrives. The list, and the status of the other work, are lost.
//	t3: the hub returns that it lacks the first work. No event so far shows that it had it once.
//
// Result: the deletion waits for the list.
//
// For OCM agents the statuses are enough: they send a list only when they connect.
func (p *agentResponder) isVerified(cl *cluster) (request *todo, judged bool) {
	l := &cl.agent.orphanTracker
	switch {
	case p.f.behind > 0: // the hub is queried, which may raise a rollback suspicion
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

// rollbackSuspicion returns why no orphan of a cluster may be deleted, "" if they may be.
func (p *agentResponder) rollbackSuspicion(cl *cluster) string {
	missing := max(len(cl.agent.orphanTracker.listed), len(cl.agent.orphans)+cl.agent.gone)
	return p.epochs.suspicionOfMissing(cl.name, missing, len(cl.works)+missing)
}

// located continues when the position of the hub is known.
func (p *agentResponder) located() {
	for _, cl := range p.f.clusters {
		if len(cl.agent.orphans) > 0 {
			p.f.wakeCluster(BrokerQueue, cl)
		}
	}
}
