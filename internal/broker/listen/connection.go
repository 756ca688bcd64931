package listen

import (
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"

	"github.com/hawser-io/hawser/internal/broker/audit"
	"github.com/hawser-io/hawser/internal/broker/authz"
	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/transport"
)

// connIDs numbers the connections of the process.
var connIDs atomic.Uint64

// Connection is what is known of a peer since its handshake. Methods may be called
// concurrently, unless they say otherwise.
type Connection struct {
	credentials.AuthInfo
	port     *Port
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
	bodies  map[uint32]*Body // by stream; the gate's
	cutFor  string           // why the gate ended it; the gate's

	transport             Transport          // the gate's
	calls, received, sent prometheus.Counter // of its role and transport

	idle, refused, stray fair.Bucket // of the goroutine that reads the connection
}

// Handshake counts a connection that Listen accepted, shakes hands, and finds out who is at
// the other end. What is read from and written to the result is decrypted.
func (p *Port) Handshake(raw net.Conn) (net.Conn, *Connection, error) {
	a := p.gate.arrival(raw)
	if a == nil {
		return nil, nil, ErrNoConnection
	}
	if reason := p.gate.from(a, raw.RemoteAddr()); reason != "" {
		p.gate.leave(a)
		return nil, nil, p.refuse(reason, raw)
	}
	authorities := p.authorities() // those that it is verified with, or ones before
	conn, info, err := p.cfg.Credentials.ServerHandshake(raw)
	if err != nil {
		p.gate.leave(a)
		p.refused(failureOf(err), raw.RemoteAddr(), err)
		return nil, nil, err
	}
	c := &Connection{
		AuthInfo: info, port: p, id: connIDs.Add(1), addr: raw.RemoteAddr().String(), believed: p.cfg.Insecure,
		raw: raw, from: prefixOf(raw.RemoteAddr()), bodies: map[uint32]*Body{}, authorities: authorities,
	}
	c.identity, c.refusal = p.identify(info)
	c.learn(info, p.gate.now())
	if !p.gate.enter(a, c) {
		return nil, nil, p.refuse(noRoom, raw)
	}
	p.gate.lookAt(c.end())
	if p.authorities() != authorities {
		p.gate.lookAt(0) // who looked when they changed did not see this one
	}
	if c.refusal == nil {
		p.cfg.Audit.Connected(c.Who(), time.Unix(0, c.ends.Load()))
	}
	return conn, c, nil
}

func (p *Port) refuse(reason string, raw net.Conn) error {
	p.refused(reason, raw.RemoteAddr(), nil)
	return errors.New("listener: handshake refused: " + reason)
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

func (p *Port) identify(info credentials.AuthInfo) (identity.Identity, *refusal) {
	if p.cfg.Insecure {
		return identity.Identity{Role: identity.Operator, Name: "anonymous"}, nil
	}
	t, ok := info.(credentials.TLSInfo)
	if !ok || len(t.State.VerifiedChains) == 0 {
		return identity.Identity{}, unidentified()
	}
	id, err := p.cfg.Mapping.FromCertificate(t.State.VerifiedChains[0][0])
	if err != nil {
		return id, unmapped(err)
	}
	return id, nil
}

// ErrNoConnection is the error of a call that came on no connection.
var ErrNoConnection = errors.New("call without a connection")

// Caller is who called, as authorization sees it: nobody where everybody is
// believed.
func (c *Connection) Caller() identity.Identity {
	if c.believed {
		return identity.Identity{}
	}
	return c.identity
}

// Peer is how the broker sees the other end.
func (c *Connection) Peer() transport.Peer {
	id := c.Caller()
	p := transport.Peer{Role: string(id.Role), Name: id.Name, Addr: c.addr, Conn: c.id}
	if len(c.shown) > 0 {
		p.User, p.Groups = c.shown[0].Subject.CommonName, c.shown[0].Subject.Organization
	}
	if end := c.ends.Load(); end != 0 {
		p.CertificateEnds = time.Unix(0, end)
	}
	return p
}

// Who is how the audit stream names the other end.
func (c *Connection) Who() audit.Who {
	w := audit.Who{Addr: c.addr, Conn: c.id, Serial: c.serial()}
	if c.identity.Role != nobody {
		w.Identity = c.identity.String()
	}
	return w
}

// May returns why the peer may not call a method, as far as its name says.
func (c *Connection) May(method string) error {
	if c.refusal != nil {
		return c.refusal
	}
	if e := (*transport.Error)(nil); !c.believed && errors.As(authz.May(c.identity, method), &e) {
		return &refusal{reason: "role", told: e}
	}
	return nil
}

// NewBody returns the body of a call that may begin; ended: nothing of it comes.
// While the call runs, no other one of the connection has its number.
func (c *Connection) NewBody(stream uint32, ended bool) *Body {
	return &Body{of: c, stream: stream, ended: ended}
}

// Begin counts a call, and its body from now on. The result is why it is refused.
func (c *Connection) Begin(k Kind, b *Body) error {
	err := c.port.gate.begin(c, k, b)
	if err == nil {
		c.calls.Inc()
	}
	return err
}

// Body returns the body of a call that runs, nil where none does.
func (c *Connection) Body(stream uint32) *Body { return c.port.gate.bodyOf(c, stream) }

// Refused tells of a call that is refused.
func (c *Connection) Refused(method, reason string, err error) {
	c.port.metrics.refusedCalls.WithLabelValues(reason, transport.CodeOf(err).String()).Inc()
	c.port.cfg.Audit.Refused(c.Who(), c.from.String(), method, reason, err)
}

// Called tells of a call that has ended.
func (c *Connection) Called(method string, err error) { c.port.cfg.Audit.Called(c.Who(), method, err) }

// Insist counts a call that is refused by what came before its body: who insists on
// it loses the connection. Cost is in calls.
func (c *Connection) Insist(cost float64) { c.port.gate.insist(c, cost) }

// ErrFlood ends the reading of a connection.
var ErrFlood = errors.New("listener: the peer sends too much that belongs to no call")

// Idle counts what carries nothing of a call; too much of it ends the connection.
func (c *Connection) Idle() error { return c.unless(c.port.gate.idle(c)) }

// Stray is Idle for bytes that belong to a call that is over. It is for the goroutine
// that reads.
func (c *Connection) Stray(n int64) error {
	return c.unless(c.stray.Spend(c.allowed.stray, c.port.gate.now(), float64(n)))
}

func (c *Connection) unless(fine bool) error {
	if fine {
		return nil
	}
	c.port.gate.flood(c)
	return ErrFlood
}

// Received counts bytes that came.
func (c *Connection) Received(n int) { c.received.Add(float64(n)) }

// Sent counts bytes that went.
func (c *Connection) Sent(n int) { c.sent.Add(float64(n)) }

// InTime returns an error when the peer's certificate has ended: the next look
// may be a moment away. It is asked before anything that came is handled, and
// before anything is sent.
func (c *Connection) InTime() error {
	if !c.over(c.port.gate.now()) {
		return nil
	}
	c.port.gate.finish(c, expired)
	return errOver
}

// errOver ends a connection whose certificate has.
var errOver = errors.New("listener: the peer's certificate has expired")

// Leave ends the use of a connection; it is called once.
func (c *Connection) Leave() {
	if reason := c.port.gate.exit(c); reason != "" {
		c.port.ended(c, reason)
	} else if c.refusal == nil {
		c.port.cfg.Audit.Left(c.Who())
	}
}
