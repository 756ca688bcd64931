package agent

import (
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

const heldText = "waits for finalizers: ConfigMap default/a: example.com/hold; their controller must remove them: " +
	"check that it runs on the cluster, or remove them from the object if it is gone for good"

// removalWaits is the ReconcileSlow condition of a live work that has waited long for objects to be removed.
func removalWaits(why string, left int) string {
	return fmt.Sprintf("ReconcileSlow=True/RemovalBlocked: %s; objects left: %d", why, left)
}

func (r *rig) release() {
	r.f.Edit(r.ref("ConfigMap", "a"), func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
	r.settle(time.Second)
}

// deleteObject deletes an object as another client does.
func (r *rig) deleteObject(ref ref) {
	r.t.Helper()
	if err := r.f.Delete(r.t.Context(), ref, r.f.Look(ref).GetUID()); err != nil {
		r.t.Fatal(err)
	}
}

// A manifest is removed from a live work, and its object has a finalizer.
func TestCore_PruningReportsBlocker(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1"), configMap("b", "1")))
	r.hold(r.ref("ConfigMap", "a"))
	r.deliver(hubWork("w-1", "web", 2, configMap("b", "1")))
	r.settle(stuckAfter - time.Second)
	r.expectStatus("w-1", workApplied, workAvailable)
	r.settle(time.Second)
	r.expectStatus("w-1", workApplied, workAvailable, removalWaits(heldText, 1))
	r.apply(hubWork("w-1", "web", 3, configMap("b", "2")))
	r.expectStatus("w-1", workApplied, workAvailable, removalWaits(heldText, 1))
	r.release()
	r.expectStatus("w-1", workApplied, workAvailable)
}

// A manifest is renamed while a webhook denies the deletion.
func TestCore_PruningReportsDenial(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	denied := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "a", nil)
	denied.ErrStatus.Message = `admission webhook "guard.example.com" denied the request: keep it`
	r.f.Refuse = func(c clustertest.Call) error {
		if c.Verb == "delete" && c.Ref.Name == "a" {
			return denied
		}
		return nil
	}
	r.deliver(hubWork("w-1", "web", 2, configMap("b", "1")))
	r.settle(stuckAfter - time.Second)
	r.expectStatus("w-1", workApplied, workAvailable)
	r.settle(time.Second)
	r.expectStatus("w-1", workApplied, workAvailable,
		removalWaits(`denied: delete `+r.ref("ConfigMap", "a").String()+`: admission webhook "guard.example.com" denied the request: keep it`, 1))
	r.f.Refuse = nil
	r.settle(5 * time.Minute)
	r.expectStatus("w-1", workApplied, workAvailable)
	if r.configMap("a") != nil {
		t.Error("the object is still there")
	}
}

// Another client deletes an object of a live work that has a finalizer.
func TestCore_DeletedObjectOfLiveWorkReportsBlocker(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1"), configMap("b", "1")))
	r.hold(r.ref("ConfigMap", "a"))
	r.deleteObject(r.ref("ConfigMap", "a"))
	r.settle(stuckAfter - time.Second)
	r.expectManifest("w-1", 0, manifestApplied, resourceThere, noFeedback)
	r.settle(3 * time.Second)
	failed := "Applied=False/AppliedManifestFailed: Failed to apply manifest: the object is being deleted and will be created again when it is gone: it " + heldText
	r.expectManifest("w-1", 0, failed, resourceThere, noFeedback)
	r.expectManifest("w-1", 1, manifestApplied, resourceThere, noFeedback)
	r.reconcile(r.core.keyOf("web")) // the watch has shown no change of the object
	r.settle(time.Second)
	r.expectManifest("w-1", 0, failed, resourceThere, noFeedback)
	r.release()
	r.expectStatus("w-1", workApplied, workAvailable)
	r.expectManifest("w-1", 0, manifestApplied, resourceThere, noFeedback)
	if o := r.configMap("a"); o == nil || o.GetDeletionTimestamp() != nil {
		t.Error("the object is not created again")
	}
}

// Another client deletes the AppliedManifestWork of a live work, and an object has a finalizer.
func TestCore_DeletedRecordOfLiveWorkReportsBlocker(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1"), configMap("b", "1")))
	r.hold(r.ref("ConfigMap", "a"))
	r.deleteObject(appliedwork.Ref(appliedwork.Name(testHubHash, "web")))
	r.settle(stuckAfter - time.Second)
	r.expectStatus("w-1", workApplied, workAvailable)
	r.settle(3 * time.Second)
	r.expectStatus("w-1", workApplied, workAvailable, removalWaits(heldText, 1))
	r.release()
	r.settle(time.Minute)
	r.expectStatus("w-1", workApplied, workAvailable)
}
