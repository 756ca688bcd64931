package listener

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/netip"
	"sync"

	"github.com/hawser-io/hawser/internal/broker/tokens"
	"github.com/hawser-io/hawser/pkg/transport"
)

// tokenAuth is what a connection keeps of tokens. A peer that showed no certificate which means
// somebody is a stranger until a token has said who it is; from then on it is that as long as the
// connection is open.
//
// To judge a token may need the hub. Whoever admits calls does not wait for that: calls may begin
// meanwhile, within bounds, and each of them waits in [Connection.WaitForIdentity] before it does anything.
type tokenAuth struct {
	mu sync.Mutex
	// text is the token that is being judged, "" where none is. err is why the last one did not
	// count.
	text string
	err  error
	// lock has room for who asks about it; nil before the first one.
	lock chan struct{}

	// other is another token of the same account that came last; of who admits calls.
	other [sha256.Size]byte
}

// knownByToken reports whether the peer is known by a token, if at all.
func (c *Connection) knownByToken() bool {
	s := c.peerState()
	return c.port != nil && c.port.cfg.Tokens != nil && !c.trustsPeer && (s.identity.Role == noRole || s.pass != nil)
}

// TakeToken takes the token that came with a call, "" where none did, and does not wait. pending: who
// the peer is has to be waited for with [Connection.WaitForIdentity]. The error is why the call is refused.
// It is for who admits calls, one at a time.
//
// A peer whose certificate means somebody is that, whatever token it gives. Where the peer is known
// by a token, each of its calls has to bring that one, or another one of the same account.
func (c *Connection) TakeToken(text string) (pending bool, err error) {
	s := c.peerState()
	bare := s.refusal != nil && s.refusal.reason == noCertificate
	switch takes := c.port != nil && c.port.cfg.Tokens != nil; {
	case c.trustsPeer, s.identity.Role != noRole && s.pass == nil:
		return false, nil
	case takes && text != "" && s.pass != nil:
		return false, c.laterToken(s.pass, text)
	case takes && text != "":
		return c.firstToken(text)
	case takes && (bare || s.pass != nil):
		return false, tokenless()
	case bare && text != "":
		return false, takesNone()
	}
	return false, nil // what its certificate lacks, May says
}

// firstToken takes a token that is to say who the peer is.
func (c *Connection) firstToken(text string) (pending bool, err error) {
	b := &c.token
	b.mu.Lock()
	defer b.mu.Unlock()
	// t1 this call finds a stranger, t2 a call that waits hears whose the token is, t3 nothing is
	// being judged any more: it is looked at again who that is.
	if p := c.peerState().pass; p != nil {
		return false, c.laterToken(p, text)
	}
	switch b.text {
	case text:
		return true, nil
	case "":
	default:
		return false, severalTokens()
	}
	if !c.port.limiter.attempt(c.from) {
		return false, tooManyTokens(c.from)
	}
	p, wait, err := c.port.cfg.Tokens.Look(text)
	switch {
	case err != nil:
		return false, c.countBadToken(err)
	case wait:
		if b.lock == nil {
			b.lock = make(chan struct{}, 1)
		}
		b.text, b.err = text, nil
		c.port.limiter.suspend(c)
		return true, nil
	}
	return false, c.identified(p)
}

// laterToken takes the token of a later call.
func (c *Connection) laterToken(p *tokens.TokenRef, text string) error {
	if p.Is(text) {
		return nil
	}
	hash := sha256.Sum256([]byte(text))
	if hash == c.token.other {
		return nil
	}
	if !c.port.limiter.attempt(c.from) {
		return tooManyTokens(c.from)
	}
	if err := c.port.cfg.Tokens.SameAccount(p, text); err != nil {
		return c.countBadToken(err)
	}
	c.token.other = hash // the connection ends with the first one all the same
	return nil
}

// WaitForIdentity waits until it is known whose token a call brought. The error is why the call is refused.
func (c *Connection) WaitForIdentity(ctx context.Context) error {
	b := &c.token
	select { // one asks
	case b.lock <- struct{}{}:
		defer func() { <-b.lock }()
	case <-ctx.Done():
		return transport.GaveUp(ctx, "nobody waits for what the hub says of the token")
	}
	if c.peerState().pass != nil {
		return nil
	}
	b.mu.Lock()
	text, last := b.text, b.err
	b.mu.Unlock()
	if text == "" { // t1 two calls bring the token, t2 the first one is told that it does not count
		return last
	}
	p, err := c.port.cfg.Tokens.Authenticate(ctx, text, c.from)
	switch {
	case err == nil:
		err = c.identified(p)
	case ctx.Err() != nil && transport.CodeOf(err) != transport.CodeUnauthenticated:
		return err // the next call asks
	default:
		err = c.countBadToken(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text, b.err = "", err
	return err
}

// countBadToken counts a token that does not count. One that nobody could judge is not a bad one.
func (c *Connection) countBadToken(err error) error {
	c.port.limiter.failed(c, transport.CodeOf(err) == transport.CodeUnauthenticated)
	var reported *transport.Error
	if !errors.As(err, &reported) {
		return err
	}
	reason := badToken
	if reported.Code != transport.CodeUnauthenticated {
		reason = reported.Code.String()
	}
	return &refusal{reason: reason, sent: reported}
}

// identified makes the stranger who its token says.
func (c *Connection) identified(p *tokens.TokenRef) error {
	s := *c.peerState()
	s.identity, s.user, s.groups, s.pass, s.refusal = p.Identity, p.User, p.Groups, p, nil
	s.until = oldAt(c.port.limiter.now())
	if err := c.port.limiter.identify(c, &s, c.port.metrics); err != nil {
		p.Release()
		return err
	}
	c.port.limiter.scheduleCheck(c.end())
	if p.Gone() { // t1 it counted, t2 it ended and everybody looked, t3 the connection was found to rest on it
		c.port.limiter.finish(c, revoked)
	}
	c.port.cfg.Audit.Connected(c.Client(), p.Ends)
	return nil
}

// attempt reports whether somebody of an address may show a token that may be a bad one.
func (g *limiter) attempt(from netip.Prefix) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := g.addresses[from]
	return at == nil || at.failures.Allows(g.limits.failures, g.now())
}

// failed counts a token of a connection that was bad, unless nobody could say whether it is.
func (g *limiter) failed(c *Connection, bad bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.badTokenCounted = true
	if bad {
		g.fail(c.from)
	}
}

func (g *limiter) fail(from netip.Prefix) {
	at := g.addresses[from]
	if at == nil {
		g.collect()
		at = &address{}
		g.addresses[from] = at
	}
	at.failures.Charge(g.limits.failures, g.now(), 1)
}

// suspend lets a stranger begin calls that wait until it is known who that is: few, and small
// ones.
func (g *limiter) suspend(c *Connection) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.badTokenCounted = true
	if c.client == nil {
		c.client = &clientUsage{allowance: g.limits.suspended, conns: map[*Connection]struct{}{c: {}}}
	}
}

// identify makes a stranger a connection of its party, which has its calls from then on. The
// result is why it may not be.
func (g *limiter) identify(c *Connection, s *peerState, m metrics) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.left || c.cutFor != "" || c.peerState().identity.Role != noRole {
		return errOver
	}
	c.badTokenCounted = false
	// Whoever denies it meanwhile looks at all connections afterwards, and finds this one.
	if r := g.denied(s.identity, c); r != nil {
		return r
	}
	p, r := g.admit(s.identity)
	if r != nil {
		return r
	}
	if was := c.client; was != nil {
		for k, n := range was.kinds {
			p.kinds[k] += n
		}
		p.bodies += was.bodies
	}
	delete(g.unidentified, c)
	c.client = p
	p.conns[c] = struct{}{}
	s.allowed = &p.allowance
	s.calls, s.received, s.sent = m.of(s.identity.Role, c.transport)
	c.state.Store(s)
	return nil
}

// evict ends the stranger that has been there for the longest without having said who it is, where
// there is no room for another one. Whoever means it well says it at once.
func (g *limiter) evict() {
	var oldest *Connection
	for c := range g.unidentified {
		if c.knownByToken() && c.cutFor == "" && (oldest == nil || c.id < oldest.id) {
			oldest = c
		}
	}
	if oldest != nil {
		g.drop(oldest)
		g.endConnection(oldest, noMemory)
		delete(g.unidentified, oldest)
	}
}
