package conditions_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/feedback"
)

func jsonOf(t interface{ Fatal(...any) }, v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// many returns the results of a reconciliation of n manifests. Every second manifest failed with a text of the
// given length; the others have feedback values of the given size.
func many(n, text, value int) []conditions.Manifest {
	list := make([]conditions.Manifest, n)
	for i := range list {
		list[i] = present(configMap(int32(i), fmt.Sprintf("name-of-an-object-%d", i)))
		if i%2 == 1 {
			list[i].ApplyErr, list[i].Presence = errors.New(strings.Repeat("é<", text/4)), conditions.Absent
		} else if value > 0 {
			raw := `"` + strings.Repeat("v", value-2) + `"`
			list[i].Feedback = true
			list[i].Values = []workv1.FeedbackValue{{Name: "v", Value: workv1.FieldValue{Type: workv1.JsonRaw, JsonRaw: &raw}}}
		}
	}
	return list
}

// TestLimitSize_KeepsImportantConditions checks the size, and the omitted parts in the documented order.
func TestLimitSize_KeepsImportantConditions(t *testing.T) {
	for name, c := range map[string]struct {
		manifests, text, value            int
		conditions, values, words, listed bool // which parts all manifests keep
	}{
		"small":                    {20, 100, 100, true, true, true, true},
		"long messages":            {20, 32 << 10, 100, true, true, true, true},
		"500 with long messages":   {500, 32 << 10, 0, true, true, false, true},
		"200 with large values":    {200, 1000, feedback.MaxRawLength, true, true, true, true},
		"400 of the largest value": {400, 100, feedback.MaxRawLength, true, false, true, true},
		"1,000":                    {1000, 1000, 0, false, true, false, true},
		"5,000":                    {5000, 1000, feedback.MaxRawLength, false, false, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			full := conditions.Next(workv1.ManifestWorkStatus{}, 7, many(c.manifests, c.text, c.value), t0)
			before := jsonOf(t, full)
			got := conditions.LimitSize(workv1.ManifestWorkStatus{}, full, 7)
			size := len(jsonOf(t, got))
			t.Logf("%d bytes, were %d: %s", size, len(before), message(got.Conditions, conditions.TypeStatusTruncated))
			if size > conditions.MaxStatus {
				t.Errorf("%d bytes", size)
			}
			if string(before) != string(jsonOf(t, full)) {
				t.Error("the status was modified")
			}
			truncated := apimeta.IsStatusConditionTrue(got.Conditions, conditions.TypeStatusTruncated)
			if truncated != (len(before) > conditions.MaxStatus) {
				t.Errorf("truncated: %t", truncated)
			}
			if truncated && size < conditions.MaxStatus*3/4 {
				t.Errorf("only %d bytes are left", size)
			}
			if !truncated {
				if diff := cmp.Diff(full, got); diff != "" {
					t.Errorf("changed without need:\n%s", diff)
				}
				return
			}
			if listed := len(got.ResourceStatus.Manifests) == c.manifests; listed != c.listed {
				t.Errorf("%d are listed", len(got.ResourceStatus.Manifests))
			}
			has := map[string]bool{"conditions": true, "values": true, "words": true}
			for i, e := range got.ResourceStatus.Manifests {
				was := full.ResourceStatus.Manifests[i]
				if e.ResourceMeta != was.ResourceMeta {
					t.Fatalf("entry %d is of %+v", i, e.ResourceMeta)
				}
				if e.Conditions == nil {
					t.Fatal("the schema wants a list")
				}
				for _, typ := range []string{workv1.ManifestApplied, workv1.ManifestAvailable} {
					is, want := apimeta.FindStatusCondition(e.Conditions, typ), apimeta.FindStatusCondition(was.Conditions, typ)
					if is == nil {
						has["conditions"] = false
						continue
					}
					if is.Status != want.Status || is.Reason != want.Reason || is.LastTransitionTime != want.LastTransitionTime {
						t.Fatalf("entry %d: %+v, was %+v", i, is, want)
					}
					has["words"] = has["words"] && (is.Status == metav1.ConditionTrue || is.Message != "")
				}
				if len(e.StatusFeedbacks.Values) < len(was.StatusFeedbacks.Values) {
					has["values"] = false
					if c := apimeta.FindStatusCondition(e.Conditions, conditions.TypeStatusFeedbackSynced); c != nil && (c.Status != metav1.ConditionFalse || c.Reason != conditions.ReasonFeedbackLeftOut) {
						t.Fatalf("entry %d does not say that values are missing: %+v", i, c)
					}
				}
			}
			want := map[string]bool{"conditions": c.conditions, "values": c.values, "words": c.words}
			if diff := cmp.Diff(want, has); diff != "" {
				t.Errorf("kept of all (-want +got):\n%s", diff)
			}
			if a := apimeta.FindStatusCondition(got.Conditions, workv1.WorkApplied); a == nil || a.Reason != conditions.ReasonWorkApplyFailed || len(a.Message) < 100 {
				t.Errorf("the work's own Applied is %+v", a)
			}
		})
	}
}

func message(list []metav1.Condition, typ string) string {
	if c := apimeta.FindStatusCondition(list, typ); c != nil {
		return c.Message
	}
	return ""
}

// TestLimitSize_IsQuiet: omitted parts may change without a new status, and the present parts keep their time.
func TestLimitSize_IsQuiet(t *testing.T) {
	manifests := many(500, 100, feedback.MaxRawLength)
	full := conditions.Next(workv1.ManifestWorkStatus{}, 1, manifests, t0)
	first := conditions.LimitSize(workv1.ManifestWorkStatus{}, full, 1)
	now, _ := later(time.Hour)
	for i := range manifests { // all values change, but not their sizes
		for n, v := range manifests[i].Values {
			raw := strings.ReplaceAll(*v.Value.JsonRaw, "v", "w")
			manifests[i].Values = slices.Clone(manifests[i].Values)
			manifests[i].Values[n].Value.JsonRaw = &raw
		}
	}
	second := conditions.LimitSize(first, conditions.Next(full, 1, manifests, now), 1)
	quiet := 0
	for i, e := range second.ResourceStatus.Manifests {
		if was := first.ResourceStatus.Manifests[i]; len(was.StatusFeedbacks.Values) == 0 && len(manifests[i].Values) > 0 {
			quiet++
			if diff := cmp.Diff(was, e); diff != "" {
				t.Fatalf("entry %d changed:\n%s", i, diff)
			}
		}
	}
	if quiet == 0 {
		t.Fatal("no value was left out")
	}
	if diff := cmp.Diff(apimeta.FindStatusCondition(first.Conditions, conditions.TypeStatusTruncated), apimeta.FindStatusCondition(second.Conditions, conditions.TypeStatusTruncated)); diff != "" {
		t.Errorf("the omitted entries changed:\n%s", diff)
	}
	// A smaller status fits again.
	if small := conditions.LimitSize(second, conditions.Next(full, 2, manifests[:10], now), 2); apimeta.FindStatusCondition(small.Conditions, conditions.TypeStatusTruncated) != nil {
		t.Errorf("%+v", small.Conditions)
	}
}

// TestLimitSize_Always: any status fits, the result is deterministic, and a bounded status is bounded no further.
func TestLimitSize_Always(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		status := workv1.ManifestWorkStatus{}
		long := rapid.SampledFrom([]string{"", "x", strings.Repeat("x", 50), strings.Repeat("<", 1000), strings.Repeat("\xff", 8<<10)})
		list := func(label string) (cs []metav1.Condition) {
			for n := range rapid.IntRange(0, 3).Draw(t, label) {
				cs = append(cs, metav1.Condition{
					Type: fmt.Sprint("T", n), Status: rapid.SampledFrom([]metav1.ConditionStatus{"True", "False", "Unknown"}).Draw(t, "status"),
					Reason: rapid.SampledFrom([]string{"A", "ConditionRuleEvaluated"}).Draw(t, "reason"), Message: long.Draw(t, "message"), LastTransitionTime: s0,
				})
			}
			return cs
		}
		status.Conditions = list("conditions")
		for i := range rapid.IntRange(0, 25).Draw(t, "manifests") {
			e := workv1.ManifestCondition{ResourceMeta: configMap(int32(i), "a"), Conditions: list("of a manifest")}
			for range rapid.IntRange(0, 4).Draw(t, "values") {
				text := long.Draw(t, "value")
				e.StatusFeedbacks.Values = append(e.StatusFeedbacks.Values, workv1.FeedbackValue{Name: "v", Value: workv1.FieldValue{Type: workv1.String, String: &text}})
			}
			status.ResourceStatus.Manifests = append(status.ResourceStatus.Manifests, e)
		}
		a, b := conditions.LimitSize(workv1.ManifestWorkStatus{}, status, 1), conditions.LimitSize(workv1.ManifestWorkStatus{}, status, 1)
		if len(jsonOf(t, a)) > conditions.MaxStatus {
			t.Fatalf("%d bytes", len(jsonOf(t, a)))
		}
		if string(jsonOf(t, a)) != string(jsonOf(t, b)) {
			t.Fatal("two statuses for one")
		}
	})
}
