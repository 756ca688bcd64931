package core

import (
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// written is a core that wrote a status at version 900, which the informer has not shown.
func written(t *testing.T) *fixture {
	t.Helper()
	w := newWork("w", 1)
	f := comparingFixture(t, SavedState{}, w)
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{digestOf(t, w)}})
	f.locate("700")
	f.tag()
	f.core.Report(report(w, 1, applied(1)))
	e := next[PatchStatus](f, HubQueue, w.UID)
	f.done(e, Result{Work: newWork("w", 1, version("900"), withStatus(e.Status))})
	return f
}

// A slow informer is no evidence: the hub is queried, and its answer changes nothing.
func TestCore_QueriesTheHubWhenTheInformerLags(t *testing.T) {
	f := written(t)
	f.wakes = nil
	f.seen(newWork("w", 1, version("150")))
	f.idle(HubQueue, "uid-w")
	if d := f.nextWake(HubQueue); d != informerLag {
		t.Errorf("looks again in %v", d)
	}
	f.now = f.now.Add(informerLag)
	f.done(next[Get](f, HubQueue, "uid-w"), Result{Work: newWork("w", 1, version("900"), withStatus(applied(1)))})
	f.idle(HubQueue, "uid-w")
	f.idle(BrokerQueue, "uid-w")
	if s, _ := f.core.State(); s.suspectsAll() {
		t.Error("a late informer causes a rollback suspicion")
	}
}

// Scenario:
//
//	t1: a status is written to the hub.
//	t2: the informer has not shown it. The hub is queried, and has it.
//	t3: the hub is restored from a backup to the state that the informer showed last, so the informer shows
//	nothing new.
//
// Result: the hub is queried again while the informer is behind.
func TestCore_DetectsRollbackToInformerState(t *testing.T) {
	f := written(t)
	f.idle(HubQueue, "uid-w")
	f.now = f.now.Add(informerLag)
	f.done(next[Get](f, HubQueue, "uid-w"), Result{Work: newWork("w", 1, version("900"), withStatus(applied(1)))})
	f.idle(HubQueue, "uid-w")
	f.now = f.now.Add(informerLag)
	f.done(next[Get](f, HubQueue, "uid-w"), Result{Work: newWork("w", 1)})
	f.beginEpoch(newWork("w", 1))
}

// Scenario:
//
//	t1: a status is written to the hub.
//	t2: the hub is restored from a backup.
//	t3: the informer shows the work of the backup.
//
// Result: a new epoch begins, in which everything is compared again; what was read before t2 is not valid.
func TestCore_EndsEpochForOlderWrittenStatus(t *testing.T) {
	f := written(t)
	restored := newWork("w", 2, version("150"))
	f.seen(restored)
	f.now = f.now.Add(informerLag)
	f.done(next[Get](f, HubQueue, "uid-w"), Result{Work: restored})
	f.idle(BrokerQueue, "uid-w") // the suspicion is not saved yet, so the next process would not know of the rollback
	f.beginEpoch(restored)
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncList})
	last := &codec.HubPosition{UID: "hub", ResourceVersion: "700"}
	f.page(codec.Inventory{LastPosition: last, Clusters: []codec.ClusterDigest{digestOf(t, newWork("w", 1))}})
	f.locate("151")
	e := nextOf[Tag](f, BrokerQueue, Key{Cluster: "cluster1"})
	f.done(e, Result{Tags: e.Tags()})
	f.queryAndIdle()
	f.page(codec.Inventory{Records: []codec.InventoryRecord{recordOf(t, newWork("w", 1), 3)}})
	if p := f.deliver("uid-w"); p.Work != restored {
		t.Errorf("published %+v", p)
	}
}

// An informer may be slow, but it does not go back in one hub epoch.
func TestCore_EndsTheEpochWhenAnInformerGoesBack(t *testing.T) {
	for name, o := range map[string]*workv1.ManifestWork{
		"an older state than it showed":        newWork("w", 1, version("90")),
		"a lower generation, in a later state": newWork("w", 1, version("300")),
		"another state, of the same version":   newWork("w", 2, deleting),
	} {
		t.Run(name, func(t *testing.T) {
			f := comparingFixture(t, SavedState{}, newWork("w", 2))
			f.page(codec.Inventory{})
			f.seen(o)
			f.idle(BrokerQueue, "uid-w")
			f.beginEpoch(o)
		})
	}
}

// An answer may be older than an object that came during the query.
func TestCore_IgnoresAnswerOlderThanInformer(t *testing.T) {
	f := comparingFixture(t, SavedState{}, newWork("w", 2))
	f.lags = true
	f.page(codec.Inventory{})
	f.idle(BrokerQueue, "uid-w")
	e := next[Get](f, HubQueue, "uid-w")
	f.seen(newWork("w", 3))
	f.done(e, Result{Work: newWork("w", 2)})
	if s, _ := f.core.State(); s.suspectsAll() {
		t.Fatal("the hub is suspected")
	}
	if p := f.deliver("uid-w"); p.Work.Generation != 3 {
		t.Errorf("published %+v", p)
	}
}

// Scenario:
//
//	t1: a status is on its way to the hub.
//	t2: the broker lacks the work, so the hub has to confirm that it has the work.
//	t3: the hub accepts the status of t1.
//
// Result: the hub still has to be queried.
func TestCore_TakesNoWriteForTheAnswerToALaterQuestion(t *testing.T) {
	w := newWork("w", 1)
	f := comparingFixture(t, SavedState{}, w)
	f.core.Report(report(w, 1, applied(1)))
	e := next[PatchStatus](f, HubQueue, w.UID)
	f.page(codec.Inventory{})
	f.idle(BrokerQueue, w.UID)
	f.done(e, Result{Work: newWork("w", 1, version("300"), withStatus(e.Status))})
	f.done(next[Get](f, HubQueue, w.UID), Result{Work: newWork("w", 1, version("300"), withStatus(e.Status))})
	f.deliver(w.UID)
}

// The comparison does not wait for the informer to show the deletion of a work.
func TestCore_CountsAClusterAsComparedWhileTheEndOfAWorkIsShownLate(t *testing.T) {
	w := newWork("w", 2, deleting)
	f := comparingFixture(t, SavedState{}, w)
	f.page(codec.Inventory{})
	f.deliver(w.UID)
	f.core.Report(&Report{UID: w.UID, Cluster: "cluster1", Name: "w", Version: 2, Sequence: sequence(1), Deleted: true})
	e := next[RemoveFinalizer](f, HubQueue, w.UID)
	f.done(e, Result{Work: newWork("w", 2, deleting, withoutFinalizer, version("900"))})
	f.seen(newWork("w", 2, deleting, version("150")))
	f.now = f.now.Add(time.Second)
	f.idle(BrokerQueue, w.UID)
	f.clusterIdle("cluster1")
	if n := f.core.Stats().Comparing; n != 0 {
		t.Errorf("%d clusters are not compared", n)
	}
}
