package hubsource

import (
	"fmt"
	"strings"
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
)

// comparingFixture is a core that compares, serves every namespace and knows
// these works; the broker has told nothing yet.
func comparingFixture(t *testing.T, state State, works ...*workv1.ManifestWork) *fixture {
	f := comparingCore(t, CoreConfig{All: true, State: state})
	for _, w := range works {
		f.core.WorkSeen(w)
	}
	f.core.Connected(transport.Accepted{Protocol: 1, Resync: codec.ResyncCursor})
	return f
}

// comparingCore is a core that compares, under a clock that stands still.
func comparingCore(t *testing.T, c CoreConfig) *fixture {
	f := &fixture{t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	requests := 0
	c.Now, c.Jitter, c.Waker = func() time.Time { return f.now }, func() float64 { return 0 }, f
	c.NewID = func() string { requests++; return fmt.Sprint("request-", requests) }
	f.core = NewCore(c)
	return f
}

// nextOf returns the next effect of a key, which must have the given type.
func nextOf[E Effect](f *fixture, l Lane, k Key) E {
	f.t.Helper()
	e := f.core.Next(l, k)
	got, ok := e.(E)
	if !ok {
		f.t.Fatalf("next of %s %+v is %T %+v, want %T", l, k, e, e, got)
	}
	return got
}

// page asks for the inventory and answers with a page.
func (f *fixture) page(answer codec.Inventory) codec.InventoryRequest {
	f.t.Helper()
	e := nextOf[AskInventory](f, SpecLane, Key{})
	f.core.Done(e, Result{})
	answer.RequestID = e.ID
	if !f.core.Inventory(answer) {
		f.t.Fatalf("the answer to %s is not taken", e.ID)
	}
	return e.Request
}

func (f *fixture) locate(resourceVersion string) {
	f.t.Helper()
	f.core.Done(nextOf[Locate](f, HubLane, Key{}), Result{Position: &codec.HubPosition{UID: "hub", ResourceVersion: resourceVersion}})
}

func (f *fixture) tag() {
	f.t.Helper()
	e := nextOf[Tag](f, SpecLane, Key{Cluster: "cluster1"})
	f.core.Done(e, Result{Tags: e.Tags()})
	f.clusterIdle("cluster1")
	f.clusterIdle("cluster1") // what it was woken for
}

// digestOf is what a broker says of a cluster that has exactly these works.
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

// told is the next outcome that the broker is told.
func (f *fixture) told() codec.Compared {
	f.t.Helper()
	f.core.Next(SpecLane, Key{})
	f.now = f.now.Add(tellAfter)
	e := nextOf[SendCompared](f, SpecLane, Key{})
	f.core.Done(e, Result{})
	return e.Compared
}

func TestCore_PublishesNothingWhereTheDigestsAreEqual(t *testing.T) {
	w, v := newWork("w", 1), newWork("v", 3)
	f := comparingFixture(t, State{}, w, v)
	f.idle(SpecLane, w.UID) // nobody knows yet
	if r := f.page(codec.Inventory{Clusters: []codec.ClusterDigest{digestOf(t, w, v)}}); len(r.Clusters) != 0 {
		t.Fatalf("asked for %v first", r.Clusters)
	}
	f.locate("200")
	f.tag()
	f.idle(SpecLane, w.UID)
	f.idle(SpecLane, v.UID)
	if c := f.told(); !c.AllClusters || len(c.Clusters) != 0 || c.Position == nil || c.Position.ResourceVersion != "200" {
		t.Errorf("told %+v", c)
	}

	f.core.WorkSeen(newWork("w", 2)) // from now on as ever
	if p := f.deliver(w.UID); p.Supersedes != 0 || p.Work.Generation != 2 {
		t.Errorf("published %+v", p)
	}
	f.core.Disconnected()
	f.core.Connected(transport.Accepted{Protocol: 1, Resync: codec.ResyncCursor})
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{digestOf(t, newWork("w", 2), v)}})
	if e := nextOf[Tag](f, SpecLane, Key{Cluster: "cluster1"}); len(e.Works) != 1 {
		t.Errorf("%d tags computed again, of which one work was published", len(e.Works))
	}
}

func TestCore_PublishesOnlyWhatDiffers(t *testing.T) {
	same, old, fresh := newWork("same", 1), newWork("old", 2), newWork("fresh", 1)
	f := comparingFixture(t, State{}, same, old, fresh)
	before := newWork("old", 1)
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{digestOf(t, same, before)}})
	f.tag()
	f.idle(SpecLane, old.UID)
	records := []codec.InventoryRecord{recordOf(t, same, 1), recordOf(t, before, 2)}
	if r := f.page(codec.Inventory{Records: records[:1], NextPageToken: "more"}); len(r.Clusters) != 1 || r.PageToken != "" {
		t.Fatalf("asked for %+v", r)
	}
	f.idle(SpecLane, fresh.UID) // a part of the records says nothing of the rest
	if r := f.page(codec.Inventory{Records: records[1:]}); r.PageToken != "more" {
		t.Fatalf("asked for %+v", r)
	}
	f.idle(SpecLane, same.UID)
	f.deliver(old.UID)
	f.locate("200")
	f.clusterIdle("cluster1")
	if f.core.Stats().Comparing != 1 {
		t.Error("the cluster counts as compared before all of it is accepted")
	}
	f.deliver(fresh.UID)
	if c := f.told(); !c.AllClusters {
		t.Errorf("told %+v", c)
	}
}

func TestCore_AsksAgainForAPageThatIsLost(t *testing.T) {
	f := comparingFixture(t, State{}, newWork("w", 1))
	first := nextOf[AskInventory](f, SpecLane, Key{})
	f.core.Done(first, Result{})
	if e := f.core.Next(SpecLane, Key{}); e != nil {
		t.Fatalf("asks again at once: %+v", e)
	}
	f.now = f.now.Add(pageTimeout)
	second := nextOf[AskInventory](f, SpecLane, Key{})
	if f.core.Inventory(codec.Inventory{RequestID: first.ID}) {
		t.Error("the answer to the request before is taken")
	}
	f.core.Done(second, Result{Err: &transport.Error{Code: transport.CodeOverloaded, Delay: 3 * time.Second}})
	if e := f.core.Next(SpecLane, Key{}); e != nil {
		t.Fatalf("does not wait: %+v", e)
	}
	f.now = f.now.Add(3 * time.Second)
	f.page(codec.Inventory{})
	f.deliver("uid-w") // the broker has nothing
}

func TestCore_PublishesEverythingAtABrokerThatTellsNothing(t *testing.T) {
	f := comparingFixture(t, State{}, newWork("w", 1))
	f.core.Done(nextOf[AskInventory](f, SpecLane, Key{}), Result{Err: &transport.Error{Code: transport.CodeDenied, Next: transport.NextStop}})
	f.deliver("uid-w")
	if e := f.core.Next(SpecLane, Key{}); e != nil {
		t.Errorf("next is %+v", e)
	}
	f.core.Disconnected()
	f.core.Connected(transport.Accepted{Protocol: 1}) // perhaps another one
	nextOf[AskInventory](f, SpecLane, Key{})
}

func TestCore_DoesNotLetADeletionWaitForAComparison(t *testing.T) {
	f := comparingFixture(t, State{}, newWork("w", 2, deleting))
	if p := f.deliver("uid-w"); p.Action != codec.DeleteRequest {
		t.Errorf("published %s", p.Action)
	}
}

func TestCore_LetsAFreshChangeWaitForDigestsOnly(t *testing.T) {
	w, other := newWork("w", 1), newWork("other", 1)
	f := comparingFixture(t, State{}, w, other)
	f.core.WorkSeen(newWork("w", 2))
	f.idle(SpecLane, w.UID)
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{digestOf(t, w)}})
	f.tag()
	f.deliver(w.UID)
	f.idle(SpecLane, other.UID)
}

func TestCore_SupersedesWhatIsNewerAtTheBroker(t *testing.T) {
	w := newWork("w", 2)
	for name, record := range map[string]codec.InventoryRecord{
		"higher version": {Version: 5},
		"deleted":        {Version: 1, Tombstone: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := comparingFixture(t, State{}, w)
			f.page(codec.Inventory{Clusters: []codec.ClusterDigest{{Cluster: "cluster1", Digest: codec.Digest{Count: 1}}}})
			f.tag()
			record.Cluster, record.ResourceID, record.Name, record.Revision = "cluster1", "uid-w", "w", 7
			f.page(codec.Inventory{Records: []codec.InventoryRecord{record}})
			f.core.Done(next[CheckBehind](f, SpecLane, w.UID), Result{Err: errHubDown()})
			f.now = f.now.Add(time.Second)
			f.core.Done(next[CheckBehind](f, SpecLane, w.UID), Result{Work: w})
			f.idle(SpecLane, w.UID) // the next process would not know that the hub went back
			f.locate("200")
			save := nextOf[Save](f, HubLane, Key{})
			if len(save.State.Withheld) != 1 || save.State.Withheld[0] != everywhere {
				t.Fatalf("saves %+v", save.State)
			}
			f.core.Done(save, Result{})
			p := next[Publish](f, SpecLane, w.UID)
			e, err := p.Event("id", f.now, "hub")
			if err != nil || e.Extensions()[codec.ExtSupersedes] != "7" {
				t.Fatalf("published %v, error %v", e.Extensions(), err)
			}
			f.core.Done(p, Result{Err: &transport.Error{Code: transport.CodeConflict, Next: transport.NextResync}})
			f.idle(SpecLane, w.UID)
			f.now = f.now.Add(time.Second)
			f.clusterIdle("cluster1")
			record.Revision = 8
			if r := f.page(codec.Inventory{Records: []codec.InventoryRecord{record}}); len(r.Clusters) != 1 {
				t.Fatalf("asked for %+v, not for the cluster again", r)
			}
			f.now = f.now.Add(time.Second)
			f.core.Done(next[CheckBehind](f, SpecLane, w.UID), Result{Work: w})
			if p := f.deliver(w.UID); p.Supersedes != 8 {
				t.Errorf("supersedes %d", p.Supersedes)
			}
		})
	}
}

func TestCore_BelievesTheHubNotTheInformerAboutWhatIsBehind(t *testing.T) {
	f := comparingFixture(t, State{}, newWork("w", 2))
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{{Cluster: "cluster1", Digest: codec.Digest{Count: 1}}}})
	f.tag()
	newer := newWork("w", 5, version("150"))
	f.page(codec.Inventory{Records: []codec.InventoryRecord{recordOf(t, newer, 7)}})
	f.core.Done(next[CheckBehind](f, SpecLane, "uid-w"), Result{Work: newer})
	if p := f.deliver("uid-w"); p.Supersedes != 0 || p.Work != newer {
		t.Errorf("published %+v", p)
	}
	if s, _ := f.core.State(); len(s.Withheld) != 0 {
		t.Errorf("a late informer casts doubt on the hub: %+v", s)
	}
}

// onlyAtTheBroker has the broker list records that the hub lacks.
func onlyAtTheBroker(t *testing.T, state State, last *codec.HubPosition, n int) *fixture {
	f := comparingFixture(t, state)
	records := missingRecords(n)
	f.page(codec.Inventory{LastPosition: last, Clusters: []codec.ClusterDigest{{Cluster: "cluster1", Digest: codec.Digest{Count: uint64(n)}}}})
	f.clusterIdle("cluster1")
	f.page(codec.Inventory{Records: records})
	return f
}

func TestCore_DeletesWhatTheHubLacksOnACondition(t *testing.T) {
	cluster := Key{Cluster: "cluster1"}
	f := onlyAtTheBroker(t, State{}, &codec.HubPosition{UID: "hub", ResourceVersion: "200"}, 2)
	f.clusterIdle("cluster1") // which hub it is, is not known
	f.locate("200")
	f.core.Done(nextOf[CheckMissing](f, SpecLane, cluster), Result{Err: errNotFound()})
	other := newWork("m001", 1, func(o *workv1.ManifestWork) { o.UID = "another" })
	f.core.Done(nextOf[CheckMissing](f, SpecLane, cluster), Result{Work: other})
	f.clusterIdle("cluster1") // whether it was the same hub, is not known
	f.locate("200")
	d := nextOf[Delete](f, SpecLane, cluster)
	e, err := d.Event("id", f.now, "hub")
	if err != nil || e.Extensions()[codec.ExtIfRevision] != "1" || e.Extensions()[codec.ExtDeletionTimestamp] == nil || len(e.Data()) != 0 {
		t.Fatalf("published %v, error %v", e.Extensions(), err)
	}
	f.core.Done(d, Result{Receipt: transport.Receipt{Outcome: codec.OutcomeAccepted}})
	f.core.Done(nextOf[Delete](f, SpecLane, cluster), Result{})
	f.clusterIdle("cluster1")
	if c := f.told(); !c.AllClusters || c.Position == nil {
		t.Errorf("told %+v", c)
	}
}

// t1 the hub says where it is, t2 it is restored from a backup, t3 it says that it does
// not have a work that only the broker has. The answer of t1 says nothing of t3: the hub
// is asked once more, and only an answer that was asked for after t3 counts.
func TestCore_DeletesNothingThatAHubLacksWhichWentBackMeanwhile(t *testing.T) {
	cluster := Key{Cluster: "cluster1"}
	f := onlyAtTheBroker(t, State{}, &codec.HubPosition{UID: "hub", ResourceVersion: "200"}, 1)
	f.locate("200")
	missing := nextOf[CheckMissing](f, SpecLane, cluster)
	f.core.locateNow()
	early := nextOf[Locate](f, HubLane, Key{})
	f.core.Done(missing, Result{Err: errNotFound()})
	f.core.Done(early, Result{Position: &codec.HubPosition{UID: "hub", ResourceVersion: "200"}}) // from before it went back
	f.clusterIdle("cluster1")
	f.locate("150")
	for range 3 {
		if d, deletes := f.core.Next(SpecLane, cluster).(Delete); deletes {
			t.Fatalf("deletes %+v", d.Record)
		}
	}
	if s := f.core.Stats(); s.WithheldWorks != 1 {
		t.Errorf("withheld are %d", s.WithheldWorks)
	}
}

func TestCore_DeletesNothingThatOnlyTheInformerLacks(t *testing.T) {
	f := onlyAtTheBroker(t, State{}, nil, 1)
	f.locate("200")
	w := newWork("m000", 1)
	f.core.Done(nextOf[CheckMissing](f, SpecLane, Key{Cluster: "cluster1"}), Result{Work: w})
	f.clusterIdle("cluster1")
	f.core.WorkSeen(w)
	f.now = f.now.Add(missingDelay)
	f.clusterIdle("cluster1")
	f.page(codec.Inventory{Records: []codec.InventoryRecord{recordOf(t, w, 1)}})
	f.deliver(w.UID) // it was never tagged
	f.clusterIdle("cluster1")
}

// The stores are of this timeline: t1 the broker's store is copied, t2 the hub goes back to
// where works are not, t3 an operator lets them be deleted, and the doubt about the hub
// ends, t4 the broker goes on with the copy, in which they live. That they are missing is
// no more to be believed than at t2, which the position of t3 shows that the copy lacks.
func TestCore_WithholdsDeletionsOfAHubThatIsNotToBeBelieved(t *testing.T) {
	last := &codec.HubPosition{UID: "hub", ResourceVersion: "200"}
	for name, c := range map[string]struct {
		state  State
		last   *codec.HubPosition
		n      int
		now    string
		reason string
	}{
		"another hub":                         {State{}, &codec.HubPosition{UID: "other", ResourceVersion: "1"}, 1, "200", "another one"},
		"an older list":                       {State{}, last, 1, "199", "went back"},
		"too many":                            {State{}, last, 11, "200", "11 of 11"},
		"withheld before":                     {State{Withheld: []string{"cluster1"}}, last, 1, "200", "before"},
		"withheld before, all":                {State{Withheld: []string{everywhere}}, last, 1, "200", "before"},
		"a store from before it was settled":  {State{Settled: last}, &codec.HubPosition{UID: "hub", ResourceVersion: "199"}, 1, "200", "before all that it lacked"},
		"a store that was told of no hub yet": {State{Settled: last}, nil, 1, "200", "before all that it lacked"},
		"many, of another hub's":              {State{}, &codec.HubPosition{UID: "other"}, 11, "200", "another one"},
	} {
		t.Run(name, func(t *testing.T) {
			f := onlyAtTheBroker(t, c.state, c.last, c.n)
			f.locate(c.now)
			f.clusterIdle("cluster1")
			told := f.told()
			if !told.AllClusters || told.Position != nil || len(told.Clusters) != 1 || len(told.Clusters[0].Withheld) != c.n {
				t.Fatalf("told %+v", told)
			}
			if !strings.Contains(told.Clusters[0].Reason, c.reason) {
				t.Errorf("reason is %q", told.Clusters[0].Reason)
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

// TestCore_AsksNobodyAboutWhatIsThereAfterAll: t1 the records are compared, and one is of
// a work that the informer lacks, t2 before or after the broker was told that a person
// decides about it, the informer shows the work, or one that takes its name. Therefore
// nobody is asked any more: whoever approved would delete what the hub has.
func TestCore_AsksNobodyAboutWhatIsThereAfterAll(t *testing.T) {
	itself := newWork("m000", 1)
	other := newWork("m000", 1, func(o *workv1.ManifestWork) { o.UID = "another" })
	for name, c := range map[string]struct {
		w    *workv1.ManifestWork
		told bool
	}{
		"the work, before":        {w: itself},
		"the work, after":         {w: itself, told: true},
		"one of its name, before": {w: other},
		"one of its name, after":  {w: other, told: true},
		"its deletion, before":    {w: newWork("m000", 1, deleting)},
		"its deletion, after":     {w: newWork("m000", 1, deleting), told: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := onlyAtTheBroker(t, State{Withheld: []string{everywhere}}, nil, 1)
			if c.told {
				f.locate("200")
				f.clusterIdle("cluster1")
				if told := f.told(); len(told.Clusters) != 1 || len(told.Clusters[0].Withheld) != 1 {
					t.Fatalf("told %+v", told)
				}
			}
			f.core.WorkSeen(c.w)
			f.deliver(c.w.UID)
			if !c.told {
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
			for _, cl := range f.told().Clusters {
				if len(cl.Withheld) != 0 {
					t.Errorf("told %+v", cl)
				}
			}
			if s, _ := f.core.State(); len(s.Withheld) != 0 {
				t.Errorf("state is %+v", s)
			}
		})
	}
}

func TestCore_TrustsTheHubAgainWhenNothingIsMissing(t *testing.T) {
	f := onlyAtTheBroker(t, State{Withheld: []string{everywhere}}, nil, 1)
	f.locate("200")
	f.clusterIdle("cluster1")
	f.told()
	// An operator approved, and the cluster has confirmed.
	v := f.core.Report(&Report{UID: "uid-m000", Cluster: "cluster1", Name: "m000", Version: 1, Sequence: sequence(1), Deleted: true})
	if v != Taken {
		t.Fatalf("verdict is %s", v)
	}
	f.core.Done(next[Lookup](f, HubLane, "uid-m000"), Result{Err: errNotFound()})
	f.now = f.now.Add(time.Second)
	f.clusterIdle("cluster1")
	f.page(codec.Inventory{})
	f.clusterIdle("cluster1")
	if told := f.told(); told.Position == nil {
		t.Errorf("told %+v", told)
	}
	s, _ := f.core.State()
	if len(s.Withheld) != 0 || s.Settled == nil || s.Settled.ResourceVersion != "200" {
		t.Errorf("state is %+v", s)
	}

	// A store that was told so is believed.
	for _, version := range []string{"200", "201"} {
		f = onlyAtTheBroker(t, s, &codec.HubPosition{UID: "hub", ResourceVersion: version}, 1)
		f.locate("300")
		nextOf[CheckMissing](f, SpecLane, Key{Cluster: "cluster1"})
	}
}

func TestCore_ComparesAgainWhatIsMissingFromANewList(t *testing.T) {
	w := newWork("w", 1)
	f := comparingFixture(t, State{}, w)
	f.page(codec.Inventory{Clusters: []codec.ClusterDigest{digestOf(t, w)}})
	f.locate("200")
	f.tag()
	f.core.WorkMissing(w.UID)
	f.idle(SpecLane, w.UID) // and no deletion
	f.now = f.now.Add(missingDelay)
	f.clusterIdle("cluster1")
	f.page(codec.Inventory{Records: []codec.InventoryRecord{recordOf(t, w, 3)}})
	f.clusterIdle("cluster1") // the hub is asked once more how far it is
	f.locate("90")
	f.clusterIdle("cluster1")
	if s := f.core.Stats(); s.WithheldWorks != 1 {
		t.Errorf("counted %+v", s)
	}
}

func TestCore_ReportsNoClusterWithARefusedWork(t *testing.T) {
	w := newWork("w", 1)
	f := comparingFixture(t, State{}, w)
	f.page(codec.Inventory{})
	f.locate("200")
	f.core.Done(next[Publish](f, SpecLane, w.UID), Result{Err: &transport.Error{Code: transport.CodeInvalid}})
	f.clusterIdle("cluster1")
	if c := f.told(); c.AllClusters || len(c.Clusters) != 0 || c.Position == nil {
		t.Errorf("told %+v, want the position alone", c)
	}
	f.core.WorkSeen(newWork("w", 2))
	f.deliver(w.UID)
	if c := f.told(); !c.AllClusters {
		t.Errorf("told %+v", c)
	}
}

// t1 a deletion is confirmed, t2 the hub does not answer when the finalizer is to go, t3
// the broker goes on with an older store, in which the work lives. Its cluster gets it
// again from there, so the confirmation of t1 no longer counts.
func TestCore_DeletesAgainWhatLivesInAnOlderStore(t *testing.T) {
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
			f := comparingFixture(t, State{}, w)
			f.deliver(w.UID)
			f.core.Report(&Report{UID: w.UID, Cluster: "cluster1", Name: "w", Version: 2, Sequence: sequence(1), Deleted: true})
			f.core.Done(next[RemoveFinalizer](f, HubLane, w.UID), Result{Err: errHubDown()})

			f.core.Disconnected()
			f.core.Connected(transport.Accepted{Protocol: 1, Resync: codec.ResyncCursor})
			f.page(codec.Inventory{Clusters: []codec.ClusterDigest{{Cluster: "cluster1", Digest: codec.Digest{Count: 1}}}})
			f.clusterIdle("cluster1")
			f.page(codec.Inventory{Records: []codec.InventoryRecord{c.record}})
			f.now = f.now.Add(longestHub)
			if !c.again {
				next[RemoveFinalizer](f, HubLane, w.UID)
				return
			}
			if p := f.deliver(w.UID); !p.mark.deleting {
				t.Errorf("published %+v", p)
			}
			f.idle(HubLane, w.UID) // its cluster is asked once more
		})
	}
}

// t1 a work is published, and the call is held up, t2 the hub goes back to where another
// work has its name, t3 that one is published and accepted, t4 the call of t1 arrives: the
// broker takes it for the newer one. Its report is of a work that the hub does not know,
// which is how the second work comes to be published again.
func TestCore_PublishesAgainWhatLostItsName(t *testing.T) {
	w := newWork("w", 1)
	late := recordOf(t, newWork("w", 2, func(o *workv1.ManifestWork) { o.UID = "uid-late" }), 7)
	reported := func(deleted bool) *fixture {
		f := comparingFixture(t, State{}, w)
		f.page(codec.Inventory{})
		f.deliver(w.UID)
		f.core.Report(&Report{UID: "uid-late", Cluster: "cluster1", Name: "w", Version: 2, Sequence: sequence(1), Deleted: deleted})
		f.core.Done(next[Lookup](f, HubLane, "uid-late"), Result{Work: w})
		f.now = f.now.Add(2 * missingDelay)
		f.clusterIdle("cluster1")
		return f
	}
	t.Run("before it was asked", func(*testing.T) {
		f := reported(false)
		f.page(codec.Inventory{Records: []codec.InventoryRecord{late}})
		f.deliver(w.UID)
	})
	t.Run("perhaps afterwards", func(*testing.T) {
		f := reported(false)
		e := nextOf[AskInventory](f, SpecLane, Key{})
		f.core.WorkSeen(newWork("w", 3))
		f.deliver(w.UID)
		f.core.Done(e, Result{})
		f.core.Inventory(codec.Inventory{RequestID: e.ID, Records: []codec.InventoryRecord{late}})
		f.idle(SpecLane, w.UID)
		f.now = f.now.Add(longestSpec)
		f.clusterIdle("cluster1")
		f.page(codec.Inventory{Records: []codec.InventoryRecord{late}})
		f.deliver(w.UID)
	})
	t.Run("it is reported as deleted", func(t *testing.T) {
		if e, asks := reported(true).core.Next(SpecLane, Key{}).(AskInventory); asks {
			t.Errorf("asks for %+v", e.Request)
		}
	})
}
