package transporttest

import (
	"context"
	"errors"

	"github.com/hawser-io/hawser/pkg/transport"
)

// running starts a Publish and a Subscribe on c that hang at the server.
func (b *bench) running(c transport.Conn) (published <-chan error, s *subscription) {
	b.Helper()
	entered := make(chan struct{})
	b.server.publish = func(ctx context.Context, _ transport.Peer, _ []byte, _ string) (transport.Receipt, error) {
		close(entered)
		<-ctx.Done()
		return transport.Receipt{}, ctx.Err()
	}
	done := make(chan error, 1)
	go func() { // done is received from by the caller
		_, err := c.Publish(b.Context(), newReport(1, nil), "")
		done <- err
	}()
	await(b, entered, "the event at the server")
	s = b.subscribe(b.Context(), c, acceptAll)
	s.awaitReady()
	return done, s
}

// wantFailed checks that all calls on c fail.
func (b *bench) wantFailed(c transport.Conn) {
	b.Helper()
	b.server.publish = func(context.Context, transport.Peer, []byte, string) (transport.Receipt, error) {
		b.Error("an event of a failed connection reached the server")
		return transport.Receipt{}, nil
	}
	for range 3 { // the connection stays failed
		_, err := c.Publish(b.Context(), newReport(1, nil), "")
		b.wantCode(err, transport.CodeUnavailable)
		err = c.Subscribe(b.Context(), agentSubscription(), func(transport.Accepted) { b.Error("ready was called") }, acceptAll)
		b.wantCode(err, transport.CodeUnavailable)
	}
}

func closeEndsCalls(b *bench) {
	c := b.dial()
	published, s := b.running(c)
	if err := c.Close(); err != nil {
		b.Errorf("close: %v", err)
	}
	b.wantCode(await(b, published, "publish"), transport.CodeUnavailable)
	b.wantCode(s.awaitEnd(), transport.CodeUnavailable)
	b.wantFailed(c)
	if err := c.Close(); err != nil {
		b.Errorf("second close: %v", err)
	}
}

func cutEndsCalls(b *bench) {
	c := b.dial()
	published, s := b.running(c)
	b.fixture.Cut()
	b.wantCode(await(b, published, "publish"), transport.CodeUnavailable)
	b.wantCode(s.awaitEnd(), transport.CodeUnavailable)
	b.wantFailed(c)

	b.server.publish = func(context.Context, transport.Peer, []byte, string) (transport.Receipt, error) {
		return transport.Receipt{Outcome: "accepted"}, nil
	}
	if r, err := b.dial().Publish(b.Context(), newReport(1, nil), ""); err != nil || r.Outcome != "accepted" {
		b.Errorf("publish on a new connection: %v, %v", r, err)
	}
}

func dialCancelled(b *bench) {
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	c, err := b.fixture.Dialer.Dial(ctx)
	if c != nil {
		b.Error("got a connection")
	}
	b.wantCode(err, transport.CodeUnavailable)
	if !errors.Is(err, context.Canceled) {
		b.Errorf("got %v, want it to wrap context.Canceled", err)
	}
}
