package hubsource

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// lagging is a source that compares with a broker that has these records, and whose
// informer shows these works, which the hub may have no longer.
func lagging(t *testing.T, records []codec.InventoryRecord, works ...*workv1.ManifestWork) *fixture {
	t.Helper()
	f := comparingCore(t, CoreConfig{})
	f.lags = true
	f.core.ClusterSelected("cluster1")
	for _, w := range works {
		f.core.WorkSeen(w)
	}
	f.compareWith(records...)
	return f
}

// compareWith is a connection to a broker that has these records.
func (f *fixture) compareWith(records ...codec.InventoryRecord) {
	f.t.Helper()
	f.core.Connected(transport.Accepted{Protocol: 1, Resync: codec.ResyncCursor})
	if len(records) == 0 {
		f.page(codec.Inventory{})
		return
	}
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{{Cluster: "cluster1", Digest: codec.Digest{Count: uint64(len(records))}}}})
	f.tag()
	f.page(codec.Inventory{Records: records})
}

// asks is the question which works of the cluster there are.
func (f *fixture) asks() ListAlive {
	f.t.Helper()
	return nextOf[ListAlive](f, SpecLane, Key{Cluster: "cluster1"})
}

// TestCore_AsksTheHubWhichWorksThereAre before it publishes what an earlier process
// may have seen to its end: once for all of a cluster.
func TestCore_AsksTheHubWhichWorksThereAre(t *testing.T) {
	lives, dead, fresh := newWork("lives", 1), newWork("dead", 1), newWork("fresh", 1, withoutFinalizer)
	f := lagging(t, nil, lives, dead, fresh)
	for _, w := range []*workv1.ManifestWork{lives, dead} {
		f.idle(SpecLane, w.UID)
	}
	on := newWork("fresh", 1, version("200"))
	f.core.Done(next[AddFinalizer](f, SpecLane, fresh.UID), Result{Work: on})
	f.deliver(fresh.UID) // the hub said that it lives when it took the finalizer

	e := f.asks()
	if e.Namespace != "cluster1" {
		t.Errorf("asked for %q", e.Namespace)
	}
	f.core.Done(e, Result{Alive: Alive{lives.UID: true, fresh.UID: true}})
	f.deliver(lives.UID)
	f.idle(SpecLane, dead.UID)

	f.wakes = nil
	if e := f.core.Next(SpecLane, Key{Cluster: "cluster1"}); e != nil {
		t.Fatalf("asked again at once: %T", e)
	}
	if d := f.nextWake(SpecLane); d < missingDelay || d > longestSpec {
		t.Errorf("asks again in %v", d)
	}
	f.now = f.now.Add(missingDelay)
	f.core.Done(f.asks(), Result{Alive: Alive{lives.UID: true}})
	f.idle(SpecLane, dead.UID)

	f.core.WorkGone(dead.UID)
	f.now = f.now.Add(time.Hour)
	if e, is := f.core.Next(SpecLane, Key{Cluster: "cluster1"}).(ListAlive); is {
		t.Errorf("%+v for a work that the informer knows to be gone", e)
	}
}

// TestCore_AsksTheHubAgain when it does not answer, and when the cluster was left
// to others in between.
func TestCore_AsksTheHubAgain(t *testing.T) {
	w := newWork("w", 1)
	f := lagging(t, nil, w)
	f.idle(SpecLane, w.UID)
	f.core.Done(f.asks(), Result{Err: errHubDown()})
	if e := f.core.Next(SpecLane, Key{Cluster: "cluster1"}); e != nil {
		t.Fatalf("asked again at once: %T", e)
	}
	f.now = f.now.Add(longestSpec)
	f.core.Done(f.asks(), Result{Alive: Alive{w.UID: true}})
	f.deliver(w.UID)

	f.core.ClusterUnselected("cluster1")
	f.core.Done(nextOf[Release](f, SpecLane, Key{Cluster: "cluster1"}), Result{})
	f.core.ClusterSelected("cluster1")
	f.page(codec.Inventory{})
	f.idle(SpecLane, w.UID)
	f.asks()
}

// TestCore_AsksNobodyAboutWhatTheBrokerHas: a record is enough, and a broker that
// lost its store while the source goes on is told at once.
func TestCore_AsksNobodyAboutWhatTheBrokerHas(t *testing.T) {
	w := newWork("w", 2)
	f := lagging(t, []codec.InventoryRecord{recordOf(t, newWork("w", 1), 7)}, w)
	f.deliver(w.UID)

	f.core.Disconnected()
	f.compareWith()
	f.deliver(w.UID)
}

// TestCore_AsksTheHubAgainAboutWhatIsNoMore: t1 a record shows that a work lives, t2 it is
// deleted to its end, which an earlier process saw to, t3 the end is reported to this one,
// and acknowledged, so that the broker forgets the work, t4 the informer, which lags,
// shows it. What was known at t1 counts no longer: published, the work would live on its
// cluster once more.
func TestCore_AsksTheHubAgainAboutWhatIsNoMore(t *testing.T) {
	w := newWork("w", 2)
	end := func(version int64) *Report {
		return &Report{UID: w.UID, Cluster: "cluster1", Name: "w", Version: version, Sequence: sequence(1), Deleted: true}
	}
	for name, ends := range map[string]func(f *fixture){
		"the end of a later generation": func(f *fixture) {
			f.core.Report(end(3))
			f.idle(HubLane, w.UID)
			f.now = f.now.Add(informerPatience)
			f.core.Done(next[Lookup](f, HubLane, w.UID), Result{Err: errNotFound()})
		},
		"the end of this one": func(f *fixture) {
			if v := f.core.Report(end(2)); v != NotDeleting {
				t.Fatalf("the report is %s", v)
			}
		},
		"its record was a deletion by then": func(f *fixture) {
			f.core.Disconnected()
			r := recordOf(t, w, 9)
			r.Tombstone = true
			f.compareWith(r)
			f.core.Done(next[CheckBehind](f, SpecLane, w.UID), Result{Err: errNotFound()})
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := lagging(t, []codec.InventoryRecord{recordOf(t, newWork("w", 1), 7)}, w)
			f.deliver(w.UID)
			ends(f)
			f.core.WorkSeen(newWork("w", 3, version("300")))
			f.idle(SpecLane, w.UID)
			f.core.Done(f.asks(), Result{Alive: Alive{}})
			f.now = f.now.Add(missingDelay)
			f.idle(SpecLane, w.UID)
			f.core.Done(f.asks(), Result{Alive: Alive{w.UID: true}}) // the hub went back in time
			f.deliver(w.UID)
		})
	}
}

// TestHub_Alive lists all pages, of one namespace, and leaves out what is being
// deleted.
func TestHub_Alive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub := newFakeHub(t)
		want := Alive{}
		for i := range 2*alivePage + 10 {
			w := newWork(fmt.Sprint("w", i), 1)
			hub.apply(w)
			want[hub.work("cluster1/"+w.Name).UID] = true
		}
		hub.apply(newWork("elsewhere", 1, func(w *workv1.ManifestWork) { w.Namespace = "cluster2" }))
		hub.apply(newWork("dying", 1))
		hub.remove("manifestworks", "cluster1/dying")

		got, err := NewHub(hub.works().WorkV1(), hub.metadata()).Alive(context.Background(), "cluster1")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("alive (-want +got):\n%s", diff)
		}
		if n := hub.calls["GET manifestworks"]; n != 3 {
			t.Errorf("%d requests", n)
		}
	})
}
