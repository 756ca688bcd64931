package core

import (
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// written is a core that wrote a status to the hub, at version 900, which the
// informer has not shown.
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

// A slow informer is no evidence: the hub is asked, and what it says is no news.
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
		t.Error("a late informer casts doubt on the hub")
	}
}

// t1 a status is written to the hub. t2 the informer has not shown it, and the hub is
// asked: it is there. t3 the hub is restored from a backup to what the informer showed
// last, so that it has nothing to show. Therefore the hub is asked again as long as the
// informer stays behind.
func TestCore_NoticesAHubThatWentBackToWhatItsInformerShows(t *testing.T) {
	f := written(t)
	f.idle(HubQueue, "uid-w")
	f.now = f.now.Add(informerLag)
	f.done(next[Get](f, HubQueue, "uid-w"), Result{Work: newWork("w", 1, version("900"), withStatus(applied(1)))})
	f.idle(HubQueue, "uid-w")
	f.now = f.now.Add(informerLag)
	f.done(next[Get](f, HubQueue, "uid-w"), Result{Work: newWork("w", 1)})
	f.beginEpoch(newWork("w", 1))
}

// t1 a status is written to the hub; t2 the hub is restored from a backup; t3 the
// informer shows the work as it is there. Therefore what was read before t2 says
// nothing, and a new life begins, in which everything is compared again.
func TestCore_EndsTheEpochOfAHubThatHasAnOlderStateThanItWrote(t *testing.T) {
	f := written(t)
	restored := newWork("w", 2, version("150"))
	f.seen(restored)
	f.now = f.now.Add(informerLag)
	f.done(next[Get](f, HubQueue, "uid-w"), Result{Work: restored})
	f.idle(BrokerQueue, "uid-w") // the next process would not know that the hub went back
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

// An informer may be slow, but in one life of a hub it does not go back.
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

// An answer may be from before what was heard since it was asked for.
func TestCore_TakesNoAnswerForEvidenceThatWasOvertaken(t *testing.T) {
	f := comparingFixture(t, SavedState{}, newWork("w", 2))
	f.lags = true
	f.page(codec.Inventory{})
	f.idle(BrokerQueue, "uid-w")
	e := next[Get](f, HubQueue, "uid-w")
	f.seen(newWork("w", 3))
	f.done(e, Result{Work: newWork("w", 2)})
	if s, _ := f.core.State(); s.suspectsAll() {
		t.Fatal("the hub is doubted")
	}
	if p := f.deliver("uid-w"); p.Work.Generation != 3 {
		t.Errorf("published %+v", p)
	}
}

// t1 a status is on its way to the hub; t2 the broker is heard to lack the work, so the
// hub is to say whether it is there; t3 the hub takes the status, as of t1. Therefore it is
// still to be asked.
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

// A work whose end the informer is late to show is not waited for.
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
