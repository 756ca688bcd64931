package grpc_test

import (
	"context"
	"net"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/hawser-io/hawser/internal/broker/denylist"
	"github.com/hawser-io/hawser/internal/broker/listener/grpc"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/transport"
)

// returning is an agent that connects again and again, with files and TLS sessions of its own.
type returning struct {
	*site
	files   *site
	creds   credentials.TransportCredentials
	resumed atomic.Bool // by the last handshake
}

// returns makes the agent of a certificate, which trusts the CA a.
func (s *site) returns(a *pki.Authority, p pki.Pair) *returning {
	s.t.Helper()
	r := &returning{site: s, files: &site{t: s.t, dir: s.t.TempDir()}}
	r.files.trust(a)
	r.files.serve(p)
	creds, err := identity.Files{CA: r.files.file("ca"), Cert: r.files.file("crt"), Key: r.files.file("key")}.Client("", func(error) {}) // a key may be read before its certificate
	if err != nil {
		s.t.Fatal(err)
	}
	r.creds = noting{creds, &r.resumed}
	return r
}

// noting notes whether a handshake has resumed a session.
type noting struct {
	credentials.TransportCredentials
	resumed *atomic.Bool
}

// ClientHandshake implements credentials.TransportCredentials.
func (n noting) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := n.TransportCredentials.ClientHandshake(ctx, authority, raw)
	t, ok := info.(credentials.TLSInfo)
	n.resumed.Store(ok && t.State.DidResume)
	return conn, info, err
}

// Clone implements credentials.TransportCredentials.
func (n noting) Clone() credentials.TransportCredentials { return n }

// connect subscribes on a new connection. It returns the peer as the server sees it, without the parts that differ
// between connections.
func (r *returning) connect() (*subscription, transport.Peer, error) {
	r.t.Helper()
	sub := &subscription{t: r.t, s: r.site, cc: dial(r.t, r.front.addr, r.creds)}
	err := sub.again()
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	p := r.server.peer
	p.Addr, p.Conn = "", 0
	return sub, p, err
}

// wants connects, with a resumed session or a full handshake.
func (r *returning) wants(resumed bool) (*subscription, transport.Peer) {
	r.t.Helper()
	sub, p, err := r.connect()
	if err != nil || r.resumed.Load() != resumed {
		r.t.Fatalf("connected: %v; resumed: %v, want %v", err, r.resumed.Load(), resumed)
	}
	return sub, p
}

// until connects until the session is resumed, or until it is not. It pauses, because an agent may have 16
// connections. They stay open until the end of the test.
func (r *returning) until(resumed bool) (p transport.Peer) {
	r.t.Helper()
	r.site.until("a changed file is noticed", func() bool {
		<-time.After(100 * time.Millisecond)
		var err error
		if _, p, err = r.connect(); err != nil {
			r.t.Fatal(err)
		}
		return r.resumed.Load() == resumed
	})
	return p
}

// TestResumed_SamePeer checks that the server sees the same peer after a full handshake and in a resumed session. All
// later checks, as that of acceptance, depend on the peer only.
func TestResumed_SamePeer(t *testing.T) {
	a := authority(t, "a")
	s := open(t, nil, a)
	r := s.returns(a, issue(t, a, agentOf("cluster1"), time.Hour))
	_, first := r.wants(false)
	for range 2 {
		if _, p := r.wants(true); !reflect.DeepEqual(p, first) || p.CertificateEnds.IsZero() || p.CertificateIssued.IsZero() || p.Name != "cluster1" {
			t.Errorf("the server sees %+v, then %+v", first, p)
		}
	}
}

// TestResumed_Ends checks that a resumed session ends with the rights of its client, and that another one does not
// give them back.
func TestResumed_Ends(t *testing.T) {
	type event struct {
		*site
		denied *denylist.List
		a      *pki.Authority
		cert   pki.Pair
	}
	deny := func(subject func(event) string) func(event) {
		return func(e event) {
			parsed, err := denylist.ParseSubject(subject(e))
			if err == nil {
				err = e.denied.Deny(e.t.Context(), denylist.Denial{Subject: parsed, At: time.Now()})
			}
			if err != nil {
				e.t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		happens func(event)
		want    []codes.Code // of the next subscription
		resumed bool         // by the next handshake
	}{
		"its identity is denied": {deny(func(event) string { return "agent/cluster1" }), []codes.Code{codes.Unauthenticated}, true},
		"its certificate is denied": {deny(func(e event) string {
			cert, err := e.cert.TLS()
			if err != nil {
				e.t.Fatal(err)
			}
			return cert.Leaf.SerialNumber.Text(16)
		}), []codes.Code{codes.Unauthenticated}, true},
		"its certificate was issued too early": {func(e event) {
			if err := e.denied.Raise(e.t.Context(), map[string]time.Time{"cluster1": time.Now().Add(time.Hour)}); err != nil {
				e.t.Fatal(err)
			}
		}, []codes.Code{codes.Unauthenticated}, true},
		"its certificate expires": {func(e event) { e.passed.Store(int64(2 * time.Hour)) }, []codes.Code{codes.Unavailable}, true},
		// The client sends no certificate that the port cannot verify.
		"its CA is removed": {func(e event) { e.trust(e.a) }, []codes.Code{codes.Unauthenticated, codes.Unavailable}, false},
	} {
		t.Run(name, func(t *testing.T) {
			kept := mem.Open(mem.Options{NewID: testkit.NewIDs("store")})
			defer kept.Close()
			d := testkit.Denylist(t, kept)
			a, b := authority(t, "a"), authority(t, "b")
			s := open(t, d, a, b)
			cert := issue(t, b, agentOf("cluster1"), time.Hour)
			r := s.returns(a, cert)
			r.wants(false)
			sub, _ := r.wants(true)
			c.happens(event{s, d, a, cert})
			if _, err := sub.recv.Recv(); status.Code(err) != codes.Unavailable {
				t.Errorf("the resumed session: %v", err)
			}
			_, _, err := r.connect()
			if got := status.Code(err); got != c.want[0] && got != c.want[len(c.want)-1] || r.resumed.Load() != c.resumed {
				t.Errorf("the next connection: %v, resumed: %v", err, r.resumed.Load())
			}
		})
	}
}

// TestResumed_WithTheSameAuthorities checks that each change of the CAs needs a full handshake.
func TestResumed_WithTheSameAuthorities(t *testing.T) {
	a := authority(t, "a")
	s := open(t, nil, a)
	r := s.returns(a, issue(t, a, agentOf("cluster1"), long))
	r.wants(false)
	r.wants(true)
	s.trust(a, authority(t, "b"))
	r.until(false)
	r.wants(true)
}

// TestResumed_WithTheSameCertificate checks that a client with a renewed certificate resumes no session of the former
// one. Such a session would end with the former certificate.
func TestResumed_WithTheSameCertificate(t *testing.T) {
	a := authority(t, "a")
	s := open(t, nil, a)
	r := s.returns(a, issue(t, a, agentOf("cluster1"), time.Hour))
	r.wants(false)
	_, former := r.wants(true)
	r.files.serve(issue(t, a, agentOf("cluster1"), long))
	renewed := r.until(false)
	if !renewed.CertificateEnds.After(former.CertificateEnds) {
		t.Errorf("the certificate expires at %v, then at %v", former.CertificateEnds, renewed.CertificateEnds)
	}
	if _, p := r.wants(true); p.CertificateEnds != renewed.CertificateEnds {
		t.Errorf("the resumed session ends at %v, want %v", p.CertificateEnds, renewed.CertificateEnds)
	}
}

// TestResumed_BeforeOtherClients checks that a client with a ticket does not wait behind others of its address.
func TestResumed_BeforeOtherClients(t *testing.T) {
	a, now := authority(t, "a"), time.Now()
	s := openWith(t, func(c *grpc.Config) {
		c.HandshakesPerAddress = 1
		c.Now = func() time.Time { return now } // no handshake takes too long
		// The port that the front opens itself accepts a connection with its ClientHello, on Linux.
		c.Addr = c.Listener.Addr().String()
		if err := c.Listener.Close(); err != nil {
			t.Fatal(err)
		}
		c.Listener = nil
	}, a)
	s.until("the port is open", func() bool { return s.front.Ready() == nil })
	pair := issue(t, a, agentOf("cluster1"), long)
	r := s.returns(a, pair)
	r.wants(false)
	silent := openTCP(t, s.front.addr) // has the only handshake of the address
	if _, err := silent.Write([]byte{22}); err != nil {
		t.Fatal(err)
	}
	waits, served := openTCP(t, s.front.addr), make(chan error, 1)
	go func() { // the result is received below
		_, _, err := showing(t, a, pair).ClientHandshake(t.Context(), "127.0.0.1", waits)
		served <- err
	}()
	r.wants(true)
	select {
	case err := <-served:
		t.Fatalf("a client without a ticket came first: %v", err)
	default:
	}
	if err := silent.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-served; err != nil {
		t.Errorf("a client without a ticket, later: %v", err)
	}
}
