// Package admincall calls the admin service of a broker without a connection.
package admincall

import (
	"context"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/hawser-io/hawser/internal/identity"
)

// By returns the context of a call of a client.
func By(ctx context.Context, id identity.Identity) context.Context {
	return peer.NewContext(ctx, &peer.Peer{AuthInfo: caller{id: id}})
}

// caller is the connection of a client.
type caller struct {
	credentials.CommonAuthInfo
	id identity.Identity
}

// AuthType implements [credentials.AuthInfo].
func (caller) AuthType() string { return "test" }

// Caller returns the identity of the client.
func (c caller) Caller() identity.Identity { return c.id }

// To returns the stream of a list, whose messages are passed to receive.
func To[T any](ctx context.Context, receive func(*T) error) ggrpc.ServerStreamingServer[T] {
	return stream[T]{ctx: ctx, receive: receive}
}

type stream[T any] struct {
	ggrpc.ServerStream
	ctx     context.Context //nolint:containedctx // it is the context of a stream
	receive func(*T) error
}

// Context implements [ggrpc.ServerStream].
func (s stream[T]) Context() context.Context { return s.ctx }

// SetHeader implements [ggrpc.ServerStream].
func (stream[T]) SetHeader(metadata.MD) error { return nil }

// Send implements [ggrpc.ServerStreamingServer].
func (s stream[T]) Send(m *T) error { return s.receive(m) }
