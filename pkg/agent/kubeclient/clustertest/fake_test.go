package clustertest_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

func TestFake_Suite(t *testing.T) {
	clustertest.Run(t, clustertest.New(), "default")
}

func TestFake_CollectGarbageTakesObjectsWithoutOwner(t *testing.T) {
	f := clustertest.New()
	owners := func(names ...string) (refs []metav1.OwnerReference) {
		for _, n := range names {
			o := f.Look(f.Ref("v1", "ConfigMap", "default", n))
			refs = append(refs, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: n, UID: o.GetUID()})
		}
		return refs
	}
	put := func(name string, own ...string) kubeclient.Ref {
		o := clustertest.Object("v1", "ConfigMap", "default", name)
		o.SetOwnerReferences(owners(own...))
		f.Put(o)
		return f.Ref("v1", "ConfigMap", "default", name)
	}
	a, b := put("a"), put("b")
	child, shared, grandchild := put("child", "a"), put("shared", "a", "b"), put("grandchild", "child")
	f.CollectGarbage()
	if f.Look(child) == nil {
		t.Fatal("an owned object was collected")
	}
	f.Remove(a)
	f.CollectGarbage()
	for ref, want := range map[kubeclient.Ref]bool{a: false, b: true, child: false, shared: true, grandchild: false} {
		if got := f.Look(ref) != nil; got != want {
			t.Errorf("%v: exists %v, want %v", ref, got, want)
		}
	}
}

func TestFake_NamespaceTakesItsObjects(t *testing.T) {
	f := clustertest.New()
	f.Put(clustertest.Object("v1", "Namespace", "", "n"))
	f.Put(clustertest.Object("v1", "ConfigMap", "n", "a"))
	f.Remove(f.Ref("v1", "Namespace", "", "n"))
	if f.Look(f.Ref("v1", "ConfigMap", "n", "a")) != nil {
		t.Fatal("the object survived its namespace")
	}
}
