package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hawser-io/hawser/internal/pki"
)

// TestServer_EachHandshakeHasItsChains checks many connections that show the same certificate at the same time.
// One half breaks off after the verification. No stored chains are left.
func TestServer_EachHandshakeHasItsChains(t *testing.T) {
	ca, now := authority(t, "a"), time.Now()
	d := side{t, t.TempDir()}
	d.renew(ca, pki.Request{Role: pki.Broker, Name: "b", Hosts: []string{"127.0.0.1"}}, ca)
	s := loaderFor(t, d.files(), func(err error) { t.Error(err) }, &now).server()
	p, err := ca.Issue(pki.Request{Role: pki.Agent, Name: "c1", Valid: pki.Starting(now, time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := p.TLS()
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, RootCAs: ca.Pool(), ServerName: "127.0.0.1", Certificates: []tls.Certificate{cert}} //nolint:gosec // breaksOff counts the flights of TLS 1.2
	var all sync.WaitGroup
	for n := range 64 {
		here, there := net.Pipe()
		all.Go(func() {
			defer there.Close()
			_, info, err := s.ServerHandshake(there)
			switch state, _ := info.(credentials.TLSInfo); {
			case n%2 == 1:
				if err == nil {
					t.Error("a handshake that the client broke off succeeds")
				}
			case err != nil:
				t.Error(err)
			case len(state.State.VerifiedChains) != 1 || state.State.VerifiedChains[0][0] != state.State.PeerCertificates[0]:
				t.Errorf("the chains of handshake %d are %v", n, state.State.VerifiedChains)
			}
		})
		all.Go(func() {
			defer here.Close()
			conn := here
			if n%2 == 1 {
				conn = &breaksOff{Conn: here}
			}
			if err := tls.Client(conn, config).HandshakeContext(t.Context()); (err == nil) != (n%2 == 0) {
				t.Errorf("handshake %d: %v", n, err)
			}
		})
	}
	all.Wait()
	s.chains.Range(func(any, any) bool {
		t.Error("chains of a handshake that ended are kept")
		return false
	})
}

// breaksOff is a TLS 1.2 connection that the client closes after it has sent its certificate.
type breaksOff struct {
	net.Conn
	writes int
}

func (c *breaksOff) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if c.writes++; c.writes == 2 {
		err = errors.Join(err, c.Close())
	}
	return n, err
}

// TestServer_Check checks that a port detects an invalid certificate of its own.
func TestServer_Check(t *testing.T) {
	now := time.Now()
	d := side{t, t.TempDir()}
	a := authority(t, "a")
	d.renew(a, pki.Request{Role: pki.Broker, Name: "b", Hosts: []string{"127.0.0.1"}}, a)
	s := loaderFor(t, d.files(), func(error) {}, &now).server()
	if err := s.Check(); err != nil {
		t.Error(err)
	}
	if left := s.End().Sub(now); left < 59*time.Minute || left > time.Hour {
		t.Errorf("it ends in %v", left)
	}
	for moved, want := range map[time.Duration]string{2 * time.Hour: "has expired at", -2 * time.Hour: "is not valid before"} {
		was := now
		now = now.Add(moved)
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), d.files().Cert) {
			t.Errorf("%v later: %v", moved, err)
		}
		now = was
	}
}

// TestEndOf checks that a chain expires with its first certificate, and several chains with the last one.
func TestEndOf(t *testing.T) {
	at := func(hour int) *x509.Certificate {
		return &x509.Certificate{NotAfter: time.Unix(int64(hour)*3600, 0)}
	}
	for want, chains := range map[int][][]*x509.Certificate{
		2: {{at(5), at(2), at(9)}}, 4: {{at(5), at(2)}, {at(5), at(4)}}, 5: {{at(5)}},
	} {
		if got := EndOf(chains); got != time.Unix(int64(want)*3600, 0) {
			t.Errorf("%v, want %d h", got, want)
		}
	}
	if !EndOf(nil).IsZero() {
		t.Error("no chain has an end")
	}
}

// TestCovers checks that Covers verifies as a handshake does.
func TestCovers(t *testing.T) {
	a, b, now := authority(t, "a"), authority(t, "b"), time.Now()
	shown := func(role pki.Role, hosts ...string) []*x509.Certificate {
		p, err := a.Issue(pki.Request{Role: role, Name: "x", Hosts: hosts, Valid: pki.Starting(now, time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		c, err := p.TLS()
		if err != nil {
			t.Fatal(err)
		}
		return []*x509.Certificate{c.Leaf}
	}
	agent := shown(pki.Agent)
	if end, err := Covers(a.Pool(), agent, now); err != nil || !end.Equal(agent[0].NotAfter) {
		t.Errorf("%v, %v", end, err)
	}
	for name, c := range map[string]struct {
		pool  *x509.CertPool
		shown []*x509.Certificate
		now   time.Time
	}{
		"another CA":         {b.Pool(), agent, now},
		"later":              {a.Pool(), agent, now.Add(2 * time.Hour)},
		"before":             {a.Pool(), agent, now.Add(-2 * time.Hour)},
		"not for clients":    {a.Pool(), shown(pki.Broker, "b"), now},
		"no CA at all":       {x509.NewCertPool(), agent, now},
		"its own as a CA":    {a.Pool(), []*x509.Certificate{selfSigned(t, pkix.Name{CommonName: "system:open-cluster-management:c1"})}, now},
		"shown beside it, b": {b.Pool(), append(shown(pki.Agent), agent...), now},
	} {
		if end, err := Covers(c.pool, c.shown, c.now); err == nil {
			t.Errorf("%s: covered until %v", name, end)
		}
	}
}

// selfSigned is a certificate with a subject, parsed from DER.
func selfSigned(t *testing.T, subject pkix.Name) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: subject, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestFromCertificate_SeveralNames checks that a second common name cannot select the identity. With several
// organizations the first matching rule wins.
func TestFromCertificate_SeveralNames(t *testing.T) {
	name := func(cn string) pkix.AttributeTypeAndValue {
		return pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: cn}
	}
	m := Mapping{{CommonName: "hub", Role: Source, Name: "hub"}, {Organization: "viewers", Role: Viewer, Name: "v"}, {Organization: "operators", Role: Operator, Name: "o"}}
	for _, names := range [][]string{{"hub", "system:open-cluster-management:c1"}, {"system:open-cluster-management:c1", "hub"}, {"hub", "hub"}, {"x", "y"}} {
		subject := pkix.Name{Organization: []string{"operators"}}
		for _, n := range names {
			subject.ExtraNames = append(subject.ExtraNames, name(n))
		}
		if id, err := m.FromCertificate(selfSigned(t, subject)); err == nil || !strings.Contains(err.Error(), "2 common names") {
			t.Errorf("%v is %v, %v", names, id, err)
		}
	}
	for _, all := range [][]string{{"operators", "viewers"}, {"viewers", "operators"}} {
		if id, err := m.FromCertificate(selfSigned(t, pkix.Name{CommonName: "x", Organization: all})); err != nil || id.Role != Viewer {
			t.Errorf("%v is %v, %v", all, id, err)
		}
	}
}
