package agent

import (
	"context"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// sessionHandler implements session.Handler for the agent.
type sessionHandler struct{ *Agent }

// Hello implements session.Handler.
func (p sessionHandler) Hello() transport.Hello { return p.core.Hello() }

// Subscribed implements session.Handler.
func (p sessionHandler) Subscribed(ctx context.Context, a transport.Accepted) ([]codec.Event, error) {
	if err := p.dialer.pass(ctx, a); err != nil {
		return nil, err
	}
	return p.core.Subscribed(a)
}

// Handle implements session.Handler. No event of a broker ends the connection.
func (p sessionHandler) Handle(ctx context.Context, e codec.Event) error {
	p.core.Handle(ctx, e)
	return nil
}

// Disconnected implements session.Handler.
func (p sessionHandler) Disconnected(err error) { p.core.Disconnected(err) }
