package grpc

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/hawser-io/hawser/internal/broker/audit"
	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/transport"
)

// connIDs numbers the connections of the process.
var connIDs atomic.Uint64

// connection is what is known of a peer since its handshake. gRPC carries it to
// every call as the peer's AuthInfo.
type connection struct {
	credentials.AuthInfo
	id       uint64
	addr     string
	identity identity.Identity // zero when the peer showed no certificate that means one
	// believed: without TLS everybody is who he says.
	believed bool
	// refusal is what every call is told; nil when calls may be made.
	refusal *refusal

	shown []*x509.Certificate // by the peer, its own first; none without a good one
	// ends is when they do, in Unix nanoseconds; 0: never.
	ends atomic.Int64
	// until is when the connection ends whatever its peer is.
	until time.Time
	// authorities are those that its certificates were looked at with last; the
	// watch's.
	authorities *x509.CertPool

	raw     net.Conn
	from    netip.Prefix
	party   *party // nil for a stranger
	allowed allowance
	bodies  map[uint32]*body // by stream; the gate's
	cutFor  string           // why the gate ended it; the gate's

	calls, received, sent prometheus.Counter // of its role

	// What follows is used by the goroutine that reads the connection alone, which
	// is also the one that admits its calls.
	frames               frames
	opened               *body // of the headers that were read last, until its call is admitted
	idle, refused, stray fair.Bucket
}

// handshake wraps the credentials of the port: it counts the connection, and adds
// who is at the other end.
type handshake struct {
	credentials.TransportCredentials
	mapping  identity.Mapping
	insecure bool
	front    *Front
}

// ServerHandshake implements credentials.TransportCredentials.
func (h *handshake) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	gate := h.front.gate
	a := gate.arrival(raw)
	if a == nil {
		return nil, nil, errNoConnection
	}
	if reason := gate.from(a, raw.RemoteAddr()); reason != "" {
		gate.leave(a)
		return h.refuse(reason, raw)
	}
	authorities := h.front.authorities() // those that it is verified with, or ones before
	conn, info, err := h.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		gate.leave(a)
		h.front.refused(failureOf(err), raw.RemoteAddr(), err)
		return nil, nil, err
	}
	c := &connection{
		AuthInfo: info, id: connIDs.Add(1), addr: raw.RemoteAddr().String(), believed: h.insecure,
		raw: raw, from: prefixOf(raw.RemoteAddr()), bodies: map[uint32]*body{}, authorities: authorities,
	}
	c.identity, c.refusal = h.identify(info)
	c.learn(info, gate.now())
	if !gate.enter(a, c) {
		return h.refuse(noRoom, raw)
	}
	gate.lookAt(c.end())
	if h.front.authorities() != authorities {
		gate.lookAt(0) // who looked when they changed did not see this one
	}
	c.calls, c.received, c.sent = h.front.metrics.of(c.identity.Role)
	if c.refusal == nil {
		h.front.cfg.Audit.Connected(c.who(), time.Unix(0, c.ends.Load()))
	}
	if h.insecure { // TLS reads whole records anyway
		conn = &buffered{Conn: conn, r: bufio.NewReaderSize(conn, readBuffer)}
	}
	return &counted{Conn: conn, gate: gate, connection: c, ended: h.front.ended}, c, nil
}

func (h *handshake) refuse(reason string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	h.front.refused(reason, raw.RemoteAddr(), nil)
	return nil, nil, errors.New("grpc listener: handshake refused: " + reason)
}

// failureOf is the reason of a handshake that failed.
func failureOf(err error) string {
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && invalid.Cert != nil && time.Now().Before(invalid.Cert.NotBefore):
		return notYetValid
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return expired
	case errors.As(err, &unknown), errors.As(err, &invalid):
		return untrusted
	}
	return failed
}

func (h *handshake) identify(info credentials.AuthInfo) (identity.Identity, *refusal) {
	if h.insecure {
		return identity.Identity{Role: identity.Operator, Name: "anonymous"}, nil
	}
	t, ok := info.(credentials.TLSInfo)
	if !ok || len(t.State.VerifiedChains) == 0 {
		return identity.Identity{}, unidentified()
	}
	return h.known(t.State)
}

func (h *handshake) known(s tls.ConnectionState) (identity.Identity, *refusal) {
	id, err := h.mapping.FromCertificate(s.VerifiedChains[0][0])
	if err != nil {
		return id, unmapped(err)
	}
	return id, nil
}

// Clone implements credentials.TransportCredentials.
func (h *handshake) Clone() credentials.TransportCredentials {
	clone := *h
	clone.TransportCredentials = h.TransportCredentials.Clone()
	return &clone
}

// connectionOf returns the connection a call came on.
func connectionOf(ctx context.Context) (*connection, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, errNoConnection
	}
	c, ok := p.AuthInfo.(*connection)
	if !ok {
		return nil, errNoConnection
	}
	return c, nil
}

var errNoConnection = errors.New("call without a connection")

// caller is who called, as authorization sees it: nobody where everybody is
// believed.
func (c *connection) caller() identity.Identity {
	if c.believed {
		return identity.Identity{}
	}
	return c.identity
}

// peer is how the broker sees the other end.
func (c *connection) peer() transport.Peer {
	id := c.caller()
	return transport.Peer{Role: string(id.Role), Name: id.Name, Addr: c.addr, Conn: c.id}
}

// who is how the audit stream names the other end.
func (c *connection) who() audit.Who {
	w := audit.Who{Addr: c.addr, Conn: c.id, Serial: c.serial()}
	if c.identity.Role != nobody {
		w.Identity = c.identity.String()
	}
	return w
}

// readBuffer is that of a connection without TLS.
const readBuffer = 8 << 10

// buffered reads ahead, below what is counted.
type buffered struct {
	net.Conn
	r *bufio.Reader
}

// Read implements net.Conn.
func (b *buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

// counted is a connection that is decrypted: the library reads from it one frame
// after the other, and never ahead, so that what was read last is what it is
// about to handle.
type counted struct {
	net.Conn
	gate       *gate
	connection *connection
	ended      func(c *connection, reason string)
	once       sync.Once
}

// Read implements net.Conn.
func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if e := c.inTime(); e != nil {
		return 0, e
	}
	c.connection.received.Add(float64(n))
	if e := c.connection.frames.parse(b[:n], c.frame); e != nil {
		return 0, e
	}
	return n, err
}

// Write implements net.Conn.
func (c *counted) Write(b []byte) (int, error) {
	if e := c.inTime(); e != nil {
		return 0, e
	}
	n, err := c.Conn.Write(b)
	c.connection.sent.Add(float64(n))
	return n, err
}

// inTime returns an error when the peer's certificate has ended: the next look
// may be a moment away.
func (c *counted) inTime() error {
	if !c.connection.over(c.gate.now()) {
		return nil
	}
	c.gate.finish(c.connection, expired)
	return errOver
}

// errOver ends a connection whose certificate has.
var errOver = errors.New("grpc listener: the peer's certificate has expired")

// Close implements net.Conn.
func (c *counted) Close() error {
	c.once.Do(func() {
		if reason := c.gate.exit(c.connection); reason != "" {
			c.ended(c.connection, reason)
		}
	})
	return c.Conn.Close()
}

// errFlood ends the reading of a connection.
var errFlood = errors.New("grpc listener: the peer sends too much that belongs to no call")

// frame counts one frame of the peer, before what it carries is read.
func (c *counted) frame(h frameHeader) error {
	conn := c.connection
	if h.kind != http2.FrameContinuation {
		conn.opened = nil // where it is still there, the library has refused the call without asking
	}
	ended := h.flags.Has(http2.FlagDataEndStream)
	switch h.kind {
	case http2.FrameHeaders:
		conn.opened = &body{of: conn, stream: h.stream, ended: ended}
		return nil
	case http2.FrameData:
		b := c.gate.bodyOf(conn, h.stream)
		if b == nil {
			return c.unless(conn.stray.Spend(conn.allowed.stray, c.gate.now(), float64(cost(h.length))))
		}
		c.gate.grow(b, cost(h.length), ended)
		if h.length > smallFrame || ended {
			return nil
		}
	case http2.FrameRSTStream:
		if b := c.gate.bodyOf(conn, h.stream); b != nil {
			c.gate.reset(b)
		}
	}
	return c.unless(c.gate.idle(conn))
}

// unless ends the connection of a flood.
func (c *counted) unless(fine bool) error {
	if fine {
		return nil
	}
	c.gate.flood(c.connection)
	return errFlood
}
