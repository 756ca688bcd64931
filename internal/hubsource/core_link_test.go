package hubsource

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
	e, ok := f.core.Next(SpecLane, Key{Cluster: name}).(Release)
	if !ok {
		f.t.Fatalf("cluster %s is not released", name)
	}
	return e
}

// clusterIdle asserts that nothing is to be done for a cluster as a whole now.
func (f *fixture) clusterIdle(name string) {
	f.t.Helper()
	if e := f.core.Next(SpecLane, Key{Cluster: name}); e != nil {
		f.t.Fatalf("next of cluster %s is %+v", name, e)
	}
}

func TestCore_ServesOnlySelectedClusters(t *testing.T) {
	f := newFixture(t, false)
	f.core.WorkSeen(newWork("w", 1))
	f.core.ClusterSelected("cluster2")
	f.connect()
	f.idle(SpecLane, "uid-w")
	if v := f.core.Report(report(newWork("w", 1), 1, applied(1))); v != Ignored {
		t.Errorf("a report of a cluster that is not served is %s", v)
	}
	f.core.ClusterSelected("cluster1")
	f.deliver("uid-w")
}

func TestCore_ReleasesAClusterThatLeavesTheSelection(t *testing.T) {
	f := newFixture(t, false)
	f.core.ClusterSelected("cluster1")
	f.core.WorkSeen(newWork("w", 1))
	f.connect()
	p := next[Publish](f, SpecLane, "uid-w")
	f.core.ClusterUnselected("cluster1")
	f.clusterIdle("cluster1") // a publish that arrives later would undo it
	f.core.Done(p, Result{})
	r := nextRelease(f, "cluster1")
	f.idle(SpecLane, "uid-w")

	f.core.ClusterSelected("cluster1")
	f.idle(SpecLane, "uid-w") // the release is still on its way
	f.core.Done(r, Result{})
	f.deliver("uid-w")
	nextAsk(f) // and no release
}

// TestCore_ReleasesOnceMoreWhatIsServedAgain, where nobody knows what became of a
// release: it may come late, and would drop what was published meanwhile. The broker
// is told again, and nothing else before that is answered.
func TestCore_ReleasesOnceMoreWhatIsServedAgain(t *testing.T) {
	failed := &transport.Error{Code: transport.CodeDeadline}
	for name, begin := range map[string]func(f *fixture, r Release){
		"while it is under way": func(f *fixture, r Release) {
			f.core.ClusterSelected("cluster1")
			f.core.Done(r, Result{Err: failed})
		},
		"after it was given up": func(f *fixture, r Release) {
			f.core.Done(r, Result{Err: failed})
			f.core.ClusterSelected("cluster1")
		},
		"and more than once": func(f *fixture, r Release) {
			f.core.Done(r, Result{Err: failed})
			f.core.ClusterSelected("cluster1")
			f.core.ClusterUnselected("cluster1")
			f.core.ClusterSelected("cluster1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := comparingCore(t, CoreConfig{})
			f.core.ClusterSelected("cluster1")
			f.core.WorkSeen(newWork("w", 1, deleting))
			f.core.Connected(transport.Accepted{Protocol: 1, Resync: codec.ResyncCursor})
			f.page(codec.Inventory{})
			f.core.ClusterUnselected("cluster1")
			first := nextRelease(f, "cluster1")
			begin(f, first)
			f.idle(SpecLane, "uid-w")
			if f.now = f.now.Add(firstDelay / 2); f.core.Next(SpecLane, Key{}) != nil {
				t.Error("the cluster is compared before it is released")
			}
			second := nextRelease(f, "cluster1")
			if first.Order == 0 || second.Order <= first.Order {
				t.Errorf("release %d comes behind %d", second.Order, first.Order)
			}
			f.core.Done(second, Result{})
			if p := f.deliver("uid-w"); p.Action != codec.DeleteRequest || p.Order <= second.Order {
				t.Errorf("published %s as %d behind %d", p.Action, p.Order, second.Order)
			}
			if r := f.page(codec.Inventory{}); !slices.Equal(r.Clusters, []string{"cluster1"}) {
				t.Errorf("asked for the records of %q", r.Clusters)
			}
			nextAsk(f) // and no release
		})
	}
}

// TestCore_ReleasesNothingThatIsServedOnTheNextConnection: what the one before was
// told counts there no longer, answered or not.
func TestCore_ReleasesNothingThatIsServedOnTheNextConnection(t *testing.T) {
	for _, connectFirst := range []bool{true, false} {
		f := newFixture(t, false)
		f.core.ClusterSelected("cluster1")
		f.connect()
		f.core.ClusterUnselected("cluster1")
		r := nextRelease(f, "cluster1")
		failed := Result{Err: &transport.Error{Code: transport.CodeUnavailable}}
		if connectFirst {
			f.core.Disconnected()
			f.core.ClusterSelected("cluster1")
			f.connect()
			f.clusterIdle("cluster1")
			f.core.Done(r, failed)
		} else {
			f.core.Done(r, failed)
			f.core.Disconnected()
			f.core.ClusterSelected("cluster1")
			f.connect()
		}
		f.core.WorkSeen(newWork("w", 1))
		f.deliver("uid-w")
		nextAsk(f) // and no release
	}
}

// TestCore_NumbersNothingForAStockBroker, which would pass it on.
func TestCore_NumbersNothingForAStockBroker(t *testing.T) {
	f := newFixture(t, true)
	f.core.WorkSeen(newWork("w", 1))
	f.core.Connected(transport.Accepted{})
	if p := f.deliver("uid-w"); p.Order != 0 {
		t.Errorf("published as %d", p.Order)
	}
}

// TestCore_ReleasesNothingWhileItTellsWhatItCompared, so that the answer is about the
// clusters as they are then.
func TestCore_ReleasesNothingWhileItTellsWhatItCompared(t *testing.T) {
	for name, err := range map[string]error{"told": nil, "not told": &transport.Error{Code: transport.CodeUnavailable}} {
		t.Run(name, func(t *testing.T) {
			f := comparingCore(t, CoreConfig{})
			f.core.ClusterSelected("cluster1")
			f.core.ClusterSelected("cluster2")
			f.core.Connected(transport.Accepted{Protocol: 1, Resync: codec.ResyncCursor})
			f.page(codec.Inventory{})
			f.core.Next(SpecLane, Key{Cluster: "cluster1"})
			f.core.Next(SpecLane, Key{Cluster: "cluster2"})
			f.now = f.now.Add(tellAfter)
			told := nextOf[SendCompared](f, SpecLane, Key{})
			if n := len(told.Compared.Clusters); n != 2 {
				t.Fatalf("%d clusters are compared", n)
			}
			f.core.ClusterUnselected("cluster1")
			f.clusterIdle("cluster1")
			f.wakes = nil
			f.core.Done(told, Result{Err: err})
			if !slices.Contains(f.wakes, wakeup{SpecLane, Key{Cluster: "cluster1"}, 0}) {
				t.Errorf("nobody looks at the cluster again, only %v", f.wakes)
			}
			f.core.Done(nextRelease(f, "cluster1"), Result{})
			if err == nil {
				return
			}
			f.now = f.now.Add(time.Minute)
			if told := nextOf[SendCompared](f, SpecLane, Key{}).Compared; len(told.Clusters) != 1 || told.Clusters[0].Cluster != "cluster2" {
				t.Errorf("told %+v after the release", told)
			}
		})
	}
}

// TestCore_ReleasesOnTheNextConnection: what the one before was told counts there
// no longer, answered or not.
func TestCore_ReleasesOnTheNextConnection(t *testing.T) {
	f := comparingCore(t, CoreConfig{})
	f.core.ClusterSelected("cluster1")
	f.core.Connected(transport.Accepted{Protocol: 1, Resync: codec.ResyncCursor})
	f.page(codec.Inventory{})
	f.core.Next(SpecLane, Key{Cluster: "cluster1"})
	f.now = f.now.Add(tellAfter)
	told := nextOf[SendCompared](f, SpecLane, Key{})
	f.core.Disconnected()
	f.core.ClusterUnselected("cluster1")
	f.core.Connected(transport.Accepted{Protocol: 1, Resync: codec.ResyncCursor})
	nextRelease(f, "cluster1")
	f.core.Done(told, Result{})
}

func TestCore_RetriesAReleaseUntilItIsAccepted(t *testing.T) {
	f := newFixture(t, false)
	f.core.ClusterSelected("cluster1")
	f.connect()
	f.core.ClusterUnselected("cluster1")
	r := nextRelease(f, "cluster1")
	f.wakes = nil
	f.core.Done(r, Result{Err: &transport.Error{Code: transport.CodeOverloaded, Delay: time.Second}})
	f.clusterIdle("cluster1")
	f.now = f.now.Add(f.nextWake(SpecLane))
	f.core.Done(nextRelease(f, "cluster1"), Result{})
	f.clusterIdle("cluster1")
	if n := len(f.core.clusters); n != 0 {
		t.Errorf("%d clusters still known", n)
	}
}

func TestCore_ReleasesWhatLeftTheSelectionWhileItWasDown(t *testing.T) {
	f := newFixture(t, false)
	f.core.WorkSeen(newWork("w", 1))
	f.clusterIdle("cluster1") // not before the session, when all selected clusters are known
	f.connect()
	keys := f.core.Sweep(10)
	if len(keys) != 1 || keys[0] != (Key{Cluster: "cluster1"}) {
		t.Fatalf("swept %v", keys)
	}
	f.core.Done(nextRelease(f, "cluster1"), Result{Err: &transport.Error{Code: transport.CodeInvalid}})
	f.clusterIdle("cluster1") // refused: again with the next session
	f.connect()
	nextRelease(f, "cluster1")
}

func TestCore_ReleasesNothingAtAStockBroker(t *testing.T) {
	f := newFixture(t, false)
	f.core.WorkSeen(newWork("w", 1))
	f.core.Connected(transport.Accepted{})
	f.clusterIdle("cluster1")
}

func TestCore_LeavesWorksOfAReleasedClusterAlone(t *testing.T) {
	f := newFixture(t, false)
	f.core.ClusterSelected("cluster1")
	f.core.WorkSeen(newWork("w", 1))
	f.connect()
	f.core.Done(next[Publish](f, SpecLane, "uid-w"), Result{Err: &transport.Error{Code: transport.CodeInvalid}})
	e := next[PatchStatus](f, HubLane, "uid-w")
	f.core.Done(e, Result{Work: newWork("w", 1, version("102"), withStatus(e.Status))})
	f.core.Report(report(newWork("w", 1), 1, applied(1)))
	f.core.ClusterUnselected("cluster1")
	f.idle(SpecLane, "uid-w")
	if e := next[PatchStatus](f, HubLane, "uid-w"); len(e.Status.Conditions) != 0 {
		t.Errorf("the condition of a delivery nobody attempts stays: %+v", e.Status.Conditions)
	}
	if s := f.core.Stats(); s.Pending != 0 {
		t.Errorf("a report waits: %+v", s)
	}
	f.core.WorkGone("uid-w")
	f.idle(SpecLane, "uid-w") // nothing is deleted on a cluster that is not served
}

func TestCore_TakesAReportAgainThatItLostWithTheCluster(t *testing.T) {
	w := newWork("w", 1)
	f := newFixture(t, false)
	f.core.ClusterSelected("cluster1")
	f.core.WorkSeen(w)
	f.connect()
	f.deliver(w.UID)
	f.core.Report(report(w, 1, applied(1)))
	f.core.ClusterUnselected("cluster1") // nothing has been written yet
	f.core.ClusterSelected("cluster1")
	if v := f.core.Report(report(w, 1, applied(1))); v != Taken {
		t.Fatalf("the answer to what it asked is %s", v)
	}
	next[PatchStatus](f, HubLane, w.UID)
}

func TestCore_SweepsInPortions(t *testing.T) {
	f := newFixture(t, true)
	for _, name := range []string{"a", "b", "c"} {
		f.core.WorkSeen(newWork(name, 1))
	}
	f.connect()
	seen := map[Key]bool{}
	for _, n := range []int{2, 2, 0} {
		keys := f.core.Sweep(2)
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

func nextAsk(f *fixture) Ask {
	f.t.Helper()
	e, ok := f.core.Next(SpecLane, Key{Cluster: "cluster1"}).(Ask)
	if !ok {
		f.t.Fatal("nothing is asked")
	}
	return e
}

func TestCore_AsksForMissedStatusesInPortions(t *testing.T) {
	f := newFixture(t, true)
	for i := range maxAsked + 1 {
		f.core.WorkSeen(newWork(fmt.Sprintf("w%04d", i), 1))
	}
	f.clusterIdle("cluster1")
	f.connect()
	first := nextAsk(f)
	if len(first.Held) != maxAsked || first.Held[0].Work == nil {
		t.Fatalf("asks about %d works", len(first.Held))
	}
	f.clusterIdle("cluster1")
	f.core.Done(first, Result{Err: &transport.Error{Code: transport.CodeOverloaded, Delay: time.Second}})
	f.clusterIdle("cluster1")
	f.now = f.now.Add(time.Second)
	f.core.Done(nextAsk(f), Result{})
	last := nextAsk(f)
	if len(last.Held) != 1 {
		t.Fatalf("asks about %d works", len(last.Held))
	}
	f.core.Done(last, Result{})
	f.clusterIdle("cluster1")
}

func TestCore_NeverAsksForEverything(t *testing.T) {
	f := newFixture(t, true)
	f.core.WorkSeen(newWork("w", 1))
	f.connect()
	f.core.WorkGone("uid-w")
	f.clusterIdle("cluster1")
}

func TestCore_AsksForNothingWhereTheBrokerContinues(t *testing.T) {
	f := newFixture(t, true)
	f.core.WorkSeen(newWork("w", 1))
	f.core.Connected(transport.Accepted{Protocol: 1, Resync: "cursor"})
	f.clusterIdle("cluster1")
}

func TestCore_AsksAboutAWorkOfAnEarlierLeader(t *testing.T) {
	f := newFixture(t, true)
	f.connect()
	f.core.WorkSeen(newWork("new", 1, withoutFinalizer))
	f.clusterIdle("cluster1")
	f.core.WorkSeen(newWork("w", 1))
	if e := nextAsk(f); len(e.Held) != 1 || e.Held[0].UID != "uid-w" {
		t.Errorf("asks about %+v", e.Held)
	}
}

// t1 the leader puts the finalizer on a work and publishes it. t2 its cluster
// reports. t3 the leader ends before the report reaches it. t4 another one leads, and
// its informer shows the work as it was before t1. t5 it asks for the statuses of what
// had the finalizer, as it knows. t6 the informer shows t1. Therefore it has to ask for
// the status of that work then: the broker has its spec, and sends no status unasked.
func TestCore_AsksAboutAWorkThatAnEarlierLeaderPublished_ShownLate(t *testing.T) {
	f := newFixture(t, true)
	f.connect()
	f.core.WorkSeen(newWork("w", 1, withoutFinalizer, version("100")))
	f.clusterIdle("cluster1")
	f.core.Done(next[AddFinalizer](f, SpecLane, "uid-w"), Result{Err: errConflict()})
	f.core.WorkSeen(newWork("w", 1))
	if e := nextAsk(f); len(e.Held) != 1 || e.Held[0].UID != "uid-w" {
		t.Errorf("asks about %+v", e.Held)
	}
}

// A finalizer that this process put on says nothing of an earlier one.
func TestCore_AsksNothingAboutAWorkThatItPublishedFirst(t *testing.T) {
	f := newFixture(t, true)
	f.connect()
	f.core.WorkSeen(newWork("w", 1, withoutFinalizer, version("100")))
	f.core.Done(next[AddFinalizer](f, SpecLane, "uid-w"), Result{Work: newWork("w", 1)})
	f.core.WorkSeen(newWork("w", 1))
	f.clusterIdle("cluster1")
}

func TestCore_ListsTheHashOfAReportThatWaits(t *testing.T) {
	f := newFixture(t, true)
	w := newWork("w", 1)
	f.core.WorkSeen(w)
	f.core.Report(report(w, 1, applied(1)))
	f.connect()
	if h := nextAsk(f).Held[0]; h.Hash != "hash-1" || h.Work != nil {
		t.Errorf("lists %+v", h)
	}
}
