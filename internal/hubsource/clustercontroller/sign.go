package clustercontroller

import (
	"crypto"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/earliest"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/internal/sessionfence"
)

const (
	// DefaultDuration is the default lifetime of certificates.
	DefaultDuration = 720 * time.Hour
	// minExpiration is the shortest lifetime that a CSR may request.
	minExpiration = 10 * time.Minute
	// backdate tolerates clocks that are a little behind. For a short certificate it is at most one twentieth of
	// the lifetime. Otherwise the holder would consider the certificate half used.
	backdate      = 5 * time.Minute
	backdateShare = 20
)

// toSign returns the request of a CSR that waits for its certificate. An error is why it never gets one. Both
// are nil if the CSR does not wait.
func toSign(csr *certificatesv1.CertificateSigningRequest) (*request, error) {
	var approved bool
	var at time.Time
	for _, c := range csr.Status.Conditions {
		switch c.Type {
		case certificatesv1.CertificateApproved:
			approved, at = c.Status != corev1.ConditionFalse, c.LastTransitionTime.Time
		case certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
			return nil, nil
		}
	}
	if !approved || csr.Spec.SignerName != ocm.Signer || len(csr.Status.Certificate) > 0 {
		return nil, nil
	}
	r, err := validate(csr)
	if err != nil {
		return nil, err
	}
	r.approved = at
	return &r, nil
}

// signable reports whether an approved request may be signed for the present state of its cluster, nil without
// one. false without an error: it waits until the cluster changes. An error is why it is never signed.
//
// Scenario:
//
//	t1: a request is approved.
//	t2: the cluster is denied.
//	t3: the signer handles the request.
//
// Result: it is not signed.
func (r *request) signable(c *clusterv1.ManagedCluster) (bool, error) {
	if c == nil {
		return false, nil
	}
	is := meta.FindStatusCondition(c.Status.Conditions, clusterv1.ManagedClusterConditionHubAccepted)
	denied := !c.Spec.HubAcceptsClient && is != nil && is.Status == metav1.ConditionFalse && !r.approved.After(is.LastTransitionTime.Time)
	if c.DeletionTimestamp != nil || denied {
		return false, refuse(reasonDenied, "it was approved before the hub denied cluster %s: once the cluster is accepted, approve the next request of its agent", c.Name)
	}
	return c.Spec.HubAcceptsClient, nil
}

// lifetime returns the configured lifetime of a certificate, or a shorter one if the CSR requests it.
func lifetime(configured time.Duration, csr *certificatesv1.CertificateSigningRequest) time.Duration {
	if seconds := csr.Spec.ExpirationSeconds; seconds != nil {
		return min(configured, max(minExpiration, time.Duration(*seconds)*time.Second))
	}
	return configured
}

// authority is the CA that signs.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	// chain is sent with each certificate: the CA, and other certificates in its file, except for self-signed ones.
	chain []byte
}

// readAuthority reads the CA of PEM files.
func readAuthority(certFile, keyFile string) (a authority, err error) {
	certs, err := os.ReadFile(certFile)
	if err != nil {
		return a, err
	}
	keys, err := os.ReadFile(keyFile)
	if err != nil {
		return a, err
	}
	if a, err = newAuthority(certs, keys); err != nil {
		return a, fmt.Errorf("%s and %s: %w", certFile, keyFile, err)
	}
	return a, nil
}

func newAuthority(certs, keys []byte) (a authority, err error) {
	pair, err := identity.ReadPair(certs, keys)
	if err != nil {
		return a, err
	}
	key, can := pair.PrivateKey.(crypto.Signer)
	if !can {
		return a, fmt.Errorf("a %T cannot sign", pair.PrivateKey)
	}
	if !pair.Leaf.IsCA || pair.Leaf.KeyUsage != 0 && pair.Leaf.KeyUsage&x509.KeyUsageCertSign == 0 {
		return a, fmt.Errorf("the certificate of %q may not sign others", pair.Leaf.Subject)
	}
	a.cert, a.key = pair.Leaf, key
	for _, raw := range pair.Certificate {
		c, err := x509.ParseCertificate(raw)
		if err != nil {
			return a, err
		}
		if c.CheckSignatureFrom(c) != nil {
			a.chain = append(a.chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})...)
		}
	}
	return a, nil
}

// issue signs a client certificate with the subject and the key of the request. It expires with the authority
// at the latest.
func (a authority) issue(r request, random io.Reader, now time.Time, valid time.Duration) ([]byte, error) {
	// Scenario:
	//   t1: the clock here is a year ahead for two seconds.
	//   t2: hub-source signs a certificate.
	// Without this: the certificate begins in a year, and its holder cannot connect until then.
	// Result: the approval time by the hub's clock is used.
	if !r.approved.IsZero() && now.Sub(r.approved) > backdate {
		now = sessionfence.Latest(r.approved, a.cert.NotBefore)
	}
	if now.Before(a.cert.NotBefore) || !now.Before(a.cert.NotAfter) {
		return nil, fmt.Errorf("the CA is valid from %s to %s only", a.cert.NotBefore.UTC().Format(time.RFC3339), a.cert.NotAfter.UTC().Format(time.RFC3339))
	}
	template := &x509.Certificate{
		RawSubject: r.parsed.RawSubject, // the serial number is random
		NotBefore:  sessionfence.Latest(now.Add(-min(backdate, valid/backdateShare)), a.cert.NotBefore), NotAfter: now.Add(valid),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		// Scenario:
		//   t1: the hub's clock sets an earliest issue time.
		//   t2: hub-source signs with a clock that is a little behind.
		// Result: the issue time is not before the earliest one.
		ExtraExtensions: []pkix.Extension{earliest.Extension(sessionfence.Latest(now, r.earliest))},
	}
	if _, isRSA := r.parsed.PublicKey.(*rsa.PublicKey); isRSA {
		template.KeyUsage |= x509.KeyUsageKeyEncipherment
	}
	if a.cert.NotAfter.Before(template.NotAfter) {
		template.NotAfter = a.cert.NotAfter
	}
	der, err := x509.CreateCertificate(random, template, a.cert, r.parsed.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), a.chain...), nil
}

// warning returns what an operator has to know of the CA, nil for nothing. The CA expires soon in the last
// fifth of its lifetime, as any certificate. It also does when it expires before the certificates that it signs
// would.
func (a authority) warning(now time.Time, valid time.Duration) error {
	left := a.cert.NotAfter.Sub(now)
	end := a.cert.NotAfter.UTC().Format(time.RFC3339)
	switch {
	case left <= 0:
		return fmt.Errorf("the CA that signs clusters expired at %s: nothing is signed, put another one into its files", end)
	case left <= a.cert.NotAfter.Sub(a.cert.NotBefore)/nearEnd:
		return fmt.Errorf("the CA that signs clusters expires at %s: put the next one into its files, beside the broker's trust in this one", end)
	case left < valid:
		return fmt.Errorf("the CA that signs clusters expires at %s, before the certificates that it signs would: put the next one into its files", end)
	}
	return nil
}

// nearEnd: a CA expires soon in the last 1/nearEnd of its lifetime.
const nearEnd = 5

// superseded returns why a CSR is not signed, nil if it may be signed. A CSR is superseded if it, or the
// certificate with which it was created, is from before the earliest issue time of its cluster. Its new
// certificate would have a later issue time, and be accepted.
func superseded(csr *certificatesv1.CertificateSigningRequest, from time.Time) error {
	with, err := time.Parse(time.RFC3339, earliest.IssuedOf(csr.Annotations))
	requested := csr.Spec.Username == ocm.Registrar && err == nil
	if !csr.CreationTimestamp.Time.Before(from) && (!requested || !with.Before(from)) {
		return nil
	}
	return refuse("Superseded", "it was requested before %s, or with a certificate from before: such requests of the cluster are rejected", from.UTC().Format(time.RFC3339))
}
