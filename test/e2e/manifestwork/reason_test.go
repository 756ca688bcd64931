package manifestwork

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// reportsReason waits until a condition of a work, an Event on the hub and hawser get works show exactly the
// message want. If event is "", no Event is expected.
func reportsReason(t *testing.T, w *workv1.ManifestWork, typ, reason, event, want string) {
	t.Helper()
	f := shared
	// hub-source writes at most ten Events per second, and hundreds of works of other tests may come first.
	harness.EventuallyWithin(t, 2*time.Minute, func(ctx context.Context) error {
		live, err := f.Get(ctx, w.Namespace, w.Name)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(live.Status.Conditions, typ)
		if c == nil || c.Reason != reason || c.Message != want {
			return fmt.Errorf("condition %s is %+v, want %s: %s", typ, c, reason, want)
		}
		events, err := f.HubAPI.Kube.CoreV1().Events(w.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=Warning,involvedObject.name=" + w.Name + ",reason=" + event})
		if err != nil {
			return err
		}
		reported := event == ""
		for _, e := range events.Items {
			reported = reported || e.Message == want
		}
		if !reported {
			return fmt.Errorf("no Event %s has the message: %+v", event, events.Items)
		}
		keys := f.PKI()
		out, err := childproc.Run(ctx, filepath.Join(f.Root, "bin", "hawser"), "get", "works", w.Name, "--cluster", w.Namespace, "--broker", f.BrokerAddr(),
			"--ca", keys.CACert(), "--cert", keys.Cert(pki.Operator, "operator"), "--key", keys.Key(pki.Operator, "operator"))
		if err != nil {
			return err
		}
		if !strings.HasSuffix(strings.TrimSpace(string(out)), " "+want) {
			return fmt.Errorf("hawser get works shows\n%s\nwant the message %s", out, want)
		}
		return nil
	})
}

func TestReason_ComesFirst(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	fine := harness.ConfigMapYAML(ns, "fine", "x")
	for name, c := range map[string]struct{ manifest, want string }{
		"reason-forbidden": {
			`{apiVersion: v1, kind: Node, metadata: {name: forbidden-node}}`,
			`forbidden: Node forbidden-node: User "system:serviceaccount:hawser:hawser-agent" cannot get resource "nodes" in API group "" at the cluster scope; ` +
				`if it is to be allowed, make a ClusterRole on the cluster that has the label open-cluster-management.io/aggregate-to-work: "true" and the rule ` +
				`{apiGroups: [""], resources: ["nodes"], verbs: ["get", "list", "watch", "create", "update", "patch", "delete"]}; 1 of 2 manifests failed`,
		},
		"reason-namespace": {
			harness.ConfigMapYAML("no-such-namespace", "lost", "x"),
			`namespace missing: ConfigMap no-such-namespace/lost: namespaces "no-such-namespace" not found; ` +
				`deliver the namespace with a work, or make it on the cluster: it is tried again then; 1 of 2 manifests failed`,
		},
		"reason-kind": {
			`{apiVersion: example.org/v1, kind: Undefined, metadata: {name: x, namespace: ` + ns + `}}`,
			`unknown kind: Undefined ` + ns + `/x: the server doesn't have a resource type "Undefined" in example.org/v1; ` +
				`deliver its CustomResourceDefinition with a work, or correct apiVersion and kind; 1 of 2 manifests failed`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := f.Create(t, harness.NewWork(t, cluster, name, fine, c.manifest))
			reportsReason(t, w, workv1.WorkApplied, "AppliedManifestWorkFailed", "ApplyFailed", c.want)
		})
	}
}

// TestReason_ImmutableFieldWithoutStructsOfGo: a field cannot change. The server prints the value as structs of
// Go, about a page. The report contains only the field and the next step.
func TestReason_ImmutableFieldWithoutStructsOfGo(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	job := func(image string) string {
		return fmt.Sprintf("apiVersion: batch/v1\nkind: Job\nmetadata: {name: job, namespace: %s}\nspec: {suspend: true, manualSelector: true, selector: {matchLabels: {app: job}}, "+
			"template: {metadata: {labels: {app: job}}, spec: {restartPolicy: Never, containers: [{name: main, image: %s}]}}}\n", ns, image)
	}
	w := f.Deliver(t, harness.NewWork(t, cluster, "reason-immutable", job("busybox"), harness.DeploymentYAML(ns, "web", 0)))
	w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests[0] = harness.Manifest(t, job("other"))
		w.Spec.Workload.Manifests[1] = harness.Manifest(t, strings.ReplaceAll(harness.DeploymentYAML(ns, "web", 0), "app: web", "app: other"))
	})
	reportsReason(t, w, workv1.WorkApplied, "AppliedManifestWorkFailed", "ApplyFailed",
		`immutable: Job `+ns+`/job: spec.template.spec: field is immutable (this does not pass by itself: correct the manifest or give it another name, or delete the object so that it is created again); `+
			`2 of 2 manifests failed`)
	for i, field := range []string{"spec.template.spec: ", "spec.selector: "} {
		f.ManifestCondition(t, w, i, workv1.ManifestApplied, func(c metav1.Condition) bool {
			dumped := strings.Contains(c.Message, "core.") || strings.Contains(c.Message, "v1.") || strings.Contains(c.Message, "map[")
			return !dumped && strings.Contains(c.Message, field) && strings.Contains(c.Message, "field is immutable (this does not pass by itself: correct the manifest")
		})
	}
}

// TestReason_DefinitionGoesWhileObjectsLive: the definition of a kind is deleted while works have objects of
// it. The cluster deletes the objects with it. While an object of another owner blocks that, the work reports
// it. Then it names the missing kind and the next step.
func TestReason_DefinitionGoesWhileObjectsLive(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	grantAgent(t, "shackle.example.com")
	definition := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(definitionYAML("Shackle")), &definition.Object); err != nil {
		t.Fatal(err)
	}
	api := f.API[cluster].Dynamic.Resource(definitions)
	if _, err := api.Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w := f.Deliver(t, harness.NewWork(t, cluster, "reason-definition", customYAML("Shackle", ns, "s", 1)))
	shackles := f.API[cluster].Dynamic.Resource(customResource("Shackle")).Namespace(ns)
	other := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(customYAML("Shackle", ns, "other", 1)), &other.Object); err != nil {
		t.Fatal(err)
	}
	other.SetFinalizers([]string{"example.com/hold"})
	if _, err := shackles.Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := api.Delete(t.Context(), definition.GetName(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	reportsReason(t, w, workv1.WorkApplied, "AppliedManifestWorkFailed", "ApplyFailed",
		`definition ends: Shackle `+ns+`/s: create not allowed while custom resource definition is terminating; it is applied when the definition of its kind is gone and created again: `+
			`the conditions of the CustomResourceDefinition show what keeps it; 1 of 1 manifests failed`)
	if _, err := shackles.Patch(t.Context(), "other", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	reportsReason(t, w, workv1.WorkApplied, "AppliedManifestWorkFailed", "", // a changed text causes no new Event
		`unknown kind: Shackle `+ns+`/s: the server doesn't have a resource type "Shackle" in shackle.example.com/v1; `+
			`deliver its CustomResourceDefinition with a work, or correct apiVersion and kind; 1 of 1 manifests failed`)
}

// TestReason_NamesBlockingFinalizer: a finalizer that is not removed keeps a deleted work. The work, an Event
// and hawser get works name the object, the finalizer and the next step.
func TestReason_NamesBlockingFinalizer(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := f.Deliver(t, harness.NewWork(t, cluster, "reason-finalizer", harness.ConfigMapYAML(ns, "free", "x"), heldConfigMapYAML(ns, "held")))
	f.DeleteWork(t, cluster, w.Name)
	reportsReason(t, w, workv1.WorkDeleting, "WorkDeletionBlocked", "WorkDeletionBlocked",
		`waits for finalizers: ConfigMap `+ns+`/held: example.com/hold; their controller must remove them: check that it runs on the cluster, `+
			`or remove them from the object if it is gone for good; objects left: 1`)
	release(t, ns, "held")
	f.WaitDeleted(t, cluster, w.Name)
}
