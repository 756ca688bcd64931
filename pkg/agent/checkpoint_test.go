package agent

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

var resumed = transport.Accepted{SubscriptionID: "s2", Protocol: transport.Protocol, Resync: codec.ResyncCursor}

func at(revision uint64) codec.Cursor {
	return codec.Cursor{StoreID: "e", Incarnation: "t", Revision: revision}
}

// resume begins a subscription that continues from the cursor.
func (r *rig) resume() {
	r.t.Helper()
	if events, err := r.core.Subscribed(resumed); err != nil || len(events) != 0 {
		r.t.Fatalf("a resume by cursor sent %v, %v", events, err)
	}
}

// held returns the digest of these works, as the broker computes it.
func held(r *rig, ids ...string) *codec.Digest {
	var d codec.Digest
	for _, id := range ids {
		d.Count++
		d.Sum = d.Sum.Add(codec.RecordHash(id, r.core.set.Get(id).Tag))
	}
	return &d
}

// checkpoint passes a checkpoint to the agent and returns the events that the agent sends.
func (r *rig) checkpoint(cp codec.Checkpoint) []agentSync {
	r.t.Helper()
	e, err := codec.NewCheckpoint(codec.SyncParams{ID: "cp", Time: r.now, Source: "broker", Cluster: testCluster}, cp)
	if err != nil {
		r.t.Fatal(err)
	}
	before := len(r.synced)
	r.handle(e)
	return r.synced[before:]
}

func acked(revision uint64, d *codec.Digest, subscription string) []agentSync {
	return []agentSync{{ack: &codec.Ack{Cursor: at(revision), Digest: d}, subscription: subscription}}
}

func expectReported(t *testing.T, got, want []agentSync) {
	t.Helper()
	if d := cmp.Diff(want, got, cmp.AllowUnexported(agentSync{}), cmpopts.EquateEmpty()); d != "" {
		t.Fatalf("events to the broker (-want +got)\n%s", d)
	}
}

func (r *rig) expectCursor(want codec.Cursor) {
	r.t.Helper()
	if got := r.core.Hello(); got != (transport.Hello{Protocol: transport.Protocol, Cursor: want.String(), ClusterUID: testClusterUID}) {
		r.t.Fatalf("hello %+v, want the cursor %q", got, want)
	}
}

func TestCore_ContinuesFromTheCursor(t *testing.T) {
	r := newRig(t)
	r.expectCursor(codec.Cursor{})
	w := hubWork("w-1", "web", 1, configMap("a", "1"))
	r.apply(w)
	r.expectCursor(codec.Cursor{})
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(1), Digest: held(r, "w-1")}), acked(1, held(r, "w-1"), ""))
	r.expectCursor(at(1))
	r.core.Disconnected(errAway)
	r.expectCursor(at(1))

	sent := len(r.sent)
	r.resume()
	r.settle(time.Second)
	if len(r.sent) != sent {
		t.Error("statuses that the broker has were sent again")
	}
	// Nothing has changed. The agent acknowledges nevertheless, because this is another subscription.
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(1), Digest: held(r, "w-1"), HighestSequenceID: r.sent[sent-1].SequenceID}), acked(1, held(r, "w-1"), "s2"))
	if len(r.sent) != sent {
		t.Error("statuses that the broker has were sent again")
	}

	// The broker does not know the cursor any more: the agent drops it and lists everything.
	r.core.Disconnected(errAway)
	if got := r.subscribe(accepted); len(got) != 1 {
		t.Errorf("listed %v", got)
	}
	r.expectCursor(codec.Cursor{})

	r.checkpoint(codec.Checkpoint{Cursor: at(7), Digest: held(r, "w-1")})
	r.core.Disconnected(&transport.Error{Code: transport.CodeConflict, Next: transport.NextResync})
	r.expectCursor(codec.Cursor{})
}

func TestCore_AcksOnlyNewCheckpoints(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	d := held(r, "w-1")
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(5), Digest: d}), acked(5, d, ""))
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(5), Digest: d, SyncedSources: []string{"hub"}}), nil)
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(6), Digest: d}), acked(6, d, ""))

	// During a long delivery, checkpoints have no digest.
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(7)}), acked(7, nil, ""))
	r.expectCursor(at(7))
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(7), Digest: d}), acked(7, d, ""))

	// Of several pending acks only the latest is sent, also after a failure.
	fails := 1
	r.refuse = func(e codec.Event) error {
		if e.Type() == codec.TypeAck && fails > 0 {
			if fails--; fails == 0 {
				r.core.Handle(t.Context(), r.checkpointEvent(codec.Checkpoint{Cursor: at(9), Digest: d}))
			}
			return errAway
		}
		return nil
	}
	r.core.Handle(t.Context(), r.checkpointEvent(codec.Checkpoint{Cursor: at(8), Digest: d}))
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(8), Digest: d}), slices.Concat(acked(8, d, ""), acked(9, d, "")))

	// An ack that the broker rejects permanently is not repeated.
	r.refuse = func(codec.Event) error { return &transport.Error{Code: transport.CodeInvalid, Message: "no"} }
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(10), Digest: d}), acked(10, d, ""))

	// The next subscription does not get events of this one.
	r.core.Handle(t.Context(), r.checkpointEvent(codec.Checkpoint{Cursor: at(11), Digest: d}))
	l, ok := r.core.NextSync()
	if !ok {
		t.Fatal("no ack")
	}
	r.core.Disconnected(errAway)
	r.resume()
	if r.core.SyncDone(l, errAway) {
		t.Error("an ack of the last subscription is to be sent again")
	}
	r.syncs = false
	r.core.Disconnected(errAway)
	if _, ok := r.core.NextSync(); ok {
		t.Error("an event although there is no connection")
	}
}

func (r *rig) checkpointEvent(cp codec.Checkpoint) codec.Event {
	r.t.Helper()
	e, err := codec.NewCheckpoint(codec.SyncParams{ID: "cp", Time: r.now, Source: "broker", Cluster: testCluster}, cp)
	if err != nil {
		r.t.Fatal(err)
	}
	return e
}

func TestCore_SendsListWhenDigestsDiffer(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	r.checkpoint(codec.Checkpoint{Cursor: at(1), Digest: held(r, "w-1")})
	r.core.Disconnected(errAway)
	r.resume()
	other := &codec.Digest{Count: 2}

	// The list is sent once, and is sent again only if it was lost.
	lost := 1
	r.refuse = func(codec.Event) error {
		if lost > 0 {
			lost--
			return errAway
		}
		return nil
	}
	list := agentSync{list: r.core.set.Versions(), subscription: "s2"}
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(5), Digest: other}), []agentSync{list, list})
	r.expectCursor(at(1))
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(6), Digest: other}), nil)
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(6)}), nil)
	r.expectCursor(at(1))

	// The digests still differ after the list: that is logged, and the agent continues.
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(7), Digest: other, ListAnswered: true}), acked(7, held(r, "w-1"), "s2"))
	r.expectCursor(at(7))
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(8), Digest: other, ListAnswered: true}), acked(8, held(r, "w-1"), "s2"))
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(9), ListAnswered: true}), acked(9, nil, "s2"))
	if r.core.subscription.inSync {
		t.Error("in sync")
	}
	// The missing work arrives, and the digests are equal.
	r.apply(hubWork("w-2", "other", 1, configMap("b", "1")))
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(10), Digest: held(r, "w-1", "w-2"), ListAnswered: true}), acked(10, held(r, "w-1", "w-2"), "s2"))
	if !r.core.subscription.inSync {
		t.Error("not in sync")
	}
}

// The broker answers the list after its checkpoint.
func TestCore_CheckpointBeforeTheListIsAnswered(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	r.core.Disconnected(errAway)
	r.subscribe(accepted)
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(5), Digest: &codec.Digest{}}), nil)
	r.expectCursor(codec.Cursor{})
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(5), Digest: &codec.Digest{}, ListAnswered: true, Orphans: []string{"w-1"}}), acked(5, &codec.Digest{}, ""))
	r.expectCursor(at(5))
}

// Scenario:
//
//	t1: the agent lists what it holds, and the digests are equal.
//	t2: its cluster is released; the broker drops the record without an event.
//	t3: the next digest differs.
//
// Result: the agent lists again, because the answer to its first list shows no orphan.
func TestCore_RelistsAfterNewMismatch(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(1), Digest: held(r, "w-1"), ListAnswered: true}), acked(1, held(r, "w-1"), ""))
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(2), Digest: &codec.Digest{}, ListAnswered: true}), []agentSync{{list: r.core.set.Versions()}})
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(3), Digest: &codec.Digest{}, ListAnswered: true, Orphans: []string{"w-1"}}), acked(3, &codec.Digest{}, ""))
	if n := r.core.Counts(); !n.InSync || n.Live != 1 {
		t.Errorf("holds %+v", n)
	}
	// If the digests still differ after a list by the same gap, there is no further list.
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(4), Digest: &codec.Digest{Count: 7}, ListAnswered: true}), []agentSync{{list: r.core.set.Versions()}})
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(5), Digest: &codec.Digest{Count: 7}, ListAnswered: true}), acked(5, held(r, "w-1"), ""))
}

// Scenario:
//
//	t1: the agent lists what it holds, without a work.
//	t2: that work arrives.
//	t3: its cluster is released, and the work has no record any more.
//	t4: the first digest after the answer to the list differs.
//
// Result: the agent lists again. The work was not on the list, so its answer cannot show that it is an orphan.
func TestCore_RelistsWorksReceivedAfterList(t *testing.T) {
	r := newRig(t)
	r.core.Disconnected(errAway)
	r.subscribe(accepted)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(2), Digest: &codec.Digest{}, ListAnswered: true}), []agentSync{{list: r.core.set.Versions()}})
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(3), Digest: &codec.Digest{}, ListAnswered: true, Orphans: []string{"w-1"}}), acked(3, &codec.Digest{}, ""))
	if n := r.core.Counts(); !n.InSync || n.Live != 1 {
		t.Errorf("holds %+v", n)
	}
}

// While the digests stay different, later specs cause only one more list.
func TestCore_ListsLateWorkOnce(t *testing.T) {
	r := newRig(t)
	r.core.Disconnected(errAway)
	r.subscribe(accepted)
	other := &codec.Digest{Count: 7}
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(2), Digest: other, ListAnswered: true}), []agentSync{{list: r.core.set.Versions()}})
	before := held(r, "w-1")
	r.apply(hubWork("w-2", "other", 1, configMap("b", "1")))
	after := held(r, "w-1", "w-2")
	other.Count++ // the broker has it, too
	other.Sum = other.Sum.Add(after.Sum.Sub(before.Sum))
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(3), Digest: other, ListAnswered: true}), acked(3, after, ""))
}

// Scenario:
//
//	t1: the broker continues with an older store; the agent lists a newer version of a work.
//	t2: the source releases the cluster, so that the record is removed.
//	t3: the cluster is served again, and its source does not have the work.
//
// Result: the agent must list the work again. Its eviction needs the proof that it is an orphan.
func TestCore_RelistsOnDifferentMismatch(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 2, configMap("a", "1")))
	r.core.Disconnected(errAway)
	r.subscribe(accepted)
	older := &codec.Digest{Count: 1}
	list := []agentSync{{list: r.core.set.Versions()}}
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(2), Digest: older, ListAnswered: true}), slices.Concat(list, acked(2, held(r, "w-1"), "")))
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(3), Digest: older, ListAnswered: true}), acked(3, held(r, "w-1"), ""))
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(4), Digest: &codec.Digest{}, ListAnswered: true}), list)
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(5), Digest: &codec.Digest{}, ListAnswered: true, Orphans: []string{"w-1"}}), acked(5, &codec.Digest{}, ""))
	if n := r.core.Counts(); !n.InSync || n.Live != 1 {
		t.Errorf("holds %+v", n)
	}
}

func TestCore_DigestIsOfLiveWorks(t *testing.T) {
	r := newRig(t)
	kept, gone := hubWork("w-1", "web", 1, configMap("a", "1")), hubWork("w-2", "gone", 1, configMap("b", "1"))
	r.apply(kept)
	r.apply(gone)
	r.apply(hubWork("w-3", "unusable", 1)) // received; its status reports that it is unusable
	r.apply(hubWork("w-4", "orphan", 1, configMap("d", "1")))
	r.refuse = func(codec.Event) error { return errAway }
	r.delete(gone)
	r.refuse = nil
	d := held(r, "w-1", "w-3")
	r.core.Disconnected(errAway)
	r.subscribe(accepted)
	cp := codec.Checkpoint{Cursor: at(9), Digest: d, ListAnswered: true, Orphans: []string{"w-4", "w-4", "unknown", "w-2"}}
	expectReported(t, r.checkpoint(cp), acked(9, d, ""))
	// The work was an orphan when it was listed, and was received again since.
	r.revision = 20
	r.apply(hubWork("w-4", "orphan", 1, configMap("d", "2")))
	d = held(r, "w-1", "w-3", "w-4")
	cp.Digest = d
	expectReported(t, r.checkpoint(cp), acked(9, d, ""))
}

func TestCore_IgnoresInvalidSyncEvents(t *testing.T) {
	r := newRig(t)
	d := &codec.Digest{}
	future := r.checkpointEvent(codec.Checkpoint{Cursor: at(3), Digest: d})
	future.SetType("dev.hawser.sync.v1.something")
	r.handle(future)
	broken := r.checkpointEvent(codec.Checkpoint{Cursor: at(3), Digest: d})
	if err := broken.SetData(codec.ContentTypeProtobuf, []byte{0xff}); err != nil {
		t.Fatal(err)
	}
	r.handle(broken)
	r.subscribe(ocmAccepted)
	expectReported(t, r.checkpoint(codec.Checkpoint{Cursor: at(3), Digest: d}), nil)
	r.expectCursor(codec.Cursor{})
	// The broker resumes from a cursor that the agent did not send.
	if events, err := r.core.Subscribed(resumed); err != nil || len(events) != 1 {
		t.Errorf("got %v, %v, want a list", events, err)
	}
}

// A revision that was received after the cursor may be lost with the store that assigned it; then the version
// decides.
func TestCore_RevisionsAfterTheCursorOfAReplacedStore(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1"))) // revision 1
	r.checkpoint(codec.Checkpoint{Cursor: at(1), Digest: held(r, "w-1")})
	r.revision = 50
	r.apply(hubWork("w-1", "web", 2, configMap("a", "2"))) // revision 51, not in the backup
	r.core.Disconnected(errAway)
	r.resume()
	value := func(want string) {
		t.Helper()
		if got := r.configMap("a").Object["data"].(map[string]any)["k"]; got != want {
			t.Fatalf("got %v, want %s", got, want)
		}
	}
	r.revision = 60
	r.apply(hubWork("w-1", "web", 1, configMap("a", "old")))
	value("2")
	r.revision = 1
	r.apply(hubWork("w-1", "web", 3, configMap("a", "3")))
	value("3")
}

func TestCore_ToleratesClockRollback(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, configMap("a", "1"))
	r.apply(w)
	highest := r.sent[0].SequenceID
	r.core.Disconnected(errAway)

	// The next process has no state, and its clock is one day behind.
	r.now = r.now.Add(-24 * time.Hour)
	r.restart()
	r.outcome = codec.OutcomeStale // as a broker answers an older sequence id
	r.apply(w)
	if n := len(r.sent); n != 2 || r.core.Counts().ReportsDue != 1 {
		t.Fatalf("%d statuses, %d due: want the status that was dropped as stale to wait", n, r.core.Counts().ReportsDue)
	}
	r.settle(time.Hour)
	if len(r.sent) != 2 {
		t.Fatal("it is repeated although nothing has changed")
	}
	r.outcome = codec.OutcomeAccepted
	r.checkpoint(codec.Checkpoint{Cursor: at(1), Digest: held(r, "w-1"), HighestSequenceID: highest})
	if n := len(r.sent); n != 3 || r.core.Counts().ReportsDue != 0 {
		t.Fatalf("%d statuses, %d due", n, r.core.Counts().ReportsDue)
	}
	if newer, err := codec.CompareSequence(highest, r.sent[2].SequenceID); err != nil || !newer {
		t.Fatalf("%s is not above %s: %v", r.sent[2].SequenceID, highest, err)
	}
	// The highest sequence id has no successor. The agent continues nevertheless.
	r.checkpoint(codec.Checkpoint{Cursor: at(2), Digest: held(r, "w-1"), HighestSequenceID: "9223372036854775807"})
	r.expectCursor(at(2))
}

// The broker's store was restored from a backup that is newer than the cursor: statuses accepted after the
// backup are lost.
func TestCore_RepublishesStatusesMissingAtTheBroker(t *testing.T) {
	r := newRig(t)
	r.outcome = codec.OutcomeAccepted
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	r.apply(hubWork("w-2", "other", 1, configMap("b", "1")))
	d := held(r, "w-1", "w-2")
	first, second := r.statuses["w-1"].SequenceID, r.statuses["w-2"].SequenceID
	r.checkpoint(codec.Checkpoint{Cursor: at(2), Digest: d, HighestSequenceID: first})
	if len(r.sent) != 2 {
		t.Fatal("a status accepted on this connection is sent again")
	}
	r.core.Disconnected(errAway)
	r.resume()
	r.checkpoint(codec.Checkpoint{Cursor: at(2), Digest: d, HighestSequenceID: second})
	if len(r.sent) != 2 {
		t.Fatal("what the broker has is sent again")
	}
	r.core.Disconnected(errAway)
	r.resume()
	r.checkpoint(codec.Checkpoint{Cursor: at(2), Digest: d, HighestSequenceID: first})
	if len(r.sent) != 3 || r.sent[2].ResourceID != "w-2" {
		t.Fatalf("%d statuses", len(r.sent))
	}
}
