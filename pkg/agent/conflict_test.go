package agent

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

// applied is a work whose Deployment is applied on the server.
func applied(replicas string) *workv1.ManifestWork {
	w := hubWork("w-1", "web", 1, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"default"},"spec":{"replicas":`+replicas+`,"paused":true}}`)
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{{
		ResourceIdentifier: workv1.ResourceIdentifier{Group: "apps", Resource: "deployments", Namespace: "*", Name: "*"},
		UpdateStrategy:     &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeServerSideApply},
	}}
	return w
}

var theirs = kubeclient.FieldManager{Name: "theirs"}

func (r *rig) theirs(spec map[string]any) {
	r.t.Helper()
	if err := r.f.Apply(clustertest.Object("apps/v1", "Deployment", "default", "web", "spec", spec), theirs); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) wantApplied(status metav1.ConditionStatus, message string) {
	r.t.Helper()
	s := r.statuses["w-1"].Status
	if len(s.ResourceStatus.Manifests) != 1 {
		r.t.Fatalf("got %v", s)
	}
	for _, c := range s.ResourceStatus.Manifests[0].Conditions {
		if c.Type == workv1.ManifestApplied && c.Status == status && strings.HasPrefix(c.Message, message) {
			return
		}
	}
	r.t.Fatalf("want Applied=%s %q, got %v", status, message, s.ResourceStatus.Manifests[0].Conditions)
}

func TestCore_FieldConflictIsReportedAndTriedAgain(t *testing.T) {
	r := newRig(t)
	r.theirs(map[string]any{"replicas": int64(1)})
	r.apply(applied("3"))
	const conflict = `Failed to apply manifest: Apply failed with 1 conflict: conflict with "theirs": .spec.replicas`
	r.wantApplied(metav1.ConditionFalse, conflict)
	if key := r.core.keyOf("web"); r.failures[key] > 0 {
		t.Errorf("a conflict backs off: %v", r.lastErr[key])
	}
	r.requests()
	r.settle(conflictRetry - 2*time.Second)
	r.expectRequests() // there is no retry before conflictRetry
	r.settle(time.Minute)
	r.expectRequests("get deployments.apps default/web", "apply deployments.apps default/web")
	r.wantApplied(metav1.ConditionFalse, conflict)

	// The other manager releases the field. Its value is the default, so not even the generation changes.
	r.theirs(map[string]any{"minReadySeconds": int64(1)})
	r.settle(time.Second)
	r.wantApplied(metav1.ConditionTrue, "")
	if n, _, _ := unstructured.NestedInt64(r.f.Look(r.ref("Deployment", "web")).Object, "spec", "replicas"); n != 3 {
		t.Errorf("got %d replicas", n)
	}
}

func TestCore_FieldConflictEndsWithTheManifest(t *testing.T) {
	r := newRig(t)
	r.theirs(map[string]any{"replicas": int64(1)})
	r.apply(applied("3"))
	r.wantApplied(metav1.ConditionFalse, "")
	w := applied("1")
	w.Generation = 2
	r.apply(w)
	r.wantApplied(metav1.ConditionTrue, "")
	r.requests()
	r.settle(10 * time.Minute)
	r.expectRequests()
}

func TestCore_FieldConflictReturnsWhenAFieldIsTaken(t *testing.T) {
	r := newRig(t)
	r.apply(applied("3"))
	r.f.Edit(r.ref("Deployment", "web"), func(o *unstructured.Unstructured) { o.Object["spec"].(map[string]any)["replicas"] = int64(7) })
	r.settle(time.Second)
	r.wantApplied(metav1.ConditionFalse, `Failed to apply manifest: Apply failed with 1 conflict: conflict with "others" using apps/v1`)
	r.f.Edit(r.ref("Deployment", "web"), func(o *unstructured.Unstructured) { o.Object["spec"].(map[string]any)["replicas"] = int64(3) })
	r.settle(time.Second)
	r.wantApplied(metav1.ConditionTrue, "")
}
