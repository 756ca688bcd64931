package grpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/hawser-io/hawser/internal/broker/authz"
	"github.com/hawser-io/hawser/internal/broker/listener"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// Defaults of [Config].
const (
	DefaultPublishTimeout = 30 * time.Second
	DefaultDrainTimeout   = 10 * time.Second
)

const (
	// unacknowledged is the time after which a peer that acknowledges no data is dead. Each subscription gets
	// heartbeats, so no ping is necessary. To ping 10,000 peers at rest would cost more than all else they do.
	unacknowledged = 30 * time.Second
	// pingEvery and pingTimeout detect dead peers behind a proxy that acknowledges data for them.
	pingEvery   = 2 * time.Minute
	pingTimeout = 10 * time.Second
	// mayPingEvery is the minimum interval of a client's pings.
	mayPingEvery = 5 * time.Second
	// streamsPerConnection is the maximum number of concurrent calls of one connection.
	streamsPerConnection = 1024
	// streamWorkers is the number of goroutines that serve one call after the other. A worker keeps its grown
	// stack, which saves a tenth of the broker's CPU time. Calls without a free worker, as with many subscriptions,
	// get a goroutine of their own.
	streamWorkers = 128
	// streamWindow and connectionWindow are the bytes that a peer may send ahead. They are fixed. To adapt them the
	// library would send a ping for received data, which costs both sides as much as a small call. A message larger
	// than the window of its call gets the rest when its length is known. With a round trip of 50 ms, a connection
	// can receive 20 MiB/s.
	streamWindow     = 64 << 10
	connectionWindow = 1 << 20
	// headerBytes is the maximum size of the headers of a call.
	headerBytes = 64 << 10
)

// Config is the configuration of a [Front]. Server is required.
type Config struct {
	// Config is the configuration of the port.
	listener.Config

	Server listener.Server
	// Admin is the admin service, whose calls are already authorized. The AuthInfo of a call has the caller: see
	// [listener.Connection.Caller]. nil: the service is absent.
	Admin hawserv1.AdminServiceServer

	// PublishTimeout is the maximum duration of a unary call, from its headers on. The caller may set less.
	PublishTimeout time.Duration
	// DrainTimeout is the maximum duration of Run after its context ended. Calls that still run then are cut.
	DrainTimeout time.Duration

	// Other takes over connections with another protocol than HTTP/2. The protocol is "" if only the first byte
	// shows it. Other must not block. nil: such connections are closed.
	Other func(net.Conn, *listener.Connection, listener.Protocol)

	// OnPanic is called for every call that panicked; may be nil.
	OnPanic func()
	// StatsHandler observes the calls, for traces; may be nil.
	StatsHandler stats.Handler
}

// Front serves one port. Create it with [New], run it once with [Front.Run].
type Front struct {
	cfg    Config
	port   *listener.Port
	idle   time.Duration
	health *health.Server
	open   atomic.Bool

	publishInfo ggrpc.UnaryServerInfo // of each Publish
}

// New returns a front. It opens nothing. An error names the wrong field of cfg.
func New(cfg Config) (*Front, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	f := &Front{idle: listener.IdleConnection, health: health.NewServer()}
	if f.port, cfg.Config, err = listener.New(cfg.Config); err != nil {
		return nil, err
	}
	f.cfg = cfg
	f.publishInfo = ggrpc.UnaryServerInfo{Server: f, FullMethod: authz.Publish}
	f.health.SetServingStatus(serviceDesc.ServiceName, grpc_health_v1.HealthCheckResponse_SERVING)
	return f, nil
}

// server returns the gRPC server with its services. Its workers already run.
func (f *Front) server() *ggrpc.Server {
	s := ggrpc.NewServer(f.options()...)
	s.RegisterService(&serviceDesc, f)
	grpc_health_v1.RegisterHealthServer(s, f.health)
	if f.cfg.Admin != nil {
		hawserv1.RegisterAdminServiceServer(s, f.cfg.Admin)
	}
	reflection.Register(s)
	return s
}

func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Server == nil:
		return c, errors.New("grpc listener: no server to hand calls to")
	case min(c.PublishTimeout, c.DrainTimeout) < 0:
		return c, errors.New("grpc listener: timeouts must not be negative")
	}
	c.PublishTimeout = cmp.Or(c.PublishTimeout, DefaultPublishTimeout)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, DefaultDrainTimeout)
	if c.OnPanic == nil {
		c.OnPanic = func() {}
	}
	return c, nil
}

func (f *Front) options() []ggrpc.ServerOption {
	caught := recovery.WithRecoveryHandlerContext(f.panicked)
	opts := []ggrpc.ServerOption{
		ggrpc.Creds(&handshake{TransportCredentials: f.cfg.Credentials, port: f.port, insecure: f.cfg.Insecure, other: f.cfg.Other}),
		ggrpc.InTapHandle(f.tap),
		ggrpc.ForceServerCodecV2(rawCodec{}),
		ggrpc.MaxRecvMsgSize(f.cfg.MaxMessageBytes),
		ggrpc.MaxHeaderListSize(headerBytes),
		ggrpc.MaxConcurrentStreams(streamsPerConnection),
		ggrpc.StaticStreamWindowSize(streamWindow),
		ggrpc.StaticConnWindowSize(connectionWindow),
		ggrpc.ConnectionTimeout(listener.HandshakeTimeout),
		ggrpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: mayPingEvery, PermitWithoutStream: true}),
		ggrpc.KeepaliveParams(keepalive.ServerParameters{Time: pingEvery, Timeout: pingTimeout, MaxConnectionIdle: f.idle}),
		// Thousands of connections are idle most of the time, so buffers are shared.
		ggrpc.SharedWriteBuffer(true),
		// Without read-ahead, a frame is counted just before it is handled.
		ggrpc.ReadBufferSize(0),
		ggrpc.WaitForHandlers(true),
		ggrpc.NumStreamWorkers(streamWorkers),
		ggrpc.ChainUnaryInterceptor(recovery.UnaryServerInterceptor(caught), f.serveUnary),
		ggrpc.ChainStreamInterceptor(recovery.StreamServerInterceptor(caught), f.identifiedStream, f.answerStream),
	}
	if f.cfg.StatsHandler != nil {
		opts = append(opts, ggrpc.StatsHandler(f.cfg.StatsHandler))
	}
	return opts
}

// Run listens and serves until ctx ends. Then it accepts no connection and no call; running calls may end, and
// are cut after DrainTimeout. It returns when all calls have returned.
func (f *Front) Run(ctx context.Context) error {
	l, fill, err := f.port.Listen(ctx)
	if err != nil {
		return err
	}
	f.cfg.Log.Info("grpc port is open", "addr", l.Addr().String(), "tls", !f.cfg.Insecure)
	f.open.Store(true)
	defer f.open.Store(false)
	var wg sync.WaitGroup
	defer wg.Wait()
	failed := make(chan error, 1)
	server := f.server()
	watching, unwatch := context.WithCancel(context.WithoutCancel(ctx))
	defer unwatch() // the check for connections to end also runs during the drain
	wg.Go(func() { f.port.Watch(watching) })
	wg.Go(fill) // ends when the server closes the listener
	wg.Go(func() { failed <- server.Serve(arrivals{l}) })
	select {
	case err := <-failed:
		server.Stop()
		return fmt.Errorf("grpc listener: %w", err)
	case <-ctx.Done():
	}
	f.open.Store(false)
	f.health.Shutdown()
	wg.Go(func() { f.port.Drain(watching) })
	cut := time.AfterFunc(f.cfg.DrainTimeout, func() {
		f.cfg.Log.Warn("drain timeout is over, cutting connections", "addr", l.Addr().String())
		server.Stop()
	})
	server.GracefulStop()
	if !cut.Stop() {
		server.Stop() // returns after the first Stop
	}
	return nil
}

// Ready returns nil while the port is open and accepts calls.
func (f *Front) Ready() error {
	if !f.open.Load() {
		return errors.New("the port is not open")
	}
	return nil
}

// serveUnary executes a unary call after its client is identified, and converts its error.
func (f *Front) serveUnary(ctx context.Context, req any, info *ggrpc.UnaryServerInfo, next ggrpc.UnaryHandler) (any, error) {
	if err := f.waitForIdentity(ctx); err != nil {
		return nil, err
	}
	resp, err := next(ctx, req)
	f.audit(ctx, info.FullMethod, req, err)
	if err != nil {
		return nil, f.answer(ctx, err)
	}
	return resp, nil
}

func (f *Front) answerStream(srv any, ss ggrpc.ServerStream, info *ggrpc.StreamServerInfo, next ggrpc.StreamHandler) error {
	var err error
	if listener.KindOf(info.FullMethod) == listener.Reflecting {
		err = f.reflect(srv, ss, next)
	} else {
		err = next(srv, ss)
	}
	f.audit(ss.Context(), info.FullMethod, nil, err)
	if err != nil {
		return f.answer(ss.Context(), err)
	}
	return nil
}

// audit reports an ended call to the audit stream. Accepted events are reported by the server, which knows
// their content.
func (f *Front) audit(ctx context.Context, method string, req any, err error) {
	if err == nil && method == authz.Publish {
		return // most calls are this one
	}
	c, e := connectionOf(ctx)
	if e != nil {
		return
	}
	sent := transportgrpc.FromStatus(err) // some errors already have a status
	switch {
	case sent != nil && (sent.Code == transport.CodeDenied || sent.Code == transport.CodeUnauthenticated):
		c.Refused(method, "scope", sent)
	case method == authz.Publish:
	case strings.HasPrefix(method, inspectionMethods) && (listener.KindOf(method) == listener.Unary || method == authz.Backup):
		f.cfg.Audit.Operated(c.Client(), method, req, err)
	default:
		f.cfg.Audit.Called(c.Client(), method, err)
	}
}

// inspectionMethods is the prefix of the methods of the admin service. Methods of this service that are not
// lists change something.
var inspectionMethods = "/" + hawserv1.AdminService_ServiceDesc.ServiceName + "/"

// panicked returns the error of a call that panicked.
func (f *Front) panicked(_ context.Context, p any) error {
	f.cfg.OnPanic()
	f.cfg.Log.Error("call panicked", "panic", p, "stack", string(debug.Stack()))
	return transportgrpc.Status(&transport.Error{
		Code: transport.CodeInternal, Next: transport.NextBackOff, Delay: time.Second,
		Message: "internal error", Hint: "the broker's log has the reason",
	}).Err()
}

// answer returns the status of a call that failed with err. An internal error is logged.
func (f *Front) answer(ctx context.Context, err error) error {
	if _, reported := status.FromError(err); reported {
		return err
	}
	if ctx.Err() == nil && transport.CodeOf(err) == transport.CodeInternal {
		f.cfg.Log.Error("call failed", "error", err)
	}
	return transportgrpc.Status(err).Err()
}
