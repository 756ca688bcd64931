package manifestwork

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

// agentObject is an object that an agent needs, and a manifest that would damage it.
type agentObject struct {
	schema.GroupVersionResource
	namespace, name, manifest string
}

// livedBy returns the objects that the agent of this cluster needs, and the namespace of another hub's agent.
func livedBy(t *testing.T, other string) []agentObject {
	t.Helper()
	api, ctx := shared.API[cluster], t.Context()
	leases, err := api.Kube.CoordinationV1().Leases("hawser").List(ctx, metav1.ListOptions{})
	if err != nil || len(leases.Items) == 0 {
		t.Fatalf("the agent has no Lease: %v", err)
	}
	book := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "hawser-agent-identities"}}
	if _, err := api.Kube.CoreV1().ConfigMaps(other).Create(ctx, book, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	core, rbac := schema.GroupVersion{Version: "v1"}, schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	var objects []agentObject
	add := func(gv schema.GroupVersion, resource, kind, namespace, name, rest string) {
		manifest := fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s, namespace: %q, labels: {taken: away}}\n%s\n", gv, kind, name, namespace, rest)
		objects = append(objects, agentObject{gv.WithResource(resource), namespace, name, manifest})
	}
	for _, l := range leases.Items {
		add(schema.GroupVersion{Group: "coordination.k8s.io", Version: "v1"}, "leases", "Lease", "hawser", l.Name, "spec: {holderIdentity: other, leaseDurationSeconds: 86400, renewTime: '2100-01-01T00:00:00.000000Z'}")
	}
	add(core, "namespaces", "Namespace", "", "hawser", "")
	add(core, "namespaces", "Namespace", "", other, "")
	add(core, "serviceaccounts", "ServiceAccount", "hawser", "hawser-agent", "")
	add(core, "configmaps", "ConfigMap", "hawser", "hawser-agent-identities", "data: {}")
	add(rbac, "roles", "Role", "hawser", "hawser-agent", "rules: []")
	add(rbac, "clusterrolebindings", "ClusterRoleBinding", "", "hawser-agent", "roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: hawser-agent}\nsubjects: []")
	return objects
}

func (o agentObject) read(ctx context.Context) (*unstructured.Unstructured, error) {
	api := shared.API[cluster].Dynamic.Resource(o.GroupVersionResource)
	if o.namespace == "" {
		return api.Get(ctx, o.name, metav1.GetOptions{})
	}
	return api.Namespace(o.namespace).Get(ctx, o.name, metav1.GetOptions{})
}

// TestProtect_NoWorkTakesAnAgentAway: a work contains the agent's own Lease, namespace, rights and claims, and
// another hub's namespace. It removes none of them, neither when it is applied nor when it is deleted. The rest
// of it is applied, and the agent continues.
func TestProtect_NoWorkTakesAnAgentAway(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	other := ns + "-hub2"
	spaces := f.API[cluster].Kube.CoreV1().Namespaces()
	if _, err := spaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := spaces.Delete(context.Background(), other, metav1.DeleteOptions{}); err != nil {
			t.Errorf("clean up namespace %s: %v", other, err)
		}
	})
	objects := livedBy(t, other)
	manifests := []string{harness.ConfigMapYAML(ns, "one", "x")}
	uids := map[string]string{}
	for _, o := range objects {
		manifests = append(manifests, o.manifest)
		live, err := o.read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		uids[o.Resource+o.name] = string(live.GetUID())
	}
	w := f.Create(t, harness.NewWork(t, cluster, "takes-agent", manifests...))
	for i, o := range objects {
		c := f.ManifestCondition(t, w, i+1, workv1.ManifestApplied, func(c metav1.Condition) bool { return c.Status == metav1.ConditionFalse })
		if c.Reason != "AppliedManifestFailed" || !strings.Contains(c.Message, "agents on this cluster need") {
			t.Errorf("%s %s: got %+v", o.Resource, o.name, c)
		}
	}
	f.HasValue(t, cluster, ns, "one", "x")
	lists(t, w.Name, "one")
	f.Remove(t, cluster, w.Name)
	f.NoConfigMap(t, cluster, ns, "one")
	for _, o := range objects {
		live, err := o.read(t.Context())
		if err != nil || string(live.GetUID()) != uids[o.Resource+o.name] || live.GetDeletionTimestamp() != nil || live.GetLabels()["taken"] != "" || len(live.GetOwnerReferences()) > 0 {
			t.Errorf("%s %s: %v, %v", o.Resource, o.name, live, err)
		}
	}
	f.Deliver(t, harness.NewWork(t, cluster, "agent-goes-on", harness.ConfigMapYAML(ns, "two", "x")))
}
