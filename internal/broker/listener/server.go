package listener

import (
	"context"

	"github.com/hawser-io/hawser/pkg/transport"
)

// Server serves the calls of a port.
type Server interface {
	transport.Server
	// Start is Subscribe without a goroutine between two events. It may return before the end of the subscription, and
	// calls ended after it.
	Start(ctx context.Context, p transport.Peer, raw transport.RawSubscription, out transport.Stream, ended func(error))
}
