package conditions_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditionrules"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
)

func integer(name string, i int64) workv1.FeedbackValue {
	return workv1.FeedbackValue{Name: name, Value: workv1.FieldValue{Type: workv1.Integer, Integer: &i}}
}

// with sets feedback values.
func with(m conditions.Manifest, values ...workv1.FeedbackValue) conditions.Manifest {
	m.Feedback, m.Values = true, values
	return m
}

// ruled sets outcomes of rules.
func ruled(m conditions.Manifest, outcomes ...conditionrules.Outcome) conditions.Manifest {
	m.Rules, m.RuleTypes = outcomes, nil
	for _, o := range outcomes {
		m.RuleTypes = append(m.RuleTypes, o.Type)
	}
	return m
}

func outcome(typ string, status metav1.ConditionStatus, message string) conditionrules.Outcome {
	return conditionrules.Outcome{Type: typ, Status: status, Reason: "ConditionRuleEvaluated", Message: message}
}

func synced(at metav1.Time) metav1.Condition {
	return one("StatusFeedbackSynced", "True", "StatusFeedbackSynced", "", 0, at)
}

func evaluated(typ string, status metav1.ConditionStatus, message string, generation int64, at metav1.Time) metav1.Condition {
	return one(typ, status, "ConditionRuleEvaluated", message, generation, at)
}

func next(prev workv1.ManifestWorkStatus, generation int64, now time.Time, m ...conditions.Manifest) workv1.ManifestWorkStatus {
	return conditions.Next(prev, generation, m, now)
}

func TestNext_FeedbackValues(t *testing.T) {
	m := present(configMap(0, "a"))
	var none workv1.ManifestWorkStatus
	first := next(none, 1, t0, with(m, integer("x", 1), integer("y", 2)))
	entry := first.ResourceStatus.Manifests[0]
	diff(t, []workv1.FeedbackValue{integer("x", 1), integer("y", 2)}, entry.StatusFeedbacks.Values)
	diff(t, []metav1.Condition{applied(1, s0), isAvailable(s0), synced(s0)}, entry.Conditions)

	t1, s1 := later(time.Minute)
	diff(t, first, next(first, 1, t1, with(m, integer("x", 1), integer("y", 2)))) // equal values change nothing

	for name, values := range map[string][]workv1.FeedbackValue{
		"a value": {integer("x", 1), integer("y", 3)}, "the order": {integer("y", 2), integer("x", 1)}, "one less": {integer("x", 1)}, "none left": nil,
	} {
		t.Run(name, func(t *testing.T) {
			got := next(first, 1, t1, with(m, values...)).ResourceStatus.Manifests[0]
			diff(t, values, got.StatusFeedbacks.Values)
			diff(t, []metav1.Condition{applied(1, s0), isAvailable(s0), synced(s1)}, got.Conditions)
		})
	}
	t.Run("moves to the end", func(t *testing.T) {
		second := next(first, 2, t1, with(m, integer("x", 1), integer("y", 2)))
		t2, s2 := later(2 * time.Minute)
		got := next(second, 2, t2, with(m, integer("x", 2))).ResourceStatus.Manifests[0]
		diff(t, []metav1.Condition{isAvailable(s0), applied(2, s1), synced(s2)}, got.Conditions)
	})
	t.Run("values found so far come with errors", func(t *testing.T) {
		failing := with(m, integer("x", 1))
		failing.FeedbackErrs = []error{errors.New("boom")}
		got := next(first, 1, t1, failing).ResourceStatus.Manifests[0]
		diff(t, []workv1.FeedbackValue{integer("x", 1)}, got.StatusFeedbacks.Values)
		diff(t, one("StatusFeedbackSynced", "False", "StatusFeedbackSyncFailed", "Sync status feedback failed with error boom", 0, s1), got.Conditions[2])
	})
	t.Run("no rules any more", func(t *testing.T) {
		got := next(first, 1, t1, m).ResourceStatus.Manifests[0]
		diff(t, []metav1.Condition{applied(1, s0), isAvailable(s0), noFeedback(s1)}, got.Conditions)
		if got.StatusFeedbacks.Values != nil {
			t.Errorf("got %v", got.StatusFeedbacks.Values)
		}
	})
	t.Run("unreadable", func(t *testing.T) {
		gone := with(m)
		gone.Presence = conditions.Absent
		got := next(first, 1, t1, gone).ResourceStatus.Manifests[0]
		diff(t, entry.StatusFeedbacks, got.StatusFeedbacks)
		diff(t, synced(s0), got.Conditions[2])
	})
}

func TestNext_RuleConditions(t *testing.T) {
	m := present(configMap(0, "a"))
	var none workv1.ManifestWorkStatus
	first := next(none, 1, t0, ruled(m, outcome("Complete", "False", "not yet"), outcome("Sunny", "True", strings.Repeat("é", 40_000))))
	long := strings.ToValidUTF8(strings.Repeat("é", 40_000)[:32<<10-len("… (truncated)")], "") + "… (truncated)"
	diff(t, []metav1.Condition{applied(1, s0), isAvailable(s0), noFeedback(s0), evaluated("Complete", "False", "not yet", 1, s0), evaluated("Sunny", "True", long, 1, s0)},
		first.ResourceStatus.Manifests[0].Conditions)
	aggregated := func(typ string, status metav1.ConditionStatus, message string, generation int64, at metav1.Time) metav1.Condition {
		return one(typ, status, "ConditionRulesAggregated", message, generation, at)
	}
	diff(t, []metav1.Condition{
		one("Applied", "True", "AppliedManifestWorkComplete", "Apply manifest work complete", 1, s0),
		one("Available", "True", "ResourcesAvailable", "All resources are available", 1, s0),
		aggregated("Complete", "False", "not yet", 1, s0), aggregated("Sunny", "True", long, 1, s0),
	}, first.Conditions)

	t1, s1 := later(time.Minute)
	t.Run("in place, and the generation follows", func(t *testing.T) {
		got := next(first, 2, t1, ruled(m, outcome("Complete", "True", "done"), outcome("Sunny", "True", "yes")))
		diff(t, []metav1.Condition{isAvailable(s0), noFeedback(s0), evaluated("Complete", "True", "done", 2, s1), evaluated("Sunny", "True", "yes", 2, s0), applied(2, s1)},
			got.ResourceStatus.Manifests[0].Conditions)
		diff(t, []metav1.Condition{aggregated("Complete", "True", "done", 2, s1), aggregated("Sunny", "True", "yes", 2, s0)}, got.Conditions[2:])
		if !conditions.CompletionOf(got).Work || !conditions.CompletionOf(got).Since(m.Meta).Equal(s1.Time) || conditions.CompletionOf(first).Work || !conditions.CompletionOf(first).Since(m.Meta).IsZero() {
			t.Error("complete manifests are unknown")
		}
	})
	t.Run("of deleted rules they go", func(t *testing.T) {
		got := next(first, 2, t1, ruled(m, outcome("Sunny", "True", "")))
		diff(t, []metav1.Condition{isAvailable(s0), noFeedback(s0), evaluated("Sunny", "True", "", 2, s0), applied(2, s1)}, got.ResourceStatus.Manifests[0].Conditions)
		diff(t, []metav1.Condition{aggregated("Sunny", "True", "Aggregated from 1 manifest conditions", 2, s0)}, got.Conditions[2:])
		got = next(got, 3, t1, m)
		if len(got.Conditions) != 2 || len(got.ResourceStatus.Manifests[0].Conditions) != 3 {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("of an absent object they stay, as observed then", func(t *testing.T) {
		gone := ruled(m, outcome("Sunny", "False", ""))
		gone.Presence = conditions.Absent
		got := next(first, 2, t1, gone)
		diff(t, evaluated("Sunny", "True", long, 1, s0), got.ResourceStatus.Manifests[0].Conditions[2])
		if len(got.ResourceStatus.Manifests[0].Conditions) != 4 {
			t.Error("the condition of a deleted rule is still there")
		}
	})
	t.Run("errors and invalid rules", func(t *testing.T) {
		bad := []conditionrules.Outcome{
			{Type: "A", Status: "False", Reason: "ConditionRuleExpressionError", Message: "no such key: x"},
			{Type: "B", Status: "Unknown", Reason: "ConditionRuleInternalError", Message: "oh"},
			{Type: "ConditionRulesValid", Status: "False", Reason: "ConditionRuleInvalid", Message: "name"},
		}
		got := next(none, 1, t0, ruled(m, bad...))
		for i, o := range bad {
			diff(t, one(o.Type, o.Status, o.Reason, o.Message, 1, s0), got.ResourceStatus.Manifests[0].Conditions[3+i])
		}
		// New conditions of a work are in the order of their types.
		want := []metav1.Condition{aggregated("A", "False", "no such key: x", 1, s0), got.Conditions[2], aggregated("B", "Unknown", "oh", 1, s0), aggregated("ConditionRulesValid", "False", "name", 1, s0)}
		if diff(t, want, got.Conditions[1:]); got.Conditions[2].Type != workv1.WorkAvailable {
			t.Errorf("got %v", got.Conditions)
		}
	})
}

func TestNext_AggregationOfRules(t *testing.T) {
	for name, c := range map[string]struct {
		typ      string
		statuses string // of the manifests: True, False, Unknown; -: the manifest has no condition
		want     metav1.ConditionStatus
		message  string
	}{
		"all":                        {"Complete", "TT", "True", "Aggregated from 2 manifest conditions"},
		"one with a message":         {"Complete", "-T-", "True", "m1"},
		"one not":                    {"Complete", "TFU", "False", "Aggregated from 3 manifest conditions"},
		"one unknown":                {"Degraded", "TU", "Unknown", "Aggregated from 2 manifest conditions"},
		"any custom":                 {"Sunny", "FT", "False", "Aggregated from 2 manifest conditions"},
		"progressing: one":           {"Progressing", "FTU", "True", "Aggregated from 3 manifest conditions"},
		"progressing: one unknown":   {"Progressing", "FU", "Unknown", "Aggregated from 2 manifest conditions"},
		"progressing: none any more": {"Progressing", "F-", "False", "m0"},
	} {
		t.Run(name, func(t *testing.T) {
			var list []conditions.Manifest
			for i, s := range c.statuses {
				m := present(configMap(int32(i), "m"+string(rune('0'+i))))
				if status := map[rune]metav1.ConditionStatus{'T': "True", 'F': "False", 'U': "Unknown"}[s]; status != "" {
					m = ruled(m, outcome(c.typ, status, m.Meta.Name))
				}
				list = append(list, m)
			}
			got := next(workv1.ManifestWorkStatus{}, 1, t0, list...)
			diff(t, one(c.typ, c.want, "ConditionRulesAggregated", c.message, 1, s0), got.Conditions[2])
		})
	}
}

func TestNext_CompleteWork(t *testing.T) {
	a, b, c := configMap(0, "a"), configMap(1, "b"), configMap(2, "c")
	done := outcome("Complete", "True", "done")
	failed := present(b)
	failed.ApplyErr = errors.New("boom")
	first := next(workv1.ManifestWorkStatus{}, 1, t0, ruled(present(a), done), failed)
	held := func(m conditions.Manifest) conditions.Manifest {
		m.ApplySkipped = true
		return m
	}
	t1, _ := later(time.Minute)
	got := next(first, 2, t1, held(ruled(present(a), done)), held(conditions.Manifest{Meta: b, Presence: conditions.Present}), held(conditions.Manifest{Meta: c, Presence: conditions.Absent}))
	want := *first.DeepCopy() // the conditions about applying stay; a manifest that was never applied has no entry
	want.Conditions[1].ObservedGeneration, want.Conditions[2].ObservedGeneration = 2, 2
	want.ResourceStatus.Manifests[0].Conditions[3].ObservedGeneration = 2
	diff(t, want, got)
}

// The conditions of a manifest that is left alone stay.
func TestNext_HeldManifest(t *testing.T) {
	failed := present(configMap(1, "b"))
	failed.ApplyErr = errors.New("boom")
	first := next(workv1.ManifestWorkStatus{}, 1, t0, present(configMap(0, "a")), failed)
	t1, _ := later(time.Minute)
	held := with(present(configMap(1, "b")), integer("x", 1))
	held.ApplySkipped = true
	got := next(first, 1, t1, present(configMap(0, "a")), held)
	diff(t, first.Conditions, got.Conditions)
	diff(t, first.ResourceStatus.Manifests[1].Conditions[0], got.ResourceStatus.Manifests[1].Conditions[0])
	diff(t, []workv1.FeedbackValue{integer("x", 1)}, got.ResourceStatus.Manifests[1].StatusFeedbacks.Values)
}

// A restarted agent knows when a manifest became complete, but has no other history.
func TestNext_CompleteSinceAnEarlierProcess(t *testing.T) {
	t1, s1 := later(time.Hour)
	m := ruled(present(configMap(0, "a")), outcome("Complete", "True", "done"))
	m.CompleteSince = t0
	got := next(workv1.ManifestWorkStatus{}, 1, t1, m)
	diff(t, evaluated("Complete", "True", "done", 1, s0), got.ResourceStatus.Manifests[0].Conditions[3])
	diff(t, one("Complete", "True", "ConditionRulesAggregated", "done", 1, s0), got.Conditions[2])

	m.Presence = conditions.Absent
	got = next(workv1.ManifestWorkStatus{}, 1, t1, m)
	diff(t, []metav1.Condition{
		applied(1, s1), one("Available", "False", "ResourceNotAvailable", "Resource is not available", 0, s1), evaluated("Complete", "True", "Manifest is Complete", 1, s0),
	}, got.ResourceStatus.Manifests[0].Conditions)

	m = ruled(present(configMap(0, "a")), outcome("Complete", "False", "not any more"))
	m.CompleteSince = t0
	got = next(workv1.ManifestWorkStatus{}, 1, t1, m)
	diff(t, evaluated("Complete", "False", "not any more", 1, s1), got.ResourceStatus.Manifests[0].Conditions[3])
}
