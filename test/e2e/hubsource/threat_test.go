package hubsource

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	workversioned "open-cluster-management.io/api/client/work/clientset/versioned"
	clusterv1 "open-cluster-management.io/api/cluster/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/hubsource/registration"
	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mem"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// threatened is a hub with one accepted cluster and one waiting cluster, and with objects that an attacker may
// want.
type threatened struct{ *membersHub }

func newThreatened(t *testing.T) *threatened {
	t.Helper()
	h := &threatened{newMembersHub(t)}
	h.Kubectl("apply", "-f", "../../../deploy/hub-source-registration/rbac.yaml")
	h.serve()
	for _, name := range []string{"member", "waits"} {
		c := &clusterv1.ManagedCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: clusterv1.ManagedClusterSpec{HubAcceptsClient: name == "member"}}
		if _, err := h.clusters.ClusterV1().ManagedClusters().Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	h.shows("member", map[string]metav1.ConditionStatus{clusterv1.ManagedClusterConditionHubAccepted: metav1.ConditionTrue}, "unreachable")
	h.Eventually(func() error {
		_, err := h.Kube.CoordinationV1().Leases("member").Get(t.Context(), ocm.LeaseName, metav1.GetOptions{})
		return err
	})
	h.Kubectl("create", "serviceaccount", "ordinary", "-n", "member")
	h.Kubectl("create", "serviceaccount", "addon", "-n", "member")
	h.Kubectl("label", "serviceaccount", "addon", "-n", "member", "addon.open-cluster-management.io/token-infrastructure=true")
	h.Kubectl("create", "serviceaccount", "root", "-n", "kube-system")
	h.Kubectl("create", "secret", "generic", "loot", "-n", "member", "--from-literal=a=b")
	w := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{Name: "w", Namespace: "member"}}
	w.Spec.Workload.Manifests = manifests("a")
	if _, err := h.Works.WorkV1().ManifestWorks("member").Create(t.Context(), w, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return h
}

var managedClusters = schema.GroupVersionResource{Group: "cluster.open-cluster-management.io", Version: "v1", Resource: "managedclusters"}

// wanted are the kinds of objects that an attacker may want to create or change.
var wanted = []schema.GroupVersionResource{
	managedClusters, certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests"),
	rbacv1.SchemeGroupVersion.WithResource("rolebindings"), rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings"),
	rbacv1.SchemeGroupVersion.WithResource("clusterroles"), corev1.SchemeGroupVersion.WithResource("secrets"),
	corev1.SchemeGroupVersion.WithResource("namespaces"), {Group: "work.open-cluster-management.io", Version: "v1", Resource: "manifestworks"},
	{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, {Group: "events.k8s.io", Version: "v1", Resource: "events"},
}

// has returns the content of the hub's objects of these kinds, by kind and name, without status and times.
func (h *threatened) has() map[string]string {
	h.Helper()
	all, client := map[string]string{}, dynamic.NewForConfigOrDie(h.Admin)
	for _, kind := range wanted {
		l, err := client.Resource(kind).List(h.Context(), metav1.ListOptions{})
		if err != nil {
			h.Fatal(err)
		}
		for _, o := range l.Items {
			if kind.Resource == "leases" && o.GetName() != ocm.LeaseName {
				continue // a Lease of the API server
			}
			text, err := json.Marshal([]any{o.Object["spec"], o.Object["subjects"], o.Object["rules"], o.Object["data"], o.GetLabels(), o.GetFinalizers()})
			if err != nil {
				h.Fatal(err)
			}
			all[kind.Resource+" "+strings.TrimPrefix(o.GetNamespace()+"/", "/")+o.GetName()] = string(text)
		}
	}
	return all
}

// liar is a broker that sends hub-source invented requests.
type liar struct {
	*threatened
	out chan *hawserv1.RegistrationRequest

	mu      sync.Mutex
	listed  bool
	answers map[string]chan *hawserv1.RegistrationAnswer
}

// Publish implements transport.Server. It records the answers of hub-source.
func (l *liar) Publish(_ context.Context, _ transport.Peer, event []byte, _ string) (transport.Receipt, error) {
	e, err := codec.Unmarshal(event)
	if err != nil {
		return transport.Receipt{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch e.Type() {
	case codec.TypeRegistrationObjects:
		m, err := codec.ParseRegistrationObjects(e)
		l.listed = l.listed || m.GetSnapshotComplete()
		return transport.Receipt{}, err
	case codec.TypeRegistrationAnswer:
		m, err := codec.ParseRegistrationAnswer(e)
		if err == nil {
			l.answers[m.GetId()] <- m
		}
		return transport.Receipt{}, err
	}
	return transport.Receipt{}, nil
}

// Subscribe implements transport.Server.
func (l *liar) Subscribe(ctx context.Context, _ transport.Peer, _ transport.RawSubscription, out transport.Stream) error {
	if err := out.Accept(transport.Accepted{SubscriptionID: "1", Protocol: transport.Protocol, Resync: codec.ResyncCursor}); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return transport.GaveUp(ctx, "over")
		case r := <-l.out:
			e, err := codec.NewRegistrationRequest(codec.SyncParams{ID: "r", Time: time.Now(), Source: "broker", Owner: "hub"}, r)
			if err != nil {
				return err
			}
			raw, err := codec.Marshal(e)
			if err == nil {
				err = out.Send(raw)
			}
			if err != nil {
				return err
			}
		}
	}
}

// lies runs hub-source's registration, with the rights of deploy/, at a lying broker.
func (h *threatened) lies() *liar {
	h.Helper()
	l := &liar{threatened: h, out: make(chan *hawserv1.RegistrationRequest), answers: map[string]chan *hawserv1.RegistrationAnswer{}}
	api, err := registration.NewHub(h.Limited)
	if err != nil {
		h.Fatal(err)
	}
	s := registration.New(registration.Config{
		ID: "hub", Hub: api, Dialer: mem.New(l, transport.Peer{Role: "source", Name: "hub"}), Registerer: prometheus.NewRegistry(),
		Health: &telemetry.Health{}, Log: slog.New(slog.NewTextHandler(h.Output(), nil)),
	})
	h.Client(s.Run)
	h.Eventually(func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.listed {
			return fmt.Errorf("hub-source has not listed the objects of the hub")
		}
		return nil
	})
	return l
}

type object = map[string]any

// lie is one invented request.
type lie struct {
	what            codec.EventType
	cluster, named  string // cluster of the request; named is the cluster in the event, "" if it is the same
	user            string
	groups          []string
	bootstrap       bool
	object          object
	reason          string // of the rejection; "": hub-source executes the request
	keepsTheRequest string // name of a certificate request that must stay unapproved
}

// whatever matches each reason.
const whatever = "*"

// send sends one invented request to hub-source, and returns its answer.
func (l *liar) send(name string, x lie) *hawserv1.RegistrationAnswer {
	l.Helper()
	data, err := json.Marshal(x.object)
	if err != nil {
		l.Fatal(err)
	}
	named := x.cluster
	if x.named != "" {
		named = x.named
	}
	e, err := codec.Builder{ID: "1", Time: time.Now(), Source: named, Type: x.what.String(), Cluster: named, ContentType: codec.ContentTypeJSON, Data: data}.Event()
	if err != nil {
		l.Fatal(err)
	}
	raw, err := codec.Marshal(e)
	if err != nil {
		l.Fatal(err)
	}
	answer := make(chan *hawserv1.RegistrationAnswer, 1)
	l.mu.Lock()
	l.answers[name] = answer
	l.mu.Unlock()
	l.out <- &hawserv1.RegistrationRequest{Id: name, Request: &hawserv1.RegistrationRequest_AgentRequest{AgentRequest: &hawserv1.AgentRequest{
		Event: raw, Cluster: x.cluster, User: x.user, Groups: x.groups, Bootstrap: x.bootstrap,
	}}}
	select {
	case a := <-answer:
		got := ""
		if len(a.GetError()) > 0 {
			got = codec.ParseAPIStatus(a.GetError()).Reason
		}
		if got != x.reason && x.reason != whatever {
			l.Errorf("%s: refused with %q, want %q", name, a.GetError(), x.reason)
		}
		return a
	case <-time.After(30 * time.Second):
		l.Fatalf("%s: no answer", name)
	}
	return nil
}

// request returns the certificate request of a lying broker.
func request(t *testing.T, name string, subject pkix.Name, signer string, labels object) object {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	return object{"metadata": object{"name": name, "labels": labels}, "spec": object{
		"signerName": signer, "request": base64.StdEncoding.EncodeToString(text), "usages": []string{"digital signature", "key encipherment", "client auth"},
	}}
}

// TestThreat_CompromisedBroker: a compromised broker gives false identities for requesters. It has only the
// rights that the agent of an accepted cluster has. It accepts no cluster, approves no first certificate, and
// gets only tokens of add-ons. On the hub it creates only ManagedClusters, undecided certificate requests, and
// one binding. By that binding hub-source requests tokens in the namespace of an accepted cluster.
func TestThreat_CompromisedBroker(t *testing.T) {
	h := newThreatened(t)
	l := h.lies()
	create := func(d codec.DataType) codec.EventType {
		return codec.EventType{DataType: d, Subresource: codec.Spec, Action: codec.CreateRequest}
	}
	update := func(d codec.DataType, s codec.Subresource) codec.EventType {
		return codec.EventType{DataType: d, Subresource: s, Action: codec.UpdateRequest}
	}
	labelOf := func(cluster string) object { return object{clusterv1.ClusterNameLabelKey: cluster} }
	csr := func(name, cluster string) object {
		return request(t, name, subjectOf(cluster), ocm.Signer, labelOf(cluster))
	}
	addOn := labelOf("member")
	addOn["open-cluster-management.io/addon-name"] = "a"
	joins := object{
		"metadata": object{"name": "kube-system", "labels": object{"a": "b"}, "finalizers": []string{"a/b"}},
		"spec":     object{"hubAcceptsClient": true, "taints": []object{{"key": "a", "effect": "NoSelect"}}},
	}
	accepts := object{"metadata": object{"name": "member"}, "spec": object{"hubAcceptsClient": true}}
	const masters = "system:masters"
	before := h.has()
	for name, x := range map[string]lie{
		"a cluster that accepts itself":        {what: create(codec.ManagedClusters), cluster: "kube-system", user: "system:admin", groups: []string{masters}, bootstrap: true, object: joins},
		"a cluster that is there":              {what: create(codec.ManagedClusters), cluster: "member", user: agentOf("member"), object: accepts, reason: "AlreadyExists"},
		"a spec":                               {what: update(codec.ManagedClusters, codec.Spec), cluster: "member", user: agentOf("member"), object: accepts, reason: "Forbidden"},
		"the end of a cluster":                 {what: codec.EventType{DataType: codec.ManagedClusters, Subresource: codec.Spec, Action: codec.DeleteRequest}, cluster: "member", user: agentOf("member"), object: accepts, reason: "Forbidden"},
		"a status of an undecided cluster":     {what: update(codec.ManagedClusters, codec.Status), cluster: "waits", user: agentOf("waits"), object: object{"metadata": object{"name": "waits"}, "status": object{}}, reason: "Forbidden"},
		"an event of another cluster":          {what: create(codec.KubeEvents), cluster: "member", named: "waits", user: agentOf("member"), object: object{}, reason: "BadRequest"},
		"a renewal of an undecided cluster":    {what: create(codec.SigningRequests), cluster: "waits", user: agentOf("waits"), object: csr("waits-1", "waits"), reason: "Forbidden"},
		"an agent with a token":                {what: create(codec.SigningRequests), cluster: "waits", user: agentOf("waits"), bootstrap: true, object: csr("waits-2", "waits"), reason: "Forbidden"},
		"a second agent of a member":           {what: create(codec.SigningRequests), cluster: "member", user: "system:admin", groups: []string{masters}, bootstrap: true, object: csr("member-2", "member"), keepsTheRequest: "member-2"},
		"an operator":                          {what: create(codec.SigningRequests), cluster: "member", user: agentOf("member"), object: request(t, "x1", pkix.Name{CommonName: "hawser:operator:eve"}, ocm.Signer, labelOf("member")), reason: "Forbidden"},
		"an agent of another cluster":          {what: create(codec.SigningRequests), cluster: "member", user: agentOf("member"), object: request(t, "x2", subjectOf("waits"), ocm.Signer, labelOf("member")), reason: "Forbidden"},
		"a request labelled as another's":      {what: create(codec.SigningRequests), cluster: "member", user: agentOf("member"), object: csr("x3", "waits"), reason: "Forbidden"},
		"an administrator of the hub":          {what: create(codec.SigningRequests), cluster: "member", user: agentOf("member"), object: request(t, "x4", pkix.Name{CommonName: "eve", Organization: []string{masters}}, certificatesv1.KubeAPIServerClientSignerName, addOn), reason: "Forbidden"},
		"a kubelet":                            {what: create(codec.SigningRequests), cluster: "member", user: agentOf("member"), object: request(t, "x5", pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}, certificatesv1.KubeAPIServerClientKubeletSignerName, labelOf("member")), reason: "Forbidden"},
		"a token of no add-on":                 {what: create(codec.TokenRequests), cluster: "member", user: agentOf("member"), object: object{"metadata": object{"name": "ordinary", "namespace": "member"}}, reason: "Forbidden"},
		"a token of another namespace":         {what: create(codec.TokenRequests), cluster: "member", user: agentOf("member"), object: object{"metadata": object{"name": "root", "namespace": "kube-system"}}, reason: "Forbidden"},
		"a token where no cluster is accepted": {what: create(codec.TokenRequests), cluster: "kube-system", user: agentOf("kube-system"), object: object{"metadata": object{"name": "root", "namespace": "kube-system"}}, reason: "Forbidden"},
		"an Event elsewhere":                   {what: create(codec.KubeEvents), cluster: "member", user: agentOf("member"), object: object{"metadata": object{"name": "e", "namespace": "kube-system"}}, reason: "Forbidden"},
		"the status of an add-on elsewhere":    {what: update(codec.AddOnsV1Alpha1, codec.Status), cluster: "member", user: agentOf("member"), object: object{"metadata": object{"name": "a", "namespace": "kube-system"}, "status": object{}}, reason: "Forbidden"},
		"a Lease":                              {what: update(codec.Leases, codec.Spec), cluster: "member", user: agentOf("member"), object: object{"metadata": object{"name": ocm.LeaseName, "namespace": "member"}}, reason: "Forbidden"},
		"a work":                               {what: create(codec.ManifestBundles), cluster: "member", user: agentOf("member"), object: object{"metadata": object{"name": "x", "namespace": "member"}}, reason: "Forbidden"},
		"no requester":                         {what: create(codec.SigningRequests), cluster: "member", object: csr("x6", "member"), reason: "Forbidden"},
	} {
		l.send(name, x)
		if x.keepsTheRequest != "" {
			l.unsigned(x.keepsTheRequest)
		}
	}
	h.Eventually(func() error { // hub-source writes the status at the same time: conflicts are repeated
		a := l.send("the hub's own condition", lie{what: update(codec.ManagedClusters, codec.Status), cluster: "member", user: agentOf("member"), object: l.statusOf("member"), reason: whatever})
		if len(a.GetError()) > 0 {
			return fmt.Errorf("the status of a member is not taken: %s", a.GetError())
		}
		return nil
	})
	// Renewals of a cluster that is not accepted create no Lease.
	l.out <- &hawserv1.RegistrationRequest{Request: &hawserv1.RegistrationRequest_Renewals{Renewals: &hawserv1.LeaseRenewals{
		Renewals: []*hawserv1.LeaseRenewal{{Cluster: "waits"}, {Cluster: "kube-system"}},
	}}}
	after := h.has()
	added := object{}
	for name, text := range after {
		if before[name] != text {
			added[name] = text
		}
	}
	for name := range before {
		if _, there := after[name]; !there {
			t.Errorf("%s was deleted", name)
		}
	}
	if d := cmp.Diff([]string{"certificatesigningrequests member-2", "managedclusters kube-system", "rolebindings member/hawser-hub-source-tokens"}, slices.Sorted(maps.Keys(added))); d != "" {
		t.Errorf("what a broker makes on the hub that lies (-want +got):\n%s", d)
	}
	for _, name := range []string{"kube-system", "waits", "member"} {
		c, err := h.clusters.ClusterV1().ManagedClusters().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || c.Spec.HubAcceptsClient != (name == "member") || len(c.Labels) > 0 {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
	h.shows("member", map[string]metav1.ConditionStatus{clusterv1.ManagedClusterConditionHubAccepted: metav1.ConditionTrue}, "unreachable")

	// A token for the broker is not valid at the hub.
	seen := rest.AnonymousClientConfig(h.Admin)
	seen.BearerToken = strings.TrimSpace(h.Kubectl("create", "token", "ordinary", "-n", "member", "--audience=hawser"))
	if _, err := kubernetes.NewForConfigOrDie(seen).CoreV1().Namespaces().Get(t.Context(), "member", metav1.GetOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("the hub takes a token for the audience hawser: %v", err)
	}

	// The attacker gets the next certificate of an accepted cluster, and tokens of its add-ons.
	l.send("a renewal of a member", lie{what: create(codec.SigningRequests), cluster: "member", user: agentOf("member"), object: csr("member-1", "member")})
	h.csrHas("member-1", certificatesv1.CertificateApproved)
	token := l.send("a token of an add-on", lie{what: create(codec.TokenRequests), cluster: "member", user: agentOf("member"), object: object{"metadata": object{"name": "addon", "namespace": "member"}}})
	if !strings.Contains(string(token.GetTokenRequest()), `"token":"ey`) {
		t.Error("the broker got no token of an add-on of a member, unlike docs/threat-model.md")
	}
}

// statusOf returns a status of a cluster that withdraws its own acceptance.
func (l *liar) statusOf(name string) object {
	l.Helper()
	c, err := l.clusters.ClusterV1().ManagedClusters().Get(l.Context(), name, metav1.GetOptions{})
	if err != nil {
		l.Fatal(err)
	}
	return object{"metadata": object{"name": name, "uid": c.UID, "resourceVersion": c.ResourceVersion}, "spec": object{"hubAcceptsClient": false}, "status": object{
		"conditions": []object{{"type": clusterv1.ManagedClusterConditionHubAccepted, "status": "False", "reason": "Lie", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}},
	}}
}

// unsigned fails the test if a certificate request is approved or has a certificate.
func (l *liar) unsigned(name string) {
	l.Helper()
	r, err := l.Kube.CertificatesV1().CertificateSigningRequests().Get(l.Context(), name, metav1.GetOptions{})
	if err != nil {
		l.Fatal(err)
	}
	approved := func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateApproved
	}
	if slices.ContainsFunc(r.Status.Conditions, approved) || len(r.Status.Certificate) > 0 {
		l.Errorf("%s is approved: %+v", name, r.Status.Conditions)
	}
}

// TestThreat_CompromisedHubSource: an attacker has the token of hub-source's account, with all rights of
// deploy/. The hub rejects each of these attempts, except the two that docs/threat-model.md names.
func TestThreat_CompromisedHubSource(t *testing.T) {
	h := newThreatened(t)
	evil := kubernetes.NewForConfigOrDie(h.Limited)
	works := workversioned.NewForConfigOrDie(h.Limited).WorkV1()
	clusters := dynamic.NewForConfigOrDie(h.Limited).Resource(managedClusters)
	ctx, all, one := t.Context(), metav1.CreateOptions{}, metav1.GetOptions{}
	me := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "hawser", Name: "hawser-hub-source"}}
	admin := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}
	h.request("pending", "waits", bootstrapUser, subjectOf("waits"))
	foreign, err := h.Kube.CertificatesV1().CertificateSigningRequests().Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "foreign"}, Spec: h.requestOf("pending", certificatesv1.KubeAPIServerClientSignerName),
	}, all)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := pki.NewAuthority("x", pki.Starting(time.Now(), pki.AuthorityLifetime))
	if err != nil {
		t.Fatal(err)
	}
	as := func(user string, groups ...string) kubernetes.Interface {
		c := rest.CopyConfig(h.Limited)
		c.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
		return kubernetes.NewForConfigOrDie(c)
	}
	for what, do := range map[string]func() error{
		"read Secrets":                  func() error { _, err := evil.CoreV1().Secrets("").List(ctx, metav1.ListOptions{}); return err },
		"read the Secret of its signer": func() error { _, err := evil.CoreV1().Secrets("hawser").Get(ctx, "hawser-signer", one); return err },
		"make a Pod": func() error {
			_, err := evil.CoreV1().Pods("hawser").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, all)
			return err
		},
		"make a ConfigMap elsewhere": func() error {
			_, err := evil.CoreV1().ConfigMaps("kube-system").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, all)
			return err
		},
		"bind itself to the cluster": func() error {
			_, err := evil.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "x"}, RoleRef: admin, Subjects: me}, all)
			return err
		},
		"bind another role": func() error {
			_, err := evil.RbacV1().RoleBindings("member").Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "hawser-hub-source-tokens"}, RoleRef: admin, Subjects: me}, all)
			return err
		},
		"widen a role": func() error {
			r, err := h.Kube.RbacV1().ClusterRoles().Get(ctx, "hawser-hub-source-tokens", one)
			if err == nil {
				r.Rules = append(r.Rules, rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}})
				_, err = evil.RbacV1().ClusterRoles().Update(ctx, r, metav1.UpdateOptions{})
			}
			return err
		},
		"be an administrator": func() error {
			_, err := as("x", "system:masters").CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
			return err
		},
		"be another account": func() error {
			_, err := as("system:serviceaccount:kube-system:root").CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
			return err
		},
		"request a token where it has bound nothing": func() error {
			_, err := evil.CoreV1().ServiceAccounts("kube-system").CreateToken(ctx, "root", &authenticationv1.TokenRequest{}, all)
			return err
		},
		"approve for another signer": func() error {
			r := foreign.DeepCopy()
			r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "x"})
			_, err := evil.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, r.Name, r, metav1.UpdateOptions{})
			return err
		},
		"sign for another signer": func() error {
			r := foreign.DeepCopy()
			r.Status.Certificate = ca.CertificatePEM()
			_, err := evil.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, r, metav1.UpdateOptions{})
			return err
		},
		"make a certificate request as itself": func() error {
			_, err := evil.CertificatesV1().CertificateSigningRequests().Create(ctx, &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: foreign.Spec}, all)
			return err
		},
		"make a work": func() error {
			_, err := works.ManifestWorks("member").Create(ctx, &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, all)
			return err
		},
		"replace a work": func() error {
			w, err := works.ManifestWorks("member").Get(ctx, "w", one)
			if err == nil {
				_, err = works.ManifestWorks("member").Update(ctx, w, metav1.UpdateOptions{})
			}
			return err
		},
		"delete a cluster":   func() error { return clusters.Delete(ctx, "member", metav1.DeleteOptions{}) },
		"delete a namespace": func() error { return evil.CoreV1().Namespaces().Delete(ctx, "member", metav1.DeleteOptions{}) },
		"take the Lease of a controller": func() error {
			_, err := evil.CoordinationV1().Leases("kube-system").Patch(ctx, "kube-scheduler", types.MergePatchType, []byte(`{"spec":{"holderIdentity":"x"}}`), metav1.PatchOptions{})
			return err
		},
		"take a policy away": func() error {
			return evil.AdmissionregistrationV1().ValidatingAdmissionPolicies().Delete(ctx, "hawser-hub-source", metav1.DeleteOptions{})
		},
		"take its own webhook away": func() error {
			return evil.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(ctx, "hawser-hub-source", metav1.DeleteOptions{})
		},
	} {
		if err := do(); !apierrors.IsForbidden(err) {
			t.Errorf("hub-source's account may %s: %v", what, err)
		}
	}

	// The attacker can accept clusters, and get tokens of the accounts in a cluster's namespace.
	if _, err := clusters.Patch(ctx, "waits", types.MergePatchType, []byte(`{"spec":{"hubAcceptsClient":true}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("accept a cluster: %v", err)
	}
	binding := &unstructured.Unstructured{Object: object{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": object{"name": "hawser-hub-source-tokens", "namespace": "member"},
		"roleRef":  object{"apiGroup": rbacv1.GroupName, "kind": "ClusterRole", "name": "hawser-hub-source-tokens"},
		"subjects": []any{object{"kind": "ServiceAccount", "namespace": "hawser", "name": "hawser-hub-source"}},
	}}
	if _, err := dynamic.NewForConfigOrDie(h.Limited).Resource(rbacv1.SchemeGroupVersion.WithResource("rolebindings")).Namespace("member").Create(ctx, binding, all); err != nil {
		t.Fatal(err)
	}
	h.Eventually(func() error {
		_, err := evil.CoreV1().ServiceAccounts("member").CreateToken(ctx, "ordinary", &authenticationv1.TokenRequest{}, all)
		return err
	})
}

// requestOf returns the spec of an existing certificate request, for another signer.
func (h *threatened) requestOf(name, signer string) certificatesv1.CertificateSigningRequestSpec {
	h.Helper()
	r, err := h.Kube.CertificatesV1().CertificateSigningRequests().Get(h.Context(), name, metav1.GetOptions{})
	if err != nil {
		h.Fatal(err)
	}
	return certificatesv1.CertificateSigningRequestSpec{Request: r.Spec.Request, SignerName: signer, Usages: r.Spec.Usages}
}
