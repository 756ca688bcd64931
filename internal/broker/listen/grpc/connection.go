package grpc

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/transport"
)

// connIDs numbers the connections of the process.
var connIDs atomic.Uint64

// connection is what is known of a peer since its handshake. gRPC carries it to
// every call as the peer's AuthInfo.
type connection struct {
	credentials.AuthInfo
	id       uint64
	addr     string
	identity identity.Identity // zero when the peer showed no certificate
	// unknown: the peer showed a certificate that maps to no identity.
	unknown error
}

// handshake wraps the credentials of the port: it adds to every connection who
// is at the other end.
type handshake struct {
	credentials.TransportCredentials
	mapping identity.Mapping
}

// ServerHandshake implements credentials.TransportCredentials.
func (h *handshake) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := h.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	c := &connection{AuthInfo: info, id: connIDs.Add(1), addr: raw.RemoteAddr().String()}
	if t, ok := info.(credentials.TLSInfo); ok {
		c.identity, c.unknown = h.identify(t.State)
	}
	return conn, c, nil
}

func (h *handshake) identify(s tls.ConnectionState) (identity.Identity, error) {
	if len(s.VerifiedChains) == 0 {
		return identity.Identity{}, nil
	}
	return h.mapping.FromCertificate(s.VerifiedChains[0][0])
}

// Clone implements credentials.TransportCredentials.
func (h *handshake) Clone() credentials.TransportCredentials {
	return &handshake{TransportCredentials: h.TransportCredentials.Clone(), mapping: h.mapping}
}

// connectionOf returns the connection a call came on.
func connectionOf(ctx context.Context) (*connection, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, errNoConnection
	}
	c, ok := p.AuthInfo.(*connection)
	if !ok {
		return nil, errNoConnection
	}
	return c, nil
}

var errNoConnection = errors.New("call without a connection")

// unauthenticated is the error for a certificate nobody knows.
func (c *connection) unauthenticated() *transport.Error {
	return &transport.Error{
		Code: transport.CodeUnauthenticated, Next: transport.NextRefreshCredentials,
		Message: c.unknown.Error(),
		Hint:    "add an identity rule for this subject to the broker's configuration, or use another certificate",
	}
}

// peer is how the broker sees the other end.
func (c *connection) peer() transport.Peer {
	return transport.Peer{Role: string(c.identity.Role), Name: c.identity.Name, Addr: c.addr, Conn: c.id}
}
