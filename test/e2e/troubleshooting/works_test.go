package troubleshooting

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

// theWork is the command that shows a work with its conditions. warnings is the command that shows its Warning
// Events.
func theWork(name, cluster string) string {
	return "kubectl get manifestwork " + name + " -n " + cluster
}

func warnings(name, cluster string) string {
	return "kubectl events --for manifestwork/" + name + " -n " + cluster + " --types=Warning"
}

// failing returns commands for a work that was not applied. Event and hawser show the object, the cause and the
// next step.
func failing(name, why, next string) []look {
	return []look{
		{command: theWork(name, cluster), output: name + ` +False `},
		{command: warnings(name, cluster), output: why, next: next, past: true},
		{command: "hawser get works " + name + " --cluster " + cluster, output: why, next: next},
	}
}

func TestNamespaceMissing(t *testing.T) {
	o := sit(t)
	o.Create(t, harness.NewWork(t, cluster, "shop", harness.ConfigMapYAML("shop", "web", "x")))
	looks := failing("shop", `namespace missing: ConfigMap shop/web: namespaces "shop" not found`, `deliver the namespace with a work`)
	o.sees("namespace missing", looks...)
	namespace(t, shared.API[cluster], "shop")
	o.isWell(looks...)
}

// namespace creates a namespace until the test ends.
func namespace(t *testing.T, on harness.Clients, name string) {
	t.Helper()
	api := on.Kube.CoreV1().Namespaces()
	if _, err := api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// allow gives the agent all rights for a kind, until the test ends.
func (o *operator) allow(group, resource string) {
	o.t.Helper()
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "works-may-have-" + resource, Labels: map[string]string{"open-cluster-management.io/aggregate-to-work": "true"}},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{group}, Resources: []string{resource}, Verbs: []string{"*"}}},
	}
	roles := o.API[cluster].Kube.RbacV1().ClusterRoles()
	if _, err := roles.Create(o.t.Context(), role, metav1.CreateOptions{}); err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(func() {
		o.leave() // the agent needs the right to delete them
		if err := roles.Delete(context.Background(), role.Name, metav1.DeleteOptions{}); err != nil {
			o.t.Error(err)
		}
	})
}

func forbidden(t *testing.T) {
	o := sit(t)
	o.Create(t, harness.NewWork(t, cluster, "runtime", "{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: fast}, handler: fast}"))
	looks := failing("runtime", `forbidden: RuntimeClass fast: .*cannot .*runtimeclasses`, `make a ClusterRole .*aggregate-to-work`)
	o.sees("forbidden", looks...)
	o.allow("node.k8s.io", "runtimeclasses")
	o.isWell(looks...)
	o.Remove(t, cluster, "runtime") // before the agent loses its right
}

const crontabs = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: crontabs.example.org}
spec:
  group: example.org
  names: {kind: CronTab, plural: crontabs}
  scope: Cluster
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`

func unknownKind(t *testing.T) {
	o := sit(t)
	o.allow("example.org", "crontabs")
	o.Create(t, harness.NewWork(t, cluster, "nightly", "{apiVersion: example.org/v1, kind: CronTab, metadata: {name: nightly}}"))
	looks := failing("nightly", `unknown kind: CronTab nightly: `, `deliver its CustomResourceDefinition with a work`)
	o.sees("unknown kind", looks...)
	o.Deliver(t, harness.NewWork(t, cluster, "definition", crontabs))
	o.isWell(looks...)
	o.Remove(t, cluster, "nightly") // before its definition is deleted
}

// workYAML returns a work with a value of size bytes.
func workYAML(size int) string {
	return "apiVersion: work.open-cluster-management.io/v1\nkind: ManifestWork\nmetadata: {name: web, namespace: " + cluster + "}\nspec:\n  workload:\n    manifests:\n" +
		"    - {apiVersion: v1, kind: ConfigMap, metadata: {name: web, namespace: default}, data: {key: " + strings.Repeat("x", size) + "}}\n"
}

func tooLarge(t *testing.T) {
	o := sit(t)
	o.write("web.yaml", workYAML(600_000))
	looks := []look{
		{command: "kubectl apply --server-side -f web.yaml", output: `600\d\d\d bytes.*512000`, next: `divide its data among several objects`},
		{command: "hawser check -f web.yaml", output: `would be rejected: .* 600\d\d\d bytes.*512000`, next: `divide its data among several objects`},
	}
	o.sees("too large", looks...)
	o.write("web.yaml", workYAML(600))
	o.isWell(looks...)
	o.Remove(t, cluster, "web")
}
