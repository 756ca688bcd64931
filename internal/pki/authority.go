package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"

	"github.com/hawser-io/hawser/internal/earliest"
)

const (
	// AuthorityLifetime is the validity of a CA made by hawser pki.
	AuthorityLifetime = 10 * 365 * 24 * time.Hour
	// CertificateLifetime is the validity of a certificate that it issues.
	CertificateLifetime = 365 * 24 * time.Hour

	// backdate tolerates clocks that are slightly behind.
	backdate = 5 * time.Minute

	certificateBlock = "CERTIFICATE"
	keyBlock         = "PRIVATE KEY"
)

// ErrUnusableAuthority is wrapped by all errors of [ParseAuthority].
var ErrUnusableAuthority = errors.New("unusable certificate authority")

// Period is the validity of a certificate, both ends included.
type Period struct {
	NotBefore, NotAfter time.Time
	// Issued is the issue time in a certificate, zero if there is none.
	Issued time.Time
}

// Starting returns the period of length d from now, extended a few minutes into the past. So a clock that is
// slightly behind accepts the certificate.
func Starting(now time.Time, d time.Duration) Period {
	return Period{NotBefore: now.Add(-backdate), NotAfter: now.Add(d), Issued: now}
}

// Pair is a certificate with its private key, both in PEM.
type Pair struct {
	CertPEM, KeyPEM []byte
	// NotAfter is the time when the certificate expires.
	NotAfter time.Time
}

// TLS returns the pair in the form of crypto/tls.
func (p Pair) TLS() (tls.Certificate, error) {
	cert, err := tls.X509KeyPair(p.CertPEM, p.KeyPEM)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate and key: %w", err)
	}
	return cert, nil
}

// Authority signs certificates. It is safe for concurrent use.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pair Pair
}

// NewAuthority makes a new self-signed CA. Its certificates are valid only within valid.
func NewAuthority(commonName string, valid Period) (*Authority, error) {
	template, err := newTemplate(pkix.Name{CommonName: commonName}, valid)
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.MaxPathLenZero = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	pair, err := sign(template, template, key, key)
	if err != nil {
		return nil, err
	}
	return ParseAuthority(pair.CertPEM, pair.KeyPEM)
}

// ParseAuthority parses a CA from the results of CertificatePEM and KeyPEM. Its errors wrap
// [ErrUnusableAuthority].
func ParseAuthority(certPEM, keyPEM []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnusableAuthority, err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%w: its key is a %T, not an ECDSA key", ErrUnusableAuthority, pair.PrivateKey)
	}
	if !pair.Leaf.IsCA {
		return nil, fmt.Errorf("%w: the certificate of %q may not sign others", ErrUnusableAuthority, pair.Leaf.Subject)
	}
	return &Authority{
		cert: pair.Leaf,
		key:  key,
		pair: Pair{CertPEM: certPEM, KeyPEM: keyPEM, NotAfter: pair.Leaf.NotAfter},
	}, nil
}

// CertificatePEM returns the certificate that verifies all issued certificates.
func (a *Authority) CertificatePEM() []byte { return a.pair.CertPEM }

// KeyPEM returns the private key. Its holder can use any identity at the broker.
func (a *Authority) KeyPEM() []byte { return a.pair.KeyPEM }

// NotAfter returns the time when the CA, and all certificates that it issued, expire.
func (a *Authority) NotAfter() time.Time { return a.pair.NotAfter }

// Pool returns a new pool with only this CA.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Request describes one certificate.
type Request struct {
	Role Role
	// Name is the cluster of an agent, the source id of a source, and a free name for the other roles.
	Name string
	// Hosts are the DNS names and IP addresses of a broker or webhook, at least one. The other roles must have
	// none.
	Hosts []string
	Valid Period
}

// Issue makes a new key and signs a certificate for it. NotAfter is limited to that of the CA.
func (a *Authority) Issue(req Request) (Pair, error) {
	if _, err := ParseRole(string(req.Role)); err != nil {
		return Pair{}, err
	}
	if err := checkName(req.Name); err != nil {
		return Pair{}, err
	}
	commonName, organization := Subject(req.Role, req.Name)
	subject := pkix.Name{CommonName: commonName}
	if organization != "" {
		subject.Organization = []string{organization}
	}
	if a.cert.NotAfter.Before(req.Valid.NotAfter) {
		req.Valid.NotAfter = a.cert.NotAfter
	}
	template, err := newTemplate(subject, req.Valid)
	if err != nil {
		return Pair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	if !req.Valid.Issued.IsZero() {
		template.ExtraExtensions = []pkix.Extension{earliest.Extension(req.Valid.Issued)}
	}
	if err := setUsage(template, req); err != nil {
		return Pair{}, err
	}
	key, err := newKey()
	if err != nil {
		return Pair{}, err
	}
	return sign(template, a.cert, key, a.key)
}

// ErrInvalidHosts is wrapped by errors about Request.Hosts.
var ErrInvalidHosts = errors.New("invalid hosts")

func setUsage(template *x509.Certificate, req Request) error {
	if !req.Role.serves() {
		if len(req.Hosts) != 0 {
			return fmt.Errorf("%w: a certificate for %s/%s is for dialing out, only a broker's or a webhook's names hosts", ErrInvalidHosts, req.Role, req.Name)
		}
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		return nil
	}
	if len(req.Hosts) == 0 {
		return fmt.Errorf("%w: a %s's certificate needs the DNS names or IP addresses that clients dial", ErrInvalidHosts, req.Role)
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, h := range req.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
			continue
		}
		if err := checkName(h); err != nil {
			return fmt.Errorf("%w: %q is neither an IP address nor a DNS name: %w", ErrInvalidHosts, h, err)
		}
		template.DNSNames = append(template.DNSNames, h)
	}
	return nil
}

func newTemplate(subject pkix.Name, valid Period) (*x509.Certificate, error) {
	if !valid.NotBefore.Before(valid.NotAfter) {
		return nil, fmt.Errorf("a certificate valid from %s to %s would never be valid",
			valid.NotBefore.Format(time.RFC3339), valid.NotAfter.Format(time.RFC3339))
	}
	// 127 bits: always positive, within the 20 bytes that RFC 5280 allows.
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("choose a serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    valid.NotBefore,
		NotAfter:     valid.NotAfter,
	}, nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate a key: %w", err)
	}
	return key, nil
}

func sign(template, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) (Pair, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		return Pair{}, fmt.Errorf("sign the certificate of %q: %w", template.Subject, err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encode the key of %q: %w", template.Subject, err)
	}
	return Pair{
		CertPEM:  pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: der}),
		KeyPEM:   pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: keyDER}),
		NotAfter: template.NotAfter,
	}, nil
}
