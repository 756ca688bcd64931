package grpc_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/grpc"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

func TestNewDialer_RefusesOptions(t *testing.T) {
	tlsOnly := credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13})
	for name, tc := range map[string]struct {
		options grpc.Options
		want    string
	}{
		"no target":         {grpc.Options{Credentials: tlsOnly}, "host:port"},
		"no port":           {grpc.Options{Target: "broker", Credentials: tlsOnly}, "host:port"},
		"no host":           {grpc.Options{Target: ":8090", Credentials: tlsOnly}, "host:port"},
		"URL":               {grpc.Options{Target: "https://broker:8090", Credentials: tlsOnly}, "host:port"},
		"no credentials":    {grpc.Options{Target: "broker:8090"}, "no credentials"},
		"both":              {grpc.Options{Target: "127.0.0.1:8090", Credentials: tlsOnly, Insecure: true}, "exclude each other"},
		"plaintext outside": {grpc.Options{Target: "10.0.0.1:8090", Insecure: true}, "not a loopback address"},
		"plaintext by name": {grpc.Options{Target: "broker:8090", Insecure: true}, "not a loopback address"},
		"size":              {grpc.Options{Target: "[::1]:8090", Insecure: true, MaxEventBytes: -1}, "positive"},
		"dial timeout":      {grpc.Options{Target: "localhost:8090", Insecure: true, DialTimeout: -1}, "dial timeout"},
		"publish timeout":   {grpc.Options{Target: "localhost:8090", Insecure: true, PublishTimeout: -1}, "publish timeout"},
		"subscribe timeout": {grpc.Options{Target: "localhost:8090", Insecure: true, SubscribeTimeout: -1}, "subscribe timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := grpc.NewDialer(tc.options); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error about %q", err, tc.want)
			}
		})
	}
}

// dialError dials and returns the error.
func dialError(t *testing.T, o grpc.Options) error {
	t.Helper()
	c, err := newDialer(t, o).Dial(t.Context())
	if c != nil {
		t.Fatal("got a connection")
	}
	return err
}

func wantRefresh(t *testing.T, err error) {
	t.Helper()
	var e *transport.Error
	if !errors.As(err, &e) || e.Next != transport.NextRefreshCredentials {
		t.Errorf("got %v, want the advice to refresh credentials", err)
	}
}

func TestDial_ReportsWhyItFailed(t *testing.T) {
	ca, unknownCA := newAuthority(t), newAuthority(t)
	mtls := func(t *testing.T, hosts ...string) string {
		t.Helper()
		l := freePort(t)
		serve(t, l, &service{}, ggrpc.Creds(ca.server(tls.RequireAndVerifyClientCert, hosts...)))
		return l.Addr().String()
	}

	t.Run("no listener", func(t *testing.T) {
		l := freePort(t)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		err := dialError(t, grpc.Options{Target: l.Addr().String(), Credentials: ca.client()})
		wantCode(t, err, transport.CodeUnavailable, "connection refused")
	})
	t.Run("own dialer fails", func(t *testing.T) {
		err := dialError(t, grpc.Options{
			Target: "broker.example:8090", Credentials: ca.client(),
			DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ENETUNREACH },
		})
		wantCode(t, err, transport.CodeUnavailable, "network is unreachable")
	})
	t.Run("broker of another CA", func(t *testing.T) {
		err := dialError(t, grpc.Options{Target: mtls(t, "127.0.0.1"), Credentials: unknownCA.client()})
		wantCode(t, err, transport.CodeUnauthenticated, "check the CA file")
		var unknown x509.UnknownAuthorityError
		if !errors.As(err, &unknown) {
			t.Errorf("got %v, want the cause in the chain", err)
		}
		wantRefresh(t, err)
	})
	t.Run("broker of another name", func(t *testing.T) {
		err := dialError(t, grpc.Options{Target: mtls(t, "other.example"), Credentials: ca.client()})
		wantCode(t, err, transport.CodeUnauthenticated, "names this host")
	})
	t.Run("client of another CA", func(t *testing.T) {
		err := dialError(t, grpc.Options{Target: mtls(t, "127.0.0.1"), Credentials: credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: ca.ca.Pool(),
			Certificates: []tls.Certificate{unknownCA.issue(pki.Agent, "cluster1")},
		})})
		wantCode(t, err, transport.CodeUnauthenticated, "check the client certificate")
		wantRefresh(t, err)
	})
	t.Run("client without certificate", func(t *testing.T) {
		err := dialError(t, grpc.Options{Target: mtls(t, "127.0.0.1"), Credentials: credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: ca.ca.Pool(),
		})})
		wantCode(t, err, transport.CodeUnauthenticated, "check the client certificate")
	})
	t.Run("plaintext server", func(t *testing.T) {
		l := freePort(t)
		serve(t, l, &service{})
		err := dialError(t, grpc.Options{Target: l.Addr().String(), Credentials: ca.client()})
		wantCode(t, err, transport.CodeUnavailable, "does not speak TLS")
	})
	t.Run("server of another protocol", func(t *testing.T) {
		l := freePort(t)
		go func() { // ends with the connection
			c, err := l.Accept()
			if err == nil {
				_, _ = io.WriteString(c, "220 mail.example ESMTP\r\n")
				_ = c.Close()
			}
		}()
		err := dialError(t, grpc.Options{Target: l.Addr().String(), Insecure: true})
		wantCode(t, err, transport.CodeUnavailable, "check the port")
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("server without an answer", func(t *testing.T) {
		l := freePort(t)
		defer func() { _ = l.Close() }() // only the end of its accept loop matters
		err := dialError(t, grpc.Options{Target: l.Addr().String(), Credentials: ca.client(), DialTimeout: 50 * time.Millisecond})
		wantCode(t, err, transport.CodeDeadline, "within 50ms")
	})
}

// TestDial_UsesRenewedCredentials: each Dial uses the current credentials. A Conn never reconnects by itself.
func TestDial_UsesRenewedCredentials(t *testing.T) {
	ca := newAuthority(t)
	l := freePort(t)
	cut := serve(t, l, &service{}, ggrpc.Creds(ca.server(tls.RequireAndVerifyClientCert, "127.0.0.1")))
	handshakes := make(chan struct{}, 10)
	creds := &counting{TransportCredentials: ca.client(), handshakes: handshakes}
	d := newDialer(t, grpc.Options{Target: l.Addr().String(), Credentials: creds})
	for want := 1; want <= 2; want++ {
		c, err := d.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Publish(t.Context(), newEvent(), ""); err != nil {
			t.Fatal(err)
		}
		cut()
		for range 5 {
			_, err := c.Publish(t.Context(), newEvent(), "")
			if transport.CodeOf(err) != transport.CodeUnavailable {
				t.Fatalf("publish on a lost connection: %v", err)
			}
		}
		if n := len(handshakes); n != want {
			t.Errorf("%d handshakes after dial %d", n, want)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

type counting struct {
	credentials.TransportCredentials
	handshakes chan<- struct{}
}

func (c *counting) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c.handshakes <- struct{}{}
	return c.TransportCredentials.ClientHandshake(ctx, authority, conn)
}

func (c *counting) Clone() credentials.TransportCredentials {
	return &counting{TransportCredentials: c.TransportCredentials.Clone(), handshakes: c.handshakes}
}

const throughProxy = "HAWSER_TEST_THROUGH_PROXY"

// TestDial_HonoursProxyOfEnvironment runs in a process of its own: proxy settings are read once per process.
func TestDial_HonoursProxyOfEnvironment(t *testing.T) {
	if ca := os.Getenv(throughProxy); ca != "" {
		publishThroughProxy(t, ca)
		return
	}
	ca := newAuthority(t)
	broker := freePort(t)
	serve(t, broker, &service{}, ggrpc.Creds(ca.server(tls.NoClientCert, "broker.example")))
	proxy := freePort(t)
	requested := make(chan string, 4)
	go connectProxy(proxy, broker.Addr().String(), requested) // ends with the listener
	defer func() { _ = proxy.Close() }()                      // only the end of its accept loop matters

	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.run=^TestDial_HonoursProxyOfEnvironment$")
	cmd.Env = append(os.Environ(), "HTTPS_PROXY=http://"+proxy.Addr().String(), "NO_PROXY=", "no_proxy=",
		throughProxy+"="+string(ca.ca.CertificatePEM()))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	select {
	case target := <-requested:
		if target != "broker.example:8090" {
			t.Errorf("the proxy got a request for %q", target)
		}
	default:
		t.Error("proxy was not used")
	}
}

func publishThroughProxy(t *testing.T, ca string) {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(ca))
	c, err := newDialer(t, grpc.Options{
		Target:      "broker.example:8090",
		Credentials: credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool}),
	}).Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Publish(t.Context(), newEvent(), ""); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// connectProxy answers CONNECT requests with a tunnel to upstream.
func connectProxy(l net.Listener, upstream string, requested chan<- string) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		reader := bufio.NewReader(client)
		request, err := http.ReadRequest(reader)
		if err != nil || request.Method != http.MethodConnect {
			_ = client.Close()
			continue
		}
		requested <- request.Host
		server, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", upstream)
		if err != nil {
			_ = client.Close()
			continue
		}
		_, _ = io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(server, reader); _ = server.Close() }() // ends with the client
		go func() { _, _ = io.Copy(client, server); _ = client.Close() }() // ends with the server
	}
}

func newEvent() codec.Event {
	e := codec.Event{}
	e.SetSpecVersion("1.0")
	e.SetID("event-1")
	e.SetSource("source1")
	e.SetType(codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: codec.CreateRequest}.String())
	e.SetExtension(codec.ExtClusterName, "cluster1")
	return e
}

// A client learns the store ID of the broker and the CAs that verified its certificate. With these it
// recognises a broker at another address.
func TestSubscribe_ReportsBrokerIdentity(t *testing.T) {
	ca := newAuthority(t)
	l := freePort(t)
	serve(t, l, accepting(metadata.Pairs(codec.HeaderProtocol, "2", codec.HeaderStoreID, "e1"), func(stream) error { return nil }),
		ggrpc.Creds(ca.server(tls.RequireAndVerifyClientCert, "127.0.0.1")))
	c, err := newDialer(t, grpc.Options{Target: l.Addr().String(), Credentials: ca.client()}).Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	accepted, err := subscribe(t.Context(), c, nil)
	wantCode(t, err, transport.CodeUnavailable, "ended the subscription")
	root, _ := pem.Decode(ca.ca.CertificatePEM())
	if sum := sha256.Sum256(root.Bytes); accepted.StoreID != "e1" || !slices.Equal(accepted.Roots, []string{hex.EncodeToString(sum[:])}) {
		t.Errorf("got %+v", accepted)
	}
}

// TestDial_Token: each call sends the token that was valid when the connection was made.
func TestDial_Token(t *testing.T) {
	seen := make(chan string, 10)
	s := &service{publish: func(ctx context.Context, _ *cloudeventsv1.PublishRequest) (*emptypb.Empty, error) {
		seen <- incoming(ctx, "authorization")
		return &emptypb.Empty{}, nil
	}}
	publishes := func(t *testing.T, d transport.Dialer, want string) {
		t.Helper()
		c, err := d.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := c.Publish(t.Context(), newEvent(), ""); err != nil {
				t.Fatal(err)
			}
			if got := <-seen; got != want {
				t.Errorf("authorization %q, want %q", got, want)
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	token, err := "first", error(nil)
	o := grpc.Options{Token: func() (string, error) { return token, err }}
	for name, secure := range map[string]bool{"TLS": true, "plaintext": false} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ca := newAuthority(t)
			options := []ggrpc.ServerOption{}
			o := o
			if o.Insecure = !secure; secure {
				options = append(options, ggrpc.Creds(ca.server(tls.NoClientCert, "127.0.0.1")))
				o.Credentials = ca.client()
			}
			g := ggrpc.NewServer(options...)
			cloudeventsv1.RegisterCloudEventServiceServer(g, s)
			run(t, g, l)
			o.Target = l.Addr().String()
			d := newDialer(t, o)
			for _, token = range []string{"first", "second"} {
				publishes(t, d, "Bearer "+token)
			}
			token = ""
			publishes(t, d, "")
		})
	}
	err = errors.New("no such file")
	o.Target, o.Insecure = "127.0.0.1:1", true
	wantRefresh(t, dialError(t, o))
}
