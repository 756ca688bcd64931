package deliveryqueue_test

import (
	"testing"

	"github.com/hawser-io/hawser/internal/broker/deliveryqueue"
	"github.com/hawser-io/hawser/internal/testkit/complexity"
)

// TestQueue_CostGrowsWithTheWorks: the cost depends on the number of works that change, not on those that wait.
func TestQueue_CostGrowsWithTheWorks(t *testing.T) {
	complexity.Linear(t, func(n int) func() {
		keys := make([]deliveryqueue.Key, n)
		for i := range keys {
			keys[i] = key(i)
		}
		return func() {
			var m deliveryqueue.Queue
			for i, k := range keys {
				m.Answer(k, 1, 0)
				m.Post(keys[i/2], uint64(i+1), deliveryqueue.Flags(i%2)*deliveryqueue.Deletion)
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
