package outbox_test

import (
	"fmt"
	"testing"

	"github.com/hawser-io/hawser/internal/testkit/complexity"
	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/agent/outbox"
	"github.com/hawser-io/hawser/pkg/codec"
)

// TestOutbox_CostOfAStatus does not depend on the number of works. The cost of a request for all statuses is
// that of the sent ones.
func TestOutbox_CostOfAStatus(t *testing.T) {
	s := status("a")
	complexity.Linear(t, func(n int) func() {
		works := make([]*desired.Work, n)
		for i := range works {
			works[i] = work(fmt.Sprint("id", i), 1)
		}
		return func() {
			var b outbox.Outbox
			for _, w := range works {
				if due, err := b.Put(w, s, false); !due || err != nil {
					t.Errorf("due %v, %v", due, err)
				}
			}
			requests := 0
			b.Each(func(id, _ string, _ bool) {
				if b.Request(id, codec.ResyncResponse) {
					requests++
				}
			})
			if requests != n || b.CountDue() != n {
				t.Errorf("%d requested, %d due", requests, b.CountDue())
			}
		}
	})
}
