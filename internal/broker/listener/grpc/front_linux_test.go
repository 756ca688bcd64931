package grpc_test

import (
	"context"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-io/hawser/internal/broker/listener/grpc"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// TestFront_DeadPeers checks how the broker notices a dead peer: by the acknowledgements of heartbeats, at the
// interval that the client asks for.
func TestFront_DeadPeers(t *testing.T) {
	asked := make(chan time.Duration, 1)
	running := make(chan struct{})
	l := &trackedListener{Listener: freePort(t)}
	start(t, server{subscribe: func(_ context.Context, _ transport.Peer, r transport.RawSubscription, out transport.Stream) error {
		asked <- r.Hello.Heartbeat
		err := out.Accept(transport.Accepted{SubscriptionID: "s1"})
		<-running
		return err
	}}, func(c *grpc.Config) { c.Insecure, c.Listener = true, l })
	c, err := dialer(t, transportgrpc.Options{Target: l.Addr().String(), Insecure: true}).Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	accepted := func(transport.Accepted) {
		defer close(running)
		l.mu.Lock()
		defer l.mu.Unlock()
		if got := userTimeout(t, l.conns[0]); got != 30*time.Second {
			t.Errorf("the kernel ends the connection after %v", got)
		}
	}
	s := transport.Subscription{Filter: transport.Filter{Cluster: "c", DataType: codec.ManifestBundles}, Hello: transport.Hello{Heartbeat: time.Minute}}
	if err := c.Subscribe(t.Context(), s, accepted, nil); transport.CodeOf(err) != transport.CodeUnavailable {
		t.Errorf("end of the subscription: %v", err)
	}
	if got := <-asked; got != time.Minute {
		t.Errorf("the broker reads that the client asks for heartbeats every %v", got)
	}
}

func userTimeout(t *testing.T, c net.Conn) time.Duration {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var ms int
	failed := raw.Control(func(fd uintptr) { ms, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) })
	if failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	return time.Duration(ms) * time.Millisecond
}
