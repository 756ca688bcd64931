package hubsource

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/hubsource/core"
)

// newWork is a work with its finalizer, as the informer shows it.
func newWork(name string, generation int64, change ...func(*workv1.ManifestWork)) *workv1.ManifestWork {
	w := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{
		Namespace: "cluster1", Name: name, UID: types.UID("uid-" + name), Generation: generation,
		ResourceVersion: fmt.Sprint(100 + generation), Finalizers: []string{workv1.ManifestWorkFinalizer},
	}}
	for _, c := range change {
		c(w)
	}
	return w
}

func deleting(w *workv1.ManifestWork) {
	w.DeletionTimestamp = &metav1.Time{Time: time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)}
}

// applied is the status of an agent that applied a generation.
func applied(generation int64) workv1.ManifestWorkStatus {
	return workv1.ManifestWorkStatus{Conditions: []metav1.Condition{
		{Type: "Available", Status: metav1.ConditionTrue, Reason: "ResourcesAvailable", ObservedGeneration: generation, LastTransitionTime: metav1.Unix(7, 0)},
		{Type: "Applied", Status: metav1.ConditionTrue, Reason: "AppliedManifestWorkComplete", ObservedGeneration: generation, LastTransitionTime: metav1.Unix(7, 0)},
	}}
}

func hasFinalizer(o *workv1.ManifestWork) bool {
	return slices.Contains(o.Finalizers, workv1.ManifestWorkFinalizer)
}

func delivered(s workv1.ManifestWorkStatus) *metav1.Condition {
	if i := slices.IndexFunc(s.Conditions, func(c metav1.Condition) bool { return c.Type == core.ConditionDelivered }); i >= 0 {
		return &s.Conditions[i]
	}
	return nil
}

func TestTrim_KeepsSignal(t *testing.T) {
	w := newWork("w", 1, func(w *workv1.ManifestWork) {
		w.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
		w.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "a": "b"}
	})
	Trim(w)
	if w.ManagedFields != nil || len(w.Annotations) != 1 || w.Annotations["a"] != "b" {
		t.Errorf("trimmed to %v and %v", w.ManagedFields, w.Annotations)
	}
}

func version(rv string) func(*workv1.ManifestWork) {
	return func(w *workv1.ManifestWork) { w.ResourceVersion = rv }
}
