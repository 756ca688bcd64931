package syncstate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
)

// shownIn returns the discrepancies of a cluster, one string each.
func shownIn(c *State, cluster string) (lines []string) {
	for _, f := range everyFinding(c, cluster) {
		name := map[Cause]string{Orphan: "orphan", Ahead: "newer", Withheld: "withheld", Quarantined: "quarantined"}[f.Cause]
		line := fmt.Sprint(name, " ", f.ResourceID, f.Detail)
		if f.Omitted > 0 {
			line = fmt.Sprint("omitted ", f.Omitted)
		}
		lines = append(lines, line)
	}
	return lines
}

func everyFinding(c *State, cluster string) (all []Discrepancy) {
	for _, scope := range c.Scopes() {
		if cluster == "" || scope.Cluster == cluster {
			all = append(all, c.Findings(scope)...)
		}
	}
	return all
}

var agent = identity.Identity{Role: identity.Agent, Name: "c1"}

// listed subscribes an agent of a cluster that lists o.
func listed(c *State, cluster string, o Mismatch) *List {
	l := c.Lists.Open(placed(cluster), agent)
	l.Replace(o)
	return l
}

func versions(ids ...string) map[string]int64 {
	all := map[string]int64{}
	for _, id := range ids {
		all[id] = 5
	}
	return all
}

func newer(ids ...string) map[string]AheadWork {
	all := map[string]AheadWork{}
	for _, id := range ids {
		all[id] = AheadWork{Owner: "s", Revision: 3, Listed: 5}
	}
	return all
}

func TestLists_EntriesGoWithTheirCause(t *testing.T) {
	c := newState(1000)
	expect := func(what string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, shownIn(c, "c1")); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	expect("nothing")
	l := listed(c, "c1", Mismatch{versions("o1", "o2"), newer("a1", "a2", "a3"), 100})
	listed(c, "c2", Mismatch{versions("o1"), nil, 100})
	expect("all", "orphan o1", "orphan o2", "newer a1", "newer a2", "newer a3")
	c.Lists.changed(&store.Change{Key: recordKey("c1", "o1"), Revision: 9})
	c.Lists.changed(&store.Change{Key: recordKey("c1", "a1"), Revision: 9, Gone: true})
	l.decided("a3", Force, AheadWork{})
	expect("changed", "orphan o2", "newer a2")
	if diff := cmp.Diff([]string{"o2"}, l.Orphans()); diff != "" || !l.HasNewer() {
		t.Error(diff)
	}
	l.MarkInSync()
	l.Close()
	expect("when its agent has left", "orphan o2")
	if l = listed(c, "c1", Mismatch{nil, nil, 100}); len(c.Lists.byScope[placed("c1")]) != 0 || len(l.Orphans()) != 0 || l.HasNewer() {
		t.Error("a list of which everything fits is remembered")
	}
	l.Close()
	expect("the end")
	if found := everyFinding(c, ""); len(found) != 1 || found[0].Scope.Cluster != "c2" || c.Lists.budget.Used() != 2 {
		t.Errorf("%+v, %d bytes are remembered", found, c.Lists.budget.Used())
	}
}

// TestLists_OfTwoAgents: each agent has its own list; the findings show both.
func TestLists_OfTwoAgents(t *testing.T) {
	c := newState(1000)
	one := listed(c, "c1", Mismatch{versions("o1", "both"), nil, 100})
	listed(c, "c1", Mismatch{versions("o2", "both"), nil, 100})
	if diff := cmp.Diff([]string{"orphan both", "orphan o1", "orphan o2"}, shownIn(c, "c1")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"both", "o1"}, one.Orphans()); diff != "" {
		t.Error(diff)
	}
}

// TestLists_AreBounded: ids above the limit are counted and not stored.
func TestLists_AreBounded(t *testing.T) {
	ids := map[string]int64{}
	for i := range 2000 {
		ids[strings.Repeat("x", 1000)+fmt.Sprint(i)] = 1
	}
	c := newState(3 * MaxListBytes)
	l := c.Lists.Open(placed("c0"), agent)
	for range 3 {
		l.Replace(Mismatch{ids, nil, MaxListBytes})
	}
	if named := len(l.Orphans()); named < 1000 || named+l.omitted != len(ids) || c.Lists.budget.Used() > MaxListBytes {
		t.Errorf("%d are named, %d omitted, %d bytes are remembered", named, l.omitted, c.Lists.budget.Used())
	}
	for i := range 4 {
		listed(c, fmt.Sprint("c", i+1), Mismatch{ids, nil, MaxListBytes})
	}
	if shown := shownIn(c, "c4"); !slices.Equal(shown, []string{"omitted 2000"}) {
		t.Errorf("%q", shown)
	}
}

// TestJudge_ExplainedByAnOlderRecord: a record that comes after the list waits for its source if it is older
// than the listed version. A newer record does not wait.
func TestJudge_ExplainedByAnOlderRecord(t *testing.T) {
	b := newSources(1000)
	c := b.State
	l := listed(c, "c1", Mismatch{versions("w"), newer(), 100})
	record := &store.Meta{Key: recordKey("c1", "w"), State: store.Live, Owner: "s", Version: 4, SpecRevision: 7}
	if d, _ := c.Classify(l, record); d != Send {
		t.Errorf("decision %d about what the list does not explain yet", d)
	}
	c.Lists.changed(&store.Change{Key: record.Key, Revision: 7})
	if d, _ := c.Classify(l, record); d != Wait || !l.HasNewer() {
		t.Errorf("decision %d about the older one", d)
	}
	b.report(t, syncReport{owner: owned("s"), clusters: compares("c1")})
	if d, w := c.Classify(l, record); d != Force || l.HasNewer() || w != (AheadWork{Owner: "s", Version: 4, Revision: 7, Listed: 5}) {
		t.Errorf("decision %d when its source has compared: %+v", d, w)
	}
	if d, _ := c.Classify(l, record); d != Send {
		t.Errorf("decision %d about a decided conflict", d)
	}
}

func TestNames_ForgetAbsentQuarantinedClusters(t *testing.T) {
	c := newState(0)
	now := time.Unix(1000, 0)
	c.Names.cfg.Now = func() time.Time { return now }
	q := quarantinedCluster{UID: "uid", Known: "known", At: now}
	for _, err := range []error{c.Names.give(t.Context(), placed("c1"), "known"), c.Names.quarantine(t.Context(), placed("c1"), q)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(quarantineMemory - 1)
	if got := shownIn(c, "c1"); len(got) != 1 || c.Names.quarantinedAt(placed("c1")) != "uid" {
		t.Errorf("%q", got)
	}
	now = now.Add(1)
	if got := shownIn(c, "c1"); len(got) != 0 || c.Names.quarantinedAt(placed("c1")) != "" {
		t.Errorf("%q after an hour", got)
	}
}
