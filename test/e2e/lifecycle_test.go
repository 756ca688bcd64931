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
)

func deploymentYAML(namespace, name string, replicas int) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: %[2]s}}
  template:
    metadata: {labels: {app: %[2]s}}
    spec: {containers: [{name: main, image: nginx}]}
`, namespace, name, replicas)
}

// TestLifecycle: a work is created, changed, relabelled, shrunk and deleted.
func TestLifecycle(t *testing.T) {
	f := shared
	ns := f.namespaceOn(t, cluster1)
	w := f.create(t, newWork(t, cluster1, "lifecycle", deploymentYAML(ns, "web", 1), configMapYAML(ns, "settings", "one")))
	got := f.ready(t, w)

	t.Run("resourceMeta is complete", func(t *testing.T) {
		want := []workv1.ManifestResourceMeta{
			{Ordinal: 0, Group: "apps", Version: "v1", Kind: "Deployment", Resource: "deployments", Name: "web", Namespace: ns},
			{Ordinal: 1, Group: "", Version: "v1", Kind: "ConfigMap", Resource: "configmaps", Name: "settings", Namespace: ns},
		}
		var metas []workv1.ManifestResourceMeta
		for _, m := range got.Status.ResourceStatus.Manifests {
			metas = append(metas, m.ResourceMeta)
		}
		if d := cmp.Diff(want, metas); d != "" {
			t.Error(d)
		}
	})
	t.Run("conditions have the specified reasons and messages", func(t *testing.T) { checkReadyConditions(t, got) })
	t.Run("an edit of replicas arrives", func(t *testing.T) {
		w = f.update(t, cluster1, w.Name, func(w *workv1.ManifestWork) {
			w.Spec.Workload.Manifests[0] = manifest(t, deploymentYAML(ns, "web", 3))
		})
		eventually(t, func(ctx context.Context) error {
			d, err := f.deployment(ctx, ns, "web")
			if err != nil {
				return err
			}
			if *d.Spec.Replicas != 3 || d.Status.AvailableReplicas != 3 {
				return fmt.Errorf("replicas %d, available %d", *d.Spec.Replicas, d.Status.AvailableReplicas)
			}
			return nil
		})
		f.ready(t, w)
	})
	t.Run("a label-only change arrives", func(t *testing.T) { f.labelChangeArrives(t, w) })
	t.Run("drift is repaired", func(t *testing.T) {
		typ, patch := mergePatch(map[string]any{"data": map[string]string{"key": "drifted"}})
		if _, err := f.clusters[cluster1].kube.CoreV1().ConfigMaps(ns).Patch(t.Context(), "settings", typ, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		f.hasValue(t, cluster1, ns, "settings", "one")
		if err := f.clusters[cluster1].kube.CoreV1().ConfigMaps(ns).Delete(t.Context(), "settings", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		f.hasValue(t, cluster1, ns, "settings", "one")
	})
	t.Run("a removed manifest is pruned", func(t *testing.T) {
		w = f.update(t, cluster1, w.Name, func(w *workv1.ManifestWork) {
			w.Spec.Workload.Manifests = w.Spec.Workload.Manifests[:1]
		})
		f.noConfigMap(t, cluster1, ns, "settings")
		f.ready(t, w)
	})
	t.Run("a deleted work leaves nothing behind", func(t *testing.T) {
		f.deleteWork(t, cluster1, w.Name)
		f.gone(t, cluster1, w.Name)
		if _, err := f.deployment(t.Context(), ns, "web"); !apierrors.IsNotFound(err) {
			t.Errorf("the Deployment is still there (%v)", err)
		}
	})
}

func (f *Fleet) deployment(ctx context.Context, ns, name string) (*appsv1.Deployment, error) {
	return f.clusters[cluster1].kube.AppsV1().Deployments(ns).Get(ctx, name, metav1.GetOptions{})
}

// conditionText is what people read of a condition.
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

// labelChangeArrives: labels do not raise the generation, so only the event can
// tell the agent; it proves itself by a work whose AppliedManifestWork carries
// the tag of the last accepted spec.
func (f *Fleet) labelChangeArrives(t *testing.T, w *workv1.ManifestWork) {
	t.Helper()
	before := f.annotations(t, w)
	typ, patch := mergePatch(map[string]any{"metadata": map[string]any{"labels": map[string]string{"tier": "front"}}})
	got, err := f.hub.work.WorkV1().ManifestWorks(w.Namespace).Patch(t.Context(), w.Name, typ, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Generation != w.Generation {
		t.Fatalf("a label raised the generation from %d to %d", w.Generation, got.Generation)
	}
	eventually(t, func(ctx context.Context) error {
		a, err := f.applied(ctx, w.Namespace, w.Name)
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
	a, err := f.applied(t.Context(), w.Namespace, w.Name)
	if err != nil {
		t.Fatal(err)
	}
	return a.Annotations
}

// TestForegroundDeletion: while a deployed object is held by its own finalizer,
// both works stay; they go when it goes.
func TestForegroundDeletion(t *testing.T) {
	f := shared
	ns := f.namespaceOn(t, cluster1)
	w := f.create(t, newWork(t, cluster1, "held", configMapYAML(ns, "held", "x"), configMapYAML(ns, "free", "x")))
	f.ready(t, w)

	a, err := f.applied(t.Context(), cluster1, w.Name)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{workv1.AppliedManifestWorkFinalizer}; !cmp.Equal(a.Finalizers, want) {
		t.Errorf("AppliedManifestWork finalizers %v, want %v", a.Finalizers, want)
	}
	live, err := f.get(t.Context(), cluster1, w.Name)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{workv1.ManifestWorkFinalizer}; !cmp.Equal(live.Finalizers, want) {
		t.Errorf("ManifestWork finalizers %v, want %v", live.Finalizers, want)
	}

	api := f.clusters[cluster1].kube.CoreV1().ConfigMaps(ns)
	typ, patch := mergePatch(map[string]any{"metadata": map[string]any{"finalizers": []string{"example.com/hold"}}})
	if _, err := api.Patch(t.Context(), "held", typ, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	f.deleteWork(t, cluster1, w.Name)
	f.noConfigMap(t, cluster1, ns, "free")
	stays(t, func(ctx context.Context) error {
		cm, err := f.configMap(ctx, cluster1, ns, "held")
		if err != nil {
			return err
		}
		if _, err := f.applied(ctx, cluster1, w.Name); err != nil {
			return err
		}
		if _, err := f.get(ctx, cluster1, w.Name); err != nil {
			return err
		}
		_ = cm
		return nil
	})
	f.conditionsAre(t, w, map[string]metav1.ConditionStatus{workv1.WorkDeleting: metav1.ConditionTrue})

	typ, patch = mergePatch(map[string]any{"metadata": map[string]any{"finalizers": nil}})
	if _, err := api.Patch(t.Context(), "held", typ, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	f.noConfigMap(t, cluster1, ns, "held")
	f.gone(t, cluster1, w.Name)
}

// TestSharedObject: two works own one object; deleting one keeps it.
func TestSharedObject(t *testing.T) {
	f := shared
	ns := f.namespaceOn(t, cluster1)
	first := f.create(t, newWork(t, cluster1, "share-1", configMapYAML(ns, "common", "same")))
	f.ready(t, first)
	second := f.create(t, newWork(t, cluster1, "share-2", configMapYAML(ns, "common", "same")))
	f.ready(t, second)
	eventually(t, func(ctx context.Context) error { return f.owners(ctx, ns, "common", first.Name, second.Name) })

	f.deleteWork(t, cluster1, first.Name)
	f.gone(t, cluster1, first.Name)
	eventually(t, func(ctx context.Context) error { return f.owners(ctx, ns, "common", second.Name) })
	stays(t, func(ctx context.Context) error {
		_, err := f.configMap(ctx, cluster1, ns, "common")
		return err
	})
	f.deleteWork(t, cluster1, second.Name)
	f.gone(t, cluster1, second.Name)
	f.noConfigMap(t, cluster1, ns, "common")
}

// owners checks the owner references of a ConfigMap, and their form.
func (f *Fleet) owners(ctx context.Context, ns, name string, works ...string) error {
	cm, err := f.configMap(ctx, cluster1, ns, name)
	if err != nil {
		return err
	}
	var want, got []string
	for _, w := range works {
		want = append(want, f.appliedName(w))
	}
	for _, o := range cm.OwnerReferences {
		if o.APIVersion != "work.open-cluster-management.io/v1" || o.Kind != "AppliedManifestWork" || o.Controller != nil || o.BlockOwnerDeletion != nil {
			return fmt.Errorf("owner reference %+v", o)
		}
		got = append(got, o.Name)
	}
	if !cmp.Equal(want, got) {
		return fmt.Errorf("owners %v, want %v", got, want)
	}
	return nil
}

// TestTwoClusters: each cluster gets only its own works.
func TestTwoClusters(t *testing.T) {
	f := shared
	ns1, ns2 := f.namespaceOn(t, cluster1), f.namespaceOn(t, cluster2)
	w1 := f.create(t, newWork(t, cluster1, "mine", configMapYAML(ns1, "for-1", "1")))
	w2 := f.create(t, newWork(t, cluster2, "mine", configMapYAML(ns2, "for-2", "2")))
	f.ready(t, w1)
	f.ready(t, w2)
	f.hasValue(t, cluster1, ns1, "for-1", "1")
	f.hasValue(t, cluster2, ns2, "for-2", "2")
	f.noConfigMap(t, cluster1, ns2, "for-2")
	f.noConfigMap(t, cluster2, ns1, "for-1")
}

// TestKinds: cluster-scoped and custom kinds, and objects that depend on each
// other within one work: the custom resource on its definition, its namespace,
// and the right to handle it, which the work brings along by aggregation.
func TestKinds(t *testing.T) {
	f := shared
	ns := "kinds-made-by-the-work"
	w := f.create(t, newWork(t, cluster1, "kinds",
		`{apiVersion: example.com/v1, kind: Rope, metadata: {name: hawser, namespace: `+ns+`}, spec: {strands: 3}}`,
		configMapYAML(ns, "inside", "x"),
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
	f.ready(t, w)
	f.deleteWork(t, cluster1, w.Name)
	f.gone(t, cluster1, w.Name)
	eventually(t, func(ctx context.Context) error {
		_, err := f.clusters[cluster1].kube.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
		return absent(err, "namespace "+ns)
	})
}
