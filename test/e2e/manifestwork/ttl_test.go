package manifestwork

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

// finishing returns a work with one ConfigMap. The work is complete when the value is "done".
func finishing(t *testing.T, ns, name, value string, change ...func(*workv1.ManifestWork)) *workv1.ManifestWork {
	t.Helper()
	w := harness.NewWork(t, cluster, name, harness.ConfigMapYAML(ns, name, value))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{{
		ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: ns, Name: name},
		ConditionRules: []workv1.ConditionRule{{
			Type: workv1.CelConditionExpressionsType, Condition: workv1.WorkComplete,
			CelExpressions: []string{`object.data.key == "done"`}, Message: "the value says so",
		}},
	}}
	for _, c := range change {
		c(w)
	}
	return w
}

func withTTL(seconds int64) func(*workv1.ManifestWork) {
	return func(w *workv1.ManifestWork) {
		w.Spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeForeground, TTLSecondsAfterFinished: &seconds}
	}
}

// complete waits until the condition Complete of a work has a status.
func complete(t *testing.T, w *workv1.ManifestWork, status metav1.ConditionStatus) {
	t.Helper()
	shared.ConditionsAre(t, w, map[string]metav1.ConditionStatus{workv1.WorkComplete: status})
}

// staysThere checks for a while that a work is not being deleted.
func staysThere(t *testing.T, name string) {
	t.Helper()
	harness.Consistently(t, func(ctx context.Context) error {
		w, err := shared.Get(ctx, cluster, name)
		if err == nil && w.DeletionTimestamp != nil {
			err = errors.New("it is being deleted")
		}
		return err
	})
}

// deletedAt watches a work until it is being deleted. It returns the times of the deletion and of the
// completion.
func deletedAt(t *testing.T, name string) (deleted, completed time.Time) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	events, err := shared.HubAPI.Work.WorkV1().ManifestWorks(cluster).Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	for e := range events.ResultChan() {
		w, ok := e.Object.(*workv1.ManifestWork)
		if !ok {
			t.Fatalf("the watch ended: %+v", e.Object)
		}
		if w.DeletionTimestamp == nil && e.Type != watch.Deleted {
			continue
		}
		c := meta.FindStatusCondition(w.Status.Conditions, workv1.WorkComplete)
		if c == nil || w.DeletionTimestamp == nil {
			t.Fatalf("deleted although it never was complete: %s", harness.StatusText(w))
		}
		return w.DeletionTimestamp.Time, c.LastTransitionTime.Time
	}
	t.Fatalf("%s was not deleted in time: %v", name, ctx.Err())
	return deleted, completed
}

func TestTTL_DeletesACompletedWorkWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := shared.Create(t, finishing(t, ns, "ttl-5", "running", withTTL(5)))
	complete(t, w, metav1.ConditionFalse)
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			live, err := shared.Get(t.Context(), cluster, w.Name)
			if err != nil {
				return err
			}
			live.Spec = finishing(t, ns, w.Name, "done", withTTL(5)).Spec
			_, err = shared.HubAPI.Work.WorkV1().ManifestWorks(cluster).Update(t.Context(), live, metav1.UpdateOptions{})
			return err
		}()
	}()
	deleted, completed := deletedAt(t, w.Name)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	// Both times are in whole seconds. A busy machine may delete late, never early.
	if d := deleted.Sub(completed); d < 5*time.Second || d > 20*time.Second {
		t.Errorf("deleted %s after it was complete, want 5 s", d)
	}
	shared.WaitDeleted(t, cluster, w.Name)
	shared.NoConfigMap(t, cluster, ns, w.Name)
}

func TestTTL_ZeroIsAtOnce(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := shared.Create(t, finishing(t, ns, "ttl-0", "done", withTTL(0), func(w *workv1.ManifestWork) {
		w.Spec.DeleteOption.PropagationPolicy = workv1.DeletePropagationPolicyTypeOrphan
	}))
	shared.WaitDeleted(t, cluster, w.Name)
	if err := exist(t.Context(), ns, w.Name); err != nil { // the delete option of the work applies
		t.Error(err)
	}
}

func TestTTL_IsNothingUntilTheWorkIsComplete(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := shared.Create(t, finishing(t, ns, "ttl-running", "running", withTTL(0)))
	complete(t, w, metav1.ConditionFalse)
	staysThere(t, w.Name)
	shared.HasValue(t, cluster, ns, w.Name, "running")
}

func TestTTL_WithoutOneACompletedWorkStays(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := shared.Create(t, finishing(t, ns, "ttl-none", "done"))
	complete(t, w, metav1.ConditionTrue)
	staysThere(t, w.Name)
	// A TTL that is set later counts from the completion.
	shared.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) { withTTL(1)(w) })
	shared.WaitDeleted(t, cluster, w.Name)
}

func TestTTL_LeavesWorksOfReplicaSetsAlone(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := shared.Create(t, finishing(t, ns, "ttl-set", "done", withTTL(0), func(w *workv1.ManifestWork) {
		w.Labels = map[string]string{"work.open-cluster-management.io/manifestworkreplicaset": "default.set"}
	}))
	complete(t, w, metav1.ConditionTrue)
	staysThere(t, w.Name)
}

// TestTTL_OfAJob: a Job completes on the cluster. The work and the Job are deleted when the TTL is over.
func TestTTL_OfAJob(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "ttl-job", fmt.Sprintf(`
apiVersion: batch/v1
kind: Job
metadata: {name: once, namespace: %s}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: once, image: busybox, command: ["true"]}]
`, ns))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{{
		ResourceIdentifier: workv1.ResourceIdentifier{Group: "batch", Resource: "jobs", Namespace: ns, Name: "once"},
		ConditionRules:     []workv1.ConditionRule{{Type: workv1.WellKnownConditionsType, Condition: workv1.WorkComplete, CelExpressions: []string{}}},
	}}
	withTTL(2)(w)
	w = shared.Create(t, w)
	deleted, completed := deletedAt(t, w.Name)
	if d := deleted.Sub(completed); d < 2*time.Second || d > 20*time.Second {
		t.Errorf("deleted %s after it was complete, want 2 s", d)
	}
	shared.WaitDeleted(t, cluster, w.Name)
	harness.Eventually(t, func(ctx context.Context) error {
		_, err := shared.API[cluster].Kube.BatchV1().Jobs(ns).Get(ctx, "once", metav1.GetOptions{})
		return harness.Absent(err, "the Job")
	})
}
