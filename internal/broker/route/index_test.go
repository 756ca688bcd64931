package route_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/route"
	"github.com/hawser-io/hawser/pkg/codec"
)

func TestIndex_FindsExactMatchesOnly(t *testing.T) {
	other := codec.DataType{Group: "g", Version: "v1", Resource: "r"}
	var x route.Index[string]
	x.Add(route.Scope{DataType: codec.ManifestBundles, Cluster: "c1"}, "agent of c1")
	x.Add(route.Scope{DataType: codec.ManifestBundles, Cluster: "c2"}, "agent of c2")
	x.Add(route.Scope{DataType: codec.ManifestBundles, Owner: "c1"}, "source named c1")
	x.Add(route.Scope{DataType: other, Cluster: "c1"}, "other type")
	for _, c := range []struct {
		scope route.Scope
		want  []string
	}{
		{route.Scope{DataType: codec.ManifestBundles, Cluster: "c1"}, []string{"agent of c1"}},
		{route.Scope{DataType: codec.ManifestBundles, Owner: "c1"}, []string{"source named c1"}},
		{route.Scope{DataType: other, Cluster: "c1"}, []string{"other type"}},
		{route.Scope{DataType: other, Owner: "c1"}, nil},
		{route.Scope{}, nil},
	} {
		if diff := cmp.Diff(c.want, x.Get(c.scope)); diff != "" {
			t.Errorf("%+v: %s", c.scope, diff)
		}
	}
}

func TestIndex_EqualsTheNaiveOne(t *testing.T) {
	type entry struct {
		scope route.Scope
		sub   int
	}
	scope := rapid.Custom(func(t *rapid.T) route.Scope {
		if rapid.Bool().Draw(t, "agent") {
			return route.Scope{DataType: codec.ManifestBundles, Cluster: rapid.StringMatching(`c[0-2]`).Draw(t, "cluster")}
		}
		return route.Scope{DataType: codec.ManifestBundles, Owner: rapid.StringMatching(`s[0-2]`).Draw(t, "owner")}
	})
	rapid.Check(t, func(t *rapid.T) {
		var x route.Index[int]
		naive := map[entry]bool{}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			e := entry{scope.Draw(t, "scope"), rapid.IntRange(0, 4).Draw(t, "subscription")}
			if rapid.Bool().Draw(t, "add") {
				x.Add(e.scope, e.sub)
				naive[e] = true
			} else {
				x.Remove(e.scope, e.sub)
				delete(naive, e)
			}
			var want []int
			for n := range naive {
				if n.scope == e.scope {
					want = append(want, n.sub)
				}
			}
			slices.Sort(want)
			got := slices.Sorted(slices.Values(x.Get(e.scope)))
			if !slices.Equal(got, want) {
				t.Fatalf("%+v: %v, want %v", e.scope, got, want)
			}
		}
	})
}
