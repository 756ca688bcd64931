package broker

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

func placed(cluster string) place { return place{codec.ManifestBundles, cluster} }

func recordKey(cluster, id string) store.Key {
	return store.Key{DataType: codec.ManifestBundles, Cluster: cluster, ResourceID: id}
}

// shownIn is what a ledger has of a place, one line each.
func shownIn(l *ledger, cluster string, now time.Time) (lines []string) {
	found, omitted := l.at(placed(cluster), now)
	names := map[cause]string{causeOrphan: "orphan", causeAhead: "ahead", causeWithheld: "withheld", causeStranger: "stranger"}
	for _, f := range found {
		line := strings.TrimSpace(fmt.Sprintf("%s %s %s %s", names[f.cause], f.source, f.resourceID, f.detail))
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	if omitted > 0 {
		lines = append(lines, fmt.Sprint("omitted ", omitted))
	}
	return lines
}

func TestLedger_EntriesGoWithTheirCause(t *testing.T) {
	l := newLedger()
	works := func(ids ...string) (list []codec.WithheldDeletion) {
		for i, id := range ids {
			list = append(list, codec.WithheldDeletion{ResourceID: id, Revision: uint64(i + 1)})
		}
		return list
	}
	expect := func(what string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, shownIn(l, "c1", at(0))); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	expect("nothing")
	l.list(placed("c1"), []string{"o1", "o2"}, []string{"a1", "a2", "a3"})
	l.withhold(placed("c1"), "s", "sub", "why", works("w1", "w2"))
	l.withhold(placed("c1"), "r", "sub", "other", works("w1"))
	l.refused(placed("c1"), "uid", at(0))
	l.list(placed("c2"), []string{"o1"}, nil)
	expect("all", "orphan o1", "orphan o2", "ahead a1", "ahead a2", "ahead a3", "withheld r w1 other", "withheld s w1 why", "withheld s w2 why", "stranger uid")
	l.changed(recordKey("c1", "o1"), 9, false)
	l.changed(recordKey("c1", "a1"), 9, true)
	l.changed(recordKey("c1", "w1"), 1, false) // it was seen like this
	l.changed(recordKey("c1", "w2"), 9, false)
	l.sentAnyway(recordKey("c1", "a3"))
	expect("changed", "orphan o2", "ahead a2", "withheld r w1 other", "withheld s w1 why", "stranger uid")
	if !l.holdsBack(placed("c1"), "s") || l.holdsBack(placed("c1"), "x") || l.countWithheld() != 2 {
		t.Errorf("%d withheld", l.countWithheld())
	}
	if l.withholds(recordKey("c1", "w1"), "s", 2) || !l.withholds(recordKey("c1", "w1"), "s", 1) {
		t.Error("withheld at another revision")
	}
	l.settle(codec.ManifestBundles, "s", "sub")
	l.settle(codec.ManifestBundles, "r", "a later one")
	l.agrees(placed("c1"))
	l.renamed("c1")
	expect("settled", "orphan o2", "withheld s w1 why")
	l.approved(placed("c1"), "s", []store.Op{{Key: recordKey("c1", "w1")}})
	l.list(placed("c1"), nil, nil)
	expect("the end")
	if got := l.places(""); !slices.Equal(got, []place{placed("c2")}) || len(l.places("c1")) != 0 {
		t.Errorf("places %v", got)
	}
	l.list(placed("c2"), nil, nil)
	if l.entries.Load() != 0 || l.bytes != 0 || len(l.lists)+len(l.withheld)+len(l.strangers) != 0 {
		t.Errorf("%d entries, %d bytes are left over: %+v", l.entries.Load(), l.bytes, l)
	}
}

func TestLedger_ForgetsStrangersThatStayAway(t *testing.T) {
	l := newLedger()
	l.refused(placed("c1"), "uid", at(0))
	if got := shownIn(l, "c1", at(3599)); len(got) != 1 {
		t.Errorf("%q", got)
	}
	if got := shownIn(l, "c1", at(3600)); len(got) != 0 || len(l.places("c1")) != 0 {
		t.Errorf("%q after an hour", got)
	}
}

// TestLedger_IsBounded: an agent that lists without end makes it count, not grow.
func TestLedger_IsBounded(t *testing.T) {
	l := newLedger()
	ids := make([]string, 2000)
	for i := range ids {
		ids[i] = strings.Repeat("x", 1000) + fmt.Sprint(i)
	}
	for range 3 {
		l.list(placed("c0"), ids, ids)
	}
	found, omitted := l.at(placed("c0"), at(0))
	if l.bytes > listedBytes || len(found)+omitted != 2*len(ids) || len(found) < 1000 {
		t.Errorf("%d bytes, %d found, %d omitted", l.bytes, len(found), omitted)
	}
	for i := range 100 {
		l.list(placed(fmt.Sprint("c", i)), ids, nil)
	}
	if l.bytes > ledgerBytes || l.bytes < ledgerBytes-listedBytes {
		t.Errorf("%d bytes of 100 clusters", l.bytes)
	}
	for i := range 100 {
		l.list(placed(fmt.Sprint("c", i)), nil, nil)
	}
	if l.bytes != 0 || l.entries.Load() != 0 {
		t.Errorf("%d bytes, %d entries are left over", l.bytes, l.entries.Load())
	}
}

// TestComparisons_EqualTheNaiveOnes: what every source said last about every
// cluster, kept as it is written in docs/protocol.md.
func TestComparisons_EqualTheNaiveOnes(t *testing.T) {
	type said struct {
		compared     bool
		withheld     bool
		subscription string
	}
	names := []string{"c0", "c1", "c2", "c3"}
	rapid.Check(t, func(t *rapid.T) {
		c := newComparisons()
		all := map[string]bool{}
		last := map[string]map[string]said{"s0": {}, "s1": {}}
		has := func(owner, cluster string) bool {
			s, ok := last[owner][cluster]
			return ok && s.compared || !ok && all[owner]
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
			o := outcome{ownership: ownership{codec.ManifestBundles, owner}, subscription: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "subscription")}
			before := set()
			var changed changes
			if rapid.IntRange(0, 4).Draw(t, "revoke") == 0 {
				n := rapid.SampledFrom(names).Draw(t, "cluster")
				last[owner][n] = said{}
				if c.revoke(o.ownership, n) {
					changed.clusters = []string{n}
				}
			} else {
				o.compared = rapid.SliceOfDistinct(rapid.SampledFrom(names), rapid.ID).Draw(t, "compared")
				o.open = rapid.SliceOfDistinct(rapid.SampledFrom(names), rapid.ID).Draw(t, "open")
				o.open = slices.DeleteFunc(o.open, func(n string) bool { return slices.Contains(o.compared, n) })
				o.all = rapid.Bool().Draw(t, "all")
				for _, n := range o.open {
					last[owner][n] = said{withheld: true, subscription: o.subscription}
				}
				for _, n := range o.compared {
					last[owner][n] = said{compared: true}
				}
				if o.all {
					all[owner] = true
					for n, s := range last[owner] {
						if !s.withheld || s.subscription != o.subscription {
							delete(last[owner], n)
						}
					}
				}
				var ok bool
				if o.begun, ok = c.begin(o.ownership, c.now(o.ownership)); !ok {
					t.Fatal("not begun")
				}
				applied := false
				var err error
				if changed, err = c.apply(o, func() { applied = true }); err != nil || !applied {
					t.Fatal(err, applied)
				}
			}
			after := set()
			for _, n := range names {
				if diff := cmp.Diff(after[n], c.at(placed(n))); diff != "" {
					t.Fatalf("%s: %s", n, diff)
				}
				told := changed.everywhere || slices.Contains(changed.clusters, n)
				same := slices.Equal(before[n], after[n])
				if !same && !told || same && told && !changed.everywhere {
					t.Fatalf("%s changed from %q to %q, told is %+v", n, before[n], after[n], changed)
				}
				for _, owner := range []string{"s0", "s1"} {
					if c.has(placed(n), owner) != slices.Contains(after[n], owner) {
						t.Fatalf("has(%s, %s) disagrees", n, owner)
					}
				}
			}
		}
	})
}
