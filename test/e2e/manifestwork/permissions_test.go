package manifestwork

import (
	"context"
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"
	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

// aggregateLabel marks ClusterRoles whose rules the agent gets.
const aggregateLabel = "open-cluster-management.io/aggregate-to-work"

func runtimeClassYAML(name string) string {
	return fmt.Sprintf("apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: %s}\nhandler: none\n", name)
}

// TestPermissions_ForbiddenObjectNamesTheRule: the conditions of a forbidden object name the missing rule. That
// rule is enough, without a change of the work. Other objects do not wait.
func TestPermissions_ForbiddenObjectNamesTheRule(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	class := ns + "-class"
	unknown := fmt.Sprintf("apiVersion: example.net/v1\nkind: Undefined\nmetadata: {name: x, namespace: %s}\n", ns)
	w := f.Create(t, harness.NewWork(t, cluster, "forbidden", runtimeClassYAML(class), harness.ConfigMapYAML(ns, "one", "x"), harness.ConfigMapYAML(ns, "two", "x"), unknown))

	server := fmt.Sprintf(`runtimeclasses.node.k8s.io %q is forbidden: User "system:serviceaccount:hawser:hawser-agent" cannot get resource "runtimeclasses" in API group "node.k8s.io" at the cluster scope`, class)
	const before = `; if it is to be allowed, make a ClusterRole on the cluster that has the label open-cluster-management.io/aggregate-to-work: "true" and the rule `
	applied := f.ManifestCondition(t, w, 0, workv1.ManifestApplied, func(c metav1.Condition) bool { return c.Status == metav1.ConditionFalse })
	rest, ok := strings.CutPrefix(applied.Message, "Failed to apply manifest: "+server+before)
	if !ok || applied.Reason != "AppliedManifestFailed" {
		t.Fatalf("got %+v", applied)
	}
	available := f.ManifestCondition(t, w, 0, workv1.ManifestAvailable, func(c metav1.Condition) bool { return c.Status == metav1.ConditionUnknown })
	if available.Reason != "FetchingResourceFailed" || available.Message != "Failed to fetch resource: "+server+before+rest {
		t.Errorf("got %+v", available)
	}

	// A forbidden object and an object of an unknown kind do not block the others: those are removed and leave the
	// list.
	lists(t, w.Name, "one", "two")
	f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests = append(w.Spec.Workload.Manifests[:2:2], w.Spec.Workload.Manifests[3])
	})
	f.NoConfigMap(t, cluster, ns, "two")
	lists(t, w.Name, "one")
	f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) { w.Spec.Workload.Manifests = w.Spec.Workload.Manifests[:2] })

	// A forbidden object does not delay the deletion of its work either.
	gone := f.Create(t, harness.NewWork(t, cluster, "forbidden-gone", runtimeClassYAML(class+"-gone")))
	f.ManifestCondition(t, gone, 0, workv1.ManifestApplied, func(c metav1.Condition) bool { return c.Status == metav1.ConditionFalse })
	f.Remove(t, cluster, gone.Name)

	var rule rbacv1.PolicyRule
	if err := yaml.UnmarshalStrict([]byte(rest), &rule); err != nil {
		t.Fatalf("the rule %q: %v", rest, err)
	}
	clusterRole(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{aggregateLabel: "true"}}, Rules: []rbacv1.PolicyRule{rule}})
	f.Ready(t, w)
	if _, err := f.API[cluster].Kube.NodeV1().RuntimeClasses().Get(t.Context(), class, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	f.Remove(t, cluster, w.Name)
}

// TestPermissions_WorkBringsItsOwnRule: one work can contain the definition of a resource, the rule that allows
// the agent such objects, and an object.
func TestPermissions_WorkBringsItsOwnRule(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	group := ns + ".example.com"
	gvr := schema.GroupVersionResource{Group: group, Version: "v1", Resource: "hitches"}
	definition := fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: hitches.%[1]s}
spec:
  group: %[1]s
  scope: Namespaced
  names: {plural: hitches, singular: hitch, kind: Hitch, listKind: HitchList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, group)
	role := fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: hitches-%[2]s, labels: {%[3]s: "true"}}
rules:
- {apiGroups: [%[1]s], resources: [hitches], verbs: [get, list, watch, create, update, patch, delete]}
`, group, ns, aggregateLabel)
	object := fmt.Sprintf("apiVersion: %s/v1\nkind: Hitch\nmetadata: {name: clove, namespace: %s}\nspec: {turns: 2}\n", group, ns)
	w := f.Deliver(t, harness.NewWork(t, cluster, "own-rule", definition, role, object))
	api := f.API[cluster].Dynamic.Resource(gvr).Namespace(ns)
	if _, err := api.Get(t.Context(), "clove", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	f.Remove(t, cluster, w.Name)
	harness.Eventually(t, func(ctx context.Context) error {
		_, err := api.Get(ctx, "clove", metav1.GetOptions{})
		return harness.Absent(err, "the object")
	})
}
