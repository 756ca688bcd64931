package install

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// withManager is a plane with cert-manager, whose issuer uses an authority.
type withManager struct {
	*plane
	authority *pki.Authority
	// noCA leaves ca.crt empty, as issuers do that do not know their CA.
	noCA bool
}

func newWithManager(t *testing.T, authority *pki.Authority) *withManager {
	t.Helper()
	p := &withManager{plane: newPlane(), authority: authority}
	p.Put(object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "certificates.cert-manager.io", "spec", map[string]any{
		"group": "cert-manager.io", "scope": "Namespaced",
		"names":    map[string]any{"kind": "Certificate", "plural": "certificates"},
		"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}}}},
	}))
	return p
}

func newAuthority(t *testing.T) *pki.Authority {
	t.Helper()
	a, err := pki.NewAuthority("theirs", pki.Starting(epoch, time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (p *withManager) installer() Installer {
	i := p.plane.installer()
	i.Client = p
	return i
}

// ServerSideApply issues the certificate of a Certificate at once.
func (p *withManager) ServerSideApply(ctx context.Context, gvr schema.GroupVersionResource, o *unstructured.Unstructured, by kubeclient.FieldManager) (*unstructured.Unstructured, error) {
	is, err := p.plane.ServerSideApply(ctx, gvr, o, by)
	if err != nil || o.GetKind() != certificateKind.Kind || p.authority == nil {
		return is, err
	}
	spec := o.Object["spec"].(map[string]any)
	req := pki.Request{Role: pki.Agent, Name: "cluster1", Valid: pki.Starting(epoch, time.Hour)}
	if part := strings.Split(spec["commonName"].(string), ":"); part[0] == "hawser" {
		req.Role, req.Name = pki.Role(part[1]), part[2]
	}
	for _, field := range []string{"dnsNames", "ipAddresses"} {
		list, _ := spec[field].([]any)
		for _, h := range list {
			req.Hosts = append(req.Hosts, h.(string))
		}
	}
	pair, err := p.authority.Issue(req)
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{caKey: p.authority.CertificatePEM(), certKey: pair.CertPEM, keyKey: pair.KeyPEM}
	if p.noCA {
		delete(data, caKey)
	}
	if err := p.Apply(secretOf(fmt.Sprint(spec["secretName"]), data), kubeclient.FieldManager{Name: "cert-manager-certificates-issuing", Force: true}); err != nil {
		return nil, err
	}
	ref := kubeclient.Ref{GroupVersionResource: gvr, Namespace: o.GetNamespace(), Name: o.GetName()}
	return p.Patch(ctx, ref, fmt.Appendf(nil, `{"status": {"conditions": [{"type": "Ready", "status": "True", "observedGeneration": %d}]}}`, is.GetGeneration()), "status")
}

var issued1 = Settings{Address: wanted.Address, Images: images, Issuer: Issuer{Kind: "ClusterIssuer", Group: "cert-manager.io", Name: "corporate"}}

func (p *withManager) install(t *testing.T, plan Plan, err error) {
	t.Helper()
	if err == nil {
		err = p.installer().Apply(t.Context(), plan)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// With an issuer of cert-manager there is no Hawser CA, and no key in the applied objects. A second run without
// flags changes nothing.
func TestCertManager_MakesTheCertificates(t *testing.T) {
	authority := newAuthority(t)
	hub, spoke := newWithManager(t, authority), newWithManager(t, authority)
	p, err := Hub(t.Context(), hub, issued1, epoch)
	for _, o := range slices.Concat(p.Objects, p.Last) {
		if o.GetKind() == "Secret" {
			t.Errorf("the plan has the Secret %s", o.GetName())
		}
		if o.GetKind() == "ValidatingWebhookConfiguration" && o.GetAnnotations()["cert-manager.io/inject-ca-from"] != namespace+"/"+webhookCertificate {
			t.Errorf("the webhook has annotations %v", o.GetAnnotations())
		}
	}
	hub.install(t, p, err)
	m := Managed{Name: "cluster1", Hub: hub, Client: spoke, Issuer: issued1.Issuer}
	p, err = Cluster(t.Context(), m, epoch)
	spoke.install(t, p, err)

	want := map[string]string{
		"hawser-broker": "hawser:broker:broker [server auth] [broker.example.com hawser-broker.hawser.svc]", "hawser-hub-source": "hawser:source:hub [client auth] []",
		"hawser-hub-source-webhook": "hawser:webhook:hub [server auth] [hawser-hub-source.hawser.svc]", "hawser-operator": "hawser:operator:operator [client auth] []",
		"hawser-agent": "system:open-cluster-management:cluster1:agent [client auth] []",
	}
	got := map[string]string{}
	for _, plane := range []*withManager{hub, spoke} {
		for _, ref := range plane.Refs() {
			if ref.Resource == "certificates" {
				spec := plane.Look(ref).Object["spec"].(map[string]any)
				names, _ := spec["dnsNames"].([]any)
				got[ref.Name] = fmt.Sprint(spec["commonName"], " ", spec["usages"].([]any)[1:], " ", names)
				if spec["issuerRef"].(map[string]any)["name"] != "corporate" {
					t.Errorf("%s is of %v", ref.Name, spec["issuerRef"])
				}
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("certificates (-want +got):\n%s", diff)
	}
	if s := spoke.secret(t, agentSecret); string(s["cluster-name"]) != "cluster1" || len(s[keyKey]) == 0 || len(s["config.yaml"]) == 0 {
		t.Errorf("the agent's Secret has %v", slices.Sorted(maps.Keys(s)))
	}
	if err := CheckTrust(t.Context(), hub, spoke, epoch); err != nil {
		t.Error(err)
	}
	if len(hub.operator(t)[keyKey]) == 0 {
		t.Error("an operator has no key")
	}

	before, keys := hub.content(), []string{string(hub.secret(t, brokerSecret)[keyKey]), string(spoke.secret(t, agentSecret)[keyKey])}
	hub.authority, spoke.authority = nil, nil // without the CA no certificate can be issued again
	p, err = Hub(t.Context(), hub, Settings{}, epoch)
	hub.install(t, p, err)
	m.Issuer = Issuer{}
	p, err = Cluster(t.Context(), m, epoch)
	spoke.install(t, p, err)
	if diff := cmp.Diff(before, hub.content()); diff != "" {
		t.Errorf("the second run changed (-before +after):\n%s", diff)
	}
	if keys[0] != string(hub.secret(t, brokerSecret)[keyKey]) || keys[1] != string(spoke.secret(t, agentSecret)[keyKey]) {
		t.Error("the second run changed keys")
	}
}

// Settings with which the programs could not trust each other are rejected.
func TestCertManager_Refusals(t *testing.T) {
	authority := newAuthority(t)
	refused := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	_, err := Hub(t.Context(), newPlane(), issued1, epoch)
	refused(err, "install cert-manager first")

	own := newWithManager(t, authority)
	own.installHub(t, wanted, epoch)
	_, err = Hub(t.Context(), own, issued1, epoch)
	refused(err, "every agent trusts it")

	hub, spoke := newWithManager(t, authority), newWithManager(t, newAuthority(t))
	p, err := Hub(t.Context(), hub, issued1, epoch)
	hub.install(t, p, err)
	_, err = Cluster(t.Context(), Managed{Name: "cluster1", Hub: hub, Client: spoke}, epoch)
	refused(err, "name with --cert-manager the issuer")
	_, err = Cluster(t.Context(), Managed{Name: strings.Repeat("a", 40), Hub: hub, Client: spoke, Issuer: issued1.Issuer}, epoch)
	refused(err, "too long for cert-manager")
	p, err = Cluster(t.Context(), Managed{Name: "cluster1", Hub: hub, Client: spoke, Issuer: issued1.Issuer}, epoch)
	spoke.install(t, p, err)
	refused(CheckTrust(t.Context(), hub, spoke, epoch), "the broker will reject this agent")

	acme := newWithManager(t, authority)
	acme.noCA = true
	p, err = Hub(t.Context(), acme, issued1, epoch)
	if err == nil {
		err = acme.installer().Apply(t.Context(), p)
	}
	refused(err, "use an issuer of a private CA")
}

// No program is started before its certificate exists. The error contains the reason that cert-manager reports.
func TestCertManager_IsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub := newWithManager(t, nil)
		p, err := Hub(t.Context(), hub, issued1, epoch)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err = hub.installer().Apply(ctx, p)
		var hinted interface{ Hint() string }
		if err == nil || !strings.Contains(err.Error(), "waited for certificate.cert-manager.io/hawser-broker: it is not issued yet") || !errors.As(err, &hinted) {
			t.Errorf("error %v", err)
		}
		for _, ref := range hub.Refs() {
			if ref.Resource == "deployments" {
				t.Errorf("%s is there", ref)
			}
		}
	})
	c := object("cert-manager.io/v1", "Certificate", namespace, "a", "status", map[string]any{"conditions": []any{
		map[string]any{"type": "Issuing", "status": "True"}, map[string]any{"type": "Ready", "status": "False", "message": "Referenced \"ClusterIssuer\" not found"},
	}})
	if got := issued(c); got != `is not issued: Referenced "ClusterIssuer" not found` {
		t.Errorf("got %q", got)
	}
}

func TestParseIssuer(t *testing.T) {
	for s, want := range map[string]string{
		"": "", "corporate": "ClusterIssuer/corporate", "issuer/hawser": "Issuer/hawser", "clusterissuer/a.b": "ClusterIssuer/a.b",
		"AWSPCAClusterIssuer.awspca.cert-manager.io/root": "AWSPCAClusterIssuer.awspca.cert-manager.io/root",
	} {
		i, err := ParseIssuer(s)
		if err != nil || i.String() != want {
			t.Errorf("%q: %s, %v", s, i, err)
		}
	}
	for _, s := range []string{"/", "/a", "Issuer/", "Issuer/A", "Issuer.-/a"} {
		if i, err := ParseIssuer(s); err == nil {
			t.Errorf("%q is %s", s, i)
		}
	}
}
