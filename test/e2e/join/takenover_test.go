package join

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
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// TestJoin_HubSourceTakenOver checks the limits of an attacker with the key of hawser-signer and the token of
// hub-source.
//
// Scenario:
//
//	t1: the former broker trusts hawser-signer for every role. With its key the attacker is an operator.
//	t2: the next hawser install hub restricts hawser-signer to agents. Agents, sources and operators stay.
//	t3: with the token the attacker writes in a namespace without a cluster. The policy of --confine denies it.
func TestJoin_HubSourceTakenOver(t *testing.T) {
	s := requester(t)
	s.hawser("accept", "cluster1", "--context", "hub")
	s.apply("before")
	s.arrives("before")
	serial := s.serial()

	s.broker()
	// The former configuration: the two files of CAs are swapped.
	s.broker = s.start("hub", "hawser-broker", "clientCAFile: ", "agentCAFile: ", "agentCAFile: ", "clientCAFile: ")
	there := []string{"get", "clusters", "cluster1", "--broker", s.at, "--ca", s.file("ca.crt"), "--cert", s.file("tls.crt"), "--key", s.file("tls.key")}
	s.eventually("InSync", there...)
	stolen := s.signer()
	if err := s.comesAs(stolen, pki.Operator, "operator"); transport.CodeOf(err) != transport.CodeDenied {
		t.Fatalf("the broker of before did not know an operator of hawser-signer, so this shows nothing: %v", err)
	}
	s.apply("between")
	s.arrives("between")
	s.broker()
	s.hawser("install", "hub", "--context", "hub", "--image-version", "dev")
	s.run(s.kubectl, "--context", "hub", "delete", "validatingwebhookconfiguration", "hawser-hub-source")
	s.broker = s.start("hub", "hawser-broker")
	s.eventually("InSync", there...)

	for role, name := range map[pki.Role]string{pki.Operator: "operator", pki.Source: "hub", pki.Viewer: "viewer"} {
		if err := s.comesAs(stolen, role, name); transport.CodeOf(err) != transport.CodeUnauthenticated || !strings.Contains(err.Error(), "signs for agents only") {
			t.Errorf("with the key of hawser-signer one comes as %s %s: %v", role, name, err)
		}
	}
	if err := s.comesAs(stolen, pki.Agent, "cluster1"); err != nil {
		t.Errorf("an agent of hawser-signer: %v", err)
	}
	s.apply("after")
	s.arrives("after")
	if s.serial() != serial {
		t.Error("the agent has another certificate")
	}
	s.confined()
}

// signer returns the authority in hawser-signer.
func (w *world) signer() *pki.Authority {
	w.Helper()
	o, err := w.planes["hub"].kube.CoreV1().Secrets("hawser").Get(w.Context(), "hawser-signer", metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	a, err := pki.ParseAuthority(o.Data["tls.crt"], o.Data["tls.key"])
	if err != nil {
		w.Fatal(err)
	}
	return a
}

// comesAs connects with a certificate that an authority signed, and subscribes as an agent does. A known client
// without the right gets another code than Unauthenticated.
func (s *stay) comesAs(a *pki.Authority, role pki.Role, name string) error {
	s.Helper()
	pair, err := a.Issue(pki.Request{Role: role, Name: name, Valid: pki.Starting(time.Now(), time.Hour)})
	if err != nil {
		s.Fatal(err)
	}
	files, dir := identity.Files{CA: s.file("ca.crt")}, s.TempDir()
	files.Cert, files.Key = filepath.Join(dir, "crt"), filepath.Join(dir, "key")
	for file, data := range map[string][]byte{files.Cert: pair.CertPEM, files.Key: pair.KeyPEM} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			s.Fatal(err)
		}
	}
	creds, err := files.Client("", func(err error) { s.Error(err) })
	if err != nil {
		s.Fatal(err)
	}
	d, err := transportgrpc.NewDialer(transportgrpc.Options{Target: s.at, Credentials: creds, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.Fatal(err)
	}
	conn, err := d.Dial(s.Context())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the broker may have ended it
	ctx, stop := context.WithTimeout(s.Context(), time.Minute)
	defer stop()
	accepted := false
	subscription := transport.Subscription{Filter: transport.Filter{Cluster: "cluster1", DataType: codec.Leases}}
	err = conn.Subscribe(ctx, subscription, func(transport.Accepted) { accepted = true; stop() }, func(context.Context, codec.Event) error { return nil })
	if accepted {
		return nil
	}
	return err
}

// attempt is a write with the token of hub-source.
type attempt struct {
	what                                        string
	verb, group, version, resource, subresource string
	namespace, name, body                       string
}

// do sends the write as a dry run. Authorization and admission treat it like any other.
func (a attempt) do(ctx context.Context, client dynamic.Interface) error {
	at := client.Resource(schema.GroupVersionResource{Group: a.group, Version: a.version, Resource: a.resource}).Namespace(a.namespace)
	dry := []string{metav1.DryRunAll}
	var sub []string
	if a.subresource != "" {
		sub = []string{a.subresource}
	}
	var err error
	switch a.verb {
	case "create":
		var o unstructured.Unstructured
		if err = json.Unmarshal([]byte(a.body), &o.Object); err == nil {
			_, err = at.Create(ctx, &o, metav1.CreateOptions{DryRun: dry}, sub...)
		}
	case "patch":
		_, err = at.Patch(ctx, a.name, types.MergePatchType, []byte(a.body), metav1.PatchOptions{DryRun: dry}, sub...)
	case "delete":
		err = at.Delete(ctx, a.name, metav1.DeleteOptions{DryRun: dry})
	}
	return err
}

// The API groups of the objects that hub-source writes.
const (
	clusterGroup = "cluster.open-cluster-management.io"
	addOnGroup   = "addon.open-cluster-management.io"
	workGroup    = "work.open-cluster-management.io"
	leaseGroup   = "coordination.k8s.io"
	rbacGroup    = "rbac.authorization.k8s.io"
	csrGroup     = "certificates.k8s.io"
)

// attempts returns writes that the roles of hub-source allow, and that serve no cluster.
func attempts() []attempt {
	binding := func(name, subject string) string {
		return `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"` + name + `"},
			"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"hawser-hub-source-tokens"},
			"subjects":[{"kind":"ServiceAccount","namespace":"hawser","name":"` + subject + `"}]}`
	}
	lease := func(name string) string {
		return `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"` + name + `"}}`
	}
	const label = `"open-cluster-management.io/cluster-name"`
	return []attempt{
		{"takes the Lease of another program", "create", leaseGroup, "v1", "leases", "", "kube-system", "", lease("cloud-controller-manager")},
		{"makes another Lease for a cluster", "create", leaseGroup, "v1", "leases", "", "cluster1", "", lease("other")},
		{"renews a Lease of no cluster", "patch", leaseGroup, "v1", "leases", "", "default", "managed-cluster-lease", `{"spec":{"holderIdentity":"x"}}`},
		{"deletes a Lease of no cluster", "delete", leaseGroup, "v1", "leases", "", "default", "managed-cluster-lease", ""},
		{"makes a namespace a cluster's", "patch", "", "v1", "namespaces", "", "", "kube-system", `{"metadata":{"labels":{` + label + `:"kube-system"}}}`},
		{"makes a namespace of no cluster", "create", "", "v1", "namespaces", "", "", "", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"other"}}`},
		{"gives a cluster's namespace away", "patch", "", "v1", "namespaces", "", "", "cluster1", `{"metadata":{"labels":{` + label + `:"other"}}}`},
		{"changes the spec of a work", "patch", workGroup, "v1", "manifestworks", "", "cluster1", "before", `{"spec":{"workload":{"manifests":[]}}}`},
		{"touches a work of no cluster", "patch", workGroup, "v1", "manifestworks", "", "default", "other", `{"metadata":{"finalizers":["example.com/x"]}}`},
		{"reports the status of a work of no cluster", "patch", workGroup, "v1", "manifestworks", "status", "default", "other", `{"status":{"conditions":[]}}`},
		{"deletes a work of no cluster", "delete", workGroup, "v1", "manifestworks", "", "default", "other", ""},
		{"deletes an add-on of no cluster", "delete", addOnGroup, "v1alpha1", "managedclusteraddons", "", "default", "other", ""},
		{"judges an add-on of no cluster", "patch", addOnGroup, "v1alpha1", "managedclusteraddons", "status", "default", "other", `{"status":{"conditions":[]}}`},
		{"writes Events of others", "create", "", "v1", "events", "", "kube-system", "", `{"apiVersion":"v1","kind":"Event","metadata":{"name":"e"},"involvedObject":{"kind":"Pod","namespace":"kube-system","name":"p"}}`},
		{"keeps another ConfigMap", "create", "", "v1", "configmaps", "", "hawser", "", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"hawser-install-other"}}`},
		{"may request tokens of the control plane", "create", rbacGroup, "v1", "rolebindings", "", "kube-system", "", binding(tokensRole, "hawser-hub-source")},
		{"gives others the right to request tokens", "create", rbacGroup, "v1", "rolebindings", "", "cluster1", "", binding(tokensRole, "default")},
		{"hides a right", "create", rbacGroup, "v1", "rolebindings", "", "cluster1", "", binding("other", "hawser-hub-source")},
		{"accepts a cluster", "patch", clusterGroup, "v1", "managedclusters", "", "", "cluster9", `{"spec":{"hubAcceptsClient":true}}`},
		{"makes an accepted cluster", "create", clusterGroup, "v1", "managedclusters", "", "", "", `{"apiVersion":"cluster.open-cluster-management.io/v1","kind":"ManagedCluster","metadata":{"name":"other"},"spec":{"hubAcceptsClient":true}}`},
		{"moves a cluster to another set", "patch", clusterGroup, "v1", "managedclusters", "", "", "cluster1", `{"metadata":{"labels":{"cluster.open-cluster-management.io/clusterset":"x"}}}`},
		{"deletes a request to another signer", "delete", csrGroup, "v1", "certificatesigningrequests", "", "", "other", ""},
	}
}

// confined checks that the policy denies each of the attempts.
func (s *stay) confined() {
	s.Helper()
	file := filepath.Join(s.dir, "others.yaml")
	text := strings.Replace(others, "REQUEST", base64.StdEncoding.EncodeToString(request(s.T, pkix.Name{CommonName: "other"})), 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
	s.run(s.kubectl, "--context", "hub", "create", "-f", file)
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(s.dir, "hub-hawser-hub-source", "kubeconfig"))
	if err != nil {
		s.Fatal(err)
	}
	client := dynamic.NewForConfigOrDie(cfg)
	const denied = "ValidatingAdmissionPolicy 'hawser-hub-source'"
	var accepts attempt
	for _, a := range attempts() {
		if a.what == "accepts a cluster" {
			accepts = a
		}
		if err := a.do(s.Context(), client); (!apierrors.IsForbidden(err) && !apierrors.IsInvalid(err)) || !strings.Contains(err.Error(), denied) {
			s.Errorf("with the token of hub-source one %s: %v", a.what, err)
		}
	}
	s.run(s.kubectl, "--context", "hub", "create", "clusterrolebinding", "hawser-hub-source-acceptance", "--clusterrole=hawser-hub-source-acceptance", "--serviceaccount=hawser:hawser-hub-source")
	s.eventuallyTrue("with the role for it hub-source accepts a cluster", func() (bool, string) {
		err := accepts.do(s.Context(), client)
		return err == nil, fmt.Sprint(err)
	})
}

// request returns a certificate request with a new key.
func request(t *testing.T, subject pkix.Name) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// others are objects that belong to no cluster, and a cluster that is not accepted.
const others = `
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: managed-cluster-lease, namespace: default}
---
apiVersion: work.open-cluster-management.io/v1
kind: ManifestWork
metadata: {name: other, namespace: default}
spec: {workload: {manifests: []}}
---
apiVersion: addon.open-cluster-management.io/v1alpha1
kind: ManagedClusterAddOn
metadata: {name: other, namespace: default}
spec: {}
---
apiVersion: cluster.open-cluster-management.io/v1
kind: ManagedCluster
metadata: {name: cluster9}
spec: {hubAcceptsClient: false}
---
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: {name: other}
spec:
  signerName: example.com/other
  usages: [client auth]
  request: REQUEST
`
