package listener

import (
	"context"

	"github.com/hawser-io/hawser/pkg/transport"
)

// Starter begins subscriptions that need no goroutine between two events.
type Starter interface {
	// Start begins a subscription, and calls ended after its end. It may return before or after that.
	Start(ctx context.Context, p transport.Peer, raw transport.RawSubscription, out transport.Stream, ended func(error))
}

// StarterOf returns a server as a Starter. Start of a server that is none returns at the end of the subscription.
func StarterOf(s transport.Server) Starter {
	if starter, ok := s.(Starter); ok {
		return starter
	}
	return blocking{s}
}

type blocking struct{ transport.Server }

// Start implements [Starter].
func (b blocking) Start(ctx context.Context, p transport.Peer, raw transport.RawSubscription, out transport.Stream, ended func(error)) {
	ended(b.Subscribe(ctx, p, raw, out))
}
