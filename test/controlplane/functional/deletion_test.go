package functional

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

func TestNamespace_DeletionTakesItsContentWithIt(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	configMap(t, ns, "content")
	if _, err := shared.typed.CoreV1().Pods(ns).Create(t.Context(),
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: podTemplate("web").Spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := shared.typed.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "end of the namespace", gone(func(ctx context.Context) error {
		_, err := shared.typed.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
		return err
	}))
}

func TestPod_DeletionWaitsForFinalizers(t *testing.T) {
	t.Parallel()
	ns, ctx := namespace(t), t.Context()
	pods := shared.typed.CoreV1().Pods(ns)
	if _, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Finalizers: []string{"test.hawser.dev/hold"}},
		Spec:       podTemplate("web").Spec,
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "pod Running", func(ctx context.Context) (bool, error) {
		p, err := pods.Get(ctx, "web", metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodRunning, err
	})
	if err := pods.Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "pod ended but held", func(ctx context.Context) (bool, error) {
		p, err := pods.Get(ctx, "web", metav1.GetOptions{})
		return err == nil && p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0, err
	})
	if _, err := pods.Patch(ctx, "web", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "end of the pod", gone(func(ctx context.Context) error {
		_, err := pods.Get(ctx, "web", metav1.GetOptions{})
		return err
	}))
}

func TestGarbageCollector_ForegroundDeletionWaitsForDependents(t *testing.T) {
	t.Parallel()
	ns, ctx := namespace(t), t.Context()
	owner := configMap(t, ns, "owner")
	dependent := configMap(t, ns, "dependent", metav1.OwnerReference{
		APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, BlockOwnerDeletion: new(true),
	})
	patch := func(finalizers string) {
		t.Helper()
		if _, err := shared.typed.CoreV1().ConfigMaps(ns).Patch(ctx, dependent.Name, types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"finalizers":%s}}`, finalizers), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	patch(`["test.hawser.dev/hold"]`)
	foreground := metav1.DeletePropagationForeground
	if err := shared.typed.CoreV1().ConfigMaps(ns).Delete(ctx, owner.Name, metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "dependent being deleted", func(ctx context.Context) (bool, error) {
		got, err := shared.typed.CoreV1().ConfigMaps(ns).Get(ctx, dependent.Name, metav1.GetOptions{})
		return err == nil && got.DeletionTimestamp != nil, err
	})
	if err := getConfigMap(ns, owner.Name)(ctx); err != nil {
		t.Errorf("the owner went before its dependent: %v", err)
	}
	patch("null")
	eventually(t, "end of the owner", gone(getConfigMap(ns, owner.Name)))
	if err := getConfigMap(ns, dependent.Name)(ctx); !apierrors.IsNotFound(err) {
		t.Errorf("the dependent outlived its owner: %v", err)
	}
}

var crds = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

const anchorCRD = `{
  "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
  "metadata": {"name": "anchors.test.hawser.dev"},
  "spec": {
    "group": "test.hawser.dev", "scope": "Namespaced", "names": {"kind": "Anchor", "plural": "anchors"},
    "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]
  }
}`

// TestGarbageCollector_CollectsDependentsOfANewKind: kube-controller-manager needs up to 40 s for this.
func TestGarbageCollector_CollectsDependentsOfANewKind(t *testing.T) {
	t.Parallel()
	ns, ctx := namespace(t), t.Context()
	var crd unstructured.Unstructured
	if err := crd.UnmarshalJSON([]byte(anchorCRD)); err != nil {
		t.Fatal(err)
	}
	if _, err := shared.dynamic.Resource(crds).Create(ctx, &crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	anchors := shared.dynamic.Resource(schema.GroupVersionResource{Group: "test.hawser.dev", Version: "v1", Resource: "anchors"}).Namespace(ns)
	var owner *unstructured.Unstructured
	eventually(t, "first object of the new kind", found(func(ctx context.Context) error {
		var err error
		owner, err = anchors.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "test.hawser.dev/v1", "kind": "Anchor", "metadata": map[string]any{"name": "owner"},
		}}, metav1.CreateOptions{})
		return err
	}))
	configMap(t, ns, "dependent", metav1.OwnerReference{
		APIVersion: "test.hawser.dev/v1", Kind: "Anchor", Name: owner.GetName(), UID: owner.GetUID(),
	})
	if err := anchors.Delete(ctx, "owner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "end of the dependent", gone(getConfigMap(ns, "dependent")))
}
