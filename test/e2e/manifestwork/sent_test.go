package manifestwork

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

// appliedByServer sets the strategy ServerSideApply for all objects of these resources.
func appliedByServer(w *workv1.ManifestWork, resources ...workv1.ResourceIdentifier) *workv1.ManifestWork {
	for _, r := range resources {
		r.Namespace, r.Name = "*", "*"
		w.Spec.ManifestConfigs = append(w.Spec.ManifestConfigs, workv1.ManifestConfigOption{
			ResourceIdentifier: r, UpdateStrategy: &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeServerSideApply, ServerSideApply: &workv1.ServerSideApplyConfig{Force: true}},
		})
	}
	return w
}

func secretHas(t *testing.T, ns, name string, want map[string]string) {
	t.Helper()
	harness.Eventually(t, func(ctx context.Context) error {
		s, err := shared.API[cluster].Kube.CoreV1().Secrets(ns).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		got := map[string]string{}
		for k, v := range s.Data {
			got[k] = string(v)
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("%s has %v, want %v", name, got, want)
		}
		return nil
	})
}

// TestServerSideApply_StringDataBelongsToTheWork: the stringData of a Secret is applied as data, so that it
// belongs to the work. It is repaired, and removed when the manifest drops it.
func TestServerSideApply_StringDataBelongsToTheWork(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	secret := func(data, simple string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: %s}\ndata: %s\nstringData: %s\n", ns, data, simple)
	}
	w := f.Deliver(t, appliedByServer(harness.NewWork(t, cluster, "ssa-string-data", secret("{a: MQ==}", "{user: u, password: p}")), workv1.ResourceIdentifier{Resource: "secrets"}))
	secretHas(t, ns, "s", map[string]string{"a": "1", "user": "u", "password": "p"})
	typ, patch := harness.MergePatch(map[string]any{"stringData": map[string]any{"password": "stolen", "more": "theirs"}})
	if _, err := f.API[cluster].Kube.CoreV1().Secrets(ns).Patch(t.Context(), "s", typ, patch, metav1.PatchOptions{FieldManager: "kubectl-edit"}); err != nil {
		t.Fatal(err)
	}
	secretHas(t, ns, "s", map[string]string{"a": "1", "user": "u", "password": "p", "more": "theirs"})
	w = setManifest(t, w, secret("{}", "{user: v}"))
	f.Ready(t, w)
	secretHas(t, ns, "s", map[string]string{"user": "v", "more": "theirs"})
}

// TestServerSideApply_VariableTwice: a duplicate list item cannot be applied on the server. The conditions
// report that, and that the object does not exist.
func TestServerSideApply_VariableTwice(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	twice := strings.Replace(harness.DeploymentYAML(ns, "d", 0), "image: nginx", "image: nginx, env: [{name: A, value: '1'}, {name: A, value: '2'}]", 1)
	w := f.Create(t, appliedByServer(harness.NewWork(t, cluster, "ssa-twice", twice), workv1.ResourceIdentifier{Group: "apps", Resource: "deployments"}))
	f.ConditionsAre(t, w, map[string]metav1.ConditionStatus{workv1.WorkApplied: metav1.ConditionFalse, workv1.WorkAvailable: metav1.ConditionFalse})
	c := f.ManifestCondition(t, w, 0, workv1.ManifestApplied, func(c metav1.Condition) bool { return c.Status == metav1.ConditionFalse })
	if !strings.Contains(c.Message, "duplicate") || !strings.Contains(c.Message, "correct the manifest") {
		t.Errorf("the message is %s", c.Message)
	}
	a := f.ManifestCondition(t, w, 0, workv1.ManifestAvailable, func(metav1.Condition) bool { return true })
	if a.Status != metav1.ConditionFalse || a.Message != "Resource is not available" {
		t.Errorf("Available of a missing object is %s: %s", a.Status, a.Message)
	}
	w = setManifest(t, w, harness.DeploymentYAML(ns, "d", 0))
	f.ConditionsAre(t, w, map[string]metav1.ConditionStatus{workv1.WorkApplied: metav1.ConditionTrue})
}

// TestAvailable_IsReportedAfterFailedWrite: a failed write does not show whether the object exists. Available is
// False for a missing object, and True for an existing one.
func TestAvailable_IsReportedAfterFailedWrite(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := f.Deliver(t, harness.NewWork(t, cluster, "write-fails", harness.ConfigMapYAML(ns, "one", "1")))
	url, none, fail := "https://127.0.0.1:1/", admissionv1.SideEffectClassNone, admissionv1.Fail
	hooks := f.API[cluster].Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if _, err := hooks.Create(t.Context(), &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: ns}, Webhooks: []admissionv1.ValidatingWebhook{{
		Name: "fails.example.com", ClientConfig: admissionv1.WebhookClientConfig{URL: &url}, SideEffects: &none, FailurePolicy: &fail, AdmissionReviewVersions: []string{"v1"},
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}},
		Rules: []admissionv1.RuleWithOperations{{
			Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
		}},
	}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	remove := func() error {
		return hooks.Delete(context.Background(), ns, metav1.DeleteOptions{})
	}
	t.Cleanup(func() { _ = remove() })
	harness.Eventually(t, func(ctx context.Context) error {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}
		if _, err := f.API[cluster].Kube.CoreV1().ConfigMaps(ns).Create(ctx, cm, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err == nil {
			return errors.New("the webhook is not in force")
		}
		return nil
	})
	w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests = []workv1.Manifest{harness.Manifest(t, harness.ConfigMapYAML(ns, "one", "2")), harness.Manifest(t, harness.ConfigMapYAML(ns, "two", "2"))}
	})
	for i, want := range []metav1.Condition{{Status: metav1.ConditionTrue, Message: "Resource is available"}, {Status: metav1.ConditionFalse, Message: "Resource is not available"}} {
		f.ManifestCondition(t, w, i, workv1.ManifestApplied, func(c metav1.Condition) bool {
			return c.Status == metav1.ConditionFalse && c.ObservedGeneration == w.Generation && strings.Contains(c.Message, "fails.example.com")
		})
		f.ManifestCondition(t, w, i, workv1.ManifestAvailable, func(c metav1.Condition) bool { return c.Status == want.Status && c.Message == want.Message })
	}
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	f.Ready(t, w)
}

// TestPrune_KeepsObjectMovedToOtherGroup: an Event has two API groups and is one object. It stays when the
// manifest moves to the other group.
func TestPrune_KeepsObjectMovedToOtherGroup(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	roles := f.API[cluster].Kube.RbacV1().ClusterRoles()
	if _, err := roles.Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "hawser-test-events", Labels: map[string]string{aggregateLabel: "true"}},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"*"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = roles.Delete(context.Background(), "hawser-test-events", metav1.DeleteOptions{}) })
	old := fmt.Sprintf("apiVersion: v1\nkind: Event\nmetadata: {name: e, namespace: %s}\ninvolvedObject: {kind: Pod, name: p, namespace: %[1]s}\nreason: Made\nmessage: m\ntype: Normal\nsource: {component: c}\n", ns)
	moved := fmt.Sprintf("apiVersion: events.k8s.io/v1\nkind: Event\nmetadata: {name: e, namespace: %s}\nregarding: {kind: Pod, name: p, namespace: %[1]s}\nreason: Made\nnote: m\ntype: Normal\ndeprecatedSource: {component: c}\n", ns)
	w := f.Deliver(t, harness.NewWork(t, cluster, "two-groups", old))
	event := func() *corev1.Event {
		e, err := f.API[cluster].Kube.CoreV1().Events(ns).Get(t.Context(), "e", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	uid := event().UID
	for _, manifest := range []string{moved, old} {
		w = setManifest(t, w, manifest)
		f.Ready(t, w)
		lists(t, w.Name, "e")
		if e := event(); e.UID != uid || e.DeletionTimestamp != nil {
			t.Errorf("it was created again: uid %s became %s", uid, e.UID)
		}
	}
	f.Remove(t, cluster, w.Name)
	harness.Eventually(t, func(ctx context.Context) error {
		_, err := f.API[cluster].Kube.CoreV1().Events(ns).Get(ctx, "e", metav1.GetOptions{})
		return harness.Absent(err, "the event")
	})
}

// TestUpdate_ReportsServiceMadeHeadless: a Service cannot become headless. Only another object helps, not
// another strategy.
func TestUpdate_ReportsServiceMadeHeadless(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	service := func(more string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: %s}\nspec: {selector: {a: b}, ports: [{port: 80}]%s}\n", ns, more)
	}
	w := f.Deliver(t, harness.NewWork(t, cluster, "headless", service("")))
	w = setManifest(t, w, service(", clusterIP: None"))
	f.ManifestCondition(t, w, 0, workv1.ManifestApplied, func(c metav1.Condition) bool {
		return c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "may not change once set") &&
			strings.HasSuffix(c.Message, " (this does not pass by itself: correct the manifest or give it another name, or delete the object so that it is created again)")
	})
	if err := f.API[cluster].Kube.CoreV1().Services(ns).Delete(t.Context(), "s", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.Ready(t, w)
}

// TestUpdate_ImmutableIsAddedLater: an object becomes immutable when its manifest does. The reverse is
// impossible, and the condition reports it.
func TestUpdate_ImmutableIsAddedLater(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	configMap := func(more string) string { return harness.ConfigMapYAML(ns, "c", "1") + more }
	secret := func(more string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: %s}\nstringData: {k: v}\n%s", ns, more)
	}
	w := f.Deliver(t, harness.NewWork(t, cluster, "immutable", configMap(""), secret("")))
	set := func(more string) {
		w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
			w.Spec.Workload.Manifests[0], w.Spec.Workload.Manifests[1] = harness.Manifest(t, configMap(more)), harness.Manifest(t, secret(more))
		})
	}
	set("immutable: true\n")
	f.Ready(t, w)
	harness.Eventually(t, func(ctx context.Context) error {
		c, err := f.API[cluster].Kube.CoreV1().ConfigMaps(ns).Get(ctx, "c", metav1.GetOptions{})
		if err != nil {
			return err
		}
		s, err := f.API[cluster].Kube.CoreV1().Secrets(ns).Get(ctx, "s", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if c.Immutable == nil || !*c.Immutable || s.Immutable == nil || !*s.Immutable {
			return fmt.Errorf("immutable is %v and %v", c.Immutable, s.Immutable)
		}
		return nil
	})
	set("immutable: false\n")
	f.ManifestCondition(t, w, 0, workv1.ManifestApplied, func(c metav1.Condition) bool {
		return c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "immutable")
	})
}
