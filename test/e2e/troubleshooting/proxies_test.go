package troubleshooting

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/pki"
)

// proxy is an HTTP proxy between the operator and the broker.
type proxy struct {
	broker string
	port   net.Listener
	wg     sync.WaitGroup

	mu     sync.Mutex
	answer string
	// shows is the TLS configuration of a proxy that terminates TLS, nil for a proxy that does not.
	shows *tls.Config
	ends  []net.Conn
}

// behindProxy lets the operator reach the broker only through a proxy.
func (o *operator) behindProxy() *proxy {
	o.t.Helper()
	port, err := new(net.ListenConfig).Listen(o.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		o.t.Fatal(err)
	}
	p := &proxy{broker: o.BrokerAddr(), port: port}
	p.wg.Go(func() {
		for {
			conn, err := port.Accept()
			if err != nil {
				return // the listener is closed
			}
			p.wg.Go(func() { p.serve(conn) })
		}
	})
	o.t.Cleanup(p.close)
	o.renamed = append(o.renamed, port.Addr().String(), "proxy.example:3128", outside, "broker.example:8090")
	o.env = append(o.env, "HTTPS_PROXY=http://"+port.Addr().String())
	o.trust(outside, "localhost", pki.Operator, "operator")
	return p
}

// outside is the broker's address for the operator. Only the proxy reaches it.
const outside = "192.0.2.10:8090"

// set sets the answer and the TLS configuration for later connections.
func (p *proxy) set(answer string, shows *tls.Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer, p.shows = answer, shows
}

func (p *proxy) close() {
	_ = p.port.Close()
	p.mu.Lock()
	for _, c := range p.ends {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *proxy) hold(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ends = append(p.ends, c)
}

// serve answers one CONNECT.
func (p *proxy) serve(conn net.Conn) {
	p.hold(conn)
	defer conn.Close()
	r, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil || r.Method != http.MethodConnect {
		return
	}
	p.mu.Lock()
	answer, shows := p.answer, p.shows
	p.mu.Unlock()
	if _, err := io.WriteString(conn, "HTTP/1.1 "+answer+"\r\n\r\n"); err != nil || answer != open {
		return
	}
	if shows != nil {
		_ = tls.Server(conn, shows).Handshake()
		return
	}
	remote, err := net.DialTimeout("tcp", p.broker, 10*time.Second)
	if err != nil {
		return
	}
	p.hold(remote)
	p.wg.Go(func() { _, _ = io.Copy(remote, conn); _ = remote.Close() })
	_, _ = io.Copy(conn, remote)
}

// open is the answer of a proxy that accepts a connection.
const open = "200 Connection established"

func TestProxyRefuses(t *testing.T) {
	o := sit(t)
	p := o.behindProxy()
	p.set("403 Forbidden", nil)
	looks := []look{{command: "hawser doctor", output: `refuses a connection to broker.example:8090: 403 Forbidden`}}
	o.sees("proxy refuses", looks...)
	p.set(open, nil)
	o.isWell(looks...)
	o.passes("hawser doctor", `round trip`)
}

func TestProxyInspectsTLS(t *testing.T) {
	o := sit(t)
	p := o.behindProxy()
	company, err := pki.NewAuthority("Example Corp inspection", pki.Starting(time.Now(), time.Hour))
	pair, err2 := company.Issue(pki.Request{Role: pki.Broker, Name: "broker", Hosts: []string{"localhost"}, Valid: pki.Starting(time.Now(), time.Hour)})
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	cert, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	p.set(open, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}})
	looks := []look{{command: "hawser doctor", output: `inspects TLS`}}
	o.sees("proxy inspects TLS", looks...)
	p.set(open, nil)
	o.isWell(looks...)
	o.passes("hawser doctor", `round trip`)
}
