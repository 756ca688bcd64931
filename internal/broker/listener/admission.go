package listener

import (
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/taskgroup"
)

// class divides arrivals by what their first bytes show. Each class has queues and limits of its own, so that an
// attacker without a ticket does not delay a client with one.
type class uint8

const (
	// resuming: the ClientHello has a session ticket of this port, so the client had a certificate.
	resuming class = iota
	// unknown: anything else.
	unknown
	classes
)

// arrival is an accepted connection before the end of its handshake.
type arrival struct {
	raw   net.Conn
	from  net.Addr // the other end
	class class
	// key is the address of the other end. address is that of the client. It is not valid until the handshake begins if
	// a proxy has not sent it before; otherwise key is the same.
	key, address netip.Prefix
	// at is when it was queued, then when its handshake began.
	at time.Time
	// computes is true until the handshake gets its first slot, if data has arrived for it.
	computes bool
	waits    bool // in a queue
	cut      bool // closed by the limiter
}

// address counts the arrivals of one address prefix, by class.
type address struct {
	queued, pending [classes]int
	failures        [classes]fair.Bucket
}

// admission orders the arrivals of a port:
//
//	accepted ──► queued ──► handshake in progress ──► connection
//	   │            │                │
//	   └────────────┴────────────────┴──► closed
//
// A fleet that returns waits in the queue, at the price of a file for each client. Handshakes begin as fast as
// they can be computed: mostly those of resuming clients first, and those of different addresses in turn. A client
// is rejected at once only if the queue is full, or if too many handshakes of its address have failed.
//
// It is a part of the limiter, and guarded by its lock.
type admission struct {
	queues  [classes]fair.Queue[netip.Prefix, struct{}, *arrival]
	lengths [classes]lengths // of the queues
	begun   []*arrival       // handshakes in progress, oldest first
	pending map[net.Conn]*arrival
	// turns is the number of handshakes that have begun.
	turns int
	// addresses with arrivals, or failures.
	addresses map[netip.Prefix]*address
	// computing is the number of handshakes that have begun and have not got their first slot.
	computing int
	// discarded are rejected after they had been queued, and not reported yet.
	discarded []rejection
	// wake rings when nextHandshake may have an arrival.
	wake taskgroup.Bell
}

// Reasons to reject an arrival; "" is none.
const (
	fullPort    = "full"
	fullAddress = "address"
	waitedLong  = "queue"
	failed      = "failed"
	notYetValid = "not_yet_valid"
	noMemory    = "unidentified_limit"
)

// stalled is how long a handshake may take while others of its address wait. The broker computes a handshake
// within milliseconds, so the rest of the time is the client's.
const stalled = 2 * time.Second

// unknownShare is the number of handshakes of which one is for a client without a ticket, if one waits. Otherwise a
// client with one certificate and hundreds of addresses could keep out all others, and the operator who denies it.
const unknownShare = 8

// arrive queues a connection that was just accepted. It returns the reason if it is rejected.
func (g *limiter) arrive(a *arrival) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	at := g.addressOf(a.key)
	if a.class == resuming && !g.mayFail(a, at, now) {
		a.class = unknown
	}
	switch {
	case g.open >= g.limits.connections:
		return fullPort
	case !g.mayFail(a, at, now):
		return fullAddress
	case g.queues[a.class].Len() >= g.limits.queued && !g.shorten(a.class, at):
		return waitedLong
	}
	a.at = now
	g.enqueue(a, at)
	g.open++
	return ""
}

// isQueued reports whether an arrival still waits for its handshake.
func (g *limiter) isQueued(a *arrival) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return a.waits
}

// promote moves an arrival whose ticket has arrived late to the resuming clients, if it still waits.
func (g *limiter) promote(a *arrival) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := g.addresses[a.key]
	if !a.waits || !at.failures[resuming].Allows(g.limits.failures, g.now()) || g.queues[resuming].Len() >= g.limits.queued {
		return
	}
	g.queues[a.class].Remove(a.key, func(other *arrival) bool { return other == a })
	g.dequeue(a)
	a.class, a.computes = resuming, true
	g.enqueue(a, at)
}

// enqueue adds an arrival to the queue of its class.
func (g *limiter) enqueue(a *arrival, at *address) {
	a.waits = true
	g.lengths[a.class].move(a.key, at.queued[a.class], at.queued[a.class]+1)
	at.queued[a.class]++
	g.queues[a.class].Push(a.key, struct{}{}, false, 1, a)
	g.wake.Ring()
}

// shorten drops the newest arrival of the address with the most arrivals in the queue of a class. It returns false
// if the address at has as many.
func (g *limiter) shorten(c class, at *address) bool {
	key, most := g.lengths[c].longest()
	if most <= at.queued[c]+1 {
		return false
	}
	if last, ok := g.queues[c].Remove(key, func(*arrival) bool { return true }); ok {
		g.dequeue(last)
		g.discard(last, waitedLong)
	}
	return true
}

// nextHandshake returns the arrival whose handshake begins now, nil if none may. The caller must begin it.
func (g *limiter) nextHandshake() *arrival {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	g.endStalled(now)
	for _, c := range g.order() {
		for g.computing < g.limits.computing {
			key, a, ok := g.queues[c].Pop()
			if !ok {
				break
			}
			g.dequeue(a)
			at := g.addresses[key]
			switch {
			case now.Sub(a.at) > HandshakeTimeout: // its client has given up
				g.discard(a, waitedLong)
			case !g.mayFail(a, at, now):
				g.discard(a, fullAddress)
			default:
				g.beginHandshake(a, at, now)
				return a
			}
		}
	}
	return nil
}

// order returns the classes in the order of the next handshake.
func (g *limiter) order() [classes]class {
	if g.turns%unknownShare == unknownShare-1 {
		return [classes]class{unknown, resuming}
	}
	return [classes]class{resuming, unknown}
}

// beginHandshake counts a handshake. If too many are in progress, it ends the oldest one of the address with the most. An
// honest client would have finished by then.
func (g *limiter) beginHandshake(a *arrival, at *address, now time.Time) {
	if len(g.begun) >= g.limits.pending {
		g.cut(g.heaviest())
	}
	g.turns++
	a.at = now
	g.begun = append(g.begun, a)
	g.pending[a.raw] = a
	if a.computes {
		g.computing++
	}
	if a.address.IsValid() {
		g.count(a, at)
	}
}

// count counts a handshake at its address. The address gets no more than its limit: others of it wait.
func (g *limiter) count(a *arrival, at *address) {
	at.pending[a.class]++
	if at.pending[a.class] >= g.limits.pendingEach {
		g.queues[a.class].Park(a.address)
	}
}

// mayFail reports whether one more handshake of an arrival's address may fail. Behind a proxy the address is not
// known yet.
func (g *limiter) mayFail(a *arrival, at *address, now time.Time) bool {
	return !a.address.IsValid() || at.failures[a.class].Allows(g.limits.failures, now)
}

// from sets the address of an arrival behind a proxy. It returns the reason if the address is rejected.
func (g *limiter) from(a *arrival, remote net.Addr) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if a.address.IsValid() {
		return ""
	}
	a.address = prefixOf(remote)
	at := g.addressOf(a.address)
	if at.pending[a.class] >= g.limits.pendingEach || !g.mayFail(a, at, g.now()) {
		a.address = netip.Prefix{} // it is not counted
		return fullAddress
	}
	g.count(a, at)
	return ""
}

// arrival returns the arrival of a connection whose handshake has begun.
func (g *limiter) arrival(raw net.Conn) *arrival {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.pending[raw]
	delete(g.pending, raw)
	return a
}

// computed records that a handshake has got its first slot.
func (g *limiter) computed(a *arrival) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.compute(a)
}

func (g *limiter) compute(a *arrival) {
	if a.computes {
		a.computes = false
		g.computing--
		g.wake.Ring()
	}
}

// leave ends an arrival that did not become a connection.
func (g *limiter) leave(a *arrival) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
	g.handshakeDone(a, false)
}

// handshakeDone removes a handshake. A handshake that gave no identity counts as a failure of its address.
func (g *limiter) handshakeDone(a *arrival, identified bool) {
	g.compute(a)
	if i := slices.Index(g.begun, a); i >= 0 {
		g.begun = slices.Delete(g.begun, i, i+1)
	}
	at := g.addresses[a.address]
	if at == nil {
		return // rejected before its address was counted
	}
	at.pending[a.class]--
	g.queues[a.class].Resume(a.address)
	if !identified {
		at.failures[a.class].Charge(g.limits.failures, g.now(), 1)
	}
	g.wake.Ring()
}

// endStalled ends handshakes that take long while others of their address wait.
func (g *limiter) endStalled(now time.Time) {
	for _, a := range g.begun {
		if now.Sub(a.at) < stalled {
			return
		}
		if at := g.addresses[a.address]; at != nil && at.queued[a.class] > 0 && at.pending[a.class] >= g.limits.pendingEach {
			g.cut(a)
		}
	}
}

// heaviest returns the oldest handshake of the address that has the most, of clients without a ticket if there are
// any.
func (g *limiter) heaviest() *arrival {
	most := g.begun[0]
	for _, a := range g.begun {
		if a.class > most.class || a.class == most.class && g.pendingOf(a) > g.pendingOf(most) {
			most = a
		}
	}
	return most
}

func (g *limiter) pendingOf(a *arrival) int {
	if at := g.addresses[a.address]; at != nil {
		return at.pending[a.class]
	}
	return 0
}

// cut closes the connection of a handshake. The handshake then fails, and that code counts it.
func (g *limiter) cut(a *arrival) {
	if !a.cut {
		a.cut = true
		_ = a.raw.Close() // the result does not matter
	}
}

// dequeue counts an arrival that has left its queue.
func (g *limiter) dequeue(a *arrival) {
	a.waits = false
	at := g.addresses[a.key]
	g.lengths[a.class].move(a.key, at.queued[a.class], at.queued[a.class]-1)
	at.queued[a.class]--
}

// lengths has the addresses with n queued arrivals at index n-1. So the one with the most is found without a search:
// an attacker may have any number of addresses.
type lengths []map[netip.Prefix]struct{}

// move records that the number of arrivals of an address has changed by one.
func (l *lengths) move(key netip.Prefix, from, to int) {
	if to > len(*l) {
		*l = append(*l, map[netip.Prefix]struct{}{})
	}
	if to > 0 {
		(*l)[to-1][key] = struct{}{}
	}
	if from > 0 {
		delete((*l)[from-1], key)
	}
	for n := len(*l); n > 0 && len((*l)[n-1]) == 0; n-- {
		*l = (*l)[:n-1]
	}
}

// longest returns an address with the most arrivals, and their number.
func (l *lengths) longest() (key netip.Prefix, n int) {
	if n = len(*l); n > 0 {
		for key = range (*l)[n-1] {
			break
		}
	}
	return key, n
}

// discard rejects an arrival that has left its queue.
func (g *limiter) discard(a *arrival, reason string) {
	g.open--
	_ = a.raw.Close() // the result does not matter
	g.discarded = append(g.discarded, rejection{reason, a.from})
}

// rejection is a rejected arrival that is not reported yet.
type rejection struct {
	reason string
	from   net.Addr
}

// rejections returns the arrivals that were rejected after they had been queued, and forgets them.
func (g *limiter) rejections() []rejection {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := g.discarded
	g.discarded = nil
	return all
}

// waits reports whether arrivals are queued.
func (g *limiter) waits() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.queues[resuming].Len()+g.queues[unknown].Len() > 0
}

// closeArrivals closes the connections that wait for a handshake, and those in a handshake. A drain would otherwise
// wait for clients that send nothing.
func (g *limiter) closeArrivals() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range g.begun {
		g.cut(a)
	}
	for c := range classes {
		for _, a, ok := g.queues[c].Pop(); ok; _, a, ok = g.queues[c].Pop() {
			g.dequeue(a)
			g.open--
			_ = a.raw.Close() // the result does not matter
		}
	}
}

// addressOf returns the counts of an address, and creates them if necessary.
func (g *limiter) addressOf(key netip.Prefix) *address {
	at := g.addresses[key]
	if at == nil {
		g.collect()
		at = &address{}
		g.addresses[key] = at
	}
	return at
}

// isIdle reports whether the counts can be dropped without losing a limit.
func (a *address) isIdle(failures fair.Rate, now time.Time) bool {
	return a.queued == [classes]int{} && a.pending == [classes]int{} && a.failures[resuming].Full(failures, now) && a.failures[unknown].Full(failures, now)
}

// prefixOf returns the prefix that limits apply to: an IPv4 address, or an IPv6 /64, because one customer has
// the whole /64.
func prefixOf(a net.Addr) netip.Prefix {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 32) // connections that are not TCP stay within the process
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
