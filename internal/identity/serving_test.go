package identity

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/pki"
)

// serving is the certificate of a port, under a clock that the test moves.
func serving(t *testing.T, f Files, now *time.Time) (s *Serving, reported *[]error) {
	t.Helper()
	reported = new([]error)
	s, err := f.Serving(func(err error) { *reported = append(*reported, err) })
	if err != nil {
		t.Fatal(err)
	}
	s.loader.now = func() time.Time { return *now }
	return s, reported
}

// shown returns the certificate that a client with the CA a receives.
func shown(t *testing.T, s *Serving, a *pki.Authority) (*x509.Certificate, error) {
	t.Helper()
	c, p := net.Pipe()
	defer c.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer p.Close()
		_ = tls.Server(p, s.TLS()).HandshakeContext(t.Context()) // the client reports the error
	}()
	client := tls.Client(c, &tls.Config{RootCAs: a.Pool(), ServerName: "localhost", MinVersion: tls.VersionTLS12})
	err := client.HandshakeContext(t.Context())
	if err != nil {
		c.Close()
		<-served
		return nil, err
	}
	leaf := client.ConnectionState().PeerCertificates[0]
	c.Close()
	<-served
	return leaf, nil
}

// own returns the files of a port whose clients send no certificate.
func (s side) own() Files {
	f := s.files()
	f.CA = ""
	return f
}

// TestServing_ClientsOfACA checks that a port with a CA accepts only clients with a certificate of it. A CA
// that is added to its file later counts too.
func TestServing_ClientsOfACA(t *testing.T) {
	a, b, d, now := authority(t, "a"), authority(t, "b"), side{t, t.TempDir()}, time.Now()
	d.renew(a, pki.Request{Role: pki.Broker, Name: "b", Hosts: []string{"localhost"}}, a)
	s, _ := serving(t, d.files(), &now)
	calls := func(by *pki.Authority) error {
		c, p := net.Pipe()
		defer c.Close()
		config := &tls.Config{RootCAs: a.Pool(), ServerName: "localhost", MinVersion: tls.VersionTLS12}
		if by != nil {
			pair, err := by.Issue(pki.Request{Role: pki.Source, Name: "kube-apiserver", Valid: pki.Starting(now, time.Hour)})
			if err != nil {
				t.Fatal(err)
			}
			cert, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
			if err != nil {
				t.Fatal(err)
			}
			config.Certificates = []tls.Certificate{cert}
		}
		go func() { _, _ = io.Copy(io.Discard, tls.Client(c, config)) }() // the client reads the rejection
		defer p.Close()
		return tls.Server(p, s.TLS()).HandshakeContext(t.Context())
	}
	for name, by := range map[string]*pki.Authority{"no CA": nil, "another CA": b} {
		if err := calls(by); err == nil {
			t.Errorf("a client of %s is let in", name)
		}
	}
	if err := calls(a); err != nil {
		t.Errorf("a client of the CA: %v", err)
	}
	d.renew(a, pki.Request{Role: pki.Broker, Name: "b", Hosts: []string{"localhost"}}, a, b)
	now = now.Add(checkEvery)
	if err := calls(b); err != nil {
		t.Errorf("a client of the CA that is new: %v", err)
	}
}

func TestServing_WaitsForItsFilesAndFollowsThem(t *testing.T) {
	a, d, now := authority(t, "a"), side{t, t.TempDir()}, time.Now()
	s, reported := serving(t, d.own(), &now)
	if err := s.Check(); err == nil || !strings.Contains(err.Error(), d.files().Cert) {
		t.Fatalf("without files Check returns %v", err)
	}
	if _, err := shown(t, s, a); err == nil {
		t.Fatal("a handshake without a certificate")
	}
	now = now.Add(checkEvery)
	if err := s.Check(); err == nil || len(*reported) != 1 {
		t.Fatalf("%v; reported %v, want the same error once", err, *reported)
	}

	d.renew(a, pki.Request{Role: pki.Broker, Name: "first", Hosts: []string{"localhost"}}, a)
	now = now.Add(checkEvery)
	leaf, err := shown(t, s, a)
	if err != nil || !strings.HasSuffix(leaf.Subject.CommonName, "first") || s.Check() != nil {
		t.Fatalf("with files: %v, %v, %v", leaf, err, s.Check())
	}

	d.renew(a, pki.Request{Role: pki.Broker, Name: "second", Hosts: []string{"localhost"}}, a)
	now = now.Add(checkEvery)
	if leaf, err = shown(t, s, a); err != nil || !strings.HasSuffix(leaf.Subject.CommonName, "second") {
		t.Fatalf("after the renewal: %v, %v", leaf, err)
	}

	if err := os.Remove(d.files().Key); err != nil {
		t.Fatal(err)
	}
	now = now.Add(checkEvery)
	if leaf, err = shown(t, s, a); err != nil || !strings.HasSuffix(leaf.Subject.CommonName, "second") || s.Check() != nil {
		t.Fatalf("without the key: %v, %v, %v; the last good one is still good", leaf, err, s.Check())
	}
	if n := len(*reported); n != 2 || !strings.Contains((*reported)[1].Error(), "previous ones stay in use") {
		t.Fatalf("reported %v", *reported)
	}
}

func TestServing_ChecksTheDates(t *testing.T) {
	a, d, now := authority(t, "a"), side{t, t.TempDir()}, time.Now()
	d.renew(a, pki.Request{Role: pki.Broker, Name: "b", Hosts: []string{"localhost"}}, a)
	s, _ := serving(t, d.own(), &now)
	for after, want := range map[time.Duration]string{0: "", 2 * time.Hour: "has expired at", -time.Hour: "is not valid before"} {
		now = time.Now().Add(after)
		if err := s.Check(); (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("after %s: %v, want %q", after, err, want)
		}
	}
}

func TestServing_NeedsBothFiles(t *testing.T) {
	for _, f := range []Files{{}, {Cert: "c"}, {Key: "k"}, {CA: "ca"}} {
		if _, err := f.Serving(nil); err == nil {
			t.Errorf("%+v must be refused", f)
		}
	}
}
