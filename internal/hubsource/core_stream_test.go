package hubsource

import (
	"testing"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

func cursorAt(revision uint64) codec.Cursor {
	return codec.Cursor{Epoch: "epoch", Term: "term", Revision: revision}
}

// at asserts how far the stream is on the hub.
func (f *fixture) at(revision uint64) {
	f.t.Helper()
	want := ""
	if revision > 0 {
		want = cursorAt(revision).String()
	}
	if s, _ := f.core.State(); s.Cursor != want {
		f.t.Fatalf("cursor is %q, want %q", s.Cursor, want)
	}
}

func (f *fixture) checkpoint(revision, lists uint64) {
	f.core.Checkpoint(codec.Checkpoint{Cursor: cursorAt(revision), AnsweredLists: lists})
}

func TestCore_MovesTheCursorWhenReportsAreOnTheHub(t *testing.T) {
	w, v := newWork("w", 1), newWork("v", 1)
	f := comparingFixture(t, State{Cursor: cursorAt(1).String()}, w, v)
	if h := f.core.Hello(); h.Cursor != cursorAt(1).String() {
		t.Errorf("says hello with %q", h.Cursor)
	}
	f.checkpoint(2, 0)
	f.at(2) // nothing came before it
	f.core.Report(report(w, 1, applied(1)))
	f.checkpoint(3, 0)
	f.core.Report(report(v, 1, applied(1)))
	f.checkpoint(4, 0)
	f.at(2)
	e := next[PatchStatus](f, HubLane, w.UID)
	f.core.Report(report(w, 2, applied(1))) // comes again after cursor 3 and 4
	f.checkpoint(5, 0)
	f.at(3)
	f.core.Done(e, Result{Err: errHubDown()})
	f.at(3)
	f.core.Done(next[PatchStatus](f, HubLane, v.UID), Result{Err: errInvalid()}) // dropped for good
	f.at(4)
	f.now = f.now.Add(time.Second)
	f.core.Done(next[PatchStatus](f, HubLane, w.UID), Result{Work: newWork("w", 1, version("300"), withStatus(applied(1)))})
	f.at(5)
}

func TestCore_AcknowledgesAndSavesNowAndThen(t *testing.T) {
	f := comparingFixture(t, State{})
	f.page(codec.Inventory{})
	f.locate("200")
	f.told()
	f.checkpoint(2, 0)
	ack := nextOf[SendAck](f, SpecLane, Key{})
	if ack.Cursor != cursorAt(2) {
		t.Errorf("acknowledges %s", ack.Cursor)
	}
	f.core.Done(ack, Result{})
	f.core.Done(nextOf[Save](f, HubLane, Key{}), Result{})
	f.checkpoint(3, 0)
	f.checkpoint(4, 0)
	if e := f.core.Next(SpecLane, Key{}); e != nil {
		t.Fatalf("next is %+v, so soon", e)
	}
	if e := f.core.Next(HubLane, Key{}); e != nil {
		t.Fatalf("next is %+v, so soon", e)
	}
	f.now = f.now.Add(saveEvery)
	if e := nextOf[SendAck](f, SpecLane, Key{}); e.Cursor != cursorAt(4) {
		t.Errorf("acknowledges %s", e.Cursor)
	}
	if e := nextOf[Save](f, HubLane, Key{}); e.State.Cursor != cursorAt(4).String() {
		t.Errorf("saves %+v", e.State)
	}
}

func TestCore_HoldsTheCursorUntilTheFinalizerIsOff(t *testing.T) {
	w := newWork("w", 2, deleting)
	f := comparingFixture(t, State{}, w)
	f.deliver(w.UID)
	f.core.Report(&Report{UID: w.UID, Cluster: w.Namespace, Name: "w", Version: 2, Sequence: sequence(1), Deleted: true})
	f.checkpoint(2, 0)
	f.at(0)
	f.core.Done(next[RemoveFinalizer](f, HubLane, w.UID), Result{Work: newWork("w", 2, deleting, withoutFinalizer, version("300"))})
	f.at(2)
}

func TestCore_TakesNoCursorBeforeItsListsAreAnswered(t *testing.T) {
	w := newWork("w", 1)
	f := comparingFixture(t, State{Cursor: cursorAt(9).String()}, w)
	f.core.Disconnected()
	f.core.Connected(transport.Accepted{Protocol: 1, Resync: codec.ResyncList}) // the store is another one
	f.at(0)
	f.checkpoint(2, 0)
	f.at(0)
	e := nextAsk(f)
	f.checkpoint(3, 1) // the answer to the list is on its way
	f.at(0)
	f.core.Done(e, Result{Lists: 2})
	f.at(0) // there are two
	f.checkpoint(4, 2)
	f.at(4)
}

func TestCore_TakesTheCursorThatOvertookTheLastReceipt(t *testing.T) {
	f := comparingFixture(t, State{}, newWork("w", 1))
	f.core.Disconnected()
	f.core.Connected(transport.Accepted{Protocol: 1, Resync: codec.ResyncList})
	e := nextAsk(f)
	f.checkpoint(3, 1)
	f.core.Done(e, Result{Lists: 1})
	f.at(3)
}

func TestCore_TakesNoCursorWhereTheBrokerRefusedToBeAsked(t *testing.T) {
	f := comparingFixture(t, State{}, newWork("w", 1))
	f.core.Disconnected()
	f.core.Connected(transport.Accepted{Protocol: 1, Resync: codec.ResyncList})
	f.core.Done(nextAsk(f), Result{Lists: 1, Err: &transport.Error{Code: transport.CodeInvalid}})
	f.checkpoint(3, 1)
	f.at(0)
}

func TestCore_ForgetsCheckpointsOfAnEarlierConnection(t *testing.T) {
	w := newWork("w", 1)
	f := comparingFixture(t, State{}, w)
	f.core.Report(report(w, 1, applied(1)))
	f.checkpoint(2, 0)
	f.core.Disconnected()
	f.core.Connected(transport.Accepted{Protocol: 1, Resync: codec.ResyncCursor})
	e := next[PatchStatus](f, HubLane, w.UID)
	f.core.Done(e, Result{Work: newWork("w", 1, version("300"), withStatus(e.Status))})
	f.at(0) // it may be of a store that is no more
	f.checkpoint(3, 0)
	f.at(3)
}

func TestCore_KeepsFewCheckpointsWhileTheHubIsAway(t *testing.T) {
	w := newWork("w", 1)
	f := comparingFixture(t, State{}, w)
	f.core.Report(report(w, 1, applied(1)))
	for i := range 10 * maxSegments {
		f.checkpoint(uint64(i+1), 0)
	}
	if n := len(f.core.stream.closed); n > maxSegments {
		t.Errorf("%d checkpoints kept", n)
	}
	e := next[PatchStatus](f, HubLane, w.UID)
	f.core.Done(e, Result{Work: newWork("w", 1, version("300"), withStatus(e.Status))})
	f.at(10 * maxSegments)
}

func TestCore_DoesNotWaitForAGenerationThatTheHubLost(t *testing.T) {
	w := newWork("w", 3)
	f := comparingFixture(t, State{}, w)
	future := report(newWork("w", 7), 1, applied(7))
	if v := f.core.Report(future); v != Taken {
		t.Fatalf("verdict is %s", v)
	}
	f.checkpoint(2, 0)
	f.idle(HubLane, w.UID) // the informer may be late
	f.now = f.now.Add(informerPatience)
	f.core.Done(next[Lookup](f, HubLane, w.UID), Result{Err: errHubDown()})
	f.at(0)
	f.now = f.now.Add(time.Second)
	f.core.Done(next[Lookup](f, HubLane, w.UID), Result{Work: w})
	f.idle(HubLane, w.UID)
	f.at(2)
	if v := f.core.Report(report(w, 2, applied(3))); v != Taken {
		t.Errorf("what the cluster makes of the older generation is %s", v)
	}
	next[PatchStatus](f, HubLane, w.UID)
}

func TestCore_WritesAReportThatOnlyTheInformerWasLateFor(t *testing.T) {
	f := comparingFixture(t, State{}, newWork("w", 3))
	newer := newWork("w", 4, version("200"))
	f.core.Report(report(newer, 1, applied(4)))
	f.idle(HubLane, "uid-w")
	f.now = f.now.Add(informerPatience)
	f.core.Done(next[Lookup](f, HubLane, "uid-w"), Result{Work: newer})
	if e := next[PatchStatus](f, HubLane, "uid-w"); e.Work != newer {
		t.Errorf("patches %+v", e.Work)
	}
}

func TestCore_StartsTheStreamOverWhenItSeesTheHubGoBack(t *testing.T) {
	w := newWork("w", 1, version("500"))
	f := comparingFixture(t, State{Cursor: cursorAt(5).String()}, w)
	f.core.Report(report(w, 1, applied(1)))
	e := next[PatchStatus](f, HubLane, w.UID)
	f.core.Done(e, Result{Work: newWork("w", 1, version("501"), withStatus(e.Status))})
	f.core.WorkSeen(newWork("w", 1, version("400"))) // without the status
	f.at(0)
	if a := nextAsk(f); len(a.Held) != 1 {
		t.Errorf("asks about %+v", a.Held)
	}
	if v := f.core.Report(report(w, 1, applied(1))); v != Taken {
		t.Errorf("the status that was lost is %s", v)
	}
	next[PatchStatus](f, HubLane, w.UID)
}

// t1 a work gets its status, t2 the hub goes back behind that, t3 this process hears so
// and asks for the statuses of all works it knows, t4 the informer shows the work for the
// first time. It is asked for then: its cursor lies behind the status that t2 took.
func TestCore_AsksForTheStatusOfWhatARestoredHubShowsLate(t *testing.T) {
	for _, now := range []string{"200", "900"} {
		f := comparingFixture(t, State{Cursor: cursorAt(5).String()}, newWork("early", 1))
		f.page(codec.Inventory{LastPosition: &codec.HubPosition{UID: "hub", ResourceVersion: "900"}})
		f.locate(now)
		back := now == "200"
		if back {
			if a := nextAsk(f); len(a.Held) != 1 || a.Held[0].UID != "uid-early" {
				t.Fatalf("asks about %+v", a.Held)
			} else {
				f.core.Done(a, Result{Lists: 1})
			}
		}
		f.core.WorkSeen(newWork("late", 1, withoutFinalizer))
		e, asks := f.core.Next(SpecLane, Key{Cluster: "cluster1"}).(Ask)
		if asks != back || asks && (len(e.Held) != 1 || e.Held[0].UID != "uid-late") {
			t.Errorf("on a hub at %s, asks %t about %+v", now, asks, e.Held)
		}
	}
}

// t1 the hub went back before this process began, and what was missing is still doubted,
// t2 somebody makes a work. It has no status to be asked for, and did not lose one, so the
// cursor does not wait for an answer.
func TestCore_AsksForNoStatusOfWhatIsNewOnAHubThatWentBackBefore(t *testing.T) {
	f := comparingFixture(t, State{Cursor: cursorAt(5).String(), Withheld: []string{everywhere}})
	f.core.WorkSeen(newWork("w", 1, withoutFinalizer))
	if e, asks := f.core.Next(SpecLane, Key{Cluster: "cluster1"}).(Ask); asks {
		t.Errorf("asks about %+v", e.Held)
	}
	f.checkpoint(6, 0)
	f.at(6)
}

// t1 the hub went back before this process began, t2 a work that is older than its record
// casts doubt on it, t3 the hub goes back once more, which takes statuses away. The doubt
// of t2 is no reason not to ask for them.
func TestCore_AsksForStatusesOfAHubThatItDoubtedBefore(t *testing.T) {
	f := comparingFixture(t, State{Cursor: cursorAt(5).String()})
	f.locate("900")
	w, other := newWork("w", 1), newWork("other", 1)
	f.core.WorkSeen(w)
	f.core.WorkSeen(other)
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{{Cluster: "cluster1", Digest: codec.Digest{Count: 2}}}})
	f.tag()
	f.page(codec.Inventory{Records: []codec.InventoryRecord{recordOf(t, newWork("w", 2), 7), recordOf(t, other, 3)}})
	f.core.Done(next[CheckBehind](f, SpecLane, w.UID), Result{Work: w})
	f.clusterIdle("cluster1")
	f.now = f.now.Add(locateEvery)
	for range 2 { // once is enough
		f.locate("200")
		f.core.locateNow()
	}
	if a := nextAsk(f); len(a.Held) != 2 {
		t.Errorf("asks about %+v", a.Held)
	}
}

func TestState_SurvivesAConfigMap(t *testing.T) {
	settled := &codec.HubPosition{UID: "hub", ResourceVersion: "7"}
	for _, s := range []State{{}, {Cursor: "e/t/7"}, {Withheld: []string{"c1", "c2"}}, {Cursor: "e/t/7", Withheld: []string{everywhere}, Settled: settled}} {
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

// t1 a report waits for its patch, and a checkpoint behind it for the report, t2 its
// cluster leaves the selection, and the report is dropped, t3 the cluster is back before it
// was released. The checkpoint of t1 must not count: the report has to come once more.
func TestCore_PassesNoReportOfAClusterThatIsBackBeforeItsRelease(t *testing.T) {
	w := newWork("w", 1)
	begin := func(t *testing.T) *fixture {
		f := comparingCore(t, CoreConfig{})
		f.core.ClusterSelected("cluster1")
		f.core.WorkSeen(w)
		f.core.Connected(transport.Accepted{Protocol: 1, Resync: codec.ResyncCursor})
		f.checkpoint(1, 0)
		f.core.Report(report(w, 1, applied(1)))
		f.checkpoint(2, 0)
		f.core.ClusterUnselected("cluster1")
		f.at(1)
		return f
	}

	t.Run("the connection breaks before that", func(t *testing.T) {
		f := begin(t)
		f.core.Disconnected()
		f.core.ClusterSelected("cluster1")
		f.at(1)
		f.core.Connected(transport.Accepted{Protocol: 1, Resync: codec.ResyncCursor})
		if v := f.core.Report(report(w, 1, applied(1))); v != Taken {
			t.Errorf("the report is %s", v)
		}
		next[PatchStatus](f, HubLane, w.UID)
	})
	t.Run("the connection breaks before it was asked for", func(t *testing.T) {
		f := begin(t)
		f.core.ClusterSelected("cluster1")
		f.at(1)
		f.core.Disconnected()
		f.at(1)
	})
	t.Run("it is asked for", func(t *testing.T) {
		f := begin(t)
		f.core.ClusterSelected("cluster1")
		f.core.Done(nextAsk(f), Result{Lists: 1})
		f.at(1)
		f.checkpoint(3, 1)
		f.at(3)
	})
	t.Run("it is released", func(t *testing.T) {
		f := begin(t)
		f.core.Done(nextOf[Release](f, SpecLane, Key{Cluster: "cluster1"}), Result{})
		f.at(2)
	})
}
