package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hawser-io/hawser/internal/pki"
)

// side is one directory of PEM files that a test renews.
type side struct {
	t   *testing.T
	dir string
}

func (s side) files() Files {
	return Files{CA: filepath.Join(s.dir, "ca.crt"), Cert: filepath.Join(s.dir, "tls.crt"), Key: filepath.Join(s.dir, "tls.key")}
}

func (s side) write(name string, b []byte) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), b, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// renew writes a new pair that a has signed, and a CA file with the CAs in trust.
func (s side) renew(a *pki.Authority, req pki.Request, trust ...*pki.Authority) {
	s.t.Helper()
	req.Valid = pki.Starting(time.Now(), time.Hour)
	p, err := a.Issue(req)
	if err != nil {
		s.t.Fatal(err)
	}
	var bundle []byte
	for _, t := range trust {
		bundle = append(bundle, t.CertificatePEM()...)
	}
	s.write("ca.crt", bundle)
	s.write("tls.crt", p.CertPEM)
	s.write("tls.key", p.KeyPEM)
}

func commonName(cluster string) string {
	cn, _ := pki.Subject(pki.Agent, cluster)
	return cn
}

func authority(t *testing.T, name string) *pki.Authority {
	t.Helper()
	a, err := pki.NewAuthority(name, pki.Starting(time.Now(), time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// connected returns the two ends of a TCP connection. The writes of a pipe have no buffer: after a resumption, both
// sides would wait for the other to read.
func connected(t *testing.T) (dialed, accepted net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if dialed, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if accepted, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return dialed, accepted
}

// handshake connects client to server and returns the certificate the server
// verified.
func handshake(t *testing.T, client, server credentials.TransportCredentials) (*x509.Certificate, error) {
	t.Helper()
	c, s := connected(t)
	defer c.Close()
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	type result struct {
		info credentials.AuthInfo
		err  error
	}
	served := make(chan result, 1)
	go func() {
		conn, info, err := server.ServerHandshake(s)
		if err == nil {
			_, err = conn.Write([]byte{1})
		} else {
			s.Close()
		}
		served <- result{info, err}
	}()
	conn, _, err := client.ClientHandshake(ctx, "127.0.0.1:1", c)
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	if err != nil {
		c.Close()
	}
	r := <-served
	if err != nil {
		return nil, err
	}
	if r.err != nil {
		return nil, r.err
	}
	return r.info.(credentials.TLSInfo).State.VerifiedChains[0][0], nil
}

// TestFiles_TLS checks that the configuration of the next connection comes from the current files. It requests
// no ALPN protocol, because brokers of other protocols would reject that.
func TestFiles_TLS(t *testing.T) {
	first, second := authority(t, "first"), authority(t, "second")
	agent := side{t, t.TempDir()}
	agent.renew(first, pki.Request{Role: pki.Agent, Name: "c1"}, first)
	config, err := agent.files().TLS(func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	one := config()
	if len(one.NextProtos) > 0 || one.RootCAs == nil || one.Certificates[0].Leaf.Subject.CommonName != commonName("c1") {
		t.Errorf("%+v", one)
	}
	agent.renew(second, pki.Request{Role: pki.Agent, Name: "c2"}, second)
	deadline := time.NewTimer(20 * checkEvery)
	defer deadline.Stop()
	tick := time.NewTicker(checkEvery / 10)
	defer tick.Stop()
	for config().Certificates[0].Leaf.Subject.CommonName != commonName("c2") {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatal("renewed files are not used")
		}
	}
	if two := config(); two.RootCAs.Equal(one.RootCAs) {
		t.Error("the renewed CA is not used")
	}
	if _, err := (Files{CA: "/none"}).TLS(nil); err == nil {
		t.Error("files that are missing were taken")
	}
}

func TestFiles_RenewedFilesAreUsedWithoutRestart(t *testing.T) {
	first, second := authority(t, "first"), authority(t, "second")
	broker, agent := side{t, t.TempDir()}, side{t, t.TempDir()}
	brokerReq := pki.Request{Role: pki.Broker, Name: "b", Hosts: []string{"127.0.0.1"}}
	agentReq := pki.Request{Role: pki.Agent, Name: "c1"}
	broker.renew(first, brokerReq, first)
	agent.renew(first, agentReq, first)

	var reported []error
	now := time.Now()
	report := func(err error) { reported = append(reported, err) }
	server := loaderFor(t, broker.files(), report, &now).server()
	own := loaderFor(t, agent.files(), report, &now)
	client := &reloading{config: func(name string) *tls.Config { return own.get().client(name) }}

	leaf, err := handshake(t, client, server)
	if err != nil || leaf.Subject.CommonName != commonName("c1") {
		t.Fatalf("first handshake: %v, %v", leaf, err)
	}

	// Both sides move to another CA; the loader reads the files again after checkEvery.
	broker.renew(second, brokerReq, second)
	agent.renew(second, pki.Request{Role: pki.Agent, Name: "c2"}, second)
	now = now.Add(checkEvery)
	leaf, err = handshake(t, client, server)
	if err != nil || leaf.Subject.CommonName != commonName("c2") {
		t.Fatalf("after the renewal: %v, %v", leaf, err)
	}

	// A broken file is reported and the last good material stays in use.
	agent.write("tls.key", []byte("not a key"))
	now = now.Add(checkEvery)
	if _, err = handshake(t, client, server); err != nil {
		t.Fatalf("with a broken key on disk: %v", err)
	}
	if len(reported) != 1 {
		t.Fatalf("reported %v, want one error", reported)
	}
}

// loaderFor reads f under a clock that the test moves.
func loaderFor(t *testing.T, f Files, onError func(error), now *time.Time) *loader {
	t.Helper()
	l, err := newLoader(f, onError)
	if err != nil {
		t.Fatal(err)
	}
	l.now = func() time.Time { return *now }
	l.checked = *now
	return l
}

func TestFiles_Refuses(t *testing.T) {
	d := side{t, t.TempDir()}
	d.renew(authority(t, "a"), pki.Request{Role: pki.Agent, Name: "c1"}, authority(t, "b"))
	ok := d.files()
	for name, f := range map[string]Files{
		"certificate without key": {CA: ok.CA, Cert: ok.Cert},
		"missing file":            {CA: ok.CA + "x"},
		"no PEM in the CA":        {CA: ok.Key},
	} {
		if _, err := f.Client("", func(error) {}); err == nil {
			t.Errorf("%s: must be refused", name)
		}
	}
	if _, err := (Files{CA: ok.CA}).Server(func(error) {}); err == nil {
		t.Error("a server without certificate must be refused")
	}
}
