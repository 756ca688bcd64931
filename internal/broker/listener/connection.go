package listener

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
	"github.com/hawser-io/hawser/internal/broker/tokens"
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
	port *Port
	id   uint64
	addr string
	// trustsPeer: without TLS everybody is who he says.
	trustsPeer bool
	// state changes at most once after the handshake: when a token says who a stranger is.
	state atomic.Pointer[peerState]
	token tokenAuth

	shown []*x509.Certificate // by the peer, its own first; none without a good one
	// ends is when they do, in Unix nanoseconds; 0: never.
	ends atomic.Int64
	// issued is when the certificate of an agent was; zero of another peer.
	issued time.Time
	// authorities are those that its certificates were looked at with last; the
	// watch's.
	authorities identity.Authorities

	raw             net.Conn
	from            netip.Prefix
	client          *clientUsage     // nil for a stranger, unless calls of it wait; the gate's
	bodies          map[uint32]*Body // by stream; the gate's
	cutFor          string           // why the gate ended it; the gate's
	left            bool             // nobody uses it any more; the gate's
	badTokenCounted bool             // a bad token of it was counted already, or nobody could judge it; the gate's

	transport Transport // the gate's

	idle, refused, closedStreams fair.Bucket // of the goroutine that reads the connection
	bytes                        fair.Bucket // of a stranger; the gate's
}

// peerState is who the peer of a connection is, and what follows from that. It is not modified.
type peerState struct {
	identity identity.Identity // zero when neither certificate nor token says one
	// user and groups are who that is at the hub.
	user   string
	groups []string
	// refusal is what every call is told; nil when calls may be made.
	refusal *refusal
	// pass is the token that the identity is known by; nil where that is a certificate.
	pass *tokens.TokenRef
	// until is when the connection ends whatever its peer is.
	until time.Time

	allowed               *allowance
	calls, received, sent prometheus.Counter // of its role and transport
}

// peerState returns what is known of the peer at this moment.
func (c *Connection) peerState() *peerState { return c.state.Load() }

// Handshake counts a connection that Listen accepted, shakes hands, and finds out who is at
// the other end. What is read from and written to the result is decrypted.
func (p *Port) Handshake(raw net.Conn) (net.Conn, *Connection, error) {
	a := p.limiter.arrival(raw)
	if a == nil {
		return nil, nil, ErrNoConnection
	}
	if reason := p.limiter.from(a, raw.RemoteAddr()); reason != "" {
		p.limiter.leave(a)
		return nil, nil, p.refuse(reason, raw)
	}
	authorities := p.authorities() // those that it is verified with, or ones before
	shaking := &throttledHandshake{Conn: raw, slots: p.handshakes}
	conn, info, err := p.cfg.Credentials.ServerHandshake(shaking)
	shaking.end()
	if err != nil {
		p.limiter.leave(a)
		p.refused(failureOf(err), raw.RemoteAddr(), err)
		return nil, nil, err
	}
	c := &Connection{
		AuthInfo: info, port: p, id: connIDs.Add(1), addr: raw.RemoteAddr().String(), trustsPeer: p.cfg.Insecure,
		raw: raw, from: prefixOf(raw.RemoteAddr()), bodies: map[uint32]*Body{}, authorities: authorities,
	}
	s, end := p.identify(info)
	c.state.Store(c.learn(info, s, end, p.limiter.now()))
	if !p.limiter.enter(a, c) {
		return nil, nil, p.refuse(noMemory, raw)
	}
	p.limiter.scheduleCheck(c.end())
	if p.authorities() != authorities {
		p.limiter.scheduleCheck(0) // who looked when they changed did not see this one
	}
	if c.peerState().refusal == nil {
		p.cfg.Audit.Connected(c.Client(), time.Unix(0, c.ends.Load()))
	}
	return &meteredConn{Conn: conn, of: c}, c, nil
}

func (p *Port) refuse(reason string, raw net.Conn) error {
	p.refused(reason, raw.RemoteAddr(), nil)
	return errors.New("listener: handshake refused: " + reason)
}

// failureOf is the reason of a handshake that failed.
func failureOf(err error) string {
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && invalid.Cert != nil && time.Now().Before(invalid.Cert.NotBefore):
		return notYetValid
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return expired
	case errors.As(err, new(x509.UnknownAuthorityError)), errors.As(err, &invalid):
		return untrusted
	}
	return failed
}

// identify returns who the handshake says the peer is, and when its certificate ends.
func (p *Port) identify(info credentials.AuthInfo) (s peerState, end time.Time) {
	if p.cfg.Insecure {
		return peerState{identity: identity.Identity{Role: identity.Operator, Name: "anonymous"}}, end
	}
	t, ok := info.(credentials.TLSInfo)
	if !ok || len(t.State.VerifiedChains) == 0 {
		return peerState{refusal: unidentified()}, end
	}
	end = identity.EndOf(t.State.VerifiedChains)
	leaf := t.State.VerifiedChains[0][0]
	id, err := p.cfg.Mapping.FromCertificate(leaf)
	if err != nil {
		return peerState{refusal: unmapped(err)}, end
	}
	s = peerState{identity: id, user: leaf.Subject.CommonName, groups: leaf.Subject.Organization}
	// The handshake asks for any authority; that of a role may be fewer.
	if a := p.authorities(); a.For(id.Role) != a.All() {
		sooner, err := identity.Covers(a.For(id.Role), t.State.PeerCertificates, p.limiter.now())
		if err != nil {
			return peerState{refusal: agentsOnly(id)}, end
		}
		end = sooner
	}
	return s, end
}

// ErrNoConnection is the error of a call that came on no connection.
var ErrNoConnection = errors.New("call without a connection")

// Caller is who called, as authorization sees it: nobody where everybody is
// believed.
func (c *Connection) Caller() identity.Identity {
	if c.trustsPeer {
		return identity.Identity{}
	}
	return c.peerState().identity
}

// Peer is how the broker sees the other end.
func (c *Connection) Peer() transport.Peer {
	id, s := c.Caller(), c.peerState()
	p := transport.Peer{Role: string(id.Role), Name: id.Name, Addr: c.addr, Conn: c.id}
	p.User, p.Groups, p.CertificateIssued = s.user, s.groups, c.issued
	if end := c.ends.Load(); end != 0 {
		p.CertificateEnds = time.Unix(0, end)
	}
	return p
}

// Client is how the audit stream names the other end.
func (c *Connection) Client() audit.Client {
	w, s := audit.Client{Addr: c.addr, Conn: c.id, Serial: c.serial()}, c.peerState()
	if s.identity.Role != noRole {
		w.Identity = s.identity.String()
	}
	if s.pass != nil {
		w.Account = s.user
	}
	return w
}

// May returns why the peer may not call a method, as far as its name says.
func (c *Connection) May(method string) error {
	s := c.peerState()
	if s.refusal != nil {
		return s.refusal
	}
	if e := (*transport.Error)(nil); !c.trustsPeer && errors.As(authz.May(s.identity, method), &e) {
		return &refusal{reason: "role", sent: e}
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
	err := c.port.limiter.begin(c, k, b)
	if err == nil {
		c.peerState().calls.Inc()
	}
	return err
}

// Body returns the body of a call that runs, nil where none does.
func (c *Connection) Body(stream uint32) *Body { return c.port.limiter.bodyOf(c, stream) }

// Refused tells of a call that is refused.
func (c *Connection) Refused(method, reason string, err error) {
	c.port.metrics.refusedCalls.WithLabelValues(reason, transport.CodeOf(err).String()).Inc()
	c.port.cfg.Audit.Refused(c.Client(), c.from.String(), method, reason, err)
}

// Called tells of a call that has ended.
func (c *Connection) Called(method string, err error) {
	c.port.cfg.Audit.Called(c.Client(), method, err)
}

// ChargeRefusedCall counts a call that is refused by what came before its body; too many of them end
// the connection. Cost is in calls.
func (c *Connection) ChargeRefusedCall(cost float64) error {
	return c.unless(c.port.limiter.chargeRefusedCall(c, cost))
}

// Garbled counts headers of which nobody has learned who asks for what, as a call that is refused.
func (c *Connection) Garbled() error {
	c.Refused("", garbled.reason, garbled)
	return c.ChargeRefusedCall(1)
}

// ErrFlood ends the reading of a connection.
var ErrFlood = errors.New("listener: the peer sends too much that belongs to no call")

// ChargeControlFrame counts what carries nothing of a call; too much of it ends the connection.
func (c *Connection) ChargeControlFrame() error { return c.unless(c.port.limiter.idle(c)) }

// ChargeClosedStream is Idle for bytes that belong to a call that is over. It is for the goroutine
// that reads.
func (c *Connection) ChargeClosedStream(n int64) error {
	return c.unless(c.closedStreams.Spend(c.peerState().allowed.closedStreams, c.port.limiter.now(), float64(n)))
}

func (c *Connection) unless(fine bool) error {
	if fine {
		return nil
	}
	c.port.limiter.endForFlood(c)
	return ErrFlood
}

// InTime returns an error when the peer's certificate, or token, has ended: the next look
// may be a moment away. It is asked before anything that came is handled, and
// before anything is sent.
func (c *Connection) InTime() error {
	reason := c.over(c.port.limiter.now())
	if reason == "" {
		return nil
	}
	c.port.limiter.finish(c, reason)
	return errOver
}

// errOver ends a connection whose certificate or token has.
var errOver = errors.New("listener: the peer's certificate or token has ended")

// Leave ends the use of a connection; it is called once.
func (c *Connection) Leave() {
	reason := c.port.limiter.exit(c)
	s := c.peerState()
	if reason != "" {
		c.port.ended(c, reason)
	} else if s.refusal == nil {
		c.port.cfg.Audit.Left(c.Client())
	}
	if s.pass != nil {
		s.pass.Release()
	}
}
