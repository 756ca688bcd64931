package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

func nextRelease(f *fixture, name string) Release {
	f.t.Helper()
	e, ok := f.core.Next(BrokerQueue, Key{Cluster: name}).(Release)
	if !ok {
		f.t.Fatalf("cluster %s is not released", name)
	}
	return e
}

// clusterIdle asserts that there is no effect for a cluster as a whole now.
func (f *fixture) clusterIdle(name string) {
	f.t.Helper()
	if e := f.core.Next(BrokerQueue, Key{Cluster: name}); e != nil {
		f.t.Fatalf("next of cluster %s is %+v", name, e)
	}
}

func TestCore_ServesOnlySelectedClusters(t *testing.T) {
	f := newFixture(t, false)
	f.seen(newWork("w", 1))
	f.selected("cluster2")
	f.connect()
	f.idle(BrokerQueue, "uid-w")
	if v := f.core.Report(report(newWork("w", 1), 1, applied(1))); v != Ignored {
		t.Errorf("a report of a cluster that is not served is %s", v)
	}
	f.selected("cluster1")
	f.deliver("uid-w")
}

func TestCore_ReleasesUnselectedCluster(t *testing.T) {
	f := newFixture(t, false)
	f.selected("cluster1")
	f.seen(newWork("w", 1))
	f.connect()
	p := next[Publish](f, BrokerQueue, "uid-w")
	f.unselected("cluster1")
	f.clusterIdle("cluster1") // a late publish would undo the release
	f.done(p, Result{})
	r := nextRelease(f, "cluster1")
	f.idle(BrokerQueue, "uid-w")

	f.selected("cluster1")
	f.idle(BrokerQueue, "uid-w") // the release is in flight
	f.done(r, Result{})
	f.deliver("uid-w")
	nextRequest(f) // and no release goes out
}

// A release whose answer is lost may still be executed, and would drop works of the cluster that are published
// later. So the subscription ends. On the next one the release goes first, or is no longer needed. Such ends
// are backed off.
func TestCore_EndsTheSubscriptionWithoutReleaseAnswer(t *testing.T) {
	lost := Result{Err: &transport.Error{Code: transport.CodeDeadline}}
	for _, again := range []bool{false, true} {
		f := comparingCore(t, Config{State: SavedState{Cursor: cursorAt(5).String()}})
		f.selected("cluster1")
		f.seen(newWork("w", 1, deleting))
		var last time.Duration
		for range 3 {
			f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
			if f.core.index.clusters["cluster1"].selected {
				f.unselected("cluster1")
			}
			f.done(nextRelease(f, "cluster1"), lost)
			if again {
				f.selected("cluster1")
				f.idle(BrokerQueue, "uid-w") // the subscription is about to end
			}
			f.clusterIdle("cluster1")
			d := f.core.index.ends.notBefore.Sub(f.now)
			if d <= last/2 {
				t.Errorf("ends after %v, and after %v before", d, last)
			}
			last, f.now = d, f.now.Add(d)
			e := nextOf[EndSubscription](f, BrokerQueue, Key{})
			f.core.Disconnected()
			f.done(e, Result{})
		}
		if h := f.core.Hello(); h.Cursor == "" {
			t.Error("the cursor is missing")
		}
		f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
		if again {
			f.done(nextRequest(f), Result{}) // reports of the cluster were ignored
			f.clusterIdle("cluster1")
			f.deliver("uid-w")
			continue
		}
		f.done(nextRelease(f, "cluster1"), Result{})
		f.clusterIdle("cluster1")
	}
}

// A publish of unknown outcome may arrive after a release, and its record would stay.
func TestCore_ReleasesNothingBehindAPublishWithoutAnAnswer(t *testing.T) {
	f := comparingCore(t, Config{})
	f.selected("cluster1")
	f.seen(newWork("w", 1, deleting))
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
	p := next[Publish](f, BrokerQueue, "uid-w")
	f.unselected("cluster1")
	f.clusterIdle("cluster1") // while the publish is in flight
	f.done(p, Result{Err: &transport.Error{Code: transport.CodeUnavailable}})
	f.clusterIdle("cluster1")
	f.now = f.now.Add(firstDelay)
	nextOf[EndSubscription](f, BrokerQueue, Key{})
	f.core.Disconnected()
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
	nextRelease(f, "cluster1")
}

// TestCore_DropsReleaseOfEarlierConnection: a release of the connection before has no effect there, answered or
// not.
func TestCore_DropsReleaseOfEarlierConnection(t *testing.T) {
	for _, connectFirst := range []bool{true, false} {
		f := newFixture(t, false)
		f.selected("cluster1")
		f.connect()
		f.unselected("cluster1")
		r := nextRelease(f, "cluster1")
		failed := Result{Err: &transport.Error{Code: transport.CodeUnavailable}}
		if connectFirst {
			f.core.Disconnected()
			f.selected("cluster1")
			f.connect()
			f.clusterIdle("cluster1")
			f.done(r, failed)
		} else {
			f.done(r, failed)
			f.core.Disconnected()
			f.selected("cluster1")
			f.connect()
		}
		f.seen(newWork("w", 1))
		f.deliver("uid-w")
		nextRequest(f) // and no release goes out
	}
}

// TestCore_NumbersNothingForAnOCMBroker: events for an OCM broker have no fencing token, because that broker
// would pass it on.
func TestCore_NumbersNothingForAnOCMBroker(t *testing.T) {
	f := newFixture(t, true)
	f.seen(newWork("w", 1))
	f.core.Connected(transport.Accepted{})
	if p := f.deliver("uid-w"); p.Fence != 0 {
		t.Errorf("published as %d", p.Fence)
	}
}

// TestCore_ReleasesNothingDuringSyncReport: a release waits for a sync report in flight, because that report
// must not describe a released cluster.
func TestCore_ReleasesNothingDuringSyncReport(t *testing.T) {
	for name, err := range map[string]error{"reported": nil, "not reported": &transport.Error{Code: transport.CodeUnavailable}} {
		t.Run(name, func(t *testing.T) {
			f := comparingCore(t, Config{})
			f.selected("cluster1")
			f.selected("cluster2")
			f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
			f.page(codec.Inventory{})
			f.locate("7")
			f.core.Next(BrokerQueue, Key{Cluster: "cluster1"})
			f.core.Next(BrokerQueue, Key{Cluster: "cluster2"})
			f.now = f.now.Add(reportAfter)
			reported := nextOf[SendSyncReport](f, BrokerQueue, Key{})
			if n := len(reported.Report.Clusters); n != 2 {
				t.Fatalf("%d clusters are compared", n)
			}
			f.unselected("cluster1")
			f.clusterIdle("cluster1")
			f.wakes = nil
			f.done(reported, Result{Err: err})
			if err != nil { // the report may arrive late, and describe the released cluster
				f.clusterIdle("cluster1")
				f.now = f.now.Add(firstDelay)
				nextOf[EndSubscription](f, BrokerQueue, Key{})
				f.core.Disconnected()
				f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
				nextRelease(f, "cluster1")
				return
			}
			if !slices.Contains(f.wakes, wakeup{BrokerQueue, Key{Cluster: "cluster1"}, 0}) {
				t.Errorf("the cluster is not woken, only %v", f.wakes)
			}
			f.done(nextRelease(f, "cluster1"), Result{})
		})
	}
}

// TestCore_ReportsNothingWhileTheHubDoesNotAnswer: no sync report goes out before the hub has answered.
//
// Scenario:
//
//	t1: the broker has lost its store, and hub-source starts with informers that lag.
//	t2: it has compared: neither side has a work of the cluster.
//	t3: agents receive this outcome, and evict their works within a minute.
//	t4: the informers show a work. The hub does not answer, so it is not published.
func TestCore_ReportsNothingWhileTheHubDoesNotAnswer(t *testing.T) {
	f := comparingCore(t, Config{})
	f.selected("cluster1")
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
	f.page(codec.Inventory{})
	f.core.Next(BrokerQueue, Key{Cluster: "cluster1"})
	f.done(nextOf[ReadHubPosition](f, HubQueue, Key{}), Result{Err: &transport.Error{Code: transport.CodeUnavailable}})
	f.now = f.now.Add(time.Hour)
	if e := f.core.Next(BrokerQueue, Key{}); e != nil {
		t.Fatalf("decided on %T", e)
	}
	f.wakes = nil
	f.locate("7")
	if !slices.Contains(f.wakes, wakeup{BrokerQueue, Key{}, 0}) {
		t.Errorf("no key is woken to continue, only %v", f.wakes)
	}
	if reported := nextOf[SendSyncReport](f, BrokerQueue, Key{}); len(reported.Report.Clusters) != 1 {
		t.Errorf("reported %v", reported.Report)
	}
}

// TestCore_ReleasesOnTheNextConnection: a release of the connection before has no effect there, answered or
// not.
func TestCore_ReleasesOnTheNextConnection(t *testing.T) {
	f := comparingCore(t, Config{})
	f.selected("cluster1")
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
	f.page(codec.Inventory{})
	f.locate("7")
	f.core.Next(BrokerQueue, Key{Cluster: "cluster1"})
	f.now = f.now.Add(reportAfter)
	reported := nextOf[SendSyncReport](f, BrokerQueue, Key{})
	f.core.Disconnected()
	f.unselected("cluster1")
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
	nextRelease(f, "cluster1")
	f.done(reported, Result{})
}

func TestCore_RetriesAReleaseUntilItIsAccepted(t *testing.T) {
	f := newFixture(t, false)
	f.selected("cluster1")
	f.connect()
	f.unselected("cluster1")
	r := nextRelease(f, "cluster1")
	f.wakes = nil
	f.done(r, Result{Err: &transport.Error{Code: transport.CodeOverloaded, Delay: time.Second}})
	f.clusterIdle("cluster1")
	f.now = f.now.Add(f.nextWake(BrokerQueue))
	f.done(nextRelease(f, "cluster1"), Result{})
	f.clusterIdle("cluster1")
	if n := len(f.core.index.clusters); n != 0 {
		t.Errorf("%d clusters still known", n)
	}
}

// TestCore_ServesAClusterAfterRejectedRelease: the cluster was selected again meanwhile, and is compared
// although nothing was released.
func TestCore_ServesAClusterAfterRejectedRelease(t *testing.T) {
	f := comparingCore(t, Config{})
	f.selected("cluster1")
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
	f.page(codec.Inventory{})
	f.unselected("cluster1")
	f.seen(newWork("w", 1))
	r := nextRelease(f, "cluster1")
	f.selected("cluster1")
	f.wakes = nil
	f.done(r, Result{Err: &transport.Error{Code: transport.CodeOverloaded}})
	if stage := f.core.index.clusters["cluster1"].comparing.stage; stage == stageNotCompared {
		t.Error("the cluster is not compared")
	}
	if key := (Key{UID: "uid-w", Cluster: "cluster1"}); !slices.ContainsFunc(f.wakes, func(w wakeup) bool { return w.key == key }) {
		t.Errorf("the work is not woken, only %v", f.wakes)
	}
}

func TestCore_ReleasesClustersDeselectedWhileDown(t *testing.T) {
	f := newFixture(t, false)
	f.seen(newWork("w", 1))
	f.clusterIdle("cluster1") // all selected clusters are known only when the session starts
	f.connect()
	keys := f.core.NextInitialSync(10)
	if len(keys) != 1 || keys[0] != (Key{Cluster: "cluster1"}) {
		t.Fatalf("swept %v", keys)
	}
	f.done(nextRelease(f, "cluster1"), Result{Err: &transport.Error{Code: transport.CodeInvalid}})
	f.clusterIdle("cluster1") // rejected: the next session sends it again
	f.connect()
	nextRelease(f, "cluster1")
}

func TestCore_ReleasesNothingAtAnOCMBroker(t *testing.T) {
	f := newFixture(t, false)
	f.seen(newWork("w", 1))
	f.core.Connected(transport.Accepted{})
	f.clusterIdle("cluster1")
}

func TestCore_LeavesWorksOfAReleasedClusterAlone(t *testing.T) {
	f := newFixture(t, false)
	f.selected("cluster1")
	f.seen(newWork("w", 1))
	f.connect()
	f.done(next[Publish](f, BrokerQueue, "uid-w"), Result{Err: &transport.Error{Code: transport.CodeInvalid}})
	e := next[PatchStatus](f, HubQueue, "uid-w")
	f.done(e, Result{Work: newWork("w", 1, version("102"), withStatus(e.Status))})
	f.core.Report(report(newWork("w", 1), 1, applied(1)))
	f.unselected("cluster1")
	f.idle(BrokerQueue, "uid-w")
	if e := next[PatchStatus](f, HubQueue, "uid-w"); len(e.Status.Conditions) != 0 {
		t.Errorf("the condition of an ended delivery stays: %+v", e.Status.Conditions)
	}
	if s := f.core.Stats(); s.Pending != 0 {
		t.Errorf("a report waits: %+v", s)
	}
	f.deleted("uid-w")
	f.idle(BrokerQueue, "uid-w") // nothing is deleted on a cluster that is not served
}

func TestCore_TakesADroppedReportAgain(t *testing.T) {
	w := newWork("w", 1)
	f := newFixture(t, false)
	f.selected("cluster1")
	f.seen(w)
	f.connect()
	f.deliver(w.UID)
	f.core.Report(report(w, 1, applied(1)))
	f.unselected("cluster1") // no finalizer was written yet
	f.selected("cluster1")
	if v := f.core.Report(report(w, 1, applied(1))); v != Taken {
		t.Fatalf("the result of the requested status is %s", v)
	}
	next[PatchStatus](f, HubQueue, w.UID)
}

func TestCore_SweepsInPortions(t *testing.T) {
	f := newFixture(t, true)
	for _, name := range []string{"a", "b", "c"} {
		f.seen(newWork(name, 1))
	}
	f.connect()
	seen := map[Key]bool{}
	for _, n := range []int{2, 2, 0} {
		keys := f.core.NextInitialSync(2)
		if len(keys) != n {
			t.Fatalf("swept %d works, want %d", len(keys), n)
		}
		for _, k := range keys {
			seen[k] = true
		}
	}
	if len(seen) != 4 || !seen[Key{Cluster: "cluster1"}] {
		t.Errorf("swept %v", seen)
	}
}

func nextRequest(f *fixture) RequestStatuses {
	f.t.Helper()
	e, ok := f.core.Next(BrokerQueue, Key{Cluster: "cluster1"}).(RequestStatuses)
	if !ok {
		f.t.Fatal("no status is requested")
	}
	return e
}

func TestCore_RequestsMissedStatusesInChunks(t *testing.T) {
	f := newFixture(t, true)
	for i := range maxListed + 1 {
		f.seen(newWork(fmt.Sprintf("w%04d", i), 1))
	}
	f.clusterIdle("cluster1")
	f.connect()
	first := nextRequest(f)
	if len(first.Statuses) != maxListed || first.Statuses[0].Work == nil {
		t.Fatalf("it requests the statuses of %d works", len(first.Statuses))
	}
	f.clusterIdle("cluster1")
	f.done(first, Result{Err: &transport.Error{Code: transport.CodeOverloaded, Delay: time.Second}})
	f.clusterIdle("cluster1")
	f.now = f.now.Add(time.Second)
	f.done(nextRequest(f), Result{})
	last := nextRequest(f)
	if len(last.Statuses) != 1 {
		t.Fatalf("it requests the statuses of %d works", len(last.Statuses))
	}
	f.done(last, Result{})
	f.clusterIdle("cluster1")
}

func TestCore_NeverRequestsAllStatuses(t *testing.T) {
	f := newFixture(t, true)
	f.seen(newWork("w", 1))
	f.connect()
	f.deleted("uid-w")
	f.clusterIdle("cluster1")
}

func TestCore_RequestsNothingWhenTheBrokerContinues(t *testing.T) {
	f := newFixture(t, true)
	f.seen(newWork("w", 1))
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: "cursor"})
	f.clusterIdle("cluster1")
}

func TestCore_QueriesAWorkOfAnEarlierLeader(t *testing.T) {
	f := newFixture(t, true)
	f.connect()
	f.seen(newWork("new", 1, withoutFinalizer))
	f.clusterIdle("cluster1")
	f.seen(newWork("w", 1))
	if e := nextRequest(f); len(e.Statuses) != 1 || e.Statuses[0].UID != "uid-w" {
		t.Errorf("it requests the statuses of %+v", e.Statuses)
	}
}

// Scenario:
//
//	t1: the leader adds the finalizer to a work and publishes it.
//	t2: its cluster reports.
//	t3: the leader ends before the report arrives.
//	t4: another process becomes the leader, and its informer shows the work as before t1.
//	t5: it requests the statuses of the works that have the finalizer in its informer.
//	t6: the informer shows t1.
//
// Result: it requests the status of that work then. The broker has its spec, and sends no status without a
// request.
func TestCore_QueriesAWorkPublishedByAnEarlierLeader_ShownLate(t *testing.T) {
	f := newFixture(t, true)
	f.connect()
	f.seen(newWork("w", 1, withoutFinalizer, version("100")))
	f.clusterIdle("cluster1")
	f.done(next[AddFinalizer](f, BrokerQueue, "uid-w"), Result{Err: errConflict()})
	f.seen(newWork("w", 1))
	if e := nextRequest(f); len(e.Statuses) != 1 || e.Statuses[0].UID != "uid-w" {
		t.Errorf("it requests the statuses of %+v", e.Statuses)
	}
}

// A finalizer that this process added shows nothing about an earlier process.
func TestCore_QueriesNoFirstPublishedWork(t *testing.T) {
	f := newFixture(t, true)
	f.connect()
	f.seen(newWork("w", 1, withoutFinalizer, version("100")))
	f.done(next[AddFinalizer](f, BrokerQueue, "uid-w"), Result{Work: newWork("w", 1)})
	f.seen(newWork("w", 1))
	f.clusterIdle("cluster1")
}

func TestCore_ListsHashOfQueuedReport(t *testing.T) {
	f := newFixture(t, true)
	w := newWork("w", 1)
	f.seen(w)
	f.core.Report(report(w, 1, applied(1)))
	f.connect()
	if h := nextRequest(f).Statuses[0]; h.Hash != "hash-1" || h.Work != nil {
		t.Errorf("lists %+v", h)
	}
}
