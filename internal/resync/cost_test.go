package resync_test

import (
	"fmt"
	"testing"

	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/internal/testkit/complexity"
	"github.com/hawser-io/hawser/pkg/codec"
)

func id(n int) string { return fmt.Sprintf("28e8bfbf-1292-522f-999a-%012d", n) }

// TestCompare_CostGrowsWithTheList checks that the cost is linear and not quadratic, for both sides and any
// result.
func TestCompare_CostGrowsWithTheList(t *testing.T) {
	t.Run("specs", func(t *testing.T) {
		complexity.Linear(t, func(n int) func() {
			held := make([]codec.ResourceVersion, n)
			for i := range held {
				held[i] = codec.ResourceVersion{ResourceID: id(i), ResourceVersion: 7}
			}
			return func() {
				s := resync.NewSpecs(held)
				for i := n / 2; i < n; i++ { // the other half has no record
					s.Decide(resync.Spec{ID: id(i), State: resync.Live, Version: int64(i % 9)})
				}
				if o := s.Orphans(); len(o) != n/2 {
					t.Errorf("%d orphans, want %d", len(o), n/2)
				}
			}
		})
	})
	t.Run("statuses", func(t *testing.T) {
		complexity.Linear(t, func(n int) func() {
			list := make([]codec.StatusHash, n)
			for i := range list {
				list[i] = codec.StatusHash{ResourceID: id(i), StatusHash: "h"}
			}
			return func() {
				s := resync.NewStatuses(list)
				for i := range n / 2 {
					s.Needs(resync.Status{ID: id(i), Hash: "other"})
				}
				if u := s.Unknown(); len(u) != n/2 {
					t.Errorf("%d unknown, want %d", len(u), n/2)
				}
			}
		})
	})
	t.Run("works of a source", func(t *testing.T) {
		complexity.Linear(t, func(n int) func() {
			works := make([]resync.Work, n)
			records := make([]codec.InventoryRecord, n)
			for i := range n {
				works[i] = resync.Work{ID: id(i), Name: id(i), Version: 3, Tag: tag(1)}
				records[i] = codec.InventoryRecord{ResourceID: id(i + n/2), Name: id(i + n/2), Version: int64(i % 5), Tag: tag(byte(i % 2)), Revision: 7}
			}
			return func() {
				if p := resync.CompareWorks(works, records); len(p.Missing) != n/2 {
					t.Errorf("%d missing, want %d", len(p.Missing), n/2)
				}
			}
		})
	})
}
