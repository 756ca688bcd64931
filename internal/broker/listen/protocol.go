package listen

import (
	"io"
	"net"

	"google.golang.org/grpc/credentials"
)

// Protocol is what is spoken on a connection. The texts are those of ALPN.
type Protocol string

// The protocols.
const (
	HTTP2     Protocol = "h2"       // gRPC
	WebSocket Protocol = "http/1.1" // MQTT in WebSocket
	MQTT      Protocol = "mqtt"
)

// Spoken returns what the peer speaks: what was agreed upon in the handshake, else what its
// first byte says, which it waits for. The result is read instead of conn.
func (c *Connection) Spoken(conn net.Conn) (net.Conn, Protocol, error) {
	if t, ok := c.AuthInfo.(credentials.TLSInfo); ok && t.State.NegotiatedProtocol != "" {
		return conn, Protocol(t.State.NegotiatedProtocol), nil
	}
	p := &peeked{Conn: conn}
	if _, err := io.ReadFull(conn, p.first[:]); err != nil {
		return nil, "", err
	}
	switch {
	case p.first[0] == 'G': // GET, which begins WebSocket
		return p, WebSocket, nil
	case p.first[0] == 'P' && c.believed: // PRI, which begins HTTP/2; with TLS it has to be agreed upon
		return p, HTTP2, nil
	}
	return p, MQTT, nil
}

// peeked is a connection whose first byte was read.
type peeked struct {
	net.Conn
	first [1]byte
	given bool
}

// Read implements net.Conn.
func (p *peeked) Read(b []byte) (int, error) {
	if p.given || len(b) == 0 {
		return p.Conn.Read(b)
	}
	p.given = true
	return copy(b, p.first[:]), nil
}
