package core

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// lagging is a source that compares with these records of the broker. Its informer shows these works, which the
// hub may no longer have.
func lagging(t *testing.T, records []codec.InventoryRecord, works ...*workv1.ManifestWork) *fixture {
	t.Helper()
	f := comparingCore(t, Config{})
	f.lags = true
	f.selected("cluster1")
	for _, w := range works {
		f.seen(w)
	}
	f.compareWith(records...)
	return f
}

// compareWith connects to a broker with these records, and compares.
func (f *fixture) compareWith(records ...codec.InventoryRecord) {
	f.t.Helper()
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
	if len(records) == 0 {
		f.page(codec.Inventory{})
		return
	}
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{{Cluster: "cluster1", Digest: codec.Digest{Count: uint64(len(records))}}}})
	f.tag()
	f.page(codec.Inventory{Records: records})
}

// answer answers the query for a work.
func (f *fixture) answer(uid types.UID, r Result) {
	f.t.Helper()
	f.done(next[Get](f, HubQueue, uid), r)
}

// TestCore_QueriesTheHubForWorksMissingAtTheBroker: it does so before it publishes a work that an earlier
// process may have deleted completely.
func TestCore_QueriesTheHubForWorksMissingAtTheBroker(t *testing.T) {
	live, dead, fresh := newWork("live", 1), newWork("dead", 1), newWork("fresh", 1, withoutFinalizer)
	f := lagging(t, nil, live, dead, fresh)
	for _, w := range []*workv1.ManifestWork{live, dead} {
		f.idle(BrokerQueue, w.UID)
	}
	on := newWork("fresh", 1, version("200"))
	f.done(next[AddFinalizer](f, BrokerQueue, fresh.UID), Result{Work: on})
	f.deliver(fresh.UID) // the write of the finalizer has shown that the work exists

	f.answer(live.UID, Result{Err: errHubDown()})
	f.idle(BrokerQueue, live.UID)
	f.now = f.now.Add(longestHub)
	f.answer(live.UID, Result{Work: live})
	f.deliver(live.UID)

	f.answer(dead.UID, Result{Err: errNotFound()})
	f.idle(BrokerQueue, dead.UID)
	f.wakes = nil
	f.idle(HubQueue, dead.UID)
	if d := f.nextWake(HubQueue); d < missingDelay || d > longestSpec {
		t.Errorf("the next request is due in %v", d)
	}
	f.deleted(dead.UID)
	f.idle(BrokerQueue, dead.UID) // the broker never had the work
	if n := f.core.Stats().Works; n != 2 {
		t.Errorf("%d works are left", n)
	}
}

// TestCore_ListsWhereManyAreInQuestion: for more than ten works of a cluster one consistent list is read.
func TestCore_ListsWhereManyAreInQuestion(t *testing.T) {
	var works []*workv1.ManifestWork
	present := Present{}
	for i := range maxGets + 3 {
		w := newWork(fmt.Sprint("w", i), 1)
		works = append(works, w)
		present[w.UID] = w.ResourceVersion
	}
	f := lagging(t, nil, works...)
	for _, w := range works {
		f.idle(BrokerQueue, w.UID)
	}
	f.idle(HubQueue, works[0].UID)
	cluster := Key{Cluster: "cluster1"}
	f.done(nextOf[List](f, HubQueue, cluster), Result{Err: errHubDown()})
	if e := f.core.Next(HubQueue, cluster); e != nil {
		t.Fatalf("the effect is repeated at once: %T", e)
	}
	f.now = f.now.Add(longestHub)
	delete(present, works[0].UID) // the work is deleted
	present[works[1].UID] = "200" // the informer lags behind a change
	f.done(nextOf[List](f, HubQueue, cluster), Result{Present: present})
	for _, w := range works[2:] {
		f.deliver(w.UID)
	}
	f.idle(BrokerQueue, works[0].UID)
	f.idle(BrokerQueue, works[1].UID)
	f.answer(works[1].UID, Result{Work: newWork("w1", 1, version("200"))})
	f.deliver(works[1].UID)
	f.idle(BrokerQueue, works[0].UID)
}

// TestCore_QueriesAgainOnTheNextSubscription: an answer of the hub from before an answer of the broker does not
// cover later changes.
func TestCore_QueriesAgainOnTheNextSubscription(t *testing.T) {
	w := newWork("w", 1)
	f := lagging(t, nil, w)
	f.idle(BrokerQueue, w.UID)
	f.answer(w.UID, Result{Work: w})
	f.deliver(w.UID)

	f.unselected("cluster1")
	f.done(nextOf[Release](f, BrokerQueue, Key{Cluster: "cluster1"}), Result{})
	f.selected("cluster1")
	f.page(codec.Inventory{})
	f.idle(BrokerQueue, w.UID)
	f.answer(w.UID, Result{Work: w})
	f.deliver(w.UID)
}

// TestCore_QueriesNothingForWorksAtTheBroker: a record at the broker is enough, without a query to the hub.
func TestCore_QueriesNothingForWorksAtTheBroker(t *testing.T) {
	f := lagging(t, []codec.InventoryRecord{recordOf(t, newWork("w", 1), 7)}, newWork("w", 2))
	f.deliver("uid-w")
}

// Scenario:
//
//	t1: the informer stops.
//	t2: an earlier process completes the deletion of the work on the hub.
//	t3: the informer shows a change from before t2.
//
// Result: a change that the informer shows is no evidence either.
func TestCore_QueriesTheHubForAnUnknownChange(t *testing.T) {
	f := lagging(t, nil)
	f.seen(newWork("w", 1))
	f.seen(newWork("w", 2))
	f.idle(BrokerQueue, "uid-w")
	f.answer("uid-w", Result{Err: errNotFound()})
	f.idle(BrokerQueue, "uid-w")
}

// Scenario:
//
//	t1: the informer shows a deletion.
//	t2: the hub has the work: it went back in time.
//
// Result: the epoch ends, and objects of the former informers are dropped.
func TestCore_EndsTheEpochWhenADeletedWorkReturns(t *testing.T) {
	w := newWork("w", 1)
	f := lagging(t, []codec.InventoryRecord{recordOf(t, w, 7)}, w)
	f.deleted(w.UID)
	f.idle(BrokerQueue, w.UID)
	f.answer(w.UID, Result{Work: w})
	f.idle(BrokerQueue, w.UID)
	save := nextOf[Save](f, HubQueue, Key{})
	if !save.State.suspectsAll() {
		t.Fatalf("saves %+v", save.State)
	}
	f.done(save, Result{})
	old := f.core.Epoch()
	if e := nextOf[BeginHubEpoch](f, HubQueue, Key{}); e.Epoch != old+1 || e.Epoch != f.core.Epoch() {
		t.Fatalf("begins life %d after %d", e.Epoch, old)
	}
	f.core.WorkSeen(old, w)
	f.core.WorkMissing(old, w.UID)
	if n := f.core.Stats().Works; n != 0 {
		t.Errorf("%d works of the former epoch", n)
	}
	f.seen(w)
	if n := f.core.Stats().Works; n != 1 {
		t.Errorf("%d works", n)
	}
}

// Scenario:
//
//	t1: a record shows that a work is live.
//	t2: it is deleted, and an earlier process completes the deletion.
//	t3: the confirmation is sent to this process and acknowledged, so the broker drops the record.
//	t4: the informer, which lags, shows a later state of the work.
//
// Result: the record of t1 is not trusted. Without this: the work would be published to its cluster once more.
func TestCore_QueriesTheHubAgainForDeletedWorks(t *testing.T) {
	w := newWork("w", 2)
	end := func(version int64) *Report {
		return &Report{UID: w.UID, Cluster: "cluster1", Name: "w", Version: version, Sequence: sequence(1), Revision: 200, Deleted: true}
	}
	for name, ends := range map[string]func(f *fixture){
		"the end of a later generation": func(f *fixture) {
			f.core.Report(end(3))
			f.idle(HubQueue, w.UID)
			f.now = f.now.Add(informerPatience)
		},
		"the end of this one": func(f *fixture) {
			if v := f.core.Report(end(2)); v != UnexpectedDeletion {
				t.Fatalf("the report is %s", v)
			}
		},
		"its record was a deletion by then": func(f *fixture) {
			f.core.Disconnected()
			r := recordOf(t, w, 9)
			r.Tombstone = true
			f.compareWith(r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := lagging(t, []codec.InventoryRecord{recordOf(t, newWork("w", 1), 7)}, w)
			f.deliver(w.UID)
			ends(f)
			f.seen(newWork("w", 3, version("300")))
			f.idle(BrokerQueue, w.UID)
			f.answer(w.UID, Result{Err: errNotFound()})
			f.now = f.now.Add(missingDelay)
			f.idle(BrokerQueue, w.UID)
		})
	}
}

// Scenario:
//
//	t1: the informer is stuck, and a cluster reports on a work that it never showed.
//	t2: the hub returns the work, which is being deleted.
//	t3: its finalizer is removed, and so is the work.
//
// Result: a query to the hub ends the work: the informer never had it, and sends no delete event.
func TestCore_ForgetsWorkUnknownToInformer(t *testing.T) {
	w := newWork("w", 2, deleting)
	f := comparingFixture(t, SavedState{})
	f.lags = true
	f.page(codec.Inventory{})
	end := report(w, 2, applied(1))
	end.Deleted = true
	f.core.Report(end)
	f.answer(w.UID, Result{Work: w})
	f.done(next[RemoveFinalizer](f, HubQueue, w.UID), Result{})
	f.now = f.now.Add(time.Minute)
	f.answer(w.UID, Result{Err: errNotFound()})
	f.idle(BrokerQueue, w.UID)
	if n := f.core.Stats().Works; n != 0 {
		t.Errorf("%d works are left", n)
	}
}
