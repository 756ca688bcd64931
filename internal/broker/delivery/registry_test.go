package delivery

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/testkit/complexity"
	"github.com/hawser-io/hawser/pkg/codec"
)

func ofCluster(name string) store.Scope {
	return store.Scope{DataType: codec.ManifestBundles, Cluster: name}
}

// TestRegistry_FindsExactMatchesOnly: after any additions and removals, a change finds the subscriptions of its
// scope and no others.
func TestRegistry_FindsExactMatchesOnly(t *testing.T) {
	scope := rapid.Custom(func(t *rapid.T) store.Scope {
		s := store.Scope{DataType: codec.ManifestBundles}
		if rapid.Bool().Draw(t, "other type") {
			s.DataType.Resource = "others"
		}
		name := rapid.StringMatching(`[ab]`).Draw(t, "name")
		if rapid.Bool().Draw(t, "agent") {
			s.Cluster = name
		} else {
			s.Owner = name
		}
		return s
	})
	rapid.Check(t, func(t *rapid.T) {
		r := newRegistry(0)
		var there []*subscription
		for i := range rapid.IntRange(0, 60).Draw(t, "steps") {
			if len(there) > 0 && rapid.Bool().Draw(t, "leaves") {
				n := rapid.IntRange(0, len(there)-1).Draw(t, "which")
				r.remove(there[n])
				there = slices.Delete(there, n, n+1)
			} else {
				s := &subscription{id: fmt.Sprint(i), scope: scope.Draw(t, "scope")}
				if err := r.add(s, 100); err != nil {
					t.Fatal(err)
				}
				there = append(there, s)
			}
			requested := scope.Draw(t, "asked")
			want := slices.DeleteFunc(slices.Clone(there), func(s *subscription) bool { return s.scope != requested })
			if got := r.of(requested); !slices.Equal(got, want) {
				t.Fatalf("%d subscriptions of %+v, want %d", len(got), requested, len(want))
			}
		}
		for _, s := range there {
			r.remove(s)
		}
		if len(r.ByScope)+len(r.ByID)+len(r.perClient)+len(r.awaited) != 0 {
			t.Fatalf("left when all have unsubscribed: %+v", r.ByScope)
		}
	})
}

// TestRegistry_ChargesTheSubscriber: the cost of adding, removing and finding a subscription does not depend on
// the number of other subscriptions.
func TestRegistry_ChargesTheSubscriber(t *testing.T) {
	complexity.Linear(t, func(n int) func() {
		all := make([]*subscription, n)
		for i := range all {
			all[i] = &subscription{id: fmt.Sprint(i), scope: ofCluster(fmt.Sprint("cluster", i))}
		}
		return func() {
			r := newRegistry(0)
			for _, s := range all {
				if err := r.add(s, n); err != nil {
					t.Fatal(err)
				}
			}
			for _, s := range all {
				if got := r.of(s.scope); len(got) != 1 || got[0] != s {
					t.Errorf("%v: %v", s.scope, got)
				}
			}
			for _, s := range all {
				r.remove(s)
			}
		}
	})
}
