package listener

import (
	"net"
	"net/netip"
	"time"

	"github.com/pires/go-proxyproto"
)

// listener refuses what the gate does not let in, at the least cost there is:
// before anything is read, and before the next connection is accepted, which
// needs a file of its own.
type listener struct {
	net.Listener
	limiter  *limiter
	proxies  []netip.Prefix
	refused  func(reason string, from net.Addr, err error)
	pausedAt time.Time // when it last rested
}

// refusalBurst is how long connections are refused without a rest, and rest how long that is: who opens
// connections without end would else have the processor for 10 ms at a time. Of a handshake, rest
// is the longest one.
const refusalBurst, refusalPause = time.Millisecond, time.Millisecond

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		proxied := l.isProxy(c.RemoteAddr())
		if proxied {
			// Who is behind it is read when the handshake begins. One that does not say
			// who is gets no handshake: else all of its clients would be one address.
			c = proxyproto.NewConn(c, proxyproto.WithPolicy(proxyproto.REQUIRE), proxyproto.SetReadHeaderTimeout(HandshakeTimeout))
		}
		reason := l.limiter.arrive(c, proxied)
		if reason == "" {
			return c, nil
		}
		_ = c.Close() // nobody waits for how it ends
		l.refused(reason, c.RemoteAddr(), nil)
		if time.Since(l.pausedAt) > refusalBurst {
			<-time.After(refusalPause)
			l.pausedAt = time.Now()
		}
	}
}

// isProxy tells whether an address is one of the proxies that are believed.
func (l *listener) isProxy(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return false
	}
	ip := t.AddrPort().Addr().Unmap().WithZone("")
	for _, p := range l.proxies {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}
