package listener

import (
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/fair"
)

// meteredConn is a connection of which what comes and goes is counted. Who reads more from it than
// its peer may send is held up: what the peer sends then waits in its own system, and costs
// nothing here.
//
// t1 a peer sends without end on many connections, t2 each of their readers always finds something,
// and is stopped by nobody for some 10 ms, t3 whoever else has something to do waits for all of
// them. Therefore a reader that is ahead stops by itself.
type meteredConn struct {
	net.Conn
	of *Connection
}

// Read implements net.Conn.
func (m *meteredConn) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	count(m.of.peerState().received, n)
	if wait := m.of.port.limiter.ahead(m.of, n); wait > 0 {
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

// count does not count what comes before it is known what is spoken: a byte, or the request that
// opens a WebSocket.
func count(c prometheus.Counter, n int) {
	if c != nil {
		c.Add(float64(n))
	}
}

// ahead counts bytes that came, and returns how long it takes until as many may have come.
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
