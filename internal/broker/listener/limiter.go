package listener

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/identity"
)

// limiter counts what peers use and says what is too much. It does no I/O but to
// end connections, and never waits. Methods may be called concurrently.
type limiter struct {
	limits limits
	now    func() time.Time
	// ended hears why a connection was ended; it must not block.
	ended func(reason string)
	// denied says why an operator keeps an identity, or the certificate of a connection, out, or a hub
	// does; nil when nobody does.
	denied func(id identity.Identity, c *Connection) *refusal

	next atomic.Int64 // when a connection ends, in Unix nanoseconds

	mu           sync.Mutex
	open         int                       // connections, those below included
	waiting      []*arrival                // handshakes under way, oldest first
	arrivals     map[net.Conn]*arrival     // accepted, and not looked at yet
	addresses    map[netip.Prefix]*address // that have a handshake under way, or failures
	unidentified map[*Connection]struct{}
	clients      map[identity.Identity]*clientUsage
	collectAt    int // so many addresses and parties are looked through
	bodies       int64
	lists        int
}

func newLimiter(l limits, ended func(string)) *limiter {
	return &limiter{
		limits: l, now: time.Now, ended: ended, collectAt: 1 << 10,
		denied: func(identity.Identity, *Connection) *refusal { return nil }, unidentified: map[*Connection]struct{}{},
		arrivals:  map[net.Conn]*arrival{},
		addresses: map[netip.Prefix]*address{}, clients: map[identity.Identity]*clientUsage{},
	}
}

// arrival is a connection before the end of its handshake.
type arrival struct {
	raw     net.Conn
	address netip.Prefix // zero before it is known
}

// address is where handshakes come from.
type address struct {
	pending  int
	failures fair.Bucket
}

// clientUsage is an identity, and what it uses.
type clientUsage struct {
	allowance

	connects, calls, bytes, questions, idle fair.Bucket

	conns      map[*Connection]struct{}
	kinds      [kinds]int
	bodies     int64
	reflection *Body // the last one
}

// forgettable reports whether nothing is known of the party that would be missed.
func (p *clientUsage) forgettable(now time.Time) bool {
	return len(p.conns) == 0 && p.kinds == [kinds]int{} && p.connects.Full(p.allowance.connects, now) && p.calls.Full(p.allowance.calls, now) &&
		p.questions.Full(p.allowance.questions, now) && p.bytes.Full(p.allowance.bytes, now)
}

// why a handshake is refused or a connection ended; "" where it is not.
const (
	fullPort    = "full"
	fullAddress = "address"
	failed      = "failed"
	notYetValid = "not_yet_valid"
	noMemory    = "unidentified_limit"
)

// arrive counts a connection that was just accepted; the result is why it is
// refused. Where too many handshakes are under way, the oldest of the address
// that has the most is ended: whoever means it well has long finished.
func (g *limiter) arrive(raw net.Conn, proxied bool) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open >= g.limits.connections {
		return fullPort
	}
	a := &arrival{raw: raw}
	if !proxied { // else its address is read from it, which takes time
		if reason := g.locate(a, raw.RemoteAddr()); reason != "" {
			return reason
		}
	}
	if len(g.waiting) >= g.limits.pending {
		oldest := g.heaviest()
		g.remove(oldest)
		_ = oldest.raw.Close() // its handshake fails, and is counted there
	}
	g.open++
	g.waiting = append(g.waiting, a)
	g.arrivals[raw] = a
	return ""
}

// arrival returns what arrive counted.
func (g *limiter) arrival(raw net.Conn) *arrival {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.arrivals[raw]
	delete(g.arrivals, raw)
	return a
}

// heaviest is the oldest handshake of the address that has the most.
func (g *limiter) heaviest() *arrival {
	most := g.waiting[0]
	for _, a := range g.waiting {
		if g.pendingOf(a) > g.pendingOf(most) {
			most = a
		}
	}
	return most
}

func (g *limiter) pendingOf(a *arrival) int {
	if at := g.addresses[a.address]; at != nil {
		return at.pending
	}
	return 0
}

// from tells the address of a proxied arrival; the result is why it is refused.
func (g *limiter) from(a *arrival, remote net.Addr) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if a.address.IsValid() {
		return ""
	}
	return g.locate(a, remote)
}

func (g *limiter) locate(a *arrival, remote net.Addr) string {
	prefix := prefixOf(remote)
	at := g.addresses[prefix]
	if at == nil {
		g.collect()
		at = &address{}
		g.addresses[prefix] = at
	}
	if at.pending >= g.limits.pendingEach || !at.failures.Allows(g.limits.failures, g.now()) {
		return fullAddress
	}
	at.pending++
	a.address = prefix
	return ""
}

// prefixOf is whom an address belongs to: a customer has all of an IPv6 /64.
func prefixOf(a net.Addr) netip.Prefix {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 32) // what is not TCP never leaves the process
	}
	ip := t.AddrPort().Addr().Unmap()
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	p, err := ip.WithZone("").Prefix(bits)
	if err != nil {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 32)
	}
	return p
}

// leave ends the handshake of an arrival that did not become a connection.
func (g *limiter) leave(a *arrival) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
	g.handshakeDone(a, false)
}

// handshakeDone forgets a handshake, one that led to nothing is remembered.
func (g *limiter) handshakeDone(a *arrival, identified bool) {
	g.remove(a)
	at := g.addresses[a.address]
	if at == nil {
		return // refused before its address was counted
	}
	at.pending--
	if !identified {
		at.failures.Charge(g.limits.failures, g.now(), 1)
	}
}

func (g *limiter) remove(a *arrival) {
	if i := slices.Index(g.waiting, a); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
	}
}

// enter makes a connection of an arrival. One whose peer may not have it gets in
// as a stranger, who is told so at its first call, or says who it is with a token; false where
// even for that there is no room.
func (g *limiter) enter(a *arrival, c *Connection) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := *c.peerState()
	if s.refusal == nil {
		// Whoever denies it meanwhile looks at all connections afterwards, and finds
		// this one.
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

// admit counts one more connection of an identity; the result is its party, or why that may not
// have it.
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

// collect forgets addresses and parties of which nothing is known that counts. It
// costs, over time, as much as remembering them did.
func (g *limiter) collect() {
	if len(g.addresses)+len(g.clients) < g.collectAt {
		return
	}
	now := g.now()
	for k, at := range g.addresses {
		if at.pending == 0 && at.failures.Full(g.limits.failures, now) {
			delete(g.addresses, k)
		}
	}
	for k, p := range g.clients {
		if p.forgettable(now) {
			delete(g.clients, k)
		}
	}
	g.collectAt = max(1<<10, 2*(len(g.addresses)+len(g.clients)))
}

// exit ends the use of a connection; it is called once. The result is why the
// gate ended it, "" where it did not.
func (g *limiter) exit(c *Connection) (reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
	c.left = true
	delete(g.unidentified, c)
	if c.knownByToken() && c.peerState().refusal != nil && !c.badTokenCounted {
		g.fail(c.from) // it came without a certificate, and brought no token, or that of who may not be here
	}
	if c.client != nil {
		g.drop(c)
		delete(c.client.conns, c)
	}
	return c.cutFor
}

// begin counts a call of c, whose body b is counted from now on. The result is
// why it is refused.
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
	case k == Listing && p.kinds[k] >= g.limits.lists-g.lists: // it has as many as are free
		return tooMany(id, k.String(), p.kinds[k])
	case k == Reflecting && !p.questions.Spend(p.allowance.questions, g.now(), 1),
		!p.calls.Spend(p.allowance.calls, g.now(), 1):
		return tooOften(id, k.String())
	}
	p.kinds[k]++
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

// supersede ends the reflection stream of a party, which has one at a time. Its
// caller may have left it already: t1 it cancels its stream and opens the next,
// t2 its library sends the next one's headers, t3 it sends the reset of the first.
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

// end gives back what a call used; it may be called again.
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
	if b.kind == Listing {
		g.lists--
	}
}

// Body is what was read of one call.
type Body struct {
	of       *Connection
	stream   uint32
	kind     Kind
	running  bool
	reserved int64
	ended    bool // no more comes

	cancel func() // of a reflection stream
}

// Superseded has f called when the peer begins a call that takes the place of this
// one; before it begins.
func (b *Body) Superseded(f func()) { b.cancel = f }

// Grow counts what came of it, in memory; ended: that is all. A peer that has too much
// that is not ended loses its connection.
func (b *Body) Grow(n int64, ended bool) { b.of.port.limiter.grow(b, n, ended) }

// Reserve counts a message on a reflection stream.
func (b *Body) Reserve() error { return b.of.port.limiter.reserve(b) }

// Reset tells that the peer took the call back.
func (b *Body) Reset() { b.of.port.limiter.reset(b) }

// EndUnlessEnded ends the connection where the call is not all there.
func (b *Body) EndUnlessEnded() { b.of.port.limiter.endUnlessEnded(b) }

// End gives back what the call used; it may be called again.
func (b *Body) End() { b.of.port.limiter.end(b) }

// bodyOf returns the body of a call that runs, nil where none does.
func (g *limiter) bodyOf(c *Connection, stream uint32) *Body {
	g.mu.Lock()
	defer g.mu.Unlock()
	return c.bodies[stream]
}

// endUnlessEnded ends the connection of a call whose request did not come.
func (g *limiter) endUnlessEnded(b *Body) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !b.ended && b.of.bodies[b.stream] == b {
		g.drop(b.of)
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

// reset tells that the peer took a call back before it was sent, which costs the
// broker as much as many calls that are answered.
func (g *limiter) reset(b *Body) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !b.ended && b.kind != Reflecting {
		b.ended = true
		b.of.client.calls.Charge(b.of.client.allowance.calls, g.now(), costOfReset)
	}
}

// costOfReset is in calls.
const costOfReset = 20

// drop stops counting all bodies of a connection that ends.
func (g *limiter) drop(c *Connection) {
	for _, b := range c.bodies {
		g.forget(b)
	}
}

// grow counts what a frame adds to a body. Whoever then has the most that is not
// ended, of the identity or of all, loses its connection: what it holds is
// given back at once, for the memory follows.
func (g *limiter) grow(b *Body, n int64, ended bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := b.of
	if c.bodies[b.stream] != b {
		return // ended meanwhile
	}
	b.reserved += n
	b.ended = b.ended || ended
	c.client.bodies += n
	g.bodies += n
	if c.client.bodies > c.client.allowance.bodies {
		g.endLargest(c.client.conns)
	}
	if g.bodies <= g.limits.bodies {
		return
	}
	all := maps.Clone(g.unidentified)
	for _, p := range g.clients {
		for c := range p.conns {
			all[c] = struct{}{}
		}
	}
	g.endLargest(all)
}

// endLargest ends the connection that holds the most in bodies that are not
// ended.
func (g *limiter) endLargest(of map[*Connection]struct{}) {
	var largest *Connection
	var most int64
	for c := range of {
		if n := c.unfinished(); n > most {
			largest, most = c, n
		}
	}
	if largest != nil {
		g.drop(largest)
		g.endConnection(largest, "bodies")
	}
}

// chargeRefusedCall counts a call that was refused; false where there were too many.
func (g *limiter) chargeRefusedCall(c *Connection, cost float64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return c.refused.Spend(c.peerState().allowed.refused, g.now(), cost)
}

// endForFlood ends the connection of who sends too much that belongs to no call.
func (g *limiter) endForFlood(c *Connection) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.endConnection(c, "flood")
}

// costOfCut is in connections: who is cut again and again stays out for a while.
const costOfCut = 20

// endConnection ends a connection; what runs on it ends as if the network had broken.
func (g *limiter) endConnection(c *Connection, reason string) {
	if c.cutFor != "" {
		return
	}
	_ = c.raw.Close() // who reads it hears of it
	c.cutFor = reason
	if c.client != nil {
		c.client.connects.Charge(c.client.allowance.connects, g.now(), costOfCut)
	}
	g.ended(reason)
}

// idle counts a frame that carries nothing of a call; false where there were too
// many.
func (g *limiter) idle(c *Connection) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := &c.idle
	if c.client != nil {
		b = &c.client.idle
	}
	return b.Spend(c.peerState().allowed.idle, g.now(), 1)
}

// unfinished is how much a connection holds in bodies that are not ended.
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
	u := Usage{Connections: map[Peers]int{}, Bodies: g.bodies}
	for c := range g.unidentified {
		u.Connections[Peers{noRole, c.transport}]++
		if c.client != nil {
			for _, n := range c.client.kinds {
				u.Calls += n
			}
		}
	}
	for id, p := range g.clients {
		for c := range p.conns {
			u.Connections[Peers{id.Role, c.transport}]++
		}
		for _, n := range p.kinds {
			u.Calls += n
		}
	}
	return u
}
