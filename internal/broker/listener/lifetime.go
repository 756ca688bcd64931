package listener

import (
	"context"
	"crypto/x509"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/pires/go-proxyproto"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/taskgroup"
)

// Reasons to end a connection without a fault of the peer; see [Port.over].
const (
	expired   = "expired"
	untrusted = "untrusted"
	revoked   = "revoked"
	denied    = "denied"
	tooEarly  = "issued_too_early"
	aged      = "age"
)

const (
	// lookEvery is the interval of the check for connections to end.
	lookEvery = 250 * time.Millisecond
	// oldest is the maximum age of a connection. Each gets a random age between half of it and all of it, so that
	// clients which connect together do not reconnect together.
	oldest = 12 * time.Hour
)

// learn stores the protocol and the certificates of the handshake in c, and returns s with the latest end of the
// connection. The rest of the handshake's state is not kept.
func (c *Connection) learn(info credentials.AuthInfo, s peerState, end, now time.Time) *peerState {
	s.until = oldAt(now)
	if s.refusal != nil {
		s.until = now.Add(IdleConnection) // a new connection may be accepted
	}
	t, ok := info.(credentials.TLSInfo)
	if ok {
		c.negotiated = Protocol(t.State.NegotiatedProtocol)
	}
	if len(t.State.VerifiedChains) > 0 {
		c.shown = t.State.PeerCertificates
		c.ends.Store(end.UnixNano())
		if s.refusal == nil && s.identity.Role == identity.Agent {
			c.issued = c.authorities.IssuedAt(c.shown, now)
		}
	}
	return &s
}

// oldAt returns the latest end of a connection that begins now.
func oldAt(now time.Time) time.Time { return now.Add(oldest - rand.N(oldest/2)) }

// serial returns the serial number of the peer's certificate, "" without one.
func (c *Connection) serial() string {
	if len(c.shown) == 0 {
		return ""
	}
	return c.shown[0].SerialNumber.Text(16)
}

// over returns why the peer's certificate or token is no longer valid, "" if it is.
func (c *Connection) over(now time.Time) string {
	if end := c.ends.Load(); end != 0 && now.UnixNano() > end {
		return expired
	}
	switch p := c.peerState().pass; {
	case p == nil:
	case p.Revoked():
		return revoked
	case !p.Ends.IsZero() && now.After(p.Ends):
		return expired
	}
	return ""
}

// Watch ends connections that may not continue, until ctx ends.
func (p *Port) Watch(ctx context.Context) {
	p.look(false)
	taskgroup.Every(ctx, lookEvery, func() { p.look(false) })
}

// lastAnswers is the time in which a peer receives the answer to its last call before a drain closes its connection.
const lastAnswers = 250 * time.Millisecond

// Drain closes all connections when no call runs any more, until ctx ends. The library closes the connections of
// most peers before. Without Drain it would wait five seconds for a peer that has lost its network, and ten for one
// that does not begin to speak.
func (p *Port) Drain(ctx context.Context) {
	idle := false
	for taskgroup.Sleep(ctx, lastAnswers) {
		before := idle
		if idle = p.Usage().Calls == 0; idle && before {
			for _, c := range p.limiter.all(nil) {
				_ = c.raw.Close() // it is closed already, or its reader gets an error
			}
		}
	}
}

// Look checks all connections now and ends those that may not continue.
func (p *Port) Look() { p.look(true) }

// look ends the connections that may not continue. When it returns, nothing is read from them or sent to them
// any more.
//
// It checks all connections only if all is true, if one has reached its end, or if the CAs have changed. To
// check thousands of them every 250 ms would cost more than their traffic.
func (p *Port) look(all bool) {
	p.looking.Lock()
	defer p.looking.Unlock()
	p.checkServing()
	now, authorities := p.limiter.now(), p.authorities()
	if !all && authorities == p.trusted && now.UnixNano() < p.limiter.next.Load() {
		return
	}
	p.trusted = authorities
	p.limiter.next.Store(math.MaxInt64)
	p.seen = p.limiter.all(p.seen[:0])
	for _, c := range p.seen {
		if reason := p.over(c, authorities, now); reason != "" {
			p.limiter.finish(c, reason)
		} else {
			p.limiter.scheduleCheck(c.end())
		}
	}
	clear(p.seen)
}

// end returns when the connection has to be checked, in Unix nanoseconds.
func (c *Connection) end() int64 {
	if c.trustsPeer {
		return math.MaxInt64
	}
	s := c.peerState()
	until := s.until
	if s.pass != nil && !s.pass.Ends.IsZero() && s.pass.Ends.Before(until) {
		until = s.pass.Ends
	}
	end := until.UnixNano()
	if certificate := c.ends.Load(); certificate != 0 {
		end = min(end, certificate)
	}
	return end
}

// scheduleCheck sets the next check to when (Unix nanoseconds), unless it is due earlier.
func (g *limiter) scheduleCheck(when int64) {
	for next := g.next.Load(); when < next; next = g.next.Load() {
		if g.next.CompareAndSwap(next, when) {
			return
		}
	}
}

// over returns why a connection may not continue, "" if it may.
func (p *Port) over(c *Connection, authorities identity.Authorities, now time.Time) string {
	if c.trustsPeer {
		return ""
	}
	if authorities != c.authorities && len(c.shown) > 0 {
		end, err := identity.Covers(c.peerState().authoritiesOf(authorities), c.shown, now)
		switch {
		case err != nil && c.over(now) == expired:
			return expired
		case err != nil:
			return untrusted
		}
		c.authorities = authorities
		c.ends.Store(end.UnixNano())
	}
	s := c.peerState()
	if reason := c.over(now); reason != "" {
		return reason
	}
	if s.refusal == nil {
		if r := p.limiter.denied(s.identity, c); r != nil {
			return r.reason
		}
	}
	if now.After(s.until) {
		return aged
	}
	return ""
}

// authoritiesOf returns the CAs that must cover the peer's certificate. These are the CAs of its role if the
// certificate gives the role, else all.
func (s *peerState) authoritiesOf(a identity.Authorities) *x509.CertPool {
	if s.refusal != nil || s.pass != nil {
		return a.All()
	}
	return a.For(s.identity.Role)
}

// authorities returns the CAs of clients. It is empty if the credentials do not change.
func (p *Port) authorities() identity.Authorities {
	if p.files == nil {
		return identity.Authorities{}
	}
	return p.files.Authorities()
}

// checkServing logs a problem with the port's own certificate, once.
func (p *Port) checkServing() {
	if p.files == nil {
		return
	}
	text := ""
	if err := p.files.Check(); err != nil {
		text = err.Error()
	}
	if text != p.serving && text != "" {
		p.cfg.Log.Error("agents and sources cannot connect", "error", text)
	}
	p.serving = text
}

// all appends the open connections to to.
func (g *limiter) all(to []*Connection) []*Connection {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.AppendSeq(to, g.everyone)
}

// finish ends a connection that may not continue. The peer did nothing wrong. The client may reconnect at once.
func (g *limiter) finish(c *Connection, reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if reason != aged {
		forgetUnsent(c.raw)
	}
	g.shut(c, reason)
}

// forgetUnsent discards the data that the peer has not received when the connection is closed.
func forgetUnsent(raw net.Conn) {
	if c, ok := raw.(*proxyproto.Conn); ok {
		raw = c.Raw()
	}
	if t, ok := raw.(interface{ SetLinger(seconds int) error }); ok {
		_ = t.SetLinger(0) // an error means: closed already
	}
}

// ended logs why the broker ended a connection. It skips unidentified connections, of which there may be too
// many.
func (p *Port) ended(c *Connection, reason string) {
	id := c.peerState().identity
	if c.peerState().refusal != nil {
		return
	}
	p.cfg.Audit.Ended(c.Client(), reason)
	log, client := p.cfg.Log, []any{"reason", reason, "peer", id.String(), "addr", c.addr, "serial", c.serial()}
	switch reason {
	case aged:
		log.Debug("connection ended because of its age", client...)
	case expired, untrusted, revoked, denied, tooEarly:
		log.Warn("connection ended: its certificate or token is no longer valid", client...)
	default:
		log.Warn("connection ended: its peer exceeded a limit", client...)
	}
}

// nearestEnd returns the earliest expiry of a client certificate in the last tenth of its lifetime, in Unix
// nanoseconds; 0 if there is none. A client that renews its certificate by itself has a new one before that.
func (g *limiter) nearestEnd() (first int64) {
	now := g.now().UnixNano()
	for _, c := range g.all(nil) {
		end := c.ends.Load()
		if end == 0 || end-now > (end-c.shown[0].NotBefore.UnixNano())/10 {
			continue
		}
		if first == 0 || end < first {
			first = end
		}
	}
	return first
}
