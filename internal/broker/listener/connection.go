package listener

import (
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"runtime"
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

// Connection is a connection after its handshake, with the identity of its peer. Methods may be called
// concurrently, unless they say otherwise.
type Connection struct {
	port *Port
	id   uint64
	addr string
	// trustsPeer is true without TLS: every peer is then trusted.
	trustsPeer bool
	// negotiated is the protocol that ALPN selected, "" without one.
	negotiated Protocol
	// state changes at most once after the handshake: when a token identifies the peer.
	state atomic.Pointer[peerState]
	token tokenAuth

	shown []*x509.Certificate // the peer's certificate chain, leaf first; empty without a verified one
	// ends is the expiry of the chain in Unix nanoseconds; 0: never.
	ends atomic.Int64
	// issued is the issue time of an agent's certificate; zero for other peers.
	issued time.Time
	// authorities are the CAs by which the chain was verified last. After the handshake only [Port.look] uses them.
	authorities identity.Authorities

	raw             net.Conn
	from            netip.Prefix
	client          *clientUsage     // nil while unidentified without waiting calls; guarded by limiter.mu
	bodies          map[uint32]*Body // by stream; guarded by limiter.mu
	cutFor          string           // why the limiter ended the connection; guarded by limiter.mu
	left            bool             // Leave was called; guarded by limiter.mu
	badTokenCounted bool             // its bad token is counted already, or could not be reviewed; guarded by limiter.mu

	transport Transport // guarded by limiter.mu

	idle, refused, closedStreams fair.Bucket // only for the goroutine that reads the connection
	bytes                        fair.Bucket // of an unidentified connection; guarded by limiter.mu
}

// peerState is the identity of the peer and what follows from it. It is immutable.
type peerState struct {
	identity identity.Identity // zero if neither certificate nor token gives one
	// user and groups are the peer's user and groups at the hub.
	user   string
	groups []string
	// refusal is the error of every call; nil when calls are allowed.
	refusal *refusal
	// pass is the token that identifies the peer; nil for a certificate.
	pass *tokens.TokenRef
	// until is when the connection ends at the latest, for every peer.
	until time.Time

	allowed               *allowance
	calls, received, sent prometheus.Counter // by role and transport
}

// peerState returns the current state of the peer.
func (c *Connection) peerState() *peerState { return c.state.Load() }

// Handshake does the handshake of a connection that Listen accepted, and identifies the peer. The returned
// connection reads and writes plaintext, and its traffic is metered.
func (p *Port) Handshake(raw net.Conn) (net.Conn, *Connection, error) {
	a := p.limiter.arrival(raw)
	if a == nil {
		return nil, nil, ErrNoConnection
	}
	if reason := p.limiter.from(a, raw.RemoteAddr()); reason != "" {
		p.limiter.leave(a)
		return nil, nil, p.refuse(reason, raw)
	}
	authorities := p.authorities() // read first, so that they are those of the handshake or older
	shaking := &throttledHandshake{Conn: raw, slots: p.handshakes, computed: func() { p.limiter.computed(a) }, pauses: runtime.GOMAXPROCS(0) == 1}
	conn, info, err := p.cfg.Credentials.ServerHandshake(shaking)
	shaking.end()
	if err != nil {
		p.limiter.leave(a)
		p.refused(failureOf(err), raw.RemoteAddr(), err)
		return nil, nil, err
	}
	c := &Connection{
		port: p, id: connIDs.Add(1), addr: raw.RemoteAddr().String(), trustsPeer: p.cfg.Insecure,
		raw: raw, from: prefixOf(raw.RemoteAddr()), bodies: map[uint32]*Body{}, authorities: authorities,
	}
	s, end := p.identify(info)
	c.state.Store(c.learn(info, s, end, p.limiter.now()))
	if !p.limiter.enter(a, c) {
		return nil, nil, p.refuse(noMemory, raw)
	}
	p.limiter.scheduleCheck(c.end())
	if p.authorities() != authorities {
		p.limiter.scheduleCheck(0) // a check during the change did not include this connection
	}
	if c.peerState().refusal == nil {
		p.cfg.Audit.Connected(c.Client(), time.Unix(0, c.ends.Load()))
	}
	return &meteredConn{Conn: conn, of: c}, c, nil
}

func (p *Port) refuse(reason string, raw net.Conn) error {
	p.refused(reason, raw.RemoteAddr(), nil)
	return errors.New("listener: handshake rejected: " + reason)
}

// failureOf returns the reason of a failed handshake.
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

// identify returns the peer that the handshake shows, and the expiry of its certificate.
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
	// The handshake accepts every client CA, but each role may have its own CAs.
	if a := p.authorities(); a.For(id.Role) != a.All() {
		sooner, err := identity.Covers(a.For(id.Role), t.State.PeerCertificates, p.limiter.now())
		if err != nil {
			return peerState{refusal: agentsOnly(id)}, end
		}
		end = sooner
	}
	return s, end
}

// ErrNoConnection is the error of a call without a connection.
var ErrNoConnection = errors.New("call without a connection")

// Caller returns the identity of the peer for authorization. It is zero if every peer is trusted.
func (c *Connection) Caller() identity.Identity {
	if c.trustsPeer {
		return identity.Identity{}
	}
	return c.peerState().identity
}

// Peer returns the peer as the broker sees it.
func (c *Connection) Peer() transport.Peer {
	id, s := c.Caller(), c.peerState()
	p := transport.Peer{Role: string(id.Role), Name: id.Name, Addr: c.addr, Conn: c.id}
	p.User, p.Groups, p.CertificateIssued = s.user, s.groups, c.issued
	if end := c.ends.Load(); end != 0 {
		p.CertificateEnds = time.Unix(0, end)
	}
	return p
}

// Client returns the peer as the audit stream names it.
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

// CheckMethod returns an error if the peer may not call a method. It checks the name of the method only.
func (c *Connection) CheckMethod(method string) error {
	s := c.peerState()
	if s.refusal != nil {
		return s.refusal
	}
	if e := (*transport.Error)(nil); !c.trustsPeer && errors.As(authz.CheckMethod(s.identity, method), &e) {
		return &refusal{reason: "role", sent: e}
	}
	return nil
}

// NewBody returns the body of a call that may begin. ended is true if the request has no body. A stream number
// is unique among the running calls of a connection.
func (c *Connection) NewBody(stream uint32, ended bool) *Body {
	return &Body{of: c, stream: stream, ended: ended}
}

// Begin counts a call, and from now on the bytes of its body. It returns an error if the call is rejected.
func (c *Connection) Begin(k Kind, b *Body) error {
	err := c.port.limiter.begin(c, k, b)
	if err == nil {
		c.peerState().calls.Inc()
	}
	return err
}

// Grow is [Body.Grow] for the running call on a stream. It returns false if there is none.
func (c *Connection) Grow(stream uint32, n int64, ended bool) bool {
	return c.port.limiter.grow(c, stream, n, ended)
}

// Reset records that the peer reset the call on a stream, if it still runs.
func (c *Connection) Reset(stream uint32) { c.port.limiter.reset(c, stream) }

// Refused reports a rejected call to metrics and audit.
func (c *Connection) Refused(method, reason string, err error) {
	c.port.metrics.refusedCalls.WithLabelValues(reason, transport.CodeOf(err).String()).Inc()
	c.port.cfg.Audit.Refused(c.Client(), c.from.String(), method, reason, err)
}

// Called reports an ended call to the audit stream.
func (c *Connection) Called(method string, err error) {
	c.port.cfg.Audit.Called(c.Client(), method, err)
}

// ChargeRefusedCall counts a call that was rejected before its body was read. Too many of them end the
// connection. cost is in calls.
func (c *Connection) ChargeRefusedCall(cost float64) error {
	return c.unless(c.port.limiter.chargeRefusedCall(c, cost))
}

// Garbled counts a call with unreadable headers as a rejected call.
func (c *Connection) Garbled() error {
	c.Refused("", garbled.reason, garbled)
	return c.ChargeRefusedCall(1)
}

// ErrFlood ends the reading of a connection.
var ErrFlood = errors.New("listener: the peer sends too much data outside of calls")

// ChargeControlFrame counts a frame that belongs to no call. Too many of them end the connection.
func (c *Connection) ChargeControlFrame() error { return c.unless(c.port.limiter.idle(c)) }

// ChargeClosedStream counts n bytes of a call that has ended. Too many of them end the connection. Only the
// reading goroutine may call it.
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

// CheckLifetime returns an error if the peer's certificate or token has expired or was revoked, and ends the
// connection. The periodic check may not have run yet. It is called before a received frame is handled, and
// before anything is sent.
func (c *Connection) CheckLifetime() error {
	reason := c.over(c.port.limiter.now())
	if reason == "" {
		return nil
	}
	c.port.limiter.finish(c, reason)
	return errExpired
}

// errExpired ends a connection whose certificate or token is no longer valid.
var errExpired = errors.New("listener: the peer's certificate or token has expired or was revoked")

// Leave releases the resources of a connection. It is called once.
func (c *Connection) Leave() {
	reason := c.port.limiter.exit(c)
	s := c.peerState()
	if reason != "" {
		c.port.ended(c, reason)
	} else if s.refusal == nil {
		c.port.cfg.Audit.Disconnected(c.Client())
	}
	if s.pass != nil {
		s.pass.Release()
	}
}
