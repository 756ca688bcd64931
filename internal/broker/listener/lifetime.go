package listener

import (
	"context"
	"crypto/x509"
	"math"
	"math/rand/v2"
	"net"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/pires/go-proxyproto"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/taskgroup"
)

// why a connection ends of which its peer did nothing wrong; see [Port.over].
const (
	expired   = "expired"
	untrusted = "untrusted"
	revoked   = "revoked"
	denied    = "denied"
	tooEarly  = "issued_too_early"
	aged      = "age"
)

const (
	// lookEvery is how often all connections are looked at.
	lookEvery = 250 * time.Millisecond
	// oldest is how long a connection stays open at most; each gets an age of its
	// own, down to half of it, so that those which came together do not come back
	// together.
	oldest = 12 * time.Hour
)

// learn notes what the handshake showed, and until when the connection may stay.
func (c *Connection) learn(info credentials.AuthInfo, s peerState, end, now time.Time) *peerState {
	s.until = oldAt(now)
	if s.refusal != nil {
		s.until = now.Add(IdleConnection) // it may become better for who comes anew
	}
	if t, ok := info.(credentials.TLSInfo); ok && len(t.State.VerifiedChains) > 0 {
		c.shown = t.State.PeerCertificates
		c.ends.Store(end.UnixNano())
		if s.refusal == nil && s.identity.Role == identity.Agent {
			c.issued = c.authorities.IssuedAt(c.shown, now)
		}
	}
	return &s
}

// oldAt is when a connection ends that begins now, whoever its peer is.
func oldAt(now time.Time) time.Time { return now.Add(oldest - rand.N(oldest/2)) }

// serial is the serial number of the peer's certificate, "" without one.
func (c *Connection) serial() string {
	if len(c.shown) == 0 {
		return ""
	}
	return c.shown[0].SerialNumber.Text(16)
}

// over says why the peer's certificate, or its token, counts no more; "" where it does.
func (c *Connection) over(now time.Time) string {
	if end := c.ends.Load(); end != 0 && now.UnixNano() > end {
		return expired
	}
	switch p := c.peerState().pass; {
	case p == nil:
	case p.Gone():
		return revoked
	case !p.Ends.IsZero() && now.After(p.Ends):
		return expired
	}
	return ""
}

// Watch ends connections that may not go on, until ctx ends.
func (p *Port) Watch(ctx context.Context) {
	p.look(false)
	taskgroup.Every(ctx, lookEvery, func() { p.look(false) })
}

// Look ends the connections that may not go on at this moment, whatever is known
// of when the next one ends.
func (p *Port) Look() { p.look(true) }

// look ends the connections that may not go on at this moment. When it returns,
// nothing is read from them or sent to them any more. Where there are thousands,
// to look at each several times a second would cost more than they do: that is
// done where one ends, or the CAs have changed, or somebody says so.
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

// end is when the connection has to be looked at, in Unix nanoseconds.
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

// scheduleCheck has all connections looked at then, or before.
func (g *limiter) scheduleCheck(when int64) {
	for next := g.next.Load(); when < next; next = g.next.Load() {
		if g.next.CompareAndSwap(next, when) {
			return
		}
	}
}

// over says why a connection may not go on, "" when it may.
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

// authoritiesOf are the CAs that have to cover the peer's certificate: those of its role, if it is the
// certificate that says the role.
func (s *peerState) authoritiesOf(a identity.Authorities) *x509.CertPool {
	if s.refusal != nil || s.pass != nil {
		return a.All()
	}
	return a.For(s.identity.Role)
}

// authorities are the CAs of clients; none where they do not change.
func (p *Port) authorities() identity.Authorities {
	if p.files == nil {
		return identity.Authorities{}
	}
	return p.files.Authorities()
}

// checkServing logs once what is wrong with the port's own certificate.
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

// all appends the connections that are open.
func (g *limiter) all(to []*Connection) []*Connection {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.clients {
		for c := range p.conns {
			to = append(to, c)
		}
	}
	for c := range g.unidentified {
		to = append(to, c)
	}
	return to
}

// finish ends a connection that may not go on, through no fault of its peer:
// that may come back at once, if it can.
func (g *limiter) finish(c *Connection, reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.cutFor != "" {
		return
	}
	c.cutFor = reason
	if c.client != nil {
		g.drop(c)
	}
	if reason != aged {
		forgetUnsent(c.raw)
	}
	_ = c.raw.Close() // who reads it hears of it
	g.ended(reason)
}

// forgetUnsent makes the end of a connection take what its peer has not received
// along.
func forgetUnsent(raw net.Conn) {
	if c, ok := raw.(*proxyproto.Conn); ok {
		raw = c.Raw()
	}
	if t, ok := raw.(interface{ SetLinger(seconds int) error }); ok {
		_ = t.SetLinger(0) // it is closed already, at worst
	}
}

// ended tells why the broker ended a connection. Strangers are too many to be
// named.
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
		log.Warn("connection ended because its certificate or token does not count any more", client...)
	default:
		log.Warn("connection ended because of what its peer did", client...)
	}
}

// nearestEnd is when the first certificate of a connection ends that is in the last tenth of its
// life, in Unix nanoseconds; 0 without one. Who renews by itself never comes so far.
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
