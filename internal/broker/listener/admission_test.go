package listener

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/identity"
)

// begins returns the address of the connection whose handshake begins next, "" if there is none.
func begins(g *limiter) string {
	a := g.nextHandshake()
	if a == nil {
		return ""
	}
	return a.from.(*net.TCPAddr).IP.String() //nolint:forcetypeassert // from fromConn
}

// TestAdmission_Handshakes checks the limits of handshakes in progress. One address may have a few; more of them
// wait. If all slots are taken, the address with the most loses its oldest handshake. The failures of an address
// count for a while.
func TestAdmission_Handshakes(t *testing.T) {
	g, now, _ := limiterOf(smallLimits)
	first := arrives(t, g, "192.0.2.1")
	second := arrives(t, g, "192.0.2.1")
	arrives(t, g, "192.0.2.1")
	if reason := waiting(g, &fromConn{addr: "192.0.2.1"}, unknown); reason != "" || begins(g) != "" {
		t.Errorf("a fourth of one address: %q, or its handshake has begun", reason)
	}
	arrives(t, g, "192.0.2.2")
	if first.closed {
		t.Error("closed although there was room")
	}
	fifth := arrives(t, g, "192.0.2.3")
	if !first.closed || second.closed {
		t.Error("not the oldest of the address that has the most is ended")
	}
	g.leave(g.arrival(first))
	g.leave(g.arrival(second)) // two handshakes that gave no identity
	if got := begins(g); got != "" || len(g.rejections()) != 1 {
		t.Errorf("after two failures: the handshake of %s begins", got)
	}
	if reason := waiting(g, &fromConn{addr: "192.0.2.1"}, unknown); reason != fullAddress {
		t.Errorf("after two failures: %q", reason)
	}
	*now = now.Add(time.Second)
	arrives(t, g, "192.0.2.1")
	enters(t, g, fifth, identity.Identity{Role: identity.Agent, Name: "c1"})
	arrives(t, g, "192.0.2.3")
	arrives(t, g, "192.0.2.4")
	if reason := waiting(g, &fromConn{addr: "192.0.2.5"}, unknown); reason != fullPort {
		t.Errorf("more than the port takes: %q", reason)
	}
}

// TestAdmission_Order checks the order of handshakes: resuming clients first, then the addresses in turn.
func TestAdmission_Order(t *testing.T) {
	l := smallLimits
	l.connections, l.queued, l.pending = 20, 10, 20
	g, _, _ := limiterOf(l)
	for _, c := range []struct {
		addr string
		by   class
	}{
		{"192.0.2.1", unknown}, {"192.0.2.1", unknown}, {"192.0.2.2", unknown}, {"192.0.2.1", unknown}, {"192.0.2.3", resuming}, {"192.0.2.1", resuming}, {"192.0.2.1", unknown},
	} {
		if reason := waiting(g, &fromConn{addr: c.addr}, c.by); reason != "" {
			t.Fatal(c, reason)
		}
	}
	var got []string
	for next := begins(g); next != ""; next = begins(g) {
		got = append(got, next)
	}
	want := []string{"192.0.2.3", "192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.1"}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestAdmission_UnknownClientsAreNotKeptOut checks that one of some handshakes is for a client without a ticket, for
// any number of clients with one.
func TestAdmission_UnknownClientsAreNotKeptOut(t *testing.T) {
	l := smallLimits
	l.connections, l.queued, l.pending = 100, 50, 100
	g, _, _ := limiterOf(l)
	for n := range 2 * unknownShare {
		for by, addr := range map[class]string{resuming: fmt.Sprint("192.0.2.", n), unknown: "198.51.100.1"} {
			if reason := waiting(g, &fromConn{addr: addr}, by); reason != "" {
				t.Fatal(reason)
			}
		}
	}
	for n := 1; n <= 2*unknownShare; n++ {
		if got, want := begins(g) == "198.51.100.1", n%unknownShare == 0; got != want {
			t.Errorf("handshake %d is for a client without a ticket: %v, want %v", n, got, want)
		}
	}
}

// TestAdmission_Promote checks a client whose ticket arrives after its connection was queued. Once its handshake has
// begun, its class stays.
func TestAdmission_Promote(t *testing.T) {
	l := smallLimits
	l.connections, l.queued, l.computing = 20, 10, 10
	g, _, _ := limiterOf(l)
	put := func(addr string) *arrival {
		c := &fromConn{addr: addr}
		key := prefixOf(c.RemoteAddr())
		a := &arrival{raw: c, from: c.RemoteAddr(), key: key, address: key, class: unknown}
		if reason := g.arrive(a); reason != "" {
			t.Fatal(reason)
		}
		return a
	}
	put("192.0.2.1")
	put("192.0.2.2")
	without, with := put("192.0.2.3"), put("192.0.2.3")
	g.promote(with)
	for _, want := range []string{"192.0.2.3", "192.0.2.1", "192.0.2.2", "192.0.2.3"} {
		if got := begins(g); got != want {
			t.Errorf("the handshake of %q begins, want %s", got, want)
		}
	}
	if with.class != resuming || without.class != unknown || g.waits() {
		t.Errorf("%+v, %+v", with, without)
	}
	if g.promote(without); without.class != unknown || g.waits() {
		t.Errorf("promoted during its handshake: %+v", without)
	}
}

// TestAdmission_Lengths checks that the address with the most arrivals is known at any time.
func TestAdmission_Lengths(t *testing.T) {
	var l lengths
	queued := map[netip.Prefix]int{}
	for n := range 10_000 {
		key := prefixOf(&net.TCPAddr{IP: net.IPv4(192, 0, 2, byte(n*n%7))})
		by := 1
		if n*n%11 < 5 && queued[key] > 0 || n > 5_000 && queued[key] > 0 {
			by = -1
		}
		l.move(key, queued[key], queued[key]+by)
		queued[key] += by
		if k, most := l.longest(); most != slices.Max(slices.Collect(maps.Values(queued))) || most > 0 && queued[k] != most {
			t.Fatalf("after %d: %v has %d; %v", n, k, most, queued)
		}
	}
}

// TestAdmission_Computing checks that handshakes begin only as fast as they are computed. A handshake for which no
// data has arrived does not count.
func TestAdmission_Computing(t *testing.T) {
	l := smallLimits
	l.computing = 1
	g, _, _ := limiterOf(l)
	key := netip.MustParsePrefix("192.0.2.1/32")
	put := func(computes bool) {
		c := &fromConn{addr: "192.0.2.1"}
		if reason := g.arrive(&arrival{raw: c, from: c.RemoteAddr(), key: key, address: key, class: unknown, computes: computes}); reason != "" {
			t.Fatal(reason)
		}
	}
	put(false)
	put(true)
	silent, first := g.nextHandshake(), g.nextHandshake()
	if silent == nil || first == nil || silent.computes || !first.computes {
		t.Fatalf("%+v, %+v", silent, first)
	}
	put(true)
	if a := g.nextHandshake(); a != nil {
		t.Fatalf("begun while one is computed: %+v", a)
	}
	g.computed(first)
	g.computed(first)
	if a := g.nextHandshake(); a == nil || g.computing != 1 {
		t.Errorf("not begun: %+v, %d are computed", a, g.computing)
	}
}

// TestAdmission_Tickets checks that the limits of the classes are separate: failures without a ticket do not delay
// clients with one. A client whose tickets fail has the limits of one without.
func TestAdmission_Tickets(t *testing.T) {
	g, _, _ := limiterOf(smallLimits)
	for range 2 {
		g.leave(g.arrival(arrives(t, g, "192.0.2.1")))
	}
	if reason := waiting(g, &fromConn{addr: "192.0.2.1"}, unknown); reason != fullAddress {
		t.Errorf("without a ticket: %q", reason)
	}
	for n := range 3 {
		c := &fromConn{addr: "192.0.2.1"}
		reason := waiting(g, c, resuming)
		if n == 2 {
			if reason != fullAddress {
				t.Errorf("after two failures with a ticket: %q", reason)
			}
			break
		}
		if got := begins(g); reason != "" || got == "" {
			t.Fatalf("with a ticket: %q, %q", reason, got)
		}
		g.leave(g.arrival(c))
	}
}

// TestAdmission_FullQueue checks that the address with the most connections in a full queue loses its newest one to
// an address with fewer.
func TestAdmission_FullQueue(t *testing.T) {
	l := smallLimits
	l.computing = 0 // none begins
	g, _, _ := limiterOf(l)
	older, newer, other := &fromConn{addr: "192.0.2.1"}, &fromConn{addr: "192.0.2.1"}, &fromConn{addr: "192.0.2.2"}
	for _, c := range []*fromConn{older, newer, other} {
		if reason := waiting(g, c, unknown); reason != "" {
			t.Fatal(reason)
		}
	}
	if all := g.rejections(); older.closed || !newer.closed || other.closed || len(all) != 1 || all[0].reason != waitedLong || g.open != 2 {
		t.Errorf("%v, %v, %v, %v, %d are open", older.closed, newer.closed, other.closed, all, g.open)
	}
	for _, addr := range []string{"192.0.2.1", "192.0.2.3"} {
		if reason := waiting(g, &fromConn{addr: addr}, unknown); reason != waitedLong {
			t.Errorf("%s: %q", addr, reason)
		}
	}
	g.closeArrivals()
	if !older.closed || !other.closed || g.open != 0 || g.waits() {
		t.Error("some still wait")
	}
}

// TestAdmission_CloseArrivals checks that a drain waits for no handshake.
func TestAdmission_CloseArrivals(t *testing.T) {
	g, _, _ := limiterOf(smallLimits)
	c := arrives(t, g, "192.0.2.1")
	g.closeArrivals()
	if !c.closed {
		t.Error("the handshake goes on")
	}
	g.leave(g.arrival(c))
	if g.open != 0 {
		t.Errorf("%d are open", g.open)
	}
}

// TestAdmission_WaitedTooLong checks that no handshake begins for a client that has given up.
func TestAdmission_WaitedTooLong(t *testing.T) {
	g, now, _ := limiterOf(smallLimits)
	c := &fromConn{addr: "192.0.2.1"}
	if reason := waiting(g, c, unknown); reason != "" {
		t.Fatal(reason)
	}
	*now = now.Add(HandshakeTimeout + 1)
	if got := begins(g); got != "" || !c.closed || len(g.rejections()) != 1 || g.open != 0 {
		t.Errorf("the handshake of %q begins", got)
	}
}

// TestAdmission_Stalled checks that a handshake which waits for its client ends when others of the address wait for
// it.
func TestAdmission_Stalled(t *testing.T) {
	g, now, _ := limiterOf(smallLimits)
	first := arrives(t, g, "192.0.2.1")
	*now = now.Add(time.Millisecond)
	arrives(t, g, "192.0.2.1")
	arrives(t, g, "192.0.2.1")
	*now = now.Add(stalled - time.Millisecond)
	if begins(g) != "" || first.closed {
		t.Error("ended although none waits")
	}
	if reason := waiting(g, &fromConn{addr: "192.0.2.1"}, unknown); reason != "" {
		t.Fatal(reason)
	}
	if begins(g) != "" || !first.closed {
		t.Error("not ended")
	}
	g.leave(g.arrival(first))
	if begins(g) != "192.0.2.1" {
		t.Error("the one that waited does not begin")
	}
}

// TestAdmission_Proxied checks that a proxied address counts as soon as it is known.
func TestAdmission_Proxied(t *testing.T) {
	g, _, _ := limiterOf(smallLimits)
	for n := range 5 {
		c := &fromConn{addr: "192.0.2.1"}
		if reason := g.arrive(&arrival{raw: c, from: c.RemoteAddr(), key: netip.MustParsePrefix("192.0.2.9/32"), class: unknown}); reason != "" || begins(g) == "" {
			t.Fatal(n, reason)
		}
		want := ""
		if n >= 3 {
			want = fullAddress
		}
		a := g.arrival(c)
		if reason := g.from(a, c.RemoteAddr()); reason != want {
			t.Errorf("number %d: %q, want %q", n, reason, want)
		}
		if want != "" {
			g.leave(a) // it was not counted
		}
	}
}
