package grpc_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/hawser-io/hawser/internal/broker/denylist"
	"github.com/hawser-io/hawser/internal/broker/listener/grpc"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/internal/testkit/syncbuffer"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// site is a port. A test can change its certificate files and its clock.
type site struct {
	t      *testing.T
	dir    string
	passed atomic.Int64 // time in nanoseconds by which the clock is ahead
	front  *front
	server *streams
	log    *syncbuffer.Buffer
}

// streams is a server for tests. Its subscriptions send an event on request, and its publishes last until their
// caller gives up.
type streams struct {
	mu   sync.Mutex
	last chan struct{}  // requests an event of the last subscription
	peer transport.Peer // of the last subscription
}

func (s *streams) server() server {
	return server{
		publish: func(ctx context.Context, _ transport.Peer, _ []byte, _ string) (transport.Receipt, error) {
			<-ctx.Done()
			return transport.Receipt{}, ctx.Err()
		},
		subscribe: func(ctx context.Context, p transport.Peer, _ transport.RawSubscription, out transport.Stream) error {
			events := make(chan struct{}, 1)
			s.mu.Lock()
			s.last, s.peer = events, p
			s.mu.Unlock()
			if err := out.Accept(transport.Accepted{SubscriptionID: "s"}); err != nil {
				return err
			}
			for {
				select {
				case <-events:
					if err := out.Send(nil); err != nil {
						return err
					}
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		},
	}
}

const long = 1000 * time.Hour

func authority(t *testing.T, name string) *pki.Authority {
	t.Helper()
	a, err := pki.NewAuthority(name, pki.Starting(time.Now(), long))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func issue(t *testing.T, a *pki.Authority, r pki.Request, valid time.Duration) pki.Pair {
	t.Helper()
	r.Valid = pki.Starting(time.Now(), valid)
	p, err := a.Issue(r)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// open opens the port with a certificate of the first authority, for clients with certificates of any of them.
func open(t *testing.T, d *denylist.List, trusted ...*pki.Authority) *site {
	t.Helper()
	return openWith(t, func(c *grpc.Config) { c.Denials = d }, trusted...)
}

// openWith is open with another configuration.
func openWith(t *testing.T, edit func(*grpc.Config), trusted ...*pki.Authority) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir(), server: &streams{}, log: &syncbuffer.Buffer{}}
	s.trust(trusted...)
	s.serve(issue(t, trusted[0], pki.Request{Role: pki.Broker, Name: "b", Hosts: []string{"127.0.0.1"}}, long))
	creds, err := identity.Files{CA: s.file("ca"), Cert: s.file("crt"), Key: s.file("key"), HubCA: s.file("agent-ca")}.Server(func(error) {}) // a key may be read before its certificate
	if err != nil {
		t.Fatal(err)
	}
	s.front = prepare(t, s.server.server(), func(c *grpc.Config) {
		c.Credentials, c.Log = creds, slog.New(slog.NewTextHandler(s.log, nil))
		c.Now = func() time.Time { return time.Now().Add(time.Duration(s.passed.Load())) }
		edit(c)
	})
	s.front.run(t)
	return s
}

func (s *site) file(name string) string { return filepath.Join(s.dir, name) }

func (s *site) write(name string, b []byte) {
	s.t.Helper()
	if err := errors.Join(os.WriteFile(s.file(name+".new"), b, 0o600), os.Rename(s.file(name+".new"), s.file(name))); err != nil {
		s.t.Fatal(err)
	}
}

// trust sets the CAs of accepted clients.
func (s *site) trust(all ...*pki.Authority) {
	s.t.Helper()
	var bundle []byte
	for _, a := range all {
		bundle = append(bundle, a.CertificatePEM()...)
	}
	s.write("ca", bundle)
}

func (s *site) serve(p pki.Pair) {
	s.write("key", p.KeyPEM)
	s.write("crt", p.CertPEM)
}

// showing returns the credentials of a client that has the certificate p and trusts the CA a.
func showing(t *testing.T, a *pki.Authority, p pki.Pair) credentials.TransportCredentials {
	t.Helper()
	c, err := p.TLS()
	if err != nil {
		t.Fatal(err)
	}
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: a.Pool(), Certificates: []tls.Certificate{c}})
}

// subscription is the subscription of an OCM agent.
type subscription struct {
	t      *testing.T
	s      *site
	cc     *ggrpc.ClientConn
	recv   cloudeventsv1.CloudEventService_SubscribeClient
	events chan<- struct{}
}

// subscribe subscribes on a connection of its own.
func (s *site) subscribe(creds credentials.TransportCredentials) *subscription {
	s.t.Helper()
	sub := &subscription{t: s.t, s: s, cc: dial(s.t, s.front.addr, creds)}
	if err := sub.again(); err != nil {
		s.t.Fatal(err)
	}
	return sub
}

// again subscribes again on the same ClientConn, as OCM clients do.
func (sub *subscription) again() error {
	sub.t.Helper()
	ctx, cancel := context.WithTimeout(sub.t.Context(), 30*time.Second)
	sub.t.Cleanup(cancel)
	recv, err := cloudeventsv1.NewCloudEventServiceClient(sub.cc).Subscribe(ctx, &cloudeventsv1.SubscriptionRequest{
		ClusterName: "cluster1", DataType: codec.ManifestBundles.String(),
	})
	if err != nil {
		return err
	}
	if md, err := recv.Header(); err != nil || len(md[codec.HeaderSubscriptionID]) == 0 {
		_, err := recv.Recv() // returns the reason
		return err
	}
	sub.s.server.mu.Lock()
	sub.recv, sub.events = recv, sub.s.server.last
	sub.s.server.mu.Unlock()
	return sub.alive()
}

// alive requests an event and receives it. It returns the error of the subscription, nil if the event arrives.
func (sub *subscription) alive() error {
	sub.events <- struct{}{}
	_, err := sub.recv.Recv()
	return err
}

// ended waits for the end of the subscription. After this end OCM clients must reconnect, and nothing may be
// received before it.
func (sub *subscription) ended(why string) {
	sub.t.Helper()
	if e, err := sub.recv.Recv(); status.Code(err) != codes.Unavailable {
		sub.t.Errorf("%s: %v, %v, want Unavailable", why, e, err)
	}
}

func agentOf(cluster string) pki.Request { return pki.Request{Role: pki.Agent, Name: cluster} }

// TestEnds_WithTheCertificate checks that streams and calls end when the certificate of their connection
// expires. Events after that are not delivered.
func TestEnds_WithTheCertificate(t *testing.T) {
	a := authority(t, "a")
	s := open(t, nil, a)
	sub := s.subscribe(showing(t, a, issue(t, a, agentOf("cluster1"), time.Hour)))
	other := s.subscribe(showing(t, a, issue(t, a, agentOf("cluster1"), long)))
	publishing := make(chan error, 1)
	go func() { // the result is received below
		_, err := cloudeventsv1.NewCloudEventServiceClient(sub.cc).Publish(context.Background(), &cloudeventsv1.PublishRequest{Event: &cloudeventsv1.CloudEvent{Id: "1"}})
		publishing <- err
	}()
	s.front.wantReserved(t, "a call beside two streams", func(_ int64, calls int) bool { return calls == 3 })

	s.passed.Store(int64(2 * time.Hour))
	sub.events <- struct{}{}
	sub.ended("after its NotAfter")
	if err := <-publishing; status.Code(err) != codes.Unavailable {
		t.Errorf("a call under way: %v", err)
	}
	if err := other.alive(); err != nil {
		t.Errorf("one whose certificate is good: %v", err)
	}
	if err := sub.again(); status.Code(err) != codes.Unavailable {
		t.Errorf("another attempt with the same certificate: %v", err)
	}
	s.logs(`reason=expired peer=agent/cluster1`)
}

// logs waits until the log has a text.
func (s *site) logs(text string) {
	s.t.Helper()
	s.until("the log has "+text, func() bool { return strings.Contains(s.log.String(), text) })
}

func (s *site) until(what string, is func() bool) {
	s.t.Helper()
	until(s.t, what, s.log, is)
}

// until waits until is returns true. If it never does, the test fails and shows the log.
func until(t *testing.T, what string, log fmt.Stringer, is func() bool) {
	t.Helper()
	late := time.After(30 * time.Second)
	for !is() {
		select {
		case <-late:
			t.Fatalf("not so: %s:\n%s", what, log)
		case <-time.After(time.Millisecond):
		}
	}
}

// TestEnds_WithItsAuthority checks that a change of the CAs ends the connections that they no longer cover;
// these clients cannot reconnect. Other connections stay.
func TestEnds_WithItsAuthority(t *testing.T) {
	a, b := authority(t, "a"), authority(t, "b")
	s := open(t, nil, a, b)
	stays := s.subscribe(showing(t, a, issue(t, a, agentOf("cluster1"), long)))
	goes := s.subscribe(showing(t, a, issue(t, b, agentOf("cluster1"), long)))
	s.trust(a)
	goes.ended("after its CA was taken out")
	if err := stays.alive(); err != nil {
		t.Errorf("one of the other CA: %v", err)
	}
	// The TLS library of the client sends no certificate that the server cannot verify, so the client connects
	// without one.
	if err := goes.again(); status.Code(err) != codes.Unavailable && status.Code(err) != codes.Unauthenticated {
		t.Errorf("another attempt: %v", err)
	}
	s.trust(a, b)
	s.until("it comes back with its CA", func() bool {
		s.passed.Add(int64(61 * time.Second)) // then the unidentified connection ends, and the client connects again
		return goes.again() == nil
	})
	s.logs(`reason=untrusted peer=agent/cluster1`)
}

// TestEnds_WithAge checks that each connection has a maximum age of its own.
func TestEnds_WithAge(t *testing.T) {
	a := authority(t, "a")
	s := open(t, nil, a)
	sub := s.subscribe(showing(t, a, issue(t, a, agentOf("cluster1"), long)))
	s.passed.Store(int64(5 * time.Hour))
	s.front.Look()
	if err := sub.alive(); err != nil {
		t.Fatalf("after 5 hours: %v", err)
	}
	s.passed.Store(int64(13 * time.Hour))
	sub.ended("after 13 hours")
	s.until("it comes back", func() bool { return sub.again() == nil })
}

// TestEnds_Denied checks that a denied client has no connection when the deny call returns. It gets the reason
// when it reconnects. After it is allowed, it can subscribe again, also on the ClientConn that an OCM client
// keeps.
func TestEnds_Denied(t *testing.T) {
	store := mem.Open(mem.Options{NewID: testkit.NewIDs("store")})
	defer store.Close()
	d := testkit.Denylist(t, store)
	a := authority(t, "a")
	s := open(t, d, a)
	pair := issue(t, a, agentOf("cluster1"), long)
	cert, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ subject, sent, hint string }{
		"the identity":    {"agent/cluster1", "agent/cluster1 is denied", "hawser allow agent/cluster1"},
		"its certificate": {cert.Leaf.SerialNumber.Text(16), "of agent/cluster1 is denied", "get another certificate"},
	} {
		first, other := s.subscribe(showing(t, a, pair)), s.subscribe(showing(t, a, issue(t, a, agentOf("cluster1"), long)))
		subject, err := denylist.ParseSubject(c.subject)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Deny(t.Context(), denylist.Denial{Subject: subject, At: time.Now()}); err != nil {
			t.Fatal(err)
		}
		first.events <- struct{}{}
		first.ended(name)
		if subject.Serial != "" {
			if err := other.alive(); err != nil {
				t.Errorf("%s: another one: %v", name, err)
			}
		} else {
			other.ended(name + ", another connection")
		}
		var refused *transport.Error
		s.until(name+": it gets the reason", func() bool {
			refused = transportgrpc.FromStatus(first.again())
			return refused != nil && refused.Code == transport.CodeUnauthenticated
		})
		if !strings.Contains(refused.Message, c.sent) || !strings.Contains(refused.Hint, c.hint) || !transport.Retryable(refused) {
			t.Errorf("%s: got %+v", name, refused)
		}
		if known, err := d.Allow(t.Context(), subject); !known || err != nil {
			t.Fatal(err)
		}
		s.passed.Add(int64(61 * time.Second))
		s.until(name+": it comes back", func() bool { return first.again() == nil })
		s.until("no unidentified connection is left", func() bool { return s.front.Unidentified() == 0 })
	}
}

// TestEnds_RenewedCertificate checks that a client whose certificate was renewed on its disk reconnects with
// the new one, as soon as the old one has expired.
func TestEnds_RenewedCertificate(t *testing.T) {
	a := authority(t, "a")
	s := open(t, nil, a)
	files := &site{t: t, dir: t.TempDir()}
	files.trust(a)
	files.serve(issue(t, a, agentOf("cluster1"), time.Hour))
	creds, err := identity.Files{CA: files.file("ca"), Cert: files.file("crt"), Key: files.file("key")}.Client("", func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	accepted, ended := make(chan string, 16), make(chan error, 1)
	connected := session.New(session.Config{
		Dialer:  dialer(t, transportgrpc.Options{Target: s.front.addr, Credentials: creds}),
		Filter:  transport.Filter{Cluster: "cluster1", DataType: codec.ManifestBundles},
		Handler: clientFunc(func() { accepted <- "" }), Backoff: session.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond},
		Log: slog.New(slog.DiscardHandler),
	})
	ctx, stop := context.WithCancel(context.Background())
	go func() { ended <- connected.Run(ctx) }() // the result is received below
	<-accepted
	files.serve(issue(t, a, agentOf("cluster1"), long))
	s.passed.Store(int64(2 * time.Hour))
	<-accepted
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// clientFunc is a session handler that is called when the client has subscribed.
type clientFunc func()

func (clientFunc) Hello() transport.Hello { return transport.Hello{Protocol: transport.Protocol} }
func (p clientFunc) Subscribed(context.Context, transport.Accepted) ([]codec.Event, error) {
	p()
	return nil, nil
}
func (clientFunc) Handle(context.Context, codec.Event) error { return nil }
func (clientFunc) Disconnected(error)                        {}

// TestEnds_OwnCertificate checks that an expired certificate of the port is logged once.
func TestEnds_OwnCertificate(t *testing.T) {
	a := authority(t, "a")
	s := open(t, nil, a)
	p := issue(t, a, pki.Request{Role: pki.Broker, Name: "b", Hosts: []string{"127.0.0.1"}}, -time.Minute)
	s.serve(p)
	s.logs("agents and sources cannot connect")
	s.front.Look()
	if n := strings.Count(s.log.String(), "agents and sources cannot connect"); n != 1 {
		t.Errorf("logged %d times", n)
	}
}
