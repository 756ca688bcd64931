package mem

import (
	"bytes"
	"context"
	"errors"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// window is the number of events that may wait between server and handler. It simulates the flow control window
// of a network. It is small, so that a stuck handler blocks the server soon.
const window = 4

// Subscribe implements [transport.Subscriber]. An event that cannot be decoded ends it with CodeInternal,
// because the server in this process made it.
func (c *Conn) Subscribe(ctx context.Context, s transport.Subscription, ready func(transport.Accepted), h transport.Handler) error {
	if (s.Source == "") == (s.Cluster == "") {
		return transport.Invalid("a subscription names either a source or a cluster", nil)
	}
	raw := transport.RawSubscription{Source: s.Source, Cluster: s.Cluster, DataType: s.DataType.String(), Hello: s.Hello}
	out := &stream{accepted: make(chan transport.Accepted, 1), events: make(chan []byte, window)}
	var result error // of the server; written before the channels are closed
	finish, err := c.serve(ctx, func(ctx context.Context) {
		out.done = ctx.Done()
		result = c.dialer.server.Subscribe(ctx, c.peer, raw, out)
		close(out.accepted)
		close(out.events)
	})
	if err != nil {
		return bare(ctx, err)
	}
	defer finish()
	select {
	case a, ok := <-out.accepted:
		if !ok {
			return c.over(ctx, result)
		}
		ready(a)
	case <-ctx.Done():
		return ctx.Err()
	case <-c.gone:
		return c.over(ctx, nil)
	}
	for {
		select {
		case b, ok := <-out.events:
			if !ok {
				return c.over(ctx, result)
			}
			if err := deliver(ctx, b, h); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-c.gone:
			return c.over(ctx, nil)
		}
	}
}

// over returns the error of an ended subscription; err is the server's result.
func (c *Conn) over(ctx context.Context, err error) error {
	if ended := c.ended(ctx); ended != nil {
		return bare(ctx, ended)
	}
	if err == nil {
		return &transport.Error{Code: transport.CodeUnavailable, Message: "the broker ended the subscription"}
	}
	return asSent(err)
}

// deliver passes one event to h; it consumes heartbeats.
func deliver(ctx context.Context, b []byte, h transport.Handler) error {
	if codec.IsHeartbeat(b) {
		return nil
	}
	e, err := codec.Unmarshal(b)
	if err != nil {
		return &transport.Error{Code: transport.CodeInternal, Message: "the server sent an event that cannot be decoded", Err: err}
	}
	return h(ctx, e)
}

// bare returns ctx's own error if ctx is the reason, as Subscribe promises.
func bare(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// stream is the server's end of a subscription.
type stream struct {
	accepted chan transport.Accepted
	events   chan []byte
	done     <-chan struct{}
	begun    bool
}

var _ transport.Stream = (*stream)(nil)

func (s *stream) Accept(a transport.Accepted) error {
	if s.begun {
		return errors.New("mem: a subscription is accepted once")
	}
	s.begun = true
	s.accepted <- a
	return nil
}

func (s *stream) Send(parts ...[]byte) error {
	if !s.begun {
		return errors.New("mem: nothing is sent before the subscription is accepted")
	}
	select {
	case s.events <- bytes.Join(parts, nil):
		return nil
	case <-s.done:
		return &transport.Error{Code: transport.CodeUnavailable, Message: "the peer is gone"}
	}
}
