package manifestwork

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

// hold is a finalizer that only the test removes.
const hold = "example.com/hold"

func TestDeletion_SharedObjectOutlivesOneWork(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	first := f.Create(t, harness.NewWork(t, cluster, "share-1", harness.ConfigMapYAML(ns, "common", "x"), harness.ConfigMapYAML(ns, "own", "x")))
	second := f.Create(t, harness.NewWork(t, cluster, "share-2", harness.ConfigMapYAML(ns, "common", "x")))
	f.Ready(t, first)
	f.Ready(t, second)
	uid := configMap(t, ns, "common").UID

	f.Remove(t, cluster, first.Name)
	f.NoConfigMap(t, cluster, ns, "own")
	harness.Consistently(t, func(ctx context.Context) error { // long enough for the garbage collector
		if err := f.Owners(ctx, cluster, ns, "common", second.Name); err != nil {
			return err
		}
		return sameObject(ctx, ns, "common", uid)
	})
	f.Remove(t, cluster, second.Name)
	f.NoConfigMap(t, cluster, ns, "common")
}

func TestDeletion_SharedObjectOutlivesItsRemovalFromOneWork(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	first := f.Create(t, harness.NewWork(t, cluster, "drop-share-1", harness.ConfigMapYAML(ns, "common", "x"), harness.ConfigMapYAML(ns, "own", "x")))
	second := f.Create(t, harness.NewWork(t, cluster, "drop-share-2", harness.ConfigMapYAML(ns, "common", "x")))
	f.Ready(t, first)
	f.Ready(t, second)
	uid := configMap(t, ns, "common").UID

	first = f.Update(t, cluster, first.Name, func(w *workv1.ManifestWork) { w.Spec.Workload.Manifests = w.Spec.Workload.Manifests[1:] })
	f.Ready(t, first)
	harness.Eventually(t, func(ctx context.Context) error { return f.Owners(ctx, cluster, ns, "common", second.Name) })
	lists(t, first.Name, "own")
	harness.Consistently(t, func(ctx context.Context) error { return sameObject(ctx, ns, "common", uid) })
}

func TestDeletion_OrphanLeavesEverything(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "orphan-all", harness.ConfigMapYAML(ns, "one", "x"), harness.ConfigMapYAML(ns, "two", "x"))
	w.Spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
	w = f.Deliver(t, w)
	for _, name := range []string{"one", "two"} {
		if refs := configMap(t, ns, name).OwnerReferences; len(refs) > 0 {
			t.Errorf("%s is owned: %v", name, refs)
		}
	}
	f.Remove(t, cluster, w.Name)
	harness.Consistently(t, func(ctx context.Context) error { return exist(ctx, ns, "one", "two") })
}

func TestDeletion_SelectivelyOrphanKeepsNamedObjects(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "orphan-some", harness.ConfigMapYAML(ns, "stays", "x"), harness.ConfigMapYAML(ns, "goes", "x"))
	w.Spec.DeleteOption = orphaning(ns, "stays")
	w = f.Deliver(t, w)
	f.Remove(t, cluster, w.Name)
	f.NoConfigMap(t, cluster, ns, "goes")
	harness.Consistently(t, func(ctx context.Context) error { return exist(ctx, ns, "stays") })
}

func TestDeletion_OrphanedObjectOutlivesItsManifest(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "orphan-drop", harness.ConfigMapYAML(ns, "stays", "x"), harness.ConfigMapYAML(ns, "rest", "x"))
	w.Spec.DeleteOption = orphaning(ns, "stays")
	w = f.Deliver(t, w)
	w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) { w.Spec.Workload.Manifests = w.Spec.Workload.Manifests[1:] })
	f.Ready(t, w)
	lists(t, w.Name, "rest")
	harness.Consistently(t, func(ctx context.Context) error { return exist(ctx, ns, "stays") })
}

func TestDeletion_OrphanTakenBackDeletesAgain(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "orphan-back", harness.ConfigMapYAML(ns, "one", "x"))
	w.Spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
	w = f.Deliver(t, w)
	w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
		w.Spec.DeleteOption.PropagationPolicy = workv1.DeletePropagationPolicyTypeForeground
	})
	f.Ready(t, w)
	if err := f.Owners(t.Context(), cluster, ns, "one", w.Name); err != nil {
		t.Error(err)
	}
	f.Remove(t, cluster, w.Name)
	f.NoConfigMap(t, cluster, ns, "one")
}

// TestDeletion_DroppedObjectIsListedUntilItIsGone: a dropped object without a finalizer is deleted and off the
// list at once. An object with a finalizer is listed until it is deleted.
func TestDeletion_DroppedObjectIsListedUntilItIsGone(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := f.Deliver(t, harness.NewWork(t, cluster, "drop",
		harness.ConfigMapYAML(ns, "free", "x"), heldConfigMapYAML(ns, "held"), harness.ConfigMapYAML(ns, "rest", "x")))
	lists(t, w.Name, "free", "held", "rest")
	w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) { w.Spec.Workload.Manifests = w.Spec.Workload.Manifests[2:] })
	f.Ready(t, w)
	f.NoConfigMap(t, cluster, ns, "free")
	lists(t, w.Name, "held", "rest")
	release(t, ns, "held")
	f.NoConfigMap(t, cluster, ns, "held")
	lists(t, w.Name, "rest")
}

// TestDeletion_WaitsForFinalizers: a deleted work whose object has a finalizer reports its deletion, and stays
// until the object is gone.
func TestDeletion_WaitsForFinalizers(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := f.Deliver(t, harness.NewWork(t, cluster, "held", heldConfigMapYAML(ns, "held"), harness.ConfigMapYAML(ns, "free", "x")))
	f.DeleteWork(t, cluster, w.Name)
	f.NoConfigMap(t, cluster, ns, "free")
	lists(t, w.Name, "held")
	harness.Eventually(t, func(ctx context.Context) error {
		live, err := f.Get(ctx, cluster, w.Name)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(live.Status.Conditions, workv1.WorkDeleting)
		if c == nil || c.Status != metav1.ConditionTrue || c.Reason != "WorkDeleting" || c.Message != "ManifestWork is being deleted" || c.ObservedGeneration == 0 {
			return fmt.Errorf("condition Deleting is %+v", c)
		}
		return nil
	})
	harness.Consistently(t, func(ctx context.Context) error {
		_, err := f.Get(ctx, cluster, w.Name)
		return err
	})
	release(t, ns, "held")
	f.WaitDeleted(t, cluster, w.Name)
}

// TestDeletion_StatusFollowsRemainingObjects: while a deletion waits, the hub shows the remaining objects and their
// present values.
func TestDeletion_StatusFollowsRemainingObjects(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "held-status", heldConfigMapYAML(ns, "held"), harness.ConfigMapYAML(ns, "free", "x"))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{{
		ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: ns, Name: "held"},
		FeedbackRules:      []workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: []workv1.JsonPath{{Name: "left", Path: ".data.left"}}}},
	}}
	w = f.Deliver(t, w)
	f.DeleteWork(t, cluster, w.Name)
	reports := func(status metav1.ConditionStatus, message, value string) {
		t.Helper()
		harness.Eventually(t, func(ctx context.Context) error {
			live, err := f.Get(ctx, cluster, w.Name)
			if err != nil {
				return err
			}
			c := meta.FindStatusCondition(live.Status.Conditions, workv1.WorkAvailable)
			if c == nil || c.Status != status || c.Message != message || c.ObservedGeneration != live.Generation {
				return fmt.Errorf("generation %d, condition Available is %+v", live.Generation, c)
			}
			if !meta.IsStatusConditionTrue(live.Status.Conditions, workv1.WorkDeleting) || !meta.IsStatusConditionTrue(live.Status.Conditions, workv1.WorkApplied) {
				return fmt.Errorf("got %s", harness.StatusText(live))
			}
			values := live.Status.ResourceStatus.Manifests[0].StatusFeedbacks.Values
			if got := len(values) == 1; got != (value != "") || got && *values[0].Value.String != value {
				return fmt.Errorf("values are %+v", values)
			}
			return nil
		})
	}
	reports(metav1.ConditionFalse, "1 of 2 resources are not available", "")
	held := configMap(t, ns, "held")
	held.Data = map[string]string{"left": "3"}
	if _, err := f.API[cluster].Kube.CoreV1().ConfigMaps(ns).Update(t.Context(), held, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	reports(metav1.ConditionFalse, "1 of 2 resources are not available", "3")
	release(t, ns, "held")
	f.WaitDeleted(t, cluster, w.Name)
}

// TestDeletion_ForeignOwnersDoNotProtect: owner references of other kinds do not keep an object.
func TestDeletion_ForeignOwnersDoNotProtect(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	api := f.API[cluster].Kube.CoreV1().ConfigMaps(ns)
	parent, err := api.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "parent"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w := f.Deliver(t, harness.NewWork(t, cluster, "foreign-owner", harness.ConfigMapYAML(ns, "child", "x")))
	child := configMap(t, ns, "child")
	child.OwnerReferences = append(child.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: parent.Name, UID: parent.UID})
	if _, err := api.Update(t.Context(), child, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.Remove(t, cluster, w.Name)
	f.NoConfigMap(t, cluster, ns, "child")
}

// TestDeletion_RefusedIsNotForgotten: an object whose deletion is refused stays on the list, and its work on
// the hub, however often it fails. It is deleted once that is allowed.
func TestDeletion_RefusedIsNotForgotten(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	allow := forbidDeletion(t, ns)
	w := f.Deliver(t, harness.NewWork(t, cluster, "refused", harness.ConfigMapYAML(ns, "kept", "x"), harness.ConfigMapYAML(ns, "kept-too", "x")))
	f.DeleteWork(t, cluster, w.Name)
	harness.Consistently(t, func(ctx context.Context) error {
		if _, err := f.Get(ctx, cluster, w.Name); err != nil {
			return err
		}
		rec, err := f.Applied(ctx, cluster, w.Name)
		if err != nil {
			return err
		}
		if len(rec.Status.AppliedResources) != 2 || len(rec.Finalizers) == 0 {
			return fmt.Errorf("AppliedManifestWork lists %v, finalizers %q", rec.Status.AppliedResources, rec.Finalizers)
		}
		return exist(ctx, ns, "kept", "kept-too")
	})
	allow()
	f.WaitDeleted(t, cluster, w.Name)
	f.NoConfigMap(t, cluster, ns, "kept")
	f.NoConfigMap(t, cluster, ns, "kept-too")
}

// TestDeletion_LastOptionCounts: a delete option that changes shortly before the deletion is used.
func TestDeletion_LastOptionCounts(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := f.Deliver(t, harness.NewWork(t, cluster, "last-option", harness.ConfigMapYAML(ns, "stays", "x")))
	f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
		w.Spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
	})
	f.Remove(t, cluster, w.Name)
	harness.Consistently(t, func(ctx context.Context) error { return exist(ctx, ns, "stays") })
}

// TestDeletion_OfTheRecordIsRepaired: a deleted AppliedManifestWork is created again at once, with its objects.
func TestDeletion_OfTheRecordIsRepaired(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := f.Deliver(t, harness.NewWork(t, cluster, "record", harness.ConfigMapYAML(ns, "one", "x")))
	old, err := f.Applied(t.Context(), cluster, w.Name)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.API[cluster].Work.WorkV1().AppliedManifestWorks().Delete(t.Context(), old.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, func(ctx context.Context) error {
		rec, err := f.Applied(ctx, cluster, w.Name)
		if err != nil {
			return err
		}
		if rec.UID == old.UID {
			return errors.New("the old AppliedManifestWork is still there")
		}
		return f.Owners(ctx, cluster, ns, "one", w.Name)
	})
}

// orphaning returns a delete option that keeps one ConfigMap.
func orphaning(ns, name string) *workv1.DeleteOption {
	return &workv1.DeleteOption{
		PropagationPolicy: workv1.DeletePropagationPolicyTypeSelectivelyOrphan,
		SelectivelyOrphan: &workv1.SelectivelyOrphan{OrphaningRules: []workv1.OrphaningRule{{Resource: "configmaps", Namespace: ns, Name: name}}},
	}
}

func heldConfigMapYAML(ns, name string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: %s, finalizers: [%s]}\n", name, ns, hold)
}

// release removes the finalizer of a ConfigMap.
func release(t *testing.T, ns, name string) {
	t.Helper()
	typ, patch := harness.MergePatch(map[string]any{"metadata": map[string]any{"finalizers": nil}})
	if _, err := shared.API[cluster].Kube.CoreV1().ConfigMaps(ns).Patch(t.Context(), name, typ, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// forbidDeletion makes the cluster reject deletions of ConfigMaps in a namespace, until allow is called.
func forbidDeletion(t *testing.T, ns string) (allow func()) {
	t.Helper()
	api := shared.API[cluster].Dynamic
	objects := []struct {
		resource string
		body     map[string]any
	}{
		{"validatingadmissionpolicies", map[string]any{
			"kind": "ValidatingAdmissionPolicy", "metadata": map[string]any{"name": ns},
			"spec": map[string]any{
				"failurePolicy":    "Fail",
				"matchConstraints": map[string]any{"resourceRules": []any{map[string]any{"apiGroups": []any{""}, "apiVersions": []any{"v1"}, "operations": []any{"DELETE"}, "resources": []any{"configmaps"}}}},
				"validations":      []any{map[string]any{"expression": "false", "message": "not now"}},
			},
		}},
		{"validatingadmissionpolicybindings", map[string]any{
			"kind": "ValidatingAdmissionPolicyBinding", "metadata": map[string]any{"name": ns},
			"spec": map[string]any{
				"policyName": ns, "validationActions": []any{"Deny"},
				"matchResources": map[string]any{"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": ns}}},
			},
		}},
	}
	gvr := func(resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: resource}
	}
	for _, o := range objects {
		o.body["apiVersion"] = "admissionregistration.k8s.io/v1"
		if _, err := api.Resource(gvr(o.resource)).Create(t.Context(), &unstructured.Unstructured{Object: o.body}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	probe := shared.API[cluster].Kube.CoreV1().ConfigMaps(ns)
	if _, err := probe.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, func(ctx context.Context) error { // a new policy needs a moment to be in force
		err := probe.Delete(ctx, "probe", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return errors.New("deletion is not refused yet")
		}
		return nil
	})
	return func() {
		for _, o := range objects {
			if err := api.Resource(gvr(o.resource)).Delete(context.WithoutCancel(t.Context()), ns, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}
	}
}
