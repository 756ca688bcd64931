package identity

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/pki"
)

// issued returns a pair and its new CA.
func issued(f *testing.F, req pki.Request) (ca []byte, p pki.Pair) {
	f.Helper()
	valid := pki.Starting(time.Unix(1700000000, 0), time.Hour)
	a, err := pki.NewAuthority("fuzz", valid)
	if err != nil {
		f.Fatal(err)
	}
	req.Valid = valid
	if p, err = a.Issue(req); err != nil {
		f.Fatal(err)
	}
	return a.CertificatePEM(), p
}

// FuzzFromCertificate checks that a certificate gives the role agent only with the name that OCM gives to
// agents, and other roles only by the mapping.
func FuzzFromCertificate(f *testing.F) {
	m := Mapping{
		{CommonName: "hub-east", Role: Source, Name: "east"},
		{Organization: "platform", Role: Operator, Name: "platform"},
	}
	for _, req := range []pki.Request{
		{Role: pki.Agent, Name: "c1"}, {Role: pki.Source, Name: "east"}, {Role: pki.Broker, Name: "b", Hosts: []string{"127.0.0.1"}},
	} {
		_, p := issued(f, req)
		block, _ := pem.Decode(p.CertPEM)
		f.Add(block.Bytes, "", "")
	}
	f.Add([]byte{}, "system:open-cluster-management:c1:agent", "platform")
	f.Add([]byte{}, "system:open-cluster-management::", "")
	f.Add([]byte{}, "hub-east", "")
	f.Fuzz(func(t *testing.T, der []byte, commonName, organization string) {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			c = &x509.Certificate{}
			c.Subject.CommonName = commonName
			if organization != "" {
				c.Subject.Organization = []string{organization}
			}
		}
		id, err := m.FromCertificate(c)
		switch {
		case err != nil && id != (Identity{}):
			t.Errorf("%v together with %v", id, err)
		case err != nil:
		case id.Role == Agent:
			rest := strings.Split(strings.TrimPrefix(c.Subject.CommonName, agentPrefix), ":")
			if !strings.HasPrefix(c.Subject.CommonName, agentPrefix) || len(rest) > 2 || slices.Contains(rest, "") || rest[0] != id.Name {
				t.Errorf("%q is %v", c.Subject.CommonName, id)
			}
		case id == Identity{Source, "east"} && c.Subject.CommonName == "hub-east":
		case id == Identity{Operator, "platform"} && slices.Contains(c.Subject.Organization, "platform"):
		default:
			t.Errorf("%q is %v", c.Subject, id)
		}
	})
}

// FuzzFiles checks that files with any content are either rejected or usable for a handshake.
func FuzzFiles(f *testing.F) {
	ca, p := issued(f, pki.Request{Role: pki.Agent, Name: "c1"})
	f.Add(ca, p.CertPEM, p.KeyPEM)
	f.Add(ca, p.KeyPEM, p.CertPEM)
	f.Add([]byte{}, []byte{}, []byte{})
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, ca, cert, key []byte) {
		files := Files{CA: filepath.Join(dir, "ca"), Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}
		for name, b := range map[string][]byte{files.CA: ca, files.Cert: cert, files.Key: key} {
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		m, err := files.read()
		if err == nil && (m.own == nil || m.cert == nil || m.cert.PrivateKey == nil || len(m.cert.Certificate) == 0) {
			t.Errorf("taken, but incomplete: %+v", m)
		}
		if _, err := files.Server(func(error) {}); (err == nil) != (m.own != nil && m.cert != nil) {
			t.Errorf("read as %+v, as a server's: %v", m, err)
		}
	})
}
