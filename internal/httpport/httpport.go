// Package httpport bounds what the clients of a small HTTP port, that of a webhook
// or of metrics, can take of it. Everybody who reaches such a port may ask it, so
// those who mean no well must leave room for those who do.
//
// HTTP/1.1 alone is spoken: a connection carries one request at a time, so that
// bounding the connections, and the bytes that requests in progress have sent,
// bounds everything. A connection that is one too many is let in, and another is
// closed for it. Those on which nothing was answered yet have half of the room, the
// others have the rest. Of the half that is too full, the address that has the most
// loses its longest idle, or else its oldest, connection.
package httpport

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Limits are those of a port.
type Limits struct {
	// Connections are those at once, handshakes and idle ones included.
	Connections int
	// Bytes are those that requests in progress have sent.
	Bytes int
}

// The deadlines of a connection. That of the headers is the one of the handshake,
// too; that of reading includes the body.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 8 * time.Second
	writeTimeout  = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 64 << 10
	// logInterval bounds how often the log tells of connections that were closed.
	logInterval = time.Minute
)

// Server returns a server with deadlines, and the listener, on l, that it is to
// serve.
func Server(h http.Handler, l net.Listener, limits Limits, log *slog.Logger) (*http.Server, net.Listener) {
	p := &port{Listener: l, limits: limits, log: log, conns: map[*conn]struct{}{}}
	s := &http.Server{
		Handler: h, ConnState: p.state, Protocols: &http.Protocols{},
		ReadTimeout: readTimeout, ReadHeaderTimeout: headerTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader,
		// Handshakes that fail: a wrong caBundle shows here, and so does a port scan.
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelInfo),
	}
	s.Protocols.SetHTTP1(true)
	return s, p
}

// port is a bounded listener.
type port struct {
	net.Listener
	limits Limits
	log    *slog.Logger

	mu       sync.Mutex
	conns    map[*conn]struct{}
	bytes    int // of conns
	count    uint64
	loggedAt time.Time
}

// conn is a connection; all but the first three are guarded by port.mu.
type conn struct {
	net.Conn
	port *port
	from netip.Addr

	order    uint64 // of the last thing that its state says
	bytes    int    // of the request in progress
	answered bool   // at least one request was
	idle     bool
}

// Accept implements net.Listener.
func (p *port) Accept() (net.Conn, error) {
	raw, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, port: p, from: addressOf(raw)}
	p.mu.Lock()
	c.touch()
	p.conns[c] = struct{}{}
	var victim *conn
	if len(p.conns) > p.limits.Connections {
		victim = p.pick(p.limits.Connections, func(*conn) int { return 1 })
	}
	p.mu.Unlock()
	p.end(victim)
	return c, nil
}

// touch notes that c is the latest. port.mu is held.
func (c *conn) touch() {
	c.port.count++
	c.order = c.port.count
}

// addressOf is whom a connection belongs to; zero where that has no meaning. A host has a whole /64 of IPv6.
func addressOf(c net.Conn) netip.Addr {
	t, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	from := t.AddrPort().Addr().Unmap()
	if from.Is6() {
		return netip.PrefixFrom(from.WithZone(""), 64).Masked().Addr()
	}
	return from
}

// Read implements net.Conn, and counts.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	p := c.port
	p.mu.Lock()
	var victim *conn
	if _, open := p.conns[c]; open {
		c.bytes, p.bytes = c.bytes+n, p.bytes+n
		if p.bytes > p.limits.Bytes {
			victim = p.pick(p.limits.Bytes, func(c *conn) int { return c.bytes })
		}
	}
	p.mu.Unlock()
	p.end(victim)
	return n, err
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.port.mu.Lock()
	c.port.forget(c)
	c.port.mu.Unlock()
	return c.Conn.Close()
}

// forget takes a connection out of the count. p.mu is held.
func (p *port) forget(c *conn) {
	if _, open := p.conns[c]; open {
		delete(p.conns, c)
		p.bytes -= c.bytes
	}
}

// state hears from the server how a connection stands.
func (p *port) state(of net.Conn, s http.ConnState) {
	if t, ok := of.(*tls.Conn); ok {
		of = t.NetConn()
	}
	c, ok := of.(*conn)
	if !ok || s != http.StateIdle && s != http.StateActive {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, open := p.conns[c]; !open {
		return
	}
	if c.idle = s == http.StateIdle; c.idle {
		p.bytes -= c.bytes
		c.answered, c.bytes = true, 0
		c.touch()
	}
}

// pick returns the connection that is to end, and forgets it, since there is more
// than the limit of what size says. p.mu is held.
func (p *port) pick(limit int, size func(*conn) int) *conn {
	unanswered := 0
	by := map[netip.Addr]*[2]int{}
	kind := func(c *conn) int {
		if c.answered {
			return 1
		}
		return 0
	}
	for c := range p.conns {
		if by[c.from] == nil {
			by[c.from] = &[2]int{}
		}
		by[c.from][kind(c)] += size(c)
		if !c.answered {
			unanswered += size(c)
		}
	}
	full := 1
	if unanswered > limit/2 {
		full = 0
	}
	var worst *conn
	for c := range p.conns {
		if kind(c) != full || size(c) == 0 {
			continue
		}
		if worst == nil || yields(c, worst, by[c.from][full], by[worst.from][full]) {
			worst = c
		}
	}
	p.forget(worst)
	return worst
}

// yields reports whether a, whose address has so much, is to end before b.
func yields(a, b *conn, ofA, ofB int) bool {
	switch {
	case ofA != ofB:
		return ofA > ofB
	case a.idle != b.idle:
		return a.idle
	}
	return a.order < b.order
}

// end closes a connection; nil is none.
func (p *port) end(c *conn) {
	if c == nil {
		return
	}
	p.mu.Lock()
	report := time.Since(p.loggedAt) >= logInterval
	if report {
		p.loggedAt = time.Now()
	}
	p.mu.Unlock()
	if report {
		p.log.Warn("the port has too many connections, or too many bytes on their way: those of the address that has the most are closed",
			"port", p.Addr().String(), "address", c.from.String(), "connections", p.limits.Connections, "bytes", p.limits.Bytes)
	}
	_ = c.Conn.Close() // whoever reads it notices
}
