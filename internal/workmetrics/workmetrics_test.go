package workmetrics

import (
	"math/rand/v2"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

func TestOf(t *testing.T) {
	condition := func(typ string, status metav1.ConditionStatus, generation int64) metav1.Condition {
		return metav1.Condition{Type: typ, Status: status, ObservedGeneration: generation}
	}
	work := func(conditions ...metav1.Condition) *workv1.ManifestWork {
		o := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{Generation: 3}}
		o.Status.Conditions = conditions
		return o
	}
	deleted := work(condition(workv1.WorkApplied, metav1.ConditionTrue, 3))
	deleted.DeletionTimestamp = &metav1.Time{}
	for name, c := range map[string]struct {
		work *workv1.ManifestWork
		want ConditionStates
	}{
		"new":     {work(), ConditionStates{Missing, Missing}},
		"applied": {work(condition(workv1.WorkApplied, metav1.ConditionTrue, 3), condition(workv1.WorkAvailable, metav1.ConditionUnknown, 3)), ConditionStates{True, Unknown}},
		"failing": {work(condition(workv1.WorkAvailable, metav1.ConditionTrue, 2), condition(workv1.WorkApplied, metav1.ConditionFalse, 3)), ConditionStates{False, Outdated}},
		"deleted": {deleted, ConditionStates{Deleting, Deleting}},
	} {
		if got := Of(c.work); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestCounts_Move(t *testing.T) {
	var n Counts
	var a, b ConditionStates
	n.Move(&a, ConditionStates{True, False})
	n.Move(&b, ConditionStates{True, True})
	n.Move(&a, ConditionStates{True, True})
	n.Move(&a, a)
	if n[0][True] != 2 || n[1][True] != 2 || n[1][False] != 0 {
		t.Errorf("counted %v", n)
	}
	n.Move(&a, ConditionStates{})
	n.Move(&b, ConditionStates{})
	if n != (Counts{}) {
		t.Errorf("left %v", n)
	}
	for _, s := range States {
		if s.String() == "" {
			t.Errorf("state %d has no name", s)
		}
	}
}

func TestTurnaround(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	var w VersionLatency
	reported := func(version int64, s int, want time.Duration, first bool) {
		t.Helper()
		if took, ok := w.Reported(version, at(s)); took != want || ok != first {
			t.Errorf("version %d at %d s: %v, %v, want %v, %v", version, s, took, ok, want, first)
		}
	}
	reported(0, 0, 0, false) // a status without a version
	w.Sent(1, 0)
	w.Accepted(1, false, at(1))
	reported(0, 2, 0, false)
	reported(1, 3, 2*time.Second, true)
	reported(1, 4, 0, false) // the same version again

	w.Sent(1, 1) // only the labels of the work have changed
	w.Accepted(1, false, at(5))
	reported(1, 6, 0, false)

	w.Sent(2, 1)
	reported(2, 7, 0, true) // the status is faster than the answer
	w.Accepted(2, false, at(8))
	reported(2, 9, 0, false)

	w.Sent(3, 2)
	w.Accepted(3, true, at(10)) // the broker had the version
	reported(3, 11, 0, false)

	w.Sent(4, 4) // an earlier process has reported the version
	w.Accepted(4, false, at(12))
	reported(4, 13, 0, false)

	w.Sent(5, 4)
	w.Accepted(5, false, at(14))
	w.Sent(6, 4)
	w.Accepted(6, false, at(20))
	reported(5, 21, 0, false) // version 6 has replaced this one
	reported(6, 22, 2*time.Second, true)

	w.Sent(7, 6)
	w.Accepted(7, false, at(30))
	w.Sent(7, 6)
	w.Accepted(7, false, at(40)) // published again to a stateless broker
	reported(7, 41, 11*time.Second, true)
}

// TestCommits_AnyHistory checks that the error of each answer is a fiftieth of the age at most, for any
// history. The memory is bounded.
func TestCommits_AnyHistory(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	now := time.Unix(1000, 0)
	c := NewCommits(7)
	times := map[uint64]time.Time{}
	revision := uint64(7)
	for range 60_000 {
		pause := time.Duration(r.ExpFloat64() * float64(100*time.Microsecond))
		switch r.IntN(1000) {
		case 0:
			pause = time.Duration(r.Int64N(int64(3 * time.Second)))
		case 1:
			pause = time.Duration(r.Int64N(int64(time.Minute)))
		}
		now = now.Add(pause)
		for range 1 + r.IntN(3) {
			revision++
			times[revision] = now
		}
		c.Committed(revision, now)
		if len(c.all) > maxCommits {
			t.Fatalf("%d commits are kept", len(c.all))
		}
		requests := revision - uint64(float64(revision-7)*r.Float64()*r.Float64())
		if requests == 7 {
			continue
		}
		later := now.Add(time.Duration(r.Int64N(int64(time.Second))))
		got, ok := c.Since(requests, later)
		want := later.Sub(times[requests])
		if !ok || got > want || want-got > max(finest, want/50) && got < longest {
			t.Fatalf("revision %d of %d: %v, %v, want %v", requests, revision, got, ok, want)
		}
	}
	c.thin(now)
	if n := len(c.all); n > maxCommits/2 {
		t.Errorf("%d commits are kept after thinning", n)
	}
}

func TestCommits_IgnoresEarlierRevisions(t *testing.T) {
	now := time.Unix(1000, 0)
	c := NewCommits(7)
	if _, ok := c.Since(7, now); ok {
		t.Error("knows when the last revision before it was committed")
	}
	if d, ok := c.Since(8, now); !ok || d != 0 { // the caller is faster than the committer
		t.Errorf("the revision that is committed at this moment: %v, %v", d, ok)
	}
	c.Committed(7, now) // no revision was written
	c.Committed(9, now)
	c.Committed(8, now.Add(time.Second))
	if d, ok := c.Since(8, now.Add(time.Second)); !ok || d != time.Second {
		t.Errorf("got %v, %v", d, ok)
	}
}
