package core

import (
	"testing"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// If an answer is older than an object that came during the query, either it was overtaken, or the hub went
// back. Then the hub is queried again, but not for ever on a busy hub.
func TestCore_QueriesAgainWhenTheAnswerIsOlder(t *testing.T) {
	f := comparingFixture(t, SavedState{})
	answer := func(e ReadHubPosition, version string) {
		f.done(e, Result{Position: &codec.HubPosition{UID: "hub", ResourceVersion: version}})
	}
	f.page(codec.Inventory{})
	e := nextOf[ReadHubPosition](f, HubQueue, Key{})
	f.seen(newWork("w", 1, version("300")))
	answer(e, "200")
	e = nextOf[ReadHubPosition](f, HubQueue, Key{})
	f.seen(newWork("w", 2, version("400")))
	answer(e, "350") // 350 is later than 300: the hub did not go back
	if e := f.core.Next(HubQueue, Key{}); e != nil {
		t.Fatalf("the effect is repeated at once: %T", e)
	}
	f.now = f.now.Add(readPositionEvery)
	answer(nextOf[ReadHubPosition](f, HubQueue, Key{}), "200")
	if s, _ := f.core.State(); len(s.Withheld) != 1 || s.Withheld[0] != everywhere {
		t.Errorf("nothing is withheld although the hub went back: %+v", s)
	}
}

// TestCore_LocatesTheHubAtOnceOnEachSubscription: a read planned on the subscription before does not delay the
// read on a new one.
func TestCore_LocatesTheHubAtOnceOnEachSubscription(t *testing.T) {
	f := comparingFixture(t, SavedState{})
	f.page(codec.Inventory{})
	f.locate("200")
	f.seen(newWork("w", 1, version("300")))
	if e := f.core.Next(HubQueue, Key{}); e != nil {
		t.Fatalf("the effect is repeated within a minute: %T", e)
	}
	f.core.Disconnected()
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol})
	f.locate("300")
}

// A new list lacks a work whose last publish is in flight, for longer than a comparison takes. The hub is not
// trusted before that work was looked up.
func TestCore_SuspectsRollbackUntilMissingWorksAreChecked(t *testing.T) {
	w := newWork("w", 2)
	f := comparingFixture(t, SavedState{Withheld: []string{everywhere}}, w)
	f.page(codec.Inventory{})
	f.locate("200")
	f.clusterIdle("cluster1")
	under := next[Publish](f, BrokerQueue, w.UID)
	f.missing(w.UID)
	f.now = f.now.Add(missingDelay)
	f.clusterIdle("cluster1")
	f.page(codec.Inventory{})
	f.clusterIdle("cluster1")
	f.now = f.now.Add(time.Hour)
	if e := f.core.Next(BrokerQueue, Key{}); e != nil {
		t.Fatalf("before the work was looked for, the next of all is %T %+v", e, e)
	}
	f.done(under, Result{Receipt: transport.Receipt{Outcome: codec.OutcomeAccepted}})
	f.now = f.now.Add(missingDelay)
	f.clusterIdle("cluster1")
	f.page(codec.Inventory{Records: []codec.InventoryRecord{recordOf(t, w, 4)}})
	f.locate("202")
	f.clusterIdle("cluster1")
	if s := f.core.Stats(); s.WithheldWorks != 1 {
		t.Errorf("the deletion is not withheld: %+v", s)
	}
}

// Scenario:
//
//	t1: a hub goes back in time, and the suspicion is saved on it.
//	t2: it goes back once more, to before t1, and loses the saved suspicion.
//
// Result: the suspicion is saved again before the next epoch begins, even if a save of t1 is answered after t2.
// Without this: another process knows of no suspicion. And the position reported at its end may be one that a
// broker's store knew before.
func TestCore_SavesASuspicionAgainAfterRollback(t *testing.T) {
	for _, late := range []bool{false, true} {
		f := comparingFixture(t, SavedState{})
		f.locate("900")
		f.page(codec.Inventory{})
		f.core.epochs.readPositionNow()
		f.locate("200")
		f.beginEpoch()
		f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncList})
		if s, unsaved := f.core.State(); unsaved || !s.suspectsAll() {
			t.Fatalf("to be saved: %+v", s)
		}
		f.locate("201")
		var before Save
		if late {
			f.core.epochs.suspectCluster("cluster1")
			f.core.epochs.reason = "something else"
			f.core.epochs.against = &codec.HubPosition{UID: "hub", ResourceVersion: "950"}
			before = nextOf[Save](f, HubQueue, Key{})
		}
		f.core.epochs.readPositionNow()
		if late {
			f.core.epochs.endEpoch("the hub has a work again that was gone")
			f.done(before, Result{})
		} else {
			f.locate("150")
		}
		f.beginEpoch()
	}
}

// Scenario:
//
//	t1: a process reads its state on the hub, with a cursor after the newest statuses and a known suspicion.
//	t2: the hub goes back to before t1. Its works, which the informers list only now, contradict nothing, and
//	its position shows nothing new.
//
// Result: the version of the saved state shows the rollback, even if there is nothing to save. The statuses
// that the hub lost are requested.
func TestCore_EndsEpochForOlderSavedState(t *testing.T) {
	against := &codec.HubPosition{UID: "hub", ResourceVersion: "900"}
	for kept, ends := range map[string]bool{"": true, "300": true, "500": false, "501": false} {
		f := comparingFixture(t, SavedState{Cursor: "e/t/7", Withheld: []string{everywhere}, SuspectedPosition: against, Version: "500"}, newWork("w", 1))
		f.page(codec.Inventory{LastPosition: against})
		f.locateKeeping("510", kept)
		if s, _ := f.core.State(); (s.Cursor == "") != ends {
			t.Errorf("the hub keeps %q: to be saved is %+v", kept, s)
		}
		if ends {
			f.beginEpoch()
		}
	}
}

// Scenario:
//
//	t1: a state is saved, and the answer is lost.
//	t2: the hub goes back to before the last answered save.
//	t3: the next save is based on the ConfigMap that it finds, and succeeds.
//
// Result: its resource version shows the rollback. If the ConfigMap is missing, the position of the hub is
// read.
func TestCore_EndsTheEpochWhenASaveReplacesAnOlderState(t *testing.T) {
	f := comparingFixture(t, SavedState{Cursor: "e/t/7", Version: "500"}, newWork("w", 1))
	f.page(codec.Inventory{})
	f.locateKeeping("510", "500")
	f.core.epochs.suspectCluster("cluster1")
	f.done(nextOf[Save](f, HubQueue, Key{}), Result{Err: errNotFound()})
	f.locateKeeping("511", "500") // the lost state causes this query
	f.now = f.now.Add(time.Minute)
	f.done(nextOf[Save](f, HubQueue, Key{}), Result{Kept: "400"})
	f.beginEpoch()
}
