package listener

import (
	"io"
	"net"
	"time"
)

// Protocol is the protocol of a connection. The values are those of ALPN.
type Protocol string

// The protocols.
const (
	HTTP2     Protocol = "h2"       // gRPC
	WebSocket Protocol = "http/1.1" // MQTT in WebSocket
	MQTT      Protocol = "mqtt"
)

// Transport is the transport of calls, as metrics name it.
type Transport string

// The transports.
const (
	GRPC          Transport = "grpc"
	CleartextMQTT Transport = "mqtt"
	WebSockets    Transport = "websocket" // with MQTT inside
)

// SetTransport sets the transport of the connection, before any call or byte is counted.
func (c *Connection) SetTransport(t Transport) {
	g := c.port.limiter
	g.mu.Lock()
	defer g.mu.Unlock()
	c.transport = t
	s := *c.peerState()
	s.calls, s.received, s.sent = c.port.metrics.of(s.identity.Role, t)
	c.state.Store(&s)
}

// EndUnacknowledged ends the connection when sent data is not acknowledged for d, where the system can do that.
func (c *Connection) EndUnacknowledged(d time.Duration) error { return endUnacknowledged(c.raw, d) }

// NegotiatedProtocol returns the protocol that ALPN selected, "" without one.
func (c *Connection) NegotiatedProtocol() Protocol { return c.negotiated }

// AuthType implements credentials.AuthInfo.
func (c *Connection) AuthType() string {
	if c.trustsPeer {
		return "insecure"
	}
	return "tls"
}

// PeekedConn is a connection whose first byte identifies its protocol.
type PeekedConn struct {
	net.Conn
	first [1]byte
	held  bool // first was read, and not yet returned by Read
}

// DetectProtocol waits for the first byte and returns the protocol. It is called once, before anything is read.
func (p *PeekedConn) DetectProtocol() (Protocol, error) {
	if _, err := io.ReadFull(p.Conn, p.first[:]); err != nil {
		return "", err
	}
	p.held = true
	switch p.first[0] {
	case 'P': // PRI
		return HTTP2, nil
	case 'G': // GET
		return WebSocket, nil
	}
	return MQTT, nil
}

// Read implements net.Conn.
func (p *PeekedConn) Read(b []byte) (int, error) {
	if !p.held || len(b) == 0 {
		return p.Conn.Read(b)
	}
	p.held = false
	return copy(b, p.first[:]), nil
}
