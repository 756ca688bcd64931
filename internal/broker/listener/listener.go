package listener

import (
	"net"
	"net/netip"
	"time"

	"github.com/pires/go-proxyproto"
)

// listener rejects connections that the limiter does not admit, at the least possible cost. It reads nothing
// from such a connection. It closes the connection before it accepts the next one, so that both never need a
// file at once.
type listener struct {
	net.Listener
	limiter  *limiter
	proxies  []netip.Prefix
	refused  func(reason string, from net.Addr, err error)
	pausedAt time.Time // end of the last pause
}

// refusalBurst is how long connections are rejected without a pause, and refusalPause the length of a pause.
// Without the pause, a client that floods the port with connections would occupy a CPU for 10 ms at a time.
// refusalPause also bounds the pause of a handshake.
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
			// The client's address is read when the handshake begins. A proxy that does not send it gets no handshake:
			// otherwise all its clients would be one address.
			c = proxyproto.NewConn(c, proxyproto.WithPolicy(proxyproto.REQUIRE), proxyproto.SetReadHeaderTimeout(HandshakeTimeout))
		}
		reason := l.limiter.arrive(c, proxied)
		if reason == "" {
			return c, nil
		}
		_ = c.Close() // the result does not matter
		l.refused(reason, c.RemoteAddr(), nil)
		if time.Since(l.pausedAt) > refusalBurst {
			<-time.After(refusalPause)
			l.pausedAt = time.Now()
		}
	}
}

// isProxy reports whether an address is one of the trusted proxies.
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
