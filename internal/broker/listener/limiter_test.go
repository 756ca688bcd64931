package listener

import (
	"crypto/x509"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/transport"
)

// TestLimitsFor checks how the resources of a process are divided: the store keeps its files, and bodies get an
// eighth of the memory.
func TestLimitsFor(t *testing.T) {
	for name, c := range map[string]struct {
		have                                    resources
		message, handshakes                     int
		connections, pending, each              int
		bodies, bodiesEach                      int64
		unidentifiedAtMost, unidentifiedAtLeast int
	}{
		"as a container":   {resources{512 << 20, 1 << 20}, 16 << 20, 64, 1<<20 - 600, 256, 64, 128 << 20, 48 << 20, 32, 32},
		"few files":        {resources{1 << 30, 1024}, 16 << 20, 64, 424, 212, 64, 128 << 20, 48 << 20, 32, 32},
		"hardly any files": {resources{1 << 30, 64}, 16 << 20, 64, 64, 32, 16, 128 << 20, 48 << 20, 8, 8},
		"little memory":    {resources{64 << 20, 1024}, 16 << 20, 64, 424, 212, 64, 128 << 20, 48 << 20, 32, 32},
		"much memory":      {resources{64 << 30, 1024}, 16 << 20, 64, 424, 212, 64, 256 << 20, 48 << 20, 32, 32},
		"large events":     {resources{1 << 30, 1024}, 64 << 20, 64, 424, 212, 64, 512 << 20, 192 << 20, 32, 32},
		"behind SNAT":      {resources{1 << 30, 1 << 20}, 16 << 20, 4096, 1<<20 - 600, 8192, 4096, 128 << 20, 48 << 20, 32, 32},
	} {
		l := limitsFor(c.have, c.message, c.handshakes)
		got := fmt.Sprint(l.connections, l.pending, l.pendingEach, l.bodies, l.roles[identity.Agent].bodies)
		if want := fmt.Sprint(c.connections, c.pending, c.each, c.bodies, c.bodiesEach); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		if l.unidentified < c.unidentifiedAtLeast || l.unidentified > c.unidentifiedAtMost {
			t.Errorf("%s: %d unidentified connections", name, l.unidentified)
		}
		for _, r := range []identity.Role{identity.Agent, identity.Source, identity.Operator, identity.Viewer} {
			if a := l.roles[r]; a.connections == 0 || a.running[Unary] == 0 || a.running[Reflecting] != 1 || a.calls.Burst == 0 {
				t.Errorf("%s: %s may use %+v", name, r, a)
			}
		}
	}
}

func TestPrefixOf(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.7": "192.0.2.7/32", "::ffff:192.0.2.7": "192.0.2.7/32", "2001:db8:1:2:3::4": "2001:db8:1:2::/64", "fe80::1%eth0": "fe80::/64",
	} {
		a := net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(in), 1))
		if got := prefixOf(a); got.String() != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

// fromConn is a connection that comes from an address.
type fromConn struct {
	net.Conn
	addr   string
	closed bool
}

func (c *fromConn) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(c.addr), 1))
}
func (c *fromConn) Close() error { c.closed = true; return nil }

// limiterOf returns a limiter, its clock, which only the test moves, and the reasons of ended connections.
func limiterOf(l limits) (*limiter, *time.Time, *[]string) {
	now, ended := time.Unix(1000, 0), []string{}
	g := newLimiter(l, func(reason string) { ended = append(ended, reason) })
	g.now = func() time.Time { return now }
	return g, &now, &ended
}

var smallLimits = limits{
	connections: 6, pending: 4, pendingEach: 3, queued: 2, computing: 1, failures: per(1, 2), unidentified: 1, bodies: 1000, lists: 1,
	roles: map[identity.Role]allowance{
		identity.Agent:  perIdentity(2, [numKinds]int{2, 1, 0, 1}, per(1, 10), fair.Rate{}, 600),
		identity.Viewer: perIdentity(2, [numKinds]int{2, 1, 4, 1}, per(1, 10), fair.Rate{}, 600),
	},
}

// waiting queues a connection and returns the reason if it is rejected.
func waiting(g *limiter, c *fromConn, by class) string {
	key := prefixOf(c.RemoteAddr())
	return g.arrive(&arrival{raw: c, from: c.RemoteAddr(), key: key, address: key, class: by})
}

// arrives queues a connection whose handshake begins at once.
func arrives(t *testing.T, g *limiter, addr string) *fromConn {
	t.Helper()
	c := &fromConn{addr: addr}
	if reason := waiting(g, c, unknown); reason != "" {
		t.Fatalf("%s: refused: %s", addr, reason)
	}
	if a := g.nextHandshake(); a == nil || a.raw != net.Conn(c) {
		t.Fatalf("%s: the next is %+v", addr, a)
	}
	return c
}

func connectionOf(id identity.Identity, raw net.Conn) *Connection {
	c := &Connection{raw: raw, bodies: map[uint32]*Body{}}
	c.state.Store(&peerState{identity: id})
	return c
}

func enters(t *testing.T, g *limiter, raw net.Conn, id identity.Identity) *Connection {
	t.Helper()
	c := connectionOf(id, raw)
	if !g.enter(g.arrival(raw), c) {
		t.Fatalf("%s: no room", id)
	}
	return c
}

// TestLimiter_ConnectionsOfOneIdentity checks that an identity over its limit still gets a connection, which
// reports the reason, while the maximum of unidentified connections is not reached.
func TestLimiter_ConnectionsOfOneIdentity(t *testing.T) {
	g, _, _ := limiterOf(smallLimits)
	id := identity.Identity{Role: identity.Agent, Name: "c1"}
	first := enters(t, g, arrives(t, g, "192.0.2.1"), id)
	enters(t, g, arrives(t, g, "192.0.2.1"), id)
	third := enters(t, g, arrives(t, g, "192.0.2.1"), id)
	if third.client != nil || transport.CodeOf(third.peerState().refusal) != transport.CodeOverloaded || third.peerState().refusal.sent.Hint == "" {
		t.Errorf("the third: %v", third.peerState().refusal)
	}
	raw := arrives(t, g, "192.0.2.2")
	if g.enter(g.arrival(raw), connectionOf(id, raw)) {
		t.Error("the fourth finds room")
	}
	other := enters(t, g, arrives(t, g, "192.0.2.2"), identity.Identity{Role: identity.Agent, Name: "c2"})
	if other.peerState().refusal != nil {
		t.Errorf("another identity: %v", other.peerState().refusal)
	}
	g.exit(first)
	g.exit(third)
	if again := enters(t, g, arrives(t, g, "192.0.2.3"), id); again.peerState().refusal != nil {
		t.Errorf("after one has left: %v", again.peerState().refusal)
	}
	if u := g.usage(); u.Connections[Peers{Role: identity.Agent}] != 3 || u.Connections[Peers{}] != 0 || g.open != 3 {
		t.Errorf("%v, %d open", u.Connections, g.open)
	}
}

// TestLimiter_Calls checks that the calls of each kind have their own limit and are released. Lists have one
// limit for all identities.
func TestLimiter_Calls(t *testing.T) {
	g, now, _ := limiterOf(smallLimits)
	agent := enters(t, g, arrives(t, g, "192.0.2.1"), identity.Identity{Role: identity.Agent, Name: "c1"})
	bodies := []*Body{{of: agent, stream: 1}, {of: agent, stream: 3}, {of: agent, stream: 5}, {of: agent, stream: 7}}
	for n, want := range []transport.Code{-1, -1, transport.CodeOverloaded} {
		if err := g.begin(agent, Unary, bodies[n]); (err == nil) != (want < 0) || err != nil && transport.CodeOf(err) != want {
			t.Errorf("call %d: %v", n, err)
		}
	}
	if err := g.begin(agent, Streaming, bodies[3]); err != nil {
		t.Errorf("a stream beside them: %v", err)
	}
	g.end(bodies[0])
	g.end(bodies[0])
	if err := g.begin(agent, Unary, bodies[2]); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	g.end(bodies[2])
	g.reset(agent, bodies[1].stream) // costs more than the rest of the burst
	if err := g.begin(agent, Unary, bodies[2]); transport.CodeOf(err) != transport.CodeOverloaded {
		t.Errorf("after a reset: %v", err)
	}
	*now = now.Add(time.Minute)
	if err := g.begin(agent, Unary, bodies[2]); err != nil {
		t.Errorf("a minute later: %v", err)
	}

	one := enters(t, g, arrives(t, g, "192.0.2.2"), identity.Identity{Role: identity.Viewer, Name: "v1"})
	two := enters(t, g, arrives(t, g, "192.0.2.2"), identity.Identity{Role: identity.Viewer, Name: "v2"})
	listed := &Body{of: one, stream: 1}
	if err := g.begin(one, Listing, listed); err != nil {
		t.Error(err)
	}
	if err := g.begin(two, Listing, &Body{of: two, stream: 1}); transport.CodeOf(err) != transport.CodeOverloaded {
		t.Errorf("a second list: %v", err)
	}
	g.end(listed)
	if err := g.begin(two, Listing, &Body{of: two, stream: 3}); err != nil {
		t.Errorf("after the first: %v", err)
	}
}

// TestLimiter_ListsOfOneIdentity checks that an identity may have at most as many lists as are still free, so
// that two identities never have all of them.
func TestLimiter_ListsOfOneIdentity(t *testing.T) {
	l := limitsFor(resources{memory: 4 << 30, files: 1024}, mib, 64)
	g, _, _ := limiterOf(l)
	var all []*Body
	for n, most := range []int{4, 2, 1, 1, 0} {
		c := enters(t, g, arrives(t, g, "192.0.2.1"), identity.Identity{Role: identity.Viewer, Name: fmt.Sprint("v", n)})
		for i := range l.lists {
			b := &Body{of: c, stream: uint32(2*i + 1)}
			if err := g.begin(c, Listing, b); (err == nil) != (i < most) || err != nil && transport.CodeOf(err) != transport.CodeOverloaded {
				t.Errorf("viewer %d, list %d of %d: %v", n, i, most, err)
			}
			all = append(all, b)
		}
	}
	for _, b := range all {
		g.end(b)
	}
	if g.lists != 0 {
		t.Errorf("%d lists run when all have ended", g.lists)
	}
}

// TestLimiter_Bodies checks that over the budget the connection with the most incomplete bytes is ended, and
// its bytes are released at once.
func TestLimiter_Bodies(t *testing.T) {
	g, _, ended := limiterOf(smallLimits)
	conn := func(role identity.Role, name string) (*Connection, *fromConn) {
		raw := arrives(t, g, "192.0.2.1")
		return enters(t, g, raw, identity.Identity{Role: role, Name: name}), raw
	}
	begin := func(c *Connection, stream uint32) *Body {
		b := &Body{of: c, stream: stream}
		if err := g.begin(c, Unary, b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	a1, raw1 := conn(identity.Agent, "a")
	a2, raw2 := conn(identity.Agent, "a")
	b1, rawB := conn(identity.Agent, "b")
	finished := begin(a1, 1)
	g.grow(finished.of, finished.stream, 300, true) // the request is complete and is served
	half := begin(a2, 1)
	g.grow(half.of, half.stream, 200, false)
	other := begin(b1, 1)
	g.grow(other.of, other.stream, 400, false)
	if len(*ended) != 0 {
		t.Fatalf("ended %v within the budget", *ended)
	}
	g.grow(half.of, half.stream, 150, false) // the identity has 650 bytes
	if !raw2.closed || raw1.closed || rawB.closed {
		t.Error("not the one that holds the most unfinished")
	}
	if bodies := g.usage().Bodies; bodies != 700 {
		t.Errorf("%d bytes are held after the end of a connection", bodies)
	}
	g.grow(half.of, half.stream, 1000, false) // bytes in flight are no longer counted
	g.end(half)
	c1, _ := conn(identity.Viewer, "c")
	last := begin(c1, 1)
	g.grow(last.of, last.stream, 310, false) // all identities have 1010 bytes
	if !rawB.closed {
		c, n := other.of.unfinished(), last.of.unfinished()
		t.Errorf("not the one of all that holds the most: %d and %d", c, n)
	}
	g.end(other)
	g.end(finished)
	g.end(last)
	if bodies := g.usage().Bodies; bodies != 0 || fmt.Sprint(*ended) != "[bodies bodies]" {
		t.Errorf("%d bytes in the end, ended %v", bodies, *ended)
	}
}

// TestLimiter_Forgets checks that entries without a relevant state are dropped, so that memory does not grow
// with each client.
func TestLimiter_Forgets(t *testing.T) {
	l := smallLimits
	l.connections = 10
	g, now, _ := limiterOf(l)
	for n := range 10_000 {
		*now = now.Add(10 * time.Second)
		raw := arrives(t, g, netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}).String())
		g.exit(enters(t, g, raw, identity.Identity{Role: identity.Agent, Name: fmt.Sprint(n)}))
	}
	if n := len(g.addresses) + len(g.clients); n > 2<<10 {
		t.Errorf("%d are remembered", n)
	}
}

// TestLimiter_Ahead checks the byte rate of an agent, on all its connections, and of an unidentified
// connection. A source is not delayed, and each debt ends.
func TestLimiter_Ahead(t *testing.T) {
	l := smallLimits
	l.roles = maps.Clone(l.roles)
	limited := l.roles[identity.Agent]
	limited.bytes = per(100, 400)
	l.roles[identity.Agent] = limited
	l.roles[identity.Source] = l.roles[identity.Viewer]
	l.unidentifiedRate.bytes = per(10, 20)
	g, now, _ := limiterOf(l)
	agent := identity.Identity{Role: identity.Agent, Name: "c1"}
	one, two := enters(t, g, arrives(t, g, "192.0.2.1"), agent), enters(t, g, arrives(t, g, "192.0.2.2"), agent)
	source := enters(t, g, arrives(t, g, "192.0.2.3"), identity.Identity{Role: identity.Source, Name: "hub"})
	unidentified := enters(t, g, arrives(t, g, "192.0.2.4"), agent) // the agent may have two connections
	for n, c := range []struct {
		of    *Connection
		bytes int
		wait  time.Duration
	}{
		{one, 400, 0},
		{two, 50, 500 * time.Millisecond},
		{one, 50, time.Second},
		{source, 1 << 30, 0},
		{unidentified, 21, 100 * time.Millisecond},
		{two, 0, 0},
		{two, 1 << 30, 4 * time.Second},
	} {
		if wait := g.ahead(c.of, c.bytes); wait != c.wait {
			t.Errorf("%d: %d bytes wait %v, want %v", n, c.bytes, wait, c.wait)
		}
	}
	if *now = now.Add(7 * time.Second); g.ahead(one, 300) != 0 {
		t.Error("it waits for a debt of seven seconds ago")
	}
}

// TestLimiter_NearestEnd checks that normal renewals raise no alarm. A joined agent renews when a fifth of the
// lifetime is left, for example six days of a month.
func TestLimiter_NearestEnd(t *testing.T) {
	const day = 24 * time.Hour
	g, now, _ := limiterOf(limitsFor(resources{1 << 30, 1024}, 16<<20, 64))
	for i, ends := range []time.Duration{30 * day, 33 * day} {
		addr := fmt.Sprintf("192.0.2.%d", i)
		c := enters(t, g, arrives(t, g, addr), identity.Identity{Role: identity.Agent, Name: addr})
		c.shown = []*x509.Certificate{{NotBefore: now.Add(ends - 30*day)}}
		c.ends.Store(now.Add(ends).UnixNano())
	}
	enters(t, g, arrives(t, g, "192.0.2.9"), identity.Identity{Role: identity.Agent, Name: "by-token"})
	began := *now
	for after, want := range map[time.Duration]time.Duration{0: 0, 24 * day: 0, 27 * day: 30 * day, 29 * day: 30 * day} {
		*now = began.Add(after)
		if got := g.nearestEnd(); want == 0 && got != 0 || want != 0 && got != began.Add(want).UnixNano() {
			t.Errorf("after %s the earliest certificate expiry is %d", after, got)
		}
	}
}
