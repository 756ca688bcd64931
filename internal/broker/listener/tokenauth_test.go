package listener

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/tokens"
	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// review returns the result of the hub for any token.
type review func() (*hawserv1.TokenReviewResult, error)

// Review implements tokens.Reviewer.
func (r review) Review(context.Context, string, []string) (*hawserv1.TokenReviewResult, error) {
	return r()
}

// unknownToken is the review of a hub that knows no token.
func unknownToken() (*hawserv1.TokenReviewResult, error) { return &hawserv1.TokenReviewResult{}, nil }

// bearing returns the limiter of a port that accepts tokens, and a function that adds unidentified connections.
func bearing(t *testing.T, l limits, hub review) (g *limiter, enter func(addr string) (*Connection, *fromConn)) {
	t.Helper()
	all, err := tokens.New(tokens.Options{
		Config:   tokens.Config{Audiences: []string{"hawser"}, Mapping: []tokens.Rule{{User: "u", Role: identity.Viewer, Name: "v"}}},
		Reviewer: hub, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	g, _, _ = limiterOf(l)
	p := &Port{limiter: g, cfg: Config{Tokens: all}, metrics: newMetrics(prometheus.NewRegistry())}
	return g, func(addr string) (*Connection, *fromConn) {
		raw := arrives(t, g, addr)
		c := connectionOf(identity.Identity{}, raw)
		c.state.Store(&peerState{refusal: unidentified()})
		c.port, c.from, c.id = p, prefixOf(raw.RemoteAddr()), connIDs.Add(1)
		if !g.enter(g.arrival(raw), c) {
			t.Fatalf("%s: no room", addr)
		}
		return c, raw
	}
}

var viewer1 = identity.Identity{Role: identity.Viewer, Name: "v"}

// becomeViewer gives an unidentified connection the identity of a viewer, as a token would.
func (c *Connection) becomeViewer(g *limiter) error {
	s := *c.peerState()
	s.identity, s.refusal = viewer1, nil
	return g.identify(c, &s, c.port.metrics)
}

// TestLimiter_Identify checks that after identification the calls of a connection count for its client, and are
// released there.
func TestLimiter_Identify(t *testing.T) {
	l := smallLimits
	l.suspended = perIdentity(1, [numKinds]int{Unary: 2, Streaming: 2}, per(10, 10), fair.Rate{}, 500)
	g, enter := bearing(t, l, unknownToken)
	c, _ := enter("192.0.2.1")
	g.suspend(c)
	unary, list := &Body{of: c, stream: 1}, &Body{of: c, stream: 3}
	for k, b := range map[Kind]*Body{Unary: unary, Listing: list} {
		if err := g.begin(c, k, b); err != nil {
			t.Fatal(err)
		}
	}
	if g.lists != 0 {
		t.Error("an unidentified connection takes a list slot")
	}
	g.grow(unary.of, unary.stream, 100, false)
	if err := c.becomeViewer(g); err != nil {
		t.Fatal(err)
	}
	p := g.clients[viewer1]
	if p.kinds[Unary] != 1 || p.kinds[Streaming] != 1 || p.bodies != 100 || len(g.unidentified) != 0 || c.client != p || len(p.conns) != 1 {
		t.Errorf("%v calls, %d bytes, %d unidentified connections", p.kinds, p.bodies, len(g.unidentified))
	}
	if err := c.becomeViewer(g); err == nil || p.kinds[Unary] != 1 {
		t.Errorf("it was identified twice: %v, %v", err, p.kinds)
	}
	g.grow(unary.of, unary.stream, 50, true)
	g.end(unary)
	g.end(list)
	if p.kinds != [numKinds]int{} || p.bodies != 0 || g.bodies != 0 {
		t.Errorf("%v calls, %d bytes are left", p.kinds, p.bodies)
	}
	second, _ := enter("192.0.2.1")
	if err := second.becomeViewer(g); err != nil {
		t.Error(err)
	}
	g.exit(c)
	if err := c.becomeViewer(g); err == nil {
		t.Error("a connection that has left got an identity")
	}
	g.exit(second)
	if len(p.conns) != 0 || g.open != 0 {
		t.Errorf("%d connections are left, %d open", len(p.conns), g.open)
	}
}

// TestLimiter_Suspended checks that an unidentified connection that sends more than allowed is ended, and
// releases its bytes.
func TestLimiter_Suspended(t *testing.T) {
	l := smallLimits
	l.unidentified = 2
	l.suspended = perIdentity(1, [numKinds]int{Unary: 2, Streaming: 2}, per(10, 10), fair.Rate{}, 500)
	g, enter := bearing(t, l, unknownToken)
	c, raw := enter("192.0.2.1")
	other, rawOther := enter("192.0.2.2")
	bodies := map[*Connection]*Body{c: {of: c, stream: 1}, other: {of: other, stream: 1}}
	for c, b := range bodies {
		g.suspend(c)
		if err := g.begin(c, Unary, b); err != nil {
			t.Fatal(err)
		}
		g.grow(b.of, b.stream, 400, false)
	}
	g.grow(bodies[c].of, bodies[c].stream, 100, false)
	if raw.closed || rawOther.closed {
		t.Error("ended within its bound")
	}
	g.grow(bodies[c].of, bodies[c].stream, 1, false)
	if !raw.closed || c.cutFor != "bodies" || rawOther.closed || g.bodies != 400 {
		t.Errorf("closed %v for %q, the other %v, %d bytes are held", raw.closed, c.cutFor, rawOther.closed, g.bodies)
	}
}

// TestLimiter_IdentifyTooMany checks that the limits of an identity also apply after a token has identified a
// connection.
func TestLimiter_IdentifyTooMany(t *testing.T) {
	l := smallLimits
	l.unidentified = 3
	g, enter := bearing(t, l, unknownToken)
	for n := range 3 {
		c, _ := enter("192.0.2.1")
		if err := c.becomeViewer(g); (err == nil) != (n < 2) || err != nil && transport.CodeOf(err) != transport.CodeOverloaded {
			t.Errorf("connection %d: %v", n, err)
		}
	}
}

// TestLimiter_Unidentified checks that the oldest unidentified connection is ended when there are too many. A
// connection that ends without an identity counts as a failed handshake.
func TestLimiter_Unidentified(t *testing.T) {
	l := smallLimits
	l.unidentified, l.connections = 2, 20
	l.failures = per(1, 3)
	g, enter := bearing(t, l, unknownToken)
	first, raw1 := enter("192.0.2.1")
	second, raw2 := enter("192.0.2.1")
	third, _ := enter("192.0.2.2")
	if !raw1.closed || raw2.closed || len(g.unidentified) != 2 {
		t.Errorf("closed %v and %v, %d unidentified connections", raw1.closed, raw2.closed, len(g.unidentified))
	}
	if err := first.becomeViewer(g); err == nil {
		t.Error("one that is closed has an identity")
	}
	if err := third.becomeViewer(g); err != nil {
		t.Error(err)
	}
	for _, c := range []*Connection{first, second, third} {
		g.exit(c)
	}
	if g.open != 0 || len(g.unidentified) != 0 {
		t.Errorf("%d are open, %d unidentified connections", g.open, len(g.unidentified))
	}
	if !g.attempt(first.from) || !g.attempt(third.from) {
		t.Error("addresses of few failures may not go on")
	}
	g.failed(first, true)
	if g.attempt(first.from) {
		t.Error("an address with three failures may go on")
	}
}

// TestLimiter_Failures checks that a bad token counts once, also if its caller does not wait. A token that
// could not be reviewed does not count. Otherwise an outage of the hub would lock out clients with a
// certificate at the same address.
func TestLimiter_Failures(t *testing.T) {
	l := smallLimits
	l.connections, l.failures = 20, per(1, 3)
	l.suspended = perIdentity(1, [numKinds]int{Unary: 2}, per(10, 10), fair.Rate{}, 500)
	const opaque = "abcdef.0123456789abcdef"
	for name, c := range map[string]struct {
		hub  review
		text string
		gone bool // the caller has given up when the review is done
		most int  // number of failed connections after which the address is not locked out yet
	}{
		"bad":                  {unknownToken, opaque, false, 2},
		"bad, no caller waits": {unknownToken, opaque, true, 2},
		"no token":             {unknownToken, "", false, 2},
		"away":                 {func() (*hawserv1.TokenReviewResult, error) { return nil, errors.New("away") }, opaque, false, 10},
		"without keys":         {unknownToken, "e30.e30.e30", false, 10},
		"kept out": {func() (*hawserv1.TokenReviewResult, error) {
			return &hawserv1.TokenReviewResult{Authenticated: true, User: "u"}, nil
		}, opaque, false, 2},
	} {
		var leave context.CancelFunc
		g, enter := bearing(t, l, func() (*hawserv1.TokenReviewResult, error) {
			if c.gone {
				leave()
			}
			return c.hub()
		})
		g.denied = func(identity.Identity, *Connection) *refusal { return unidentified() }
		for n := range c.most + 1 {
			conn, _ := enter("192.0.2.1")
			if !g.attempt(conn.from) {
				t.Fatalf("%s: after %d connections the address is out", name, n)
			}
			var ctx context.Context
			ctx, leave = context.WithCancel(t.Context())
			pending, err := conn.TakeToken(c.text)
			if pending {
				err = conn.WaitForIdentity(ctx)
			}
			if err == nil {
				t.Errorf("%s: it counts", name)
			}
			g.exit(conn)
			leave()
		}
		if still := g.attempt(prefixOf(&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)})); still != (c.most == 10) {
			t.Errorf("%s: after %d connections the address may go on: %v", name, c.most+1, still)
		}
	}
}
