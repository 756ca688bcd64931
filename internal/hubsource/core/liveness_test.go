package core

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/sessionfence"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// wantDisconnected asserts the number of disconnected clusters.
func (f *fixture) wantDisconnected(when string, want int) {
	f.t.Helper()
	if n := f.core.Stats().Disconnected; n != want {
		f.t.Errorf("%s: %d clusters are disconnected, want %d", when, n, want)
	}
}

func TestStatelessBroker_CountsDisconnectedClusters(t *testing.T) {
	f := statelessFixture(t, newWork("a", 3))
	agent := f.ours("cluster1")
	f.now = f.now.Add(sessionfence.DisconnectedAfter - 1)
	f.wantDisconnected("in time", 0)
	f.now = f.now.Add(1)
	f.wantDisconnected("later", 1)
	f.core.Keepalive(&Keepalive{Cluster: "cluster1", Stamp: agent.Stamp("hub")})
	f.wantDisconnected("seen again", 0)

	// A late event of an earlier session shows nothing about the present.
	f.now = f.now.Add(sessionfence.DisconnectedAfter)
	before := sessionfence.NewTracker(4, "before")
	f.core.Keepalive(&Keepalive{Cluster: "cluster1", Stamp: before.Stamp("hub")})
	f.wantDisconnected("an event of a session before", 1)
}

// TestStatelessBroker_AGoodbyeIsAHint: a last will is valid for the last seen session, until the agent's next
// event.
func TestStatelessBroker_AGoodbyeIsAHint(t *testing.T) {
	f := statelessFixture(t, newWork("a", 3))
	agent := f.ours("cluster1")
	goodbye := func(l *sessionfence.Tracker) {
		f.core.Keepalive(&Keepalive{Cluster: "cluster1", Goodbye: true, Stamp: l.Goodbye("hub")})
	}
	goodbye(sessionfence.NewTracker(4, "before"))
	f.wantDisconnected("that of a session before", 0)
	goodbye(sessionfence.NewTracker(9, "unknown"))
	f.wantDisconnected("the last will of an unknown session", 0)
	f.core.Keepalive(&Keepalive{Cluster: "other", Goodbye: true, Stamp: agent.Goodbye("hub")})
	f.core.Keepalive(&Keepalive{Cluster: "cluster1", Goodbye: true})
	f.wantDisconnected("a last will without a session", 0)
	for range 2 {
		goodbye(agent)
		f.wantDisconnected("its own, perhaps twice", 1)
	}
	f.core.Keepalive(&Keepalive{Cluster: "cluster1", Stamp: agent.Stamp("hub")})
	f.wantDisconnected("after its next keepalive", 0)
	goodbye(agent)
	f.core.Disconnected()
	f.wantDisconnected("without a connection", 0)
	f.core.Connected(transport.Accepted{Stateless: true, SubscriptionID: "s2"})
	f.wantDisconnected("on the next connection", 0)
	f.now = f.now.Add(sessionfence.DisconnectedAfter)
	f.wantDisconnected("as it sends nothing", 1)
}

func TestStatelessBroker_CountsAgentsByLastSeen(t *testing.T) {
	f := statelessFixture(t, newWork("a", 3))
	want := func(a sessionfence.Agent) {
		t.Helper()
		if got := f.core.Stats().Agents; len(got) != 1 || got[a] != 1 {
			t.Errorf("%v, want one %v", got, a)
		}
	}
	want(sessionfence.Agent{Kind: "unknown", LastSeen: "never"})
	f.core.Report(report(newWork("a", 3), 1, applied(3)))
	want(sessionfence.Agent{Kind: "ocm", LastSeen: "5m"})
	f.ours("cluster1")
	for _, c := range []struct {
		after    time.Duration
		lastSeen string
	}{{5 * time.Minute, "5m"}, {1, "1h"}, {time.Hour, "24h"}, {24 * time.Hour, "older"}} {
		f.now = f.now.Add(c.after)
		want(sessionfence.Agent{Kind: "hawser", LastSeen: c.lastSeen})
	}
}

// reports executes the status patch of a work and returns its Delivered if that is False, otherwise nil.
func (f *fixture) reports(uid types.UID) *metav1.Condition {
	f.t.Helper()
	f.now = f.now.Add(time.Second / 20) // the limit allows the next write
	e := next[PatchStatus](f, HubQueue, uid)
	o := e.Work.DeepCopy()
	n, err := strconv.Atoi(o.ResourceVersion)
	if err != nil {
		f.t.Fatal(err)
	}
	o.Status, o.ResourceVersion = e.Status, fmt.Sprint(n+1)
	f.done(e, Result{Work: o})
	f.seen(o)
	f.idle(HubQueue, uid)
	return fault(e.Status)
}

// wantDisconnectedProblem asserts that Delivered reports the agent as not seen since a time.
func (f *fixture) wantDisconnectedProblem(uid types.UID, since time.Time, generation int64) {
	f.t.Helper()
	d := f.reports(uid)
	if d == nil || d.Status != metav1.ConditionFalse || d.Reason != ReasonAgentDisconnected || d.ObservedGeneration != generation ||
		!strings.Contains(d.Message, `the agent of cluster "cluster1" has not been seen since `+since.Format("2006-01-02 15:04:05")+" UTC") {
		f.t.Errorf("Delivered is %+v, want that the agent was not seen since %s", d, since)
	}
}

// TestStatelessBroker_ReportsDisconnectedAgentOnWorks: only a work whose present version is not confirmed shows
// the disconnected agent.
func TestStatelessBroker_ReportsDisconnectedAgentOnWorks(t *testing.T) {
	waiting, done := newWork("waiting", 3, withStatus(applied(2))), newWork("done", 3, withStatus(applied(3)))
	f := statelessFixture(t, waiting, done)
	f.deliver("uid-waiting")
	f.deliver("uid-done")
	agent := f.ours("cluster1")
	lastSeen := f.now
	f.nextWake(HubQueue)
	f.idle(HubQueue, "uid-waiting")
	if d := f.nextWake(HubQueue); d != sessionfence.DisconnectedAfter {
		t.Errorf("it is looked at again after %v", d)
	}
	f.now = f.now.Add(sessionfence.DisconnectedAfter)
	f.wantDisconnectedProblem("uid-waiting", lastSeen, 3)
	f.idle(HubQueue, "uid-done")
	if n := f.core.Stats().Undelivered[ReasonAgentDisconnected]; n != 1 {
		t.Errorf("%d works are counted as disconnected", n)
	}
	f.now = f.now.Add(time.Hour)
	f.idle(HubQueue, "uid-waiting") // no further write

	// Without a connection, and right after its start, the state of the agent is unknown: the condition stays.
	f.core.Disconnected()
	f.now = f.now.Add(time.Hour)
	f.idle(HubQueue, "uid-waiting")
	f.core.Connected(transport.Accepted{Stateless: true, SubscriptionID: "s2"})
	f.core.NextInitialSync(1 << 10)
	f.sure()
	f.idle(HubQueue, "uid-waiting")
	f.deliver("uid-waiting")
	f.idle(HubQueue, "uid-waiting")

	// The agent is seen again, without a report about the work.
	f.now = f.now.Add(time.Minute)
	f.nextWake(HubQueue)
	f.core.Keepalive(&Keepalive{Cluster: "cluster1", Stamp: agent.Stamp("hub")})
	if d := f.reports("uid-waiting"); d != nil {
		t.Errorf("the agent was seen, and Delivered is %+v", d)
	}
	if n := f.core.Stats().Undelivered[ReasonAgentDisconnected]; n != 0 {
		t.Errorf("%d works are counted as disconnected", n)
	}

	// The broker sends the last will of the agent.
	lastSeen = f.now.Add(-time.Second / 20)
	f.core.Keepalive(&Keepalive{Cluster: "cluster1", Goodbye: true, Stamp: agent.Goodbye("hub")})
	f.wantDisconnectedProblem("uid-waiting", lastSeen, 3)
	f.core.Report(report(waiting, 1, applied(3)))
	if d := f.reports("uid-waiting"); d != nil {
		t.Errorf("the work is confirmed, and Delivered is %+v", d)
	}
}

// TestStatelessBroker_IgnoresTimeWithoutOwnConnection: a source that was disconnected could receive no event.
func TestStatelessBroker_IgnoresTimeWithoutOwnConnection(t *testing.T) {
	w := newWork("a", 3)
	f := statelessFixture(t, w)
	f.ours("cluster1")
	f.deliver("uid-a")
	f.core.Disconnected()
	f.now = f.now.Add(time.Hour)
	f.idle(HubQueue, "uid-a")
	f.core.Connected(transport.Accepted{Stateless: true, SubscriptionID: "s2"})
	f.core.NextInitialSync(1 << 10)
	f.sure()
	back := f.now
	f.deliver("uid-a")
	f.now = f.now.Add(sessionfence.DisconnectedAfter - 1)
	f.idle(HubQueue, "uid-a")
	f.now = f.now.Add(1)
	f.wantDisconnectedProblem("uid-a", back, 3)
}

// TestStatelessBroker_KeepsConditionOfEarlierProcess: the condition stays until the state of the agent is
// known.
func TestStatelessBroker_KeepsConditionOfEarlierProcess(t *testing.T) {
	reported := metav1.Condition{Type: ConditionDelivered, Status: metav1.ConditionFalse, Reason: ReasonAgentDisconnected, Message: "since yesterday", ObservedGeneration: 3, LastTransitionTime: metav1.Unix(7, 0)}
	f := statelessFixture(t, newWork("a", 3, withStatus(workv1.ManifestWorkStatus{Conditions: []metav1.Condition{reported}})))
	f.idle(HubQueue, "uid-a")
	f.sure()
	f.deliver("uid-a")
	f.idle(HubQueue, "uid-a")
	f.now = f.now.Add(sessionfence.DisconnectedAfter)
	f.idle(HubQueue, "uid-a") // the agent is still disconnected
	f.ours("cluster1")
	if d := f.reports("uid-a"); d != nil {
		t.Errorf("the agent was seen, and Delivered is %+v", d)
	}
}

// TestStatelessBroker_ClearsConditionOfEarlierProcess: the condition is cleared also if the agent has the work
// by then, and nothing is published.
func TestStatelessBroker_ClearsConditionOfEarlierProcess(t *testing.T) {
	reported := metav1.Condition{Type: ConditionDelivered, Status: metav1.ConditionFalse, Reason: ReasonAgentDisconnected, Message: "since yesterday", ObservedGeneration: 3, LastTransitionTime: metav1.Unix(7, 0)}
	a := newWork("a", 3, withStatus(workv1.ManifestWorkStatus{Conditions: []metav1.Condition{reported}}))
	for _, listed := range []bool{true, false} {
		f := statelessFixture(t, a)
		f.idle(HubQueue, "uid-a")
		f.sure()
		if listed {
			f.lists(present(a), codec.ResourceVersion{ResourceID: "uid-a", ResourceVersion: 3})
			f.requested("cluster1")
		} else if v := f.core.Report(report(a, 1, applied(3))); v != Taken {
			t.Fatalf("the report is %s", v)
		}
		if d := f.reports("uid-a"); d != nil {
			t.Errorf("the cluster has the work, listed: %v, and Delivered is %+v", listed, d)
		}
	}
}

// TestStatelessBroker_OCMAgentsSendNoKeepalives: an OCM agent without a report sends no event, and this is no
// problem.
func TestStatelessBroker_OCMAgentsSendNoKeepalives(t *testing.T) {
	f := statelessFixture(t, newWork("a", 3))
	f.deliver("uid-a")
	f.core.Report(report(newWork("a", 3), 1, applied(3)))
	f.done(next[PatchStatus](f, HubQueue, "uid-a"), Result{Work: newWork("a", 3, version("200"), withStatus(applied(3)))})
	f.now = f.now.Add(24 * time.Hour)
	f.wantDisconnected("an OCM agent", 0)
	f.seen(newWork("a", 4, version("201"), withStatus(applied(3))))
	sent := f.now
	f.deliver("uid-a")
	f.core.Keepalive(&Keepalive{Cluster: "cluster1", Goodbye: true, Stamp: sessionfence.Stamp{Session: codec.Session{Number: 1, ID: "x"}}})
	f.now = f.now.Add(sessionfence.DisconnectedAfter - 1)
	f.idle(HubQueue, "uid-a")
	f.now = f.now.Add(1)
	f.wantDisconnectedProblem("uid-a", sent, 4)
	f.core.Report(report(newWork("b", 1), 1, applied(1)))
	if d := f.reports("uid-a"); d != nil {
		t.Errorf("the agent was seen, and Delivered is %+v", d)
	}
}

// TestStatelessBroker_ReportsAgentToWorksInOrder: at most twenty works a second are written.
func TestStatelessBroker_ReportsAgentToWorksInOrder(t *testing.T) {
	const count = 100
	var works []*workv1.ManifestWork
	for n := range count {
		works = append(works, newWork(fmt.Sprint("w", n), 1))
	}
	f := statelessFixture(t, works...)
	agent := f.ours("cluster1")
	for _, w := range works { // the publishes are paced too
		for e := f.core.Next(BrokerQueue, Key{UID: w.UID}); ; e = f.core.Next(BrokerQueue, Key{UID: w.UID}) {
			if p, ok := e.(Publish); ok {
				f.done(p, Result{})
				break
			}
			f.now = f.now.Add(time.Second / 50)
			f.sure()
		}
	}
	f.core.Keepalive(&Keepalive{Cluster: "cluster1", Stamp: agent.Stamp("hub")})
	f.wakes = nil
	f.core.Keepalive(&Keepalive{Cluster: "cluster1", Goodbye: true, Stamp: agent.Goodbye("hub")})
	if n := len(f.wakes); n != count {
		t.Fatalf("%d works are looked at", n)
	}
	began, reported := f.now, map[types.UID]bool{}
	for len(reported) < count {
		for _, w := range works {
			if e, ok := f.core.Next(HubQueue, Key{UID: w.UID}).(PatchStatus); ok {
				reported[w.UID] = true
				f.done(e, Result{Work: newWork(w.Name, 1, version("300"), withStatus(e.Status))})
			}
		}
		if most := 1 + int(20*f.now.Sub(began).Seconds()); len(reported) > most {
			t.Fatalf("after %v %d works have the condition, want at most %d", f.now.Sub(began), len(reported), most)
		}
		f.now = f.now.Add(time.Second / 100)
	}
	if took := f.now.Sub(began); took > 6*time.Second {
		t.Errorf("%d works take %v", count, took)
	}
}

// absent sends a page of the broker's report about clusters without an agent.
func (f *fixture) absent(more bool, all ...codec.DisconnectedCluster) {
	f.core.DisconnectedClusters(codec.DisconnectedClusters{Clusters: all, More: more})
}

// TestCore_ReportsDisconnectedClusterOnWorks: behind a broker with records, works whose present version is not
// confirmed report a disconnected cluster. A cluster that never connected has a reason of its own. A work under
// deletion also names how to end it.
func TestCore_ReportsDisconnectedClusterOnWorks(t *testing.T) {
	since := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	waiting, done := newWork("waiting", 3, withStatus(applied(2))), newWork("done", 3, withStatus(applied(3)))
	going := newWork("going", 3, deleting, withStatus(applied(3)))
	f := newFixture(t, true)
	for _, w := range []*workv1.ManifestWork{waiting, done, going} {
		f.seen(w)
	}
	f.connect()
	f.idle(HubQueue, "uid-waiting") // the broker has sent no report yet
	f.absent(true, codec.DisconnectedCluster{Cluster: "another", Since: since})
	f.idle(HubQueue, "uid-waiting") // more pages of the report follow
	f.absent(false, codec.DisconnectedCluster{Cluster: "cluster1", Since: since})
	reports := func(uid types.UID, reason, what string) {
		t.Helper()
		if d := f.reports(uid); d == nil || d.Reason != reason || d.ObservedGeneration != 3 || !strings.Contains(d.Message, what) {
			t.Errorf("Delivered of %s is %+v, want %s, %q", uid, d, reason, what)
		}
	}
	reports("uid-waiting", ReasonAgentDisconnected, `no agent of cluster "cluster1" is connected to the broker since 2026-05-04 12:00:00 UTC`)
	f.now = f.now.Add(time.Second)
	reports("uid-going", ReasonAgentDisconnected, "hawser force-delete work cluster1 going")
	f.idle(HubQueue, "uid-done")

	// The condition stays while hub-source is disconnected, and until the broker has reported again.
	f.core.Disconnected()
	f.now = f.now.Add(time.Hour)
	f.idle(HubQueue, "uid-waiting")
	f.connect()
	f.idle(HubQueue, "uid-waiting")
	f.absent(false, codec.DisconnectedCluster{Cluster: "cluster1", Since: since, NeverConnected: true})
	reports("uid-waiting", ReasonAgentNeverConnected, "check that the namespace is the name of a cluster")
	if n := f.core.Stats().Undelivered[ReasonAgentNeverConnected]; n != 1 {
		t.Errorf("%d works count", n)
	}
	f.now = f.now.Add(time.Second)
	f.absent(false, codec.DisconnectedCluster{Cluster: "cluster1", Since: since, NeverConnected: true, Reason: "its agent used another certificate: put in its own"})
	reports("uid-waiting", ReasonAgentDisconnected, "its agent used another certificate: put in its own; no agent")
	f.now = f.now.Add(time.Second)
	f.absent(false)
	if d := f.reports("uid-waiting"); d != nil {
		t.Errorf("its agent connected, and Delivered is %+v", d)
	}
}
