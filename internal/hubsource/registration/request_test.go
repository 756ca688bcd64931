package registration

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/internal/testkit/hugekey"
	"github.com/hawser-io/hawser/pkg/codec"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

const (
	cluster1      = "cluster1"
	agentOf1      = "system:open-cluster-management:cluster1:agent1"
	groupOf1      = "system:open-cluster-management:cluster1"
	bootstrapUser = "system:serviceaccount:open-cluster-management:agent-registration-bootstrap"
)

var (
	createdCluster = codec.EventType{DataType: codec.ManagedClusters, Subresource: codec.Spec, Action: codec.CreateRequest}
	updatedCluster = codec.EventType{DataType: codec.ManagedClusters, Subresource: codec.Status, Action: codec.UpdateRequest}
	createdCSR     = codec.EventType{DataType: codec.SigningRequests, Subresource: codec.Spec, Action: codec.CreateRequest}
	createdEvent   = codec.EventType{DataType: codec.KubeEvents, Subresource: codec.Spec, Action: codec.CreateRequest}
	updatedEvent   = codec.EventType{DataType: codec.KubeEvents, Subresource: codec.Spec, Action: codec.UpdateRequest}
	updatedLease   = codec.EventType{DataType: codec.Leases, Subresource: codec.Spec, Action: codec.UpdateRequest}
	updatedAddOn   = codec.EventType{DataType: codec.AddOnsV1Beta1, Subresource: codec.Status, Action: codec.UpdateRequest}
	createdToken   = codec.EventType{DataType: codec.TokenRequests, Subresource: codec.Spec, Action: codec.CreateRequest}
)

// parsed is a request as the broker sends it.
func parsed(t testing.TB, what codec.EventType, cluster string, o map[string]any) *hawserv1.AgentRequest {
	t.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	e, err := codec.Builder{
		ID: "1", Time: time.Unix(1, 0), Source: cluster, Type: what.String(), Cluster: cluster, ContentType: "application/json", Data: data,
	}.Event()
	if err != nil {
		t.Fatal(err)
	}
	b, err := codec.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return &hawserv1.AgentRequest{Event: b, Cluster: cluster, User: agentOf1, Groups: []string{groupOf1}}
}

func byBootstrap(m *hawserv1.AgentRequest) *hawserv1.AgentRequest {
	m.User, m.Groups, m.Bootstrap = bootstrapUser, []string{"system:bootstrappers:managedcluster"}, true
	return m
}

type obj = map[string]any

// csrOf is a CSR of this request, as a klusterlet sends it.
func csrOf(request []byte, change func(metadata, spec obj)) obj {
	metadata := obj{"name": "cluster1-abcde", "labels": obj{ocm.ClusterLabel: cluster1}}
	spec := obj{"signerName": ocm.Signer, "request": request, "usages": []any{"digital signature", "key encipherment", "client auth"}}
	if change != nil {
		change(metadata, spec)
	}
	return obj{"metadata": metadata, "spec": spec}
}

var testKey = func() crypto.Signer {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return k
}()

// requestPEM is a request of a cluster's certificate, changed.
func requestPEM(t testing.TB, change func(*x509.CertificateRequest)) []byte {
	t.Helper()
	return requestBy(t, testKey, change)
}

// requestBy is requestPEM with a key.
func requestBy(t testing.TB, key crypto.Signer, change func(*x509.CertificateRequest)) []byte {
	t.Helper()
	r := &x509.CertificateRequest{Subject: pkix.Name{CommonName: agentOf1, Organization: []string{groupOf1, ocm.AllClusters}}}
	if change != nil {
		change(r)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, r, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// hubs is a ManagedCluster on the hub.
func hubs(t testing.TB, accepted bool) *object {
	t.Helper()
	return kept(t, codec.ManagedClusters, obj{
		"metadata": obj{"name": cluster1, "uid": "u1", "resourceVersion": "7"},
		"spec":     obj{"hubAcceptsClient": accepted},
		"status": obj{"conditions": []any{
			obj{"type": clusterv1.ManagedClusterConditionHubAccepted, "status": "True", "reason": "HubClusterAdminAccepted"},
			obj{"type": clusterv1.ManagedClusterConditionJoined, "status": "False"},
		}},
	})
}

// known is the state of a hub that has accepted the cluster.
func known(t testing.TB) hubState {
	return hubState{cluster: hubs(t, true), signers: []string{"example.com/custom"}}
}

// decisionOf decides a request, and returns the reason of a refusal.
func decisionOf(t testing.TB, m *hawserv1.AgentRequest, s hubState) (call, string) {
	t.Helper()
	a, err := readRequest(m)
	var c call
	if err == nil {
		c, err = decide(a, s)
	}
	if errors.Is(err, errNothing) {
		return c, "nothing"
	}
	if err != nil {
		return c, string(apierrors.ReasonForError(err)) + ": " + err.Error()
	}
	return c, ""
}

// The requests that an agent may make, and the part of each that reaches the hub.
func TestDecide_PassesOnlyAllowedRequests(t *testing.T) {
	accepted, none := known(t), hubState{}
	request, addOns := requestPEM(t, nil), addOnRequest(t, nil)
	for name, c := range map[string]struct {
		request *hawserv1.AgentRequest
		on      hubState
		want    call
	}{
		"a cluster joins, and would accept itself": {
			byBootstrap(parsed(t, createdCluster, cluster1, obj{
				"metadata": obj{
					"name": cluster1, "uid": "mine", "labels": obj{"cluster.open-cluster-management.io/clusterset": "prod"}, "finalizers": []any{"x/y"},
					"ownerReferences": []any{obj{"kind": "Node", "name": "n", "uid": "u", "apiVersion": "v1"}},
					"annotations":     obj{"agent.open-cluster-management.io/klusterlet": "a", "open-cluster-management.io/csr-user": "b", accountAnnotation: "mine", "agent.open-cluster-management.io.evil/x": "c"},
				},
				"spec": obj{
					"hubAcceptsClient": true, "leaseDurationSeconds": 1, "taints": []any{obj{"key": "k", "effect": "NoSelect"}},
					"managedClusterClientConfigs": []any{obj{"url": "https://a", "caBundle": []byte("ca"), "extra": 1}},
				},
				"status": obj{"conditions": []any{obj{"type": clusterv1.ManagedClusterConditionHubAccepted, "status": "True"}}},
			})), none, call{verb: create, resource: managedClusters, name: cluster1, object: obj{
				"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
				"metadata": obj{"name": cluster1, "annotations": obj{"agent.open-cluster-management.io/klusterlet": "a", accountAnnotation: bootstrapUser}},
				"spec":     obj{"hubAcceptsClient": false, "managedClusterClientConfigs": []any{obj{"url": "https://a", "caBundle": "Y2E="}}},
			}},
		},
		"a cluster with a certificate that is not on the hub": {
			parsed(t, createdCluster, cluster1, obj{"metadata": obj{"name": cluster1}, "spec": obj{"hubAcceptsClient": true}}), none,
			call{verb: create, resource: managedClusters, name: cluster1, object: obj{
				"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
				"metadata": obj{"name": cluster1, "annotations": obj{accountAnnotation: agentOf1}},
				"spec":     obj{"hubAcceptsClient": false, "managedClusterClientConfigs": []any{}},
			}},
		},
		"a first CSR, with a forged requester": {
			byBootstrap(parsed(t, createdCSR, cluster1, csrOf(request, func(m, s obj) {
				m["annotations"] = obj{ocm.RequesterAnnotation: "system:admin", "x": "y"}
				m["finalizers"] = []any{"x/y"}
				m["labels"] = obj{ocm.ClusterLabel: cluster1, ocm.AddOnLabel: "a", "x": "y"}
				s["username"], s["groups"], s["expirationSeconds"] = "system:admin", []any{"system:masters"}, 600
			}))), none, call{verb: create, resource: signingRequests, name: "cluster1-abcde", asRegistrar: true, object: obj{
				"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
				"metadata": obj{"name": "cluster1-abcde", "labels": obj{ocm.ClusterLabel: cluster1}, "annotations": obj{ocm.RequesterAnnotation: bootstrapUser}},
				"spec": obj{
					"request": base64Of(request), "signerName": ocm.Signer, "expirationSeconds": int64(600),
					"usages": []any{"digital signature", "key encipherment", "client auth"},
				},
			}},
		},
		"a renewal": {
			parsed(t, createdCSR, cluster1, csrOf(request, nil)), accepted, call{verb: create, resource: signingRequests, name: "cluster1-abcde", asRegistrar: true, object: obj{
				"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
				"metadata": obj{"name": "cluster1-abcde", "labels": obj{ocm.ClusterLabel: cluster1}, "annotations": obj{ocm.RequesterAnnotation: agentOf1}},
				"spec": obj{
					"request": base64Of(request), "signerName": ocm.Signer, "usages": []any{"digital signature", "key encipherment", "client auth"},
				},
			}},
		},
		"an add-on's CSR": {
			parsed(t, createdCSR, cluster1, csrOf(addOns, func(m, s obj) {
				m["labels"] = obj{ocm.ClusterLabel: cluster1, ocm.AddOnLabel: "a"}
				s["signerName"] = addOnSigner
			})), accepted, call{verb: create, resource: signingRequests, name: "cluster1-abcde", asRegistrar: true, object: obj{
				"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
				"metadata": obj{"name": "cluster1-abcde", "labels": obj{ocm.ClusterLabel: cluster1, ocm.AddOnLabel: "a"}, "annotations": obj{ocm.RequesterAnnotation: agentOf1}},
				"spec": obj{
					"request": base64Of(addOns), "signerName": addOnSigner, "usages": []any{"digital signature", "key encipherment", "client auth"},
				},
			}},
		},
		"an Event": {
			parsed(t, createdEvent, cluster1, obj{
				"metadata": obj{"namespace": cluster1, "name": "e", "ownerReferences": []any{obj{}}, "annotations": obj{"x": "y"}},
				"reason":   "Available", "note": "n", "deprecatedCount": 3, "regarding": obj{"kind": "ManagedCluster", "name": cluster1},
			}), accepted, call{verb: create, resource: kubeEvents, namespace: cluster1, name: "e", object: obj{
				"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": obj{"namespace": cluster1, "name": "e"},
				"reason": "Available", "note": "n", "regarding": obj{"kind": "ManagedCluster", "name": cluster1},
			}},
		},
		"a series": {
			parsed(t, updatedEvent, cluster1, obj{
				"metadata": obj{"namespace": cluster1, "name": "e"}, "note": "other", "series": obj{"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"},
			}), accepted, call{verb: mergePatch, resource: kubeEvents, namespace: cluster1, name: "e", object: obj{
				"series": obj{"count": int64(2), "lastObservedTime": "2026-01-01T00:00:00.000000Z"},
			}},
		},
		"status of an add-on": {
			parsed(t, updatedAddOn, cluster1, obj{
				"metadata": obj{"namespace": cluster1, "name": "a", "uid": "u", "resourceVersion": "3", "labels": obj{"x": "y"}},
				"spec":     obj{"installNamespace": "kube-system"}, "status": obj{"conditions": []any{}},
			}), accepted, call{verb: updateStatus, resource: addOnsBeta, subresource: "status", namespace: cluster1, name: "a", object: obj{
				"apiVersion": "addon.open-cluster-management.io/v1beta1", "kind": "ManagedClusterAddOn",
				"metadata": obj{"namespace": cluster1, "name": "a", "uid": "u", "resourceVersion": "3"}, "status": obj{"conditions": []any{}},
			}},
		},
		"a token": {
			parsed(t, createdToken, cluster1, obj{
				"metadata": obj{"namespace": cluster1, "name": "a-agent", "uid": "request"},
				"spec":     obj{"expirationSeconds": 31536000, "boundObjectRef": obj{"kind": "Secret", "name": "s"}}, "status": obj{"token": "t"},
			}), accepted, call{
				verb: create, resource: serviceAccounts, subresource: "token", namespace: cluster1, name: "a-agent", labelled: [2]string{tokenLabel, "true"}, object: obj{
					"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
					"metadata": obj{"namespace": cluster1, "name": "a-agent"}, "spec": obj{"audiences": []any{}, "expirationSeconds": int64(31536000)},
				},
			},
		},
	} {
		got, refused := decisionOf(t, c.request, c.on)
		if refused != "" {
			t.Errorf("%s: refused: %s", name, refused)
			continue
		}
		if d := cmp.Diff(c.want, got, cmp.AllowUnexported(call{}), cmpopts.IgnoreFields(call{}, "bytes")); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// addOnRequest is a request of add-on a of cluster1, changed.
func addOnRequest(t testing.TB, change func(*x509.CertificateRequest)) []byte {
	return requestPEM(t, func(r *x509.CertificateRequest) {
		user := "system:open-cluster-management:cluster:cluster1:addon:a"
		r.Subject = pkix.Name{CommonName: user + ":agent:a", Organization: []string{user, "system:open-cluster-management:addon:a", "system:authenticated"}}
		r.DNSNames = []string{"a.addon.open-cluster-management.io"}
		if change != nil {
			change(r)
		}
	})
}

// Requests that raise the rights of a cluster, or concern another cluster, are refused with a reason.
func TestDecide_RejectsHostileRequests(t *testing.T) {
	accepted, none := known(t), hubState{}
	withdrawn := hubState{cluster: hubs(t, false)}
	ca := pkix.Extension{Id: oidBasicConstraints, Critical: true, Value: []byte{0x30, 0x03, 0x01, 0x01, 0xff}}
	weakRSA, err := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // it is to be refused
	weakCurve, err2 := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	dear, err3 := hugekey.New(131072, hugekey.MaxExponent)
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	huge, err := hugekey.Request(pkix.Name{CommonName: agentOf1, Organization: []string{groupOf1}}, dear)
	if err != nil {
		t.Fatal(err)
	}
	twoNames := func(r *x509.CertificateRequest) {
		r.Subject = pkix.Name{Organization: r.Subject.Organization, ExtraNames: []pkix.AttributeTypeAndValue{
			{Type: oidCommonName, Value: "hawser:operator:eve"}, {Type: oidCommonName, Value: r.Subject.CommonName},
		}}
	}
	csr := func(change func(*x509.CertificateRequest)) obj { return csrOf(requestPEM(t, change), nil) }
	other := func(change func(m, s obj)) obj { return csrOf(requestPEM(t, nil), change) }
	addOn := func(change func(*x509.CertificateRequest)) obj {
		return csrOf(addOnRequest(t, change), func(m, s obj) { m["labels"], s["signerName"] = obj{ocm.AddOnLabel: "a"}, addOnSigner })
	}
	named := func(namespace, name string) obj {
		return obj{"metadata": obj{"namespace": namespace, "name": name}, "series": obj{}}
	}
	for name, c := range map[string]struct {
		request *hawserv1.AgentRequest
		on      hubState
		want    string
	}{
		"bootstrap names another's ManagedCluster":   {byBootstrap(parsed(t, createdCluster, cluster1, named("", "cluster2"))), none, "Forbidden"},
		"bootstrap creates one that is there":        {byBootstrap(parsed(t, createdCluster, cluster1, named("", cluster1))), accepted, "AlreadyExists"},
		"bootstrap accepts by a status":              {byBootstrap(parsed(t, updatedCluster, cluster1, named("", cluster1))), accepted, "Forbidden"},
		"bootstrap requests another's token":         {byBootstrap(parsed(t, createdToken, cluster1, named(cluster1, "a-agent"))), accepted, "Forbidden"},
		"bootstrap writes an Event":                  {byBootstrap(parsed(t, createdEvent, cluster1, named(cluster1, "e"))), accepted, "Forbidden"},
		"bootstrap writes an add-on":                 {byBootstrap(parsed(t, updatedAddOn, cluster1, named(cluster1, "a"))), accepted, "Forbidden"},
		"bootstrap requests an add-on's certificate": {byBootstrap(parsed(t, createdCSR, cluster1, addOn(nil))), accepted, "Forbidden"},
		"an unidentified client joins":               {&hawserv1.AgentRequest{Event: parsed(t, createdCSR, cluster1, csr(nil)).GetEvent(), Cluster: cluster1}, accepted, "Forbidden"},

		"a cluster that is not there renews":           {parsed(t, createdCSR, cluster1, csr(nil)), none, "Forbidden"},
		"acceptance was withdrawn, and it renews":      {parsed(t, createdCSR, cluster1, csr(nil)), withdrawn, "Forbidden"},
		"acceptance was withdrawn, and it has status":  {parsed(t, updatedCluster, cluster1, named("", cluster1)), withdrawn, "Forbidden"},
		"acceptance was withdrawn, and it has a token": {parsed(t, createdToken, cluster1, named(cluster1, "a-agent")), withdrawn, "Forbidden"},
		"a cluster writes its Lease itself":            {parsed(t, updatedLease, cluster1, named(cluster1, ocm.LeaseName)), accepted, "Forbidden"},
		"a cluster writes another's Event":             {parsed(t, createdEvent, cluster1, named("cluster2", "e")), accepted, "Forbidden"},
		"a cluster counts another's Event":             {parsed(t, updatedEvent, cluster1, named("kube-system", "e")), accepted, "Forbidden"},
		"a cluster writes another's add-on":            {parsed(t, updatedAddOn, cluster1, named("cluster2", "a")), accepted, "Forbidden"},
		"a cluster has another's status":               {parsed(t, updatedCluster, cluster1, named("", "cluster2")), accepted, "Forbidden"},
		"a cluster requests another's token":           {parsed(t, createdToken, cluster1, named("kube-system", "clusterrole-aggregation-controller")), accepted, "Forbidden"},
		"a name that leads elsewhere":                  {parsed(t, createdToken, cluster1, named(cluster1, "../../../secrets")), accepted, "Invalid"},
		"an Event without a name":                      {parsed(t, createdEvent, cluster1, named(cluster1, "")), accepted, "Invalid"},
		"the event names another cluster":              {&hawserv1.AgentRequest{Event: parsed(t, createdEvent, "cluster2", named("cluster2", "e")).GetEvent(), Cluster: cluster1, User: agentOf1}, accepted, "BadRequest"},
		"no event":                                     {&hawserv1.AgentRequest{Event: []byte("x"), Cluster: cluster1, User: agentOf1}, accepted, "BadRequest"},

		"CSR: another cluster's name":       {parsed(t, createdCSR, cluster1, csr(func(r *x509.CertificateRequest) { r.Subject.CommonName = "system:open-cluster-management:cluster2:a" })), accepted, "Forbidden"},
		"CSR: a name that only begins so":   {parsed(t, createdCSR, cluster1, csr(func(r *x509.CertificateRequest) { r.Subject.CommonName = groupOf1 + "2:a" })), accepted, "Forbidden"},
		"CSR: no agent":                     {parsed(t, createdCSR, cluster1, csr(func(r *x509.CertificateRequest) { r.Subject.CommonName = groupOf1 + ":" })), accepted, "Forbidden"},
		"CSR: more parts":                   {parsed(t, createdCSR, cluster1, csr(func(r *x509.CertificateRequest) { r.Subject.CommonName = agentOf1 + ":x" })), accepted, "Forbidden"},
		"CSR: group of masters":             {parsed(t, createdCSR, cluster1, csr(func(r *x509.CertificateRequest) { r.Subject.Organization = []string{groupOf1, "system:masters"} })), accepted, "Forbidden"},
		"CSR: group of another cluster":     {parsed(t, createdCSR, cluster1, csr(func(r *x509.CertificateRequest) { r.Subject.Organization = []string{groupOf1 + "2"} })), accepted, "Forbidden"},
		"CSR: only the group of all":        {parsed(t, createdCSR, cluster1, csr(func(r *x509.CertificateRequest) { r.Subject.Organization = []string{ocm.AllClusters} })), accepted, "Forbidden"},
		"CSR: no group":                     {parsed(t, createdCSR, cluster1, csr(func(r *x509.CertificateRequest) { r.Subject.Organization = nil })), accepted, "Forbidden"},
		"CSR: a unit":                       {parsed(t, createdCSR, cluster1, csr(func(r *x509.CertificateRequest) { r.Subject.OrganizationalUnit = []string{"x"} })), accepted, "Invalid"},
		"CSR: rights of a CA":               {parsed(t, createdCSR, cluster1, csr(func(r *x509.CertificateRequest) { r.ExtraExtensions = []pkix.Extension{ca} })), accepted, "Invalid"},
		"CSR: names of servers":             {parsed(t, createdCSR, cluster1, csr(func(r *x509.CertificateRequest) { r.DNSNames = []string{"kubernetes.default.svc"} })), accepted, "Invalid"},
		"CSR: for servers":                  {parsed(t, createdCSR, cluster1, other(func(_, s obj) { s["usages"] = []any{"server auth", "client auth"} })), accepted, "Invalid"},
		"CSR: for nothing":                  {parsed(t, createdCSR, cluster1, other(func(_, s obj) { s["usages"] = []any{} })), accepted, "Invalid"},
		"CSR: of a foreign signer":          {parsed(t, createdCSR, cluster1, other(func(_, s obj) { s["signerName"] = "kubernetes.io/kubelet-serving" })), accepted, "Forbidden"},
		"CSR: labelled for another cluster": {parsed(t, createdCSR, cluster1, other(func(m, _ obj) { m["labels"] = obj{ocm.ClusterLabel: "cluster2"} })), accepted, "Forbidden"},
		"CSR: no name":                      {parsed(t, createdCSR, cluster1, other(func(m, _ obj) { m["name"], m["generateName"] = "", "x-" })), accepted, "Invalid"},
		"CSR: two names":                    {parsed(t, createdCSR, cluster1, csr(twoNames)), accepted, "Invalid"},
		"add-on's CSR: two names":           {parsed(t, createdCSR, cluster1, addOn(twoNames)), accepted, "Invalid"},
		"CSR: RSA of 1024 bits":             {parsed(t, createdCSR, cluster1, csrOf(requestBy(t, weakRSA, nil), nil)), accepted, "Invalid"},
		"CSR: P-224":                        {parsed(t, createdCSR, cluster1, csrOf(requestBy(t, weakCurve, nil), nil)), accepted, "Invalid"},
		"CSR: RSA of 131,072 bits":          {parsed(t, createdCSR, cluster1, csrOf(huge, nil)), accepted, "RequestEntityTooLarge"},
		"CSR: no PEM":                       {parsed(t, createdCSR, cluster1, csrOf([]byte("x"), nil)), accepted, "Invalid"},
		"CSR: a certificate":                {parsed(t, createdCSR, cluster1, csrOf([]byte(strings.ReplaceAll(string(requestPEM(t, nil)), " REQUEST", "")), nil)), accepted, "Invalid"},
		"CSR: two requests":                 {parsed(t, createdCSR, cluster1, csrOf([]byte(strings.Repeat(string(requestPEM(t, nil)), 2)), nil)), accepted, "Invalid"},
		"add-on's CSR: no add-on":           {parsed(t, createdCSR, cluster1, other(func(_, s obj) { s["signerName"] = addOnSigner })), accepted, "Invalid"},
		"add-on's CSR: rights of a CA":      {parsed(t, createdCSR, cluster1, addOn(func(r *x509.CertificateRequest) { r.ExtraExtensions = []pkix.Extension{ca} })), accepted, "Invalid"},
		"add-on's CSR: an admin":            {parsed(t, createdCSR, cluster1, addOn(func(r *x509.CertificateRequest) { r.Subject.CommonName = "kubernetes-admin" })), accepted, "Forbidden"},
		"add-on's CSR: another cluster's": {parsed(t, createdCSR, cluster1, addOn(func(r *x509.CertificateRequest) {
			r.Subject.CommonName = "system:open-cluster-management:cluster:cluster2:addon:a:agent:a"
		})), accepted, "Forbidden"},
		"add-on's CSR: group of masters": {parsed(t, createdCSR, cluster1, addOn(func(r *x509.CertificateRequest) {
			r.Subject.Organization = append(r.Subject.Organization, "system:masters")
		})), accepted, "Forbidden"},
		"add-on's CSR: group of the cluster": {parsed(t, createdCSR, cluster1, addOn(func(r *x509.CertificateRequest) { r.Subject.Organization = append(r.Subject.Organization, groupOf1) })), accepted, "Forbidden"},
	} {
		got, refused := decisionOf(t, c.request, c.on)
		if !strings.HasPrefix(refused, c.want+": ") {
			t.Errorf("%s: %s, call %+v, want %s", name, refused, got, c.want)
		}
	}
}

// The hub's own conditions in a status stay as the hub has them. A status that the hub already has causes no
// request.
func TestClusterStatus_KeepsConditionsOfHub(t *testing.T) {
	s := known(t)
	status := func(version string, conditions ...any) *hawserv1.AgentRequest {
		return parsed(t, updatedCluster, cluster1, obj{
			"metadata": obj{"name": cluster1, "uid": "u1", "resourceVersion": version, "labels": obj{"x": "y"}},
			"spec":     obj{"hubAcceptsClient": true}, "status": obj{"conditions": conditions, "version": obj{"kubernetes": "v1.35.0"}},
		})
	}
	joined := obj{"type": clusterv1.ManagedClusterConditionJoined, "status": "True"}
	hubs := obj{"type": clusterv1.ManagedClusterConditionHubAccepted, "status": "True", "reason": "HubClusterAdminAccepted"}
	for name, conditions := range map[string][]any{
		"as it is":      {hubs, joined},
		"forged":        {obj{"type": clusterv1.ManagedClusterConditionHubAccepted, "status": "False", "reason": "Mine"}, joined},
		"left out":      {joined},
		"of a new kind": {joined, obj{"type": clusterv1.ManagedClusterConditionDeleting, "status": "True"}},
	} {
		got, refused := decisionOf(t, status("7", conditions...), s)
		if refused != "" {
			t.Fatal(name, refused)
		}
		want := []any{hubs, joined}
		if name == "left out" || name == "of a new kind" {
			want = []any{joined, hubs}
		}
		wantObject := obj{
			"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
			"metadata": obj{"name": cluster1, "uid": "u1", "resourceVersion": "7"},
			"status":   obj{"conditions": want, "version": obj{"kubernetes": "v1.35.0"}},
		}
		if d := cmp.Diff(wantObject, got.object); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	if _, refused := decisionOf(t, status("6", joined), s); !strings.HasPrefix(refused, "Conflict") {
		t.Errorf("an old version: %s", refused)
	}
	same := parsed(t, updatedCluster, cluster1, obj{
		"metadata": obj{"name": cluster1, "resourceVersion": "7"}, "status": obj{"conditions": []any{hubs, obj{"type": clusterv1.ManagedClusterConditionJoined, "status": "False"}}},
	})
	if _, refused := decisionOf(t, same, s); refused != "nothing" {
		t.Errorf("the same status: %s", refused)
	}
}

// Only the spec makes a cluster accepted. A condition does not, because agents write conditions.
func TestFacts_AcceptanceIsNoCondition(t *testing.T) {
	for _, accepted := range []bool{false, true} {
		if f := hubs(t, accepted).facts; f.GetAccepted() != accepted {
			t.Errorf("spec.hubAcceptsClient %v: %v", accepted, f)
		}
	}
	o := kept(t, codec.ManagedClusters, obj{
		"metadata": obj{"name": "c"}, "spec": obj{"hubAcceptsClient": "true", "leaseDurationSeconds": 15},
		"status": obj{"conditions": []any{obj{"type": clusterv1.ManagedClusterConditionJoined, "status": "True"}, obj{"type": clusterv1.ManagedClusterConditionAvailable, "status": "Unknown"}}},
	})
	if f := o.facts; f.GetAccepted() || !f.GetJoined() || f.GetAvailable() != "Unknown" || o.period != 15 {
		t.Errorf("facts %v, period %d", f, o.period)
	}
}

// The access review has the same attributes as that of OCM's server.
func TestAttributes_AreThoseOfOCM(t *testing.T) {
	got := map[string]string{}
	for _, w := range []codec.EventType{createdCluster, updatedCluster, createdCSR, createdEvent, updatedEvent, updatedAddOn, createdToken} {
		r := attributes(agentRequest{what: w, cluster: cluster1, sent: sentObject{Metadata: metav1.ObjectMeta{Name: "n"}}})
		got[w.String()] = fmt.Sprintf("%s %s/%s/%s %s/%s", r.Verb, r.Group, r.Resource, r.Subresource, r.Namespace, r.Name)
	}
	want := map[string]string{
		createdCluster.String(): "create cluster.open-cluster-management.io/managedclusters/ cluster1/cluster1",
		updatedCluster.String(): "update cluster.open-cluster-management.io/managedclusters/status cluster1/cluster1",
		createdCSR.String():     "create certificates.k8s.io/certificatesigningrequests/ cluster1/",
		createdEvent.String():   "create events.k8s.io/events/ cluster1/",
		updatedEvent.String():   "update events.k8s.io/events/ cluster1/",
		updatedAddOn.String():   "update addon.open-cluster-management.io/managedclusteraddons/status cluster1/",
		createdToken.String():   "create /serviceaccounts/token cluster1/n",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
