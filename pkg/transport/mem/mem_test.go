package mem_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mem"
	"github.com/hawser-io/hawser/pkg/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	transporttest.Run(t, func(_ *testing.T, s transport.Server) transporttest.Fixture {
		peer := transport.Peer{Role: "agent", Name: "cluster1"}
		d := mem.New(s, peer)
		return transporttest.Fixture{Dialer: d, Peer: peer, Cut: func() { d.Cut(); d.Restore() }}
	})
}

func TestDialer_RefusesWhileCut(t *testing.T) {
	d := mem.New(nil, transport.Peer{})
	d.Cut()
	if _, err := d.Dial(t.Context()); transport.CodeOf(err) != transport.CodeUnavailable {
		t.Errorf("got %v, want code unavailable", err)
	}
	d.Restore()
	c, err := d.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// server is a transport.Server made of one function.
type server func(ctx context.Context, out transport.Stream) error

func (server) Publish(context.Context, transport.Peer, []byte, string) (transport.Receipt, error) {
	return transport.Receipt{}, nil
}

func (s server) Subscribe(ctx context.Context, _ transport.Peer, _ transport.RawSubscription, out transport.Stream) error {
	return s(ctx, out)
}

func subscription() transport.Subscription {
	return transport.Subscription{Filter: transport.Filter{Cluster: "c", DataType: codec.ManifestBundles}}
}

// TestConn_CloseWaitsForServer: after Close nothing of the connection runs.
func TestConn_CloseWaitsForServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		returned := false
		d := mem.New(server(func(ctx context.Context, out transport.Stream) error {
			err := out.Accept(transport.Accepted{SubscriptionID: "s"})
			<-ctx.Done()
			<-release // the server notices the cancellation late
			returned = true
			return err
		}), transport.Peer{})
		c, err := d.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { // ended is received from below
			ended <- c.Subscribe(t.Context(), subscription(), func(transport.Accepted) {}, nil)
		}()
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }() // closed is received from below
		if err := <-ended; transport.CodeOf(err) != transport.CodeUnavailable {
			t.Errorf("got %v, want code unavailable", err)
		}
		synctest.Wait()
		select {
		case err := <-closed:
			t.Errorf("close returned %v before the server", err)
		default:
		}
		close(release)
		if err := <-closed; err != nil || !returned {
			t.Errorf("close: %v, server returned: %t", err, returned)
		}
	})
}

// TestStream_Misuse: a server that breaks the contract gets an error.
func TestStream_Misuse(t *testing.T) {
	var sendFirst, acceptTwice error
	d := mem.New(server(func(_ context.Context, out transport.Stream) error {
		sendFirst = out.Send(codec.Heartbeat("h"))
		if err := out.Accept(transport.Accepted{}); err != nil {
			return err
		}
		acceptTwice = out.Accept(transport.Accepted{})
		return out.Send([]byte{0xff})
	}), transport.Peer{})
	c, err := d.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = c.Subscribe(t.Context(), subscription(), func(transport.Accepted) {}, nil)
	if transport.CodeOf(err) != transport.CodeInternal || errors.Unwrap(err) == nil {
		t.Errorf("event that is none: got %v, want code internal with a cause", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if sendFirst == nil || acceptTwice == nil {
		t.Errorf("sending first: %v, accepting twice: %v; want errors", sendFirst, acceptTwice)
	}
}

// TestStream_SendEndsWithPeer: a server that is blocked in Send continues when its peer disconnects.
func TestStream_SendEndsWithPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sends := make(chan error, 1)
		d := mem.New(server(func(_ context.Context, out transport.Stream) error {
			err := out.Accept(transport.Accepted{})
			for err == nil {
				err = out.Send(codec.Heartbeat("h"))
			}
			sends <- err
			return err
		}), transport.Peer{})
		c, err := d.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ready := func(transport.Accepted) { synctest.Wait(); cancel() } // the window is full now
		if err := c.Subscribe(ctx, subscription(), ready, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
		if err := <-sends; transport.CodeOf(err) != transport.CodeUnavailable {
			t.Errorf("send: got %v, want code unavailable", err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}
