package join

import (
	"bytes"
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/dynamic"

	"github.com/hawser-io/hawser/internal/install"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

// question is a request to an authorizer of a kube-apiserver.
type question struct{ user, verb, group, resource, namespace, name, path string }

// right is a permission of one user. An empty name or namespace matches all.
type right struct {
	question
	// level is the installation that has the right: 1 each one, 2 one with registration or with works, 3 one
	// with the cluster controller.
	level int
}

// levelOf returns the level of a role's rights.
func levelOf(role string) int {
	switch role {
	case "hawser-hub-source", "hawser-agent":
		return 1
	case "hawser-hub-source-registration-controllers":
		return 3
	}
	return 2
}

func (q question) String() string {
	return strings.Join(strings.Fields(strings.Join([]string{q.user, q.verb, q.resource, q.group, q.path, q.name, q.namespace}, " ")), " ")
}

// allows reports whether a right permits a request, as RBAC does.
func (q question) allows(requested question) bool {
	same := func(has, queried string) bool { return has == "" || has == queried }
	return q.user == requested.user && q.verb == requested.verb && q.group == requested.group && q.resource == requested.resource && q.path == requested.path &&
		same(q.namespace, requested.namespace) && same(q.name, requested.name)
}

// audited is the audit log of a kube-apiserver.
type audited struct {
	log    string
	denied []string // by the policy that confines hub-source
}

// flags returns the flags with which a kube-apiserver writes the log. It also checks owner references as
// strictly as OpenShift.
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

// requests returns the requests of service accounts that the authorizer allowed.
func (a *audited) requests(t *testing.T) map[question]bool {
	t.Helper()
	data, err := os.ReadFile(a.log)
	if err != nil {
		t.Fatal(err)
	}
	a.denied = nil
	all := map[question]bool{}
	for line := range bytes.Lines(data) {
		var e auditv1.Event
		if err := json.Unmarshal(line, &e); err != nil {
			break // the last line is still being written
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
				q.name = "" // the name is in the body, which authorizers do not get
			}
		} else {
			q.path, _, _ = strings.Cut(e.RequestURI, "?")
		}
		all[q] = true
		if status := e.ResponseStatus; status != nil && strings.Contains(status.Message, "ValidatingAdmissionPolicy 'hawser-hub-source'") {
			a.denied = append(a.denied, strings.Join([]string{q.verb, q.resource, q.name}, " "))
		}
		if e.Annotations[requestedAsOCM] != "" {
			all[ofOCM(q.user)] = true
		}
		if q.verb == "watch" && strings.Contains(e.RequestURI, "sendInitialEvents=true") {
			listed := q
			listed.verb = "list" // the request that API servers before Kubernetes 1.32 receive instead
			all[listed] = true
		}
		for _, more := range q.implied() {
			all[more] = true
		}
	}
	return all
}

// implied returns further requests that storage or admission of an object sends to the authorizer, and that the
// log lacks:
// https://kubernetes.io/docs/reference/access-authn-authz/rbac/#privilege-escalation-prevention-and-bootstrapping
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

// given holds the rules of roles by kind, name and namespace, and the bindings. A ClusterRoleBinding has no
// namespace.
type given struct {
	rules    map[string][]rbacv1.PolicyRule
	bindings []rbacv1.RoleBinding
}

// of adds a role or a binding.
func (g *given) of(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	var role rbacv1.ClusterRole
	var binding rbacv1.RoleBinding
	into := any(&binding)
	if strings.HasSuffix(o.GetKind(), "Role") {
		into = &role
	} else if !strings.HasSuffix(o.GetKind(), "RoleBinding") {
		return
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, into); err != nil {
		t.Fatal(err)
	}
	if into == any(&binding) {
		g.bindings = append(g.bindings, binding)
		return
	}
	if g.rules == nil {
		g.rules = map[string][]rbacv1.PolicyRule{}
	}
	if role.AggregationRule != nil {
		return // the labels of other roles fill its rules, below
	}
	g.rules[o.GetKind()+" "+o.GetName()+" "+o.GetNamespace()] = role.Rules
	if role.Labels["open-cluster-management.io/aggregate-to-work"] != "" { // the control plane aggregates by this label
		aggregate := "ClusterRole hawser-agent-aggregate "
		g.rules[aggregate] = append(g.rules[aggregate], role.Rules...)
	}
}

// rights returns the rights of the roles of deploy/. It leaves out those of the built-in role admin.
func (g *given) rights() []right {
	var found []right
	for _, b := range g.bindings {
		if !strings.HasPrefix(b.RoleRef.Name, "hawser-") {
			continue
		}
		key := b.RoleRef.Kind + " " + b.RoleRef.Name + " "
		if b.RoleRef.Kind == "Role" {
			key += b.Namespace
		}
		for _, s := range b.Subjects {
			for _, r := range g.rules[key] {
				for _, q := range flat(question{user: "system:serviceaccount:" + s.Namespace + ":" + s.Name, namespace: b.Namespace}, r) {
					found = append(found, right{q, levelOf(b.RoleRef.Name)})
				}
			}
		}
	}
	slices.SortFunc(found, func(a, b right) int { return cmp.Or(cmp.Compare(a.String(), b.String()), a.level-b.level) })
	return slices.CompactFunc(found, func(a, b right) bool { return a.question == b.question }) // the first has the lowest level
}

// rightsOf returns the rights by the roles and bindings of a cluster.
func (p plane) rightsOf(t *testing.T) []right {
	t.Helper()
	cfg, err := p.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	var g given
	for _, resource := range []string{"clusterroles", "roles", "clusterrolebindings", "rolebindings"} {
		all, err := dynamic.NewForConfigOrDie(cfg).Resource(rbacv1.SchemeGroupVersion.WithResource(resource)).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range all.Items {
			g.of(t, &all.Items[i])
		}
	}
	return g.rights()
}

// rightsInstalled returns the rights that hawser install and hawser join grant, on a hub with registration and
// on a cluster.
func rightsInstalled(t *testing.T) map[string][]right {
	t.Helper()
	settings := install.Settings{
		Registration: install.On, Confined: install.On, Address: "broker.example.com:8090", HubIdentity: "hub", Images: install.Images{Registry: "r", Version: "v"},
	}
	hub, err := install.Hub(t.Context(), clustertest.New(), settings, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ca, err := pki.NewAuthority("ca", pki.Starting(time.Now(), time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	join := install.Join{Name: "cluster1", Bootstrap: install.Bootstrap{Broker: "broker.example.com:8090", CA: ca.CertificatePEM(), Token: "x"}, Images: settings.Images}
	cluster, err := join.Agent(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// hub-source creates this RoleBinding.
	onHub := given{bindings: []rbacv1.RoleBinding{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "cluster1", Name: tokensRole}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: tokensRole},
		Subjects: []rbacv1.Subject{{Namespace: "hawser", Name: "hawser-hub-source"}},
	}}}
	var onCluster given
	for g, p := range map[*given]install.Plan{&onHub: hub, &onCluster: cluster} {
		for _, o := range slices.Concat(p.Objects, p.Last) {
			g.of(t, o)
		}
	}
	return map[string][]right{"hub": onHub.rights(), "cluster1": onCluster.rights()}
}

// flat splits a rule into single rights.
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

// unused returns the rights that no allowed request needs. Another right of at most the same level does not
// allow the request.
func unused(rights []right, requested map[question]bool) (all []right) {
	for i, r := range rights {
		needed := false
		for q := range requested {
			needed = needed || r.allows(q) && !slices.ContainsFunc(slices.Delete(slices.Clone(rights), i, i+1), func(other right) bool { return other.level <= r.level && other.allows(q) })
		}
		if !needed {
			all = append(all, r)
		}
	}
	return all
}

// withoutUnusedNames returns the allowed requests as lines, without names and namespaces that no right
// restricts.
func withoutUnusedNames(rights []right, requested map[question]bool) (lines []string) {
	for q := range requested {
		named, placed, allowed := false, false, false
		for _, r := range rights {
			if r.allows(q) {
				named, placed, allowed = named || r.name != "", placed || r.namespace != "", true
			}
		}
		if !named {
			q.name = ""
		}
		if !placed {
			q.namespace = ""
		}
		if allowed {
			lines = append(lines, q.line())
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

func (q question) line() string {
	fields := []string{q.user, q.verb, q.group, q.resource, q.namespace, q.name, q.path}
	for i, f := range fields {
		fields[i] = cmp.Or(f, "-")
	}
	return strings.Join(fields, " ")
}

// recorded returns the file with the requests that TestRights_AreLeast has recorded on a cluster.
func recorded(name string) string { return filepath.Join("testdata", "asked-on-"+name+".txt") }

func readRecorded(t *testing.T, name string) map[question]bool {
	t.Helper()
	data, err := os.ReadFile(recorded(name))
	if err != nil {
		t.Fatal(err)
	}
	all := map[question]bool{}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) != 7 {
			t.Fatalf("%s: %q", recorded(name), line)
		}
		for i := range f {
			f[i] = strings.TrimPrefix(f[i], "-")
		}
		all[question{f[0], f[1], f[2], f[3], f[4], f[5], f[6]}] = true
	}
	return all
}

// TestRights_AreNeeded: each right that hawser install gives is deleted in turn. Then a request of
// TestRights_AreLeast is denied. With all rights no request is denied.
func TestRights_AreNeeded(t *testing.T) {
	for name, rights := range rightsInstalled(t) {
		requested := readRecorded(t, name)
		for _, r := range unused(rights, requested) {
			t.Errorf("%s: no step needs the right to %s: add one to TestRights_AreLeast (UPDATE=1 keeps the requested rights), or take it out of deploy/", name, r)
		}
		for q := range requested {
			if !slices.ContainsFunc(rights, func(r right) bool { return r.allows(q) }) {
				t.Errorf("%s: no role of deploy/ gives the right to %s", name, q)
			}
		}
		// An additional right is found as unused.
		more := right{question{user: rights[0].user, verb: "get", resource: "limitranges"}, 1}
		if found := unused(append(slices.Clone(rights), more), requested); len(rights) < 60 || len(found) != 1 || found[0] != more {
			t.Errorf("%s: of %d rights and one that nothing needs %v are unused", name, len(rights), found)
		}
	}
}

// TestRights_AreLeast: the API servers of a hub and a cluster log the requests of the programs. Meanwhile a
// cluster joins, works, disconnects, is denied and leaves. Each right that deploy/ gives is deleted in turn.
// Then a request that was made must be denied.
func TestRights_AreLeast(t *testing.T) {
	logs := map[string]*audited{"hub": {}, "cluster1": {}}
	w := newWorldWith(t, func(name string) []string { return logs[name].flags(t) }, "hub", "cluster1")
	w.create("cluster1", kindsOfOthers)
	w.create("hub", requestsAsOCM)
	s := w.newRequester()
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
		if diff := gocmp.Diff(rightsInstalled(t)[name], rights[name], gocmp.AllowUnexported(right{}, question{})); diff != "" {
			t.Errorf("%s (-install +cluster):\n%s", name, diff)
		}
	}
	s.reviewed()
	s.renewed()
	s.hawser("rotate", "cluster", "cluster1", "--context", "hub", "--wait")
	s.deletedWhileAway()
	s.brokerGone()
	s.namespaceOfOthers(logs["hub"])
	s.kinds()
	s.refused()
	s.disconnect()
	s.setOfOCM()
	s.hawser("detach", "cluster1", "--context", "hub")
	s.source() // hub-source writes its last state before it ends

	for name, log := range logs {
		requested := log.requests(t)
		for _, r := range unused(rights[name], requested) {
			t.Errorf("%s: nothing needs the right to %s", name, r)
		}
		lines := withoutUnusedNames(rights[name], requested)
		if os.Getenv("UPDATE") != "" && !t.Failed() {
			if err := os.WriteFile(recorded(name), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if diff := gocmp.Diff(withoutUnusedNames(rights[name], readRecorded(t, name)), lines); diff != "" {
			t.Errorf("%s gets other requests than %s has, UPDATE=1 keeps them (-kept +requested):\n%s", name, recorded(name), diff)
		}
		t.Logf("%s: %d rights, %d questions", name, len(rights[name]), len(requested))
	}
	const labels = "patch namespaces cluster2"
	if denied := slices.Compact(slices.Sorted(slices.Values(logs["hub"].denied))); !slices.Equal(denied, []string{labels}) {
		t.Errorf("the policy denied hub-source %v, want %q alone", denied, labels)
	}
}
