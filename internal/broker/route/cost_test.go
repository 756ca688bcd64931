package route_test

import (
	"fmt"
	"testing"

	"github.com/hawser-io/hawser/internal/broker/route"
	"github.com/hawser-io/hawser/internal/testkit/cost"
	"github.com/hawser-io/hawser/pkg/codec"
)

// TestIndex_CostIsThatOfWhoSubscribed: finding who gets an event costs the same
// however many others are subscribed, and so do coming and going.
func TestIndex_CostIsThatOfWhoSubscribed(t *testing.T) {
	cost.Linear(t, func(n int) func() {
		scopes := make([]route.Scope, n)
		for i := range scopes {
			scopes[i] = route.Scope{DataType: codec.ManifestBundles, Cluster: fmt.Sprint("cluster", i)}
		}
		return func() {
			var x route.Index[int]
			for i, s := range scopes {
				x.Add(s, i)
			}
			for i, s := range scopes {
				if got := x.Get(s); len(got) != 1 || got[0] != i {
					t.Errorf("%v: %v", s, got)
				}
			}
			for i, s := range scopes {
				x.Remove(s, i)
				if got := x.Get(s); len(got) != 0 {
					t.Errorf("%v: %v are left", s, got)
				}
			}
		}
	})
}

// TestMailbox_CostGrowsWithTheWorks that change, not with those that wait.
func TestMailbox_CostGrowsWithTheWorks(t *testing.T) {
	cost.Linear(t, func(n int) func() {
		keys := make([]route.Key, n)
		for i := range keys {
			keys[i] = key(i)
		}
		return func() {
			var m route.Mailbox
			for i, k := range keys {
				m.Answer(k, 1, 0)
				m.Post(keys[i/2], uint64(i+1), route.Flags(i%2)*route.Deletion)
			}
			m.Oldest()
			sent := 0
			for _, ok := m.Next(); ok; _, ok = m.Next() {
				sent++
			}
			if sent != n {
				t.Errorf("%d of %d", sent, n)
			}
		}
	})
}
