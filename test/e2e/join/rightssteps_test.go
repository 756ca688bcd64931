package join

import (
	"bytes"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-io/hawser/internal/admission/webhook"
	"github.com/hawser-io/hawser/pkg/codec"
)

// requestsAsOCM is a policy with the check of OCM's webhook for a new cluster. It also writes the check to the
// audit log.
const requestsAsOCM = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: set}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [cluster.open-cluster-management.io], apiVersions: [v1], resources: [managedclusters], operations: [CREATE]}]}
  validations: [{expression: "authorizer.group('cluster.open-cluster-management.io').resource('managedclustersets').subresource('join').name('default').check('create').allowed()"}]
  auditAnnotations: [{key: asked, valueExpression: "'join'"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: set}
spec: {policyName: set, validationActions: [Deny]}
`

// requestedAsOCM is the audit annotation of that policy.
const requestedAsOCM = "set/asked"

func ofOCM(user string) question {
	return question{user: user, verb: "create", group: clusterGroup, resource: "managedclustersets/join", name: "default"}
}

// setOfOCM checks that hub-source creates no cluster without the right to put it into that cluster set.
func (s *stay) setOfOCM() {
	s.Helper()
	cfg, err := s.planes["hub"].RESTConfig()
	if err != nil {
		s.Fatal(err)
	}
	cfg.Impersonate = rest.ImpersonationConfig{UserName: hubSource}
	makes := attempt{"makes a cluster", "create", clusterGroup, "v1", "managedclusters", "", "", "", `{"apiVersion":"cluster.open-cluster-management.io/v1","kind":"ManagedCluster","metadata":{"name":"other"},"spec":{"hubAcceptsClient":false}}`}
	client := dynamic.NewForConfigOrDie(cfg)
	if err := makes.do(s.Context(), client); err != nil {
		s.Errorf("hub-source makes no cluster: %v", err)
	}
	roles := s.planes["hub"].kube.RbacV1().ClusterRoles()
	role, err := roles.Get(s.Context(), "hawser-hub-source-registration", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "managedclustersets/join") })
	if _, err := roles.Update(s.Context(), role, metav1.UpdateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.eventuallyTrue("without that right hub-source makes no cluster", func() (bool, string) {
		err := makes.do(s.Context(), client)
		return err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'set'"), fmt.Sprint(err)
	})
}

// create creates objects as an administrator.
func (w *world) create(where, text string) {
	w.Helper()
	file := filepath.Join(w.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
	w.run(w.kubectl, "--context", where, "apply", "--server-side", "--force-conflicts", "-f", file)
}

const addOnOfTest = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: addon, namespace: cluster1, labels: {addon.open-cluster-management.io/token-infrastructure: "true"}}
---
apiVersion: addon.open-cluster-management.io/v1alpha1
kind: ManagedClusterAddOn
metadata: {name: addon, namespace: cluster1}
spec: {}
`

// reportsAddOn reports the cluster's add-on as available, as its agent does.
func (m *member) reportsAddOn() {
	m.Helper()
	text := m.run(m.kubectl, "--context", "hub", "-n", "cluster1", "get", "managedclusteraddon", "addon", "-o", "json")
	var o map[string]any
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		m.Fatal(err)
	}
	o["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Available", "status": "True", "reason": "Works", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}}}
	if reason := m.requestsFor(codec.AddOnsV1Alpha1, codec.Status, codec.UpdateRequest, o); reason != "" {
		m.Fatalf("the status of an add-on is refused: %s", reason)
	}
}

// reviewed calls the webhook with an executor that the user may not use. The webhook asks the hub.
func (s *stay) reviewed() {
	s.Helper()
	object := `{"apiVersion":"work.open-cluster-management.io/v1","kind":"ManifestWork","metadata":{"name":"x","namespace":"cluster1"},"spec":{
		"executor":{"subject":{"type":"ServiceAccount","serviceAccount":{"namespace":"default","name":"x"}}},
		"workload":{"manifests":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","namespace":"default"}}]}}}`
	review := admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{
		UID: "1", Namespace: "cluster1", Name: "x", Operation: admissionv1.Create, Kind: metav1.GroupVersionKind{Group: workGroup, Version: "v1", Kind: "ManifestWork"},
		Resource: metav1.GroupVersionResource{Group: workGroup, Version: "v1", Resource: "manifestworks"},
	}}
	review.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	review.Request.UserInfo.Username, review.Request.Object.Raw = "other-user", []byte(object)
	body, err := json.Marshal(review)
	if err != nil {
		s.Fatal(err)
	}
	r, err := http.NewRequestWithContext(s.Context(), http.MethodPost, "https://"+s.address("hub/hawser-hub-source")+":9443"+webhook.Path, bytes.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // the identity of the server does not matter here
	answer, err := client.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }() // the body was read
	if err := json.NewDecoder(answer.Body).Decode(&review); err != nil || review.Response == nil || review.Response.Allowed {
		s.Errorf("the webhook answered %+v, %v", review.Response, err)
	}
}

// asRegistrar creates a certificate request for the agent itself, with hub-source's account.
func (s *stay) asRegistrar(name string) {
	s.Helper()
	const agent = "system:open-cluster-management:cluster1:agent"
	cfg, err := s.planes["hub"].RESTConfig()
	if err != nil {
		s.Fatal(err)
	}
	cfg.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:open-cluster-management-hub:grpc-server-sa"}
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"open-cluster-management.io/cluster-name": "cluster1"}, Annotations: map[string]string{"open-cluster-management.io/csr-user": agent}},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    request(s.T, pkix.Name{CommonName: agent, Organization: []string{"system:open-cluster-management:cluster1", "system:open-cluster-management:managed-clusters"}}),
			SignerName: "open-cluster-management.io/grpc",
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageClientAuth},
		},
	}
	if _, err := kubernetes.NewForConfigOrDie(cfg).CertificatesV1().CertificateSigningRequests().Create(s.Context(), csr, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
}

// renewed checks that a renewal is approved and signed. A renewal of a cluster that is not accepted is denied,
// and is deleted once the cluster is accepted.
func (s *stay) renewed() {
	s.Helper()
	shows := func(name, want string) {
		s.Helper()
		s.eventuallyTrue(name+" is "+want, func() (bool, string) {
			text := s.run(s.kubectl, "--context", "hub", "get", "csr", name, "--ignore-not-found", "-o", "jsonpath={.status.conditions[*].type} {.status.certificate}")
			return want == "" && text == "" || want != "" && strings.HasPrefix(text, want), text
		})
	}
	accept := func(is bool) { // with kubectl: hawser accept would delete denied requests itself
		s.run(s.kubectl, "--context", "hub", "patch", "managedcluster", "cluster1", "--type=merge", "-p", fmt.Sprintf(`{"spec":{"hubAcceptsClient":%t}}`, is))
	}
	s.asRegistrar("renewal")
	shows("renewal", "Approved LS0t")
	accept(false)
	s.asRegistrar("renewal-2")
	shows("renewal-2", "Denied")
	accept(true)
	shows("renewal-2", "")
}

// deletedWhileAway deletes a work while no hub-source runs. The next hub-source reads it from the hub by name,
// and serves only clusters with a label on their namespace.
func (s *stay) deletedWhileAway() {
	s.Helper()
	s.source()
	hub := []string{"--context", "hub", "-n", "cluster1"}
	s.run(s.kubectl, append(hub, "patch", "manifestwork", "first", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)...)
	s.run(s.kubectl, append(hub, "delete", "manifestwork", "first")...)
	s.source = s.whole.start("hub", "hawser-hub-source", "hawser-broker.hawser.svc:8090", s.at, "sourceID: hub\n", "sourceID: hub\nnamespaceSelector: open-cluster-management.io/cluster-name\n")
	s.eventuallyTrue("the object of the work is gone", func() (bool, string) {
		_, err := s.planes["cluster1"].kube.CoreV1().ConfigMaps("default").Get(s.Context(), "first", metav1.GetOptions{})
		return err != nil, fmt.Sprint(err)
	})
}

// brokerGone checks that an Event counts the failed attempts to reach the broker.
func (s *stay) brokerGone() {
	s.Helper()
	s.broker()
	s.eventuallyTrue("an Event counts how often the broker was not reached", func() (bool, string) {
		text := s.run(s.kubectl, "--context", "hub", "-n", "hawser", "get", "events", "-o", `jsonpath={range .items[?(@.reason=="BrokerUnreachable")]}{.count} {end}`)
		return strings.TrimSpace(text) != "" && strings.Trim(text, "1 ") != "", text
	})
	s.broker = s.whole.start("hub", "hawser-broker")
}

// namespaceOfOthers checks a namespace that an administrator created for a cluster. By its role hub-source may
// label it, but the policy denies that until the administrator has labelled it.
func (s *stay) namespaceOfOthers(log *audited) {
	s.Helper()
	s.run(s.kubectl, "--context", "hub", "create", "namespace", "cluster2")
	s.create("hub", "apiVersion: cluster.open-cluster-management.io/v1\nkind: ManagedCluster\nmetadata: {name: cluster2}\nspec: {hubAcceptsClient: true}\n")
	s.eventuallyTrue("hub-source tries", func() (bool, string) {
		requested := log.requests(s.T)
		return requested[question{user: hubSource, verb: "patch", resource: "namespaces", namespace: "cluster2", name: "cluster2"}], fmt.Sprint(len(requested))
	})
	if text := s.run(s.kubectl, "--context", "hub", "get", "namespace", "cluster2", "-o", "jsonpath={.metadata.labels}"); strings.Contains(text, "cluster-name") {
		s.Errorf("hub-source has labelled the namespace of others: %s", text)
	}
	s.run(s.kubectl, "--context", "hub", "label", "namespace", "cluster2", "open-cluster-management.io/cluster-name=cluster2")
	s.eventuallyTrue("cluster2 has its Lease", func() (bool, string) {
		text := s.run(s.kubectl, "--context", "hub", "-n", "cluster2", "get", "lease", "managed-cluster-lease", "--ignore-not-found", "-o", "name")
		return strings.TrimSpace(text) != "", text
	})
}

// refused checks that a manifest which a policy of the cluster denies is applied after the policy is deleted.
func (s *stay) refused() {
	s.Helper()
	s.create("cluster1", `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: refuses}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE]}]}
  validations: [{expression: "object.metadata.name != 'refused'"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: refuses}
spec: {policyName: refuses, validationActions: [Deny]}
`)
	client := s.planes["cluster1"].kube.CoreV1().ConfigMaps("default")
	s.eventuallyTrue("the policy counts", func() (bool, string) {
		_, err := client.Create(s.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "refused"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil, fmt.Sprint(err)
	})
	s.apply("refused")
	s.eventuallyTrue("the work is denied", func() (bool, string) {
		status := s.run(s.kubectl, "--context", "hub", "-n", "cluster1", "get", "manifestwork", "refused", "-o", `jsonpath={.status.conditions[?(@.type=="Applied")].status}`)
		return status == "False", status
	})
	s.run(s.kubectl, "--context", "cluster1", "delete", "validatingadmissionpolicybinding", "refuses")
	s.arrives("refused")
}

// disconnect checks that an add-on becomes Unknown when the agent of its cluster is disconnected.
func (s *stay) disconnect() {
	s.Helper()
	s.run(s.kubectl, "--context", "hub", "patch", "managedcluster", "cluster1", "--type=merge", "-p", `{"spec":{"leaseDurationSeconds":1}}`)
	renewed := func() string {
		return s.run(s.kubectl, "--context", "hub", "-n", "cluster1", "get", "lease", "managed-cluster-lease", "-o", "jsonpath={.spec.renewTime}")
	}
	since := renewed()
	s.eventuallyTrue("the agent renews its Lease", func() (bool, string) { return renewed() != since, since })
	s.agent()
	s.eventuallyTrue("the add-on is Unknown", func() (bool, string) {
		text := s.run(s.kubectl, "--context", "hub", "-n", "cluster1", "get", "managedclusteraddon", "addon", "-o", "jsonpath={.status.conditions[*].status}")
		return text == "Unknown", text
	})
	s.run(s.kubectl, "--context", "hub", "patch", "managedcluster", "cluster1", "--type=merge", "-p", `{"spec":{"leaseDurationSeconds":60}}`)
	s.agent = s.whole.start("cluster1", "hawser-agent")
}

// kindsOfOthers are definitions of the custom kinds in the agent's roles.
const kindsOfOthers = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: servicemonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: ServiceMonitor, plural: servicemonitors}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: oauthclients.oauth.openshift.io}
spec:
  group: oauth.openshift.io
  scope: Cluster
  names: {kind: OAuthClient, plural: oauthclients}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: clusterclaims.cluster.open-cluster-management.io}
spec:
  group: cluster.open-cluster-management.io
  scope: Cluster
  names: {kind: ClusterClaim, plural: clusterclaims}
  versions: [{name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

// manifests are objects of each kind in the agent's roles. VALUE is replaced by the value of their label.
const manifests = `[
{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"k","labels":{"v":"VALUE"}}},
{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"ks.example.com","labels":{"v":"VALUE"}},
 "spec":{"group":"example.com","scope":"Cluster","names":{"kind":"K","plural":"ks"},
 "versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}},
{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"k","labels":{"v":"VALUE"}},"rules":[{"apiGroups":[""],"resources":["nodes/proxy"],"verbs":["get"]}]},
{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"k","namespace":"default","labels":{"v":"VALUE"}},"rules":[{"apiGroups":["example.com"],"resources":["ks"],"verbs":["get"]}]},
{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"k","labels":{"v":"VALUE"}},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"k"}},
{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"k","namespace":"default","labels":{"v":"VALUE"}},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"k"}},
{"apiVersion":"scheduling.k8s.io/v1","kind":"PriorityClass","metadata":{"name":"k","labels":{"v":"VALUE"}},"value":1},
{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingWebhookConfiguration","metadata":{"name":"k","labels":{"v":"VALUE"}}},
{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration","metadata":{"name":"k","labels":{"v":"VALUE"}}},
{"apiVersion":"monitoring.coreos.com/v1","kind":"ServiceMonitor","metadata":{"name":"k","namespace":"default","labels":{"v":"VALUE"}}},
{"apiVersion":"oauth.openshift.io/v1","kind":"OAuthClient","metadata":{"name":"k","labels":{"v":"VALUE"}}}
]`

// ofKinds returns a work with all these manifests and one update strategy.
func ofKinds(value, strategy string) string {
	var all []map[string]any
	if err := json.Unmarshal([]byte(strings.ReplaceAll(manifests, "VALUE", value)), &all); err != nil {
		panic(err)
	}
	var configs []any
	for _, m := range all {
		kind, meta := fmt.Sprint(m["kind"]), m["metadata"].(map[string]any)
		plural := strings.ToLower(kind) + "s"
		if kind == "PriorityClass" {
			plural = "priorityclasses"
		}
		if kind == "K" {
			plural = "ks"
		}
		group, _, _ := strings.Cut(fmt.Sprint(m["apiVersion"]), "/")
		if group == "v1" {
			group = ""
		}
		id := map[string]any{"group": group, "resource": plural, "name": meta["name"]}
		if meta["namespace"] != nil {
			id["namespace"] = meta["namespace"]
		}
		configs = append(configs, map[string]any{"resourceIdentifier": id, "updateStrategy": map[string]any{"type": strategy}})
	}
	b, err := json.Marshal(map[string]any{
		"apiVersion": "work.open-cluster-management.io/v1", "kind": "ManifestWork", "metadata": map[string]any{"name": "kinds", "namespace": "cluster1"},
		"spec": map[string]any{"workload": map[string]any{"manifests": all}, "manifestConfigs": configs},
	})
	if err != nil {
		panic(err)
	}
	return string(b)
}

// kinds: a work with an object of each kind is applied, changed with both strategies, and deleted. A second
// work has an executor that grants rights.
func (s *stay) kinds() {
	s.Helper()
	for i, strategy := range []string{"Update", "Update", "ServerSideApply"} {
		value := fmt.Sprint(i)
		s.create("hub", ofKinds(value, strategy))
		s.eventuallyTrue("the kinds are applied "+value, func() (bool, string) {
			text := s.run(s.kubectl, "--context", "cluster1", "get", "oauthclients,servicemonitors,priorityclasses,clusterroles,namespaces,clusterrolebindings", "-A", "-l", "v="+value, "-o", "name")
			status := s.run(s.kubectl, "--context", "hub", "-n", "cluster1", "get", "manifestwork", "kinds", "-o", `jsonpath={.metadata.generation} {.status.conditions[?(@.type=="Applied")]}`)
			return len(strings.Fields(text)) == 6, text + status
		})
	}
	s.run(s.kubectl, "--context", "hub", "-n", "cluster1", "delete", "manifestwork", "kinds", "--wait=false")
	file := filepath.Join(root, "docs", "examples", "executor.yaml")
	path, err := filepath.Abs(file)
	if err != nil {
		s.Fatal(err)
	}
	s.run(s.kubectl, "--context", "hub", "apply", "--server-side", "-f", path)
	s.create("hub", `
apiVersion: work.open-cluster-management.io/v1
kind: ManifestWork
metadata: {name: gives, namespace: cluster1}
spec:
  executor: {subject: {type: ServiceAccount, serviceAccount: {name: team-a, namespace: default}}}
  workload:
    manifests:
    - {apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: gives, namespace: default}, rules: []}
`)
	s.run(s.kubectl, "--context", "cluster1", "-n", "default", "create", "rolebinding", "gives", "--clusterrole=admin", "--serviceaccount=default:team-a")
	s.eventuallyTrue("the executor was reviewed, and the kinds are deleted", func() (bool, string) {
		status := s.run(s.kubectl, "--context", "hub", "-n", "cluster1", "get", "manifestwork", "gives", "-o", `jsonpath={.status.conditions[?(@.type=="Applied")].reason}`)
		left := s.run(s.kubectl, "--context", "hub", "-n", "cluster1", "get", "manifestwork", "kinds", "--ignore-not-found", "-o", "name")
		return status != "" && strings.TrimSpace(left) == "", status + left
	})
}
