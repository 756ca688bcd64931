package grpc_test

import (
	"context"
	"crypto/tls"
	"net"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc/test/bufconn"

	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/grpc"
	"github.com/hawser-io/hawser/pkg/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	agent := transport.Peer{Role: "agent", Name: "cluster1"}
	t.Run("TLS over TCP", func(t *testing.T) {
		ca := newAuthority(t)
		transporttest.Run(t, func(t *testing.T, s transport.Server) transporttest.Fixture {
			t.Helper()
			l := listen(t)
			cut := serve(t, l, front(s), ca.server(tls.RequireAndVerifyClientCert, "127.0.0.1"))
			d := newDialer(t, grpc.Options{Target: l.Addr().String(), Credentials: ca.client()})
			return transporttest.Fixture{Dialer: d, Peer: agent, Cut: cut}
		})
	})
	t.Run("TLS over a pipe", func(t *testing.T) {
		ca := newAuthority(t)
		transporttest.Run(t, func(t *testing.T, s transport.Server) transporttest.Fixture {
			t.Helper()
			l := bufconn.Listen(64 << 10)
			cut := serve(t, l, front(s), ca.server(tls.VerifyClientCertIfGiven, "broker.example"))
			d := newDialer(t, grpc.Options{
				Target: "broker.example:8090", Credentials: ca.client(),
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return l.DialContext(ctx) },
			})
			return transporttest.Fixture{Dialer: d, Peer: agent, Cut: cut}
		})
	})
	t.Run("plaintext over loopback", func(t *testing.T) {
		transporttest.Run(t, func(t *testing.T, s transport.Server) transporttest.Fixture {
			t.Helper()
			l := listen(t)
			cut := serve(t, l, front(s))
			d := newDialer(t, grpc.Options{Target: l.Addr().String(), Insecure: true})
			return transporttest.Fixture{Dialer: d, Cut: cut}
		})
	})
}
