package mqtt

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hawser-io/hawser/internal/broker/listener"
	listengrpc "github.com/hawser-io/hawser/internal/broker/listener/grpc"
	listenmqtt "github.com/hawser-io/hawser/internal/broker/listener/mqtt"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/transporttest"
)

var agent1 = identity.Identity{Role: identity.Agent, Name: "cluster1"}

// cutting is a listener whose connections can be broken.
type cutting struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (c *cutting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.mu.Lock()
		c.conns = append(c.conns, conn)
		c.mu.Unlock()
	}
	return conn, err
}

func (c *cutting) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close() // may be closed already
	}
	c.conns = nil
}

// brokerListener opens the broker's own port in front of s.
func brokerListener(t testing.TB, s transport.Server, ca *testkit.CA) *cutting {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutting{Listener: l}
	serve(t, c, s, ca)
	return c
}

// serve runs a listener with the broker's own code until the test ends.
func serve(t testing.TB, l net.Listener, s transport.Server, ca *testkit.CA) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	front, err := listenmqtt.New(listenmqtt.Config{Server: testkit.Blocking{Server: s}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	config := listengrpc.Config{Server: testkit.Blocking{Server: s}, Other: front.Serve, Config: listener.Config{Listener: l, Log: log, Insecure: ca == nil}}
	if ca != nil {
		config.Credentials = ca.Server()
	}
	port, err := listengrpc.New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 2)
	go func() { ended <- port.Run(ctx) }()  // received from below
	go func() { ended <- front.Run(ctx) }() // received from below
	t.Cleanup(func() {
		stop()
		for range 2 {
			if err := <-ended; err != nil {
				t.Errorf("port: %v", err)
			}
		}
	})
}

// credentials are those of a client, as identity.Files reads them.
func credentials(t testing.TB, ca *testkit.CA, id identity.Identity) func() *tls.Config {
	t.Helper()
	authority, cert, key := ca.Write(t.TempDir(), id)
	config, err := identity.Files{CA: authority, Cert: cert, Key: key}.TLS(func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// TestContract_OwnListener runs the contract over TLS and over WebSockets in TLS.
func TestContract_OwnListener(t *testing.T) {
	for name, prefix := range map[string]string{"TLS": "", "WebSocket": "wss://"} {
		t.Run(name, func(t *testing.T) {
			ca := testkit.NewCA(t)
			tlsConfig := credentials(t, ca, agent1)
			transporttest.Run(t, func(t *testing.T, s transport.Server) transporttest.Fixture {
				t.Helper()
				l := brokerListener(t, s, ca)
				return transporttest.Fixture{
					Dialer:       &unique{o: Options{Broker: prefix + l.Addr().String(), TLS: tlsConfig, Topics: testTopics, Log: quiet}},
					Peer:         transport.Peer{Role: "agent", Name: "cluster1"},
					GivesUpAlone: true, Cut: l.cut,
				}
			})
		})
	}
}

// TestDial_ThroughAProxy: the proxy of the environment sees only an address and encrypted bytes.
func TestDial_ThroughAProxy(t *testing.T) {
	ca := testkit.NewCA(t)
	l := brokerListener(t, discardListener{}, ca)
	requested := make(chan string, 1)
	p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requested <- r.Method + " " + r.Host
		target, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Error(err)
			return
		}
		defer target.Close()
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n") // a failure shows at the client
		back := make(chan struct{})
		go func() { // ends with target
			defer close(back)
			_, _ = io.Copy(conn, target)
			_ = conn.Close() // ends the copy below
		}()
		_, _ = io.Copy(target, conn)
		_ = target.Close() // ends the copy above
		<-back
	}))
	defer p.Close()
	t.Setenv("HTTPS_PROXY", p.URL)
	config := credentials(t, ca, agent1)
	d := newDialer(t, Options{
		Broker: "broker.example:8883", ClientID: "x", Topics: testTopics, Log: quiet,
		TLS: func() *tls.Config { c := config(); c.ServerName = "127.0.0.1"; return c },
	})
	c, err := d.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if got := <-requested; got != "CONNECT broker.example:8883" {
		t.Errorf("the proxy got the request %s", got)
	}
}

// discardListener is a server without any calls.
type discardListener struct{ transport.Server }

// unique uses another client id for each dial. The suite needs several connections at once, and a second
// connection with the same id ends the first one.
type unique struct {
	o Options
	n atomic.Int32
}

func (u *unique) Dial(ctx context.Context) (transport.Conn, error) {
	o := u.o
	o.ClientID = fmt.Sprintf("client-%d", u.n.Add(1))
	d, err := NewDialer(o)
	if err != nil {
		return nil, err
	}
	return d.Dial(ctx)
}
