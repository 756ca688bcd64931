package grpc_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hawser-io/hawser/internal/broker/audit"
	"github.com/hawser-io/hawser/internal/broker/denylist"
	"github.com/hawser-io/hawser/internal/broker/listener/grpc"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/broker/tokens"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/internal/testkit/syncbuffer"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// accounts is a hub that reviews tokens.
type accounts struct {
	mu      sync.Mutex
	known   map[string]*hawserv1.TokenReviewResult
	reviews int
	hold    chan struct{} // if not nil, answers wait until it is closed
}

func (a *accounts) Review(ctx context.Context, text string, _ []string) (*hawserv1.TokenReviewResult, error) {
	a.mu.Lock()
	a.reviews++
	hold := a.hold
	a.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.known[text]; r != nil {
		return r, nil
	}
	return &hawserv1.TokenReviewResult{}, nil
}

// add adds the token of a user to the hub, and returns it.
func (a *accounts) add(text, user string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known[text] = &hawserv1.TokenReviewResult{Authenticated: true, User: user, Audiences: []string{"hawser"}}
	return text
}

func (a *accounts) forget(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.known, text)
}

func (a *accounts) times() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reviews
}

const accountOf = "system:serviceaccount:ns:"

// bearers is the issuer and the accounts of a hub, and the Tokens of a broker that uses this hub.
type bearers struct {
	*tokens.Tokens
	*accounts
	issuer *testkit.Issuer
	passed atomic.Int64 // time in nanoseconds by which the clock is ahead
}

// newBearers maps each account of namespace ns to the role in its name, and to the name me.
func newBearers(t testing.TB, more ...tokens.Rule) *bearers {
	t.Helper()
	b := &bearers{accounts: &accounts{known: map[string]*hawserv1.TokenReviewResult{}}, issuer: testkit.NewIssuer(t, "https://hub.example")}
	rules := append(more, tokens.Rule{User: accountOf + "bootstrap", Role: identity.Bootstrap})
	for _, r := range []identity.Role{identity.Source, identity.Operator, identity.Viewer} {
		rules = append(rules, tokens.Rule{User: accountOf + string(r), Role: r, Name: "me"})
	}
	var err error
	if b.Tokens, err = tokens.New(tokens.Options{
		Config: tokens.Config{Audiences: []string{"hawser"}, Mapping: rules}, Reviewer: b.accounts, Log: slog.New(slog.DiscardHandler), Now: b.now,
	}); err != nil {
		t.Fatal(err)
	}
	b.SetKeys(&hawserv1.RegistrationKeys{Issuer: b.issuer.Name, Jwks: b.issuer.Keys()})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }() // the result is received below
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b *bearers) now() time.Time { return time.Now().Add(time.Duration(b.passed.Load())) }

// token returns a token of an account that the hub knows.
func (b *bearers) token(name string) string {
	return b.add(b.issuer.Token("ns", name, nil), accountOf+name)
}

// bearing is a token that is sent with each call.
type bearing string

func (b bearing) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (bearing) RequireTransportSecurity() bool { return true }

// dialBearing opens a connection whose calls bring a token.
func dialBearing(t testing.TB, addr string, ca *testkit.CA, text string) *ggrpc.ClientConn {
	t.Helper()
	cc, err := ggrpc.NewClient(addr, ggrpc.WithTransportCredentials(ca.Anonymous()), ggrpc.WithPerRPCCredentials(bearing(text)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cc.Close(); err != nil {
			t.Error(err)
		}
	})
	return cc
}

// port is a front that accepts tokens.
type port struct {
	*front
	*bearers
	ca    *testkit.CA
	audit *syncbuffer.Buffer
	peers chan transport.Peer // the publishers

	registry *prometheus.Registry
}

// endedFor returns the number of connections that the port ended for a reason.
func (p *port) endedFor(reason string) (n float64) {
	families, err := p.registry.Gather()
	if err != nil {
		panic(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "hawser_listener_ended_connections_total" && m.GetLabel()[0].GetValue() == reason {
				n = m.GetCounter().GetValue()
			}
		}
	}
	return n
}

func openBearing(t *testing.T, d *denylist.List) *port {
	t.Helper()
	p := &port{bearers: newBearers(t), ca: testkit.NewCA(t), audit: &syncbuffer.Buffer{}, peers: make(chan transport.Peer, 100), registry: prometheus.NewRegistry()}
	stream := audit.New(audit.All, p.audit, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(context.Background())
	written := make(chan struct{})
	go func() { stream.Run(ctx); close(written) }() // the result is received below
	t.Cleanup(func() { stop(); <-written })
	s := server{
		publish: func(_ context.Context, peer transport.Peer, _ []byte, _ string) (transport.Receipt, error) {
			p.peers <- peer
			return transport.Receipt{}, nil
		},
		subscribe: func(ctx context.Context, _ transport.Peer, _ transport.RawSubscription, out transport.Stream) error {
			if err := out.Accept(transport.Accepted{SubscriptionID: "s"}); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		},
	}
	p.front = start(t, s, func(c *grpc.Config) {
		c.Config.Credentials, c.Config.Tokens, c.Config.Audit, c.Config.Denials, c.Config.Now = p.ca.Server(), p.Tokens, stream, d, p.now
		c.Registry = p.registry
		c.Mapping = testkit.Mapping(source1, operator, viewer)
	})
	return p
}

// sends waits until the audit stream contains all texts.
func (p *port) sends(t *testing.T, all ...string) {
	t.Helper()
	until(t, strings.Join(all, ", "), p.audit, func() bool {
		return !slices.ContainsFunc(all, func(s string) bool { return !strings.Contains(p.audit.String(), s) })
	})
}

func publishTo(ctx context.Context, cc *ggrpc.ClientConn) error {
	_, err := cloudeventsv1.NewCloudEventServiceClient(cc).Publish(ctx, &cloudeventsv1.PublishRequest{Event: &cloudeventsv1.CloudEvent{Id: "1"}})
	return err
}

// subscribed opens a subscription. The channel receives the error with which it ends.
func subscribed(t *testing.T, cc *ggrpc.ClientConn) (ended chan error) {
	t.Helper()
	stream, err := cloudeventsv1.NewCloudEventServiceClient(cc).Subscribe(t.Context(), &cloudeventsv1.SubscriptionRequest{})
	if err == nil {
		_, err = stream.Header()
	}
	if err != nil {
		t.Fatal(err)
	}
	ended = make(chan error, 1)
	go func() { // ends with the test's context
		_, err := stream.Recv()
		ended <- err
	}()
	return ended
}

// TestTokens_NameTheAccount checks that the account is known at the server, in the audit stream and in the
// metrics.
func TestTokens_NameTheAccount(t *testing.T) {
	p := openBearing(t, nil)
	text := p.token("source")
	cc := dialBearing(t, p.addr, p.ca, text)
	for range 2 {
		if err := publishTo(t.Context(), cc); err != nil {
			t.Fatal(err)
		}
		peer := <-p.peers
		if peer.Role != "source" || peer.Name != "me" || peer.User != accountOf+"source" || !peer.CertificateEnds.IsZero() {
			t.Errorf("%+v", peer)
		}
	}
	if p.times() != 1 {
		t.Errorf("the hub got %d reviews", p.times())
	}
	if n := p.Connections(identity.Source); n != 1 || p.Unidentified() != 0 {
		t.Errorf("%d connections, %d unidentified", n, p.Unidentified())
	}
	p.sends(t, `"event":"connected"`, `"identity":"source/me"`, `"account":"`+accountOf+`source"`)
	if strings.Contains(p.audit.String(), text) || strings.Contains(p.audit.String(), "eyJ") {
		t.Error("the audit stream contains the token")
	}
}

// TestTokens_WaitForTheHub checks that calls of any kind wait while the hub reviews the token, and have no
// effect before the answer.
func TestTokens_WaitForTheHub(t *testing.T) {
	p := openBearing(t, nil)
	p.hold = make(chan struct{})
	cc := dialBearing(t, p.addr, p.ca, p.token("source"))
	denied := make(chan error, 1)
	done := make(chan error, 14)
	for range cap(done) / 2 {
		go func() { done <- publishTo(t.Context(), cc) }() // the result is received below
		go func() {                                        // the result is received below
			_, err := grpc_health_v1.NewHealthClient(cc).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
			done <- err
		}()
	}
	reads := dialBearing(t, p.addr, p.ca, p.token("viewer"))
	go func() { denied <- publishTo(t.Context(), reads) }() // the result is received below
	until(t, "the calls", p.audit, func() bool { _, calls := p.Reserved(); return calls == cap(done)+1 })
	if len(done) > 0 || len(p.peers) > 0 {
		t.Error("a call was answered before its client was identified")
	}
	close(p.hold)
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if err := <-denied; status.Code(err) != codes.PermissionDenied {
		t.Errorf("what a viewer may not: %v", err)
	}
	until(t, "the end of the calls", p.audit, func() bool { bodies, calls := p.Reserved(); return bodies == 0 && calls == 0 })
}

// TestTokens_WaitingIsBounded checks that the broker keeps only few calls and bytes of an unidentified client.
func TestTokens_WaitingIsBounded(t *testing.T) {
	p := openBearing(t, nil)
	p.hold = make(chan struct{})
	defer close(p.hold)
	cc := dialBearing(t, p.addr, p.ca, p.token("source"))
	large := &cloudeventsv1.PublishRequest{Event: &cloudeventsv1.CloudEvent{Id: "1", Data: &cloudeventsv1.CloudEvent_BinaryData{BinaryData: make([]byte, 4<<20)}}}
	_, err := cloudeventsv1.NewCloudEventServiceClient(cc).Publish(t.Context(), large)
	if status.Code(err) != codes.Unavailable {
		t.Errorf("4 MiB: %v", err)
	}
	// p.hold delays all calls until the end of the test. The client can see the end of its connection before the
	// port counts it.
	until(t, "a connection that is ended for 4 MiB", p.audit, func() bool { return p.endedFor("bodies") == 1 })
	until(t, "what was held", p.audit, func() bool { bodies, _ := p.Reserved(); return bodies == 0 })
	second := dialBearing(t, p.addr, p.ca, p.token("source"))
	refused := make(chan error, 60)
	ctx, cancel := context.WithCancel(t.Context())
	for range cap(refused) {
		go func() { refused <- publishTo(ctx, second) }() // the result is received below
	}
	overloaded := 0
	for range cap(refused) - 16 {
		if status.Code(<-refused) == codes.ResourceExhausted {
			overloaded++
		}
	}
	if overloaded != cap(refused)-16 {
		t.Errorf("%d of %d calls are refused", overloaded, cap(refused))
	}
	cancel()
	for range 16 {
		if err := <-refused; err == nil {
			t.Error("a call was answered after its caller left")
		}
	}
}

func TestTokens_Refused(t *testing.T) {
	p := openBearing(t, nil)
	claim := func(key string, to any) string {
		return p.add(p.issuer.Token("ns", "operator", func(c map[string]any) { c[key] = to }), accountOf+"operator")
	}
	for name, text := range map[string]string{
		"empty": "", "no token": "x", "unmapped": p.token("anonymous"), "not known to the hub": p.issuer.Token("ns", "operator", nil),
		"expired": claim("exp", time.Now().Add(-time.Hour).Unix()), "other audience": claim("aud", "other"), "other issuer": claim("iss", "https://other.example"),
		"opaque": "abcdef.0123456789abcdef", "several": p.token("source") + ", Bearer " + p.token("source"),
	} {
		err := publishTo(t.Context(), dialBearing(t, p.addr, p.ca, text))
		if status.Code(err) != codes.Unauthenticated || len(text) > 20 && strings.Contains(err.Error(), text[20:]) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(p.peers) > 0 {
		t.Error("a call was accepted")
	}
	if n := p.Connections(identity.Operator); n != 0 {
		t.Errorf("%d connections are an operator's", n)
	}
}

// TestTokens_OneIdentity checks that a connection keeps the identity of its first token.
func TestTokens_OneIdentity(t *testing.T) {
	p := openBearing(t, nil)
	cc := dial(t, p.addr, p.ca.Anonymous())
	call := func(text string) error {
		ctx := t.Context()
		if text != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "bearer "+text)
		}
		return publishTo(ctx, cc)
	}
	first, other := p.token("source"), p.token("bootstrap")
	later := p.add(p.issuer.Token("ns", "source", func(c map[string]any) { c["exp"] = time.Now().Add(2 * time.Hour).Unix() }), accountOf+"source")
	for _, c := range []struct {
		text string
		want codes.Code
	}{
		{"", codes.Unauthenticated}, {"x", codes.Unauthenticated}, {first, codes.OK}, {first, codes.OK}, {"", codes.Unauthenticated},
		{other, codes.Unauthenticated}, {later, codes.OK}, {later, codes.OK}, {"abcdef.0123456789abcdef", codes.Unauthenticated}, {first, codes.OK},
	} {
		if err := call(c.text); status.Code(err) != c.want {
			t.Errorf("%.8s: %v, want %v", c.text, err, c.want)
		}
	}
	// If a certificate gives an identity, the token is ignored.
	cc = dial(t, p.addr, p.ca.Client(source1))
	for len(p.peers) > 0 {
		<-p.peers
	}
	for _, text := range []string{"", first, "x"} {
		if err := call(text); err != nil {
			t.Errorf("beside a certificate: %v", err)
		} else if peer := <-p.peers; peer.Name != source1.Name || peer.CertificateEnds.IsZero() || !strings.Contains(peer.User, source1.Name) {
			t.Errorf("%+v", peer)
		}
	}
	// An unmapped certificate has no effect on the token.
	cc = dial(t, p.addr, p.ca.Client(identity.Identity{Role: identity.Source, Name: "unmapped"}))
	if err := call(""); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "unmapped") {
		t.Error(err)
	}
	if err := call(first); err != nil {
		t.Error(err)
	}
}

// TestTokens_End checks that a connection ends when its token expires, and when its account is deleted.
func TestTokens_End(t *testing.T) {
	for name, end := range map[string]func(*port, string){
		"expired": func(p *port, _ string) { p.passed.Store(int64(20 * time.Minute)) },
		"revoked": func(p *port, text string) { p.forget(text); p.passed.Store(int64(2 * time.Minute)) },
		"denied":  func(*port, string) {}, // the denylist is used below
	} {
		t.Run(name, func(t *testing.T) {
			d := testkit.Denylist(t, mem.Open(mem.Options{NewID: testkit.NewIDs("store")}))
			p := openBearing(t, d)
			text := p.add(p.issuer.Token("ns", "source", func(c map[string]any) { c["exp"] = time.Now().Add(10 * time.Minute).Unix() }), accountOf+"source")
			ended := subscribed(t, dialBearing(t, p.addr, p.ca, text))
			other := subscribed(t, dial(t, p.addr, p.ca.Client(source1)))
			end(p, text)
			if name == "denied" {
				subject := denylist.Subject{Identity: identity.Identity{Role: identity.Source, Name: "me"}}
				if err := d.Deny(t.Context(), denylist.Denial{Subject: subject, At: time.Now()}); err != nil {
					t.Fatal(err)
				}
			}
			select {
			case err := <-ended:
				if status.Code(err) != codes.Unavailable {
					t.Error(err)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("the connection stays")
			}
			p.sends(t, `"event":"ended"`, `"reason":"`+name+`"`)
			err := publishTo(t.Context(), dialBearing(t, p.addr, p.ca, text))
			if status.Code(err) != codes.Unauthenticated {
				t.Errorf("publish with the deleted account: %v, want Unauthenticated", err)
			}
			select {
			case err := <-other:
				t.Errorf("the connection of another account ended: %v", err)
			default:
			}
		})
	}
}

// TestTokens_Attempts checks that an address with many bad tokens has to wait, and others do not.
func TestTokens_Attempts(t *testing.T) {
	p := openBearing(t, nil)
	good := dialBearing(t, p.addr, p.ca, p.token("source"))
	if err := publishTo(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	var last error
	for n := 0; n < 400 && status.Code(last) != codes.ResourceExhausted; n++ {
		cc, err := ggrpc.NewClient(p.addr, ggrpc.WithTransportCredentials(p.ca.Anonymous()), ggrpc.WithPerRPCCredentials(bearing(p.issuer.Token("ns", "operator", nil))))
		if err != nil {
			t.Fatal(err)
		}
		last = publishTo(t.Context(), cc)
		if err := cc.Close(); err != nil {
			t.Error(err)
		}
		if status.Code(last) == codes.Unavailable {
			break // the port rejects even the handshake
		}
	}
	if code := status.Code(last); code != codes.ResourceExhausted && code != codes.Unavailable {
		t.Errorf("after many: %v", last)
	}
	if n := p.times(); n > 300 {
		t.Errorf("the hub got %d reviews", n)
	}
	if err := publishTo(t.Context(), good); err != nil {
		t.Errorf("an identified client: %v", err)
	}
}

// TestTokens_UnknownTokens checks that the port ends connections without a certificate and a token, to make
// space for those with a token.
func TestTokens_UnknownTokens(t *testing.T) {
	p := openBearing(t, nil)
	var idle []*wire
	for range 60 {
		idle = append(idle, openWire(t, p.addr, p.ca.Anonymous()))
	}
	if err := publishTo(t.Context(), dialBearing(t, p.addr, p.ca, p.token("source"))); err != nil {
		t.Errorf("beside %d unidentified connections: %v", len(idle), err)
	}
}
