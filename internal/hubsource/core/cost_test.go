package core

import (
	"fmt"
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/testkit/complexity"
)

// TestCore_CostOfAReport: the cost of a report, of a change and of a deleted work does not depend on the number
// of works.
func TestCore_CostOfAReport(t *testing.T) {
	complexity.Linear(t, func(n int) func() {
		works := make([]*workv1.ManifestWork, n)
		reports := make([]*Report, n)
		for i := range works {
			works[i] = newWork(fmt.Sprint("w", i), 1)
			reports[i] = report(works[i], i+1, applied(1))
		}
		return func() {
			f := newFixture(t, true)
			for _, w := range works {
				f.seen(w)
			}
			for _, r := range reports {
				if v := f.core.Report(r); v != Taken {
					t.Errorf("result is %s", v)
				}
			}
			for _, w := range works {
				f.now = f.now.Add(time.Second) // the cluster has a write budget
				next[PatchStatus](f, HubQueue, w.UID)
			}
		}
	})
}
