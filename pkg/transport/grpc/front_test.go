package grpc_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/grpc"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// service is a CloudEventService made of functions.
type service struct {
	cloudeventsv1.UnimplementedCloudEventServiceServer
	publish   func(context.Context, *cloudeventsv1.PublishRequest) (*emptypb.Empty, error)
	subscribe func(*cloudeventsv1.SubscriptionRequest, ggrpc.ServerStreamingServer[cloudeventsv1.CloudEvent]) error
}

func (s *service) Publish(ctx context.Context, r *cloudeventsv1.PublishRequest) (*emptypb.Empty, error) {
	if s.publish == nil {
		return &emptypb.Empty{}, nil
	}
	return s.publish(ctx, r)
}

func (s *service) Subscribe(r *cloudeventsv1.SubscriptionRequest, out ggrpc.ServerStreamingServer[cloudeventsv1.CloudEvent]) error {
	return s.subscribe(r, out)
}

// front converts a transport.Server to a minimal gRPC service.
func front(s transport.Server) *service {
	return &service{
		publish: func(ctx context.Context, r *cloudeventsv1.PublishRequest) (*emptypb.Empty, error) {
			event, err := proto.Marshal(r.GetEvent())
			if err != nil {
				return nil, err
			}
			receipt, err := s.Publish(ctx, peerOf(ctx), event, incoming(ctx, codec.HeaderSubscriptionID))
			trailer := metadata.MD{}
			if receipt.Outcome != "" {
				trailer.Set(codec.HeaderOutcome, receipt.Outcome)
			}
			if receipt.Revision != 0 {
				trailer.Set(codec.HeaderRevision, codec.FormatRevision(receipt.Revision))
			}
			if err := ggrpc.SetTrailer(ctx, trailer); err != nil {
				return nil, err
			}
			if err != nil {
				return nil, grpc.Status(err).Err()
			}
			return &emptypb.Empty{}, nil
		},
		subscribe: func(r *cloudeventsv1.SubscriptionRequest, out ggrpc.ServerStreamingServer[cloudeventsv1.CloudEvent]) error {
			ctx := out.Context()
			raw := transport.RawSubscription{
				Source: r.GetSource(), Cluster: r.GetClusterName(), DataType: r.GetDataType(),
				Hello: transport.Hello{Cursor: incoming(ctx, codec.HeaderCursor), ClusterUID: incoming(ctx, codec.HeaderClusterUID), Former: incoming(ctx, codec.HeaderFormer)},
			}
			if transport.SpeaksHawser(incoming(ctx, codec.HeaderProtocol)) {
				raw.Hello.Protocol = transport.Protocol
			}
			return grpc.Status(s.Subscribe(ctx, peerOf(ctx), raw, frontStream{out})).Err()
		},
	}
}

func incoming(ctx context.Context, key string) string {
	md, _ := metadata.FromIncomingContext(ctx)
	if v := md.Get(key); len(v) == 1 {
		return v[0]
	}
	return ""
}

func peerOf(ctx context.Context) transport.Peer {
	p, _ := peer.FromContext(ctx)
	out := transport.Peer{Addr: p.Addr.String()}
	out.Conn, _ = ctx.Value(connKey{}).(uint64)
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
		client, err := identity.Mapping(nil).FromCertificate(info.State.VerifiedChains[0][0])
		if err == nil {
			out.Role, out.Name = string(client.Role), client.Name
		}
	}
	return out
}

type frontStream struct {
	out ggrpc.ServerStreamingServer[cloudeventsv1.CloudEvent]
}

func (f frontStream) Accept(a transport.Accepted) error {
	md := metadata.Pairs(codec.HeaderSubscriptionID, a.SubscriptionID)
	if a.Protocol > 0 {
		md.Set(codec.HeaderProtocol, strconv.Itoa(a.Protocol))
	}
	if a.Resync != "" {
		md.Set(codec.HeaderResync, a.Resync)
	}
	if a.MaxEventBytes > 0 {
		md.Set(codec.HeaderMaxEventBytes, strconv.Itoa(a.MaxEventBytes))
		md.Set(codec.HeaderStoreID, a.StoreID)
	}
	return f.out.SendHeader(md)
}

func (f frontStream) Send(parts ...[]byte) error {
	var b []byte
	for _, p := range parts {
		b = append(b, p...)
	}
	var e cloudeventsv1.CloudEvent
	if err := proto.Unmarshal(b, &e); err != nil {
		return err
	}
	return f.out.Send(&e)
}

// connTagger numbers connections.
type connTagger struct{ last atomic.Uint64 }

type connKey struct{}

func (c *connTagger) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, connKey{}, c.last.Add(1))
}
func (*connTagger) HandleConn(context.Context, stats.ConnStats) {}
func (*connTagger) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return ctx
}
func (*connTagger) HandleRPC(context.Context, stats.RPCStats) {}

// serve runs s on l until the test ends. It returns a function that breaks the accepted connections.
func serve(t *testing.T, l net.Listener, s *service, opts ...ggrpc.ServerOption) (cut func()) {
	t.Helper()
	tracked := &trackedListener{Listener: l}
	g := ggrpc.NewServer(append(opts, ggrpc.StatsHandler(&connTagger{}), ggrpc.MaxRecvMsgSize(64<<20))...)
	cloudeventsv1.RegisterCloudEventServiceServer(g, s)
	run(t, g, tracked)
	return tracked.cut
}

type trackedListener struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (l *trackedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.conns = append(l.conns, c)
	}
	return c, err
}

func (l *trackedListener) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.Close() // no error if the server has closed it
	}
	l.conns = nil
}

func freePort(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// authority makes the certificates of a test.
type authority struct {
	t  *testing.T
	ca *pki.Authority
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	ca, err := pki.NewAuthority("test", pki.Starting(time.Now(), time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return authority{t, ca}
}

func (a authority) issue(role pki.Role, name string, hosts ...string) tls.Certificate {
	a.t.Helper()
	pair, err := a.ca.Issue(pki.Request{Role: role, Name: name, Hosts: hosts, Valid: pki.Starting(time.Now(), time.Hour)})
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := pair.TLS()
	if err != nil {
		a.t.Fatal(err)
	}
	return cert
}

// server returns the credentials of a broker for these hosts.
func (a authority) server(auth tls.ClientAuthType, hosts ...string) credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{a.issue(pki.Broker, "broker", hosts...)},
		ClientCAs:    a.ca.Pool(),
		ClientAuth:   auth,
	})
}

// client returns the credentials of the agent of cluster1.
func (a authority) client() credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{
		MinVersion:   tls.VersionTLS13,
		RootCAs:      a.ca.Pool(),
		Certificates: []tls.Certificate{a.issue(pki.Agent, "cluster1")},
	})
}

func newDialer(t *testing.T, o grpc.Options) *grpc.Dialer {
	t.Helper()
	d, err := grpc.NewDialer(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// serveLimited serves publishes of at most limit bytes.
func serveLimited(t *testing.T, l net.Listener, limit int) {
	t.Helper()
	g := ggrpc.NewServer(ggrpc.MaxRecvMsgSize(limit))
	cloudeventsv1.RegisterCloudEventServiceServer(g, &service{})
	run(t, g, l)
}

// dialEmptyServer connects to a gRPC server without the service.
func dialEmptyServer(t *testing.T) transport.Conn {
	t.Helper()
	l := freePort(t)
	run(t, ggrpc.NewServer(), l)
	c, err := newDialer(t, grpc.Options{Target: l.Addr().String(), Insecure: true}).Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// run serves g on l until the test ends.
func run(t *testing.T, g *ggrpc.Server, l net.Listener) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }() // done is received from at the end of the test
	t.Cleanup(func() {
		g.Stop()
		// A test may be over before the goroutine has begun to serve.
		if err := <-done; err != nil && !errors.Is(err, ggrpc.ErrServerStopped) {
			t.Errorf("serve: %v", err)
		}
	})
}
