package grpc

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/hawser-io/hawser/internal/broker/listener"
	"github.com/hawser-io/hawser/pkg/transport"
)

// connection is a connection after its handshake. gRPC passes it to every call as the peer's AuthInfo.
type connection struct {
	*listener.Connection

	// Only the goroutine that reads the connection uses the fields below. It also admits the calls.
	frames frames
	opened *listener.Body // body of the call whose headers came last, until tap has decided about it
	flood  error          // the reason why reading has stopped; nil while it continues
}

// Peer returns the peer as the broker sees it.
func (c *connection) Peer() transport.Peer {
	p := c.Connection.Peer()
	p.Transport = transport.GRPC
	return p
}

// handshake runs the port's handshake as gRPC credentials. The AuthInfo that it returns is the connection with
// its identity.
type handshake struct {
	credentials.TransportCredentials
	port     *listener.Port
	insecure bool
	other    func(net.Conn, *listener.Connection, listener.Protocol)
}

// ServerHandshake implements credentials.TransportCredentials.
func (h *handshake) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	arrived, ok := raw.(*arrived)
	if !ok {
		return nil, nil, listener.ErrNoConnection
	}
	conn, client, err := h.port.Handshake(arrived.Conn)
	if err != nil {
		return nil, nil, err
	}
	conn, spoken, err := h.spoken(conn, client)
	switch {
	case err != nil:
		client.Leave()
		return nil, nil, err
	case spoken != listener.HTTP2:
		arrived.leave()
		h.other(conn, client, spoken)
		return nil, nil, credentials.ErrConnDispatched
	}
	client.SetTransport(listener.GRPC)
	if err := client.EndUnacknowledged(unacknowledged); err != nil {
		client.Leave()
		return nil, nil, err // the connection is closed already
	}
	c := &connection{Connection: client}
	return &counted{Conn: conn, connection: c}, c, nil
}

// spoken returns the protocol of a connection, and the connection to read from now on. The protocol is "" if it
// is not known before the first byte.
func (h *handshake) spoken(conn net.Conn, connection *listener.Connection) (net.Conn, listener.Protocol, error) {
	switch {
	case h.insecure && h.other == nil:
		return conn, listener.HTTP2, nil
	case h.insecure:
		p := &listener.PeekedConn{Conn: conn}
		spoken, err := p.DetectProtocol()
		return p, spoken, err
	}
	p := connection.NegotiatedProtocol() // HTTP/2 must be negotiated
	if p != listener.HTTP2 && h.other == nil {
		return nil, p, errors.New("grpc listener: the peer did not negotiate HTTP/2 in its TLS handshake")
	}
	return conn, p, nil
}

// arrivals wraps the accepted connections of a port for the library.
type arrivals struct{ net.Listener }

// Accept implements net.Listener.
func (a arrivals) Accept() (net.Conn, error) {
	c, err := a.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &arrived{Conn: c}, nil
}

// arrived is a connection that may be handed to another protocol. After the hand-over the library still removes
// its handshake deadline; SetDeadline then ignores that call.
type arrived struct {
	net.Conn
	gone atomic.Bool
}

// leave removes the deadline and hands the connection to another protocol.
func (a *arrived) leave() {
	_ = a.Conn.SetDeadline(time.Time{}) // fails if it is closed
	a.gone.Store(true)
}

// SetDeadline implements net.Conn.
func (a *arrived) SetDeadline(t time.Time) error {
	if a.gone.Load() {
		return nil
	}
	return a.Conn.SetDeadline(t)
}

// Clone implements credentials.TransportCredentials.
func (h *handshake) Clone() credentials.TransportCredentials {
	clone := *h
	clone.TransportCredentials = h.TransportCredentials.Clone()
	return &clone
}

// connectionOf returns the connection of a call.
func connectionOf(ctx context.Context) (*connection, error) {
	if p, ok := peer.FromContext(ctx); ok {
		if c, ok := p.AuthInfo.(*connection); ok {
			return c, nil
		}
	}
	return nil, listener.ErrNoConnection
}

// counted is a decrypted connection. The library reads one frame after the other and never ahead, so it handles
// each frame before it reads the next one.
type counted struct {
	net.Conn
	connection *connection
	once       sync.Once
}

// Read implements net.Conn.
func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if e := c.connection.CheckLifetime(); e != nil {
		return 0, e
	}
	if e := c.connection.frames.parse(b[:n], c.frame); e != nil {
		return 0, e
	}
	return n, err
}

// Write implements net.Conn.
func (c *counted) Write(b []byte) (int, error) {
	if e := c.connection.CheckLifetime(); e != nil {
		return 0, e
	}
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.once.Do(c.connection.Leave)
	return c.Conn.Close()
}

// frame counts one frame of the peer, before its payload is read.
func (c *counted) frame(h frameHeader) error {
	conn := c.connection
	if h.kind != http2.FrameContinuation && conn.opened != nil { // the library answered the headers without calling tap
		conn.opened, conn.flood = nil, conn.Garbled()
	}
	if conn.flood != nil {
		return conn.flood
	}
	switch ended := h.flags.Has(http2.FlagDataEndStream); h.kind {
	case http2.FrameHeaders:
		conn.opened = conn.NewBody(h.stream, ended)
		return nil
	case http2.FrameData:
		if !conn.Grow(h.stream, cost(h.length), ended) {
			return conn.ChargeClosedStream(cost(h.length))
		}
		if h.length > smallFrame || ended {
			return nil
		}
	case http2.FrameRSTStream:
		conn.Reset(h.stream)
	}
	return conn.ChargeControlFrame()
}
