package listener

import (
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/fair"
)

// meteredConn counts the traffic of a connection. A reader above its byte rate sleeps. TCP then keeps the data
// at the peer, where it costs the broker nothing.
//
// Scenario:
//
//	t1: a client floods 16 connections.
//	t2: each of their readers always has data and runs 10 ms.
//	t3: other clients wait up to 110 ms.
//
// Result: a reader above its byte rate sleeps.
type meteredConn struct {
	net.Conn
	of        *Connection
	uncharged int // received bytes that are not charged yet; only for the reading goroutine
}

// chargeAtOnce is the number of received bytes that are charged together. A small message takes several reads,
// and a charge takes the lock of all connections.
const chargeAtOnce = 16 << 10

// Read implements net.Conn.
func (m *meteredConn) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	count(m.of.peerState().received, n)
	if m.uncharged += n; m.uncharged < chargeAtOnce {
		return n, err
	}
	wait := m.of.port.limiter.ahead(m.of, m.uncharged)
	m.uncharged = 0
	if wait > 0 {
		<-time.After(wait)
	}
	return n, err
}

// Write implements net.Conn.
func (m *meteredConn) Write(b []byte) (int, error) {
	n, err := m.Conn.Write(b)
	count(m.of.peerState().sent, n)
	return n, err
}

// count adds n to c. While the protocol is unknown c is nil, and bytes are not counted: the first byte, or the
// request that opens a WebSocket.
func count(c prometheus.Counter, n int) {
	if c != nil {
		c.Add(float64(n))
	}
}

// ahead charges n received bytes, and returns how long the reader has to sleep.
func (g *limiter) ahead(c *Connection, n int) time.Duration {
	rate := c.peerState().allowed.bytes
	if rate == (fair.Rate{}) || n == 0 {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	b := &c.bytes
	if c.client != nil {
		b = &c.client.bytes
	}
	b.Charge(rate, g.now(), float64(n))
	return b.Debt(rate)
}
