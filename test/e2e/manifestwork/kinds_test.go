package manifestwork

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/agent/apply"
	agentcluster "github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// manyKinds returns one manifest of every kind with a rule of its own. Each is as short as possible, so that the
// server fills in many fields. The custom kinds need foreignKinds.
func manyKinds(ns string) []string {
	namespaced := func(apiVersion, kind, rest string) string {
		return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: many, namespace: %s}\n%s", apiVersion, kind, ns, rest)
	}
	global := func(apiVersion, kind, rest string) string {
		return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s}\n%s", apiVersion, kind, ns, rest)
	}
	const (
		rbac      = "rbac.authorization.k8s.io/v1"
		admission = "admissionregistration.k8s.io/v1"
		match     = "resourceRules: [{apiGroups: [nothing.example.com], apiVersions: [v1], operations: [CREATE], resources: [nothings]}]"
		hook      = "webhooks: [{name: many.example.com, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {service: {name: hook, namespace: hooks}}, rules: [{apiGroups: [nothing.example.com], apiVersions: [v1], operations: [CREATE], resources: [nothings]}]}]\n"
	)
	return []string{
		"apiVersion: v1\nkind: Namespace\nmetadata: {name: " + ns + "-2}\n",
		namespaced("v1", "Pod", "spec: {containers: [{name: main, image: nginx}], nodeSelector: {never: matches}}\n"),
		namespaced("v1", "ServiceAccount", ""),
		namespaced("v1", "ConfigMap", "data: {a: b}\nbinaryData: {c: AA==}\n"),
		namespaced("v1", "Secret", "stringData: {a: b}\n"),
		namespaced("v1", "Service", "spec: {selector: {a: b}, ports: [{port: 80}]}\n"),
		namespaced(rbac, "Role", "rules: [{verbs: [get], apiGroups: [\"\"], resources: [pods]}]\n"),
		namespaced(rbac, "RoleBinding", "roleRef: {kind: Role, name: many}\nsubjects: [{kind: Group, name: g}, {kind: User, name: u}, {kind: ServiceAccount, name: many, namespace: "+ns+"}]\n"),
		global(rbac, "ClusterRole", "aggregationRule: {clusterRoleSelectors: [{matchLabels: {never: matches}}]}\n"),
		global(rbac, "ClusterRoleBinding", "roleRef: {kind: ClusterRole, name: none}\nsubjects: [{kind: Group, name: g}]\n"),
		namespaced("networking.k8s.io/v1", "NetworkPolicy", "spec: {ingress: [{ports: [{port: 80}], from: [{namespaceSelector: {}}]}], egress: [{ports: [{port: 53}]}]}\n"),
		namespaced("policy/v1", "PodDisruptionBudget", "spec: {minAvailable: 50%, selector: {}}\n"),
		global(admission, "ValidatingAdmissionPolicy", "spec: {matchConstraints: {"+match+"}, validations: [{expression: \"true\"}]}\n"),
		global(admission, "ValidatingAdmissionPolicyBinding", "spec: {policyName: none, validationActions: [Audit], matchResources: {"+match+"}}\n"),
		global(admission, "ValidatingWebhookConfiguration", hook),
		global(admission, "MutatingWebhookConfiguration", hook),
		foreignDefinition("many.example.com", "v1", "Many", "manies", "Cluster"),
		global("storage.k8s.io/v1", "StorageClass", "provisioner: example.com/p\n"),
		global("storage.k8s.io/v1", "CSIDriver", "spec: {volumeLifecycleModes: [Ephemeral]}\n"),
		global("snapshot.storage.k8s.io/v1", "VolumeSnapshotClass", "driver: d\ndeletionPolicy: Delete\n"),
		namespaced("monitoring.coreos.com/v1", "ServiceMonitor", "spec: {selector: {}}\n"),
		namespaced("monitoring.coreos.com/v1", "PrometheusRule", "spec: {groups: []}\n"),
		namespaced("monitoring.coreos.com/v1", "Prometheus", "spec: {replicas: 1}\n"),
		namespaced("monitoring.coreos.com/v1", "Alertmanager", "spec: {replicas: 1}\n"),
	}
}

func foreignKinds() []string {
	return []string{
		foreignDefinition("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors", "Namespaced"),
		foreignDefinition("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules", "Namespaced"),
		foreignDefinition("monitoring.coreos.com", "v1", "Prometheus", "prometheuses", "Namespaced"),
		foreignDefinition("monitoring.coreos.com", "v1", "Alertmanager", "alertmanagers", "Namespaced"),
		foreignDefinition("snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass", "volumesnapshotclasses", "Cluster"),
		foreignDefinition("migration.k8s.io", "v1alpha1", "StorageVersionMigration", "storageversionmigrations", "Cluster"),
	}
}

// TestUpdate_WritesNoUnchangedKind: every kind with a comparison of its own is applied. It equals its manifest
// although the server filled in many fields, and is not written again.
func TestUpdate_WritesNoUnchangedKind(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	grantAgent(t, "storage.k8s.io", "admissionregistration.k8s.io", "policy", "snapshot.storage.k8s.io", "monitoring.coreos.com", "migration.k8s.io")
	f.Deliver(t, harness.NewWork(t, cluster, "foreign-kinds", foreignKinds()...))
	w := f.Deliver(t, harness.NewWork(t, cluster, "every-kind", manyKinds(ns)...))

	cfg, err := f.Clusters[cluster].RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	client, err := agentcluster.NewKube(agentcluster.KubeConfig{REST: cfg, QPS: 500, Burst: 500})
	if err != nil {
		t.Fatal(err)
	}
	rec, err := f.Applied(t.Context(), cluster, w.Name)
	if err != nil {
		t.Fatal(err)
	}
	owner := apply.Owner{Name: rec.Name, UID: rec.UID}
	loaded := apply.Load(t.Context(), client, w.Spec)
	before := map[string]*unstructured.Unstructured{}
	for _, m := range loaded {
		// The plan is that of a new agent process, which knows no earlier state.
		s := apply.Applier{Objects: client}.Plan(t.Context(), m, owner, apply.KnownState{})
		if s.Err != nil || s.Action != apply.Unchanged {
			t.Errorf("%s: %s, %v; live: %v", m.Ref, s.Action, s.Err, s.Live)
			continue
		}
		before[m.Ref.String()] = s.Live
	}
	touch(t, w)
	for _, m := range loaded {
		o, err := client.Get(t.Context(), m.Ref)
		if err != nil {
			t.Fatal(err)
		}
		if was := before[m.Ref.String()]; was != nil && (o.GetUID() != was.GetUID() || o.GetGeneration() != was.GetGeneration()) {
			t.Errorf("%s was written: %v", m.Ref, o.Object["metadata"])
		}
	}

	// Custom kinds: an orphaned object is created without an owner. A StorageVersionMigration is handled like
	// any other object.
	orphans := harness.NewWork(t, cluster, "foreign-orphans",
		"apiVersion: monitoring.coreos.com/v1\nkind: ServiceMonitor\nmetadata: {name: orphan, namespace: "+ns+"}\nspec: {selector: {}}\n",
		"apiVersion: migration.k8s.io/v1alpha1\nkind: StorageVersionMigration\nmetadata: {name: "+ns+"}\nspec: {resource: {group: example.com, version: v1, resource: knots}}\n")
	orphans.Spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
	orphans = f.Deliver(t, orphans)
	for _, m := range apply.Load(t.Context(), client, orphans.Spec) {
		o, err := client.Get(t.Context(), m.Ref)
		if err != nil || len(o.GetOwnerReferences()) > 0 {
			t.Errorf("%s: %v, owners %v", m.Ref, err, o.GetOwnerReferences())
		}
	}
	// The works are deleted before the definitions of their kinds.
	for _, name := range []string{w.Name, orphans.Name} {
		f.Remove(t, cluster, name)
	}
}

// TestUpdate_WebhookKeepsItsBundle: a certificate bundle that the cluster injects into a webhook stays, also
// when the manifest changes another field.
func TestUpdate_WebhookKeepsItsBundle(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	configuration := func(timeout int) string {
		return fmt.Sprintf("apiVersion: admissionregistration.k8s.io/v1\nkind: MutatingWebhookConfiguration\nmetadata: {name: %s}\n"+
			"webhooks: [{name: b.example.com, timeoutSeconds: %d, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {url: \"https://127.0.0.1/\"}, rules: [{apiGroups: [nothing.example.com], apiVersions: [v1], operations: [CREATE], resources: [nothings]}]}]\n", ns, timeout)
	}
	api := f.API[cluster].Kube.AdmissionregistrationV1().MutatingWebhookConfigurations()
	w := f.Deliver(t, harness.NewWork(t, cluster, "webhook-bundle", configuration(5)))
	c, err := api.Get(t.Context(), ns, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ca, err := pki.NewAuthority("injected", pki.Starting(time.Now(), time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	bundle := ca.CertificatePEM()
	c.Webhooks[0].ClientConfig.CABundle = bundle
	injected, err := api.Update(t.Context(), c, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	touch(t, w)
	harness.Consistently(t, func(ctx context.Context) error {
		c, err := api.Get(ctx, ns, metav1.GetOptions{})
		if err == nil && c.ResourceVersion != injected.ResourceVersion {
			err = fmt.Errorf("written: %v", c)
		}
		return err
	})
	w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) { w.Spec.Workload.Manifests[0] = harness.Manifest(t, configuration(6)) })
	f.Ready(t, w)
	if c, err = api.Get(t.Context(), ns, metav1.GetOptions{}); err != nil || *c.Webhooks[0].TimeoutSeconds != 6 || string(c.Webhooks[0].ClientConfig.CABundle) != string(bundle) {
		t.Errorf("got %v, %v", c, err)
	}
}
