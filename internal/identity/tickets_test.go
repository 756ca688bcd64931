package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hawser-io/hawser/internal/pki"
)

// resumable is a server, and a client that keeps its sessions.
type resumable struct {
	*testing.T
	server *Server
	client *tls.Config
	// beside is called before each write of the server; may be nil.
	beside func()
}

// connection is the result of one handshake.
type connection struct {
	resumed, mayResume bool // on the client; by the ClientHello
	name               string
	err                error
}

// connect makes one connection, on which the server sends one byte.
func (r *resumable) connect() (c connection) {
	r.Helper()
	here, there := connected(r.T)
	defer here.Close()
	defer there.Close()
	recorded := &recorder{Conn: there, beside: r.beside}
	served := make(chan error, 1)
	go func() { // the test receives the result
		conn, info, err := r.server.ServerHandshake(recorded)
		if err == nil {
			state, _ := info.(credentials.TLSInfo)
			if chains := state.State.VerifiedChains; len(chains) > 0 {
				c.name = chains[0][0].Subject.CommonName
			}
			_, err = conn.Write([]byte{1})
		} else {
			there.Close()
		}
		served <- err
	}()
	t := tls.Client(here, r.client)
	ctx, cancel := context.WithTimeout(r.Context(), 30*time.Second)
	defer cancel()
	if c.err = t.HandshakeContext(ctx); c.err == nil {
		_, c.err = t.Read(make([]byte, 1)) // the client gets session tickets before this byte
	}
	here.Close()
	if err := <-served; err != nil {
		c.err = err
	}
	c.resumed, c.mayResume = t.ConnectionState().DidResume, r.server.Resumes(recorded.first)
	return c
}

// recorder keeps the first bytes that are read.
type recorder struct {
	net.Conn
	first  []byte
	beside func()
}

// Write implements net.Conn.
func (r *recorder) Write(b []byte) (int, error) {
	if r.beside != nil {
		r.beside()
	}
	return r.Conn.Write(b)
}

func (r *recorder) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	if len(r.first) < 16<<10 {
		r.first = append(r.first, b[:n]...)
	}
	return n, err
}

// ticketRig returns a server with CAs a and b, and a client with a certificate that b has issued.
func ticketRig(t *testing.T, d side, a, b *pki.Authority, now *time.Time) *resumable {
	t.Helper()
	d.renew(a, brokerRequest, a, b)
	p, err := b.Issue(pki.Request{Role: pki.Agent, Name: "c1", Valid: pki.Starting(*now, time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := p.TLS()
	if err != nil {
		t.Fatal(err)
	}
	return &resumable{T: t, server: loaderFor(t, d.files(), func(err error) { t.Error(err) }, now).server(), client: &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: a.Pool(), ServerName: "127.0.0.1", NextProtos: []string{"h2"},
		// The client sends its certificate for any CAs that the server names. By default it would send none.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil },
		ClientSessionCache:   newSessions(),
	}}
}

var brokerRequest = pki.Request{Role: pki.Broker, Name: "b", Hosts: []string{"127.0.0.1", "b.example"}}

// TestServer_Resumes checks that a client resumes its session, and has its identity. A replica with the same files
// accepts the ticket too.
func TestServer_Resumes(t *testing.T) {
	a, b, now := authority(t, "a"), authority(t, "b"), time.Now()
	d := side{t, t.TempDir()}
	r := ticketRig(t, d, a, b, &now)
	if c := r.connect(); c.err != nil || c.resumed || c.mayResume || c.name != commonName("c1") {
		t.Errorf("the first: %+v", c)
	}
	for range 2 {
		if c := r.connect(); c.err != nil || !c.resumed || !c.mayResume || c.name != commonName("c1") {
			t.Errorf("later: %+v", c)
		}
	}
	r.server = loaderFor(t, d.files(), func(err error) { t.Error(err) }, &now).server()
	if c := r.connect(); c.err != nil || !c.resumed || c.name != commonName("c1") {
		t.Errorf("at a replica: %+v", c)
	}
	r.client.ServerName = "b.example"
	if c := r.connect(); c.err != nil || !c.resumed || c.name != commonName("c1") {
		t.Errorf("at a replica with another name: %+v", c)
	}
	r.client.ServerName = "other.example"
	if c := r.connect(); c.err == nil || c.mayResume {
		t.Errorf("at a server with another certificate: %+v", c)
	}
}

// TestServer_TicketEnds checks each event after which a ticket gives a full handshake, or none.
func TestServer_TicketEnds(t *testing.T) {
	type setup struct {
		side
		*resumable
		a, b *pki.Authority
		now  *time.Time
	}
	for name, c := range map[string]struct {
		event func(setup)
		// next is the result of the first connection after the event, later that of the second one.
		next, later string
	}{
		"its CA is removed":                {func(s setup) { s.trust(s.a) }, "rejected", "rejected"},
		"another CA is added":              {func(s setup) { s.trust(s.a, s.b, authority(s.t, "c")) }, "full", "resumed"},
		"the server has another key":       {func(s setup) { s.renew(s.a, brokerRequest, s.a, s.b) }, "full", "resumed"},
		"the client's certificate expires": {func(s setup) { *s.now = s.now.Add(2 * time.Hour) }, "full", "full"}, // on the clock of tickets only
		"the client speaks TLS 1.2":        {func(s setup) { s.client.MaxVersion = tls.VersionTLS12 }, "full", "full"},
		"nothing":                          {func(setup) {}, "resumed", "resumed"},
	} {
		t.Run(name, func(t *testing.T) {
			s := setup{side: side{t, t.TempDir()}, a: authority(t, "a"), b: authority(t, "b")}
			now := time.Now()
			s.now, s.resumable = &now, ticketRig(t, s.side, s.a, s.b, &now)
			got := []string{s.connect().String(), s.connect().String()}
			c.event(s)
			now = now.Add(checkEvery)
			got = append(got, s.connect().String(), s.connect().String())
			if want := []string{"full", "resumed", c.next, c.later}; !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
		})
	}
}

// TestServer_VerifiesResumedCertificates checks that the certificates of a ticket are verified again, also if the
// generation of the CAs is that of its issue.
func TestServer_VerifiesResumedCertificates(t *testing.T) {
	a, b, now := authority(t, "a"), authority(t, "b"), time.Now()
	d := side{t, t.TempDir()}
	r := ticketRig(t, d, a, b, &now)
	r.connect()
	if c := r.connect(); c.String() != "resumed" {
		t.Fatalf("%+v", c)
	}
	d.trust(a)
	l := loaderFor(t, d.files(), func(err error) { t.Error(err) }, &now)
	l.current.generation = r.server.loader.current.generation
	r.server = l.server()
	if c := r.connect(); c.String() != "rejected" || !c.mayResume {
		t.Errorf("without its CA: %v, %+v", c, c)
	}
}

// TestServer_VerifiesWithItsOwnAuthorities checks two connections that resume at the same time, with other CAs. They
// share the parsed certificate, and not its chains.
func TestServer_VerifiesWithItsOwnAuthorities(t *testing.T) {
	a, b, now := authority(t, "a"), authority(t, "b"), time.Now()
	r := ticketRig(t, side{t, t.TempDir()}, a, b, &now)
	r.connect()
	others := 0
	r.beside = func() {
		r.server.chains.Range(func(cert, _ any) bool {
			r.server.chains.Store(cert, verified{nil, a.Pool()})
			others++
			return true
		})
	}
	if c := r.connect(); c.err != nil || !c.resumed || c.name != commonName("c1") || others == 0 {
		t.Errorf("%+v, %d chains of others", c, others)
	}
}

// String returns how the handshake ended.
func (c connection) String() string {
	switch {
	case c.err != nil:
		return "rejected"
	case c.resumed:
		return "resumed"
	}
	return "full"
}

// trust replaces the CAs, and not the certificate.
func (s side) trust(all ...*pki.Authority) {
	s.t.Helper()
	var bundle []byte
	for _, a := range all {
		bundle = append(bundle, a.CertificatePEM()...)
	}
	s.write("ca.crt", bundle)
}

// TestServer_ResumesNoClientWithoutCertificate checks that an unknown client gets no ticket that counts.
func TestServer_ResumesNoClientWithoutCertificate(t *testing.T) {
	a, b, now := authority(t, "a"), authority(t, "b"), time.Now()
	r := ticketRig(t, side{t, t.TempDir()}, a, b, &now)
	r.client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &tls.Certificate{}, nil }
	for range 3 {
		if c := r.connect(); c.err != nil || c.resumed || c.mayResume || c.name != "" {
			t.Errorf("%+v", c)
		}
	}
}

// TestFiles_ClientDropsSessions checks that a client resumes sessions only with the certificate and the CAs with
// which they began.
func TestFiles_ClientDropsSessions(t *testing.T) {
	ca, now := authority(t, "a"), time.Now()
	d := side{t, t.TempDir()}
	d.renew(ca, pki.Request{Role: pki.Agent, Name: "c1"}, ca)
	l := loaderFor(t, d.files(), func(err error) { t.Error(err) }, &now)
	first := l.get().client("b").ClientSessionCache
	if first == nil || l.get().client("b").ClientSessionCache != first {
		t.Error("each connection has sessions of its own")
	}
	for _, change := range []func(){
		func() { d.renew(ca, pki.Request{Role: pki.Agent, Name: "c1"}, ca) }, func() { d.trust(ca, authority(t, "b")) },
	} {
		change()
		now = now.Add(checkEvery)
		next := l.get().client("b").ClientSessionCache
		if next == first {
			t.Error("the sessions of the former files are kept")
		}
		first = next
	}
}

// FuzzTicketOf checks that no bytes of a peer make the search for a ticket fail, and that a ticket is part of them.
func FuzzTicketOf(f *testing.F) {
	f.Add([]byte{recordHandshake, 3, 1, 0, 4, messageHello, 0, 0, 0})
	hello := []byte{recordHandshake, 3, 1, 0, 0, messageHello, 0, 0, 0}
	hello = append(hello, make([]byte, helloRandomLength)...)
	hello = append(hello, 0, 0, 2, 0x13, 1, 1, 0, 0, 12, 0, extensionTickets, 0, 8, 0, 6, 0, 4, 't', 'i', 'c', 'k')
	hello[4], hello[8] = byte(len(hello)-5), byte(len(hello)-9)
	f.Add(hello)
	if got := ticketOf(hello); string(got) != "tick" {
		f.Errorf("%q", got)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if ticket := ticketOf(b); !bytes.Contains(b, ticket) {
			t.Errorf("%q", ticket)
		}
	})
}
