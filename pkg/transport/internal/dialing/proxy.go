package dialing

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/net/http/httpproxy"
)

// TCP connects to addr, through the proxy that HTTPS_PROXY and NO_PROXY name for it if there
// is one: with CONNECT, as the gRPC library does, whatever is spoken behind it. It has the type
// of [transport.DialContext].
func TCP(ctx context.Context, network, addr string) (net.Conn, error) {
	proxy, err := ProxyFor(addr)
	if err != nil {
		return nil, err
	}
	if proxy == nil {
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	conn, err := throughProxy(ctx, network, addr, proxy)
	if err != nil {
		return nil, fmt.Errorf("through the proxy %s: %w", proxy.Redacted(), err)
	}
	return conn, nil
}

// ProxyFor returns the proxy of the environment for addr, nil where there is none. It is
// chosen as for an https address: what passes is opaque to it.
func ProxyFor(addr string) (*url.URL, error) {
	proxy, err := httpproxy.FromEnvironment().ProxyFunc()(&url.URL{Scheme: "https", Host: addr})
	if err != nil {
		return nil, fmt.Errorf("the proxy of the environment: %w", err)
	}
	return proxy, nil
}

// RefusedError is a proxy's refusal to connect to Addr.
type RefusedError struct {
	Addr string
	// Status is the whole line, Code its number.
	Status string
	Code   int
}

// Error says what the proxy refused.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("it refuses CONNECT to %s: %s", e.Addr, e.Status)
}

func throughProxy(ctx context.Context, network, addr string, proxy *url.URL) (net.Conn, error) {
	host := proxy.Host
	if proxy.Port() == "" {
		host = net.JoinHostPort(proxy.Hostname(), map[string]string{"http": "80", "https": "443"}[proxy.Scheme])
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, host)
	if err != nil {
		return nil, err
	}
	if proxy.Scheme == "https" {
		conn = tls.Client(conn, &tls.Config{ServerName: proxy.Hostname(), MinVersion: tls.VersionTLS12})
	}
	through, err := WithContext(ctx, conn, func() (net.Conn, error) { return connect(ctx, conn, addr, proxy.User) })
	if err != nil {
		_ = conn.Close() // it is of no use any more
		return nil, err
	}
	return through, nil
}

// WithContext runs f, which works on conn, and fails it when ctx ends: deadlines are the only
// way to stop a read or a write.
func WithContext(ctx context.Context, conn net.Conn, f func() (net.Conn, error)) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() {
		_ = conn.SetDeadline(time.Unix(1, 0)) // fails if conn is closed, which is as good
	})
	result, err := f()
	if !stop() {
		return nil, ctx.Err()
	}
	return result, err
}

// connect asks the proxy for a way to addr.
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
	_ = resp.Body.Close() // there is none: what follows is not HTTP
	if resp.StatusCode != http.StatusOK {
		return nil, &RefusedError{Addr: addr, Status: resp.Status, Code: resp.StatusCode}
	}
	if r.Buffered() == 0 {
		return conn, nil
	}
	return &buffered{Conn: conn, r: r}, nil
}

// buffered is a connection of which something was read ahead.
type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.r.Read(p) }
