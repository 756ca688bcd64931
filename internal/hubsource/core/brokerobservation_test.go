package core

import (
	"testing"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// TestBrokerObservation_TrustsLaterReport: the answer of the broker at the higher revision is valid, in any
// order of arrival. On another subscription none is valid.
//
// A listing that overrides a later answer breaks no invariant of the simulator. A work that seems missing or
// older is published once more, and the broker answers that nothing changed. So this test checks it, and
// TestCore_PublishesAgainAfterNameConflict does too.
func TestBrokerObservation_TrustsLaterReport(t *testing.T) {
	live, deleting := specFingerprint{generation: 1}, specFingerprint{generation: 2, deleting: true}
	row := func(revision uint64) *codec.InventoryRecord { return &codec.InventoryRecord{Revision: revision} }
	answer := func(what recordState, m specFingerprint, revision uint64) func(b *brokerObservation) {
		return func(b *brokerObservation) { b.answer(1, what, m, revision, 0) }
	}
	list := func(revision uint64, r *codec.InventoryRecord) func(b *brokerObservation) {
		return func(b *brokerObservation) { b.list(1, revision, r, 0) }
	}
	for name, c := range map[string]struct {
		steps []func(b *brokerObservation)
		want  recordState
	}{
		"a row of an earlier listing":           {[]func(*brokerObservation){answer(recordMatches, live, 7), list(9, row(5))}, recordMatches},
		"a row that was written later":          {[]func(*brokerObservation){answer(recordMatches, live, 7), list(9, row(8))}, recordListed},
		"an earlier listing without it":         {[]func(*brokerObservation){answer(recordMatches, live, 7), list(6, nil)}, recordMatches},
		"a later listing without it":            {[]func(*brokerObservation){answer(recordMatches, live, 7), list(8, nil)}, recordAbsent},
		"a late receipt":                        {[]func(*brokerObservation){answer(recordMatches, live, 7), answer(recordMatches, deleting, 6)}, recordMatches},
		"a late receipt of a deletion":          {[]func(*brokerObservation){answer(recordDeleted, deleting, 7), answer(recordMatches, deleting, 6)}, recordDeleted},
		"another deletion since":                {[]func(*brokerObservation){answer(recordDeleted, deleting, 6), answer(recordMatches, deleting, 7)}, recordMatches},
		"the end of an earlier deletion":        {[]func(*brokerObservation){answer(recordMatches, deleting, 7), answer(recordDeleted, deleting, 6)}, recordMatches},
		"a confirmation without a revision":     {[]func(*brokerObservation){answer(recordMatches, deleting, 7), answer(recordDeleted, deleting, 0)}, recordDeleted},
		"a receipt without a revision":          {[]func(*brokerObservation){answer(recordDeleted, deleting, 0), answer(recordMatches, deleting, 7)}, recordDeleted},
		"a refusal, which is of what is so now": {[]func(*brokerObservation){answer(recordMatches, live, 7), answer(recordRejected, live, 6)}, recordRejected},
	} {
		b := &brokerObservation{}
		for _, step := range c.steps {
			step(b)
		}
		if got := b.on(1); got != c.want {
			t.Errorf("%s: %d is known, want %d", name, got, c.want)
		}
		if got := b.on(2); got != recordUnknown {
			t.Errorf("%s: on another subscription %d is known", name, got)
		}
	}
}

// Scenario:
//
//	t1: a work is deleted, and the deletion is confirmed.
//	t2: the hub is restored from a backup with the work, and the work is deleted again.
//	t3: the source requests its status, and the broker sends the confirmation of t1.
//	t4: the broker accepts the deletion as a new one: the cluster may have the work once more.
//
// Result: the confirmation of t1 is ignored, before and after the answer to the deletion.
func TestCore_IgnoresConfirmationOfEarlierDeletion(t *testing.T) {
	for _, late := range []bool{false, true} {
		w := newWork("w", 2, deleting)
		f := comparingFixture(t, SavedState{}, w)
		f.done(nextOf[RequestInventory](f, BrokerQueue, Key{}), Result{})
		p := next[Publish](f, BrokerQueue, w.UID)
		earlier, answer := report(w, 1, applied(1)), Result{Receipt: transport.Receipt{Outcome: codec.OutcomeAccepted, Revision: 10}}
		earlier.Deleted, earlier.Revision = true, 6
		if late {
			f.done(p, answer)
			if v := f.core.Report(earlier); v != Stale {
				t.Errorf("the earlier end is %s", v)
			}
		} else {
			f.core.Report(earlier)
			f.idle(HubQueue, w.UID) // the answer may show that the broker began another deletion
			f.done(p, answer)
		}
		f.idle(HubQueue, w.UID)
		end := report(w, 2, applied(1))
		end.Deleted, end.Revision = true, 11
		f.core.Report(end)
		next[RemoveFinalizer](f, HubQueue, w.UID)
	}
}

// Scenario:
//
//	t1: a deletion is published.
//	t2: the broker sends the confirmation of an earlier one.
//	t3: the broker sends the confirmation of the deletion of t1.
//	t4: the answer to t1 arrives; the broker decided it before t3.
//
// Result: the finalizer is removed, because the confirmation of t3 is not sent again.
func TestCore_TakesTheEndOfADeletionBeforeItsAnswer(t *testing.T) {
	w := newWork("w", 2, deleting)
	f := comparingFixture(t, SavedState{}, w)
	f.done(nextOf[RequestInventory](f, BrokerQueue, Key{}), Result{})
	p := next[Publish](f, BrokerQueue, w.UID)
	for _, revision := range []uint64{6, 11} {
		end := report(w, 1, applied(1))
		end.Deleted, end.Revision = true, revision
		f.core.Report(end)
	}
	f.done(p, Result{Receipt: transport.Receipt{Outcome: codec.OutcomeAccepted, Revision: 10}})
	next[RemoveFinalizer](f, HubQueue, w.UID)
}

// Scenario:
//
//	t1: the broker confirms the deletion of a work, at a state that the hub has not shown.
//	t2: the subscription ends.
//
// Result: the confirmation is not valid on the next subscription, because the broker's store may be another
// one. The cursor has not passed it.
func TestCore_ForgetsAnEndWithItsSubscription(t *testing.T) {
	w := newWork("w", 1)
	f := comparingFixture(t, SavedState{Cursor: cursorAt(5).String()}, w)
	end := report(newWork("w", 2), 1, applied(1))
	end.Deleted = true
	f.core.Report(end)
	f.checkpoint(6, 0)
	f.core.Disconnected()
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
	if h := f.core.Hello(); h.Cursor != cursorAt(5).String() {
		t.Errorf("the cursor is %s", h.Cursor)
	}
	f.seen(newWork("w", 2, deleting))
	f.idle(HubQueue, w.UID)
	if n := f.core.Stats().Pending; n != 0 {
		t.Errorf("%d reports wait", n)
	}
}

// Scenario:
//
//	t1: a hub goes back in time and lacks a work.
//	t2: the broker sends the work's status, and the cursor passes it.
//	t3: the hub is replaced by a later copy, which has the work as it was before its status.
//	t4: the broker continues from the cursor.
//
// Result: the source requests the status.
func TestCore_QueriesReappearingWork(t *testing.T) {
	f := comparingFixture(t, SavedState{Cursor: cursorAt(5).String()})
	f.core.Disconnected()
	f.seen(newWork("w", 1))
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
	if e := nextRequest(f); len(e.Statuses) != 1 || e.Statuses[0].UID != "uid-w" {
		t.Errorf("it requests the statuses of %+v", e.Statuses)
	}
}

// As above, but the copy is from before the finalizer. A listing, or the answer to a publish, shows that the
// broker has the work.
func TestCore_QueriesReappearingWorkWithoutFinalizer(t *testing.T) {
	for _, listed := range []bool{false, true} {
		f := comparingFixture(t, SavedState{Cursor: cursorAt(5).String()})
		f.seen(newWork("w", 1, withoutFinalizer, version("100")))
		f.clusterIdle("cluster1")
		if listed {
			f.page(codec.Inventory{Clusters: []codec.ClusterDigest{digestOf(t, newWork("w", 1))}})
			f.tag()
			f.page(codec.Inventory{Records: []codec.InventoryRecord{recordOf(t, newWork("w", 1), 3)}})
		} else {
			f.page(codec.Inventory{})
			f.done(next[AddFinalizer](f, BrokerQueue, "uid-w"), Result{Work: newWork("w", 1)})
			p := next[Publish](f, BrokerQueue, "uid-w")
			f.done(p, Result{Receipt: transport.Receipt{Outcome: codec.OutcomeUnchanged, Revision: 3}})
		}
		if e := nextRequest(f); len(e.Statuses) != 1 || e.Statuses[0].UID != "uid-w" {
			t.Errorf("it requests the statuses of %+v", e.Statuses)
		}
	}
}

// Scenario:
//
//	t1: a hub goes back in time.
//	t2: it has an older state of a work than the spec queued behind a deletion at the broker. That spec cannot
//	be replaced while its cluster is away.
//	t3: another cluster has a work that the hub lacks.
//
// Result: the deletion of that work is withheld at once.
func TestCore_WithholdsAlthoughAWorkStaysBehind(t *testing.T) {
	f := behindOf(t, SavedState{Withheld: []string{everywhere}},
		codec.InventoryRecord{Cluster: "cluster2", ResourceID: "uid-m", Name: "m", Version: 1, Revision: 3})
	f.clusterIdle("cluster2")
	f.now = f.now.Add(time.Minute)
	reported := f.reported()
	if len(reported.Clusters) != 1 || reported.Clusters[0].Cluster != "cluster2" || len(reported.Clusters[0].Withheld) != 1 {
		t.Errorf("reported %+v", reported)
	}
}

// behindOf is a source of two clusters, with a work on cluster1 that is older than its record.
func behindOf(t *testing.T, s SavedState, records ...codec.InventoryRecord) *fixture {
	t.Helper()
	f := comparingCore(t, Config{All: true, State: s})
	f.seen(newWork("w", 1))
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{
		{Cluster: "cluster1", Digest: codec.Digest{Count: 1}}, {Cluster: "cluster2", Digest: codec.Digest{Count: 1}},
	}})
	f.tag()
	f.core.Next(BrokerQueue, Key{Cluster: "cluster2"})
	f.page(codec.Inventory{Records: append(records, recordOf(t, newWork("w", 2), 0))})
	f.locate("200")
	return f
}

// A work that is older than its record may show that the hub went back. Nothing missing on another cluster is
// deleted before the hub was queried about that work.
func TestCore_DeletesNothingBeforeItIsKnownWhetherTheHubWentBack(t *testing.T) {
	f := behindOf(t, SavedState{}, codec.InventoryRecord{Cluster: "cluster2", ResourceID: "uid-m", Name: "m", Version: 1, Revision: 3})
	f.clusterIdle("cluster2")
	f.answer("uid-w", Result{Work: newWork("w", 1)})
	f.idle(BrokerQueue, "uid-w")
	f.clusterIdle("cluster2")
	f.beginEpoch(newWork("w", 1))
}

// The suspicion stays while a work is older than its record. Without it, each check of the work would end
// another epoch.
func TestCore_KeepsSuspicionWhileAWorkIsBehind(t *testing.T) {
	f := behindOf(t, SavedState{Withheld: []string{everywhere}})
	f.now = f.now.Add(time.Minute)
	f.clusterIdle("cluster2")
	f.clusterIdle("cluster1")
	for {
		e, is := f.core.Next(BrokerQueue, Key{}).(SendSyncReport)
		if !is {
			break
		}
		f.done(e, Result{})
		f.now = f.now.Add(time.Minute)
	}
	if s, _ := f.core.State(); !s.suspectsAll() {
		t.Errorf("saves %+v", s)
	}
}
