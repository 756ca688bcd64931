package agent

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// The reasons that keep an object that is being deleted, according to the object itself.
func TestKeeps(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const deleted = "2026-01-02T03:03:00Z"
	namespace := func(conditions ...any) map[string]any {
		return map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "shop", "deletionTimestamp": deleted}, "status": map[string]any{"conditions": conditions}}
	}
	pod := func(kind, deleted string) map[string]any {
		return map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"namespace": "shop", "name": "web", "deletionTimestamp": deleted}, "spec": map[string]any{"nodeName": "node1"}}
	}
	condition := func(typ, status, message string) any {
		return map[string]any{"type": typ, "status": status, "message": message}
	}
	held := pod("ConfigMap", deleted)
	held["metadata"].(map[string]any)["finalizers"] = []any{"a/1", "a/2", "a/3", "a/4", "a/5", "a/6", "a/7"}
	used := pod("PersistentVolumeClaim", deleted)
	used["metadata"].(map[string]any)["finalizers"] = []any{"kubernetes.io/pvc-protection"}
	alive := pod("ConfigMap", deleted)
	delete(alive["metadata"].(map[string]any), "deletionTimestamp")
	for name, c := range map[string]struct {
		object map[string]any
		want   string
	}{
		"finalizers":                {held, "waits for finalizers: ConfigMap shop/web: a/1, a/2, a/3, a/4, a/5 and 2 more; their controller must remove them: check that it runs on the cluster, or remove them from the object if it is gone for good"},
		"a finalizer of Kubernetes": {used, "waits for finalizers: PersistentVolumeClaim shop/web: kubernetes.io/pvc-protection; Pods use it: delete them"},
		"a namespace with objects that do not go": {
			namespace(condition("NamespaceContentRemaining", "True", "Some resources are remaining: configmaps. has 1 resource instances"),
				condition("NamespaceFinalizersRemaining", "True", "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances"),
				condition("NamespaceDeletionDiscoveryFailure", "False", "All resources successfully discovered")),
			"waits for its content: Namespace shop: Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances; remove the named objects, or check that their controller runs on the cluster",
		},
		"a namespace without conditions":   {namespace(), ""},
		"a pod whose node does not answer": {pod("Pod", deleted), `waits for its node: Pod shop/web: its grace period is over; check that node "node1" runs, or delete the Pod with --force if the node is gone`},
		"a pod that has time yet":          {pod("Pod", "2026-01-02T03:04:30Z"), ""},
		"an object without finalizers":     {pod("ConfigMap", deleted), ""},
		"an object that is not deleted":    {alive, ""},
	} {
		if got := keeps(&unstructured.Unstructured{Object: c.object}, now); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
	}
}

// A finalizer that is removed in time is not reported. One that stays is reported after ten seconds, also by an
// agent that does not know the content of the work.
func TestCore_DeletionReportsBlocker(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, configMap("a", "1"))
	r.apply(w)
	r.hold(r.ref("ConfigMap", "a"))
	r.deliverDeletion(w)
	r.settle(stuckAfter - time.Second)
	r.expectStatus("w-1", workApplied, workAvailable, workDeleting)
	r.settle(stuckAfter)
	r.expectStatus("w-1", workApplied, workAvailable, deletionWaits("ConfigMap default/a", 1))
	r.f.Edit(r.ref("ConfigMap", "a"), func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
	r.settle(time.Second)
	if !r.statuses["w-1"].Deleted {
		t.Error("the end of the wait is not noticed")
	}
}
