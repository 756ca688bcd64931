package conditions_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
)

func TestWithDeletionBlocked_ReportsWhy(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	deleting := conditions.Deleting(workv1.ManifestWorkStatus{}, 3, nil, now)
	got := conditions.WithDeletionBlocked(deleting, "refused")
	c := apimeta.FindStatusCondition(got.Conditions, workv1.WorkDeleting)
	if c.Status != metav1.ConditionTrue || c.Reason != conditions.ReasonDeletionBlocked || c.Message != "refused" || c.ObservedGeneration != 3 {
		t.Errorf("got %+v", c)
	}
	if before := apimeta.FindStatusCondition(deleting.Conditions, workv1.WorkDeleting); before.Message != "ManifestWork is being deleted" {
		t.Errorf("the status was modified: %+v", before)
	}
	// The reason stays while the objects are not read. It is removed when nothing blocks the deletion.
	stays := apimeta.FindStatusCondition(conditions.Deleting(got, 4, nil, now.Add(time.Hour)).Conditions, workv1.WorkDeleting)
	if stays.Reason != conditions.ReasonDeletionBlocked || stays.Message != "refused" || stays.ObservedGeneration != 4 || !stays.LastTransitionTime.Equal(&c.LastTransitionTime) {
		t.Errorf("got %+v", stays)
	}
	over := apimeta.FindStatusCondition(conditions.WithDeletionBlocked(got, "").Conditions, workv1.WorkDeleting)
	if over.Reason != conditions.ReasonWorkDeleting || over.Message != "ManifestWork is being deleted" {
		t.Errorf("got %+v", over)
	}
	if alive := conditions.WithDeletionBlocked(workv1.ManifestWorkStatus{}, "refused"); len(alive.Conditions) > 0 {
		t.Errorf("a work that is not deleted: %+v", alive)
	}
}

func TestNext_AgentWritesRejected(t *testing.T) {
	m := conditions.Manifest{ApplyErr: fmt.Errorf("apply: %w", &conditions.CutOffError{Err: errors.New("no")}), Presence: conditions.Present}
	got := conditions.Next(workv1.ManifestWorkStatus{}, 1, []conditions.Manifest{m}, time.Now())
	c := apimeta.FindStatusCondition(got.ResourceStatus.Manifests[0].Conditions, workv1.ManifestApplied)
	if c.Status != metav1.ConditionFalse || c.Reason != conditions.ReasonAgentWritesRejected || !apimeta.IsStatusConditionFalse(got.Conditions, workv1.WorkApplied) {
		t.Errorf("got %+v", got)
	}
	if !apimeta.IsStatusConditionTrue(got.Conditions, workv1.WorkAvailable) {
		t.Errorf("the object is there: %+v", got.Conditions)
	}
}
