package e2e

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

// TestBadManifests: each bad manifest reports its error, and the other manifests are applied.
func TestBadManifests(t *testing.T) {
	f := &shared
	ns := f.NamespaceOn(t, cluster1)
	w := harness.NewWork(t, cluster1, "bad",
		harness.ConfigMapYAML(ns, "good", "fine"),
		`{apiVersion: example.org/v1, kind: Undefined, metadata: {name: x, namespace: `+ns+`}}`,
		harness.ConfigMapYAML("no-such-namespace", "lost", "x"),
		`{apiVersion: v1, kind: Node, metadata: {name: forbidden-node}}`,
	)
	w = f.Create(t, w)
	f.ConditionsAre(t, w, map[string]metav1.ConditionStatus{workv1.WorkApplied: metav1.ConditionFalse, workv1.WorkAvailable: metav1.ConditionFalse})
	f.HasValue(t, cluster1, ns, "good", "fine")

	for _, c := range []struct {
		ordinal   int
		typ       string
		status    metav1.ConditionStatus
		reason    string
		fragments []string
	}{
		{0, workv1.ManifestApplied, metav1.ConditionTrue, "AppliedManifestComplete", []string{"Apply manifest complete"}},
		{1, workv1.ManifestApplied, metav1.ConditionFalse, "AppliedManifestFailed", []string{"Failed to apply manifest: ", `the server doesn't have a resource type "Undefined"`}},
		{1, workv1.ManifestAvailable, metav1.ConditionUnknown, "IncompleteResourceMeta", []string{"Resource meta is incomplete"}},
		{2, workv1.ManifestApplied, metav1.ConditionFalse, "AppliedManifestFailed", []string{"Failed to apply manifest: ", `namespaces "no-such-namespace" not found`}},
		{2, workv1.ManifestAvailable, metav1.ConditionFalse, "ResourceNotAvailable", []string{"Resource is not available"}},
		{3, workv1.ManifestApplied, metav1.ConditionFalse, "AppliedManifestFailed", []string{"Failed to apply manifest: ", "forbidden"}},
	} {
		t.Run(fmt.Sprintf("manifest %d %s", c.ordinal, c.typ), func(t *testing.T) {
			got := f.ManifestCondition(t, w, c.ordinal, c.typ, func(m metav1.Condition) bool { return m.Status == c.status })
			if got.Reason != c.reason {
				t.Errorf("reason %s, want %s", got.Reason, c.reason)
			}
			for _, want := range c.fragments {
				if !strings.Contains(got.Message, want) {
					t.Errorf("message %q lacks %q", got.Message, want)
				}
			}
		})
	}

	t.Run("another work is unaffected", func(t *testing.T) {
		f.Deliver(t, harness.NewWork(t, cluster1, "bystander", harness.ConfigMapYAML(ns, "bystander", "x")))
	})
	t.Run("mended when the reason is gone", func(t *testing.T) {
		w := f.Update(t, cluster1, "bad", func(w *workv1.ManifestWork) { w.Spec.Workload.Manifests = w.Spec.Workload.Manifests[:1] })
		f.Ready(t, w)
	})
}

// TestTooLarge: a work above the limit is never sent. The hub reports it, and the condition ends when the work
// shrinks.
func TestTooLarge(t *testing.T) {
	f := &shared
	ns := f.NamespaceOn(t, cluster1)
	w := f.Create(t, harness.NewWork(t, cluster1, "large", harness.ConfigMapYAML(ns, "large", strings.Repeat("x", 300_000)), harness.ConfigMapYAML(ns, "large-2", strings.Repeat("y", 300_000))))
	got := f.ConditionsAre(t, w, map[string]metav1.ConditionStatus{"Delivered": metav1.ConditionFalse})
	for _, c := range got.Status.Conditions {
		if c.Type == "Delivered" && (c.Reason != "TooLarge" || !strings.Contains(c.Message, "512000")) {
			t.Errorf("condition %+v does not contain the limit", c)
		}
	}
	f.NoConfigMap(t, cluster1, ns, "large")

	w = f.Update(t, cluster1, w.Name, func(w *workv1.ManifestWork) { w.Spec.Workload.Manifests = w.Spec.Workload.Manifests[:1] })
	got = f.Ready(t, w)
	for _, c := range got.Status.Conditions {
		if c.Type == "Delivered" && (c.Status != metav1.ConditionTrue || c.ObservedGeneration != w.Generation) {
			t.Errorf("condition %+v, want the answer for generation %d", c, w.Generation)
		}
	}
}
