// Package httpport limits what clients can use of a small HTTP port, such as that of a webhook or of metrics.
// Every host that reaches such a port may send requests, so one host must not use all of its capacity.
//
// The port supports only HTTP/1.1. A connection carries one request at a time, so it is enough to limit the
// connections and the received bytes of running requests.
//
// A connection above the limit is accepted, and another one is closed instead. Connections without an answered
// request may use half of the limit, the others the rest. If one half is full, the address with the most
// connections in it loses its longest idle connection or, without one, its oldest.
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

// Limits are the limits of a port.
type Limits struct {
	// Connections is the maximum number of connections, with handshakes and idle ones.
	Connections int
	// Bytes is the maximum number of received bytes of running requests.
	Bytes int
}

// Timeouts of a connection. headerTimeout also applies to the handshake; readTimeout includes the body.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 8 * time.Second
	writeTimeout  = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 64 << 10
	// logInterval is the minimum interval of log lines about closed connections.
	logInterval = time.Minute
)

// Server returns a server with timeouts, and the listener over l that it must serve.
func Server(h http.Handler, l net.Listener, limits Limits, log *slog.Logger) (*http.Server, net.Listener) {
	p := &port{Listener: l, limits: limits, log: log, conns: map[*conn]struct{}{}}
	s := &http.Server{
		Handler: h, ConnState: p.state, Protocols: &http.Protocols{},
		ReadTimeout: readTimeout, ReadHeaderTimeout: headerTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader,
		// Failed handshakes: they show a wrong caBundle, or a port scan.
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelInfo),
	}
	s.Protocols.SetHTTP1(true)
	return s, p
}

// port is a listener with limits.
type port struct {
	net.Listener
	limits Limits
	log    *slog.Logger

	mu       sync.Mutex
	conns    map[*conn]struct{}
	bytes    int // sum over conns
	count    uint64
	loggedAt time.Time
}

// conn is a connection. All but the first three fields are guarded by port.mu.
type conn struct {
	net.Conn
	port *port
	from netip.Addr

	order    uint64 // number of its last change of state
	bytes    int    // received bytes of the running request
	answered bool   // at least one request is answered
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

// touch makes c the latest. port.mu is held.
func (c *conn) touch() {
	c.port.count++
	c.order = c.port.count
}

// addressOf returns the address that a connection counts for, zero if it is not TCP. For IPv6 it is the /64 of
// the host.
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

// Read implements net.Conn, and counts the bytes.
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

// forget stops counting a connection. p.mu is held.
func (p *port) forget(c *conn) {
	if _, open := p.conns[c]; open {
		delete(p.conns, c)
		p.bytes -= c.bytes
	}
}

// state handles a change of state that the server reports.
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

// pick returns the connection to close and forgets it. It is called if the sum of size exceeds limit. p.mu is
// held.
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

// yields reports whether a is closed before b. ofA and ofB are the sums of their addresses.
func yields(a, b *conn, ofA, ofB int) bool {
	switch {
	case ofA != ofB:
		return ofA > ofB
	case a.idle != b.idle:
		return a.idle
	}
	return a.order < b.order
}

// end closes a connection; nil does nothing.
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
		p.log.Warn("the port has too many connections or too many bytes in flight; connections of the busiest address are closed",
			"port", p.Addr().String(), "address", c.from.String(), "connections", p.limits.Connections, "bytes", p.limits.Bytes)
	}
	_ = c.Conn.Close() // its reader gets an error
}
