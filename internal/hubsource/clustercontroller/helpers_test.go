package clustercontroller

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/ocm"
)

// start is the time at which most tests begin.
var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const bootstrapUser = "system:serviceaccount:open-cluster-management:agent-registration-bootstrap"

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// pemOf returns a signed certificate request as PEM.
func pemOf(t testing.TB, template *x509.CertificateRequest, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func userOf(cluster, agent string) string {
	return "system:open-cluster-management:" + cluster + ":" + agent
}

// subject is the subject that a klusterlet requests.
func subject(cluster, agent string) pkix.Name {
	return pkix.Name{
		CommonName:   userOf(cluster, agent),
		Organization: []string{"system:open-cluster-management:" + cluster, "system:open-cluster-management:managed-clusters"},
	}
}

// csrOf is the CSR of an agent, requested by user.
func csrOf(t testing.TB, name, cluster, agent, user string, key crypto.Signer, change ...func(*certificatesv1.CertificateSigningRequest)) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, CreationTimestamp: metav1.NewTime(start),
			Labels: map[string]string{clusterv1.ClusterNameLabelKey: cluster}, Annotations: map[string]string{ocm.RequesterAnnotation: user},
		},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pemOf(t, &x509.CertificateRequest{Subject: subject(cluster, agent)}, key), SignerName: ocm.Signer, Username: ocm.Registrar,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageClientAuth},
		},
	}
	for _, c := range change {
		c(csr)
	}
	return csr
}

func renewalCSR(t testing.TB, change ...func(*certificatesv1.CertificateSigningRequest)) *certificatesv1.CertificateSigningRequest {
	return csrOf(t, "east-1", "east", "agent", userOf("east", "agent"), newKey(t), change...)
}

func condition(t certificatesv1.RequestConditionType, reason string) func(*certificatesv1.CertificateSigningRequest) {
	return func(csr *certificatesv1.CertificateSigningRequest) {
		csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: t, Status: corev1.ConditionTrue, Reason: reason})
	}
}

// clusterNamed is a ManagedCluster as agents create it.
func clusterNamed(name string, change ...func(*clusterv1.ManagedCluster)) *clusterv1.ManagedCluster {
	c := &clusterv1.ManagedCluster{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-of-" + "cluster", ResourceVersion: "1"}, Spec: clusterv1.ManagedClusterSpec{LeaseDurationSeconds: 60}}
	for _, f := range change {
		f(c)
	}
	return c
}

func accepts(c *clusterv1.ManagedCluster) { c.Spec.HubAcceptsClient = true }

func finalized(c *clusterv1.ManagedCluster) {
	c.Finalizers = append(c.Finalizers, clusterv1.ManagedClusterFinalizer)
}

func conditions(kind string, status metav1.ConditionStatus, reason string) func(*clusterv1.ManagedCluster) {
	return func(c *clusterv1.ManagedCluster) {
		c.Status.Conditions = append(c.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason})
	}
}

func tainted(keys ...string) func(*clusterv1.ManagedCluster) {
	return func(c *clusterv1.ManagedCluster) {
		for _, k := range keys {
			c.Spec.Taints = append(c.Spec.Taints, clusterv1.Taint{Key: k, Effect: clusterv1.TaintEffectNoSelect})
		}
	}
}

var (
	isAccepted     = conditions(clusterv1.ManagedClusterConditionHubAccepted, metav1.ConditionTrue, "HubClusterAdminAccepted")
	isDenied       = conditions(clusterv1.ManagedClusterConditionHubAccepted, metav1.ConditionFalse, "HubClusterAdminDenied")
	isJoined       = conditions(clusterv1.ManagedClusterConditionJoined, metav1.ConditionTrue, "ManagedClusterJoined")
	isAvailable    = conditions(clusterv1.ManagedClusterConditionAvailable, metav1.ConditionTrue, "ManagedClusterAvailable")
	isDisconnected = conditions(clusterv1.ManagedClusterConditionAvailable, metav1.ConditionUnknown, "ManagedClusterLeaseUpdateStopped")
	isBroken       = conditions(clusterv1.ManagedClusterConditionAvailable, metav1.ConditionFalse, "ManagedClusterKubeAPIServerUnavailable")
)

// caOf returns certificate and key of a CA, as PEM.
func caOf(t testing.TB, from, to time.Time) (certs, keys []byte) {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "clusters"}, NotBefore: from, NotAfter: to,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pkcs8(t, key)
}

func pkcs8(t testing.TB, key crypto.Signer) []byte {
	t.Helper()
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

// issuedBy returns a certificate for a key, with or without the rights of a CA.
func issuedBy(t testing.TB, a authority, key crypto.Signer, isCA bool) []byte {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "between"}, NotBefore: a.cert.NotBefore, NotAfter: a.cert.NotAfter,
		IsCA: isCA, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	if isCA {
		template.KeyUsage = x509.KeyUsageCertSign
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
