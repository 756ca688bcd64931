package listener

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/netip"
	"sync"

	"github.com/hawser-io/hawser/internal/broker/tokens"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/transport"
)

// tokenAuth is the token state of a connection. A peer without a mapped certificate is unidentified until a
// token identifies it. The peer keeps that identity until the connection ends.
//
// A token review may need the hub. The goroutine that admits calls does not wait for the hub. During the review
// a limited number of calls may begin. Each of them first waits in [Connection.WaitForIdentity].
type tokenAuth struct {
	mu sync.Mutex
	// text is the token under review, "" if there is none. err is why the last one was rejected.
	text string
	err  error
	// lock has one slot: the caller that holds it requests the review. It is nil before the first review.
	lock taskgroup.Semaphore

	// other is the hash of the last other token of the same account. Only the goroutine that admits calls uses it.
	other [sha256.Size]byte
}

// knownByToken reports whether the peer is identified by a token, or can only be identified by one.
func (c *Connection) knownByToken() bool {
	s := c.peerState()
	return c.port != nil && c.port.cfg.Tokens != nil && !c.trustsPeer && (s.identity.Role == noRole || s.pass != nil)
}

// TakeToken handles the token of a call, "" without one, and does not block. If pending is true, the caller
// must wait for the identity with [Connection.WaitForIdentity]. An error means that the call is rejected. Only
// the goroutine that admits calls may call it.
//
// A token is ignored if the certificate gives an identity. If a token identifies the peer, each call must bring
// that token, or another one of the same account.
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
	return false, nil // May reports what the certificate lacks
}

// firstToken handles a token of an unidentified peer.
func (c *Connection) firstToken(text string) (pending bool, err error) {
	b := &c.token
	b.mu.Lock()
	defer b.mu.Unlock()
	// Scenario:
	//   t1: this call finds the peer unidentified.
	//   t2: a waiting call gets the identity of the token.
	//   t3: no token is under review any more.
	// Without this check, the call would start another review.
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
			b.lock = taskgroup.NewSemaphore(1)
		}
		b.text, b.err = text, nil
		c.port.limiter.suspend(c)
		return true, nil
	}
	return false, c.identified(p)
}

// laterToken checks the token of a later call.
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
	c.token.other = hash // the connection still ends when the first token does
	return nil
}

// WaitForIdentity waits until the token of a call is reviewed. An error means that the call is rejected.
func (c *Connection) WaitForIdentity(ctx context.Context) error {
	b := &c.token
	if !b.lock.Acquire(ctx) {
		return transport.GaveUp(ctx, "the caller cancelled before the token was reviewed")
	}
	defer b.lock.Release()
	if c.peerState().pass != nil {
		return nil
	}
	b.mu.Lock()
	text, last := b.text, b.err
	b.mu.Unlock()
	if text == "" { // the review that another call requested is over
		return last
	}
	p, err := c.port.cfg.Tokens.Authenticate(ctx, text, c.from)
	switch {
	case err == nil:
		err = c.identified(p)
	case ctx.Err() != nil && transport.CodeOf(err) != transport.CodeUnauthenticated:
		return err // the next call requests the review
	default:
		err = c.countBadToken(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text, b.err = "", err
	return err
}

// countBadToken counts a rejected token. A token that could not be reviewed does not count.
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

// identified gives an unidentified peer the identity of its token.
func (c *Connection) identified(p *tokens.TokenRef) error {
	s := *c.peerState()
	s.identity, s.user, s.groups, s.pass, s.refusal = p.Identity, p.User, p.Groups, p, nil
	s.until = oldAt(c.port.limiter.now())
	if err := c.port.limiter.identify(c, &s, c.port.metrics); err != nil {
		p.Release()
		return err
	}
	c.port.limiter.scheduleCheck(c.end())
	if p.Revoked() { // it was revoked after its review, and the check of the revocation did not include this connection
		c.port.limiter.finish(c, revoked)
	}
	c.port.cfg.Audit.Connected(c.Client(), p.Ends)
	return nil
}

// attempt reports whether an address may send another token: bad ones are limited.
func (g *limiter) attempt(from netip.Prefix) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := g.addresses[from]
	return at == nil || at.failures[unknown].Allows(g.limits.failures, g.now())
}

// failed records a rejected token of a connection. If bad is true, it counts as a failure of the address.
func (g *limiter) failed(c *Connection, bad bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.badTokenCounted = true
	if bad {
		g.fail(c.from)
	}
}

func (g *limiter) fail(from netip.Prefix) {
	g.addressOf(from).failures[unknown].Charge(g.limits.failures, g.now(), 1)
}

// suspend lets an unidentified peer begin calls that wait for the review of its token. Their number and size
// are small; see suspended in limits.
func (g *limiter) suspend(c *Connection) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.badTokenCounted = true
	if c.client == nil {
		c.client = &clientUsage{allowance: g.limits.suspended, conns: map[*Connection]struct{}{c: {}}}
	}
}

// identify assigns an unidentified connection to its client, to which its calls then count. It returns an error
// if that is not allowed.
func (g *limiter) identify(c *Connection, s *peerState, m metrics) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.left || c.cutFor != "" || c.peerState().identity.Role != noRole {
		return errExpired
	}
	c.badTokenCounted = false
	// A denial that is added after this line checks all connections, including this one.
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

// evict ends the oldest unidentified connection to make space for a new one. An honest client identifies itself
// at once.
func (g *limiter) evict() {
	var oldest *Connection
	for c := range g.unidentified {
		if c.knownByToken() && c.cutFor == "" && (oldest == nil || c.id < oldest.id) {
			oldest = c
		}
	}
	if oldest != nil {
		g.endConnection(oldest, noMemory)
		delete(g.unidentified, oldest)
	}
}
