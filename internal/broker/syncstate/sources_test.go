package syncstate

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// noAgents implements Agents without any agent.
type noAgents struct{}

func (noAgents) Recheck(Change)                            {}
func (noAgents) End(store.Scope, string, *transport.Error) {}

// newState returns an empty state. free is the budget for orphan ids in bytes, of which one client may use
// half.
func newState(free int) *State {
	c := New(&settings.Config{QueueBytes: free, Comparisons: 1, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Now: time.Now})
	c.Connect(noAgents{}, nil)
	return c
}

func newSources() *Sources {
	return newState(0).Sources
}

func placed(cluster string) store.Scope {
	return store.Scope{DataType: codec.ManifestBundles, Cluster: cluster}
}

func owned(owner string) store.Scope {
	return store.Scope{DataType: codec.ManifestBundles, Owner: owner}
}

func recordKey(cluster, id string) store.Key {
	return store.Key{DataType: codec.ManifestBundles, Cluster: cluster, ResourceID: id}
}

// works returns withheld deletions with revisions 1, 2 and so on.
func works(ids ...string) map[string]codec.WithheldDeletion {
	all := map[string]codec.WithheldDeletion{}
	for i, id := range ids {
		all[id] = codec.WithheldDeletion{ResourceID: id, Revision: uint64(i + 1)}
	}
	return all
}

// compares reports clusters as synced; lacks reports withheld deletions on one cluster.
func compares(clusters ...string) (reported []clusterReport) {
	for _, c := range clusters {
		reported = append(reported, clusterReport{cluster: c})
	}
	return reported
}

func hasUnsynced(cluster, reason string, works map[string]codec.WithheldDeletion) []clusterReport {
	return []clusterReport{{cluster, true, reason, works}}
}

// report applies a report.
func (s *Sources) report(t *testing.T, st syncReport) Change {
	t.Helper()
	st.serial = s.now(st.owner)
	ch, ok, err := s.apply(&st)
	if err != nil || !ok {
		t.Fatalf("%+v: %t, %v", st, ok, err)
	}
	return ch
}

// TestTransitions checks each transition of the state machine in sources.go.
func TestTransitions(t *testing.T) {
	for from := unknown; from <= blocked; from++ {
		for what := reportedSynced; what < sourceEventCount; what++ {
			want := map[sourceEvent]sourceState{reportedSynced: synced, withholds: blocked, allSyncedHere: synced, allSyncedOtherSubscription: synced, revoked: unknown, approved: from}[what]
			switch {
			case from == blocked && what == allSyncedHere:
				want = blocked
			case from == blocked && what == approved:
				want = synced
			}
			if got := transitions[from][what]; got != want {
				t.Errorf("%d after %d: %d, want %d", what, from, got, want)
			}
		}
	}
}

// TestSources_ReportsDuringProcessing: a report is discarded if another report or a revocation comes while it
// is processed.
func TestSources_ReportsDuringProcessing(t *testing.T) {
	s := newSources()
	st := &syncReport{owner: owned("s"), clusters: compares("c1")}
	before := s.now(st.owner)
	if !s.begin(st, before) || s.begin(st, before) {
		t.Error("of two at the same time not the first one is begun")
	}
	s.Release("s", "c2")()
	if _, ok, err := s.apply(st); ok || err != nil || s.IsSynced(placed("c1"), "s") {
		t.Errorf("the report is accepted although a cluster was released meanwhile: %v", err)
	}
}

// TestSources_AreBounded: a source can name a limited number of clusters.
func TestSources_AreBounded(t *testing.T) {
	s := newSources()
	st := &syncReport{owner: owned("s"), clusters: make([]clusterReport, maxNamed+1)}
	for i := range st.clusters {
		st.clusters[i].cluster = "c" + string(rune(i))
	}
	if _, _, err := s.apply(st); err == nil {
		t.Error("too many clusters are remembered")
	}
}

func TestSources_WithheldGoesWithItsCause(t *testing.T) {
	s := newSources()
	expect := func(what string, want ...string) {
		t.Helper()
		var got []string
		for _, f := range s.findings(placed("c1")) {
			got = append(got, f.Source+" "+f.ResourceID+" "+f.Detail)
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" || s.works.Load() != int64(len(want)) {
			t.Errorf("%s: %d withheld: %s", what, s.works.Load(), diff)
		}
	}
	expect("nothing")
	s.report(t, syncReport{owner: owned("s"), subscription: "a", clusters: hasUnsynced("c1", "why", works("w1", "w2", "w3"))})
	s.report(t, syncReport{owner: owned("r"), subscription: "a", clusters: hasUnsynced("c1", "other", works("w1"))})
	expect("all", "r w1 other", "s w1 why", "s w2 why", "s w3 why")
	s.changed(&store.Change{Key: recordKey("c1", "w1"), Revision: 1, Part: store.SpecPart}) // the revision that the source has seen
	s.changed(&store.Change{Key: recordKey("c1", "w2"), Revision: 9, Part: store.SpecPart})
	s.changed(&store.Change{Key: recordKey("c1", "w3"), Revision: 3, Part: store.SpecPart, Gone: true})
	expect("changed", "r w1 other", "s w1 why")
	if s.Withholds(recordKey("c1", "w1"), "s", 2) || !s.Withholds(recordKey("c1", "w1"), "s", 1) {
		t.Error("withheld at another revision")
	}
	s.report(t, syncReport{owner: owned("s"), subscription: "a", all: true})
	s.report(t, syncReport{owner: owned("r"), subscription: "a later one", all: true})
	expect("all clusters are compared", "s w1 why")
	if s.IsSynced(placed("c1"), "s") || !s.IsSynced(placed("c1"), "r") {
		t.Error("withheld deletions of the same subscription are forgotten, or those of an earlier one are not")
	}
	s.Approved(placed("c1"), "s", []string{"w1"})
	expect("approved")
	if !s.IsSynced(placed("c1"), "s") {
		t.Error("nothing is withheld any more, and the cluster is not compared")
	}
	s.report(t, syncReport{owner: owned("s"), subscription: "b", clusters: hasUnsynced("c1", "why", works("w1"))})
	s.Revoke(placed("c1"), "s")
	expect("what an operator changed revokes nothing of it", "s w1 why")
	s.Release("s", "c1")()
	expect("released")
	if n := len(s.all[owned("s")].named); n != 1 {
		t.Errorf("%d clusters are remembered, want the released one", n)
	}
}

// TestSources_EqualTheNaiveOnes compares Sources with a model that keeps the last report of each source about
// each cluster, as docs/protocol/README.md describes.
func TestSources_EqualTheNaiveOnes(t *testing.T) {
	type last struct {
		synced       bool
		withheld     bool
		subscription string
	}
	names := []string{"c0", "c1", "c2", "c3"}
	rapid.Check(t, func(t *rapid.T) {
		c := newSources()
		all := map[string]bool{}
		output := map[string]map[string]last{"s0": {}, "s1": {}}
		has := func(owner, cluster string) bool {
			s, ok := output[owner][cluster]
			return ok && s.synced || !ok && all[owner]
		}
		set := func() map[string][]string {
			m := map[string][]string{}
			for _, n := range names {
				for _, owner := range []string{"s0", "s1"} {
					if has(owner, n) {
						m[n] = append(m[n], owner)
					}
				}
			}
			return m
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			owner := rapid.SampledFrom([]string{"s0", "s1"}).Draw(t, "owner")
			o := &syncReport{owner: store.Scope{DataType: codec.ManifestBundles, Owner: owner}, subscription: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "subscription")}
			before := set()
			var changed Change
			if rapid.IntRange(0, 4).Draw(t, "revoke") == 0 {
				n := rapid.SampledFrom(names).Draw(t, "cluster")
				output[owner][n] = last{}
				if c.revoke(o.owner, n, rapid.Bool().Draw(t, "drop")) {
					changed.Clusters = []string{n}
				}
			} else {
				closed := rapid.SliceOfDistinct(rapid.SampledFrom(names), rapid.ID).Draw(t, "compared")
				o.clusters = compares(closed...)
				open := rapid.SliceOfDistinct(rapid.SampledFrom(names), rapid.ID).Draw(t, "open")
				open = slices.DeleteFunc(open, func(n string) bool { return slices.Contains(closed, n) })
				o.all = rapid.Bool().Draw(t, "all")
				for _, n := range open {
					o.clusters = append(o.clusters, hasUnsynced(n, "", works("w"))...)
					output[owner][n] = last{withheld: true, subscription: o.subscription}
				}
				for _, n := range closed {
					output[owner][n] = last{synced: true}
				}
				if o.all {
					all[owner] = true
					for n, s := range output[owner] {
						if !s.withheld || s.subscription != o.subscription {
							delete(output[owner], n)
						}
					}
				}
				var ok bool
				if ok = c.begin(o, c.now(o.owner)); !ok {
					t.Fatal("not begun")
				}
				var err error
				if changed, ok, err = c.apply(o); err != nil || !ok {
					t.Fatal(err, ok)
				}
			}
			after := set()
			for _, n := range names {
				if diff := cmp.Diff(after[n], c.SyncedSources(placed(n))); diff != "" {
					t.Fatalf("%s: %s", n, diff)
				}
				reported := changed.Everywhere || slices.Contains(changed.Clusters, n)
				same := slices.Equal(before[n], after[n])
				if !same && !reported || same && reported && !changed.Everywhere {
					t.Fatalf("%s changed from %q to %q, notified: %+v", n, before[n], after[n], changed)
				}
				for _, owner := range []string{"s0", "s1"} {
					if c.IsSynced(placed(n), owner) != slices.Contains(after[n], owner) {
						t.Fatalf("IsSynced(%s, %s) disagrees", n, owner)
					}
				}
			}
		}
	})
}

// TestDeletions_ForgetClusters: entries of clusters without any agent are removed with their deletions.
func TestDeletions_ForgetClusters(t *testing.T) {
	d := &Deletions{repeated: map[store.Key]uint64{}, clusters: map[store.Scope]*offlineChanges{}}
	k := store.Key{Cluster: "c1", ResourceID: "1"}
	met := &store.DeletedRecord{State: store.Live, Revision: 1, Unchanged: true}
	d.noteUnsentDeletion(k, store.Outcome{Result: store.Confirmed, Revision: 2}, met)
	if len(d.clusters) != 0 {
		t.Error("a deletion that needs no confirmation is kept")
	}
	d.noteUnsentDeletion(k, store.Outcome{Result: store.Accepted, Revision: 2, Replaced: 1}, met)
	if len(d.clusters) != 1 {
		t.Fatal("a deletion that no agent was sent is not kept")
	}
	d.changed(&store.Change{Key: k, Part: store.StatusPart, State: store.ConfirmedTombstone, Revision: 3})
	if len(d.clusters) != 0 {
		t.Error("it is kept after it went")
	}
}
