package listener

import (
	"iter"
	"maps"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/taskgroup"
)

// limiter counts what peers use and decides what is too much. Its only I/O is to close connections, and it
// never blocks. Methods may be called concurrently.
type limiter struct {
	limits limits
	now    func() time.Time
	// ended is called with the reason when the limiter ends a connection. It must not block.
	ended func(reason string)
	// denied returns the refusal of an identity, or of a connection's certificate, that an operator or the hub has
	// denied. It returns nil if neither has.
	denied func(id identity.Identity, c *Connection) *refusal

	next atomic.Int64 // time of the next check of all connections, in Unix nanoseconds

	mu   sync.Mutex
	open int // number of connections, including those of the admission
	admission
	unidentified map[*Connection]struct{}
	clients      map[identity.Identity]*clientUsage
	collectAt    int // number of addresses and clients that starts the next collect
	bodies       int64
	calls, lists int // that run
}

func newLimiter(l limits, ended func(string)) *limiter {
	return &limiter{
		limits: l, now: time.Now, ended: ended, collectAt: 1 << 10,
		denied: func(identity.Identity, *Connection) *refusal { return nil }, unidentified: map[*Connection]struct{}{},
		admission: admission{pending: map[net.Conn]*arrival{}, addresses: map[netip.Prefix]*address{}, wake: taskgroup.NewBell()}, clients: map[identity.Identity]*clientUsage{},
	}
}

// clientUsage is what one identity uses.
type clientUsage struct {
	allowance

	connects, calls, bytes, questions, idle fair.Bucket

	conns      map[*Connection]struct{}
	kinds      [numKinds]int
	bodies     int64
	reflection *Body // body of the last reflection stream
}

// isIdle reports whether the entry can be dropped without losing a limit.
func (p *clientUsage) isIdle(now time.Time) bool {
	return len(p.conns) == 0 && p.kinds == [numKinds]int{} && p.connects.Full(p.allowance.connects, now) && p.calls.Full(p.allowance.calls, now) &&
		p.questions.Full(p.allowance.questions, now) && p.bytes.Full(p.allowance.bytes, now)
}

// enter turns an arrival into a connection. A peer without an identity, or over its limit, gets an unidentified
// connection. Its first call gets the reason, or identifies the peer by a token. enter returns false if there
// are too many unidentified connections.
func (g *limiter) enter(a *arrival, c *Connection) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := *c.peerState()
	if s.refusal == nil {
		// A denial that is added after this line checks all connections, including this one.
		s.refusal = g.denied(s.identity, c)
	}
	if s.refusal == nil {
		c.client, s.refusal = g.admit(s.identity)
	}
	g.handshakeDone(a, c.client != nil || c.knownByToken())
	if c.client != nil {
		c.client.conns[c] = struct{}{}
		s.allowed = &c.client.allowance
		c.state.Store(&s)
		return true
	}
	s.allowed = &g.limits.unidentifiedRate
	c.state.Store(&s)
	if len(g.unidentified) >= g.limits.unidentified && c.knownByToken() {
		g.evict()
	}
	if len(g.unidentified) >= g.limits.unidentified {
		g.open--
		return false
	}
	g.unidentified[c] = struct{}{}
	return true
}

// admit counts one more connection of an identity. It returns the usage of the client, or the refusal.
func (g *limiter) admit(id identity.Identity) (*clientUsage, *refusal) {
	p := g.clientOf(id)
	switch {
	case len(p.conns) >= p.allowance.connections:
		return nil, tooMany(id, "connections", p.allowance.connections)
	case !p.connects.Spend(p.allowance.connects, g.now(), 1):
		return nil, tooOften(id, "connections")
	}
	return p, nil
}

func (g *limiter) clientOf(id identity.Identity) *clientUsage {
	p := g.clients[id]
	if p == nil {
		g.collect()
		p = &clientUsage{allowance: g.limits.roles[id.Role], conns: map[*Connection]struct{}{}}
		g.clients[id] = p
	}
	return p
}

// collect drops addresses and clients without a relevant state. Its amortized cost is constant per added entry.
func (g *limiter) collect() {
	if len(g.addresses)+len(g.clients) < g.collectAt {
		return
	}
	now := g.now()
	maps.DeleteFunc(g.addresses, func(_ netip.Prefix, at *address) bool { return at.isIdle(g.limits.failures, now) })
	maps.DeleteFunc(g.clients, func(_ identity.Identity, p *clientUsage) bool { return p.isIdle(now) })
	g.collectAt = max(1<<10, 2*(len(g.addresses)+len(g.clients)))
}

// exit releases the resources of a connection; it is called once. It returns the reason if the limiter ended
// it, else "".
func (g *limiter) exit(c *Connection) (reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
	c.left = true
	delete(g.unidentified, c)
	if c.knownByToken() && c.peerState().refusal != nil && !c.badTokenCounted {
		g.fail(c.from) // it had no certificate, and no token of a permitted client
	}
	if c.client != nil {
		g.drop(c)
		delete(c.client.conns, c)
	}
	return c.cutFor
}

// begin counts a call of c, and its body b from now on. It returns an error if the call is rejected.
func (g *limiter) begin(c *Connection, k Kind, b *Body) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	p, id := c.client, c.peerState().identity
	k = k.of(id)
	if k == Reflecting {
		g.supersede(p)
	}
	switch {
	case p.kinds[k] >= p.running[k]:
		return tooMany(id, k.String(), p.running[k])
	case k == Listing && g.lists >= g.limits.lists:
		return tooManyLists(g.limits.lists)
	case k == Listing && p.kinds[k] >= g.limits.lists-g.lists: // it has as many lists as are still free
		return tooMany(id, k.String(), p.kinds[k])
	case k == Reflecting && !p.questions.Spend(p.allowance.questions, g.now(), 1),
		!p.calls.Spend(p.allowance.calls, g.now(), 1):
		return tooOften(id, k.String())
	}
	p.kinds[k]++
	g.calls++
	if k == Listing {
		g.lists++
	}
	b.kind, b.running = k, true
	c.bodies[b.stream] = b
	if k == Reflecting {
		p.reflection = b
	}
	return nil
}

// supersede ends the reflection stream of a client, which may have one at a time.
//
// Scenario:
//
//	t1: the client cancels its stream and opens the next one.
//	t2: its library sends the headers of the next stream.
//	t3: it sends the reset of the first stream.
//
// Result: at t2 the next stream replaces the first one instead of being rejected.
func (g *limiter) supersede(p *clientUsage) {
	if b := p.reflection; b != nil && b.running {
		g.stop(b)
		b.cancel()
	}
}

// reserve counts a message on a reflection stream.
func (g *limiter) reserve(b *Body) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := b.of
	if !c.client.questions.Spend(c.client.allowance.questions, g.now(), 1) {
		return tooOften(c.peerState().identity, "questions")
	}
	return nil
}

// end releases what a call used. It may be called again.
func (g *limiter) end(b *Body) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stop(b)
	g.forget(b)
}

func (g *limiter) stop(b *Body) {
	if !b.running {
		return
	}
	b.running = false
	b.of.client.kinds[b.kind]--
	g.calls--
	if b.kind == Listing {
		g.lists--
	}
}

// Body counts the received bytes of one call.
type Body struct {
	of       *Connection
	stream   uint32
	kind     Kind
	running  bool
	reserved int64
	ended    bool // the request is complete

	cancel func() // set for a reflection stream
}

// Superseded sets the function that is called when the peer begins a call that replaces this one. It must be
// set before the call begins.
func (b *Body) Superseded(f func()) { b.cancel = f }

// Grow counts n more bytes in memory. ended is true if the request is now complete. A peer with too many bytes
// of incomplete requests loses its connection.
func (b *Body) Grow(n int64, ended bool) { b.of.Grow(b.stream, n, ended) }

// Reserve counts a message on a reflection stream.
func (b *Body) Reserve() error { return b.of.port.limiter.reserve(b) }

// EndUnlessEnded ends the connection if the request is not complete.
func (b *Body) EndUnlessEnded() { b.of.port.limiter.endUnlessEnded(b) }

// End releases what the call used. It may be called again.
func (b *Body) End() { b.of.port.limiter.end(b) }

// endUnlessEnded ends the connection of a call whose request did not arrive in time.
func (g *limiter) endUnlessEnded(b *Body) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !b.ended && b.of.bodies[b.stream] == b {
		g.endConnection(b.of, "late")
	}
}

// forget stops counting a body.
func (g *limiter) forget(b *Body) {
	if b.of.bodies[b.stream] != b {
		return // its connection was ended
	}
	delete(b.of.bodies, b.stream)
	b.of.client.bodies -= b.reserved
	g.bodies -= b.reserved
}

// reset records that the peer reset a call before its request was complete. A reset costs the broker as much as
// many answered calls, so it is charged with costOfReset.
func (g *limiter) reset(c *Connection, stream uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if b := c.bodies[stream]; b != nil && !b.ended && b.kind != Reflecting {
		b.ended = true
		c.client.calls.Charge(c.client.allowance.calls, g.now(), costOfReset)
	}
}

// costOfReset is the charge for a reset call, in calls.
const costOfReset = 20

// drop stops counting all bodies of a connection that ends.
func (g *limiter) drop(c *Connection) {
	for _, b := range c.bodies {
		g.forget(b)
	}
}

// grow counts n more bytes of the call on a stream. It returns false if no call runs there.
func (g *limiter) grow(c *Connection, stream uint32, n int64, ended bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := c.bodies[stream]
	if b != nil {
		g.add(b, n, ended)
	}
	return b != nil
}

// add counts the bytes that a frame adds to a body. Over the budget of the identity, or of the port, the
// connection with the most incomplete bytes is ended. Its bytes are no longer counted, because their memory is
// freed soon.
func (g *limiter) add(b *Body, n int64, ended bool) {
	c := b.of
	b.reserved += n
	b.ended = b.ended || ended
	c.client.bodies += n
	g.bodies += n
	if c.client.bodies > c.client.allowance.bodies {
		g.endLargest(maps.Keys(c.client.conns))
	}
	if g.bodies > g.limits.bodies {
		g.endLargest(g.everyone)
	}
}

// endLargest ends the connection with the most bytes in incomplete requests.
func (g *limiter) endLargest(of iter.Seq[*Connection]) {
	var largest *Connection
	var most int64
	for c := range of {
		if n := c.unfinished(); n > most {
			largest, most = c, n
		}
	}
	if largest != nil {
		g.endConnection(largest, "bodies")
	}
}

// chargeRefusedCall counts a rejected call. It returns false if there were too many.
func (g *limiter) chargeRefusedCall(c *Connection, cost float64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return c.refused.Spend(c.peerState().allowed.refused, g.now(), cost)
}

// endForFlood ends a connection that sends too much outside of calls.
func (g *limiter) endForFlood(c *Connection) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.endConnection(c, "flood")
}

// costOfCut is the charge for a connection that the limiter ended, in connections. A client whose connections
// are ended repeatedly is locked out for a while.
const costOfCut = 20

// endConnection shuts a connection because of its peer.
func (g *limiter) endConnection(c *Connection, reason string) {
	if g.shut(c, reason) && c.client != nil {
		c.client.connects.Charge(c.client.allowance.connects, g.now(), costOfCut)
	}
}

// shut closes a connection. Its calls end as after a network failure. It returns false if the connection was closed
// before.
func (g *limiter) shut(c *Connection, reason string) bool {
	g.drop(c) // also what a closed connection has received since
	if c.cutFor != "" {
		return false
	}
	c.cutFor = reason
	_ = c.raw.Close() // its reader gets an error
	g.ended(reason)
	return true
}

// everyone yields the open connections. The caller holds the lock.
func (g *limiter) everyone(yield func(*Connection) bool) {
	for c := range g.unidentified {
		if !yield(c) {
			return
		}
	}
	for _, p := range g.clients {
		for c := range p.conns {
			if !yield(c) {
				return
			}
		}
	}
}

// idle counts a frame that belongs to no call. It returns false if there were too many.
func (g *limiter) idle(c *Connection) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := &c.idle
	if c.client != nil {
		b = &c.client.idle
	}
	return b.Spend(c.peerState().allowed.idle, g.now(), 1)
}

// unfinished returns the bytes of a connection in incomplete requests.
func (c *Connection) unfinished() (n int64) {
	for _, b := range c.bodies {
		if !b.ended {
			n += b.reserved
		}
	}
	return n
}

func (g *limiter) usage() Usage {
	g.mu.Lock()
	defer g.mu.Unlock()
	u := Usage{Connections: map[Peers]int{}, Calls: g.calls, Bodies: g.bodies}
	for c := range g.unidentified {
		u.Connections[Peers{noRole, c.transport}]++
	}
	for id, p := range g.clients {
		for c := range p.conns {
			u.Connections[Peers{id.Role, c.transport}]++
		}
	}
	return u
}
