package interop

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"github.com/hawser-io/hawser/internal/broker/listener"
	"github.com/hawser-io/hawser/internal/broker/listener/grpc"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// scripted is a broker that sends any event that a test needs, including events that no real broker would send.
// Its agents see it as an OCM broker.
type scripted struct {
	addr string
	// wire records the events that agents published.
	wire *journal[passed]
	send chan codec.Event
}

func startScripted(t *testing.T) *scripted {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &scripted{addr: l.Addr().String(), wire: newJournal("scripted broker", passed.String), send: make(chan codec.Event)}
	front, err := grpc.New(grpc.Config{
		Server: testkit.Blocking{Server: s}, Config: listener.Config{Listener: l, Log: slog.New(slog.DiscardHandler), Credentials: serverCredentials(t)},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- front.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("scripted broker: %v", err)
		}
	})
	return s
}

// Publish implements [transport.Server].
func (s *scripted) Publish(_ context.Context, p transport.Peer, event []byte, _ string) (transport.Receipt, error) {
	e, err := codec.Unmarshal(event)
	s.wire.add(passed{peer: p, event: e, err: err})
	return transport.Receipt{}, nil
}

// Subscribe implements [transport.Server].
func (s *scripted) Subscribe(ctx context.Context, _ transport.Peer, _ transport.RawSubscription, out transport.Stream) error {
	if err := out.Accept(transport.Accepted{SubscriptionID: "scripted"}); err != nil {
		return err
	}
	for {
		select {
		case e := <-s.send:
			b, err := codec.Marshal(e)
			if err == nil {
				err = out.Send(b)
			}
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
