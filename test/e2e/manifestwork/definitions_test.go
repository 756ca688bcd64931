package manifestwork

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"
	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// definitionYAML returns a definition without a schema. kind is capitalised; the group is <kind>.example.com in
// lower case.
func definitionYAML(kind string) string {
	return foreignDefinition(strings.ToLower(kind)+".example.com", "v1", kind, strings.ToLower(kind)+"s", "Namespaced")
}

// foreignDefinition returns a definition with the annotation that the API server requires for protected groups.
func foreignDefinition(group, version, kind, plural, scope string) string {
	return fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[4]s.%[1]s, annotations: {api-approved.kubernetes.io: unapproved}}
spec:
  group: %[1]s
  scope: %[5]s
  names: {kind: %[3]s, plural: %[4]s}
  preserveUnknownFields: false
  versions:
  - {name: %[2]s, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, group, version, kind, plural, scope)
}

func customYAML(kind, ns, name string, length int) string {
	return fmt.Sprintf("apiVersion: %s.example.com/v1\nkind: %s\nmetadata: {name: %s, namespace: %s, annotations: {ours: %q}}\nspec: {length: %d}\n", strings.ToLower(kind), kind, name, ns, fmt.Sprint(length), length)
}

func customResource(kind string) schema.GroupVersionResource {
	k := strings.ToLower(kind)
	return schema.GroupVersionResource{Group: k + ".example.com", Version: "v1", Resource: k + "s"}
}

func TestUpdate_DefinitionAndItsResourceInOneWork(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	grantAgent(t, "knot.example.com")
	// The resource comes first: it needs a second try.
	w := f.Deliver(t, harness.NewWork(t, cluster, "definition", customYAML("Knot", ns, "k", 1), definitionYAML("Knot")))
	lists(t, w.Name, "knots.knot.example.com", "k")
	f.Remove(t, cluster, w.Name)
	harness.Eventually(t, func(ctx context.Context) error {
		_, err := f.API[cluster].Dynamic.Resource(definitions).Get(ctx, "knots.knot.example.com", metav1.GetOptions{})
		return harness.Absent(err, "the definition")
	})
}

// TestDeletion_DefinitionAndItsObjectsGoTogether: the cluster deletes the objects of a definition while the
// work removes them one by one. That is no failure, causes no back-off, and logs no warning.
func TestDeletion_DefinitionAndItsObjectsGoTogether(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	grantAgent(t, "bight.example.com")
	manifests := []string{definitionYAML("Bight")}
	for i := range 30 {
		manifests = append(manifests, customYAML("Bight", ns, fmt.Sprintf("b-%d", i), 1))
	}
	for i := range 3 {
		w := f.Deliver(t, harness.NewWork(t, cluster, fmt.Sprintf("bights-%d", i), manifests...))
		delivered := len(agentLog(t)) // the resources were tried before their kind was served
		f.Remove(t, cluster, w.Name)
		log := string(agentLog(t)[delivered:])
		if !strings.Contains(log, `msg="work deleted" work=`+w.Name) {
			t.Errorf("the agent does not log the deletion of %s", w.Name)
		}
		for line := range strings.Lines(log) {
			if strings.Contains(line, "bight") && (strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR")) {
				t.Errorf("the agent complains: %s", line)
			}
		}
	}
}

// agentLog returns the log of the fleet's agent.
func agentLog(t *testing.T) []byte {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(shared.LogDir(), fleet.AgentOf(cluster)+".log"))
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// TestUpdate_FollowsTheDefinitionOfAKind: an object of an unknown kind is applied once the kind is defined. An
// object that its definition rejects is applied once the definition allows it.
func TestUpdate_FollowsTheDefinitionOfAKind(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	grantAgent(t, "cleat.example.com")
	w := f.Create(t, harness.NewWork(t, cluster, "follows", customYAML("Cleat", ns, "c", 1)))
	f.ManifestCondition(t, w, 0, workv1.ManifestApplied, func(c metav1.Condition) bool {
		return c.Status == metav1.ConditionFalse && c.Message == `Failed to apply manifest: the server doesn't have a resource type "Cleat" in cleat.example.com/v1; deliver its CustomResourceDefinition with a work, or correct apiVersion and kind`
	})
	f.ManifestCondition(t, w, 0, workv1.ManifestAvailable, func(c metav1.Condition) bool {
		return c.Status == metav1.ConditionUnknown && c.Reason == "IncompleteResourceMeta" && c.Message == "Resource meta is incomplete"
	})

	definition := &unstructured.Unstructured{}
	text := strings.Replace(definitionYAML("Cleat"), "{type: object, x-kubernetes-preserve-unknown-fields: true}",
		"{type: object, properties: {spec: {type: object, properties: {length: {type: integer, minimum: 2}}}}}", 1)
	if err := yaml.Unmarshal([]byte(text), &definition.Object); err != nil {
		t.Fatal(err)
	}
	api := f.API[cluster].Dynamic.Resource(definitions)
	if _, err := api.Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Delete(context.WithoutCancel(t.Context()), definition.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	f.ManifestCondition(t, w, 0, workv1.ManifestApplied, func(c metav1.Condition) bool {
		return c.Status == metav1.ConditionFalse && strings.HasPrefix(c.Message, `Failed to apply manifest: Cleat.cleat.example.com "c" is invalid: spec.length: Invalid value: 1: `) &&
			strings.HasSuffix(c.Message, " (this does not pass by itself: correct the manifest)")
	})
	f.ManifestCondition(t, w, 0, workv1.ManifestAvailable, func(c metav1.Condition) bool { return c.Status == metav1.ConditionFalse })

	harness.Eventually(t, func(ctx context.Context) error {
		d, err := api.Get(ctx, definition.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		versions, _, _ := unstructured.NestedSlice(d.Object, "spec", "versions")
		if err := unstructured.SetNestedField(versions[0].(map[string]any), int64(1), "schema", "openAPIV3Schema", "properties", "spec", "properties", "length", "minimum"); err != nil {
			return err
		}
		if err := unstructured.SetNestedSlice(d.Object, versions, "spec", "versions"); err != nil {
			return err
		}
		_, err = api.Update(ctx, d, metav1.UpdateOptions{})
		return err
	})
	f.Ready(t, w)
	f.Remove(t, cluster, w.Name)
}

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// TestUpdate_KeepsFieldsOfOthers: annotations and finalizers of others on a custom resource stay when
// the manifest changes.
func TestUpdate_KeepsFieldsOfOthers(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	grantAgent(t, "rope.example.com")
	w := f.Deliver(t, harness.NewWork(t, cluster, "keeps", definitionYAML("Rope"), customYAML("Rope", ns, "r", 1)))
	api := f.API[cluster].Dynamic.Resource(customResource("Rope")).Namespace(ns)
	edit := func(patch map[string]any) {
		t.Helper()
		typ, body := harness.MergePatch(patch)
		if _, err := api.Patch(t.Context(), "r", typ, body, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	edit(map[string]any{"metadata": map[string]any{"annotations": map[string]any{"theirs": "kept"}, "finalizers": []string{hold}}})
	w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests[1] = harness.Manifest(t, customYAML("Rope", ns, "r", 2))
	})
	f.Ready(t, w)
	harness.Eventually(t, func(ctx context.Context) error {
		o, err := api.Get(ctx, "r", metav1.GetOptions{})
		if err != nil {
			return err
		}
		length, _, _ := unstructured.NestedInt64(o.Object, "spec", "length")
		if a := o.GetAnnotations(); length != 2 || a["theirs"] != "kept" || a["ours"] != "2" || !slices.Equal(o.GetFinalizers(), []string{hold}) {
			return fmt.Errorf("got %v", o.Object)
		}
		return nil
	})
	edit(map[string]any{"metadata": map[string]any{"finalizers": nil}})
	f.Remove(t, cluster, w.Name)
}
