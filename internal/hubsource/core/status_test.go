package core

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/transport"

	"github.com/hawser-io/hawser/pkg/codec"
)

// served is a core with a work that the broker has accepted.
func served(t *testing.T, w *workv1.ManifestWork) *fixture {
	t.Helper()
	f := newFixture(t, true)
	f.seen(w)
	f.connect()
	f.deliver(w.UID)
	return f
}

func TestCore_WritesAReportOnce(t *testing.T) {
	w := newWork("w", 1)
	f := served(t, w)
	if v := f.core.Report(report(w, 1, applied(1))); v != Taken {
		t.Fatalf("result is %s", v)
	}
	e := next[PatchStatus](f, HubQueue, "uid-w")
	if diff := cmp.Diff(answeredAt(f.now, 1, applied(1)), e.Status); diff != "" {
		t.Errorf("status differs (-want +got):\n%s", diff)
	}
	f.idle(HubQueue, "uid-w")
	f.done(e, Result{Work: newWork("w", 1, version("102"), withStatus(e.Status))})
	f.idle(HubQueue, "uid-w")
	f.core.Report(report(w, 2, applied(1))) // the same status again
	f.idle(HubQueue, "uid-w")
	if n := f.core.Stats().Pending; n != 0 {
		t.Errorf("%d reports wait", n)
	}
}

// answeredAt is a status with the condition Delivered=True for a generation, set at now.
func answeredAt(now time.Time, generation int64, s workv1.ManifestWorkStatus) workv1.ManifestWorkStatus {
	s.Conditions = append(slices.Clone(s.Conditions), metav1.Condition{
		Type: ConditionDelivered, Status: metav1.ConditionTrue, Reason: ReasonClusterAnswered, ObservedGeneration: generation,
		Message: fmt.Sprintf("the cluster has answered for generation %d", generation), LastTransitionTime: metav1.NewTime(now),
	})
	return s
}

// TestCore_ReportsAnsweredVersion: Delivered is True for the answered version, also while a later one is in
// flight or refused. It comes with a write that happens anyway.
func TestCore_ReportsAnsweredVersion(t *testing.T) {
	w := newWork("w", 1)
	f := served(t, w)
	began := f.now
	f.idle(HubQueue, w.UID) // the cluster has not answered
	write := func(generation int64, status metav1.ConditionStatus, about int64, since time.Time) {
		t.Helper()
		e := next[PatchStatus](f, HubQueue, w.UID)
		if d := delivered(e.Status); d == nil || d.Status != status || d.ObservedGeneration != about || !d.LastTransitionTime.Time.Equal(since) {
			t.Fatalf("Delivered is %+v, want %s of generation %d since %s", d, status, about, since)
		}
		rv, err := strconv.Atoi(e.Work.ResourceVersion)
		if err != nil {
			t.Fatal(err)
		}
		w = newWork("w", generation, version(fmt.Sprint(rv+1)), withStatus(e.Status))
		f.done(e, Result{Work: w})
		f.seen(w)
		f.idle(HubQueue, w.UID)
		f.now = f.now.Add(time.Minute)
	}
	change := func(generation int64) {
		t.Helper()
		rv, err := strconv.Atoi(w.ResourceVersion)
		if err != nil {
			t.Fatal(err)
		}
		f.seen(newWork("w", generation, version(fmt.Sprint(rv+1)), withStatus(w.Status)))
	}
	f.core.Report(report(w, 1, applied(1)))
	write(1, metav1.ConditionTrue, 1, began)
	change(2)
	f.deliver(w.UID)
	f.idle(HubQueue, w.UID) // the observed generation is behind
	f.core.Report(report(newWork("w", 2), 2, applied(2)))
	write(2, metav1.ConditionTrue, 2, began)
	change(3)
	refused := f.now
	f.done(next[Publish](f, BrokerQueue, w.UID), Result{Err: &transport.Error{Code: transport.CodeInvalid}})
	write(3, metav1.ConditionFalse, 3, refused)
	change(4)
	taken := f.now
	f.deliver(w.UID)
	write(4, metav1.ConditionTrue, 2, taken)
	f.core.Report(report(newWork("w", 4), 3, applied(4)))
	write(4, metav1.ConditionTrue, 4, taken)
}

// TestCore_WritesNothingForAnAnswerAlone: an earlier release wrote statuses without Delivered=True, and the
// clusters report the same statuses again. No work is written before a status changes.
func TestCore_WritesNothingForAnAnswerAlone(t *testing.T) {
	w := newWork("w", 1, withStatus(applied(1)))
	f := served(t, w)
	f.idle(HubQueue, w.UID)
	for n := range 3 {
		if v := f.core.Report(report(w, 1+n, applied(1))); v != Taken {
			t.Fatalf("the report is %s", v)
		}
		f.idle(HubQueue, w.UID)
	}
	if n := f.core.Stats().Pending; n != 0 {
		t.Errorf("%d reports wait", n)
	}
	news := applied(1)
	news.Conditions[0].Status = metav1.ConditionFalse
	f.core.Report(report(w, 9, news))
	if diff := cmp.Diff(answeredAt(f.now, 1, news), next[PatchStatus](f, HubQueue, w.UID).Status); diff != "" {
		t.Errorf("status differs (-want +got):\n%s", diff)
	}
}

func TestCore_NeverGoesBackInReports(t *testing.T) {
	w := newWork("w", 4)
	old := newWork("w", 3)
	f := served(t, w)
	for _, c := range []struct {
		name string
		r    *Report
		want ReportResult
	}{
		{"first, about an older generation", report(old, 10, applied(3)), Taken},
		{"older sequence", report(w, 9, applied(4)), Stale},
		{"same sequence", report(w, 10, applied(4)), Stale},
		{"newer", report(w, 11, applied(4)), Taken},
		{"newer sequence, older generation than taken before", report(old, 12, applied(3)), Stale},
		{"no sequence", &Report{UID: w.UID, Cluster: w.Namespace, Version: 4}, Incomparable},
		{"another cluster", &Report{UID: w.UID, Cluster: "cluster2", Version: 4, Sequence: sequence(13)}, Ignored},
		{"newer again", report(w, 13, applied(4)), Taken},
	} {
		if v := f.core.Report(c.r); v != c.want {
			t.Errorf("%s: result is %s, want %s", c.name, v, c.want)
		}
	}
}

// TestCore_TakesReportsAfterAClockWasDaysAhead: hub-source takes ids of the present, as the broker does.
// Without this: it would show the status of t1 for five days.
//
// Scenario:
//
//	t1: the clocks of broker and agent are five days ahead, and a status arrives with an id of that time.
//	t2: the clocks are corrected. The broker accepts ids of the present, because no client makes an id like
//	that of t1 now.
func TestCore_TakesReportsAfterAClockWasDaysAhead(t *testing.T) {
	w := newWork("w", 1)
	f := served(t, w)
	var ids codec.Sequencer
	send := func(what string, want ReportResult, at time.Time, revision uint64) {
		t.Helper()
		r := report(w, 0, applied(1))
		r.Sequence, r.Revision = ids.UpperBound(at.UnixMilli(), 0), revision
		if v := f.core.Report(r); v != want {
			t.Errorf("%s: result is %s, want %s", what, v, want)
		}
	}
	send("of now", Taken, f.now, 10)
	send("days ahead", Taken, f.now.Add(120*time.Hour), 11)
	send("of now, from before", Stale, f.now.Add(time.Second), 10)
	send("of now, from an OCM broker", Stale, f.now.Add(time.Second), 0)
	send("of now", Taken, f.now.Add(time.Second), 12)
	send("older than that, and later", Stale, f.now, 13) // the broker decides by ids again
	send("an hour ahead", Taken, f.now.Add(time.Hour), 14)
	send("of now, where ids count", Stale, f.now.Add(2*time.Second), 15)
}

func TestCore_TakesNoOlderGenerationThanTheHubShows(t *testing.T) {
	w := newWork("w", 4, withStatus(applied(4)))
	f := served(t, w)
	if v := f.core.Report(report(newWork("w", 3), 1, applied(3))); v != Stale {
		t.Errorf("after a restart, a report about an older generation is %s", v)
	}
	restored := newWork("w", 2, version("50"), withStatus(applied(2))) // the work as in a backup
	f.seen(restored)
	f.beginEpoch(restored)
	if v := f.core.Report(report(newWork("w", 2), 2, applied(2))); v != Taken {
		t.Errorf("after a restore of the hub, a report about its generation is %s", v)
	}
}

func TestCore_HoldsTheNewestReportWhileTheHubIsDown(t *testing.T) {
	w := newWork("w", 1)
	f := served(t, w)
	for n := 1; n <= 50; n++ {
		s := applied(1)
		s.Conditions[0].Message = strings.Repeat("x", n)
		if v := f.core.Report(report(w, n, s)); v != Taken {
			t.Fatalf("result is %s", v)
		}
		if e, ok := f.core.Next(HubQueue, Key{UID: w.UID}).(PatchStatus); ok {
			f.done(e, Result{Err: errHubDown()})
		}
	}
	if n := f.core.Stats().Pending; n != 1 {
		t.Errorf("%d reports wait, want 1", n)
	}
	f.now = f.now.Add(longestHub)
	e := next[PatchStatus](f, HubQueue, "uid-w")
	if n := len(e.Status.Conditions[0].Message); n != 50 {
		t.Errorf("writes report %d, want the newest", n)
	}
}

func TestCore_KeepsReportReceivedDuringPatch(t *testing.T) {
	w := newWork("w", 1)
	f := served(t, w)
	f.core.Report(report(w, 1, applied(1)))
	e := next[PatchStatus](f, HubQueue, "uid-w")
	newer := applied(1)
	newer.Conditions[0].Status = metav1.ConditionFalse
	f.core.Report(report(w, 2, newer))
	f.done(e, Result{Work: newWork("w", 1, version("102"), withStatus(e.Status))})
	e = next[PatchStatus](f, HubQueue, "uid-w")
	if e.Work.ResourceVersion != "102" {
		t.Errorf("patches resource version %s although it wrote 102", e.Work.ResourceVersion)
	}
	if diff := cmp.Diff(answeredAt(f.now, 1, newer), e.Status); diff != "" {
		t.Errorf("status differs (-want +got):\n%s", diff)
	}
}

func TestCore_KeepsDeliveredWhenItMergesAReport(t *testing.T) {
	w := newWork("w", 1)
	f := newFixture(t, true)
	f.seen(w)
	f.connect()
	f.done(next[Publish](f, BrokerQueue, "uid-w"), Result{Err: &transport.Error{Code: transport.CodeInvalid}})
	e := next[PatchStatus](f, HubQueue, "uid-w")
	since := delivered(e.Status).LastTransitionTime
	f.done(e, Result{Work: newWork("w", 1, version("102"), withStatus(e.Status))})
	f.now = f.now.Add(5e9)

	s := applied(1)
	s.Conditions = append(s.Conditions, metav1.Condition{Type: ConditionDelivered, Status: metav1.ConditionTrue, Reason: "SaidTheAgent"})
	f.core.Report(report(w, 1, s))
	e = next[PatchStatus](f, HubQueue, "uid-w")
	var types []string
	for _, c := range e.Status.Conditions {
		types = append(types, c.Type)
	}
	if diff := cmp.Diff([]string{"Available", "Applied", ConditionDelivered}, types); diff != "" {
		t.Errorf("conditions differ (-want +got):\n%s", diff)
	}
	if d := delivered(e.Status); d.Reason != ReasonRejected || !d.LastTransitionTime.Equal(&since) {
		t.Errorf("Delivered is %+v, want the one since %s", d, since)
	}
}

func TestCore_ShowsAReportTheHubRejects(t *testing.T) {
	w := newWork("w", 1, withStatus(applied(1)))
	f := served(t, w)
	bad := applied(1)
	bad.Conditions[0].Type = "not a type"
	f.core.Report(report(w, 1, bad))
	f.done(next[PatchStatus](f, HubQueue, "uid-w"), Result{Err: errInvalid()})
	e := next[PatchStatus](f, HubQueue, "uid-w")
	if d := delivered(e.Status); d == nil || d.Reason != ReasonStatusRejected || len(e.Status.Conditions) != 3 || e.Status.Conditions[0].Type != "Available" {
		t.Fatalf("status is %+v", e.Status)
	}
	f.done(e, Result{Work: newWork("w", 1, version("102"), withStatus(e.Status))})
	f.idle(HubQueue, "uid-w")
	f.core.Report(report(w, 2, applied(1)))
	if e := next[PatchStatus](f, HubQueue, "uid-w"); fault(e.Status) != nil {
		t.Errorf("Delivered stays: %+v", e.Status.Conditions)
	}
}

func TestCore_WaitsForTheGenerationAReportIsAbout(t *testing.T) {
	w := newWork("w", 1)
	f := served(t, w)
	if v := f.core.Report(report(newWork("w", 2), 1, applied(2))); v != Taken {
		t.Fatalf("result is %s", v)
	}
	f.idle(HubQueue, "uid-w")
	f.seen(newWork("w", 2))
	next[PatchStatus](f, HubQueue, "uid-w")
}

func TestCore_LooksUpAWorkTheInformerDoesNotHaveYet(t *testing.T) {
	w := newWork("w", 1)
	f := newFixture(t, true)
	f.connect()
	f.core.Report(report(w, 1, applied(1)))
	e := next[Get](f, HubQueue, "uid-w")
	if e.Namespace != "cluster1" || e.Name != "w" {
		t.Fatalf("looks up %+v", e)
	}
	f.done(e, Result{Work: w})
	next[PatchStatus](f, HubQueue, "uid-w")
}

func TestCore_DropsReportsOfMissingWorks(t *testing.T) {
	other := newWork("w", 1, func(o *workv1.ManifestWork) { o.UID = "another" })
	for name, r := range map[string]Result{"not found": {Err: errNotFound()}, "other uid": {Work: other}} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, true)
			f.core.Report(report(newWork("w", 1), 1, applied(1)))
			f.done(next[Get](f, HubQueue, "uid-w"), r)
			f.idle(HubQueue, "uid-w")
			if s := f.core.Stats(); s.Works != 0 || s.Pending != 0 {
				t.Errorf("still known: %+v", s)
			}
		})
	}
}

func TestCore_IgnoresADeletionTheHubDoesNotWant(t *testing.T) {
	w := newWork("w", 3)
	f := served(t, w)
	deleted := func(n int) *Report {
		return &Report{UID: w.UID, Cluster: "cluster1", Version: 3, Sequence: sequence(n), Deleted: true}
	}
	if v := f.core.Report(deleted(1)); v != UnexpectedDeletion {
		t.Errorf("result is %s", v)
	}
	if v := f.core.Report(deleted(2)); v != Ignored {
		t.Errorf("the second time the result is %s", v)
	}
	f.idle(HubQueue, "uid-w")
	f.seen(newWork("w", 4, deleting)) // the earlier confirmation is not valid for this deletion
	f.deliver("uid-w")
	f.idle(HubQueue, "uid-w")
}

func TestCore_AcceptsDeletionConfirmedByTheBroker(t *testing.T) {
	for _, last := range []string{"0", sequence(7)} { // the possible sequence ids of a confirmation that the broker makes itself
		f := served(t, newWork("w", 3))
		f.core.Report(report(newWork("w", 3), 7, applied(3)))
		f.seen(newWork("w", 4, deleting))
		f.deliver("uid-w")
		if v := f.core.Report(&Report{UID: "uid-w", Cluster: "cluster1", Version: 4, Sequence: last, Deleted: true}); v != Taken {
			t.Errorf("sequence %s: result is %s", last, v)
		}
		next[RemoveFinalizer](f, HubQueue, "uid-w")
	}
}

func TestCore_KeepsADeletionTheInformerIsLateFor(t *testing.T) {
	f := served(t, newWork("w", 3))
	if v := f.core.Report(&Report{UID: "uid-w", Cluster: "cluster1", Version: 4, Sequence: sequence(1), Deleted: true}); v != Taken {
		t.Errorf("result is %s", v)
	}
	f.idle(HubQueue, "uid-w")
	f.seen(newWork("w", 4, deleting))
	next[RemoveFinalizer](f, HubQueue, "uid-w")
}

// Scenario:
//
//	t1: a deletion is published.
//	t2: the broker accepts it; the cluster executes and confirms it.
//	t3: the receipt of t2 arrives, later than the confirmation.
//
// Result: the receipt changes nothing, and the finalizer is removed.
func TestCore_ReleasesWorkConfirmedBeforeTheReceipt(t *testing.T) {
	w := newWork("w", 2, deleting)
	f := comparingFixture(t, SavedState{}, w)
	p := next[Publish](f, BrokerQueue, w.UID)
	f.core.Report(&Report{UID: w.UID, Cluster: "cluster1", Name: "w", Version: 2, Sequence: sequence(1), Deleted: true})
	f.done(p, Result{Receipt: transport.Receipt{Outcome: codec.OutcomeAccepted, Revision: 3}})
	next[RemoveFinalizer](f, HubQueue, w.UID)
}
