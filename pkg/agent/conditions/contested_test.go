package conditions_test

import (
	"fmt"
	"strings"
	"testing"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
)

// The condition about fields of others keeps its time while its content is the same. It has a bounded size. It
// stays while nothing is applied, and is removed with the fields.
func TestNext_Contested(t *testing.T) {
	m := present(configMap(0, "a"))
	find := func(s workv1.ManifestWorkStatus) *metav1.Condition {
		return apimeta.FindStatusCondition(s.ResourceStatus.Manifests[0].Conditions, conditions.TypeContested)
	}
	m.Others = []conditions.ForeignField{{Path: ".spec.x", Manager: "hpa"}}
	s := conditions.Next(workv1.ManifestWorkStatus{}, 1, []conditions.Manifest{m}, t0)
	first := find(s)
	if first == nil || first.Status != metav1.ConditionTrue || !strings.Contains(first.Message, ": .spec.x (set by hpa). ") {
		t.Fatalf("got %v", first)
	}
	at, _ := later(5e9)
	for i := range 20 {
		m.Others = append(m.Others, conditions.ForeignField{Path: fmt.Sprintf(".spec.%d.%s", i, strings.Repeat("é", 1000)), Manager: "m"})
	}
	s = conditions.Next(s, 1, []conditions.Manifest{m}, at)
	if c := find(s); c.LastTransitionTime != first.LastTransitionTime || len(c.Message) > 3000 || !strings.Contains(c.Message, ", and 16 more. ") {
		t.Errorf("got %v", c)
	}
	m.Others, m.ApplySkipped = nil, true
	if s = conditions.Next(s, 1, []conditions.Manifest{m}, at); find(s) == nil {
		t.Error("the condition of a held manifest was removed")
	}
	m.ApplySkipped = false
	if s = conditions.Next(s, 1, []conditions.Manifest{m}, at); find(s) != nil {
		t.Errorf("got %v", find(s))
	}
}
