package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

func (r *rig) hold(ref ref) {
	r.f.Edit(ref, func(o *unstructured.Unstructured) { o.SetFinalizers([]string{"example.com/hold"}) })
	r.settle(time.Second)
}

// deletionWaits is the Deleting condition of a work that has waited long for an object.
func deletionWaits(object string, left int) string {
	return fmt.Sprintf("Deleting=True/WorkDeletionBlocked: waits for finalizers: %s: example.com/hold; their controller must remove them: "+
		"check that it runs on the cluster, or remove them from the object if it is gone for good; objects left: %d", object, left)
}

func available(n, of int) string {
	return fmt.Sprintf("Available=False/ResourcesNotAvailable: %d of %d resources are not available", n, of)
}

// While a deletion waits, an operator sees the remaining objects and the values that show the reason.
func TestCore_StatusWhileADeletionWaits(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, configMap("free", "1"), deployment("held", "1"), configMap("orphan", "1"))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{config("apps", "deployments", "held", wellKnownStatus, celRule("Down", "object.?status.readyReplicas.orValue(0) == 0"))}
	w.Spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeSelectivelyOrphan, SelectivelyOrphan: &workv1.SelectivelyOrphan{
		OrphaningRules: []workv1.OrphaningRule{{Resource: "configmaps", Namespace: "default", Name: "orphan"}},
	}}
	r.apply(w)
	r.status("Deployment", "held", `{"replicas":2,"readyReplicas":2}`)
	r.hold(r.ref("Deployment", "held"))
	r.expectStatus("w-1", workApplied, workAvailable, "Down=False/ConditionRulesAggregated: Manifest is not Down")
	w = w.DeepCopy()
	w.Generation = 2
	r.delete(w)
	down := "Down=False/ConditionRuleEvaluated: Manifest is not Down"
	r.expectStatus("w-1", workApplied, available(1, 3), "Down=False/ConditionRulesAggregated: Manifest is not Down", workDeleting)
	r.expectManifest("w-1", 0, manifestApplied, resourceNotThere, noFeedback)
	r.expectManifest("w-1", 1, manifestApplied, resourceThere, down, synced)
	r.expectManifest("w-1", 2, manifestApplied, resourceThere, noFeedback)
	s := r.statuses["w-1"].Status
	if g := condition(s.Conditions, workv1.WorkAvailable).ObservedGeneration; g != 2 {
		t.Errorf("Available is about generation %d", g)
	}
	deleting := condition(s.Conditions, workv1.WorkDeleting).LastTransitionTime

	r.settle(2 * time.Minute)
	r.requests()
	r.status("Deployment", "held", `{"replicas":1,"readyReplicas":null}`)
	r.settle(time.Second)
	r.expectValues("w-1", 1, "Replicas=1")
	r.expectStatus("w-1", workApplied, available(1, 3), "Down=True/ConditionRulesAggregated: Manifest is Down", deletionWaits("Deployment default/held", 1))
	r.f.Remove(r.ref("ConfigMap", "orphan")) // a deleted work is not repaired
	r.settle(time.Second)
	r.expectStatus("w-1", workApplied, available(2, 3), "Down=True/ConditionRulesAggregated: Manifest is Down", deletionWaits("Deployment default/held", 1))
	r.expectManifest("w-1", 2, manifestApplied, resourceNotThere, noFeedback)
	if slices.Contains(r.requests(), "get configmaps default/free") {
		t.Error("a deleted object was read again")
	}
	if at := condition(r.statuses["w-1"].Status.Conditions, workv1.WorkDeleting).LastTransitionTime; !at.Equal(&deleting) {
		t.Errorf("it is being deleted since %v, not %v", deleting, at)
	}

	r.f.Refuse = func(c clustertest.Call) error {
		if c.Verb == "get" && c.Ref.Name == "held" {
			return apierrors.NewServiceUnavailable("away")
		}
		return nil
	}
	r.status("Deployment", "held", `{"replicas":3}`)
	r.settle(time.Second)
	r.expectManifest("w-1", 1, manifestApplied, "Available=Unknown/FetchingResourceFailed: Failed to fetch resource: away", "Down=True/ConditionRuleEvaluated: Manifest is Down", synced)
	r.f.Refuse = nil

	// An agent that restarts in the meantime learns the work from its deletion event.
	r.restart()
	r.delete(w)
	r.expectStatus("w-1", workDeleting, available(2, 3), "Down=True/ConditionRulesAggregated: Manifest is Down")
	r.expectValues("w-1", 1, "Replicas=3")

	r.f.Edit(r.ref("Deployment", "held"), func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
	r.settle(time.Second)
	if !r.statuses["w-1"].Deleted {
		t.Error("the end of the wait is not noticed at once")
	}
}

// An object changes all the time while its work waits for its removal.
func TestCore_DeletionDoesNotReadAllTheTime(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, deployment("held", "1"))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{config("apps", "deployments", "held", wellKnownStatus)}
	r.apply(w)
	r.hold(r.ref("Deployment", "held"))
	r.delete(w)
	r.settle(10 * time.Minute)
	r.requests()
	n := 0
	for i := range 600 {
		r.status("Deployment", "held", fmt.Sprintf(`{"replicas":%d}`, i)) // status also clears the requests so far
		r.settle(100 * time.Millisecond)
		n += len(r.requests())
	}
	r.settle(2 * time.Second)
	r.expectValues("w-1", 0, "Replicas=599")
	if n > 120 {
		t.Errorf("%d requests in a minute", n)
	}
}

// The kind is gone but was known once: the status still identifies the object.
func TestCore_StatusWhileADeletionOutlivesAKind(t *testing.T) {
	r := newRig(t)
	r.f.Put(ropeDefinition())
	rope := `{"apiVersion":"example.com/v1","kind":"Rope","metadata":{"name":"r","namespace":"default"}}`
	w := hubWork("w-1", "web", 1, rope, configMap("held", "1"))
	r.apply(w)
	r.hold(r.ref("ConfigMap", "held"))
	r.f.Remove(r.f.Ref("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "ropes.example.com"))
	r.delete(w)
	r.expectManifest("w-1", 0, manifestApplied, resourceNotThere, noFeedback)
	if m := r.statuses["w-1"].Status.ResourceStatus.Manifests[0].ResourceMeta; m.Resource != "ropes" {
		t.Errorf("got %+v", m)
	}
	r.expectStatus("w-1", workApplied, available(1, 2), workDeleting)
}

// Objects that an executor may not read are also not reported while its work is deleted.
func TestCore_DeletionStatusHidesUnreadableObjects(t *testing.T) {
	for _, verbs := range []string{everyVerb, "create update patch delete"} {
		r, _ := newExecutorRig(t, false)
		r.grant("maps", "", "configmaps", everyVerb)
		w := as(hubWork("1", "w", 1, configMap("a", "1")))
		w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{config("", "configmaps", "a", []workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: []workv1.JsonPath{{Name: "k", Path: ".data.k"}}}})}
		r.apply(w)
		r.hold(r.ref("ConfigMap", "a"))
		r.expectValues("1", 0, "k=1")
		r.grant("maps", "", "configmaps", verbs)
		r.delete(w)
		r.f.Edit(r.ref("ConfigMap", "a"), func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"k": "2"} })
		r.settle(5 * time.Second)
		if strings.Contains(verbs, "get") {
			r.expectValues("1", 0, "k=2")
		} else {
			r.expectValues("1", 0)
			r.expectManifest("1", 0, manifestApplied, resourceThere, "StatusFeedbackSynced=False/StatusFeedbackSyncFailed: Sync status feedback failed with error the executor is not allowed to get the object")
		}
	}
}
