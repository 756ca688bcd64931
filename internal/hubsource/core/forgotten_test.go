package core

import (
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// A broker that lost its store, and an agent that lost its memory with it, restart the sequence ids.
func TestCore_TakesReportsAgainOfUnpublishedWorks(t *testing.T) {
	known, unknown := newWork("known", 1), newWork("unknown", 1)
	for name, c := range map[string]struct {
		digests []codec.ClusterDigest
		records []codec.InventoryRecord
		known   ReportResult
	}{
		"nothing is there":   {nil, nil, Taken},
		"something is there": {[]codec.ClusterDigest{digestOf(t, known)}, []codec.InventoryRecord{recordOf(t, known, 1)}, Stale},
	} {
		t.Run(name, func(t *testing.T) {
			f := comparingFixture(t, SavedState{}, known, unknown)
			f.core.Report(report(known, 9, applied(1)))
			f.core.Report(report(unknown, 9, applied(1)))
			f.page(codec.Inventory{Clusters: c.digests})
			if c.records != nil {
				f.tag()
				f.page(codec.Inventory{Records: c.records})
			}
			if v := f.core.Report(report(unknown, 5, applied(1))); v != Taken {
				t.Errorf("a report of what the broker had no record of is %s", v)
			}
			if v := f.core.Report(report(known, 5, applied(1))); v != c.known {
				t.Errorf("a report of the other work is %s, want %s", v, c.known)
			}
		})
	}
}

// The broker continued with an older store. There the name of a work under deletion belongs to the work that
// had it before.
func TestCore_DeletesFormerOwnerOfNameFirst(t *testing.T) {
	conflict := Result{Err: &transport.Error{Code: transport.CodeConflict, Next: transport.NextResync}}
	cluster := Key{Cluster: "cluster1"}
	w := newWork("w", 2, deleting, withStatus(applied(1)))
	old := codec.InventoryRecord{Cluster: "cluster1", ResourceID: "uid-old", Name: "w", Version: 1, Revision: 3}
	begin := func(last *codec.HubPosition) *fixture {
		f := comparingFixture(t, SavedState{}, w)
		f.done(next[Publish](f, BrokerQueue, w.UID), conflict)
		f.page(codec.Inventory{LastPosition: last, Clusters: []codec.ClusterDigest{{Cluster: "cluster1", Digest: codec.Digest{Count: 1}}}})
		f.clusterIdle("cluster1")
		f.page(codec.Inventory{Records: []codec.InventoryRecord{old}})
		f.locate("200")
		f.now = f.now.Add(time.Second)
		return f
	}

	f := begin(nil)
	f.idle(BrokerQueue, w.UID)
	f.done(nextOf[Get](f, BrokerQueue, cluster), Result{Work: w})
	f.locate("200")
	f.done(nextOf[Delete](f, BrokerQueue, cluster), Result{})
	if p := next[Publish](f, BrokerQueue, w.UID); p.Action != codec.DeleteRequest {
		t.Fatalf("published %s", p.Action)
	}

	// If an operator has to decide about the former owner, the deletion waits.
	f = begin(&codec.HubPosition{UID: "hub", ResourceVersion: "900"})
	f.beginEpoch(w)
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
	f.page(codec.Inventory{LastPosition: &codec.HubPosition{UID: "hub", ResourceVersion: "900"}, Clusters: []codec.ClusterDigest{{Cluster: "cluster1", Digest: codec.Digest{Count: 1}}}})
	f.clusterIdle("cluster1")
	f.page(codec.Inventory{Records: []codec.InventoryRecord{old}})
	f.locate("201")
	f.clusterIdle("cluster1")
	f.idle(BrokerQueue, w.UID)
	if v := f.core.Report(&Report{UID: "uid-old", Cluster: "cluster1", Name: "w", Version: 1, Sequence: sequence(1), Deleted: true}); v != Taken {
		t.Fatalf("the end of the other work is %s", v)
	}
	f.deliver(w.UID)

	// The deletion of a work that left the hub waits for no other work.
	f = comparingFixture(t, SavedState{}, newWork("w", 1))
	f.deleted(w.UID)
	f.done(next[Get](f, HubQueue, w.UID), Result{Err: errNotFound()})
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{{Cluster: "cluster1", Digest: codec.Digest{Count: 1}}}})
	f.clusterIdle("cluster1")
	f.page(codec.Inventory{Records: []codec.InventoryRecord{recordOf(t, newWork("w", 1), 3)}})
	f.done(next[Publish](f, BrokerQueue, w.UID), conflict)
	f.idle(BrokerQueue, w.UID)
	if n := f.core.Stats().Works; n != 0 {
		t.Errorf("%d works are kept", n)
	}
}

// An informer may lag behind a deletion that an earlier leader completed. The broker then has no record, or
// only a confirmed tombstone.
func TestCore_QueriesTheHubForWorksDeletedAtTheBroker(t *testing.T) {
	w := newWork("w", 1)
	f := comparingFixture(t, SavedState{}, w)
	f.lags = true
	f.page(codec.Inventory{})
	f.idle(BrokerQueue, w.UID)
	f.done(next[Get](f, HubQueue, w.UID), Result{Err: errNotFound()})
	f.idle(BrokerQueue, w.UID) // the informer has to show the deletion first
	if s, _ := f.core.State(); len(s.Withheld) != 0 {
		t.Errorf("a late informer causes a rollback suspicion: %+v", s)
	}

	// A hub that went back in time has the work again. For the broker it is a new work.
	f = comparingFixture(t, SavedState{}, w)
	f.page(codec.Inventory{})
	f.idle(BrokerQueue, w.UID)
	f.done(next[Get](f, HubQueue, w.UID), Result{Work: w})
	if p := f.deliver(w.UID); p.Action != codec.CreateRequest || p.Supersedes != 0 {
		t.Errorf("published %+v", p)
	}

	// A work whose finalizer this process has added needs no query.
	f = comparingFixture(t, SavedState{}, newWork("w", 1, withoutFinalizer))
	f.page(codec.Inventory{})
	f.done(next[AddFinalizer](f, BrokerQueue, w.UID), Result{Work: newWork("w", 1, version("300"))})
	if p := f.deliver(w.UID); p.Action != codec.CreateRequest {
		t.Errorf("published as %s", p.Action)
	}
}

// A work was deleted, and then its hub went back to a state in which the work was not deleted.
func TestCore_RepublishesWorkReportedAsDeleted(t *testing.T) {
	w := newWork("w", 1, version("100"))
	f := comparingFixture(t, SavedState{}, w)
	f.page(codec.Inventory{})
	f.deliver(w.UID)
	f.idle(BrokerQueue, w.UID)
	if v := f.core.Report(&Report{UID: w.UID, Cluster: "cluster1", Name: "w", Version: 2, Sequence: sequence(1), Deleted: true}); v != Taken {
		t.Fatalf("the report is %s", v)
	}
	f.idle(HubQueue, w.UID) // the informer may lag
	f.now = f.now.Add(informerPatience)
	f.done(next[Get](f, HubQueue, w.UID), Result{Work: w})
	f.idle(HubQueue, w.UID)
	f.now = f.now.Add(time.Second)
	f.clusterIdle("cluster1")
	f.page(codec.Inventory{Revision: 9})
	f.deliver(w.UID)
}

// Scenario:
//
//	t1: a work was deleted, and the deletion was confirmed.
//	t2: the hub goes back in time and has it again.
//	t3: the broker, asked for statuses, repeats the confirmation, which waits for the informer.
//	t4: the work is published again.
//	t5: it is deleted again.
//
// Result: the confirmation of t3 does not apply to the work of t4. The finalizer stays until the cluster
// confirms the second deletion.
func TestCore_ForgetsEarlierDeletionWhenTheWorkIsPublishedAgain(t *testing.T) {
	w := newWork("w", 1, version("100"))
	f := comparingFixture(t, SavedState{}, w)
	f.page(codec.Inventory{})
	end := &Report{UID: w.UID, Cluster: "cluster1", Name: "w", Version: 2, Sequence: sequence(1), Deleted: true}
	if v := f.core.Report(end); v != Taken {
		t.Fatalf("the report is %s", v)
	}
	f.idle(BrokerQueue, w.UID)
	f.done(next[Get](f, HubQueue, w.UID), Result{Work: w})
	f.deliver(w.UID)
	f.seen(newWork("w", 2, deleting, version("200")))
	f.idle(HubQueue, w.UID)
	f.deliver(w.UID)
	f.core.Report(end)
	next[RemoveFinalizer](f, HubQueue, w.UID)
}

// Scenario:
//
//	t1: the hub lacks a work and is suspected: the deletion is withheld.
//	t2: a new work of its name is published, and replaces the record.
//	t3: the answer is lost.
//	t4: the new work is deleted.
//
// Result: the known record of that name is dropped. Without this: the deletion would wait for the deletion of
// the former record, which the broker no longer has.
func TestCore_DeletesPossibleNameOwnerAfterMissingAnswer(t *testing.T) {
	made := newWork("m000", 1, withoutFinalizer, version("201"), func(o *workv1.ManifestWork) { o.UID = "another" })
	owned := func(o *workv1.ManifestWork) { o.UID, o.Finalizers = "another", []string{workv1.ManifestWorkFinalizer} }
	f := onlyAtTheBroker(t, SavedState{Withheld: []string{everywhere}}, nil, 1)
	f.locate("200")
	f.clusterIdle("cluster1")
	if reported := f.reported(); len(reported.Clusters) != 1 || len(reported.Clusters[0].Withheld) != 1 {
		t.Fatalf("reported %+v", reported)
	}
	f.seen(made)
	f.done(next[AddFinalizer](f, BrokerQueue, made.UID), Result{Work: newWork("m000", 1, version("202"), owned)})
	f.done(next[Publish](f, BrokerQueue, made.UID), Result{Err: &transport.Error{Code: transport.CodeUnavailable}})
	gone := newWork("m000", 2, deleting, version("203"), owned)
	f.seen(gone)
	f.now = f.now.Add(time.Minute)
	if p := next[Publish](f, BrokerQueue, gone.UID); p.Action != codec.DeleteRequest {
		t.Fatalf("published %s", p.Action)
	}
}

// Scenario:
//
//	t1: a new work of a name is published, and given up.
//	t2: it is deleted.
//	t3: the broker's records are read. It lacks the work, and has a former one of that name, whose deletion is
//	withheld. So the deletion of t2 waits.
//	t4: the publish of t1 arrives and takes the name, and its cluster reports.
//
// Result: the records known from t3 are no longer valid.
func TestCore_DeletesLateOwnerOfName(t *testing.T) {
	gone := newWork("m000", 2, deleting, version("150"), func(o *workv1.ManifestWork) { o.UID = "another" })
	f := comparingFixture(t, SavedState{Withheld: []string{everywhere}}, gone)
	f.compare(nil, 1)
	f.locate("200")
	f.clusterIdle("cluster1")
	f.idle(BrokerQueue, gone.UID)
	if v := f.core.Report(report(gone, 1, applied(1))); v != Taken {
		t.Fatalf("the report is %s", v)
	}
	if p := next[Publish](f, BrokerQueue, gone.UID); p.Action != codec.DeleteRequest {
		t.Fatalf("published %s", p.Action)
	}
}

// Scenario:
//
//	t1: a work is deleted, the deletion is confirmed, and the broker drops the record.
//	t2: hub-source restarts, with an informer that shows the work and then its deletion.
//
// Result: the deletion waits for the broker's inventory. Without this: an OCM agent would receive the work once
// more before its deletion.
func TestCore_WaitsForInventoryBeforeRepeatedDeletion(t *testing.T) {
	w, other := newWork("w", 2, deleting), newWork("other", 1)
	for name, has := range map[string][]*workv1.ManifestWork{"nothing": nil, "what the hub has": {other}} {
		t.Run(name, func(t *testing.T) {
			f := comparingFixture(t, SavedState{}, append([]*workv1.ManifestWork{w}, has...)...)
			f.deleted(w.UID)
			f.done(next[Get](f, HubQueue, w.UID), Result{Err: errNotFound()})
			f.idle(BrokerQueue, w.UID)
			var answer codec.Inventory
			if len(has) > 0 {
				answer.Clusters = []codec.ClusterDigest{digestOf(t, has...)}
			}
			f.page(answer)
			if len(has) > 0 {
				f.tag()
			}
			f.idle(BrokerQueue, w.UID)
			if n := f.core.Stats().Works; n != len(has) {
				t.Errorf("%d works are kept", n)
			}
		})
	}
}

// The informer lags behind the end of a work, and the source reconnects to the broker meanwhile. The digests of
// the broker do not cover a confirmed deletion.
func TestCore_ForgetsWorksDeletedBetweenSubscriptions(t *testing.T) {
	w, v := newWork("w", 2, deleting), newWork("v", 1)
	f := comparingFixture(t, SavedState{}, newWork("w", 1), v)
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{digestOf(t, newWork("w", 1), v)}})
	f.locate("200")
	f.tag()
	f.reported()
	f.seen(w)
	f.deliver(w.UID)
	f.lags = true // the informer shows nothing from here on
	f.core.index.works[w.UID].hub.query()
	f.done(next[Get](f, HubQueue, w.UID), Result{Err: errNotFound()})

	f.core.Disconnected()
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{digestOf(t, v)}})
	f.clusterIdle("cluster1")
	f.deleted(w.UID)
	f.done(next[Get](f, HubQueue, w.UID), Result{Err: errNotFound()})
	if p := f.deliver(w.UID); p.Action != codec.DeleteRequest {
		t.Errorf("published %s", p.Action)
	}
	f.idle(BrokerQueue, w.UID)
	if s := f.core.Stats(); s.Works != 1 {
		t.Errorf("%d works are kept", s.Works)
	}
}
