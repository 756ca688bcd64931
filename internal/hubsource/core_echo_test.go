package hubsource

import (
	"slices"
	"testing"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

func cluster1Has(records ...codec.InventoryRecord) codec.Inventory {
	return codec.Inventory{Clusters: []codec.ClusterDigest{{Cluster: "cluster1", Digest: codec.Digest{Count: uint64(len(records))}}}}
}

// asked answers what is asked for of the statuses of the cluster.
func (f *fixture) asked() {
	f.t.Helper()
	if e, is := f.core.Next(SpecLane, Key{Cluster: "cluster1"}).(Ask); is {
		f.core.Done(e, Result{Lists: 1})
	}
	f.clusterIdle("cluster1")
}

// compareAnew expects that the cluster is compared once more, and answers with
// what the broker has.
func (f *fixture) compareAnew(records ...codec.InventoryRecord) {
	f.t.Helper()
	f.now = f.now.Add(longestSpec)
	f.asked()
	if r := f.page(codec.Inventory{Records: records}); !slices.Equal(r.Clusters, []string{"cluster1"}) {
		f.t.Fatalf("asked for %+v", r)
	}
}

// t1 this process writes a status, t2 the hub goes back behind that, and is changed, t3 the
// informer shows the change with a lower resource version than that of t1, so that the work
// is taken to be as it was written, t4 the works are compared so, t5 the answer of t1 is let
// go of. Therefore the work is compared once more: what was found at t4 is of another spec.
func TestCore_PublishesWhatARestoredHubHasInPlaceOfItsOwnWrite(t *testing.T) {
	w := newWork("w", 1)
	f := comparingFixture(t, State{}, w)
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{digestOf(t, w)}})
	f.tag()
	f.core.Report(report(w, 1, applied(1)))
	e := next[PatchStatus](f, HubLane, w.UID)
	f.core.Done(e, Result{Work: newWork("w", 1, version("900"), withStatus(e.Status))})

	f.core.Disconnected()
	restored := newWork("w", 2, version("150"))
	f.core.WorkSeen(restored)
	f.core.Connected(transport.Accepted{Protocol: 1, Resync: codec.ResyncCursor})
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{digestOf(t, w)}})
	f.clusterIdle("cluster1") // the tags are known: in sync, as far as can be seen
	f.clusterIdle("cluster1")
	f.idle(SpecLane, w.UID)
	if n := f.core.Stats().Comparing; n != 0 {
		t.Fatalf("%d clusters are not compared", n)
	}

	f.now = f.now.Add(echoTimeout)
	f.idle(SpecLane, w.UID)
	if n := f.core.Stats().Comparing; n != 1 {
		t.Error("the cluster counts as compared")
	}
	f.compareAnew(recordOf(t, w, 3))
	if p := f.deliver(w.UID); p.Work != restored {
		t.Errorf("published %+v", p)
	}
}

// The hub was asked for a work because the informer lagged, and went back after
// its answer was published: to what the informer has, or to where a generation
// of that number is another.
func TestCore_PublishesWhatARestoredHubHasInPlaceOfItsAnswer(t *testing.T) {
	published := func(t *testing.T) (*fixture, codec.InventoryRecord) {
		f := comparingFixture(t, State{}, newWork("w", 1))
		answer := newWork("w", 2, version("900"))
		answer.Labels = map[string]string{"now": "later"}
		earlier := codec.InventoryRecord{Cluster: "cluster1", ResourceID: "uid-w", Name: "w", Version: 2, Revision: 5}
		f.page(cluster1Has(earlier))
		f.tag()
		f.page(codec.Inventory{Records: []codec.InventoryRecord{earlier}})
		f.core.Done(next[CheckBehind](f, SpecLane, "uid-w"), Result{Work: answer})
		if p := f.deliver("uid-w"); p.Work != answer {
			t.Fatalf("published %+v", p)
		}
		f.idle(SpecLane, "uid-w")
		return f, recordOf(t, answer, 6)
	}

	t.Run("what the informer has", func(t *testing.T) {
		f, record := published(t)
		f.core.Disconnected()
		f.core.Connected(transport.Accepted{Protocol: 1, Resync: codec.ResyncCursor})
		f.page(codec.Inventory{Clusters: []codec.ClusterDigest{digestOf(t, f.core.current(f.core.works["uid-w"]))}})
		f.tag()
		f.idle(SpecLane, "uid-w")
		f.now = f.now.Add(echoTimeout)
		restored := newWork("w", 1)
		f.core.WorkSeen(restored)
		f.idle(SpecLane, "uid-w")
		f.compareAnew(record)
		f.core.Done(next[CheckBehind](f, SpecLane, "uid-w"), Result{Work: restored})
		f.idle(SpecLane, "uid-w") // the next process would not know that the hub went back
		f.locate("200")
		f.core.Done(nextOf[Save](f, HubLane, Key{}), Result{})
		if p := f.deliver("uid-w"); p.Work != restored || p.Supersedes != 6 {
			t.Errorf("published %+v", p)
		}
	})

	t.Run("the generation again", func(t *testing.T) {
		f, record := published(t)
		restored := newWork("w", 2, version("150"))
		restored.Labels = map[string]string{"now": "later"}
		restored.Spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
		f.core.WorkSeen(restored)
		f.now = f.now.Add(echoTimeout)
		f.idle(SpecLane, "uid-w")
		f.compareAnew(record)
		if p := f.deliver("uid-w"); p.Work != restored {
			t.Errorf("published %+v", p)
		}
	})
}

// A work whose end the informer is late to show is not waited for.
func TestCore_CountsAClusterAsComparedWhileTheEndOfAWorkIsShownLate(t *testing.T) {
	w := newWork("w", 2, deleting)
	f := comparingFixture(t, State{}, w)
	f.page(codec.Inventory{})
	f.deliver(w.UID)
	f.core.Report(&Report{UID: w.UID, Cluster: "cluster1", Name: "w", Version: 2, Sequence: sequence(1), Deleted: true})
	e := next[RemoveFinalizer](f, HubLane, w.UID)
	f.core.Done(e, Result{Work: newWork("w", 2, deleting, withoutFinalizer, version("900"))})
	f.core.WorkSeen(newWork("w", 2, deleting, version("150")))
	f.now = f.now.Add(echoTimeout)
	f.idle(SpecLane, w.UID)
	f.asked()
	if n := f.core.Stats().Comparing; n != 0 {
		t.Errorf("%d clusters are not compared", n)
	}
}

// t1 a status is written, and informers stop before they show that, t2 the hub goes back
// behind it, t3 the source hears so from the hub itself and asks for all statuses.
// Therefore the answer counts, although the same was taken before t1: nothing else shows
// that the status is gone.
func TestCore_TakesTheStatusThatItWroteOnceMoreOnAHubThatWentBack(t *testing.T) {
	w := newWork("w", 1)
	f := comparingFixture(t, State{}, w)
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{digestOf(t, w)}})
	f.locate("900")
	f.core.Report(report(w, 1, applied(1)))
	e := next[PatchStatus](f, HubLane, w.UID)
	f.core.Done(e, Result{Work: newWork("w", 1, version("800"), withStatus(e.Status))})
	f.now = f.now.Add(locateEvery)
	f.core.locateNow()
	f.locate("150")
	if v := f.core.Report(report(w, 1, applied(1))); v != Taken {
		t.Errorf("the status is %s", v)
	}
	next[PatchStatus](f, HubLane, w.UID)
}

// t1 the finalizer of a work is taken off, t2 the hub goes back to just before that, t3
// informers list it anew, and tell nothing of a work that they have as it is. So nobody
// says that the finalizer is there again: it is looked at once more when the informer
// should have shown t1 by far.
func TestCore_TakesTheFinalizerOffAgainOnAHubThatWentBackToWhatIsKnown(t *testing.T) {
	w := newWork("w", 2, deleting)
	f := comparingFixture(t, State{}, w)
	f.page(codec.Inventory{})
	f.deliver(w.UID)
	f.core.Report(&Report{UID: w.UID, Cluster: "cluster1", Name: "w", Version: 2, Sequence: sequence(1), Deleted: true})
	e := next[RemoveFinalizer](f, HubLane, w.UID)
	f.wakes = nil
	f.core.Done(e, Result{Work: newWork("w", 2, deleting, withoutFinalizer, version("900"))})
	f.idle(HubLane, w.UID)
	if d := f.nextWake(HubLane); d != echoTimeout {
		t.Errorf("looks at it again in %v", d)
	}
	f.now = f.now.Add(echoTimeout)
	next[RemoveFinalizer](f, HubLane, w.UID)
}
