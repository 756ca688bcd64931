package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

// TestLifecycle: a work is created, changed, relabelled, shrunk and deleted.
func TestLifecycle(t *testing.T) {
	f := &shared
	ns := f.NamespaceOn(t, cluster1)
	w := f.Deliver(t, harness.NewWork(t, cluster1, "lifecycle", harness.DeploymentYAML(ns, "web", 1), harness.ConfigMapYAML(ns, "settings", "one")))

	t.Run("resourceMeta is complete", func(t *testing.T) {
		want := []workv1.ManifestResourceMeta{
			{Ordinal: 0, Group: "apps", Version: "v1", Kind: "Deployment", Resource: "deployments", Name: "web", Namespace: ns},
			{Ordinal: 1, Group: "", Version: "v1", Kind: "ConfigMap", Resource: "configmaps", Name: "settings", Namespace: ns},
		}
		var metas []workv1.ManifestResourceMeta
		for _, m := range w.Status.ResourceStatus.Manifests {
			metas = append(metas, m.ResourceMeta)
		}
		if d := cmp.Diff(want, metas); d != "" {
			t.Error(d)
		}
	})
	t.Run("conditions have the specified reasons and messages", func(t *testing.T) { checkReadyConditions(t, w) })
	t.Run("an edit of replicas arrives", func(t *testing.T) {
		w = f.Update(t, cluster1, w.Name, func(w *workv1.ManifestWork) {
			w.Spec.Workload.Manifests[0] = harness.Manifest(t, harness.DeploymentYAML(ns, "web", 3))
		})
		harness.Eventually(t, func(ctx context.Context) error {
			d, err := f.deployment(ctx, ns, "web")
			if err != nil {
				return err
			}
			if *d.Spec.Replicas != 3 || d.Status.AvailableReplicas != 3 {
				return fmt.Errorf("replicas %d, available %d", *d.Spec.Replicas, d.Status.AvailableReplicas)
			}
			return nil
		})
		f.Ready(t, w)
	})
	t.Run("a label-only change arrives", func(t *testing.T) { f.labelChangeArrives(t, w) })
	t.Run("drift is repaired", func(t *testing.T) {
		typ, patch := harness.MergePatch(map[string]any{"data": map[string]string{"key": "drifted"}})
		if _, err := f.API[cluster1].Kube.CoreV1().ConfigMaps(ns).Patch(t.Context(), "settings", typ, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		f.HasValue(t, cluster1, ns, "settings", "one")
		if err := f.API[cluster1].Kube.CoreV1().ConfigMaps(ns).Delete(t.Context(), "settings", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		f.HasValue(t, cluster1, ns, "settings", "one")
	})
	t.Run("a removed manifest is pruned", func(t *testing.T) {
		w = f.Update(t, cluster1, w.Name, func(w *workv1.ManifestWork) {
			w.Spec.Workload.Manifests = w.Spec.Workload.Manifests[:1]
		})
		f.NoConfigMap(t, cluster1, ns, "settings")
		f.Ready(t, w)
	})
	t.Run("a deleted work leaves nothing behind", func(t *testing.T) {
		f.Remove(t, cluster1, w.Name)
		if _, err := f.deployment(t.Context(), ns, "web"); !apierrors.IsNotFound(err) {
			t.Errorf("the Deployment is still there (%v)", err)
		}
	})
}

func (f *Fleet) deployment(ctx context.Context, ns, name string) (*appsv1.Deployment, error) {
	return f.API[cluster1].Kube.AppsV1().Deployments(ns).Get(ctx, name, metav1.GetOptions{})
}

// conditionText returns type, status, reason and message of the conditions, sorted.
func conditionText(conditions []metav1.Condition) []string {
	var all []string
	for _, c := range conditions {
		all = append(all, strings.TrimSuffix(fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message), ": "))
	}
	slices.Sort(all)
	return all
}

func checkReadyConditions(t *testing.T, w *workv1.ManifestWork) {
	t.Helper()
	want := []string{
		"Applied=True AppliedManifestWorkComplete: Apply manifest work complete",
		"Available=True ResourcesAvailable: All resources are available",
		fmt.Sprintf("Delivered=True ClusterAnswered: the cluster has answered for generation %d", w.Generation),
	}
	if d := cmp.Diff(want, conditionText(w.Status.Conditions)); d != "" {
		t.Errorf("work: %s", d)
	}
	want = []string{
		"Applied=True AppliedManifestComplete: Apply manifest complete",
		"Available=True ResourceAvailable: Resource is available",
		"StatusFeedbackSynced=True NoStatusFeedbackSynced",
	}
	for i, m := range w.Status.ResourceStatus.Manifests {
		if d := cmp.Diff(want, conditionText(m.Conditions)); d != "" {
			t.Errorf("manifest %d: %s", i, d)
		}
	}
}

// labelChangeArrives: labels do not raise the generation, so only the event informs the agent. The test waits
// until the AppliedManifestWork carries the tag of the last accepted spec.
func (f *Fleet) labelChangeArrives(t *testing.T, w *workv1.ManifestWork) {
	t.Helper()
	before := f.annotations(t, w)
	typ, patch := harness.MergePatch(map[string]any{"metadata": map[string]any{"labels": map[string]string{"tier": "front"}}})
	got, err := f.HubAPI.Work.WorkV1().ManifestWorks(w.Namespace).Patch(t.Context(), w.Name, typ, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Generation != w.Generation {
		t.Fatalf("a label raised the generation from %d to %d", w.Generation, got.Generation)
	}
	harness.Eventually(t, func(ctx context.Context) error {
		a, err := f.Applied(ctx, w.Namespace, w.Name)
		if err != nil {
			return err
		}
		if cmp.Equal(before, a.Annotations) {
			return errors.New("the AppliedManifestWork still records the tag from before the label")
		}
		return nil
	})
}

func (f *Fleet) annotations(t *testing.T, w *workv1.ManifestWork) map[string]string {
	t.Helper()
	a, err := f.Applied(t.Context(), w.Namespace, w.Name)
	if err != nil {
		t.Fatal(err)
	}
	return a.Annotations
}

// TestForegroundDeletion: while a deployed object is held by its own finalizer, both works stay. They are gone
// when the object is gone.
func TestForegroundDeletion(t *testing.T) {
	f := &shared
	ns := f.NamespaceOn(t, cluster1)
	w := f.Deliver(t, harness.NewWork(t, cluster1, "held", harness.ConfigMapYAML(ns, "held", "x"), harness.ConfigMapYAML(ns, "free", "x")))

	a, err := f.Applied(t.Context(), cluster1, w.Name)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{workv1.AppliedManifestWorkFinalizer}; !cmp.Equal(a.Finalizers, want) {
		t.Errorf("AppliedManifestWork finalizers %v, want %v", a.Finalizers, want)
	}
	live, err := f.Get(t.Context(), cluster1, w.Name)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{workv1.ManifestWorkFinalizer}; !cmp.Equal(live.Finalizers, want) {
		t.Errorf("ManifestWork finalizers %v, want %v", live.Finalizers, want)
	}

	api := f.API[cluster1].Kube.CoreV1().ConfigMaps(ns)
	typ, patch := harness.MergePatch(map[string]any{"metadata": map[string]any{"finalizers": []string{"example.com/hold"}}})
	if _, err := api.Patch(t.Context(), "held", typ, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	f.DeleteWork(t, cluster1, w.Name)
	f.NoConfigMap(t, cluster1, ns, "free")
	harness.Consistently(t, func(ctx context.Context) error {
		cm, err := f.ConfigMap(ctx, cluster1, ns, "held")
		if err != nil {
			return err
		}
		if _, err := f.Applied(ctx, cluster1, w.Name); err != nil {
			return err
		}
		if _, err := f.Get(ctx, cluster1, w.Name); err != nil {
			return err
		}
		_ = cm
		return nil
	})
	f.ConditionsAre(t, w, map[string]metav1.ConditionStatus{workv1.WorkDeleting: metav1.ConditionTrue})

	typ, patch = harness.MergePatch(map[string]any{"metadata": map[string]any{"finalizers": nil}})
	if _, err := api.Patch(t.Context(), "held", typ, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	f.NoConfigMap(t, cluster1, ns, "held")
	f.WaitDeleted(t, cluster1, w.Name)
}

// TestSharedObject: two works own one object; deleting one keeps it.
func TestSharedObject(t *testing.T) {
	f := &shared
	ns := f.NamespaceOn(t, cluster1)
	first := f.Deliver(t, harness.NewWork(t, cluster1, "share-1", harness.ConfigMapYAML(ns, "common", "same")))
	second := f.Deliver(t, harness.NewWork(t, cluster1, "share-2", harness.ConfigMapYAML(ns, "common", "same")))
	harness.Eventually(t, func(ctx context.Context) error { return f.Owners(ctx, cluster1, ns, "common", first.Name, second.Name) })

	f.Remove(t, cluster1, first.Name)
	harness.Eventually(t, func(ctx context.Context) error { return f.Owners(ctx, cluster1, ns, "common", second.Name) })
	harness.Consistently(t, func(ctx context.Context) error {
		_, err := f.ConfigMap(ctx, cluster1, ns, "common")
		return err
	})
	f.Remove(t, cluster1, second.Name)
	f.NoConfigMap(t, cluster1, ns, "common")
}

// TestTwoClusters: each cluster gets only its own works.
func TestTwoClusters(t *testing.T) {
	f := &shared
	ns1, ns2 := f.NamespaceOn(t, cluster1), f.NamespaceOn(t, cluster2)
	w1 := f.Create(t, harness.NewWork(t, cluster1, "mine", harness.ConfigMapYAML(ns1, "for-1", "1")))
	w2 := f.Create(t, harness.NewWork(t, cluster2, "mine", harness.ConfigMapYAML(ns2, "for-2", "2")))
	f.Ready(t, w1)
	f.Ready(t, w2)
	f.HasValue(t, cluster1, ns1, "for-1", "1")
	f.HasValue(t, cluster2, ns2, "for-2", "2")
	f.NoConfigMap(t, cluster1, ns2, "for-2")
	f.NoConfigMap(t, cluster2, ns1, "for-1")
}

// TestKinds: one work has cluster-scoped kinds, custom kinds, and objects that depend on each other. The custom
// resource depends on its definition, on its namespace, and on permissions. The work itself delivers these
// permissions by role aggregation.
func TestKinds(t *testing.T) {
	f := &shared
	ns := "kinds-made-by-the-work"
	w := f.Deliver(t, harness.NewWork(t, cluster1, "kinds",
		`{apiVersion: example.com/v1, kind: Rope, metadata: {name: hawser, namespace: `+ns+`}, spec: {strands: 3}}`,
		harness.ConfigMapYAML(ns, "inside", "x"),
		`{apiVersion: v1, kind: Namespace, metadata: {name: `+ns+`}}`,
		`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ropes.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: ropes, singular: rope, kind: Rope, listKind: RopeList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`,
		`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: ropes-for-works, labels: {open-cluster-management.io/aggregate-to-work: "true"}}, rules: [{apiGroups: [example.com], resources: [ropes], verbs: ["*"]}]}`,
		`{apiVersion: v1, kind: Service, metadata: {name: svc, namespace: `+ns+`}, spec: {selector: {app: x}, ports: [{port: 80}]}}`,
		`{apiVersion: v1, kind: Secret, metadata: {name: sec, namespace: `+ns+`}, stringData: {a: b}}`,
	))
	f.Remove(t, cluster1, w.Name)
	harness.Eventually(t, func(ctx context.Context) error {
		_, err := f.API[cluster1].Kube.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
		return harness.Absent(err, "namespace "+ns)
	})
}
