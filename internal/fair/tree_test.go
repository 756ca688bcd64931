package fair_test

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/fair"
)

// leaf is an item of a client.
type leaf struct {
	client, key string
	n           int
}

// TestTree_PopsEachItemOnce checks that each item is popped or removed once, that items of a key keep their order, and
// that parked clients wait.
func TestTree_PopsEachItemOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tree fair.Tree[string, string, int, leaf]
		var want []leaf
		parked := map[string]bool{}
		n := 0
		client, key := rapid.SampledFrom([]string{"a", "b", "c"}), rapid.SampledFrom([]string{"x", "y"})
		count := func(is func(leaf) bool) (n int) {
			for _, l := range want {
				if is(l) {
					n++
				}
			}
			return n
		}
		pop := func(t *rapid.T) {
			c, got, ok := tree.Pop()
			if ok != (count(func(l leaf) bool { return !parked[l.client] }) > 0) {
				t.Fatalf("popped %v of %v, parked: %v", ok, want, parked)
			}
			if !ok {
				return
			}
			first := slices.IndexFunc(want, func(l leaf) bool { return l.client == got.client && l.key == got.key })
			if c != got.client || parked[c] || first < 0 || want[first] != got {
				t.Fatalf("popped %v for %s of %v, parked: %v", got, c, want, parked)
			}
			want = slices.Delete(want, first, first+1)
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				n++
				l := leaf{client.Draw(t, "client"), key.Draw(t, "key"), n}
				tree.Push(l.client, l.key, 0, false, 1, l)
				want = append(want, l)
			},
			"pop": pop,
			"remove": func(t *rapid.T) {
				gone := leaf{client.Draw(t, "client"), key.Draw(t, "key"), rapid.IntRange(1, n+1).Draw(t, "n")}
				at := slices.Index(want, gone)
				if _, ok := tree.Remove(gone.client, gone.key, func(l leaf) bool { return l == gone }); ok != (at >= 0) {
					t.Fatalf("removed %v: %v", gone, ok)
				}
				if at >= 0 {
					want = slices.Delete(want, at, at+1)
				}
			},
			"park": func(t *rapid.T) {
				c := client.Draw(t, "client")
				tree.Park(c)
				parked[c] = true
			},
			"resume": func(t *rapid.T) {
				c := client.Draw(t, "client")
				tree.Resume(c)
				delete(parked, c)
			},
			"": func(t *rapid.T) {
				c, k := client.Draw(t, "client"), key.Draw(t, "key")
				ofClient, ofKey := tree.Len(c, k)
				if all := count(func(l leaf) bool { return l.client == c }); ofClient != all {
					t.Fatalf("client %s has %d items, want %d", c, ofClient, all)
				}
				if all := count(func(l leaf) bool { return l.client == c && l.key == k }); ofKey != all {
					t.Fatalf("key %s of %s has %d items, want %d", k, c, ofKey, all)
				}
			},
		})
		for c := range maps.Clone(parked) {
			tree.Resume(c)
			delete(parked, c)
		}
		for len(want) > 0 {
			pop(t)
		}
	})
}

// TestTree_SharesAmongClientsAndKeys checks that neither a client nor one of its keys delays the others.
func TestTree_SharesAmongClientsAndKeys(t *testing.T) {
	var tree fair.Tree[string, string, int, leaf]
	for n := range 3 {
		tree.Push("many", "flood", 0, false, 10, leaf{"many", "flood", n})
	}
	tree.Push("many", "quiet", 0, false, 10, leaf{"many", "quiet", 3})
	tree.Push("one", "x", 0, false, 10, leaf{"one", "x", 4})
	var got []int
	for _, l, ok := tree.Pop(); ok; _, l, ok = tree.Pop() {
		got = append(got, l.n)
	}
	if want := []int{0, 4, 3, 1, 2}; !slices.Equal(got, want) {
		t.Errorf("popped %v, want %v", got, want)
	}
}
