package registration

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clusterv1 "open-cluster-management.io/api/cluster/v1"
)

// TestSecret_TwoWriters: content that was read is overwritten; content that another process wrote is not.
func TestSecret_TwoWriters(t *testing.T) {
	kube := fake.NewClientset()
	open := func() *Secret { return &Secret{Client: kube.CoreV1().Secrets("hawser"), Name: "s"} }
	data := func(v string) map[string][]byte { return map[string][]byte{"k": []byte(v)} }
	a, b := open(), open()
	if d, err := a.Load(t.Context()); d != nil || err != nil {
		t.Fatalf("%v, %v", d, err)
	}
	for _, v := range []string{"1", "2"} {
		if err := a.Save(t.Context(), data(v)); err != nil {
			t.Fatal(err)
		}
	}
	o, err := kube.CoreV1().Secrets("hawser").Get(t.Context(), "s", metav1.GetOptions{})
	if err != nil || !maps.Equal(o.Labels, map[string]string{"hawser.dev/agent": "true"}) {
		t.Errorf("labels %v, %v", o.Labels, err)
	}
	if d, err := b.Load(t.Context()); err != nil || string(d["k"]) != "2" {
		t.Fatalf("%v, %v", d, err)
	}
	o.Labels = nil // an operator created it
	if _, err = kube.CoreV1().Secrets("hawser").Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := b.Save(t.Context(), data("3")); err != nil {
		t.Fatal(err)
	}
	if o, err = kube.CoreV1().Secrets("hawser").Get(t.Context(), "s", metav1.GetOptions{}); err != nil || o.Labels["hawser.dev/agent"] != "true" {
		t.Errorf("labels %v, %v: works may have it", o.Labels, err)
	}
	if err := a.Save(t.Context(), data("4")); !errors.Is(err, ErrTaken) {
		t.Errorf("got %v", err)
	}
	if err := kube.CoreV1().Secrets("hawser").Delete(t.Context(), "s", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := b.Save(t.Context(), data("5")); err != nil {
		t.Errorf("a deleted Secret is not made again: %v", err)
	}
}

// TestSecret_LostAnswer: a write that succeeded although it returned an error does not count as one of another
// process.
func TestSecret_LostAnswer(t *testing.T) {
	kube := fake.NewClientset()
	s := &Secret{Client: kube.CoreV1().Secrets("hawser"), Name: "s"}
	if err := s.Save(t.Context(), map[string][]byte{"k": []byte("1")}); err != nil {
		t.Fatal(err)
	}
	lost := true
	kube.PrependReactor("update", "secrets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if !lost {
			return false, nil, nil
		}
		lost = false
		err := kube.Tracker().Update(a.GetResource(), a.(clienttesting.UpdateAction).GetObject(), a.GetNamespace())
		return true, nil, errors.Join(errors.New("timeout"), err)
	})
	if err := s.Save(t.Context(), map[string][]byte{"k": []byte("2")}); err == nil {
		t.Fatal("the answer was not lost")
	}
	if err := s.Save(t.Context(), map[string][]byte{"k": []byte("2")}); err != nil {
		t.Error(err)
	}
}

func node(name string, unschedulable bool) *corev1.Node {
	r := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi")}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Unschedulable: unschedulable}, Status: corev1.NodeStatus{Capacity: r, Allocatable: r}}
}

func claim(name, value string, labels map[string]string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"value": value}}}
	o.SetAPIVersion("cluster.open-cluster-management.io/v1alpha1")
	o.SetKind("ClusterClaim")
	o.SetName(name)
	o.SetLabels(labels)
	return o
}

// TestCluster_Facts: sums over nodes, of allocatable only over schedulable ones; ordered and bounded claims.
func TestCluster_Facts(t *testing.T) {
	kube := fake.NewClientset(node("a", false), node("b", true), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "uid-of-cluster"}})
	objects := []runtime.Object{claim("id.k8s.io", "given", nil), claim("secret", "x", map[string]string{spokeOnly: ""}), claim("platform.open-cluster-management.io", "metal", nil)}
	for i := range 30 {
		objects = append(objects, claim(fmt.Sprintf("claim%02d", i), "v", nil))
	}
	dyn := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{claims: "ClusterClaimList"}, objects...)
	c := &Cluster{Kube: kube, Objects: dyn}
	f, err := c.Facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cpu, free := f.Capacity[clusterv1.ResourceCPU], f.Allocatable[clusterv1.ResourceCPU]
	if !f.Healthy || f.Version == "" || cpu.Value() != 4 || free.Value() != 2 {
		t.Errorf("%+v", f)
	}
	if len(f.Claims) != 3+maxClaims || f.Claims[0] != (clusterv1.ManagedClusterClaim{Name: "id.k8s.io", Value: "given"}) || f.Claims[1].Name != claimVersion || f.Claims[3].Name != "claim00" {
		t.Errorf("claims %v", f.Claims)
	}

	missing := schema.GroupResource{Group: claims.Group, Resource: claims.Resource}
	dyn.PrependReactor("list", "clusterclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(missing, "")
	})
	if f, err = c.Facts(t.Context()); err != nil || len(f.Claims) != 2 || f.Claims[0].Value != "uid-of-cluster" {
		t.Errorf("without the kind: %v, %v", f.Claims, err)
	}
	dyn.PrependReactor("list", "clusterclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewTooManyRequests("later", 1)
	})
	if f, err = c.Facts(t.Context()); !strings.Contains(fmt.Sprint(err), "list the ClusterClaims") || f.Claims != nil || f.Version == "" || f.Capacity == nil {
		t.Errorf("while the cluster is busy: %+v, %v", f, err)
	}
	kube.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", errors.New("no role"))
	})
	if f, err = c.Facts(t.Context()); err == nil || !strings.Contains(err.Error(), "list the nodes") || f.Version == "" || f.Capacity != nil {
		t.Errorf("without a role for nodes: %+v, %v", f, err)
	}
}
