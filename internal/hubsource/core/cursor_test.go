package core

import (
	"testing"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

func cursorAt(revision uint64) codec.Cursor {
	return codec.Cursor{StoreID: "epoch", Incarnation: "term", Revision: revision}
}

// at asserts the cursor up to which all reports are on the hub.
func (f *fixture) at(revision uint64) {
	f.t.Helper()
	want := ""
	if revision > 0 {
		want = cursorAt(revision).String()
	}
	if got := f.core.cursor.at(); got != want {
		f.t.Fatalf("cursor is %q, want %q", got, want)
	}
}

func (f *fixture) checkpoint(revision, lists uint64) {
	f.core.Checkpoint(codec.Checkpoint{Cursor: cursorAt(revision), AnsweredStatusRequests: lists})
}

func TestCore_MovesTheCursorWhenReportsAreOnTheHub(t *testing.T) {
	w, v := newWork("w", 1), newWork("v", 1)
	f := comparingFixture(t, SavedState{Cursor: cursorAt(1).String()}, w, v)
	if h := f.core.Hello(); h.Cursor != cursorAt(1).String() {
		t.Errorf("it sends the cursor %q", h.Cursor)
	}
	f.checkpoint(2, 0)
	f.at(2) // no report came before the checkpoint
	f.core.Report(report(w, 1, applied(1)))
	f.checkpoint(3, 0)
	f.core.Report(report(v, 1, applied(1)))
	f.checkpoint(4, 0)
	f.at(2)
	e := next[PatchStatus](f, HubQueue, w.UID)
	f.core.Report(report(w, 2, applied(1))) // the broker sends this report again after the cursors 3 and 4
	f.checkpoint(5, 0)
	f.at(3)
	f.done(e, Result{Err: errHubDown()})
	f.at(3)
	f.done(next[PatchStatus](f, HubQueue, v.UID), Result{Err: errInvalid()}) // dropped for good, once Delivered gives the reason
	f.at(3)
	reported := next[PatchStatus](f, HubQueue, v.UID)
	f.done(reported, Result{Work: newWork("v", 1, version("200"), withStatus(reported.Status))})
	f.idle(HubQueue, v.UID)
	f.at(4)
	f.now = f.now.Add(time.Second)
	f.done(next[PatchStatus](f, HubQueue, w.UID), Result{Work: newWork("w", 1, version("300"), withStatus(applied(1)))})
	f.at(5)
}

func TestCore_AcknowledgesAndSavesNowAndThen(t *testing.T) {
	f := comparingFixture(t, SavedState{})
	f.page(codec.Inventory{})
	f.locate("200")
	f.reported()
	f.checkpoint(2, 0)
	ack := nextOf[SendAck](f, BrokerQueue, Key{})
	if ack.Cursor != cursorAt(2) {
		t.Errorf("acknowledges %s", ack.Cursor)
	}
	f.done(ack, Result{})
	f.done(nextOf[Save](f, HubQueue, Key{}), Result{})
	f.checkpoint(3, 0)
	f.checkpoint(4, 0)
	if e := f.core.Next(BrokerQueue, Key{}); e != nil {
		t.Fatalf("next is %+v, so soon", e)
	}
	if e := f.core.Next(HubQueue, Key{}); e != nil {
		t.Fatalf("next is %+v, so soon", e)
	}
	f.now = f.now.Add(saveEvery)
	if e := nextOf[SendAck](f, BrokerQueue, Key{}); e.Cursor != cursorAt(4) {
		t.Errorf("acknowledges %s", e.Cursor)
	}
	if e := nextOf[Save](f, HubQueue, Key{}); e.State.Cursor != cursorAt(4).String() {
		t.Errorf("saves %+v", e.State)
	}
}

func TestCore_HoldsTheCursorUntilTheFinalizerIsOff(t *testing.T) {
	w := newWork("w", 2, deleting)
	f := comparingFixture(t, SavedState{}, w)
	f.deliver(w.UID)
	f.core.Report(&Report{UID: w.UID, Cluster: w.Namespace, Name: "w", Version: 2, Sequence: sequence(1), Deleted: true})
	f.checkpoint(2, 0)
	f.at(0)
	f.done(next[RemoveFinalizer](f, HubQueue, w.UID), Result{Work: newWork("w", 2, deleting, withoutFinalizer, version("300"))})
	f.at(2)
}

func TestCore_TakesNoCursorBeforeItsListsAreAnswered(t *testing.T) {
	w := newWork("w", 1)
	f := comparingFixture(t, SavedState{Cursor: cursorAt(9).String()}, w)
	f.core.Disconnected()
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncList}) // the broker has another store
	f.at(0)
	f.checkpoint(2, 0)
	f.at(0)
	e := nextRequest(f)
	f.checkpoint(3, 1) // the second answer to the request is in flight
	f.at(0)
	f.done(e, Result{Sent: 2})
	f.at(0) // two lists were sent
	f.checkpoint(4, 2)
	f.at(4)
}

func TestCore_AcceptsCursorBeforeReceipt(t *testing.T) {
	f := comparingFixture(t, SavedState{}, newWork("w", 1))
	f.core.Disconnected()
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncList})
	e := nextRequest(f)
	f.checkpoint(3, 1)
	f.done(e, Result{Sent: 1})
	f.at(3)
}

func TestCore_TakesNoCursorWithoutStatusRequests(t *testing.T) {
	f := comparingFixture(t, SavedState{}, newWork("w", 1))
	f.core.Disconnected()
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncList})
	f.done(nextRequest(f), Result{Sent: 1, Err: &transport.Error{Code: transport.CodeInvalid}})
	f.checkpoint(3, 1)
	f.at(0)
}

func TestCore_ForgetsCheckpointsOfAnEarlierConnection(t *testing.T) {
	w := newWork("w", 1)
	f := comparingFixture(t, SavedState{}, w)
	f.core.Report(report(w, 1, applied(1)))
	f.checkpoint(2, 0)
	f.core.Disconnected()
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
	e := next[PatchStatus](f, HubQueue, w.UID)
	f.done(e, Result{Work: newWork("w", 1, version("300"), withStatus(e.Status))})
	f.at(0) // the checkpoint may belong to a former store
	f.checkpoint(3, 0)
	f.at(3)
}

func TestCore_KeepsFewCheckpointsWhileTheHubIsAway(t *testing.T) {
	w := newWork("w", 1)
	f := comparingFixture(t, SavedState{}, w)
	f.core.Report(report(w, 1, applied(1)))
	for i := range 10 * maxSegments {
		f.checkpoint(uint64(i+1), 0)
	}
	if n := len(f.core.cursor.closed); n > maxSegments {
		t.Errorf("%d checkpoints kept", n)
	}
	e := next[PatchStatus](f, HubQueue, w.UID)
	f.done(e, Result{Work: newWork("w", 1, version("300"), withStatus(e.Status))})
	f.at(10 * maxSegments)
}

func TestCore_DoesNotWaitForARolledBackGeneration(t *testing.T) {
	w := newWork("w", 3)
	f := comparingFixture(t, SavedState{}, w)
	future := report(newWork("w", 7), 1, applied(7))
	if v := f.core.Report(future); v != Taken {
		t.Fatalf("result is %s", v)
	}
	f.checkpoint(2, 0)
	f.idle(HubQueue, w.UID) // the informer may lag
	f.now = f.now.Add(informerPatience)
	f.done(next[Get](f, HubQueue, w.UID), Result{Err: errHubDown()})
	f.at(0)
	f.now = f.now.Add(time.Second)
	f.done(next[Get](f, HubQueue, w.UID), Result{Work: w})
	f.idle(HubQueue, w.UID)
	f.at(2)
	if v := f.core.Report(report(w, 2, applied(3))); v != Taken {
		t.Errorf("what the cluster makes of the older generation is %s", v)
	}
	next[PatchStatus](f, HubQueue, w.UID)
}

func TestCore_WritesReportAheadOfInformer(t *testing.T) {
	f := comparingFixture(t, SavedState{}, newWork("w", 3))
	newer := newWork("w", 4, version("200"))
	f.core.Report(report(newer, 1, applied(4)))
	f.idle(HubQueue, "uid-w")
	f.now = f.now.Add(informerPatience)
	f.done(next[Get](f, HubQueue, "uid-w"), Result{Work: newer})
	if e := next[PatchStatus](f, HubQueue, "uid-w"); e.Work != newer {
		t.Errorf("patches %+v", e.Work)
	}
}

func TestCore_StartsTheStreamOverWhenItSeesTheHubGoBack(t *testing.T) {
	w := newWork("w", 1, version("500"))
	f := comparingFixture(t, SavedState{Cursor: cursorAt(5).String()}, w)
	f.core.Report(report(w, 1, applied(1)))
	e := next[PatchStatus](f, HubQueue, w.UID)
	f.done(e, Result{Work: newWork("w", 1, version("501"), withStatus(e.Status))})
	back := newWork("w", 1, version("400")) // the copy is from before the status
	f.seen(back)
	f.beginEpoch(back)
	f.at(0)
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncList})
	f.page(codec.Inventory{})
	if a := nextRequest(f); len(a.Statuses) != 1 {
		t.Errorf("it requests the statuses of %+v", a.Statuses)
	}
	if v := f.core.Report(report(w, 1, applied(1))); v != Taken {
		t.Errorf("the result of the repeated status is %s", v)
	}
	next[PatchStatus](f, HubQueue, w.UID)
}

// Scenario:
//
//	t1: the hub went back before this process began, and the rollback suspicion lasts.
//	t2: a user creates a work. It has no status to request, and has not lost one.
//
// Result: the cursor does not wait for an answer.
func TestCore_RequestsNoStatusOfNewWorksAfterRollback(t *testing.T) {
	f := comparingFixture(t, SavedState{Cursor: cursorAt(5).String(), Withheld: []string{everywhere}})
	f.seen(newWork("w", 1, withoutFinalizer))
	if e, requests := f.core.Next(BrokerQueue, Key{Cluster: "cluster1"}).(RequestStatuses); requests {
		t.Errorf("it requests the statuses of %+v", e.Statuses)
	}
	f.checkpoint(6, 0)
	f.at(6)
}

// Scenario:
//
//	t1: the hub is restored from a backup.
//	t2: the source saves its cursor there before its informers have listed the hub again. The ConfigMap is not
//	the one that it saved last.
//
// Without this: the next process would continue after statuses that the hub lost. It would also take works that
// were made before t1 for deleted. Result: the epoch ends. It also ends if the hub is in a later position than
// before: an old backup was restored, and then a newer one.
func TestCore_SavesNoCursorAfterRollback(t *testing.T) {
	f := comparingFixture(t, SavedState{Cursor: cursorAt(5).String(), Version: "150"})
	f.page(codec.Inventory{})
	f.locateKeeping("200", "150")
	f.checkpoint(6, 0)
	f.now = f.now.Add(saveEvery)
	f.done(nextOf[Save](f, HubQueue, Key{}), Result{Err: errConflict()})
	if s, _ := f.core.State(); s.Cursor != "" {
		t.Errorf("a process that ends saves %q", s.Cursor)
	}
	f.now = f.now.Add(time.Minute) // the failed write has to back off
	f.beginEpoch()
	if h := f.core.Hello(); h.Cursor != "" {
		t.Errorf("continues from %q", h.Cursor)
	}
}

// Works older than their records raise no new suspicion about a hub that is already suspected. If that hub goes
// back again, statuses are still lost and have to be requested.
func TestCore_RequestsStatusesAfterSuspicionEnds(t *testing.T) {
	f := comparingFixture(t, SavedState{Cursor: cursorAt(5).String(), Withheld: []string{everywhere}})
	f.locate("900")
	w, other := newWork("w", 1), newWork("other", 1)
	f.seen(w)
	f.seen(other)
	f.done(nextRequest(f), Result{})
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{{Cluster: "cluster1", Digest: codec.Digest{Count: 2}}}})
	f.tag()
	f.page(codec.Inventory{Records: []codec.InventoryRecord{recordOf(t, newWork("w", 2), 7), recordOf(t, other, 3)}})
	f.done(next[Get](f, HubQueue, w.UID), Result{Work: w})
	f.deliver(w.UID)
	f.now = f.now.Add(readPositionEvery)
	f.locate("200")
	f.beginEpoch(w, other)
	if h := f.core.Hello(); h.Cursor != "" {
		t.Errorf("continues from %q", h.Cursor)
	}
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncList})
	f.page(codec.Inventory{LastPosition: &codec.HubPosition{UID: "hub", ResourceVersion: "900"}})
	f.locate("201")
	if a := nextRequest(f); len(a.Statuses) != 2 {
		t.Errorf("it requests the statuses of %+v", a.Statuses)
	}
	if _, ends := f.core.Next(HubQueue, Key{}).(Save); ends {
		t.Error("a known suspicion ends another epoch")
	}
}

func TestState_SurvivesAConfigMap(t *testing.T) {
	trusted := &codec.HubPosition{UID: "hub", ResourceVersion: "7"}
	for _, s := range []SavedState{{}, {Cursor: "e/t/7"}, {Withheld: []string{"c1", "c2"}}, {Cursor: "e/t/7", Withheld: []string{everywhere}, ClearedPosition: trusted, SuspectedPosition: trusted}} {
		if got := StateOf(s.Data()); !got.equal(s) {
			t.Errorf("%+v became %+v", s, got)
		}
	}
	many := map[string]bool{}
	for i := range maxWithheld + 1 {
		many[string(rune('a'+i%26))+time.Duration(i).String()] = true
	}
	if got := withheldOf(many); len(got) != 1 || got[0] != everywhere {
		t.Errorf("%d names are kept apart", len(got))
	}
}

// A cluster leaves the selection while a report of it waits for its patch, and is selected again before its
// release. The report is dropped, and comes once more.
func TestCore_DropsReportOfReselectedCluster(t *testing.T) {
	w := newWork("w", 1)
	begin := func(t *testing.T) *fixture {
		f := comparingCore(t, Config{})
		f.selected("cluster1")
		f.seen(w)
		f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
		f.checkpoint(1, 0)
		f.core.Report(report(w, 1, applied(1)))
		f.checkpoint(2, 0)
		f.unselected("cluster1")
		f.at(1)
		return f
	}

	t.Run("the connection breaks before that", func(t *testing.T) {
		f := begin(t)
		f.core.Disconnected()
		f.selected("cluster1")
		f.at(1)
		f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
		if v := f.core.Report(report(w, 1, applied(1))); v != Taken {
			t.Errorf("the report is %s", v)
		}
		next[PatchStatus](f, HubQueue, w.UID)
	})
	t.Run("the connection breaks before the request", func(t *testing.T) {
		f := begin(t)
		f.selected("cluster1")
		f.at(1)
		f.core.Disconnected()
		f.at(1)
	})
	t.Run("the status is requested", func(t *testing.T) {
		f := begin(t)
		f.selected("cluster1")
		f.done(nextRequest(f), Result{Sent: 1})
		f.at(1)
		f.checkpoint(3, 1)
		f.at(3)
	})
	t.Run("it is released", func(t *testing.T) {
		f := begin(t)
		f.done(nextOf[Release](f, BrokerQueue, Key{Cluster: "cluster1"}), Result{})
		f.at(2)
	})
}
