package conditions_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
)

func TestWithPersistFailed_AddsOneConditionAndTouchesNothing(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	list := make([]metav1.Condition, 1, 4)
	list[0] = metav1.Condition{Type: "Applied", Status: metav1.ConditionTrue}
	before := workv1.ManifestWorkStatus{Conditions: list}
	l := conditions.PersistError{Reason: "StateDirectoryFull", Err: errors.New("no room"), Since: since}
	got := conditions.WithPersistFailed(before, 3, l)
	want := metav1.Condition{
		Type: "PersistFailed", Status: metav1.ConditionTrue, Reason: "StateDirectoryFull", ObservedGeneration: 3,
		LastTransitionTime: metav1.NewTime(since.Truncate(time.Second)),
		Message:            "The present spec is applied, but the agent could not store it: no room. If the agent restarts while it is disconnected, it does not know this spec.",
	}
	if d := cmp.Diff([]metav1.Condition{list[0], want}, got.Conditions); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if len(before.Conditions) != 1 || list[:2][1].Type != "" {
		t.Errorf("the status was modified: %+v", list[:2])
	}
	l.Err = errors.New(strings.Repeat("x", 40<<10))
	if n := len(conditions.WithPersistFailed(before, 3, l).Conditions[1].Message); n > 32<<10 {
		t.Errorf("a message of %d bytes", n)
	}
}
