package grpc_test

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"testing"

	"go.uber.org/goleak"
	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/hawser-io/hawser/internal/broker/listener"
	listengrpc "github.com/hawser-io/hawser/internal/broker/listener/grpc"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/grpc"
	"github.com/hawser-io/hawser/pkg/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestContract runs against generated server code, as in OCM brokers, and against the broker's own listener,
// without a network in between. The tests of the listener run it over TCP.
func TestContract(t *testing.T) {
	agent := transport.Peer{Role: "agent", Name: "cluster1"}
	t.Run("generated server, TLS over TCP", func(t *testing.T) {
		ca := newAuthority(t)
		transporttest.Run(t, func(t *testing.T, s transport.Server) transporttest.Fixture {
			t.Helper()
			l := freePort(t)
			cut := serve(t, l, front(s), ggrpc.Creds(ca.server(tls.RequireAndVerifyClientCert, "127.0.0.1")))
			d := newDialer(t, grpc.Options{Target: l.Addr().String(), Credentials: ca.client()})
			return transporttest.Fixture{Dialer: d, Peer: agent, Cut: cut}
		})
	})
	t.Run("broker's front, TLS over a pipe", func(t *testing.T) {
		ca := newAuthority(t)
		transporttest.Run(t, func(t *testing.T, s transport.Server) transporttest.Fixture {
			t.Helper()
			pipe := bufconn.Listen(64 << 10)
			tracked := &trackedListener{Listener: pipe}
			front, err := listengrpc.New(listengrpc.Config{
				Server: testkit.Blocking{Server: s}, Config: listener.Config{
					Listener: tracked, Credentials: ca.server(tls.VerifyClientCertIfGiven, "broker.example"),
					Log: slog.New(slog.DiscardHandler),
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
			done := make(chan error, 1)
			go func() { done <- front.Run(ctx) }() // done is received from at the end of the test
			t.Cleanup(func() {
				stop()
				if err := <-done; err != nil {
					t.Errorf("front: %v", err)
				}
			})
			d := newDialer(t, grpc.Options{
				Target: "broker.example:8090", Credentials: ca.client(),
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return pipe.DialContext(ctx) },
			})
			return transporttest.Fixture{Dialer: d, Peer: agent, Cut: tracked.cut}
		})
	})
	t.Run("generated server, plaintext over loopback", func(t *testing.T) {
		transporttest.Run(t, func(t *testing.T, s transport.Server) transporttest.Fixture {
			t.Helper()
			l := freePort(t)
			cut := serve(t, l, front(s))
			d := newDialer(t, grpc.Options{Target: l.Addr().String(), Insecure: true})
			return transporttest.Fixture{Dialer: d, Cut: cut}
		})
	})
}
