package core

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

// cleaning is a fixture with one work, whose core deletes completed works.
func cleaning(t *testing.T, w *workv1.ManifestWork) *fixture {
	t.Helper()
	f := newFixture(t, true)
	f.core.index.CleanUp = true
	f.seen(w)
	f.wakes = nil
	return f
}

func ttl(seconds int64) func(*workv1.ManifestWork) {
	return func(w *workv1.ManifestWork) {
		w.Spec.DeleteOption = &workv1.DeleteOption{TTLSecondsAfterFinished: &seconds}
	}
}

// completed gives a work the condition Complete, with a transition time d after the start of a fixture.
func completed(status metav1.ConditionStatus, d time.Duration) func(*workv1.ManifestWork) {
	return func(w *workv1.ManifestWork) {
		w.Status = applied(w.Generation)
		w.Status.Conditions = append(w.Status.Conditions, metav1.Condition{
			Type: workv1.WorkComplete, Status: status, Reason: "ConditionRulesAggregated",
			LastTransitionTime: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(d)),
		})
	}
}

func ofReplicaSet(w *workv1.ManifestWork) {
	w.Labels = map[string]string{"work.open-cluster-management.io/manifestworkreplicaset": "default.set"}
}

func TestCore_DeletesACompletedWorkWhenItsTimeIsOver(t *testing.T) {
	w := newWork("w", 1, ttl(3600), completed("True", -20*time.Second))
	f := cleaning(t, w)
	f.idle(HubQueue, w.UID)
	if d := f.nextWake(HubQueue); d != time.Hour-20*time.Second {
		t.Fatalf("woken after %s, want the rest of its time", d)
	}
	f.now = f.now.Add(time.Hour - 20*time.Second - time.Millisecond)
	f.idle(HubQueue, w.UID)
	f.now = f.now.Add(time.Millisecond)
	e := next[DeleteCompleted](f, HubQueue, w.UID)
	if e.Work.ResourceVersion != w.ResourceVersion || e.Work.UID != w.UID {
		t.Errorf("deletes %s of %s", e.Work.UID, e.Work.ResourceVersion)
	}
	f.idle(HubQueue, w.UID) // one deletion runs at a time
	f.done(e, Result{})
	f.idle(HubQueue, w.UID) // the informer has to show the deletion first
	f.seen(newWork("w", 2, ttl(3600), completed("True", -20*time.Second), deleting))
	f.idle(HubQueue, w.UID)
}

// A process that has just started does not believe its clock that a work has expired. The clock may be a year
// ahead.
func TestCore_DeletesNoCompletedWorkByItsOwnClock(t *testing.T) {
	for seconds, wait := range map[int64]time.Duration{24 * 3600: trustClock, 60: time.Minute} {
		w := newWork("w", 1, ttl(seconds), completed("True", -365*24*time.Hour))
		f := cleaning(t, w)
		f.idle(HubQueue, w.UID)
		if d := f.nextWake(HubQueue); d != wait {
			t.Fatalf("woken after %s", d)
		}
		f.now = f.now.Add(wait)
		next[DeleteCompleted](f, HubQueue, w.UID)
	}
}

// The informer may be faster than the answer; then the next step does not wait.
func TestCore_ContinuesAtOnceAfterDeletion(t *testing.T) {
	w := newWork("w", 1, ttl(0), completed("True", -time.Hour))
	f := cleaning(t, w)
	f.connect()
	f.deliver(w.UID)
	e := next[DeleteCompleted](f, HubQueue, w.UID)
	gone := newWork("w", 2, ttl(0), completed("True", -time.Hour), deleting)
	f.seen(gone)
	f.done(e, Result{})
	r := report(gone, 1, workv1.ManifestWorkStatus{})
	r.Deleted = true
	f.core.Report(r)
	next[RemoveFinalizer](f, HubQueue, w.UID)
}

func TestCore_DeletesOnlyCompletedExpiredWorks(t *testing.T) {
	ago := completed("True", -time.Hour)
	for name, tc := range map[string]struct {
		change []func(*workv1.ManifestWork)
		off    bool
		want   bool
	}{
		"its time is over":        {change: []func(*workv1.ManifestWork){ttl(60), ago}, want: true},
		"0 is at once":            {change: []func(*workv1.ManifestWork){ttl(0), completed("True", 0)}, want: true},
		"below 0 is at once":      {change: []func(*workv1.ManifestWork){ttl(-5), completed("True", 0)}, want: true},
		"spec changed since":      {change: []func(*workv1.ManifestWork){ago, ttl(60), func(w *workv1.ManifestWork) { w.Generation = 7 }}, want: true},
		"no time to live":         {change: []func(*workv1.ManifestWork){ago}},
		"delete options only":     {change: []func(*workv1.ManifestWork){ago, func(w *workv1.ManifestWork) { w.Spec.DeleteOption = &workv1.DeleteOption{} }}},
		"not complete":            {change: []func(*workv1.ManifestWork){ttl(0), completed("False", -time.Hour)}},
		"no Complete condition":   {change: []func(*workv1.ManifestWork){ttl(0), withStatus(applied(1))}},
		"made by a replica set":   {change: []func(*workv1.ManifestWork){ttl(0), ago, ofReplicaSet}},
		"being deleted already":   {change: []func(*workv1.ManifestWork){ttl(0), ago, deleting}},
		"longer than a lifetime":  {change: []func(*workv1.ManifestWork){ttl(1 << 62), ago}},
		"the gate is off":         {change: []func(*workv1.ManifestWork){ttl(60), ago}, off: true},
		"its time is not over":    {change: []func(*workv1.ManifestWork){ttl(4201), ago}},
		"it will complete in 1 h": {change: []func(*workv1.ManifestWork){ttl(0), completed("True", time.Hour)}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWork("w", 1, tc.change...)
			f := cleaning(t, w)
			f.core.index.CleanUp = !tc.off
			e, ok := f.core.Next(HubQueue, Key{UID: w.UID}).(DeleteCompleted)
			if !ok {
				f.now = f.now.Add(trustClock)
				e, ok = f.core.Next(HubQueue, Key{UID: w.UID}).(DeleteCompleted)
			}
			if ok != tc.want {
				t.Errorf("next is %+v, want a deletion: %t", e, tc.want)
			}
		})
	}
}

// Works of clusters that are not served are not cleaned up.
func TestCore_CleansUpOnlyServedWorks(t *testing.T) {
	w := newWork("w", 1, ttl(0), completed("True", -time.Hour))
	f := newFixture(t, false)
	f.core.index.CleanUp = true
	f.seen(w)
	f.idle(HubQueue, w.UID)
	f.selected(w.Namespace)
	next[DeleteCompleted](f, HubQueue, w.UID)
}

// A waiting report is written first: it may report that the work is no longer complete.
func TestCore_WritesAReportBeforeItCleansUp(t *testing.T) {
	w := newWork("w", 1, ttl(0), completed("True", -time.Hour))
	f := cleaning(t, w)
	f.core.Report(report(w, 1, applied(1)))
	p := next[PatchStatus](f, HubQueue, w.UID)
	f.done(p, Result{Work: newWork("w", 1, ttl(0), version("102"), withStatus(p.Status))})
	f.idle(HubQueue, w.UID)
}

// A work that changes during its clean-up is not deleted: the hub returns a conflict, and the state that the
// informer shows then decides.
func TestCore_KeepsWorkChangedDuringCleanup(t *testing.T) {
	w := newWork("w", 1, ttl(0), completed("True", -time.Hour))
	f := cleaning(t, w)
	f.done(next[DeleteCompleted](f, HubQueue, w.UID), Result{Err: errConflict()})
	f.idle(HubQueue, w.UID)
	f.seen(newWork("w", 2, ttl(7300), completed("True", -time.Hour)))
	f.wakes = nil
	f.idle(HubQueue, w.UID)
	if d := f.nextWake(HubQueue); d != 3700*time.Second {
		t.Errorf("woken after %s", d)
	}
	f.seen(newWork("w", 3, ttl(10), completed("True", -time.Hour)))
	f.idle(HubQueue, w.UID)
	f.now = f.now.Add(10 * time.Second)
	if e := next[DeleteCompleted](f, HubQueue, w.UID); e.Work.Generation != 3 {
		t.Errorf("deletes %+v", e.Work)
	}
}

func TestCore_TriesADeletionAgain(t *testing.T) {
	w := newWork("w", 1, ttl(0), completed("True", -time.Hour))
	f := cleaning(t, w)
	f.core.index.setSpecProblem(f.core.index.works[w.UID], newProblem(w, ReasonTooLarge, "m"))
	p := next[PatchStatus](f, HubQueue, w.UID) // another reason to check the status in every step
	f.seen(newWork("w", 1, ttl(0), version("102"), withStatus(p.Status)))
	f.done(p, Result{Work: newWork("w", 1, ttl(0), version("102"), withStatus(p.Status))})
	var last time.Duration
	for range 10 {
		f.done(next[DeleteCompleted](f, HubQueue, w.UID), Result{Err: errHubDown()})
		f.wakes = nil
		f.idle(HubQueue, w.UID)
		d := f.nextWake(HubQueue)
		if d < last || d > longestHub {
			t.Fatalf("tried again after %s, then after %s", last, d)
		}
		last = d
		f.now = f.now.Add(d)
	}
	if last < longestHub/2 {
		t.Errorf("the tenth attempt is to come after %s", last)
	}
	f.done(next[DeleteCompleted](f, HubQueue, w.UID), Result{Err: errNotFound()})
	f.idle(HubQueue, w.UID)
}
