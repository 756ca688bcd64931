package agent

import (
	"context"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// party is the agent as its session sees it.
type party struct{ *Agent }

// Hello implements session.Party.
func (p party) Hello() transport.Hello { return p.core.Hello() }

// Subscribed implements session.Party.
func (p party) Subscribed(ctx context.Context, a transport.Accepted) ([]codec.Event, error) {
	if err := p.gate.pass(ctx, a); err != nil {
		return nil, err
	}
	return p.core.Subscribed(a)
}

// Handle implements session.Party. Nothing that a broker sends ends the
// connection.
func (p party) Handle(ctx context.Context, e codec.Event) error {
	p.core.Handle(ctx, e)
	return nil
}

// Disconnected implements session.Party.
func (p party) Disconnected(err error) { p.core.Disconnected(err) }
