package testkit

import (
	"context"

	"github.com/hawser-io/hawser/pkg/transport"
)

// Blocking is a server for a port whose Start returns at the end of the subscription.
type Blocking struct{ transport.Server }

// Start begins a subscription, and calls ended after its end.
func (b Blocking) Start(ctx context.Context, p transport.Peer, raw transport.RawSubscription, out transport.Stream, ended func(error)) {
	ended(b.Subscribe(ctx, p, raw, out))
}
