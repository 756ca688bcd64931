package manifestwork

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

// setValue changes a ConfigMap as another client.
func setValue(t *testing.T, ns, name, value string) {
	t.Helper()
	typ, patch := harness.MergePatch(map[string]any{"data": map[string]any{"key": value}})
	if _, err := shared.API[cluster].Kube.CoreV1().ConfigMaps(ns).Patch(t.Context(), name, typ, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestDrift_IsRepaired: an edited or deleted object is restored at once, and no condition changes its time.
func TestDrift_IsRepaired(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	before := f.Deliver(t, harness.NewWork(t, cluster, "drift", harness.ConfigMapYAML(ns, "edited", "x"), harness.ConfigMapYAML(ns, "deleted", "y")))
	harness.Consistently(t, func(ctx context.Context) error { return exist(ctx, ns, "edited", "deleted") })

	began := time.Now()
	setValue(t, ns, "edited", "something else")
	f.HasValue(t, cluster, ns, "edited", "x")
	t.Logf("an edit was repaired within %v", time.Since(began))
	began = time.Now()
	if err := f.API[cluster].Kube.CoreV1().ConfigMaps(ns).Delete(t.Context(), "deleted", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.HasValue(t, cluster, ns, "deleted", "y")
	t.Logf("a deletion was repaired within %v", time.Since(began))

	after, err := f.Get(t.Context(), cluster, before.Name)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := times(after), times(before); got != want {
		t.Errorf("conditions and their times\n%s\nbefore\n%s", got, want)
	}
}

// times returns all conditions of a work with their transition times.
func times(w *workv1.ManifestWork) string {
	text := ""
	add := func(of string, conditions []metav1.Condition) {
		for _, c := range conditions {
			text += fmt.Sprintf("%s %s=%s since %s\n", of, c.Type, c.Status, c.LastTransitionTime.UTC().Format(time.RFC3339))
		}
	}
	add("work", w.Status.Conditions)
	for _, m := range w.Status.ResourceStatus.Manifests {
		add(m.ResourceMeta.Name, m.Conditions)
	}
	return text
}

// TestDrift_InManyNamespaces: a kind in more namespaces than the agent watches one by one is watched as a
// whole. Edits and deletions are repaired in each namespace. Objects of others there have no effect.
func TestDrift_InManyNamespaces(t *testing.T) {
	t.Parallel()
	f := shared
	const many = 12
	namespace := func(i int) string { return fmt.Sprintf("drift-many-%02d", i) }
	var manifests []string
	for i := range many {
		manifests = append(manifests,
			fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", namespace(i)), harness.ConfigMapYAML(namespace(i), "one", "x"))
	}
	f.Deliver(t, harness.NewWork(t, cluster, "drift-many", manifests...))
	for i := range many {
		setValue(t, namespace(i), "one", "something else")
	}
	for i := range many {
		f.HasValue(t, cluster, namespace(i), "one", "x")
	}
	for _, i := range []int{0, many - 1} {
		if err := f.API[cluster].Kube.CoreV1().ConfigMaps(namespace(i)).Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, i := range []int{0, many - 1} {
		f.HasValue(t, cluster, namespace(i), "one", "x")
	}
}
