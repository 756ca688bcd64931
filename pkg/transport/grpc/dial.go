package grpc

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/internal/dialing"
)

const (
	// keepaliveTime and keepaliveTimeout detect a dead path below a stream that is not being read. OCM brokers
	// allow pings every 5 s, and only while a stream runs.
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 10 * time.Second

	// window is the number of bytes that the broker may send ahead. It bounds the queue here while events are
	// handled slowly. It is fixed: to test a larger window, the library answers received data with pings. These
	// cost broker and agent 10 % of the cost of a delivery. From a broker 100 ms away, a stream gets 10 MiB/s.
	window = 1 << 20

	// envelopeBytes bounds the bytes that PublishRequest and the broker's attributes add to an event.
	envelopeBytes = 1 << 10

	// never is longer than any connection. Waiting that long before the second attempt disables the reconnecting of
	// the library.
	never = 24 * 365 * time.Hour
)

// Dialer opens connections to one of the brokers in its options.
type Dialer struct {
	opts      Options
	endpoints *dialing.Endpoints
}

var _ transport.Dialer = (*Dialer)(nil)

// NewDialer checks the options. It opens nothing; the error names the invalid option.
func NewDialer(o Options) (*Dialer, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	// The library's own dialer reads the proxies of the environment only once per process, and supports no https
	// proxy.
	return &Dialer{opts: o, endpoints: dialing.NewEndpoints(transport.SplitAddresses(o.Target), o.Proxy, o.DialContext)}, nil
}

// Dial connects and returns when TLS and HTTP/2 are up. It tries all addresses in random order, the last used one
// at the end. The codes of its *transport.Error are:
//
//   - CodeUnavailable: the broker cannot be reached;
//   - CodeUnauthenticated: one side rejects the other's certificate;
//   - CodeDeadline: the dial timeout or ctx expired.
func (d *Dialer) Dial(ctx context.Context) (transport.Conn, error) {
	c, err := d.Connect(ctx)
	if err != nil { // a nil *Conn in the interface would compare unequal to nil
		return nil, err
	}
	return c, nil
}

// Connect is Dial for callers that use other services of the broker too; see [Conn.Calls].
func (d *Dialer) Connect(ctx context.Context) (*Conn, error) {
	b, err := d.bearer()
	if err != nil {
		return nil, err
	}
	return dialing.Connect(ctx, d.endpoints, d.opts.DialTimeout, func(ctx context.Context, at dialing.Attempt) (*Conn, error) {
		return d.connect(ctx, at, b)
	})
}

// connect connects to one endpoint.
func (d *Dialer) connect(ctx context.Context, at dialing.Attempt, b bearer) (*Conn, error) {
	attempt := newAttempt()
	cc, err := ggrpc.NewClient("passthrough:///"+at.Name, d.dialOptions(at, attempt, b)...)
	if err != nil {
		return nil, &transport.Error{Code: transport.CodeInvalid, Message: "cannot connect to " + at.String(), Err: err}
	}
	cc.Connect()
	for {
		state := cc.GetState()
		switch state {
		case connectivity.Ready:
			return &Conn{opts: d.opts, broker: at.String(), cc: cc, close: sync.OnceValue(cc.Close), attempt: attempt}, nil
		case connectivity.TransientFailure, connectivity.Shutdown:
			return nil, abandon(cc, explain(ctx, at, cc, attempt))
		case connectivity.Idle, connectivity.Connecting:
		}
		if !cc.WaitForStateChange(ctx, state) {
			return nil, abandon(cc, transport.GaveUp(ctx, "no connection to "+at.String()))
		}
	}
}

func (d *Dialer) dialOptions(at dialing.Attempt, a *attempt, b bearer) []ggrpc.DialOption {
	limit := d.opts.MaxEventBytes + envelopeBytes
	opts := []ggrpc.DialOption{
		ggrpc.WithTransportCredentials(&once{TransportCredentials: d.opts.Credentials, attempt: a}),
		ggrpc.WithDefaultCallOptions(ggrpc.MaxCallRecvMsgSize(limit), ggrpc.MaxCallSendMsgSize(limit)),
		ggrpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		ggrpc.WithConnectParams(ggrpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: never, Multiplier: 1, MaxDelay: never},
			MinConnectTimeout: d.opts.DialTimeout,
		}),
		ggrpc.WithStaticStreamWindowSize(window),
		ggrpc.WithStaticConnWindowSize(window),
		// Keep a connection without calls open.
		ggrpc.WithIdleTimeout(0),
		ggrpc.WithDisableServiceConfig(),
	}
	opts = append(opts, ggrpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		conn, err := at.Open(ctx)
		if err != nil {
			a.failed(err) // the library would convert it to text
		}
		return conn, err
	}))
	if d.opts.StatsHandler != nil {
		opts = append(opts, ggrpc.WithStatsHandler(d.opts.StatsHandler))
	}
	if b.token != "" {
		opts = append(opts, ggrpc.WithPerRPCCredentials(b))
	}
	return opts
}

// bearer adds a token to each call.
type bearer struct {
	token     string
	plaintext bool // allowed because the broker runs on this machine
}

// bearer returns the current token.
func (d *Dialer) bearer() (bearer, error) {
	b := bearer{plaintext: d.opts.Insecure}
	if d.opts.Token == nil {
		return b, nil
	}
	var err error
	if b.token, err = d.opts.Token(); err != nil {
		return b, &transport.Error{
			Code: transport.CodeUnauthenticated, Next: transport.NextRefreshCredentials,
			Message: "the token for " + d.opts.Target + " cannot be read", Err: err,
		}
	}
	return b, nil
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b bearer) RequireTransportSecurity() bool { return !b.plaintext }

// abandon closes an incomplete connection and returns e.
func abandon(cc *ggrpc.ClientConn, e *transport.Error) error {
	if err := cc.Close(); err != nil {
		e.Err = errors.Join(e.Err, err)
	}
	return e
}

// explain turns the failure of the only connection attempt into an error that names the side which must act.
func explain(ctx context.Context, at dialing.Attempt, cc *ggrpc.ClientConn, a *attempt) *transport.Error {
	cause := a.failure()
	if cause == nil {
		// The library reports the reason only to a call. This call is never sent, because there will be no connection
		// for it.
		cause = errors.New(FromStatus(cc.Invoke(ctx, grpc_health_v1.Health_Check_FullMethodName,
			&grpc_health_v1.HealthCheckRequest{}, &grpc_health_v1.HealthCheckResponse{})).Message)
	}
	e := &transport.Error{Code: transport.CodeUnavailable, Message: "cannot connect to " + at.String(), Err: cause}
	if !dialing.Explain(e, cause) && a.isShaken() {
		e.Hint = "the server closed the connection before it spoke HTTP/2: check the port, and that it accepts this client"
	}
	return e
}

// attempt is the result of the one connection attempt of a Conn.
type attempt struct {
	broken chan struct{} // closed once reason is set

	mu     sync.Mutex
	begun  bool
	shaken bool // a handshake has begun
	gone   bool
	reason error
	roots  []string // see [transport.Accepted]
}

func newAttempt() *attempt { return &attempt{broken: make(chan struct{})} }

// begin reports whether this is the first handshake.
func (a *attempt) begin() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.begun {
		a.gone = true
		return false
	}
	a.begun = true
	return true
}

// failed stores the first reason.
func (a *attempt) failed(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.reason == nil {
		a.reason = err
		close(a.broken)
	}
}

func (a *attempt) failure() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reason
}

func (a *attempt) handshaken(info credentials.AuthInfo) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.shaken = true
	if t, ok := info.(credentials.TLSInfo); ok {
		a.roots = dialing.Roots(t.State.VerifiedChains)
	}
}

// verifiedBy returns the hashes of the CAs that verified the broker's certificate.
func (a *attempt) verifiedBy() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.roots
}

func (a *attempt) isShaken() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.shaken
}

// isGone reports whether a call found the connection lost.
func (a *attempt) isGone() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gone
}

var errGone = errors.New("the connection is lost")

// once wraps credentials to allow one handshake, and keeps its error with its type, which the library turns
// into text. A second handshake would be a reconnect by the library, unnoticed by the session. The session
// would then hold the subscription id, limit and resume decision of another connection.
type once struct {
	credentials.TransportCredentials
	attempt *attempt
}

func (o *once) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if !o.attempt.begin() {
		return nil, nil, errGone
	}
	conn, info, err := o.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		o.attempt.failed(err)
		return nil, nil, err
	}
	o.attempt.handshaken(info)
	return &watched{Conn: conn, attempt: o.attempt}, info, nil
}

func (o *once) Clone() credentials.TransportCredentials {
	return &once{TransportCredentials: o.TransportCredentials.Clone(), attempt: o.attempt}
}

// watched keeps the error that ended reading. With TLS 1.3 a server rejects a client certificate only after the
// client's side of the handshake succeeded.
type watched struct {
	net.Conn
	attempt *attempt
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if err != nil {
		w.attempt.failed(err)
	}
	return n, err
}

// lastWords is how long a failed write waits for the reader. The reader may still find the server's reason in
// data that arrived before the connection broke. The library closes the connection as soon as it sees the
// failure.
const lastWords = time.Second

func (w *watched) Write(b []byte) (int, error) {
	n, err := w.Conn.Write(b)
	if err != nil {
		timer := time.NewTimer(lastWords)
		defer timer.Stop()
		select {
		case <-w.attempt.broken:
		case <-timer.C:
		}
	}
	return n, err
}
