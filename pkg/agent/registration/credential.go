package registration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-io/hawser/internal/earliest"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/ocm"
)

// Credential is a client certificate with its key.
type Credential struct {
	// Cert and Key are PEM.
	Cert, Key []byte
	// NotBefore and NotAfter are the validity of the certificate.
	NotBefore, NotAfter time.Time
	// Issued is an upper bound of the time of issue.
	Issued time.Time
}

// String returns the expiry time. It omits the key, which must not be logged.
func (c Credential) String() string {
	return "a certificate until " + c.NotAfter.UTC().Format(time.RFC3339)
}

// ReadCredential reads PEM. It returns an error if certificate and key do not match, or if the subject is not
// s.
func ReadCredential(cert, key []byte, s ocm.Subject) (*Credential, error) {
	pair, err := identity.ReadPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("certificate and key: %w", err)
	}
	leaf := pair.Leaf
	have, want := slices.Sorted(slices.Values(leaf.Subject.Organization)), slices.Sorted(slices.Values(s.Organizations()))
	if leaf.Subject.CommonName != s.CommonName() || !slices.Equal(have, want) {
		return nil, fmt.Errorf("the certificate is that of %q in %q, not that of %q in %q", leaf.Subject.CommonName, have, s.CommonName(), want)
	}
	return &Credential{Cert: cert, Key: key, NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter, Issued: earliest.LatestIssuedAt(leaf)}, nil
}

// NewKey creates a key, and a certificate request signed with it. Both are PEM.
func NewKey(s ocm.Subject) (key, request []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the key: %w", err)
	}
	key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	request, err = signRequest(key, s)
	return key, request, err
}

// fingerprint returns the SHA-256 of the public key in a request. An operator on the hub compares it to
// identify the request.
func fingerprint(request []byte) string {
	r, err := identity.ReadRequest(request)
	if err != nil {
		return "unknown"
	}
	return fmt.Sprintf("%x", sha256.Sum256(r.RawSubjectPublicKeyInfo))
}

// signRequest returns a certificate request for s, signed with key.
func signRequest(key []byte, s ocm.Subject) ([]byte, error) {
	block, _ := pem.Decode(key)
	if block == nil {
		return nil, errors.New("the key is not PEM")
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read the key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: s.CommonName(), Organization: s.Organizations()},
	}, k)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}
