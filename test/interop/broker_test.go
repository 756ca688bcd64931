package interop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/listener"
	listengrpc "github.com/hawser-io/hawser/internal/broker/listener/grpc"
	listenmqtt "github.com/hawser-io/hawser/internal/broker/listener/mqtt"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/broker/tokens"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// The sources that every broker of these tests knows.
const (
	src1 = "src1"
	src2 = "src2"
)

// ourBroker is a running Hawser broker with a port on 127.0.0.1. The port uses mutual TLS, as deployed.
type ourBroker struct {
	*broker.Broker
	addr     string
	store    store.Store
	registry *prometheus.Registry
	// wire records every event at the port, in both directions.
	wire *journal[passed]
}

// startBroker starts a broker that runs until the test ends. configure may change its configuration.
func startBroker(t testing.TB, configure ...func(*broker.Config)) *ourBroker {
	t.Helper()
	b := &ourBroker{registry: prometheus.NewRegistry(), wire: newJournal("broker", passed.String)}
	cfg := broker.Config{
		Store:    mem.Open(mem.Options{NewID: testkit.NewIDs("store")}),
		Registry: b.registry, Log: slog.New(slog.DiscardHandler),
	}
	for _, f := range configure {
		f(&cfg)
	}
	b.store = cfg.Store
	var err error
	if b.Broker, err = broker.New(cfg); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.addr = l.Addr().String()
	overMQTT, err := listenmqtt.New(listenmqtt.Config{Server: testkit.Blocking{Server: tap{b.Broker, b.wire}}, Log: cfg.Log})
	if err != nil {
		t.Fatal(err)
	}
	bearers, err := b.tokens(cfg)
	if err != nil {
		t.Fatal(err)
	}
	tasks := []taskgroup.Task{{Name: "broker", Run: b.Run}, {Name: "mqtt", Run: overMQTT.Run}}
	if bearers != nil {
		tasks = append(tasks, taskgroup.Task{Name: "tokens", Run: bearers.Run})
	}
	front, err := listengrpc.New(listengrpc.Config{
		Config: listener.Config{
			Listener: l, Log: cfg.Log,
			Credentials: serverCredentials(t),
			Mapping:     testkit.Mapping(identity.Identity{Role: identity.Source, Name: src1}, identity.Identity{Role: identity.Source, Name: src2}),
			Tokens:      bearers,
		},
		Server: testkit.Blocking{Server: tap{b.Broker, b.wire}}, Other: overMQTT.Serve,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- taskgroup.Group(ctx, append(tasks, taskgroup.Task{Name: "port", Run: front.Run})...)
	}()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-done, b.store.Close()); err != nil {
			t.Errorf("broker: %v", err)
		}
		if t.Failed() {
			t.Logf("broker saw:\n%s", b.wire)
		}
	})
	return b
}

// tokens returns the verification of bootstrap tokens, nil without registration.
func (b *ourBroker) tokens(cfg broker.Config) (*tokens.Tokens, error) {
	if cfg.Registration == "" {
		return nil, nil //nolint:nilnil // none is taken
	}
	c := tokens.Config{Audiences: []string{"hawser"}}
	for _, account := range []string{joiner, otherJoiner} {
		c.Mapping = append(c.Mapping, tokens.Rule{User: userOf(account), Role: identity.Bootstrap})
	}
	all, err := tokens.New(tokens.Options{Config: c, Reviewer: b.Registration(), Log: cfg.Log})
	if err == nil {
		b.Registration().OnKeys(all.SetKeys)
	}
	return all, err
}

func serverCredentials(t testing.TB) credentials.TransportCredentials {
	t.Helper()
	cert, key := certify(t, pki.Broker, "broker")
	creds, err := identity.Files{CA: certs.CACert(), Cert: cert, Key: key}.Server(func(err error) { t.Errorf("certificates: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	return creds
}

// metric returns the value of a counter or gauge: the sum of the series with all these label values.
func (b *ourBroker) metric(t testing.TB, name string, labels ...string) float64 {
	t.Helper()
	families, err := b.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			has := 0
			for _, l := range m.GetLabel() {
				if slices.Contains(labels, l.GetValue()) {
					has++
				}
			}
			if has == len(labels) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// awaitMetric waits until a counter has reached a value.
func (b *ourBroker) awaitMetric(t testing.TB, atLeast float64, name string, labels ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s%v >= %v", name, labels, atLeast), func() bool { return b.metric(t, name, labels...) >= atLeast })
}

// Metrics that tests wait for.
const (
	resyncs       = "hawser_broker_resyncs_total"
	orphans       = "hawser_broker_orphan_works_total"
	subscriptions = "hawser_broker_subscriptions"
)

// passed is an event at a broker's port, without its data if that is large.
type passed struct {
	// sent is true for an event from the broker to a stream, false for a publish of peer.
	sent bool
	peer transport.Peer
	// stream is the id of the subscription on which the event was sent.
	stream  string
	event   codec.Event
	err     error // answer of the broker, or decoding error
	outcome string
}

func (p passed) String() string {
	if p.sent {
		return fmt.Sprintf("to %s/%s: %s %v", p.peer.Role, p.peer.Name, p.event.Type(), p.event.Extensions())
	}
	return fmt.Sprintf("from %s/%s: %s %v: %s %v", p.peer.Role, p.peer.Name, p.event.Type(), p.event.Extensions(), p.outcome, p.err)
}

// id returns the resource id of the event.
func (p passed) id() string { return extension(p.event, codec.ExtResourceID) }

func extension(e codec.Event, name string) string {
	v, _, err := codec.StringExtension(e, name)
	if err != nil {
		return err.Error()
	}
	return v
}

// published matches events of a kind ("spec.create_request") that a client published.
func published(kind string) func(passed) bool {
	return func(p passed) bool { return !p.sent && p.event.Type() == codec.ManifestBundles.String()+"."+kind }
}

// sentTo matches events about a work that the broker sent to a client.
func sentTo(role identity.Role, name, id string) func(passed) bool {
	return func(p passed) bool {
		return p.sent && p.peer.Role == string(role) && p.peer.Name == name && p.id() == id
	}
}

// tap records the events at a server: a publish after its answer, a sent event before it is sent.
type tap struct {
	transport.Server
	wire *journal[passed]
}

// large is the size, in bytes, above which data is not recorded.
const large = 4 << 10

// eventOf decodes an event for the record.
func eventOf(b []byte) (codec.Event, error) {
	e, err := codec.Unmarshal(b)
	if len(e.Data()) > large {
		e.DataEncoded = nil
	}
	return e, err
}

func (s tap) Publish(ctx context.Context, p transport.Peer, event []byte, subscriptionID string) (transport.Receipt, error) {
	e, decodeErr := eventOf(event)
	r, err := s.Server.Publish(ctx, p, event, subscriptionID)
	s.wire.add(passed{peer: p, event: e, outcome: r.Outcome, err: errors.Join(decodeErr, err)})
	return r, err
}

func (s tap) Subscribe(ctx context.Context, p transport.Peer, raw transport.RawSubscription, out transport.Stream) error {
	return s.Server.Subscribe(ctx, p, raw, &tappedStream{Stream: out, peer: p, wire: s.wire})
}

type tappedStream struct {
	transport.Stream
	peer transport.Peer
	id   string
	wire *journal[passed]
}

func (s *tappedStream) Accept(a transport.Accepted) error {
	s.id = a.SubscriptionID
	return s.Stream.Accept(a)
}

func (s *tappedStream) Send(parts ...[]byte) error {
	b := slices.Concat(parts...)
	if !codec.IsHeartbeat(b) {
		e, err := eventOf(b)
		s.wire.add(passed{sent: true, peer: s.peer, stream: s.id, event: e, err: err})
	}
	return s.Stream.Send(parts...)
}

// client is a connection to the broker that a test uses itself, to send events that no OCM program sends.
type client struct {
	transport.Conn
	t testing.TB
}

// connect returns a connection of an agent or a source.
func (b *ourBroker) connect(t testing.TB, role pki.Role, name string) *client {
	t.Helper()
	return connectTo(t, b.addr, role, name)
}

// connectTo connects to the broker at addr, a Hawser or an OCM one.
func connectTo(t testing.TB, addr string, role pki.Role, name string, edit ...func(*transportgrpc.Options)) *client {
	t.Helper()
	cert, key := certify(t, role, name)
	creds, err := identity.Files{CA: certs.CACert(), Cert: cert, Key: key}.Client("", func(err error) { t.Errorf("certificates: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	o := transportgrpc.Options{Target: addr, Credentials: creds, Log: slog.New(slog.DiscardHandler)}
	for _, f := range edit {
		f(&o)
	}
	d, err := transportgrpc.NewDialer(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := d.Dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &client{Conn: conn, t: t}
}

// publish publishes an event, which the broker must accept, and returns the outcome.
func (p *client) publish(e codec.Event) string {
	p.t.Helper()
	outcome, err := p.tryPublish(e)
	if err != nil {
		p.t.Fatalf("publish %s: %v", e.Type(), err)
	}
	return outcome
}

func (p *client) tryPublish(e codec.Event) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := p.Publish(ctx, e, "")
	return r.Outcome, err
}

// subscribe subscribes as an OCM client does, and returns the received events.
func (p *client) subscribe(f transport.Filter) *journal[codec.Event] {
	p.t.Helper()
	if f.DataType == (codec.DataType{}) {
		f.DataType = codec.ManifestBundles
	}
	events := newJournal("subscription", func(e codec.Event) string { return fmt.Sprintf("%s %v", e.Type(), e.Extensions()) })
	ctx, stop := context.WithCancel(context.Background())
	ready := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		events.end(p.Subscribe(ctx, transport.Subscription{Filter: f}, func(transport.Accepted) { close(ready) },
			func(_ context.Context, e codec.Event) error { events.add(e); return nil }))
	})
	p.t.Cleanup(func() { stop(); wg.Wait() })
	eventually(p.t, "the subscription", func() bool {
		select {
		case <-ready:
			return true
		default:
			return false
		}
	})
	return events
}

// about matches the events about one work.
func about(id string) func(codec.Event) bool {
	return func(e codec.Event) bool { return extension(e, codec.ExtResourceID) == id }
}
