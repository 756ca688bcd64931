package doctor

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// site is the network of one test: a CA, the files of a client, and a server.
type site struct {
	t     *testing.T
	ca    *pki.Authority
	dir   string
	files identity.Driver
}

var hour = func() pki.Period { return pki.Starting(time.Now(), time.Hour) }

func authority(t *testing.T, name string) *pki.Authority {
	t.Helper()
	a, err := pki.NewAuthority(name, pki.Period{NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(48 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newSite(t *testing.T) *site {
	t.Helper()
	p := &site{t: t, ca: authority(t, "the CA"), dir: t.TempDir()}
	p.files = p.identityOf(p.ca, hour())
	return p
}

// identityOf writes the files of an operator whose certificate was signed by ca.
func (p *site) identityOf(ca *pki.Authority, valid pki.Period) identity.Driver {
	p.t.Helper()
	pair, err := ca.Issue(pki.Request{Role: pki.Operator, Name: "ann", Valid: valid})
	if err != nil {
		p.t.Fatal(err)
	}
	return identity.Driver{CAFile: p.write("ca.crt", p.ca.CertificatePEM()), ClientCertFile: p.write("ann.crt", pair.CertPEM), ClientKeyFile: p.write("ann.key", pair.KeyPEM)}
}

func (p *site) write(name string, content []byte) string {
	p.t.Helper()
	path := filepath.Join(p.dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		p.t.Fatal(err)
	}
	return path
}

// server is a broker's port, with a certificate of ca for hosts.
type server struct {
	ca    *pki.Authority
	hosts []string
	valid pki.Period
	auth  tls.ClientAuthType
}

func (p *site) config(s server) *tls.Config {
	p.t.Helper()
	if s.hosts == nil {
		s.hosts = []string{"127.0.0.1"}
	}
	if s.valid == (pki.Period{}) {
		s.valid = hour()
	}
	pair, err := s.ca.Issue(pki.Request{Role: pki.Broker, Name: "broker", Hosts: s.hosts, Valid: s.valid})
	if err != nil {
		p.t.Fatal(err)
	}
	cert, err := pair.TLS()
	if err != nil {
		p.t.Fatal(err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, ClientCAs: p.ca.Pool(), ClientAuth: s.auth}
}

// serve starts a server and returns its address.
func (p *site) serve(s server) string {
	p.t.Helper()
	l := p.listen()
	g := ggrpc.NewServer(ggrpc.Creds(credentials.NewTLS(p.config(s))))
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	p.t.Cleanup(func() {
		g.Stop()
		if err := <-done; err != nil {
			p.t.Error(err)
		}
	})
	return l.Addr().String()
}

func (p *site) listen() net.Listener {
	p.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = l.Close() }) // the server may have closed it
	return l
}

// broker starts a server with the TLS settings of a broker and returns its address.
func (p *site) broker() string { return p.serve(server{ca: p.ca, auth: tls.VerifyClientCertIfGiven}) }

// answering starts a server that passes each connection to f, and returns its address.
func (p *site) answering(f func(net.Conn)) string {
	l := p.listen()
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f(c)
		}
	}()
	return l.Addr().String()
}

// proxied starts a proxy and sets it in the environment. It answers with status, or connects to upstream.
func (p *site) proxied(status, upstream string) {
	addr := p.answering(func(c net.Conn) {
		r := bufio.NewReader(c)
		if _, err := http.ReadRequest(r); err != nil {
			_ = c.Close()
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 "+status+"\r\n\r\n") // the client may be gone
		up, err := net.Dial("tcp", upstream)
		if err != nil {
			_ = c.Close()
			return
		}
		go func() { _, _ = io.Copy(up, r); _ = up.Close() }() // ends with the client
		go func() { _, _ = io.Copy(c, up); _ = c.Close() }()  // ends with the server
	})
	p.t.Setenv("NO_PROXY", "")
	p.t.Setenv("HTTPS_PROXY", "http://u:secret@"+addr)
}

func known(context.Context, string) ([]string, error) { return []string{"192.0.2.7"}, nil }

func unknown(_ context.Context, host string) ([]string, error) {
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// TestWalk places faults between a client and its broker, and checks the text for the operator.
func TestWalk(t *testing.T) {
	for name, c := range map[string]struct {
		way                func(p *site) Path
		step, what, advice string
	}{
		"no port": {func(*site) Path { return Path{Brokers: GRPC("broker", "")} }, "name", `"broker" is not host:port`, "as broker.example:8090"},
		"no such file": {func(p *site) Path {
			return Path{Brokers: GRPC("127.0.0.1:1", ""), Identity: identity.Driver{CAFile: p.files.CAFile, ClientCertFile: "none.crt", ClientKeyFile: p.files.ClientKeyFile}}
		}, "files", "none.crt: no such file", "check the path"},
		"key of another": {func(p *site) Path {
			other := newSite(p.t)
			return Path{Brokers: GRPC("127.0.0.1:1", ""), Identity: identity.Driver{CAFile: p.files.CAFile, ClientCertFile: p.files.ClientCertFile, ClientKeyFile: other.files.ClientKeyFile}}
		}, "files", "private key does not match public key", ""},
		"no certificate": {func(p *site) Path {
			return Path{Brokers: GRPC("127.0.0.1:1", ""), Identity: identity.Driver{CAFile: p.files.CAFile}}
		}, "files", "no certificate is named", ""},
		"unknown name": {func(*site) Path { return Path{Brokers: GRPC("broker.example:8090", ""), lookup: unknown} }, "name", "knows broker.example", "DNS record of broker.example"},
		"dead DNS": {func(*site) Path {
			return Path{Brokers: GRPC("broker.example:8090", ""), lookup: func(context.Context, string) ([]string, error) {
				return nil, &net.DNSError{Err: "i/o timeout", IsTimeout: true}
			}}
		}, "name", "gave no answer about broker.example", "why DNS does not answer"},
		"proxy is down": {func(p *site) Path {
			p.t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
			return Path{Brokers: GRPC("broker.example:8090", ""), lookup: unknown}
		}, "proxy", "the proxy http://127.0.0.1:1 cannot be used", "NO_PROXY=broker.example"},
		"proxy wants a password": {func(p *site) Path {
			p.proxied("407 Proxy Authentication Required", "127.0.0.1:1")
			return Path{Brokers: GRPC("broker.example:8090", ""), lookup: unknown}
		}, "proxy", "wants another user name and password", "USER:PASSWORD@127.0.0.1:"},
		"proxy refuses": {func(p *site) Path {
			p.proxied("403 Forbidden", "127.0.0.1:1")
			return Path{Brokers: GRPC("broker.example:8090", ""), lookup: unknown}
		}, "proxy", "refuses a connection to broker.example:8090: 403 Forbidden", "allow CONNECT to broker.example:8090"},
		"no listener": {func(*site) Path { return Path{Brokers: GRPC("127.0.0.1:1", "")} }, "tcp", "no program listens at 127.0.0.1:1", "check the port"},
		"plaintext server": {func(p *site) Path {
			return Path{Brokers: GRPC(p.answering(func(c net.Conn) { _, _ = io.WriteString(c, "220 mail.example ESMTP\r\n") }), "")}
		}, "tls", "does not speak TLS", "--insecure"},
		"closes": {func(p *site) Path {
			return Path{Brokers: GRPC(p.answering(func(c net.Conn) {
				_, _ = c.Read(make([]byte, 1)) // closing earlier would be a write error of the client
				_ = c.Close()
			}), "")}
		}, "tls", "closed the connection during the TLS handshake", "ask the network team"},
		"silent": {func(p *site) Path {
			return Path{Brokers: GRPC(p.answering(func(net.Conn) {}), ""), bound: func(ctx context.Context, step string) (context.Context, context.CancelFunc) {
				if step == "tls" {
					return context.WithTimeout(ctx, 0)
				}
				return context.WithCancel(ctx)
			}}
		}, "tls", "did not answer the TLS handshake", "MTU"},
		"wrong CA": {func(p *site) Path {
			return Path{Brokers: GRPC(p.serve(server{ca: authority(p.t, "another CA"), auth: tls.RequestClientCert}), "")}
		}, "tls", `is signed by "CN=another CA", and the file`, `the CA that signed the broker's certificate, "CN=another CA"`},
		"wrong name": {func(p *site) Path {
			return Path{Brokers: GRPC(p.serve(server{ca: p.ca, hosts: []string{"broker.example", "10.0.0.7"}, auth: tls.VerifyClientCertIfGiven}), "")}
		}, "tls", `"hawser:broker:broker" for broker.example, 10.0.0.7 valid until`, "--server-name"},
		"inspecting proxy": {func(p *site) Path {
			p.proxied("200 OK", p.serve(server{ca: authority(p.t, "Corporate Inspection"), hosts: []string{"broker.example"}}))
			return Path{Brokers: GRPC("broker.example:8090", ""), lookup: known}
		}, "tls", `inspects TLS. It shows "hawser:broker:broker" for broker.example`, "exempt broker.example:8090 from TLS inspection"},
		"inspecting proxy whose CA is trusted": {func(p *site) Path { return Path{Brokers: GRPC(p.serve(server{ca: p.ca}), "")} }, "tls", "does not request a client certificate", "exempt"},
		"another protocol": {func(p *site) Path {
			c := p.config(server{ca: p.ca, auth: tls.RequestClientCert})
			return Path{Brokers: GRPC(p.answering(func(conn net.Conn) { _ = tls.Server(conn, c).Handshake() }), "")} // the server reports the error
		}, "tls", "does not speak HTTP/2", "pass TLS through"},
		"expired": {func(p *site) Path {
			return Path{Brokers: GRPC(p.serve(server{ca: p.ca, auth: tls.RequestClientCert, valid: pki.Starting(time.Now().Add(-2*time.Hour), time.Hour)}), "")}
		}, "clock", "it has expired, by the clock of this machine", "tls-cert-file"},
		"clock is behind": {func(p *site) Path {
			return Path{Brokers: GRPC(p.broker(), ""), Now: func() time.Time { return time.Now().Add(-24 * time.Hour) }}
		}, "clock", "the clock of this machine says", "NTP"},
		"clock is ahead": {func(p *site) Path {
			return Path{Brokers: GRPC(p.broker(), ""), Now: func() time.Time { return time.Now().Add(24 * time.Hour) }}
		}, "clock", "it has expired", "NTP"},
		"own certificate expired": {func(p *site) Path {
			return Path{Brokers: GRPC(p.broker(), ""), Identity: p.identityOf(p.ca, pki.Starting(time.Now().Add(-2*time.Hour), time.Hour))}
		}, "clock", `ann.crt is "hawser:operator:ann" valid until `, "have it issued again"},
		"own certificate of another CA": {func(p *site) Path {
			return Path{Brokers: GRPC(p.serve(server{ca: p.ca, auth: tls.RequireAndVerifyClientCert}), ""), Identity: p.identityOf(authority(p.t, "another CA"), hour())}
		}, "identity", `the broker rejected your certificate`, "client-ca-file"},
		"call fails": {func(p *site) Path {
			return Path{Brokers: GRPC(p.broker(), ""), Calls: []Call{{Name: "authorization", Make: func(context.Context, transport.Conn) (string, error) {
				return "", errors.New("no right")
			}}}}
		}, "authorization", "no right", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newSite(t)
			w := c.way(p)
			if !w.Identity.HasTLS() {
				w.Identity = p.files
			}
			if w.Timeout == 0 {
				w.Timeout = 10 * time.Second
			}
			err := w.Walk(t.Context(), func(string, string) {})
			var found *StepError
			if !errors.As(err, &found) {
				t.Fatalf("got %v, want a problem", err)
			}
			if found.Step != c.step || !strings.Contains(found.What, c.what) || !strings.Contains(found.Hint(), c.advice) {
				t.Errorf("%v\nhint: %s\nwant %s: … %s …, hint … %s …", err, found.Hint(), c.step, c.what, c.advice)
			}
			if strings.Contains(err.Error()+found.Hint(), "secret") {
				t.Errorf("the password of the proxy is shown: %v, %s", err, found.Hint())
			}
		})
	}
}

// TestWalk_ToTheEnd checks the finding of each step, directly and through a proxy.
func TestWalk_ToTheEnd(t *testing.T) {
	want := []string{"files", "name", "proxy", "tcp", "tls", "clock", "identity", "round trip"}
	for name, way := range map[string]func(*site) Path{
		"direct": func(p *site) Path { return Path{Brokers: GRPC(p.broker(), "")} },
		"server name": func(p *site) Path {
			return Path{Brokers: GRPC(p.serve(server{ca: p.ca, hosts: []string{"broker.example"}, auth: tls.RequireAndVerifyClientCert}), "broker.example")}
		},
		"proxy": func(p *site) Path {
			p.proxied("200 OK", p.serve(server{ca: p.ca, hosts: []string{"broker.example"}, auth: tls.RequireAndVerifyClientCert}))
			return Path{Brokers: GRPC("broker.example:8090", ""), lookup: unknown}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newSite(t)
			w := way(p)
			w.Identity, w.Timeout = p.files, 10*time.Second
			w.Calls = []Call{{Name: "round trip", Make: func(_ context.Context, c transport.Conn) (string, error) {
				if _, ok := c.(*transportgrpc.Conn); !ok {
					return "", errors.New("no connection")
				}
				return "done", nil
			}}}
			var steps []string
			err := w.Walk(t.Context(), func(step, found string) {
				steps = append(steps, step)
				if found == "" || strings.Contains(found, "secret") {
					t.Errorf("%s found %q", step, found)
				}
			})
			if err != nil || !slices.Equal(steps, want) {
				t.Errorf("%q, %v", steps, err)
			}
		})
	}
}

// TestWalk_SeveralBrokers checks each broker, and then once what needs no broker.
func TestWalk_SeveralBrokers(t *testing.T) {
	p := newSite(t)
	a, b := p.broker(), p.broker()
	w := Path{Brokers: GRPC(a+","+b, ""), Identity: p.files, Timeout: 10 * time.Second, Calls: []Call{
		{Name: "round trip", Make: func(context.Context, transport.Conn) (string, error) { return "done", nil }},
		Step("cluster API", func(context.Context) (string, error) { return "it answers", nil }),
	}}
	each := []string{"files", "name", "proxy", "tcp", "tls", "clock", "identity", "round trip"}
	var steps []string
	err := w.Walk(t.Context(), func(step, found string) {
		of := a
		if len(steps) >= len(each) {
			of = b
		}
		if steps = append(steps, step); strings.HasPrefix(found, of+": ") == (step == "cluster API") {
			t.Errorf("%s found %q, about %s", step, found, of)
		}
	})
	if err != nil || !slices.Equal(steps, slices.Concat(each, each, []string{"cluster API"})) {
		t.Errorf("%q, %v", steps, err)
	}
	w.Brokers = GRPC(a+", 127.0.0.1:1", "")
	if err := w.Walk(t.Context(), func(string, string) {}); err == nil || !strings.Contains(err.Error(), "no program listens at 127.0.0.1:1") {
		t.Errorf("%v", err)
	}
}

func TestWalk_Plaintext(t *testing.T) {
	l := newSite(t).listen()
	g := ggrpc.NewServer()
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	var steps []string
	err := Path{Brokers: GRPC(l.Addr().String(), ""), Insecure: true, Timeout: 10 * time.Second}.Walk(t.Context(), func(step, _ string) { steps = append(steps, step) })
	if err != nil || !slices.Equal(steps, []string{"files", "name", "proxy", "tcp", "identity"}) {
		t.Errorf("%q, %v", steps, err)
	}
	g.Stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestWalk_EndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := newSite(t)
	w := Path{Brokers: GRPC("broker.example:8090", ""), Identity: p.files, Timeout: time.Hour, lookup: func(ctx context.Context, _ string) ([]string, error) {
		cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	if err := w.Walk(ctx, func(string, string) {}); !errors.Is(err, context.Canceled) || errors.As(err, new(*StepError)) {
		t.Errorf("%v", err)
	}
}
