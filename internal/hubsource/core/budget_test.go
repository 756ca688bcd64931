package core

import (
	"fmt"
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"
)

// writesNow executes the writes that are due now, and returns how many of them were statuses of the works.
func writesNow(f *fixture, works []*workv1.ManifestWork) (n int) {
	f.t.Helper()
	for _, w := range works {
		if e, ok := f.core.Next(HubQueue, Key{UID: w.UID}).(PatchStatus); ok {
			o := e.Work.DeepCopy()
			o.Status, o.ResourceVersion = e.Status, fmt.Sprint("9", e.Work.ResourceVersion)
			f.done(e, Result{Work: o})
			f.seen(o)
			n++
		}
	}
	return n
}

// TestStatus_BudgetOfACluster: writes for the statuses of one cluster are limited, and those of another cluster
// go on. Each waiting work is written once, in time, with its latest status.
func TestStatus_BudgetOfACluster(t *testing.T) {
	for name, tc := range map[string]struct {
		size, atOnce, perSecond int
	}{
		"many":  {size: 1 << 10, atOnce: 1000, perSecond: 100},
		"large": {size: 200 << 10, atOnce: 163, perSecond: 20},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, true)
			var flood []*workv1.ManifestWork
			for i := range 1500 {
				flood = append(flood, newWork(fmt.Sprint("w", i), 1))
			}
			quiet := newWork("quiet", 1, func(w *workv1.ManifestWork) { w.Namespace = "cluster2" })
			for _, w := range append(flood, quiet) {
				f.seen(w)
			}
			send := func(n int) {
				for _, w := range flood {
					r := report(w, n, applied(1))
					r.Status.Conditions[0].Message = fmt.Sprint(n)
					r.Size = tc.size
					f.core.Report(r)
				}
			}
			send(1)
			if n := writesNow(f, flood); n != tc.atOnce {
				t.Errorf("%d are written at once, want %d", n, tc.atOnce)
			}
			send(2) // replaces the waiting status of the same work only
			for range 3 {
				f.now = f.now.Add(time.Second)
				if n := writesNow(f, flood); n < tc.perSecond-1 || n > tc.perSecond+1 {
					t.Errorf("%d are written in a second, want %d", n, tc.perSecond)
				}
			}
			f.core.Report(report(quiet, 1, applied(1)))
			if n := writesNow(f, []*workv1.ManifestWork{quiet}); n != 1 {
				t.Error("the status of another cluster waits with them")
			}
		})
	}
}
