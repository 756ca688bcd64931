package core

import (
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/sessionfence"
	"github.com/hawser-io/hawser/pkg/codec"
)

// meets passes an event of the core's session to an agent, which answers with its list.
func (f *fixture) meets(agent *sessionfence.Tracker, m sessionfence.Stamp, has Present) {
	f.t.Helper()
	if agent.Observe("hub", m).IsAccepted() {
		f.t.Fatal("an event without a session of the agent is accepted")
	}
	f.core.AgentList(&AgentList{Cluster: "cluster1", Stamp: agent.Stamp("hub")})
	f.done(nextOf[List](f, BrokerQueue, Key{Cluster: "cluster1"}), Result{Present: has})
	f.requested("cluster1")
	f.clusterIdle("cluster1")
}

// TestStatelessBroker_RepublishesDroppedEventsAtOnce: the agent's list is answered while the spec that
// it dropped is still on its way to the broker. The broker's receipt then proves nothing.
func TestStatelessBroker_RepublishesDroppedEventsAtOnce(t *testing.T) {
	for action, a := range map[codec.Action]*workv1.ManifestWork{
		codec.CreateRequest: newWork("a", 3),
		codec.DeleteRequest: newWork("a", 4, deleting, withStatus(applied(4))),
	} {
		f := statelessFixture(t, a)
		f.requested("cluster1")
		agent := sessionfence.NewTracker(5, "agent")
		p := next[Publish](f, BrokerQueue, "uid-a")
		f.meets(agent, p.Stamp, present(a))
		f.done(p, Result{})
		f.now = f.now.Add(firstDelay)
		p = f.deliver("uid-a")
		if p.Action != action || agent.Observe("hub", p.Stamp) != sessionfence.CurrentFirst {
			t.Errorf("%v: published then %+v", action, p)
		}
		f.idle(BrokerQueue, "uid-a")
	}
}

// TestStatelessBroker_BacksOffFromFrequentAgentSessions: each new session makes the agent drop the events in
// flight.
func TestStatelessBroker_BacksOffFromFrequentAgentSessions(t *testing.T) {
	a := newWork("a", 3)
	f := statelessFixture(t, a)
	f.requested("cluster1")
	published, start := 0, f.now
	for i := range uint64(1000) {
		if p, ok := f.core.Next(BrokerQueue, Key{UID: "uid-a"}).(Publish); ok {
			f.core.Report(&Report{Cluster: "cluster1", Stamp: sessionfence.NewTracker(5+i, "agent").Stamp("hub")})
			f.done(p, Result{})
			published++
		}
		f.sure()
		f.now = f.now.Add(100 * time.Millisecond)
	}
	if published < 5 || published > 20 {
		t.Errorf("published %d times in %v", published, f.now.Sub(start))
	}
}

// TestStatelessBroker_RepeatsUnansweredStatusRequests: an agent drops a request that does not name its session,
// and answers with a list.
func TestStatelessBroker_RepeatsUnansweredStatusRequests(t *testing.T) {
	a := newWork("a", 3)
	f := statelessFixture(t, a)
	requests := f.requested("cluster1")
	if len(requests) != 1 {
		t.Fatalf("it requests %+v", requests)
	}
	agent := sessionfence.NewTracker(5, "agent")
	agent.Observe("hub", requests[0].Stamp)
	if !f.core.AgentList(&AgentList{Cluster: "cluster1", Stamp: agent.Stamp("hub")}) {
		t.Fatal("the list does not count")
	}
	f.done(nextOf[List](f, BrokerQueue, Key{Cluster: "cluster1"}), Result{Present: present(a)})
	if requests = f.requested("cluster1"); len(requests) != 1 || agent.Observe("hub", requests[0].Stamp) != sessionfence.CurrentFirst {
		t.Errorf("it requests then %+v", requests)
	}
}

// TestStatelessBroker_RepeatsPossiblyMissedEvents: hub-source published and sent requests before the agent
// had subscribed. A stateless broker keeps no events for a disconnected agent.
func TestStatelessBroker_RepeatsPossiblyMissedEvents(t *testing.T) {
	a := newWork("a", 3)
	f := statelessFixture(t, a)
	agent := f.ours("cluster1")
	f.requested("cluster1")
	p := next[Publish](f, BrokerQueue, "uid-a")
	f.core.AgentList(&AgentList{Cluster: "cluster1", Stamp: agent.Stamp("hub")})
	f.done(nextOf[List](f, BrokerQueue, Key{Cluster: "cluster1"}), Result{Present: present(a)})
	if requests := f.requested("cluster1"); len(requests) != 1 || len(requests[0].Statuses) != 1 {
		t.Errorf("it requests statuses: %+v", requests)
	}
	f.done(p, Result{})
	f.now = f.now.Add(firstDelay)
	f.deliver("uid-a")
	f.idle(BrokerQueue, "uid-a")
}

// TestStatelessBroker_SendsSessionNoticeToAgentWithoutWorks: an agent without works has to learn of the session
// too.
func TestStatelessBroker_SendsSessionNoticeToAgentWithoutWorks(t *testing.T) {
	f := statelessFixture(t)
	agent := sessionfence.NewTracker(5, "agent")
	if f.core.AgentList(&AgentList{Cluster: "cluster1", Stamp: agent.Stamp("hub")}) {
		t.Error("a list without a session is accepted")
	}
	requests := f.requested("cluster1")
	if len(requests) != 1 || len(requests[0].Statuses) != 1 || agent.Observe("hub", requests[0].Stamp) != sessionfence.CurrentFirst {
		t.Fatalf("it requests %+v", requests)
	}
	if !f.core.AgentList(&AgentList{Cluster: "cluster1", Stamp: agent.Stamp("hub")}) {
		t.Error("its next list does not count")
	}
}

// TestStatelessBroker_SendsDelayedSessionNotice: an agent that restarts soon after the last notice gets another
// one later.
func TestStatelessBroker_SendsDelayedSessionNotice(t *testing.T) {
	for _, works := range []int{0, 1} {
		f := statelessFixture(t)
		if works == 1 {
			f.seen(newWork("a", 3))
		}
		f.requested("cluster1")
		for n := range uint64(2) {
			agent := sessionfence.NewTracker(5+n, "agent")
			f.core.AgentList(&AgentList{Cluster: "cluster1", Stamp: agent.Stamp("hub")})
			requests := f.requested("cluster1")
			if n == 1 && len(requests) == 0 {
				f.now = f.now.Add(noticeEvery)
				requests = f.requested("cluster1")
			}
			if len(requests) != 1 || agent.Observe("hub", requests[0].Stamp) != sessionfence.CurrentFirst {
				t.Errorf("with %d works, agent %d gets the requests %+v", works, n, requests)
			}
		}
	}
}

// TestStatelessBroker_RepeatsStatusRequestsForOrphans: the status of a work that only an OCM agent has may be
// lost, and nothing else contains its source.
func TestStatelessBroker_RepeatsStatusRequestsForOrphans(t *testing.T) {
	f, r := oneOrphan(t)
	f.clusterIdle("cluster1")
	f.now = f.now.Add(32 * time.Minute)
	requests := f.requested("cluster1")
	if len(requests) != 2 || requests[0].Statuses[0] != (StatusRef{UID: "uid-x", Hash: "none"}) {
		t.Errorf("it requests %+v", requests)
	}
	if v := f.core.Report(r); v != Taken {
		t.Errorf("the answer is %s", v)
	}
	next[Get](f, HubQueue, "uid-x")
	if requests = f.requested("cluster1"); len(requests) != 0 {
		t.Errorf("it repeats the request for ever: %+v", requests)
	}
}

// TestStatelessBroker_DetectsRollbackByStatus: a restored hub lacks one work and has an older version of
// another. An OCM agent does not list again before it connects.
func TestStatelessBroker_DetectsRollbackByStatus(t *testing.T) {
	a := newWork("a", 3)
	f := statelessFixture(t, a)
	f.requested("cluster1")
	f.lags = true
	later := report(newWork("a", 5), 1, applied(5))
	for _, r := range []*Report{report(newWork("x", 1), 1, applied(1)), later} {
		if v := f.core.Report(r); v != Taken {
			t.Fatalf("the report of %s is %s", r.Name, v)
		}
	}
	f.idle(HubQueue, a.UID)
	f.done(next[Get](f, HubQueue, "uid-x"), Result{Err: errNotFound()})
	f.idle(HubQueue, "uid-x")
	f.now = f.now.Add(missingDelay)
	f.clusterIdle("cluster1")
	f.idle(BrokerQueue, a.UID) // the later version causes a query to the hub
	f.done(next[Get](f, HubQueue, a.UID), Result{Work: a})
	f.idle(BrokerQueue, a.UID)
	f.beginEpoch(a)
	if f.core.epochs.rollbackSuspicion(everywhere) == "" {
		t.Error("there is no rollback suspicion")
	}
}

// TestStatelessBroker_DeletesNothingBeforeOursHasListed: an orphan alone is no reason for a deletion; the list
// of the Hawser agent is needed first.
func TestStatelessBroker_DeletesNothingBeforeOursHasListed(t *testing.T) {
	a, cluster := newWork("a", 3), Key{Cluster: "cluster1"}
	f := statelessFixture(t, a)
	agent := f.ours("cluster1")
	f.requested("cluster1")
	r := report(newWork("x", 1), 1, applied(1))
	r.Stamp = agent.Stamp("hub")
	if v := f.core.Report(r); v != Taken {
		t.Fatalf("the report is %s", v)
	}
	f.done(next[Get](f, HubQueue, "uid-x"), Result{Err: errNotFound()})
	f.idle(HubQueue, "uid-x")
	for range 3 { // the first answers are lost
		f.now = f.now.Add(missingDelay)
		requests := f.requested("cluster1")
		if len(requests) != 1 || len(requests[0].Statuses) != 1 || requests[0].Statuses[0] != emptyStatusRequest[0] || requests[0].Stamp.PeerSession != (codec.Session{}) {
			t.Fatalf("it requests %+v", requests)
		}
		f.clusterIdle("cluster1")
	}
	list := &AgentList{Cluster: "cluster1", Stamp: agent.Stamp("hub"), Versions: []codec.ResourceVersion{{ResourceID: "uid-a", ResourceVersion: 3}, {ResourceID: "uid-x", ResourceVersion: 1}}}
	if !f.core.AgentList(list) {
		t.Fatal("the list does not count")
	}
	f.done(nextOf[List](f, BrokerQueue, cluster), Result{Present: present(a)})
	f.done(nextOf[RequestStatuses](f, BrokerQueue, cluster), Result{Sent: 1})
	f.done(nextOf[Get](f, BrokerQueue, cluster), Result{Err: errNotFound()})
	f.locate("1001")
	nextOf[Delete](f, BrokerQueue, cluster)
}
