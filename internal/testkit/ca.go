package testkit

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
)

// CA signs certificates for one test.
type CA struct {
	t         testing.TB
	authority *pki.Authority
}

// validFor is the validity of test certificates.
const validFor = time.Hour

// NewCA makes a CA.
func NewCA(t testing.TB) *CA {
	t.Helper()
	a, err := pki.NewAuthority("test authority", pki.Starting(time.Now(), validFor))
	if err != nil {
		t.Fatalf("certificate authority: %v", err)
	}
	return &CA{t: t, authority: a}
}

// PEM returns the certificate and the key of the CA, for another process.
func (c *CA) PEM() (certificate, key string) {
	return string(c.authority.CertificatePEM()), string(c.authority.KeyPEM())
}

func (c *CA) issue(r pki.Request) tls.Certificate {
	c.t.Helper()
	r.Valid = pki.Starting(time.Now(), validFor)
	pair, err := c.authority.Issue(r)
	if err != nil {
		c.t.Fatalf("certificate of %s/%s: %v", r.Role, r.Name, err)
	}
	cert, err := pair.TLS()
	if err != nil {
		c.t.Fatalf("certificate of %s/%s: %v", r.Role, r.Name, err)
	}
	return cert
}

// Write writes the certificate of the CA, and certificate and key of a client, into files below dir, and
// returns their paths.
func (c *CA) Write(dir string, id identity.Identity) (ca, cert, key string) {
	c.t.Helper()
	return c.WriteValid(dir, id, pki.Starting(time.Now(), validFor))
}

// WriteValid is Write with a certificate that is valid for some period.
func (c *CA) WriteValid(dir string, id identity.Identity, valid pki.Period) (ca, cert, key string) {
	c.t.Helper()
	pair, err := c.authority.Issue(pki.Request{Role: pki.Role(id.Role), Name: id.Name, Valid: valid})
	if err != nil {
		c.t.Fatalf("certificate of %s: %v", id, err)
	}
	ca, cert, key = filepath.Join(dir, "ca.crt"), filepath.Join(dir, id.Name+".crt"), filepath.Join(dir, id.Name+".key")
	for path, content := range map[string][]byte{ca: c.authority.CertificatePEM(), cert: pair.CertPEM, key: pair.KeyPEM} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
	return ca, cert, key
}

// Server returns the credentials of a port on 127.0.0.1, made as those of a broker.
func (c *CA) Server() credentials.TransportCredentials {
	c.t.Helper()
	pair, err := c.authority.Issue(pki.Request{Role: pki.Broker, Name: "broker", Hosts: []string{"127.0.0.1", "localhost"}, Valid: pki.Starting(time.Now(), validFor)})
	if err != nil {
		c.t.Fatalf("certificate: %v", err)
	}
	dir := c.t.TempDir()
	files := identity.Files{CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	for path, content := range map[string][]byte{files.CA: c.authority.CertificatePEM(), files.Cert: pair.CertPEM, files.Key: pair.KeyPEM} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
	s, err := files.Server(func(err error) { c.t.Error(err) })
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// Dial does the TLS handshake on a connection as a client and offers protocols. The zero Identity has no
// certificate.
func (c *CA) Dial(raw net.Conn, id identity.Identity, protocols ...string) (net.Conn, error) {
	c.t.Helper()
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.authority.Pool(), ServerName: "127.0.0.1", NextProtos: protocols}
	if id != (identity.Identity{}) {
		config.Certificates = []tls.Certificate{c.issue(pki.Request{Role: pki.Role(id.Role), Name: id.Name})}
	}
	conn := tls.Client(raw, config)
	return conn, conn.HandshakeContext(context.Background())
}

// Client returns the credentials of a client, with a certificate that Mapping maps back to id.
func (c *CA) Client(id identity.Identity) credentials.TransportCredentials {
	c.t.Helper()
	cert := c.issue(pki.Request{Role: pki.Role(id.Role), Name: id.Name})
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.authority.Pool(), Certificates: []tls.Certificate{cert}})
}

// Sign signs any certificate template. It fills in a missing validity period and serial number.
func (c *CA) Sign(template x509.Certificate) tls.Certificate {
	c.t.Helper()
	valid := pki.Starting(time.Now(), validFor)
	if template.NotBefore.IsZero() {
		template.NotBefore = valid.NotBefore
	}
	if template.NotAfter.IsZero() {
		template.NotAfter = valid.NotAfter
	}
	template.SerialNumber, template.ExtKeyUsage = big.NewInt(time.Now().UnixNano()), []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	ca, err := tls.X509KeyPair(c.authority.CertificatePEM(), c.authority.KeyPEM())
	if err != nil {
		c.t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		c.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Showing returns client credentials that trust the CA and send a certificate for any CAs that the server
// names.
func (c *CA) Showing(cert tls.Certificate) credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: c.authority.Pool(),
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil },
	})
}

// Anonymous returns the credentials of a client without a certificate.
func (c *CA) Anonymous() credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.authority.Pool()})
}

// Mapping returns the rules with which a broker maps the certificates of these identities. Agents need none.
func Mapping(ids ...identity.Identity) identity.Mapping {
	var m identity.Mapping
	for _, id := range ids {
		if id.Role == identity.Agent {
			continue
		}
		cn, _ := pki.Subject(pki.Role(id.Role), id.Name)
		m = append(m, identity.Rule{CommonName: cn, Role: id.Role, Name: id.Name})
	}
	return m
}
