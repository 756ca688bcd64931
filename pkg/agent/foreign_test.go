package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
)

// A field that another manager keeps setting is removed three times. Then it is left alone, with a condition
// that names it. From then on there is one write attempt per hour, and the reads are bounded.
func TestCore_FieldOfAnotherManagerIsLeftAlone(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"default"},"spec":{"paused":true}}`)
	r.apply(w)
	seconds := func() any {
		return r.f.Look(r.ref("Deployment", "web")).Object["spec"].(map[string]any)["minReadySeconds"]
	}
	contested := func() *metav1.Condition {
		return apimeta.FindStatusCondition(r.statuses["w-1"].Status.ResourceStatus.Manifests[0].Conditions, conditions.TypeContested)
	}
	set := func(n int64) {
		r.theirs(map[string]any{"minReadySeconds": n})
		r.settle(2 * time.Second)
	}
	for i := range 3 {
		set(7)
		if c := contested(); seconds() != nil || c != nil {
			t.Fatalf("fight %d: got %v, %v", i+1, seconds(), c)
		}
	}
	set(7)
	const message = "Fields that the manifest does not have stay on the object, since removing them did not last: .spec.minReadySeconds (set by theirs). " +
		"Put them into the manifest, or use update strategy ServerSideApply, with which several managers share an object"
	if c := contested(); c == nil || c.Status != metav1.ConditionTrue || c.Reason != "FieldsOfOtherManagersStay" || c.Message != message || c.ObservedGeneration != 1 {
		t.Fatalf("got %v", c)
	}
	r.wantApplied(metav1.ConditionTrue, "Apply manifest complete")
	r.requests()
	for n := range int64(100) {
		r.theirs(map[string]any{"minReadySeconds": 8 + n})
		r.settle(100 * time.Millisecond)
	}
	r.settle(10 * time.Second)
	calls := r.requests()
	if slices.ContainsFunc(calls, func(c string) bool { return !strings.HasPrefix(c, "get ") }) || len(calls) > 50 || seconds() != int64(107) {
		t.Errorf("got %d calls, %v: %v", len(calls), seconds(), calls)
	}

	r.settle(2 * time.Hour) // the write was tried once more; the field is not set again
	if c := contested(); seconds() != nil || c != nil {
		t.Errorf("after an hour: got %v, %v", seconds(), c)
	}
	set(7)
	if c := contested(); seconds() != int64(7) || c == nil {
		t.Errorf("set again: got %v, %v", seconds(), c)
	}
	w.Generation++ // the new version leaves this manifest unchanged
	w.Spec.Workload.Manifests = append(w.Spec.Workload.Manifests, hubWork("w-1", "web", 2, configMap("more", "x")).Spec.Workload.Manifests...)
	r.apply(w)
	if c := contested(); seconds() != nil || c != nil {
		t.Errorf("for a new version: got %v, %v", seconds(), c)
	}
}
