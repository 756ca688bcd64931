package quota_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/identity"
)

// TestExceeded_NamesTheFirstLimit checks that the limit of the source comes before that of the cluster. A
// resource that does not increase is never exceeded.
func TestExceeded_NamesTheFirstLimit(t *testing.T) {
	book := quota.NewUsage()
	for _, c := range []string{"c1", "c2"} {
		book.Add(quota.Change{Source: "hub", Cluster: c, By: quota.Amount{Works: 5, Records: 5, Bytes: 50}})
	}
	book.Add(quota.Change{Source: "ci", Cluster: "c1", By: quota.Amount{Works: 2, Records: 60, Bytes: 20, Statuses: 90}})
	work := quota.Amount{Works: 1, Records: 1, Bytes: 10}
	none := identity.Limits{}
	for _, c := range []struct {
		what             string
		source, on       string
		ofSource, ofEach identity.Limits
		more             quota.Amount
		want             quota.Excess
	}{
		{"no limit", "hub", "c1", none, none, work, quota.Excess{}},
		{"room for one", "hub", "c1", identity.Limits{Works: 11, Bytes: 110, Clusters: 2}, identity.Limits{Works: 8, Bytes: 80}, work, quota.Excess{}},
		{"works", "hub", "c1", identity.Limits{Works: 10}, none, work, quota.Excess{Scope: quota.Source, Resource: quota.Works, Limit: 10}},
		{"bytes", "hub", "c1", identity.Limits{Bytes: 109}, none, work, quota.Excess{Scope: quota.Source, Resource: quota.Bytes, Limit: 109}},
		{"bytes of an update", "hub", "c1", identity.Limits{Works: 1, Bytes: 100}, none, quota.Amount{Bytes: 1}, quota.Excess{Scope: quota.Source, Resource: quota.Bytes, Limit: 100}},
		{"a smaller update", "hub", "c1", identity.Limits{Works: 1, Bytes: 1}, identity.Limits{Works: 1, Bytes: 1}, quota.Amount{Bytes: -1}, quota.Excess{}},
		{"another cluster", "hub", "c3", identity.Limits{Clusters: 2}, none, work, quota.Excess{Scope: quota.Source, Resource: quota.Clusters, Limit: 2}},
		{"one that it uses", "hub", "c2", identity.Limits{Clusters: 1}, none, work, quota.Excess{}},
		{"works of a cluster", "ci", "c1", none, identity.Limits{Works: 7}, work, quota.Excess{Scope: quota.Cluster, Resource: quota.Works, Limit: 7}},
		{"bytes of a cluster", "ci", "c1", none, identity.Limits{Bytes: 79}, work, quota.Excess{Scope: quota.Cluster, Resource: quota.Bytes, Limit: 79}},
		{"names of a cluster do not count", "ci", "c3", none, identity.Limits{Clusters: 1}, work, quota.Excess{}},
		{"the source first", "ci", "c1", identity.Limits{Works: 2}, identity.Limits{Works: 1}, work, quota.Excess{Scope: quota.Source, Resource: quota.Works, Limit: 2}},
		{"what is kept of deleted works", "ci", "c1", identity.Limits{Works: 6}, none, quota.Amount{Records: 1}, quota.Excess{Scope: quota.Source, Resource: quota.Records, Limit: 60}},
	} {
		q := &quota.Quota{Source: c.ofSource, Cluster: c.ofEach}
		if got := q.Exceeded(book, c.source, c.on, c.more); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
	q := &quota.Quota{Cluster: identity.Limits{Bytes: 100}}
	if got, want := q.Reported(book, "c1", quota.Amount{Statuses: 11}), (quota.Excess{Scope: quota.Cluster, Resource: quota.Statuses, Limit: 100}); got != want {
		t.Errorf("a status: %+v, want %+v", got, want)
	}
	if got := q.Reported(book, "c1", quota.Amount{Statuses: 10}); got != (quota.Excess{}) {
		t.Errorf("a status that fits: %+v", got)
	}
}

// TestUsage_IsTheSumOfItsChanges checks that only kept changes count.
func TestUsage_IsTheSumOfItsChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom([]string{"a", "b", "c"})
		works := map[[2]string]quota.Amount{} // use by source and cluster
		book := quota.NewUsage()
		for range rapid.IntRange(1, 20).Draw(t, "commits") {
			draft, after := book.Pending(), maps.Clone(works)
			for range rapid.IntRange(0, 5).Draw(t, "changes") {
				at := [2]string{name.Draw(t, "source"), name.Draw(t, "cluster")}
				w := rapid.Int64Range(0, 2).Draw(t, "works")
				now := quota.Amount{Works: w, Records: w + rapid.Int64Range(0, 1).Draw(t, "tombstones"), Bytes: w * rapid.Int64Range(0, 9).Draw(t, "bytes")}
				draft.Add(quota.Change{Source: at[0], Cluster: at[1], By: now.Minus(after[at])})
				after[at] = now
			}
			compare(t, draft, after)
			if rapid.Bool().Draw(t, "kept") {
				draft.Keep()
				works = after
			}
			compare(t, book, works)
			for _, of := range []quota.Scope{quota.Source, quota.Cluster} {
				checkRows(t, book, of, works)
			}
		}
	})
}

// sums returns the total use, by source or by cluster.
func sums(of quota.Scope, works map[[2]string]quota.Amount) map[string]quota.Amount {
	all := map[string]quota.Amount{}
	for at, u := range works {
		n := at[0]
		if of == quota.Cluster {
			n = at[1]
		} else if u.Works > 0 {
			u.Clusters = 1
		}
		all[n] = all[n].Plus(u)
	}
	maps.DeleteFunc(all, func(_ string, u quota.Amount) bool { return u == quota.Amount{} })
	return all
}

func compare(t *rapid.T, u quota.UsageReader, works map[[2]string]quota.Amount) {
	sources, clusters := sums(quota.Source, works), sums(quota.Cluster, works)
	for _, n := range []string{"a", "b", "c"} {
		if got := u.Source(n); got != sources[n] {
			t.Fatalf("source %s has %+v, want %+v", n, got, sources[n])
		}
		if got := u.Cluster(n); got != clusters[n] {
			t.Fatalf("cluster %s has %+v, want %+v", n, got, clusters[n])
		}
		for _, c := range []string{"a", "b", "c"} {
			if got := u.Works(n, c); got != works[[2]string{n, c}].Works {
				t.Fatalf("%s has %d works on %s", n, got, c)
			}
		}
	}
}

func checkRows(t *rapid.T, b *quota.Usage, of quota.Scope, works map[[2]string]quota.Amount) {
	want := sums(of, works)
	got, after := map[string]quota.Amount{}, ""
	var names []string
	for {
		page := b.Rows(of, after, 2)
		for _, r := range page {
			got[r.Name] = r.Amount
			names = append(names, r.Name)
			after = r.Name
		}
		if len(page) < 2 {
			break
		}
	}
	if d := cmp.Diff(want, got); d != "" || !slices.IsSorted(names) || len(names) != len(got) {
		t.Fatalf("rows %v: %s", names, d)
	}
}

// TestTable_HasTheTermsOfEverySource checks the policies of configured sources and of other sources.
func TestTable_HasTheTermsOfEverySource(t *testing.T) {
	table := quota.NewTable(identity.Mapping{
		{CommonName: "a", Role: identity.Source, Name: "small", ClusterPrefixes: []string{"edge-"}, Clusters: []string{"one"}, Quota: identity.Limits{Works: 3}},
		{CommonName: "b", Role: identity.Source, Name: "hub"},
		{CommonName: "c", Role: identity.Viewer, Name: "small"},
	}, identity.Limits{Works: 9})
	show := func(table *quota.Table, name string) string {
		terms := table.Of(name)
		return fmt.Sprint(terms.Quota.Source, terms.Quota.Cluster, terms.AllowedClusters.Covers("one"), terms.AllowedClusters.Covers("edge-7"), terms.AllowedClusters.Covers("two"))
	}
	def := "{1000000 68719476736 65536}"
	for name, want := range map[string]string{
		"small": "{3 68719476736 65536} {9 17179869184 0} true true false",
		"hub":   def + " {9 17179869184 0} true true true",
		"other": def + " {9 17179869184 0} true true true",
	} {
		if got := show(table, name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if got, want := show(nil, "hub"), def+" {100000 17179869184 0} true true true"; got != want {
		t.Errorf("without a table: %s, want %s", got, want)
	}
}
