// Package session keeps one subscription alive: dial, subscribe, resume or
// resync, deliver, and, when the connection ends, back off and begin again. It
// is the only reconnect loop in Hawser, and the entry for programs that publish
// works themselves.
//
// A program that owns works implements [Party] and publishes with
// [Session.Publish]:
//
//	s := session.New(session.Config{Dialer: d, Subscription: transport.Subscription{...}, Party: p})
//	go s.Run(ctx)
//	receipt, err := s.Publish(ctx, event)
package session

import (
	"context"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Party is what a session serves: an agent or a source. Its methods are called
// from the session's goroutine, one at a time, except where noted.
type Party interface {
	// Hello returns what to say at the next subscribe.
	Hello() transport.Hello
	// Subscribed is called after the broker accepted, before the first event
	// of this connection is handled. It returns the events to publish at once
	// (a spec resync request of an agent, status resync requests of a source),
	// which the session publishes side by side with delivery, so that the
	// answer of the first cannot block the second.
	Subscribed(ctx context.Context, a transport.Accepted) ([]codec.Event, error)
	// Handle takes one event; nil means accepted (see transport.Handler). An
	// error ends the connection, and the session starts again after a back-off:
	// an event that is merely bad must be reported and accepted.
	Handle(ctx context.Context, e codec.Event) error
	// Disconnected is called when the connection ended, with the reason.
	Disconnected(err error)
}
