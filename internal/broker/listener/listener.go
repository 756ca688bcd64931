package listener

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/pires/go-proxyproto"
)

// listener accepts connections, and returns them in the order in which their handshakes begin. It rejects others
// at the least possible cost: it closes the connection before it accepts the next one, so that both never need a
// file at once. [listener.fill] must run while Accept is called.
type listener struct {
	net.Listener
	limiter *limiter
	proxies []netip.Prefix
	refused func(reason string, from net.Addr, err error)
	// resumes reports whether the first bytes of a connection have a valid session ticket.
	resumes func(hello []byte) bool
	// later calls a function when the rest of a ClientHello has arrived, or is late.
	later    func(func())
	failures chan error    // of the inner Accept; closed when fill has ended
	closed   chan struct{} // Close was called
	close    func() error
	pausedAt time.Time // end of the last pause

	looking sync.Mutex
	hello   []byte // reused buffer of look
}

// arranged returns a listener that accepts from inner.
func (p *Port) arranged(inner net.Listener) *listener {
	l := &listener{
		Listener: inner, limiter: p.limiter, proxies: p.cfg.Proxies, refused: p.refused, resumes: func([]byte) bool { return false }, later: func(f func()) { time.AfterFunc(restOfHello, f) },
		failures: make(chan error), closed: make(chan struct{}), hello: make([]byte, helloBytes),
	}
	if p.files != nil {
		l.resumes = p.files.Resumes
	}
	l.close = sync.OnceValue(func() error {
		close(l.closed)
		return inner.Close()
	})
	return l
}

// helloBytes is the maximum size of a ClientHello whose ticket is looked at.
const helloBytes = 16 << 10

// Close implements net.Listener.
func (l *listener) Close() error { return l.close() }

// refusalBurst is how long connections are rejected without a pause, and refusalPause the length of a pause.
// Without the pause, a client that floods the port with connections would occupy a CPU for 10 ms at a time.
const refusalBurst, refusalPause = time.Millisecond, time.Millisecond

// checkQueue is the interval in which queued connections are checked without an event.
const checkQueue = 250 * time.Millisecond

// Accept implements net.Listener. It returns the connection whose handshake begins now.
func (l *listener) Accept() (net.Conn, error) {
	for {
		a := l.limiter.nextHandshake()
		l.report()
		if a != nil {
			return a.raw, nil
		}
		var later <-chan time.Time
		if l.limiter.waits() {
			later = time.After(checkQueue)
		}
		select {
		case <-l.limiter.wake:
		case <-later:
		case err, running := <-l.failures:
			if !running {
				err = net.ErrClosed
			}
			return nil, err
		}
	}
}

// fill accepts connections into the queues until the listener is closed. It then closes those without a complete
// handshake.
func (l *listener) fill() {
	defer l.limiter.closeArrivals()
	defer close(l.failures)
	for {
		c, err := l.Listener.Accept()
		if err == nil {
			l.take(c)
			continue
		}
		select {
		case l.failures <- err: // the server waits before it calls Accept again
		case <-l.closed:
			return
		}
	}
}

// take queues or rejects a connection.
func (l *listener) take(c net.Conn) {
	from := c.RemoteAddr()
	proxied := l.isProxy(from)
	shown := l.look(c, proxied)
	a := &arrival{raw: c, from: from, key: prefixOf(from), class: shown.class, computes: shown.computes}
	switch {
	case !proxied:
		a.address = a.key
	case shown.client != nil:
		a.from, a.key = shown.client, prefixOf(shown.client)
		a.address = a.key
	}
	if proxied {
		// If the client's address has not arrived, it is read when the handshake begins. A proxy that does not send it
		// gets no handshake: otherwise all its clients would be one address.
		a.raw = proxyproto.NewConn(c, proxyproto.WithPolicy(proxyproto.REQUIRE), proxyproto.SetReadHeaderTimeout(HandshakeTimeout))
	}
	reason := l.limiter.arrive(a)
	l.report()
	if reason == "" {
		if shown.partial {
			l.later(func() {
				if l.limiter.isQueued(a) && l.look(c, proxied).class == resuming {
					l.limiter.promote(a)
				}
			})
		}
		return
	}
	_ = c.Close() // the result does not matter
	l.refused(reason, a.from, nil)
	if time.Since(l.pausedAt) > refusalBurst {
		<-time.After(refusalPause)
		l.pausedAt = time.Now()
	}
}

// restOfHello is the time in which the rest of a ClientHello arrives. With a ticket it needs several packets.
const restOfHello = 10 * time.Millisecond

// glance is what the first bytes of a connection show.
type glance struct {
	class    class
	client   net.Addr // from the header of a proxy, nil without one
	computes bool     // data has arrived for the handshake
	partial  bool     // the rest of the ClientHello is missing
}

// look looks at the first bytes of a connection, without reading them. If the handshake has begun to read, the bytes
// show nothing.
func (l *listener) look(c net.Conn, proxied bool) glance {
	l.looking.Lock()
	defer l.looking.Unlock()
	s, hello := glance{class: unknown}, peek(c, l.hello)
	if proxied {
		if s.client, hello = behindHeader(hello); s.client == nil {
			return s
		}
	}
	s.computes = len(hello) > 0
	if l.resumes(hello) {
		s.class = resuming
	} else {
		s.partial = len(hello) < recordHeader || len(hello) < recordHeader+int(binary.BigEndian.Uint16(hello[3:]))
	}
	return s
}

// behindHeader returns the client of a proxied connection, nil without a complete header, and the bytes after the
// header.
func behindHeader(b []byte) (client net.Addr, rest []byte) {
	unread := bytes.NewReader(b)
	r := bufio.NewReader(unread)
	h, err := proxyproto.Read(r)
	if err != nil || h.Command.IsLocal() {
		return nil, nil
	}
	return h.SourceAddr, b[len(b)-unread.Len()-r.Buffered():]
}

// recordHeader is the size of the header of a TLS record, which ends with the length of the rest.
const recordHeader = 5

// report reports the connections that were rejected while they waited.
func (l *listener) report() {
	for _, r := range l.limiter.rejections() {
		l.refused(r.reason, r.from, nil)
	}
}

// isProxy reports whether an address is one of the trusted proxies.
func (l *listener) isProxy(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return false
	}
	ip := t.AddrPort().Addr().Unmap().WithZone("")
	return slices.ContainsFunc(l.proxies, func(p netip.Prefix) bool { return p.Contains(ip) })
}
