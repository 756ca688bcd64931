package core

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/workmetrics"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// countsOf counts the works of a core independently.
func countsOf(c *Core) (n workmetrics.Counts) {
	for _, w := range c.index.works {
		if w.hub.object != nil && w.hub.ended == alive {
			var class workmetrics.ConditionStates
			n.Move(&class, workmetrics.Of(w.hub.object))
		}
	}
	return n
}

func TestCore_CountsWorksByCondition(t *testing.T) {
	f := newFixture(t, true)
	f.connect()
	counted := func(applied, missing, outdated, deleting int) {
		t.Helper()
		n := f.core.Stats().Census[0]
		if got, want := []int{n[workmetrics.True], n[workmetrics.Missing], n[workmetrics.Outdated], n[workmetrics.Deleting]}, []int{applied, missing, outdated, deleting}; !slices.Equal(got, want) {
			t.Errorf("applied, missing, outdated and deleting are %v, want %v", got, want)
		}
		if n := f.core.Stats().Census; n != countsOf(f.core) {
			t.Errorf("counted %v, there are %v", n, countsOf(f.core))
		}
	}
	f.seen(newWork("a", 1))
	f.seen(newWork("b", 1, withStatus(applied(1))))
	counted(1, 1, 0, 0)
	f.seen(newWork("b", 2, withStatus(applied(1))))
	counted(0, 1, 1, 0)
	f.missing("uid-b") // one list lacks the work, and the next one has it
	counted(0, 1, 0, 0)
	f.seen(newWork("b", 2, withStatus(applied(1))))
	counted(0, 1, 1, 0)

	f.deliver("uid-a") // the informer need not show our own writes
	f.core.Report(report(newWork("a", 1), 1, applied(1)))
	p := next[PatchStatus](f, HubQueue, "uid-a")
	f.done(p, Result{Work: newWork("a", 1, withStatus(p.Status), version("900"))})
	counted(1, 0, 1, 0)

	f.seen(newWork("a", 1, withStatus(applied(1)), version("901"), deleting))
	counted(0, 0, 1, 1)
	f.deleted("uid-a")
	counted(0, 0, 1, 0)
}

// TestCore_MeasuresTheWayToTheFirstStatus: it measures the time from the broker's acceptance of a version to
// its first status. It does so once for each version that this process published.
func TestCore_MeasuresTheWayToTheFirstStatus(t *testing.T) {
	var took []time.Duration
	f := newFixture(t, true)
	f.core.index.Answered = func(d time.Duration) { took = append(took, d) }
	f.connect()
	measured := func(want ...time.Duration) {
		t.Helper()
		if !slices.Equal(took, want) {
			t.Errorf("measured %v, want %v", took, want)
		}
		took = nil
	}
	n := 0
	reported := func(o *workv1.ManifestWork) {
		n++
		f.core.Report(report(o, n, applied(o.Generation)))
	}
	answer := func(uid types.UID, outcome string) {
		t.Helper()
		f.done(next[Publish](f, BrokerQueue, uid), Result{Receipt: transport.Receipt{Outcome: outcome, Revision: 500}})
	}
	one := newWork("a", 1)
	f.seen(one)
	answer("uid-a", codec.OutcomeAccepted)
	f.now = f.now.Add(3 * time.Second)
	reported(one)
	measured(3 * time.Second)
	f.now = f.now.Add(time.Hour)
	reported(one) // the status on the cluster has changed
	measured()

	two := newWork("a", 2)
	f.seen(two)
	p := next[Publish](f, BrokerQueue, "uid-a")
	reported(two) // the status is faster than the answer to the publish
	f.done(p, Result{Receipt: transport.Receipt{Outcome: codec.OutcomeAccepted, Revision: 501}})
	reported(two)
	measured(0)

	had := newWork("b", 1)
	f.seen(had)
	answer("uid-b", codec.OutcomeUnchanged) // the broker has the version from an earlier process
	reported(had)
	measured()

	known := newWork("c", 4, withStatus(applied(4)))
	f.seen(known)
	answer("uid-c", codec.OutcomeAccepted) // the broker has lost the work, and the hub has its status
	f.now = f.now.Add(time.Hour)
	reported(known)
	measured()
}
