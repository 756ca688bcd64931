package core

import (
	"fmt"
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
)

// comparingFixture is a core that compares, serves every namespace and knows these works. The broker has sent
// no inventory yet.
func comparingFixture(t *testing.T, state SavedState, works ...*workv1.ManifestWork) *fixture {
	f := comparingCore(t, Config{All: true, State: state})
	for _, w := range works {
		f.seen(w)
	}
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
	return f
}

// comparingCore is a core that compares, under a clock that the test moves.
func comparingCore(t *testing.T, c Config) *fixture {
	f := &fixture{t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	requests := 0
	c.Now, c.Jitter, c.Waker = func() time.Time { return f.now }, func() float64 { return 0 }, f
	c.NewID = func() string { requests++; return fmt.Sprint("request-", requests) }
	f.core = New(c)
	return f
}

// nextOf returns the next effect of a key, which must have the given type.
func nextOf[E Effect](f *fixture, l Queue, k Key) E {
	f.t.Helper()
	e := f.core.Next(l, k)
	got, ok := e.(E)
	if !ok {
		f.t.Fatalf("next of %s %+v is %T %+v, want %T", l, k, e, e, got)
	}
	return got
}

// page returns the request for the inventory, and answers it with a page.
func (f *fixture) page(answer codec.Inventory) codec.InventoryRequest {
	f.t.Helper()
	e := nextOf[RequestInventory](f, BrokerQueue, Key{})
	f.done(e, Result{})
	answer.RequestID = e.ID
	if !f.core.Inventory(answer) {
		f.t.Fatalf("the answer to %s is not taken", e.ID)
	}
	return e.Request
}

func (f *fixture) locate(resourceVersion string) { f.t.Helper(); f.locateKeeping(resourceVersion, "") }

func (f *fixture) locateKeeping(resourceVersion, kept string) {
	f.t.Helper()
	f.done(nextOf[ReadHubPosition](f, HubQueue, Key{}), Result{Position: &codec.HubPosition{UID: "hub", ResourceVersion: resourceVersion}, Kept: kept})
}

func (f *fixture) tag() {
	f.t.Helper()
	e := nextOf[Tag](f, BrokerQueue, Key{Cluster: "cluster1"})
	f.done(e, Result{Tags: e.Tags()})
	f.clusterIdle("cluster1")
	f.clusterIdle("cluster1") // the page woke the cluster
}

// digestOf is the digest of a cluster for which the broker has exactly these works.
func digestOf(t *testing.T, works ...*workv1.ManifestWork) codec.ClusterDigest {
	t.Helper()
	d := codec.ClusterDigest{Cluster: "cluster1"}
	for _, w := range works {
		r := recordOf(t, w, 0)
		d.Digest.Count++
		d.Digest.Sum = d.Digest.Sum.Add(codec.RecordHash(r.ResourceID, r.Tag))
	}
	return d
}

func recordOf(t *testing.T, w *workv1.ManifestWork, revision uint64) codec.InventoryRecord {
	t.Helper()
	tag, err := manifestwork.SpecTag(w)
	if err != nil {
		t.Fatal(err)
	}
	return codec.InventoryRecord{Cluster: w.Namespace, ResourceID: string(w.UID), Name: w.Name, Version: w.Generation, Tag: tag, Revision: revision}
}

func missingRecords(n int) (records []codec.InventoryRecord) {
	for i := range n {
		records = append(records, codec.InventoryRecord{Cluster: "cluster1", ResourceID: fmt.Sprintf("uid-m%03d", i), Name: fmt.Sprintf("m%03d", i), Version: 1, Revision: uint64(i + 1)})
	}
	return records
}

// reported returns the next sync report.
func (f *fixture) reported() codec.SyncReport {
	f.t.Helper()
	f.clusterIdle("cluster1")
	e, is := f.core.Next(BrokerQueue, Key{}).(SendSyncReport)
	if !is {
		f.now = f.now.Add(reportAfter)
		e = nextOf[SendSyncReport](f, BrokerQueue, Key{})
	}
	f.done(e, Result{})
	return e.Report
}

func TestCore_PublishesNothingWhereTheDigestsAreEqual(t *testing.T) {
	w, v := newWork("w", 1), newWork("v", 3)
	f := comparingFixture(t, SavedState{}, w, v)
	f.idle(BrokerQueue, w.UID) // the digests are unknown
	if r := f.page(codec.Inventory{Clusters: []codec.ClusterDigest{digestOf(t, w, v)}}); len(r.Clusters) != 0 {
		t.Fatalf("the first request is for %v", r.Clusters)
	}
	f.locate("200")
	f.tag()
	f.idle(BrokerQueue, w.UID)
	f.idle(BrokerQueue, v.UID)
	if c := f.reported(); !c.AllClusters || len(c.Clusters) != 0 || c.Position == nil || c.Position.ResourceVersion != "200" {
		t.Errorf("reported %+v", c)
	}

	f.seen(newWork("w", 2)) // later changes need no comparison
	if p := f.deliver(w.UID); p.Supersedes != 0 || p.Work.Generation != 2 {
		t.Errorf("published %+v", p)
	}
	f.core.Disconnected()
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{digestOf(t, newWork("w", 2), v)}})
	if e := nextOf[Tag](f, BrokerQueue, Key{Cluster: "cluster1"}); len(e.Works) != 1 {
		t.Errorf("%d tags computed again, of which one work was published", len(e.Works))
	}
}

func TestCore_PublishesOnlyDifferences(t *testing.T) {
	same, old, fresh := newWork("same", 1), newWork("old", 2), newWork("fresh", 1)
	f := comparingFixture(t, SavedState{}, same, old, fresh)
	before := newWork("old", 1)
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{digestOf(t, same, before)}})
	f.tag()
	f.idle(BrokerQueue, old.UID)
	records := []codec.InventoryRecord{recordOf(t, same, 1), recordOf(t, before, 2)}
	if r := f.page(codec.Inventory{Records: records[:1], NextPageToken: "more"}); len(r.Clusters) != 1 || r.PageToken != "" {
		t.Fatalf("the request is %+v", r)
	}
	f.idle(BrokerQueue, fresh.UID) // a part of the records shows nothing about the other works
	if r := f.page(codec.Inventory{Records: records[1:]}); r.PageToken != "more" {
		t.Fatalf("the request is %+v", r)
	}
	f.idle(BrokerQueue, same.UID)
	f.deliver(old.UID)
	f.locate("200")
	f.clusterIdle("cluster1")
	if f.core.Stats().Comparing != 1 {
		t.Error("the cluster is synced before all its works are accepted")
	}
	f.deliver(fresh.UID)
	if c := f.reported(); !c.AllClusters {
		t.Errorf("reported %+v", c)
	}
}

func TestCore_RequestsMissingPageAgain(t *testing.T) {
	f := comparingFixture(t, SavedState{}, newWork("w", 1))
	first := nextOf[RequestInventory](f, BrokerQueue, Key{})
	f.done(first, Result{})
	if e := f.core.Next(BrokerQueue, Key{}); e != nil {
		t.Fatalf("it repeats the request at once: %+v", e)
	}
	f.now = f.now.Add(pageTimeout)
	second := nextOf[RequestInventory](f, BrokerQueue, Key{})
	if f.core.Inventory(codec.Inventory{RequestID: first.ID}) {
		t.Error("the answer to the request before is taken")
	}
	f.done(second, Result{Err: &transport.Error{Code: transport.CodeOverloaded, Delay: 3 * time.Second}})
	if e := f.core.Next(BrokerQueue, Key{}); e != nil {
		t.Fatalf("does not wait: %+v", e)
	}
	f.now = f.now.Add(3 * time.Second)
	f.page(codec.Inventory{})
	f.deliver("uid-w") // the broker has no record
}

func TestCore_PublishesEverythingWithoutInventory(t *testing.T) {
	f := comparingFixture(t, SavedState{}, newWork("w", 1))
	f.done(nextOf[RequestInventory](f, BrokerQueue, Key{}), Result{Err: &transport.Error{Code: transport.CodeDenied, Next: transport.NextStop}})
	f.deliver("uid-w")
	if e := f.core.Next(BrokerQueue, Key{}); e != nil {
		t.Errorf("next is %+v", e)
	}
	f.core.Disconnected()
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol}) // the broker may be another one
	nextOf[RequestInventory](f, BrokerQueue, Key{})
}

func TestCore_DoesNotLetADeletionWaitForAComparison(t *testing.T) {
	f := comparingFixture(t, SavedState{}, newWork("w", 2, deleting))
	if p := f.deliver("uid-w"); p.Action != codec.DeleteRequest {
		t.Errorf("published %s", p.Action)
	}
}

func TestCore_LetsAFreshChangeWaitForDigestsOnly(t *testing.T) {
	w, other := newWork("w", 1), newWork("other", 1)
	f := comparingFixture(t, SavedState{}, w, other)
	f.seen(newWork("w", 2))
	f.idle(BrokerQueue, w.UID)
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{digestOf(t, w)}})
	f.tag()
	f.deliver(w.UID)
	f.idle(BrokerQueue, other.UID)
}

func TestCore_SupersedesNewerRecordAtBroker(t *testing.T) {
	w := newWork("w", 2)
	for name, record := range map[string]codec.InventoryRecord{
		"higher version": {Version: 5},
		"deleted":        {Version: 1, Tombstone: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := comparingFixture(t, SavedState{}, w)
			f.page(codec.Inventory{Clusters: []codec.ClusterDigest{{Cluster: "cluster1", Digest: codec.Digest{Count: 1}}}})
			f.tag()
			record.Cluster, record.ResourceID, record.Name, record.Revision = "cluster1", "uid-w", "w", 7
			f.page(codec.Inventory{Records: []codec.InventoryRecord{record}})
			f.done(next[Get](f, HubQueue, w.UID), Result{Err: errHubDown()})
			f.now = f.now.Add(time.Second)
			f.done(next[Get](f, HubQueue, w.UID), Result{Work: w})
			f.idle(BrokerQueue, w.UID) // the suspicion is not saved yet, so the next process would not know of the rollback
			f.beginEpoch(w)
			f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
			f.page(codec.Inventory{Clusters: []codec.ClusterDigest{{Cluster: "cluster1", Digest: codec.Digest{Count: 1}}}})
			f.tag()
			f.page(codec.Inventory{Records: []codec.InventoryRecord{record}})
			f.done(next[Get](f, HubQueue, w.UID), Result{Work: w})
			p := next[Publish](f, BrokerQueue, w.UID)
			e, err := eventOf(p, f.id, f.now)
			if err != nil || e.Extensions()[codec.ExtSupersedes] != "7" {
				t.Fatalf("published %v, error %v", e.Extensions(), err)
			}
			f.done(p, Result{Err: &transport.Error{Code: transport.CodeConflict, Next: transport.NextResync}})
			f.idle(BrokerQueue, w.UID)
			f.now = f.now.Add(time.Second)
			f.queryAndIdle()
			record.Revision = 8
			if r := f.page(codec.Inventory{Records: []codec.InventoryRecord{record}}); len(r.Clusters) != 1 {
				t.Fatalf("the request is %+v, want the cluster again", r)
			}
			f.now = f.now.Add(time.Second)
			f.done(next[Get](f, HubQueue, w.UID), Result{Work: w})
			if p := f.deliver(w.UID); p.Supersedes != 8 {
				t.Errorf("supersedes %d", p.Supersedes)
			}
		})
	}
}

func TestCore_TrustsHubNotStaleInformer(t *testing.T) {
	f := comparingFixture(t, SavedState{}, newWork("w", 2))
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{{Cluster: "cluster1", Digest: codec.Digest{Count: 1}}}})
	f.tag()
	newer := newWork("w", 5, version("150"))
	f.page(codec.Inventory{Records: []codec.InventoryRecord{recordOf(t, newer, 7)}})
	f.done(next[Get](f, HubQueue, "uid-w"), Result{Work: newer})
	if p := f.deliver("uid-w"); p.Supersedes != 0 || p.Work != newer {
		t.Errorf("published %+v", p)
	}
	if s, _ := f.core.State(); len(s.Withheld) != 0 {
		t.Errorf("a late informer causes a rollback suspicion: %+v", s)
	}
}

func TestCore_ReportsNoClusterWithARefusedWork(t *testing.T) {
	w := newWork("w", 1)
	f := comparingFixture(t, SavedState{}, w)
	f.page(codec.Inventory{})
	f.locate("200")
	f.done(next[Publish](f, BrokerQueue, w.UID), Result{Err: &transport.Error{Code: transport.CodeInvalid}})
	f.clusterIdle("cluster1")
	if c := f.reported(); c.AllClusters || len(c.Clusters) != 0 || c.Position == nil {
		t.Errorf("reported %+v, want the position alone", c)
	}
	f.seen(newWork("w", 2))
	f.deliver(w.UID)
	if c := f.reported(); !c.AllClusters {
		t.Errorf("reported %+v", c)
	}
}

// A deletion was confirmed, but the hub did not answer the removal of the finalizer. Then the broker continued
// with an older store, in which the work is live.
func TestCore_RepeatsDeletionInRestoredStore(t *testing.T) {
	w := newWork("w", 2, deleting, withStatus(applied(1)))
	alive := codec.InventoryRecord{Cluster: "cluster1", ResourceID: string(w.UID), Name: "w", Version: 1, Revision: 3}
	for name, c := range map[string]struct {
		record codec.InventoryRecord
		again  bool
	}{
		"it lives there":    {alive, true},
		"it is deleted too": {codec.InventoryRecord{Cluster: "cluster1", ResourceID: string(w.UID), Name: "w", Version: 2, Revision: 4, Tombstone: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := comparingFixture(t, SavedState{}, w)
			f.deliver(w.UID)
			f.core.Report(&Report{UID: w.UID, Cluster: "cluster1", Name: "w", Version: 2, Sequence: sequence(1), Deleted: true})
			f.done(next[RemoveFinalizer](f, HubQueue, w.UID), Result{Err: errHubDown()})

			f.core.Disconnected()
			f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
			f.page(codec.Inventory{Clusters: []codec.ClusterDigest{{Cluster: "cluster1", Digest: codec.Digest{Count: 1}}}})
			f.clusterIdle("cluster1")
			f.page(codec.Inventory{Records: []codec.InventoryRecord{c.record}})
			f.now = f.now.Add(longestHub)
			p := next[Publish](f, BrokerQueue, w.UID)
			if !p.fingerprint().deleting {
				t.Errorf("published %+v", p)
			}
			if c.again {
				f.done(p, Result{Receipt: transport.Receipt{Outcome: codec.OutcomeAccepted}})
				f.idle(HubQueue, w.UID) // the status of the cluster is requested once more
				return
			}
			f.done(p, Result{Receipt: transport.Receipt{Outcome: codec.OutcomeConfirmed}})
			next[RemoveFinalizer](f, HubQueue, w.UID)
		})
	}
}

// A late publish of a work that is no longer on the hub took the name of an accepted work. Revisions show the
// order.
//
// Scenario:
//
//	t1: the work is accepted.
//	t2: the late one is accepted and has the name.
//
// Or in the other order, in which the work has the name.
func TestCore_PublishesAgainAfterNameConflict(t *testing.T) {
	w := newWork("w", 1)
	for _, c := range []struct{ accepted, late, listed uint64 }{{4, 7, 8}, {7, 4, 8}, {7, 4, 6}} {
		f := comparingFixture(t, SavedState{}, w)
		f.page(codec.Inventory{})
		f.done(next[Publish](f, BrokerQueue, w.UID), Result{Receipt: transport.Receipt{Outcome: codec.OutcomeAccepted, Revision: c.accepted}})
		f.core.Report(&Report{UID: "uid-late", Cluster: "cluster1", Name: "w", Version: 2, Sequence: sequence(1)})
		f.clusterIdle("cluster1")
		f.done(next[Get](f, HubQueue, "uid-late"), Result{Work: w})
		f.idle(HubQueue, "uid-late")
		f.now = f.now.Add(2 * missingDelay)
		f.clusterIdle("cluster1")
		late := recordOf(t, newWork("w", 2, func(o *workv1.ManifestWork) { o.UID = "uid-late" }), c.late)
		records := []codec.InventoryRecord{late}
		if c.late < c.accepted && c.listed > c.accepted {
			records = []codec.InventoryRecord{recordOf(t, w, c.accepted)}
		}
		f.page(codec.Inventory{Revision: c.listed, Records: records})
		if c.late > c.accepted {
			f.deliver(w.UID)
		} else {
			f.idle(BrokerQueue, w.UID)
		}
	}
}

// The revisions of the broker order its answers. A receipt decided after a listing is valid in any order of
// arrival. An answer of another subscription is not.
func TestCore_OrdersBrokerReports(t *testing.T) {
	accepted := func(f *fixture, revision uint64) {
		f.done(next[Publish](f, BrokerQueue, "uid-w"), Result{Receipt: transport.Receipt{Outcome: codec.OutcomeAccepted, Revision: revision}})
	}
	f := comparingFixture(t, SavedState{}, newWork("w", 1))
	f.page(codec.Inventory{Revision: 3})
	accepted(f, 5)
	relist := func(revision uint64) {
		f.core.compare.repeat(f.core.index.clusters["cluster1"], 0)
		f.now = f.now.Add(longestSpec)
		f.clusterIdle("cluster1")
		f.page(codec.Inventory{Revision: revision})
	}
	relist(4) // this listing is from before the acceptance
	f.idle(BrokerQueue, "uid-w")
	relist(6)
	accepted(f, 7)
	f.idle(BrokerQueue, "uid-w")

	f.core.Disconnected()
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
	f.idle(BrokerQueue, "uid-w")
	f.page(codec.Inventory{Revision: 2}) // the broker has an older store
	accepted(f, 3)
}

// queryAndIdle answers a request for the statuses of the cluster.
func (f *fixture) queryAndIdle() {
	f.t.Helper()
	if e, is := f.core.Next(BrokerQueue, Key{Cluster: "cluster1"}).(RequestStatuses); is {
		f.done(e, Result{Sent: 1})
	}
	f.clusterIdle("cluster1")
}
