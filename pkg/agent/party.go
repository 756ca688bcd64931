package agent

import (
	"context"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// protocol is the version of Hawser's additions to the OCM protocol.
const protocol = 1

// party is the agent as its session sees it.
type party struct{ *Agent }

// Hello implements session.Party.
func (p party) Hello() transport.Hello {
	return transport.Hello{Protocol: protocol, ClusterUID: *p.clusterUID.Load()}
}

// Subscribed implements session.Party.
func (p party) Subscribed(_ context.Context, a transport.Accepted) ([]codec.Event, error) {
	return p.core.Subscribed(a)
}

// Handle implements session.Party. Nothing that a broker sends ends the
// connection.
func (p party) Handle(ctx context.Context, e codec.Event) error {
	p.core.Handle(ctx, e)
	return nil
}

// Disconnected implements session.Party.
func (p party) Disconnected(error) { p.core.Disconnected() }
