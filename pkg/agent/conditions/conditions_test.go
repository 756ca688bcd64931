package conditions_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
)

var (
	t0 = time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)
	s0 = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
)

func later(d time.Duration) (time.Time, metav1.Time) {
	return t0.Add(d), metav1.NewTime(s0.Add(d))
}

func configMap(ordinal int32, name string) workv1.ManifestResourceMeta {
	return workv1.ManifestResourceMeta{Ordinal: ordinal, Version: "v1", Kind: "ConfigMap", Resource: "configmaps", Name: name, Namespace: "default"}
}

func present(m workv1.ManifestResourceMeta) conditions.Manifest {
	return conditions.Manifest{Meta: m, Presence: conditions.Present}
}

func one(typ string, status metav1.ConditionStatus, reason, message string, generation int64, at metav1.Time) metav1.Condition {
	return metav1.Condition{Type: typ, Status: status, Reason: reason, Message: message, ObservedGeneration: generation, LastTransitionTime: at}
}

func applied(generation int64, at metav1.Time) metav1.Condition {
	return one("Applied", "True", "AppliedManifestComplete", "Apply manifest complete", generation, at)
}

func isAvailable(at metav1.Time) metav1.Condition {
	return one("Available", "True", "ResourceAvailable", "Resource is available", 0, at)
}

func noFeedback(at metav1.Time) metav1.Condition {
	return one("StatusFeedbackSynced", "True", "NoStatusFeedbackSynced", "", 0, at)
}

func diff(t *testing.T, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("(-want +got)\n%s", d)
	}
}

// Every manifest condition that this package writes, literally.
func TestNext_ManifestConditions(t *testing.T) {
	gone := errors.New("boom")
	long := strings.Repeat("é", 40_000)
	for name, c := range map[string]struct {
		in   conditions.Manifest
		want []metav1.Condition
	}{
		"applied and there": {
			in:   conditions.Manifest{Presence: conditions.Present},
			want: []metav1.Condition{applied(7, s0), isAvailable(s0), noFeedback(s0)},
		},
		"apply failed, object there": {
			in: conditions.Manifest{Presence: conditions.Present, ApplyErr: gone},
			want: []metav1.Condition{
				one("Applied", "False", "AppliedManifestFailed", "Failed to apply manifest: boom", 7, s0), isAvailable(s0), noFeedback(s0),
			},
		},
		"ignoreFields cannot be processed": {
			in: conditions.Manifest{Presence: conditions.Absent, ApplyErr: fmt.Errorf("%w", &conditions.IgnoreFieldsError{Err: gone})},
			want: []metav1.Condition{
				one("Applied", "False", "AppliedManifestSSAIgnoreFieldError", "Failed to process ignoreFields: boom", 7, s0),
				one("Available", "False", "ResourceNotAvailable", "Resource is not available", 0, s0),
			},
		},
		"object absent: no condition about feedback": {
			in: conditions.Manifest{Presence: conditions.Absent, ApplyErr: gone},
			want: []metav1.Condition{
				one("Applied", "False", "AppliedManifestFailed", "Failed to apply manifest: boom", 7, s0),
				one("Available", "False", "ResourceNotAvailable", "Resource is not available", 0, s0),
			},
		},
		"object unreadable": {
			in: conditions.Manifest{Presence: conditions.Unreadable, ApplyErr: gone, ReadErr: errors.New("no answer")},
			want: []metav1.Condition{
				one("Applied", "False", "AppliedManifestFailed", "Failed to apply manifest: boom", 7, s0),
				one("Available", "Unknown", "FetchingResourceFailed", "Failed to fetch resource: no answer", 0, s0),
			},
		},
		"manifest names no object": {
			in: conditions.Manifest{Presence: conditions.Unidentified, ApplyErr: gone},
			want: []metav1.Condition{
				one("Applied", "False", "AppliedManifestFailed", "Failed to apply manifest: boom", 7, s0),
				one("Available", "Unknown", "IncompleteResourceMeta", "Resource meta is incomplete", 0, s0),
			},
		},
		"one feedback error": {
			in: conditions.Manifest{Presence: conditions.Present, FeedbackErrs: []error{gone}},
			want: []metav1.Condition{
				applied(7, s0), isAvailable(s0),
				one("StatusFeedbackSynced", "False", "StatusFeedbackSyncFailed", "Sync status feedback failed with error boom", 0, s0),
			},
		},
		"several feedback errors, each text once": {
			in: conditions.Manifest{Presence: conditions.Present, FeedbackErrs: []error{gone, errors.New("bang"), gone}},
			want: []metav1.Condition{
				applied(7, s0), isAvailable(s0),
				one("StatusFeedbackSynced", "False", "StatusFeedbackSyncFailed", "Sync status feedback failed with error [boom, bang]", 0, s0),
			},
		},
		"a message fits into what the API takes": {
			in: conditions.Manifest{Presence: conditions.Present, ApplyErr: errors.New(long)},
			want: []metav1.Condition{
				one("Applied", "False", "AppliedManifestFailed", "Failed to apply manifest: "+long[:32_726]+"… (truncated)", 7, s0), isAvailable(s0), noFeedback(s0),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.in.Meta = configMap(0, "a")
			got := conditions.Next(workv1.ManifestWorkStatus{}, 7, []conditions.Manifest{c.in}, t0)
			want := []workv1.ManifestCondition{{ResourceMeta: c.in.Meta, Conditions: c.want}}
			diff(t, want, got.ResourceStatus.Manifests)
		})
	}
}

// Every work condition, literally.
func TestNext_WorkConditions(t *testing.T) {
	failed := errors.New("boom")
	entry := func(ordinal int32, p conditions.Presence, err error) conditions.Manifest {
		return conditions.Manifest{Meta: configMap(ordinal, "a"), Presence: p, ApplyErr: err, ReadErr: failed}
	}
	ok := one("Applied", "True", "AppliedManifestWorkComplete", "Apply manifest work complete", 3, s0)
	bad := func(n, of int) metav1.Condition {
		return one("Applied", "False", "AppliedManifestWorkFailed",
			fmt.Sprintf("failed: ConfigMap default/a: boom; %d of %d manifests failed", n, of), 3, s0)
	}
	for name, c := range map[string]struct {
		in   []conditions.Manifest
		want []metav1.Condition
	}{
		"all well": {
			in:   []conditions.Manifest{entry(0, conditions.Present, nil), entry(1, conditions.Present, nil)},
			want: []metav1.Condition{ok, one("Available", "True", "ResourcesAvailable", "All resources are available", 3, s0)},
		},
		"one failed to apply and exists": {
			in:   []conditions.Manifest{entry(0, conditions.Present, failed), entry(1, conditions.Present, nil)},
			want: []metav1.Condition{bad(1, 2), one("Available", "True", "ResourcesAvailable", "All resources are available", 3, s0)},
		},
		"absent wins over unknown": {
			in:   []conditions.Manifest{entry(0, conditions.Absent, failed), entry(1, conditions.Unreadable, failed), entry(2, conditions.Present, nil)},
			want: []metav1.Condition{bad(2, 3), one("Available", "False", "ResourcesNotAvailable", "failed: ConfigMap default/a: boom; 1 of 3 resources are not available", 3, s0)},
		},
		"unknown": {
			in:   []conditions.Manifest{entry(0, conditions.Unidentified, failed), entry(1, conditions.Unreadable, failed), entry(2, conditions.Present, nil)},
			want: []metav1.Condition{bad(2, 3), one("Available", "Unknown", "ResourcesStatusUnknown", "failed: ConfigMap default/a: boom; 2 of 3 resources have unknown status", 3, s0)},
		},
		"no manifests: nothing is applied": {
			want: []metav1.Condition{one("Available", "Unknown", "ResourcesStatusUnknown", "cannot get any available resource ", 3, s0)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			diff(t, c.want, conditions.Next(workv1.ManifestWorkStatus{}, 3, c.in, t0).Conditions)
		})
	}
}

func TestNext_SameGenerationKeepsPositionAndTransitionTime(t *testing.T) {
	first := conditions.Next(workv1.ManifestWorkStatus{}, 1, []conditions.Manifest{present(configMap(0, "a"))}, t0)
	t1, s1 := later(time.Minute)

	same := conditions.Next(first, 1, []conditions.Manifest{present(configMap(0, "a"))}, t1)
	diff(t, first, same)

	failing := present(configMap(0, "a"))
	failing.ApplyErr = errors.New("boom")
	got := conditions.Next(first, 1, []conditions.Manifest{failing}, t1)
	want := []metav1.Condition{
		one("Applied", "False", "AppliedManifestFailed", "Failed to apply manifest: boom", 1, s1), isAvailable(s0), noFeedback(s0),
	}
	diff(t, want, got.ResourceStatus.Manifests[0].Conditions)

	t2, _ := later(2 * time.Minute)
	failing.ApplyErr = errors.New("another text")
	got = conditions.Next(got, 1, []conditions.Manifest{failing}, t2)
	want[0].Message = "Failed to apply manifest: another text" // the status is the same, so the transition time stays
	diff(t, want, got.ResourceStatus.Manifests[0].Conditions)
}

func TestNext_NewGenerationMovesAppliedToTheEnd(t *testing.T) {
	first := conditions.Next(workv1.ManifestWorkStatus{}, 1, []conditions.Manifest{present(configMap(0, "a"))}, t0)
	t1, s1 := later(time.Minute)
	got := conditions.Next(first, 2, []conditions.Manifest{present(configMap(0, "a"))}, t1)

	diff(t, []metav1.Condition{isAvailable(s0), noFeedback(s0), applied(2, s1)}, got.ResourceStatus.Manifests[0].Conditions)
	diff(t, []metav1.Condition{
		one("Applied", "True", "AppliedManifestWorkComplete", "Apply manifest work complete", 2, s0),
		one("Available", "True", "ResourcesAvailable", "All resources are available", 2, s0),
	}, got.Conditions)
	diff(t, []metav1.Condition{applied(1, s0), isAvailable(s0), noFeedback(s0)}, first.ResourceStatus.Manifests[0].Conditions) // prev is unmodified
}

func TestNext_HistoryFollowsTheObject(t *testing.T) {
	first := conditions.Next(workv1.ManifestWorkStatus{}, 1, []conditions.Manifest{present(configMap(0, "a")), present(configMap(1, "b"))}, t0)
	t1, s1 := later(time.Minute)

	t.Run("moved within the spec", func(t *testing.T) {
		got := conditions.Next(first, 1, []conditions.Manifest{present(configMap(0, "b")), present(configMap(1, "a"))}, t1)
		diff(t, []workv1.ManifestCondition{
			{ResourceMeta: configMap(0, "b"), Conditions: []metav1.Condition{applied(1, s0), isAvailable(s0), noFeedback(s0)}},
			{ResourceMeta: configMap(1, "a"), Conditions: []metav1.Condition{applied(1, s0), isAvailable(s0), noFeedback(s0)}},
		}, got.ResourceStatus.Manifests)
	})
	t.Run("replaced by another object", func(t *testing.T) {
		got := conditions.Next(first, 1, []conditions.Manifest{present(configMap(0, "c"))}, t1)
		diff(t, []workv1.ManifestCondition{
			{ResourceMeta: configMap(0, "c"), Conditions: []metav1.Condition{applied(1, s1), isAvailable(s1), noFeedback(s1)}},
		}, got.ResourceStatus.Manifests)
	})
	t.Run("ambiguous without the index", func(t *testing.T) {
		twice := conditions.Next(workv1.ManifestWorkStatus{}, 1, []conditions.Manifest{present(configMap(0, "a")), present(configMap(1, "a"))}, t0)
		got := conditions.Next(twice, 1, []conditions.Manifest{present(configMap(1, "a")), present(configMap(2, "a"))}, t1)
		diff(t, []metav1.Condition{applied(1, s0), isAvailable(s0), noFeedback(s0)}, got.ResourceStatus.Manifests[0].Conditions)
		diff(t, []metav1.Condition{applied(1, s1), isAvailable(s1), noFeedback(s1)}, got.ResourceStatus.Manifests[1].Conditions)
	})
}

func TestNext_KeepsFeedbackOfDeletedObject(t *testing.T) {
	one64 := int64(1)
	first := conditions.Next(workv1.ManifestWorkStatus{}, 1, []conditions.Manifest{present(configMap(0, "a"))}, t0)
	first.ResourceStatus.Manifests[0].StatusFeedbacks.Values = []workv1.FeedbackValue{{Name: "n", Value: workv1.FieldValue{Type: workv1.Integer, Integer: &one64}}}
	t1, s1 := later(time.Minute)
	got := conditions.Next(first, 1, []conditions.Manifest{{Meta: configMap(0, "a"), Presence: conditions.Absent}}, t1)
	diff(t, workv1.ManifestCondition{
		ResourceMeta:    configMap(0, "a"),
		StatusFeedbacks: first.ResourceStatus.Manifests[0].StatusFeedbacks,
		Conditions: []metav1.Condition{
			applied(1, s0), one("Available", "False", "ResourceNotAvailable", "Resource is not available", 0, s1), noFeedback(s0),
		},
	}, got.ResourceStatus.Manifests[0])
}

func TestDeleting(t *testing.T) {
	first := conditions.Next(workv1.ManifestWorkStatus{}, 1, []conditions.Manifest{present(configMap(0, "a"))}, t0)
	t1, s1 := later(time.Minute)
	got := conditions.Deleting(first, 2, nil, t1)
	want := *first.DeepCopy()
	want.Conditions = append(want.Conditions, one("Deleting", "True", "WorkDeleting", "ManifestWork is being deleted", 2, s1))
	diff(t, want, got)

	t2, _ := later(2 * time.Minute)
	diff(t, want, conditions.Deleting(got, 2, nil, t2))
	diff(t, first, conditions.Next(got, 1, []conditions.Manifest{present(configMap(0, "a"))}, t2)) // created again
}

// While its objects are removed, the conditions about them follow their state. The condition about applying
// them stays.
func TestDeleting_FollowsTheObjects(t *testing.T) {
	a, b := present(configMap(0, "a")), present(configMap(1, "b"))
	first := conditions.Next(workv1.ManifestWorkStatus{}, 1, []conditions.Manifest{a, b}, t0)
	t1, s1 := later(time.Minute)
	gone := conditions.Manifest{Meta: configMap(0, "a"), Presence: conditions.Absent}
	got := conditions.Deleting(first, 2, []conditions.Manifest{gone, b}, t1)
	want := *first.DeepCopy()
	want.Conditions[1] = one("Available", "False", "ResourcesNotAvailable", "1 of 2 resources are not available", 2, s1)
	want.Conditions = append(want.Conditions, one("Deleting", "True", "WorkDeleting", "ManifestWork is being deleted", 2, s1))
	want.ResourceStatus.Manifests[0].Conditions[1] = one("Available", "False", "ResourceNotAvailable", "Resource is not available", 0, s1)
	diff(t, want, got)

	// An agent that started in the meantime does not know which manifests were applied.
	got = conditions.Deleting(workv1.ManifestWorkStatus{}, 2, []conditions.Manifest{gone, b}, t1)
	if n := len(got.Conditions); n != 2 || got.Conditions[0].Type != "Available" || got.Conditions[1].Type != "Deleting" {
		t.Errorf("got %v", got.Conditions)
	}
	for _, e := range got.ResourceStatus.Manifests {
		if e.Conditions[0].Type != "Available" {
			t.Errorf("got %v", e)
		}
	}
}

func TestRejected_KeepsAppliedObjects(t *testing.T) {
	first := conditions.Next(workv1.ManifestWorkStatus{}, 1, []conditions.Manifest{present(configMap(0, "a"))}, t0)
	t1, s1 := later(time.Minute)
	got := conditions.Rejected(first, 2, "no manifests", t1)
	want := *first.DeepCopy()
	want.Conditions[0] = one("Applied", "False", "AppliedManifestWorkFailed", "no manifests", 2, s1)
	diff(t, want, got)
}
