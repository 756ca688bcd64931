package join

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-io/hawser/internal/admission/webhook"
	"github.com/hawser-io/hawser/pkg/codec"
)

// question is what a kube-apiserver asks its authorizers.
type question struct{ user, verb, group, resource, namespace, name, path string }

// right is what answers one. Empty fields stand for all.
type right struct {
	question
	// level tells which installation has it: 1 each, 2 one that clusters join, or that applies works,
	// 3 one that looks after members.
	level int
}

// levelOf is that of the rights of a role.
func levelOf(role string) int {
	switch role {
	case "hawser-hub-source", "hawser-agent":
		return 1
	case "hawser-hub-source-membership":
		return 3
	}
	return 2
}

func (q question) String() string {
	return strings.Join(strings.Fields(strings.Join([]string{q.user, q.verb, q.resource, q.group, q.path, q.name, q.namespace}, " ")), " ")
}

// allows tells whether a right answers a question with yes, as RBAC does.
func (q question) allows(asked question) bool {
	same := func(has, asked string) bool { return has == "" || has == asked }
	return q.user == asked.user && q.verb == asked.verb && q.group == asked.group && q.resource == asked.resource && q.path == asked.path &&
		same(q.namespace, asked.namespace) && same(q.name, asked.name)
}

// audited is the log of a kube-apiserver, of what it allowed.
type audited struct{ log string }

// flags have a kube-apiserver keep the log, and be as strict about owners as OpenShift's.
func (a *audited) flags(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	a.log = filepath.Join(dir, "log")
	policy := filepath.Join(dir, "policy.yaml")
	text := "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata, userGroups: [system:serviceaccounts]}, {level: None}]\n"
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + a.log, "--enable-admission-plugins=OwnerReferencesPermissionEnforcement"}
}

// asked is what the authorizer was asked, and said yes to.
func (a *audited) asked(t *testing.T) map[question]bool {
	t.Helper()
	data, err := os.ReadFile(a.log)
	if err != nil {
		t.Fatal(err)
	}
	all := map[question]bool{}
	for line := range bytes.Lines(data) {
		var e auditv1.Event
		if err := json.Unmarshal(line, &e); err != nil {
			break // it is being written
		}
		if e.Annotations["authorization.k8s.io/decision"] != "allow" {
			continue
		}
		q := question{user: e.User.Username, verb: e.Verb}
		if as := e.ImpersonatedUser; as != nil {
			of := strings.Split(as.Username, ":")
			all[question{user: q.user, verb: "impersonate", resource: "serviceaccounts", namespace: of[2], name: of[3]}] = true
			q.user = as.Username
		}
		if o := e.ObjectRef; o != nil {
			q.group, q.resource, q.namespace, q.name = o.APIGroup, o.Resource, o.Namespace, o.Name
			if o.Subresource != "" {
				q.resource += "/" + o.Subresource
			} else if q.verb == "create" {
				q.name = "" // it is in the body, which authorizers are not shown
			}
		} else {
			q.path, _, _ = strings.Cut(e.RequestURI, "?")
		}
		all[q] = true
		if q.verb == "watch" && strings.Contains(e.RequestURI, "sendInitialEvents=true") {
			listed := q
			listed.verb = "list" // what API servers before Kubernetes 1.32 are asked in its place
			all[listed] = true
		}
		for _, more := range q.implied() {
			all[more] = true
		}
	}
	return all
}

// implied is what the storage or the admission of an object asks the authorizer besides, which the log does not
// have: https://kubernetes.io/docs/reference/access-authn-authz/rbac/#privilege-escalation-prevention-and-bootstrapping
// and https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/#authorization.
func (q question) implied() (all []question) {
	const signer = "open-cluster-management.io/grpc"
	changes := slices.Contains([]string{"create", "update", "patch"}, q.verb)
	switch {
	case q.resource == "certificatesigningrequests/approval" && changes:
		all = append(all, question{user: q.user, verb: "approve", group: csrGroup, resource: "signers", name: signer})
	case q.resource == "certificatesigningrequests/status" && changes:
		all = append(all, question{user: q.user, verb: "sign", group: csrGroup, resource: "signers", name: signer})
	case q.group == rbacGroup && (q.resource == "roles" || q.resource == "clusterroles") && changes:
		all = append(all, question{user: q.user, verb: "escalate", group: rbacGroup, resource: q.resource, namespace: q.namespace})
	case q.group == rbacGroup && q.user == hubSource && q.verb == "create":
		all = append(all, question{user: q.user, verb: "bind", group: rbacGroup, resource: "clusterroles", name: tokensRole})
	case q.group == rbacGroup && changes:
		all = append(all, question{user: q.user, verb: "bind", group: rbacGroup, resource: strings.Replace(q.resource, "bindings", "s", 1), namespace: q.namespace})
	}
	return all
}

// rightsOf are those that roles of deploy/ give on a cluster. What the built-in role admin gives the agent
// is not of deploy/.
func (p plane) rightsOf(t *testing.T) []right {
	t.Helper()
	ctx, api := t.Context(), p.kube.RbacV1()
	rules := map[string][]rbacv1.PolicyRule{}
	clusterRoles, err := api.ClusterRoles().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range clusterRoles.Items {
		rules["ClusterRole "+r.Name] = r.Rules
	}
	roles, err := api.Roles("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range roles.Items {
		rules["Role "+r.Name+" "+r.Namespace] = r.Rules
	}
	bindings, err := api.RoleBindings("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all, err := api.ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range all.Items {
		bindings.Items = append(bindings.Items, rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: b.Name}, RoleRef: b.RoleRef, Subjects: b.Subjects})
	}
	var found []right
	for _, b := range bindings.Items {
		if !strings.HasPrefix(b.RoleRef.Name, "hawser-") {
			continue
		}
		key := b.RoleRef.Kind + " " + b.RoleRef.Name
		if b.RoleRef.Kind == "Role" {
			key += " " + b.Namespace
		}
		for _, s := range b.Subjects {
			for _, r := range rules[key] {
				for _, q := range flat(question{user: "system:serviceaccount:" + s.Namespace + ":" + s.Name, namespace: b.Namespace}, r) {
					found = append(found, right{q, levelOf(b.RoleRef.Name)})
				}
			}
		}
	}
	slices.SortFunc(found, func(a, b right) int { return cmp.Or(cmp.Compare(a.String(), b.String()), a.level-b.level) })
	return slices.CompactFunc(found, func(a, b right) bool { return a.question == b.question }) // the first has the lowest level
}

// flat is a rule as single rights.
func flat(of question, r rbacv1.PolicyRule) (all []question) {
	for _, of.verb = range r.Verbs {
		for _, of.path = range r.NonResourceURLs {
			all = append(all, of)
		}
		of.path = ""
		for _, of.group = range r.APIGroups {
			for _, of.resource = range r.Resources {
				for _, of.name = range append(slices.Clone(r.ResourceNames), make([]string, 1-min(1, len(r.ResourceNames)))...) {
					all = append(all, of)
				}
			}
		}
	}
	return all
}

// unused are the rights without which nothing that was asked and allowed would be denied, where the installation
// is the least that has them.
func unused(rights []right, asked map[question]bool) (all []right) {
	for i, r := range rights {
		needed := false
		for q := range asked {
			needed = needed || r.allows(q) && !slices.ContainsFunc(slices.Delete(slices.Clone(rights), i, i+1), func(other right) bool { return other.level <= r.level && other.allows(q) })
		}
		if !needed {
			all = append(all, r)
		}
	}
	return all
}

// elsewhere are rights that the hub of this test has no question for, and the tests that need them.
var elsewhere = map[question]string{
	// The webhook of Open Cluster Management asks when a cluster is made.
	{user: hubSource, verb: "create", group: clusterGroup, resource: "managedclustersets/join", name: "default"}: "test/e2e/ocm",
	// What hub-source keeps changes when its hub goes back in time, or when it has come far.
	{user: hubSource, verb: "update", resource: "configmaps", namespace: "hawser", name: "hawser-hub-source-hub"}: "test/e2e TestHubRestored",
}

// TestRights_AreLeast: the API servers of a hub and a cluster log what the programs ask for, while a cluster joins,
// works, is silent, is denied and leaves. Of the rights that deploy/ gives, each is deleted in
// turn: then something that was asked is denied.
func TestRights_AreLeast(t *testing.T) {
	logs := map[string]*audited{"hub": {}, "cluster1": {}}
	w := newWorldWith(t, func(name string) []string { return logs[name].flags(t) }, "hub", "cluster1")
	w.create("cluster1", kindsOfOthers)
	s := w.asking()
	s.hawser("accept", "cluster1", "--context", "hub")
	s.apply("first")
	s.arrives("first")

	s.create("hub", addOnOfTest)
	m := s.member(s.at)
	m.getsToken()
	m.events()
	m.reportsAddOn()
	rights := map[string][]right{}
	for name, p := range s.planes {
		rights[name] = p.rightsOf(t)
	}
	s.reviewed()
	s.renewed()
	s.deletedWhileAway()
	s.brokerGone()
	s.namespaceOfOthers(logs["hub"])
	s.kinds()
	s.refused()
	s.silent()
	s.hawser("detach", "cluster1", "--context", "hub")

	for name, log := range logs {
		asked := log.asked(t)
		for _, right := range unused(rights[name], asked) {
			if elsewhere[right.question] == "" {
				t.Errorf("%s: nothing needs the right to %s", name, right)
			}
		}
		t.Logf("%s: %d rights, %d questions", name, len(rights[name]), len(asked))
	}
}

// create makes objects as an administrator.
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

// reportsAddOn has the agent of the cluster say that its add-on is available.
func (m *member) reportsAddOn() {
	m.Helper()
	text := m.run(m.kubectl, "--context", "hub", "-n", "cluster1", "get", "managedclusteraddon", "addon", "-o", "json")
	var o map[string]any
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		m.Fatal(err)
	}
	o["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Available", "status": "True", "reason": "Works", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}}}
	if reason := m.asksFor(codec.AddOnsV1Alpha1, codec.Status, codec.UpdateRequest, o); reason != "" {
		m.Fatalf("the status of an add-on is refused: %s", reason)
	}
}

// reviewed has the webhook ask the hub about an executor.
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
	review.Request.UserInfo.Username, review.Request.Object.Raw = "somebody", []byte(object)
	body, err := json.Marshal(review)
	if err != nil {
		s.Fatal(err)
	}
	r, err := http.NewRequestWithContext(s.Context(), http.MethodPost, "https://"+s.address("hub/hawser-hub-source")+":9443"+webhook.Path, bytes.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // who answers is not what this is about
	answer, err := client.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }() // it was read
	if err := json.NewDecoder(answer.Body).Decode(&review); err != nil || review.Response == nil || review.Response.Allowed {
		s.Errorf("the webhook said %+v, %v", review.Response, err)
	}
}

// asRegistrar makes a certificate request as hub-source does, for the agent itself.
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

// renewed: a renewal is approved and signed; one of a cluster that is not accepted is denied, and goes
// when the cluster is.
func (s *stay) renewed() {
	s.Helper()
	shows := func(name, want string) {
		s.Helper()
		s.eventuallyTrue(name+" is "+want, func() (bool, string) {
			text := s.run(s.kubectl, "--context", "hub", "get", "csr", name, "--ignore-not-found", "-o", "jsonpath={.status.conditions[*].type} {.status.certificate}")
			return want == "" && text == "" || want != "" && strings.HasPrefix(text, want), text
		})
	}
	accept := func(is bool) { // as hawser does, which deletes denied requests itself
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

// deletedWhileAway: a work goes while no hub-source looks; the next one asks the hub for it by name. That one
// serves the clusters with some labels on their namespaces.
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

// brokerGone: Events say more than once that the broker is.
func (s *stay) brokerGone() {
	s.Helper()
	s.broker()
	s.eventuallyTrue("an Event counts how often the broker was not reached", func() (bool, string) {
		text := s.run(s.kubectl, "--context", "hub", "-n", "hawser", "get", "events", "-o", `jsonpath={range .items[?(@.reason=="BrokerUnreachable")]}{.count} {end}`)
		return strings.TrimSpace(text) != "" && strings.Trim(text, "1 ") != "", text
	})
	s.broker = s.whole.start("hub", "hawser-broker")
}

// namespaceOfOthers: hub-source may label the namespace that an administrator made for a cluster, as far as
// its role goes. The policy denies it until the administrator has.
func (s *stay) namespaceOfOthers(log *audited) {
	s.Helper()
	s.run(s.kubectl, "--context", "hub", "create", "namespace", "cluster2")
	s.create("hub", "apiVersion: cluster.open-cluster-management.io/v1\nkind: ManagedCluster\nmetadata: {name: cluster2}\nspec: {hubAcceptsClient: true}\n")
	s.eventuallyTrue("hub-source tries", func() (bool, string) {
		asked := log.asked(s.T)
		return asked[question{user: hubSource, verb: "patch", resource: "namespaces", namespace: "cluster2", name: "cluster2"}], fmt.Sprint(len(asked))
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

// refused: what a policy of the cluster denies is applied when the policy goes.
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

// silent: the add-on of a cluster whose agent is not heard of is Unknown.
func (s *stay) silent() {
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

// kindsOfOthers are definitions of kinds that the agent's roles name, and reads.
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

// manifests are objects of each kind that the agent's roles name; VALUE is of their label.
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

// ofKinds is a work with all of them, in one strategy.
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

// kinds: a work with an object of each kind is applied, changed in both strategies, and deleted; and one with an
// executor that gives rights away.
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
	s.eventuallyTrue("the executor was asked about, and the kinds are gone", func() (bool, string) {
		status := s.run(s.kubectl, "--context", "hub", "-n", "cluster1", "get", "manifestwork", "gives", "-o", `jsonpath={.status.conditions[?(@.type=="Applied")].reason}`)
		left := s.run(s.kubectl, "--context", "hub", "-n", "cluster1", "get", "manifestwork", "kinds", "--ignore-not-found", "-o", "name")
		return status != "" && strings.TrimSpace(left) == "", status + left
	})
}
