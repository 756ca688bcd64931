package syncstate

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// notified implements Agents. It records the clusters whose agents compare again.
type notified struct{ changes []Change }

func (n *notified) Recheck(c Change)                        { n.changes = append(n.changes, c) }
func (*notified) End(store.Scope, string, *transport.Error) {}

// broker is the sync state of one broker. It follows its store when it awaits a revision.
type broker struct {
	*State
	store  store.Store
	agents notified
	at     uint64
}

// newBroker returns a broker over a store. free is the budget for orphan ids in bytes, of which one client may use
// half.
func newBroker(s store.Store, free int) *broker {
	cfg := &settings.Config{
		Store: s, QueueBytes: free, Comparisons: 1, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Now: time.Now,
		NewID: newIDs("id"),
	}
	b := &broker{State: New(cfg), store: s, at: s.Head().Revision}
	b.Connect(&b.agents, nil, b.await)
	return b
}

func (b *broker) await(ctx context.Context, revision uint64) error {
	for b.at < revision {
		changes, err := b.store.Changes(ctx, b.at, 1)
		if err != nil {
			return err
		}
		b.Changed(&changes[0])
		b.at = changes[0].Revision
	}
	return nil
}

func newIDs(prefix string) func() string {
	n := 0
	return func() string {
		n++
		return fmt.Sprint(prefix, n)
	}
}

// newState returns the state of an empty store.
func newState(free int) *State { return newSources(free).State }

func newSources(free int) *broker {
	return newBroker(mem.Open(mem.Options{NewID: newIDs("store")}), free)
}

// commit commits ops, and follows the store.
func (b *broker) commit(t require, ops ...store.Op) {
	t.Helper()
	outcomes, err := b.store.Commit(context.Background(), ops)
	if err == nil {
		err = b.await(context.Background(), outcomes[len(outcomes)-1].Head)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// require is a test.
type require interface {
	Helper()
	Fatal(...any)
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

// report commits a report.
func (b *broker) report(t require, st syncReport) {
	t.Helper()
	ctx := context.Background()
	before, err := b.Sources.serial(ctx, st.owner)
	if err == nil {
		err = b.Sources.conclude(ctx, &st, before)
	}
	if err != nil {
		t.Fatal(err)
	}
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

// TestSources_ReportsDuringProcessing: a report is discarded, with all its rows, if another report or a revocation is
// committed while it is processed.
func TestSources_ReportsDuringProcessing(t *testing.T) {
	for name, meanwhile := range map[string]func(b *broker){
		"report":   func(b *broker) { b.report(t, syncReport{owner: owned("s"), clusters: compares("c2")}) },
		"release":  func(b *broker) { b.commit(t, b.Sources.Release("s", "c2")...) },
		"operator": func(b *broker) { b.commit(t, b.Sources.Revoke(placed("c2"), "s")...) },
	} {
		b := newSources(0)
		before, err := b.Sources.serial(t.Context(), owned("s"))
		if err != nil {
			t.Fatal(err)
		}
		meanwhile(b)
		st := &syncReport{owner: owned("s"), clusters: compares("c1"), position: &codec.HubPosition{UID: "hub"}}
		if err := b.Sources.conclude(t.Context(), st, before); transport.CodeOf(err) != transport.CodeUnavailable || b.Sources.IsSynced(placed("c1"), "s") {
			t.Errorf("%s: the report is accepted: %v", name, err)
		}
		if p, err := b.Sources.LastPosition("s"); p != nil || err != nil {
			t.Errorf("%s: position %v, %v", name, p, err)
		}
	}
}

// TestSources_AreBounded: a source can name a limited number of clusters. If it releases more, it is synced for none
// of those that it does not name.
func TestSources_AreBounded(t *testing.T) {
	b := newSources(0)
	clusters := make([]clusterReport, maxNamed+1)
	for i := range clusters {
		clusters[i].cluster = "c" + string(rune(i))
	}
	if _, err := (&source{}).write(&syncReport{owner: owned("s"), clusters: clusters}, ""); err == nil {
		t.Error("too many clusters are remembered")
	}
	b.report(t, syncReport{owner: owned("s"), all: true})
	b.commit(t, b.Sources.Release("s", strings.Repeat("c", 1024))...)
	if b.Sources.IsSynced(placed("c2"), "s") {
		t.Error("a cluster for whose name a row has no space stays synced")
	}
}

// TestSources_RowsOfAnEarlierIncarnation: in a store that was opened again no source is synced, and nothing is
// withheld. The next reports remove the old rows.
func TestSources_RowsOfAnEarlierIncarnation(t *testing.T) {
	first := mem.Open(mem.Options{NewID: newIDs("one")})
	b := newBroker(first, 0)
	b.report(t, syncReport{owner: owned("s"), subscription: "a", all: true, clusters: hasUnsynced("c1", "why", works("w1"))})
	b.commit(t, b.Sources.Release("s", "c2")...)
	again := newBroker(first, 0)
	if !again.Sources.IsSynced(placed("c3"), "s") || again.Sources.IsSynced(placed("c1"), "s") || len(again.Findings(placed("c1"))) != 1 {
		t.Error("a broker that starts does not know the rows")
	}
	next := newBroker(mem.Open(mem.Options{NewID: newIDs("two"), From: first.Backup()}), 0)
	if next.Sources.IsSynced(placed("c3"), "s") || len(next.Findings(placed("c1"))) > 0 || next.Sources.Withholds(recordKey("c1", "w1"), "s", 1) {
		t.Error("rows of another incarnation count")
	}
	next.report(t, syncReport{owner: owned("s"), subscription: "a", all: true})
	if !next.Sources.IsSynced(placed("c1"), "s") || len(next.store.Bookmarks("sync/")) != 2 || len(next.store.Bookmarks("withheld/")) > 0 {
		t.Errorf("rows %q %q", next.store.Bookmarks("sync/"), next.store.Bookmarks("withheld/"))
	}
}

// TestSources_ManyWithheld: withheld deletions that do not fit into one row are in several. Each broker has all of
// them, and those of the next report.
func TestSources_ManyWithheld(t *testing.T) {
	b := newSources(0)
	other := newBroker(b.store, 0)
	for _, n := range []int{500, 30, 200, 0} {
		all := map[string]codec.WithheldDeletion{}
		for i := range n {
			id := fmt.Sprintf("%0900d", i)
			all[id] = codec.WithheldDeletion{ResourceID: id, Name: id, Revision: uint64(n + i)}
		}
		b.report(t, syncReport{owner: owned("s/t"), subscription: "a", clusters: hasUnsynced("c/1", strings.Repeat("ä", 2000), all)})
		if err := other.await(t.Context(), b.at); err != nil {
			t.Fatal(err)
		}
		for name, x := range map[string]*broker{"one": b, "other": other, "late": newBroker(b.store, 0)} {
			got := map[string]codec.WithheldDeletion{}
			for _, f := range x.Findings(placed("c/1")) {
				got[f.ResourceID] = codec.WithheldDeletion{ResourceID: f.ResourceID, Name: f.Name, Revision: f.Revision}
			}
			if diff := cmp.Diff(all, got); diff != "" {
				t.Errorf("%s, %d: %s", name, n, diff)
			}
		}
	}
}

func TestSources_WithheldGoesWithItsCause(t *testing.T) {
	b := newSources(0)
	s := b.Sources
	expect := func(what string, want ...string) {
		t.Helper()
		var got []string
		for _, f := range b.Findings(placed("c1")) {
			got = append(got, f.Source+" "+f.ResourceID+" "+f.Detail)
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" || s.rows.works.Load() != int64(len(want)) {
			t.Errorf("%s: %d withheld: %s", what, s.rows.works.Load(), diff)
		}
	}
	expect("nothing")
	b.report(t, syncReport{owner: owned("s"), subscription: "a", clusters: hasUnsynced("c1", "why", works("w1", "w2", "w3"))})
	b.report(t, syncReport{owner: owned("r"), subscription: "a", clusters: hasUnsynced("c1", "other", works("w1"))})
	expect("all", "r w1 other", "s w1 why", "s w2 why", "s w3 why")
	b.Changed(&store.Change{Key: recordKey("c1", "w1"), Revision: 1, Part: store.SpecPart}) // the revision that the source has seen
	b.Changed(&store.Change{Key: recordKey("c1", "w2"), Revision: 9, Part: store.SpecPart})
	b.Changed(&store.Change{Key: recordKey("c1", "w3"), Revision: 3, Part: store.SpecPart, Gone: true})
	expect("changed", "r w1 other", "s w1 why")
	if s.Withholds(recordKey("c1", "w1"), "s", 2) || !s.Withholds(recordKey("c1", "w1"), "s", 1) {
		t.Error("withheld at another revision")
	}
	b.report(t, syncReport{owner: owned("s"), subscription: "a", all: true})
	b.report(t, syncReport{owner: owned("r"), subscription: "a later one", all: true})
	expect("all clusters are compared", "s w1 why")
	if s.IsSynced(placed("c1"), "s") || !s.IsSynced(placed("c1"), "r") {
		t.Error("withheld deletions of the same subscription are forgotten, or those of an earlier one are not")
	}
	if err := s.Approved(t.Context(), placed("c1"), "s", []string{"w1"}); err != nil {
		t.Fatal(err)
	}
	expect("approved")
	if !s.IsSynced(placed("c1"), "s") {
		t.Error("nothing is withheld any more, and the cluster is not compared")
	}
	b.report(t, syncReport{owner: owned("s"), subscription: "b", clusters: hasUnsynced("c1", "why", works("w1"))})
	b.commit(t, s.Revoke(placed("c1"), "s")...)
	expect("what an operator changed revokes nothing of it", "s w1 why")
	b.commit(t, s.Release("s", "c1")...)
	expect("released")
	if n := len(s.rows.all[owned("s")].named); n != 1 {
		t.Errorf("%d clusters are remembered, want the released one", n)
	}
}

// TestSources_EqualTheNaiveOnes compares Sources with a model that keeps the last report of each source about
// each cluster, as docs/protocol/README.md describes. Each step happens at one of two brokers over a store; the other
// one follows it before its next step.
func TestSources_EqualTheNaiveOnes(t *testing.T) {
	type last struct {
		synced       bool
		withheld     bool
		subscription string
	}
	names := []string{"c0", "c1", "c2", "c3"}
	rapid.Check(t, func(t *rapid.T) {
		first := newSources(0)
		brokers := []*broker{first, newBroker(first.store, 0)}
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
			b := rapid.SampledFrom(brokers).Draw(t, "broker")
			owner := rapid.SampledFrom([]string{"s0", "s1"}).Draw(t, "owner")
			o := syncReport{owner: owned(owner), subscription: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "subscription")}
			before := set()
			if rapid.IntRange(0, 4).Draw(t, "revoke") == 0 {
				n := rapid.SampledFrom(names).Draw(t, "cluster")
				output[owner][n] = last{}
				b.commit(t, b.Sources.revoke(o.owner, n, rapid.Bool().Draw(t, "drop"))...)
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
				b.report(t, o)
			}
			after := set()
			for i, x := range brokers {
				if err := x.await(context.Background(), first.store.Head().Revision); err != nil {
					t.Fatal(err)
				}
				for _, n := range names {
					if diff := cmp.Diff(after[n], x.Sources.SyncedSources(placed(n))); diff != "" {
						t.Fatalf("%s at %d: %s", n, i, diff)
					}
					reported := slices.ContainsFunc(x.agents.changes, func(c Change) bool { return c.Everywhere || slices.Contains(c.Clusters, n) })
					if !slices.Equal(before[n], after[n]) && !reported {
						t.Fatalf("%s at %d changed from %q to %q, notified: %+v", n, i, before[n], after[n], x.agents.changes)
					}
				}
				x.agents.changes = nil
			}
		}
	})
}

// TestSources_SkippedChange: a broker that lags may miss the row of a cluster, because it was changed again. It does
// not take the source as synced for that cluster.
//
// Scenario:
//
//	t1: a source withholds a deletion on c1, and is synced for all other clusters.
//	t2: the source releases c1.
//	t3: a broker follows the changes up to t1. The row of c1 is not among them.
//
// Result: the source is synced for c2 only.
func TestSources_SkippedChange(t *testing.T) {
	b := newSources(0)
	late := newBroker(b.store, 0)
	b.report(t, syncReport{owner: owned("s"), subscription: "a", all: true, clusters: hasUnsynced("c1", "why", works("w1"))})
	reported := b.at
	b.commit(t, b.Sources.Release("s", "c1")...)
	if err := late.await(t.Context(), reported); err != nil {
		t.Fatal(err)
	}
	if late.Sources.IsSynced(placed("c1"), "s") || !late.Sources.IsSynced(placed("c2"), "s") {
		t.Error("a broker that lags takes a source as synced that never was")
	}
}

// TestParseRow: a name is parsed exactly as it was made, whatever source and cluster are called.
func TestParseRow(t *testing.T) {
	for _, text := range []string{"c", "a/b", "%2F", "ä b", "."} {
		for part := -1; part < 2; part++ {
			want := rowName{owner: owned(text), cluster: text, part: part}
			name := stateRow(want.owner, text)
			if part >= 0 {
				name = withheldRow(want.owner, text, part)
			}
			if got, ok := parseRow(name); !ok || got != want {
				t.Errorf("%q is read as %+v, %v", name, got, ok)
			}
		}
	}
	for _, name := range []string{"", "hub/a", serialRow(owned("s")), "sync/%/v/r/s/c", "withheld/g/v/r/s/c/-1", "sync/g/v/r/s/c/1"} {
		if _, ok := parseRow(name); ok {
			t.Errorf("%q is a row", name)
		}
	}
}

// TestDeletions_ForgetClusters: entries of clusters without any agent are removed with their deletions.
func TestDeletions_ForgetClusters(t *testing.T) {
	d := &Deletions{clusters: map[store.Scope]*offlineChanges{}}
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
