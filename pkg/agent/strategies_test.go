package agent

import (
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

func byStrategy(w *workv1.ManifestWork, typ workv1.UpdateStrategyType) *workv1.ManifestWork {
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{{
		ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "default", Name: "*"},
		UpdateStrategy:     &workv1.UpdateStrategy{Type: typ},
	}}
	return w
}

func TestCore_ReadOnlyFollowsTheObject(t *testing.T) {
	r := newRig(t)
	w := byStrategy(hubWork("w-1", "web", 1, configMap("a", "1")), workv1.UpdateStrategyTypeReadOnly)
	r.apply(w)
	const nothing = "Available=False/ResourcesNotAvailable: 1 of 1 resources are not available"
	r.expectStatus("w-1", workApplied, nothing)
	r.expectManifest("w-1", 0, manifestApplied, resourceNotThere)
	r.expectListed("web")

	r.f.Put(clustertest.Object("v1", "ConfigMap", "default", "a"))
	r.settle(time.Second)
	r.expectStatus("w-1", workApplied, workAvailable)
	r.expectListed("web", "configmaps default/a")

	r.f.Remove(r.ref("ConfigMap", "a"))
	r.settle(time.Second)
	r.expectStatus("w-1", workApplied, nothing)
	r.expectListed("web")

	before := r.f.Put(clustertest.Object("v1", "ConfigMap", "default", "a"))
	r.settle(time.Second)
	r.expectListed("web", "configmaps default/a")
	r.requests()
	r.settle(30 * time.Minute)
	r.expectRequests()
	r.delete(w)
	if after := r.configMap("a"); after == nil || after.GetResourceVersion() != before.GetResourceVersion() {
		t.Errorf("got %v, want it untouched", after)
	}
	r.expectStatus("w-1", workApplied, workAvailable, workDeleting, workDeleted)
}

func TestCore_ReadOnlyDroppedFromTheWorkStays(t *testing.T) {
	r := newRig(t)
	before := r.f.Put(clustertest.Object("v1", "ConfigMap", "default", "a"))
	r.apply(byStrategy(hubWork("w-1", "web", 1, configMap("a", "1"), configMap("b", "1")), workv1.UpdateStrategyTypeReadOnly))
	r.expectListed("web", "configmaps default/a")
	r.apply(byStrategy(hubWork("w-1", "web", 2, configMap("b", "1")), workv1.UpdateStrategyTypeReadOnly))
	r.expectListed("web")
	if after := r.configMap("a"); after == nil || after.GetResourceVersion() != before.GetResourceVersion() {
		t.Errorf("got %v, want it untouched", after)
	}
}

func TestCore_RetriesFailedRead_ReadOnly(t *testing.T) {
	r := newRig(t)
	r.f.Put(clustertest.Object("v1", "ConfigMap", "default", "a"))
	away := true
	r.f.Refuse = func(c clustertest.Call) error {
		if away && c.Ref.Resource == "configmaps" {
			return apierrors.NewServiceUnavailable("away")
		}
		return nil
	}
	r.apply(byStrategy(hubWork("w-1", "web", 1, configMap("a", "1")), workv1.UpdateStrategyTypeReadOnly))
	r.expectManifest("w-1", 0, manifestApplied, "Available=Unknown/FetchingResourceFailed: Failed to fetch resource: away")
	away = false
	r.settle(5 * time.Second)
	r.expectStatus("w-1", workApplied, workAvailable)
}

// After any other strategy, ReadOnly does not even remove the owner reference.
func TestCore_ReadOnlyLaterStaysOwned(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	before := r.configMap("a")
	w := byStrategy(hubWork("w-1", "web", 2, configMap("a", "2")), workv1.UpdateStrategyTypeReadOnly)
	r.apply(w)
	if after := r.configMap("a"); after.GetResourceVersion() != before.GetResourceVersion() {
		t.Fatalf("written: %v", after)
	}
	r.delete(w)
	if r.configMap("a") != nil {
		t.Fatal("an object with the work's reference outlived the work")
	}
}

func TestCore_CreateOnlyLeavesDriftAlone(t *testing.T) {
	r := newRig(t)
	w := byStrategy(hubWork("w-1", "web", 1, configMap("a", "1")), workv1.UpdateStrategyTypeCreateOnly)
	r.apply(w)
	r.f.Edit(r.ref("ConfigMap", "a"), func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"k": "drift"} })
	edited := r.configMap("a").GetResourceVersion()
	r.settle(2 * time.Hour)
	r.apply(byStrategy(hubWork("w-1", "web", 2, configMap("a", "2")), workv1.UpdateStrategyTypeCreateOnly))
	if after := r.configMap("a"); after.GetResourceVersion() != edited {
		t.Fatalf("written: %v", after)
	}
	r.f.Edit(r.ref("ConfigMap", "a"), func(o *unstructured.Unstructured) { o.SetOwnerReferences(nil) })
	r.settle(time.Second)
	if after := r.configMap("a"); len(after.GetOwnerReferences()) != 1 {
		t.Fatal("the owner reference did not come back")
	}
	r.f.Remove(r.ref("ConfigMap", "a"))
	r.settle(time.Second)
	if got, _, _ := unstructured.NestedString(r.configMap("a").Object, "data", "k"); got != "2" {
		t.Fatalf("created again with %q", got)
	}
	r.delete(w)
	if r.configMap("a") != nil {
		t.Fatal("the object outlived the work")
	}
}
