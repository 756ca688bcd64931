package core

import (
	"strings"
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// onlyAtTheBroker is a core whose broker lists n records that the hub lacks.
func onlyAtTheBroker(t *testing.T, state SavedState, last *codec.HubPosition, n int) *fixture {
	f := comparingFixture(t, state)
	f.compare(last, n)
	return f
}

// compare lists n records of the broker that the hub lacks.
func (f *fixture) compare(last *codec.HubPosition, n int) {
	records := missingRecords(n)
	f.page(codec.Inventory{LastPosition: last, Clusters: []codec.ClusterDigest{{Cluster: "cluster1", Digest: codec.Digest{Count: uint64(n)}}}})
	f.clusterIdle("cluster1")
	f.page(codec.Inventory{Records: records})
}

func TestCore_DeletesOrphansConditionally(t *testing.T) {
	cluster := Key{Cluster: "cluster1"}
	f := onlyAtTheBroker(t, SavedState{}, &codec.HubPosition{UID: "hub", ResourceVersion: "200"}, 2)
	f.clusterIdle("cluster1") // the position of the hub is unknown
	f.locate("200")
	f.done(nextOf[Get](f, BrokerQueue, cluster), Result{Err: errNotFound()})
	other := newWork("m001", 1, func(o *workv1.ManifestWork) { o.UID = "another" })
	f.done(nextOf[Get](f, BrokerQueue, cluster), Result{Work: other})
	f.clusterIdle("cluster1") // the position may have changed since the query
	f.locate("200")
	d := nextOf[Delete](f, BrokerQueue, cluster)
	e, err := eventOf(d, f.id, f.now)
	if err != nil || e.Extensions()[codec.ExtIfRevision] != "1" || e.Extensions()[codec.ExtDeletionTimestamp] == nil || len(e.Data()) != 0 {
		t.Fatalf("published %v, error %v", e.Extensions(), err)
	}
	f.done(d, Result{Receipt: transport.Receipt{Outcome: codec.OutcomeAccepted}})
	f.done(nextOf[Delete](f, BrokerQueue, cluster), Result{})
	f.clusterIdle("cluster1")
	if c := f.reported(); !c.AllClusters || c.Position == nil {
		t.Errorf("reported %+v", c)
	}
}

// The hub is restored from a backup after its position was read, and before the query for a work.
func TestCore_DeletesNothingAfterRollback(t *testing.T) {
	cluster := Key{Cluster: "cluster1"}
	f := onlyAtTheBroker(t, SavedState{}, &codec.HubPosition{UID: "hub", ResourceVersion: "200"}, 1)
	f.locate("200")
	missing := nextOf[Get](f, BrokerQueue, cluster)
	f.core.epochs.readPositionNow()
	early := nextOf[ReadHubPosition](f, HubQueue, Key{})
	f.done(missing, Result{Err: errNotFound()})
	f.done(early, Result{Position: &codec.HubPosition{UID: "hub", ResourceVersion: "200"}}) // this position is from before the rollback
	f.clusterIdle("cluster1")
	f.locate("150")
	f.clusterIdle("cluster1")
	f.beginEpoch()
}

func TestCore_DeletesNothingMissingOnlyInTheInformer(t *testing.T) {
	f := onlyAtTheBroker(t, SavedState{}, nil, 1)
	f.locate("200")
	w := newWork("m000", 1)
	f.done(nextOf[Get](f, BrokerQueue, Key{Cluster: "cluster1"}), Result{Work: w})
	f.clusterIdle("cluster1")
	f.seen(w)
	f.done(nextRequest(f), Result{})
	f.now = f.now.Add(missingDelay)
	f.clusterIdle("cluster1")
	f.page(codec.Inventory{Records: []codec.InventoryRecord{recordOf(t, w, 1)}})
	f.deliver(w.UID) // the work has no tag, so it is published
	f.clusterIdle("cluster1")
}

func TestCore_WithholdsDeletionsWhileRollbackSuspected(t *testing.T) {
	last := &codec.HubPosition{UID: "hub", ResourceVersion: "200"}
	for name, c := range map[string]struct {
		state  SavedState
		last   *codec.HubPosition
		n      int
		now    string
		reason string
	}{
		"another hub":                        {SavedState{}, &codec.HubPosition{UID: "other", ResourceVersion: "1"}, 1, "200", "not the same as before"},
		"an older list":                      {SavedState{}, last, 1, "199", "went back"},
		"too many":                           {SavedState{}, last, 11, "200", "11 of 11"},
		"withheld before":                    {SavedState{Withheld: []string{"cluster1"}}, last, 1, "200", "before"},
		"withheld before, all":               {SavedState{Withheld: []string{everywhere}}, last, 1, "200", "before"},
		"a store from before it was settled": {SavedState{ClearedPosition: last}, &codec.HubPosition{UID: "hub", ResourceVersion: "199"}, 1, "200", "before the end of that suspicion"},
		"a store without a hub position yet": {SavedState{ClearedPosition: last}, nil, 1, "200", "before the end of that suspicion"},
		"many, of another hub's":             {SavedState{}, &codec.HubPosition{UID: "other"}, 11, "200", "not the same as before"},
	} {
		t.Run(name, func(t *testing.T) {
			f := onlyAtTheBroker(t, c.state, c.last, c.n)
			f.locate(c.now)
			if f.core.epochs.over {
				if r := f.beginEpoch().Reason; !strings.Contains(r, c.reason) {
					t.Errorf("the epoch ends because %q", r)
				}
				f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncCursor})
				f.compare(c.last, c.n)
				f.locate(c.now)
			}
			f.clusterIdle("cluster1")
			reported := f.reported()
			if !reported.AllClusters || reported.Position != nil || len(reported.Clusters) != 1 || len(reported.Clusters[0].Withheld) != c.n {
				t.Fatalf("reported %+v", reported)
			}
			if !strings.Contains(reported.Clusters[0].Reason, c.reason) {
				t.Errorf("reason is %q", reported.Clusters[0].Reason)
			}
			if s := f.core.Stats(); s.WithheldClusters != 1 || s.WithheldWorks != c.n || s.Comparing != 1 {
				t.Errorf("counted %+v", s)
			}
			if s, _ := f.core.State(); len(s.Withheld) == 0 {
				t.Error("the next process would delete them")
			}
		})
	}
}

// TestCore_WithholdsNoDeletionOfReappearingWorks: after the comparison the informer shows a work, or one that
// takes its name. This may happen before or after the deletion is reported as withheld.
func TestCore_WithholdsNoDeletionOfReappearingWorks(t *testing.T) {
	itself := newWork("m000", 1)
	other := newWork("m000", 1, func(o *workv1.ManifestWork) { o.UID = "another" })
	for name, c := range map[string]struct {
		w        *workv1.ManifestWork
		reported bool
	}{
		"the work, before":        {w: itself},
		"the work, after":         {w: itself, reported: true},
		"one of its name, before": {w: other},
		"one of its name, after":  {w: other, reported: true},
		"its deletion, before":    {w: newWork("m000", 1, deleting)},
		"its deletion, after":     {w: newWork("m000", 1, deleting), reported: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := onlyAtTheBroker(t, SavedState{Withheld: []string{everywhere}}, nil, 1)
			if c.reported {
				f.locate("200")
				f.clusterIdle("cluster1")
				if sent := f.reported(); len(sent.Clusters) != 1 || len(sent.Clusters[0].Withheld) != 1 {
					t.Fatalf("reported %+v", sent)
				}
			}
			f.seen(c.w)
			f.done(nextRequest(f), Result{})
			f.deliver(c.w.UID)
			if !c.reported {
				f.locate("200")
			}
			f.clusterIdle("cluster1")
			if n := f.core.Stats().WithheldWorks; n != 0 {
				t.Errorf("%d works are withheld", n)
			}
			f.now = f.now.Add(missingDelay)
			f.clusterIdle("cluster1")
			record := recordOf(t, c.w, 2)
			record.Tombstone = c.w.DeletionTimestamp != nil
			f.page(codec.Inventory{Records: []codec.InventoryRecord{record}})
			f.clusterIdle("cluster1")
			for _, cl := range f.reported().Clusters {
				if len(cl.Withheld) != 0 {
					t.Errorf("reported %+v", cl)
				}
			}
			if s, _ := f.core.State(); len(s.Withheld) != 0 {
				t.Errorf("state is %+v", s)
			}
		})
	}
}

func TestCore_TrustsTheHubAgainWhenNothingIsMissing(t *testing.T) {
	f := onlyAtTheBroker(t, SavedState{Withheld: []string{everywhere}}, nil, 1)
	f.locate("200")
	f.clusterIdle("cluster1")
	f.reported()
	// An operator has approved, and the cluster has confirmed.
	v := f.core.Report(&Report{UID: "uid-m000", Cluster: "cluster1", Name: "m000", Version: 1, Sequence: sequence(1), Deleted: true})
	if v != Taken {
		t.Fatalf("result is %s", v)
	}
	f.done(next[Get](f, HubQueue, "uid-m000"), Result{Err: errNotFound()})
	f.now = f.now.Add(time.Second)
	f.clusterIdle("cluster1")
	f.page(codec.Inventory{})
	f.clusterIdle("cluster1")
	if reported := f.reported(); reported.Position == nil {
		t.Errorf("reported %+v", reported)
	}
	s, _ := f.core.State()
	if len(s.Withheld) != 0 || s.ClearedPosition == nil || s.ClearedPosition.ResourceVersion != "200" {
		t.Errorf("state is %+v", s)
	}

	// A store that knows this position is trusted.
	for _, version := range []string{"200", "201"} {
		f = onlyAtTheBroker(t, s, &codec.HubPosition{UID: "hub", ResourceVersion: version}, 1)
		f.locate("300")
		nextOf[Get](f, BrokerQueue, Key{Cluster: "cluster1"})
	}
}

func TestCore_RecomparesWorksMissingFromNewList(t *testing.T) {
	w := newWork("w", 1)
	f := comparingFixture(t, SavedState{}, w)
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{digestOf(t, w)}})
	f.locate("200")
	f.tag()
	f.missing(w.UID)
	f.idle(BrokerQueue, w.UID) // and no deletion goes out
	f.now = f.now.Add(missingDelay)
	f.clusterIdle("cluster1")
	f.page(codec.Inventory{Records: []codec.InventoryRecord{recordOf(t, w, 3)}})
	f.clusterIdle("cluster1") // the position of the hub is read once more
	f.locate("90")
	f.beginEpoch()
}

// Scenario:
//
//	t1: the deletion of a work is withheld, because the hub is suspected and the informer does not show the work.
//	t2: its cluster reports, so the hub is queried, and has the work.
//	t3: the informer shows the state of t2.
//
// Result: the deletion is no longer withheld.
func TestCore_WithholdsNothingForWorksOnTheHub(t *testing.T) {
	f := onlyAtTheBroker(t, SavedState{Withheld: []string{everywhere}}, nil, 1)
	f.locate("200")
	f.clusterIdle("cluster1")
	f.reported()
	w := newWork("m000", 1)
	f.core.Report(report(w, 1, applied(1)))
	f.done(next[Get](f, HubQueue, w.UID), Result{Work: w})
	f.seen(w)
	if n := f.core.Stats().WithheldWorks; n != 0 {
		t.Errorf("%d works are withheld", n)
	}
}

// Scenario:
//
//	t1: a hub goes back, lacks a work, and is suspected.
//	t2: another work of its name is created there, and is to replace the record.
//	t3: that work is deleted before it replaces the record.
//
// Result: the record is missing again, and the suspicion has not ended at t2.
func TestCore_SuspectsRollbackWhileARecordIsReplaced(t *testing.T) {
	made := newWork("m000", 1, withoutFinalizer, version("150"), func(o *workv1.ManifestWork) { o.UID = "another" })
	f := comparingFixture(t, SavedState{Withheld: []string{everywhere}}, made)
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{{Cluster: "cluster1", Digest: codec.Digest{Count: 1}}}})
	f.tag()
	f.page(codec.Inventory{Records: missingRecords(1)})
	f.locate("200")
	add := next[AddFinalizer](f, BrokerQueue, made.UID)
	f.clusterIdle("cluster1")
	f.now = f.now.Add(reportAfter)
	if e := f.core.Next(BrokerQueue, Key{}); e != nil {
		t.Fatalf("next is %T %+v", e, e)
	}
	if s, _ := f.core.State(); !s.suspectsAll() {
		t.Fatal("the suspicion has ended")
	}
	f.done(add, Result{Err: errNotFound()})
	f.deleted(made.UID)
	f.idle(BrokerQueue, made.UID)
	f.now = f.now.Add(time.Minute)
	f.clusterIdle("cluster1")
	f.page(codec.Inventory{Records: missingRecords(1)})
	f.locate("200")
	f.clusterIdle("cluster1")
	if reported := f.reported(); len(reported.Clusters) != 1 || len(reported.Clusters[0].Withheld) != 1 {
		t.Errorf("reported %+v", reported)
	}
}
