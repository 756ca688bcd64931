package grpc_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.uber.org/goleak"
	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hawser-io/hawser/internal/broker/authz"
	"github.com/hawser-io/hawser/internal/broker/listener"
	"github.com/hawser-io/hawser/internal/broker/listener/grpc"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/internal/testkit/syncbuffer"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	"github.com/hawser-io/hawser/pkg/transport/transporttest"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	agent1   = identity.Identity{Role: identity.Agent, Name: "cluster1"}
	source1  = identity.Identity{Role: identity.Source, Name: "source1"}
	operator = identity.Identity{Role: identity.Operator, Name: "olga"}
	viewer   = identity.Identity{Role: identity.Viewer, Name: "vera"}
)

// TestContract checks that the promises of package transport hold for this server and the client that agents
// and sources use.
func TestContract(t *testing.T) {
	t.Run("TLS", func(t *testing.T) {
		ca := testkit.NewCA(t)
		transporttest.Run(t, func(t *testing.T, s transport.Server) transporttest.Fixture {
			f := start(t, s, func(c *grpc.Config) { c.Credentials = ca.Server() })
			d := dialer(t, transportgrpc.Options{Target: f.addr, Credentials: ca.Client(agent1)})
			return transporttest.Fixture{Dialer: d, Peer: transport.Peer{Role: "agent", Name: "cluster1"}, Cut: f.cut}
		})
	})
	t.Run("plaintext", func(t *testing.T) {
		transporttest.Run(t, func(t *testing.T, s transport.Server) transporttest.Fixture {
			f := start(t, s, func(c *grpc.Config) { c.Insecure = true })
			return transporttest.Fixture{Dialer: dialer(t, transportgrpc.Options{Target: f.addr, Insecure: true}), Cut: f.cut}
		})
	})
}

func dialer(t *testing.T, o transportgrpc.Options) transport.Dialer {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	d, err := transportgrpc.NewDialer(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// front is a running Front.
type front struct {
	*grpc.Front
	addr   string
	cut    func()
	stop   context.CancelFunc
	ended  chan error
	panics chan struct{}
}

// start runs a front on a free port until the test ends.
func start(t *testing.T, s transport.Server, edit func(*grpc.Config)) *front {
	t.Helper()
	f := prepare(t, s, edit)
	f.run(t)
	return f
}

// prepare makes a front that does not run yet.
func prepare(t *testing.T, s transport.Server, edit func(*grpc.Config)) *front {
	t.Helper()
	l := freePort(t)
	var err error
	tracked := &trackedListener{Listener: l}
	f := &front{addr: l.Addr().String(), cut: tracked.cut, ended: make(chan error, 1), panics: make(chan struct{}, 8)}
	cfg := grpc.Config{
		Config: listener.Config{Listener: tracked, Log: slog.New(slog.DiscardHandler), Mapping: testkit.Mapping(source1, operator, viewer)},
		Server: testkit.Blocking{Server: s}, DrainTimeout: 10 * time.Second,
		OnPanic: func() { f.panics <- struct{}{} },
	}
	edit(&cfg)
	if f.Front, err = grpc.New(cfg); err != nil {
		t.Fatal(err)
	}
	return f
}

// run runs the front until the test ends.
func (f *front) run(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	go func() { f.ended <- f.Run(ctx); close(f.ended) }() // the result is received below
	t.Cleanup(func() {
		stop()
		if err := <-f.ended; err != nil {
			t.Errorf("front: %v", err)
		}
	})
}

// freePort listens on a free port.
func freePort(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// trackedListener records the connections that it accepted.
type trackedListener struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (l *trackedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		l.conns = append(l.conns, c)
		l.mu.Unlock()
	}
	return c, err
}

func (l *trackedListener) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.Close() // an error means: the peer has closed it
	}
	l.conns = nil
}

// dial opens a gRPC connection as OCM clients do.
func dial(t testing.TB, addr string, creds credentials.TransportCredentials) *ggrpc.ClientConn {
	t.Helper()
	cc, err := ggrpc.NewClient(addr, ggrpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cc.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return cc
}

// server is a transport.Server made of two functions.
type server struct {
	publish   func(context.Context, transport.Peer, []byte, string) (transport.Receipt, error)
	subscribe func(context.Context, transport.Peer, transport.RawSubscription, transport.Stream) error
}

func (s server) Publish(ctx context.Context, p transport.Peer, e []byte, id string) (transport.Receipt, error) {
	return s.publish(ctx, p, e, id)
}

func (s server) Subscribe(ctx context.Context, p transport.Peer, r transport.RawSubscription, out transport.Stream) error {
	return s.subscribe(ctx, p, r, out)
}

func (c *client) publish(t *testing.T, e *cloudeventsv1.CloudEvent) error {
	t.Helper()
	_, err := c.Publish(t.Context(), &cloudeventsv1.PublishRequest{Event: e})
	return err
}

type client struct {
	cloudeventsv1.CloudEventServiceClient
}

func ocmClient(cc *ggrpc.ClientConn) *client {
	return &client{cloudeventsv1.NewCloudEventServiceClient(cc)}
}

// TestFront_OCMClientSeesNothingOfHawser checks that the Subscribe of an OCM client gets one Hawser header, and
// only events that the server sends.
func TestFront_OCMClientSeesNothingOfHawser(t *testing.T) {
	f := start(t, server{subscribe: func(_ context.Context, _ transport.Peer, r transport.RawSubscription, out transport.Stream) error {
		if r.Hello != (transport.Hello{}) {
			t.Errorf("hello of an OCM client: %+v", r.Hello)
		}
		if err := out.Accept(transport.Accepted{SubscriptionID: "s1"}); err != nil {
			return err
		}
		return out.Send(codec.Heartbeat("a"), nil)
	}}, func(c *grpc.Config) { c.Insecure = true })
	stream, err := ocmClient(dial(t, f.addr, insecure.NewCredentials())).Subscribe(t.Context(), &cloudeventsv1.SubscriptionRequest{ClusterName: "c"})
	if err != nil {
		t.Fatal(err)
	}
	header, err := stream.Header()
	if err != nil {
		t.Fatal(err)
	}
	if id := header.Get(codec.HeaderSubscriptionID); len(id) != 1 || id[0] != "s1" {
		t.Errorf("subscription-id is %q", id)
	}
	for _, h := range []string{codec.HeaderProtocol, codec.HeaderResync, codec.HeaderMaxEventBytes} {
		if v := header.Get(h); len(v) != 0 {
			t.Errorf("header %s: %q", h, v)
		}
	}
	e, err := stream.Recv()
	if err != nil || e.GetType() != codec.TypeHeartbeat || e.GetId() != "a" {
		t.Errorf("first event: %v, %v", e, err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("end of the stream: %v", err)
	}
}

// TestFront_OtherVersionIsAnOCMClient: a client of another version of Hawser's extensions is served as a
// client of OCM. Each client may ask for fewer heartbeats.
func TestFront_OtherVersionIsAnOCMClient(t *testing.T) {
	hellos := make(chan transport.Hello, 1)
	f := start(t, server{subscribe: func(_ context.Context, _ transport.Peer, r transport.RawSubscription, out transport.Stream) error {
		hellos <- r.Hello
		return out.Accept(transport.Accepted{SubscriptionID: "s1"})
	}}, func(c *grpc.Config) { c.Insecure = true })
	for headers, want := range map[[2]string]transport.Hello{
		{"1"}: {}, {"2"}: {Protocol: transport.Protocol, Cursor: "e/t/1"}, {"3"}: {}, {""}: {},
		{"", "60"}:         {Heartbeat: time.Minute},
		{"2", "20"}:        {Protocol: transport.Protocol, Cursor: "e/t/1", Heartbeat: 20 * time.Second},
		{"", "-1"}:         {},
		{"", "1m"}:         {},
		{"", "9999999999"}: {Heartbeat: 65535 * time.Second}, // the broker bounds it
	} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), codec.HeaderProtocol, headers[0], codec.HeaderCursor, "e/t/1", codec.HeaderHeartbeat, headers[1])
		stream, err := ocmClient(dial(t, f.addr, insecure.NewCredentials())).Subscribe(ctx, &cloudeventsv1.SubscriptionRequest{ClusterName: "c"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("headers %q: %v", headers, err)
		}
		if got := <-hellos; got != want {
			t.Errorf("headers %q: %+v, want %+v", headers, got, want)
		}
	}
}

// TestFront_PublishRequests checks malformed and unusual requests. The event is the one that a protobuf library
// would decode.
func TestFront_PublishRequests(t *testing.T) {
	var got []byte
	f := start(t, server{publish: func(_ context.Context, _ transport.Peer, e []byte, _ string) (transport.Receipt, error) {
		got = e
		return transport.Receipt{Outcome: "accepted"}, nil
	}}, func(c *grpc.Config) { c.Insecure = true })
	cc := dial(t, f.addr, insecure.NewCredentials())
	for name, c := range map[string]struct {
		request []byte
		want    string
		code    codes.Code
	}{
		"an event":          {[]byte("\x0a\x03\x0a\x01a"), "\x0a\x01a", codes.OK},
		"an empty event":    {[]byte("\x0a\x00"), "", codes.OK},
		"no event":          {nil, "", codes.InvalidArgument},
		"unknown fields":    {[]byte("\x10\x07\x0a\x03\x0a\x01a\x12\x01x"), "\x0a\x01a", codes.OK},
		"in two pieces":     {[]byte("\x0a\x03\x0a\x01a\x0a\x03\x12\x01b"), "\x0a\x01a\x12\x01b", codes.OK},
		"wrong wire type":   {[]byte("\x08\x01"), "", codes.InvalidArgument},
		"broken tag":        {[]byte("\xff"), "", codes.Internal},
		"broken length":     {[]byte("\x0a\x7fa"), "", codes.Internal},
		"broken other data": {[]byte("\x12\x7fa"), "", codes.Internal},
	} {
		got = nil
		var trailer metadata.MD
		err := cc.Invoke(t.Context(), cloudeventsv1.CloudEventService_Publish_FullMethodName, c.request, &[]byte{},
			ggrpc.ForceCodec(bytesCodec{}), ggrpc.Trailer(&trailer))
		if status.Code(err) != c.code {
			t.Errorf("%s: %v, want code %v", name, err, c.code)
		}
		if string(got) != c.want {
			t.Errorf("%s: event %q, want %q", name, got, c.want)
		}
		if o := trailer.Get(codec.HeaderOutcome); err == nil && (len(o) != 1 || o[0] != "accepted") {
			t.Errorf("%s: outcome %q", name, o)
		}
	}
}

// bytesCodec sends and receives messages as bytes, without encoding.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) ([]byte, error)   { return v.([]byte), nil }
func (bytesCodec) Unmarshal(b []byte, v any) error { *v.(*[]byte) = b; return nil }
func (bytesCodec) Name() string                    { return "proto" }

func TestFront_TooLargeMessage(t *testing.T) {
	f := start(t, server{}, func(c *grpc.Config) { c.Insecure, c.MaxMessageBytes = true, 1000 })
	err := ocmClient(dial(t, f.addr, insecure.NewCredentials())).publish(t, &cloudeventsv1.CloudEvent{Id: string(make([]byte, 2000))})
	if transport.CodeOf(transportgrpc.FromStatus(err)) != transport.CodeTooLarge {
		t.Errorf("got %v, want code too large", err)
	}
}

// TestFront_DeadlineOfPublish checks that a call without a deadline gets one.
func TestFront_DeadlineOfPublish(t *testing.T) {
	deadlines := make(chan time.Duration, 1)
	f := start(t, server{publish: func(ctx context.Context, _ transport.Peer, _ []byte, _ string) (transport.Receipt, error) {
		d, ok := ctx.Deadline()
		if !ok {
			d = time.Now().Add(time.Hour)
		}
		deadlines <- time.Until(d)
		return transport.Receipt{}, nil
	}}, func(c *grpc.Config) { c.Insecure, c.PublishTimeout = true, time.Minute })
	c := ocmClient(dial(t, f.addr, insecure.NewCredentials()))
	if err := c.publish(t, &cloudeventsv1.CloudEvent{Id: "1"}); err != nil {
		t.Fatal(err)
	}
	if d := <-deadlines; d <= 0 || d > time.Minute {
		t.Errorf("deadline in %v, want a minute", d)
	}
}

// TestFront_PanicIsAnAnswer checks that a call that panics gets an error, and that the next call works.
func TestFront_PanicIsAnAnswer(t *testing.T) {
	f := start(t, server{
		publish: func(context.Context, transport.Peer, []byte, string) (transport.Receipt, error) { panic("publish") },
		subscribe: func(context.Context, transport.Peer, transport.RawSubscription, transport.Stream) error {
			panic("subscribe")
		},
	}, func(c *grpc.Config) { c.Insecure = true })
	c := ocmClient(dial(t, f.addr, insecure.NewCredentials()))
	for range 2 {
		err := c.publish(t, &cloudeventsv1.CloudEvent{Id: "1"})
		e := transportgrpc.FromStatus(err)
		if transport.CodeOf(e) != transport.CodeInternal || e.Next != transport.NextBackOff || e.Delay <= 0 {
			t.Errorf("publish: %v", err)
		}
		<-f.panics
		stream, err := c.Subscribe(t.Context(), &cloudeventsv1.SubscriptionRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != codes.Internal {
			t.Errorf("subscribe: %v", err)
		}
		<-f.panics
	}
}

// TestFront_Drain checks a drain: health changes, new calls are rejected, and running calls may end. Calls that
// still run after the timeout are cut.
func TestFront_Drain(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	f := start(t, server{
		publish: func(context.Context, transport.Peer, []byte, string) (transport.Receipt, error) {
			close(entered)
			<-release
			return transport.Receipt{}, nil
		},
		subscribe: func(ctx context.Context, _ transport.Peer, _ transport.RawSubscription, out transport.Stream) error {
			if err := out.Accept(transport.Accepted{SubscriptionID: "s"}); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		},
	}, func(c *grpc.Config) { c.Insecure, c.DrainTimeout = true, 2*time.Second })
	cc := dial(t, f.addr, insecure.NewCredentials())
	c := ocmClient(cc)
	watch, err := grpc_health_v1.NewHealthClient(cc).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := watch.Recv(); err != nil || r.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Fatalf("health: %v, %v", r, err)
	}
	stream, err := c.Subscribe(t.Context(), &cloudeventsv1.SubscriptionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Header(); err != nil {
		t.Fatal(err)
	}
	published := make(chan error, 1)
	go func() { published <- c.publish(t, &cloudeventsv1.CloudEvent{Id: "1"}) }() // the result is received below
	<-entered
	if err := f.Ready(); err != nil {
		t.Errorf("before the drain: %v", err)
	}
	f.stop()
	if r, err := watch.Recv(); err != nil || r.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health while draining: %v, %v", r, err)
	}
	if f.Ready() == nil {
		t.Error("ready while draining")
	}
	close(release)
	if err := <-published; err != nil {
		t.Errorf("a call that ran: %v", err)
	}
	if _, err := stream.Recv(); transport.CodeOf(transportgrpc.FromStatus(err)) != transport.CodeUnavailable {
		t.Errorf("a stream that did not end by itself: %v", err)
	}
	if err := <-f.ended; err != nil {
		t.Errorf("run: %v", err)
	}
}

// TestFront_DrainOfSilentPeers checks that peers which have lost their network do not delay a drain: one in its
// handshake, one that begins no HTTP/2, and one that answers no ping.
func TestFront_DrainOfSilentPeers(t *testing.T) {
	f, ca := limited(t, accepts, func(c *grpc.Config) { c.DrainTimeout = time.Minute })
	w := openWire(t, f.addr, ca.Client(agent1))
	id := w.call(authz.Publish)
	w.data(id, true, begin(0))
	w.answer(id)
	silent := openTCP(t, f.addr) // its handshake begins before that of the next one
	if _, err := silent.Write([]byte{22}); err != nil {
		t.Fatal(err)
	}
	shaken := openTCP(t, f.addr)
	if _, _, err := ca.Client(agent1).ClientHandshake(t.Context(), "127.0.0.1", shaken); err != nil {
		t.Fatal(err)
	}
	until(t, "two connections", &syncbuffer.Buffer{}, func() bool { return f.Connections(identity.Agent) == 2 })
	began := time.Now()
	f.stop()
	if err := <-f.ended; err != nil {
		t.Errorf("run: %v", err)
	}
	if took := time.Since(began); took >= 5*time.Second { // so long the library waits for an answer to its ping
		t.Errorf("took %v", took)
	}
}

func TestNew_Refuses(t *testing.T) {
	s := server{}
	creds := testkit.NewCA(t).Server()
	for name, c := range map[string]grpc.Config{
		"no server":           {Config: listener.Config{Addr: ":0", Insecure: true}},
		"no address":          {Server: testkit.Blocking{Server: s}, Config: listener.Config{Insecure: true}},
		"no credentials":      {Server: testkit.Blocking{Server: s}, Config: listener.Config{Addr: ":0"}},
		"both":                {Server: testkit.Blocking{Server: s}, Config: listener.Config{Addr: ":0", Insecure: true, Credentials: creds}},
		"negative timeout":    {Server: testkit.Blocking{Server: s}, Config: listener.Config{Addr: ":0", Insecure: true}, PublishTimeout: -1},
		"negative drain":      {Server: testkit.Blocking{Server: s}, Config: listener.Config{Addr: ":0", Insecure: true}, DrainTimeout: -1},
		"negative size limit": {Server: testkit.Blocking{Server: s}, Config: listener.Config{Addr: ":0", Insecure: true, MaxMessageBytes: -1}},
	} {
		if _, err := grpc.New(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestFront_PlaintextOnlyOnLoopback(t *testing.T) {
	f, err := grpc.New(grpc.Config{Server: testkit.Blocking{Server: server{}}, Config: listener.Config{Addr: "0.0.0.0:0", Insecure: true}})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Run(t.Context()); err == nil {
		t.Error("plaintext on all addresses was served")
	}
}

func TestFront_AddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := grpc.New(grpc.Config{Server: testkit.Blocking{Server: server{}}, Config: listener.Config{Addr: l.Addr().String(), Insecure: true}})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Run(t.Context()); err == nil {
		t.Error("no error")
	}
}

// TestFront_StatsHandler checks that a stats handler works with messages that are bytes.
func TestFront_StatsHandler(t *testing.T) {
	f := start(t, server{
		publish: func(context.Context, transport.Peer, []byte, string) (transport.Receipt, error) {
			return transport.Receipt{}, nil
		},
		subscribe: func(_ context.Context, _ transport.Peer, _ transport.RawSubscription, out transport.Stream) error {
			if err := out.Accept(transport.Accepted{SubscriptionID: "s"}); err != nil {
				return err
			}
			return out.Send(codec.Heartbeat("a"))
		},
	}, func(c *grpc.Config) { c.Insecure, c.StatsHandler = true, otelgrpc.NewServerHandler() })
	c := ocmClient(dial(t, f.addr, insecure.NewCredentials()))
	if err := c.publish(t, &cloudeventsv1.CloudEvent{Id: "1"}); err != nil {
		t.Error(err)
	}
	stream, err := c.Subscribe(t.Context(), &cloudeventsv1.SubscriptionRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Error(err)
	}
}
