package dialing

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Dial returns a function that connects by TCP, through the proxy of p if there is one. It resolves names each
// time, and tries all addresses of a name. A proxy passes the connection through and resolves the name of the
// broker itself.
func Dial(p transport.Proxy) transport.DialContext {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		return dial(ctx, &net.Dialer{}, p, network, addr)
	}
}

func dial(ctx context.Context, d *net.Dialer, p transport.Proxy, network, addr string) (net.Conn, error) {
	proxy, err := ProxyFor(p, addr)
	if err != nil {
		return nil, err
	}
	if proxy == nil {
		return d.DialContext(ctx, network, addr)
	}
	conn, err := throughProxy(ctx, d, addr, proxy, p.CAFile)
	if err != nil {
		return nil, &ProxyError{Proxy: proxy, Addr: addr, Err: err}
	}
	return conn, nil
}

// ProxyFor returns the proxy for addr, nil if there is none. A proxy from the environment is chosen as for an
// https address. Errors contain no password.
func ProxyFor(p transport.Proxy, addr string) (*url.URL, error) {
	if p.URL != "" {
		return p.Server()
	}
	settings := httpproxy.FromEnvironment()
	named := settings.HTTPSProxy
	// The library treats an invalid URL as no proxy, and would connect directly. Use it only to find the addresses
	// that the proxy is for.
	settings.HTTPSProxy = "http://proxy.example"
	used, err := settings.ProxyFunc()(&url.URL{Scheme: "https", Host: addr})
	if err != nil || used == nil || named == "" {
		return nil, err
	}
	if !strings.Contains(named, "://") {
		named = "http://" + named
	}
	proxy, err := transport.Proxy{URL: named}.Server()
	if err != nil {
		return nil, fmt.Errorf("HTTPS_PROXY: %w", err)
	}
	return proxy, nil
}

// ProxyError reports why Addr cannot be reached through Proxy.
type ProxyError struct {
	Proxy *url.URL
	Addr  string
	Err   error
}

// Error contains no password.
func (e *ProxyError) Error() string {
	return fmt.Sprintf("through the proxy %s: %v", e.Proxy.Redacted(), e.Err)
}

// Unwrap returns the cause.
func (e *ProxyError) Unwrap() error { return e.Err }

// Hint returns the remedy.
func (e *ProxyError) Hint() string {
	var (
		refused   *RefusedError
		untrusted *tls.CertificateVerificationError
	)
	host, _, err := net.SplitHostPort(e.Addr)
	if err != nil {
		host = e.Addr
	}
	switch {
	case errors.As(e.Err, &refused) && refused.Code == http.StatusProxyAuthRequired:
		return fmt.Sprintf("the proxy wants another user name and password: configure it as %s://USER:PASSWORD@%s", e.Proxy.Scheme, e.Proxy.Host)
	case errors.As(e.Err, &refused) && refused.Code == http.StatusForbidden:
		return fmt.Sprintf("ask the network team to allow CONNECT to %s through %s, without inspection of TLS", e.Addr, e.Proxy.Host)
	case errors.As(e.Err, &refused):
		return fmt.Sprintf("ask the network team why %s cannot connect to %s: it has to know the name, to reach the address and to let CONNECT through", e.Proxy.Host, e.Addr)
	case errors.As(e.Err, &untrusted):
		return fmt.Sprintf("the certificate is that of the proxy itself, not of the broker. Give the CA that signed it (--proxy-ca-file, key proxyCAFile; %q), or check the name of the proxy", issuer(untrusted))
	case errors.As(e.Err, new(tls.RecordHeaderError)):
		return fmt.Sprintf("the proxy itself does not speak TLS: configure it as http://%s", e.Proxy.Host)
	}
	return fmt.Sprintf("check the address of the proxy, and that this machine reaches it. If the broker is reached without one, name it in NO_PROXY, as NO_PROXY=%s, or configure the proxy %s", host, transport.NoProxy)
}

// RefusedError is a proxy's refusal to connect to Addr.
type RefusedError struct {
	Addr string
	// Status is the whole status line, Code its number.
	Status string
	Code   int
}

// Error returns the proxy, the address and the status.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("it refuses CONNECT to %s: %s", e.Addr, e.Status)
}

func throughProxy(ctx context.Context, d *net.Dialer, addr string, proxy *url.URL, ca string) (net.Conn, error) {
	host := proxy.Host
	if proxy.Port() == "" {
		host = net.JoinHostPort(proxy.Hostname(), map[string]string{"http": "80", "https": "443"}[proxy.Scheme])
	}
	conn, err := d.DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, err
	}
	if proxy.Scheme == "https" {
		config, err := proxyTLS(proxy.Hostname(), ca)
		if err != nil {
			_ = conn.Close() // no data was sent over it
			return nil, err
		}
		conn = tls.Client(conn, config)
	}
	through, err := WithContext(ctx, conn, func() (net.Conn, error) { return connect(ctx, conn, addr, proxy.User) })
	if err != nil {
		_ = conn.Close() // it is useless now
		return nil, err
	}
	return through, nil
}

// proxyTLS configures TLS to the proxy itself; the connection to the broker runs inside it.
func proxyTLS(host, ca string) (*tls.Config, error) {
	c := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	if ca == "" {
		return c, nil
	}
	pem, err := os.ReadFile(ca)
	if err != nil {
		return nil, fmt.Errorf("CA of the proxy: %w", err)
	}
	if c.RootCAs, err = identity.ReadPool(pem); err != nil {
		return nil, fmt.Errorf("CA of the proxy: %s: %w", ca, err)
	}
	return c, nil
}

// WithContext runs f, which uses conn, and makes it fail when ctx ends. Deadlines are the only way to stop a
// read or a write.
func WithContext(ctx context.Context, conn net.Conn, f func() (net.Conn, error)) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() {
		_ = conn.SetDeadline(time.Unix(1, 0)) // fails if conn is closed, which also stops f
	})
	result, err := f()
	if !stop() {
		return nil, ctx.Err()
	}
	return result, err
}

// connect requests a tunnel to addr from the proxy.
func connect(ctx context.Context, conn net.Conn, addr string, user *url.Userinfo) (net.Conn, error) {
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: addr}, Host: addr, Header: http.Header{}}
	if user != nil {
		password, _ := user.Password()
		req.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)))
	}
	if err := req.WithContext(ctx).Write(conn); err != nil {
		return nil, err
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return nil, err
	}
	_ = resp.Body.Close() // the answer has no body: the data that follows is not HTTP
	if resp.StatusCode != http.StatusOK {
		return nil, &RefusedError{Addr: addr, Status: resp.Status, Code: resp.StatusCode}
	}
	if r.Buffered() == 0 {
		return conn, nil
	}
	return &buffered{Conn: conn, r: r}, nil
}

// buffered is a connection with some bytes read ahead.
type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.r.Read(p) }
