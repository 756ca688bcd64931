package dialing

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-io/hawser/pkg/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// proxy runs serve with one CONNECT request and its connection.
func proxy(t *testing.T, user string, serve func(*http.Request, net.Conn)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // ends with the listener
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Error(err)
		}
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			t.Error(err)
			return
		}
		serve(r, c)
	}()
	t.Cleanup(func() {
		_ = l.Close() // ends Accept
		<-done
	})
	t.Setenv("HTTPS_PROXY", "http://"+user+l.Addr().String())
	t.Setenv("NO_PROXY", "direct.example")
}

func TestDial_ThroughAProxy(t *testing.T) {
	proxy(t, "u:p@", func(r *http.Request, c net.Conn) {
		if r.Method != http.MethodConnect || r.Host != "broker.example:8883" || r.Header.Get("Proxy-Authorization") != "Basic dTpw" {
			t.Errorf("%s %s %v", r.Method, r.Host, r.Header)
		}
		// Data that follows the answer immediately belongs to the server behind the proxy.
		if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\nhello"); err != nil {
			t.Error(err)
		}
		_, _ = io.Copy(c, c) // until the client leaves
	})
	conn, err := Dial(transport.Proxy{})(t.Context(), "tcp", "broker.example:8883")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, ", world"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len("hello, world"))
	if _, err := io.ReadFull(conn, b); err != nil || string(b) != "hello, world" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestDial_RefusedByTheProxy(t *testing.T) {
	proxy(t, "u:secret@", func(_ *http.Request, c net.Conn) {
		if _, err := io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 4\r\n\r\nbody"); err != nil {
			t.Error(err)
		}
	})
	_, err := Dial(transport.Proxy{})(t.Context(), "tcp", "broker.example:8883")
	if err == nil || !strings.Contains(err.Error(), "407") || !strings.Contains(err.Error(), "broker.example:8883") || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}

func TestDial_GivesUpWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	proxy(t, "", func(_ *http.Request, c net.Conn) {
		cancel()
		_, _ = io.Copy(io.Discard, c) // until the client leaves
	})
	if _, err := Dial(transport.Proxy{})(ctx, "tcp", "broker.example:8883"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestDial_WithoutAProxy(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1") // addresses of this machine do not use the proxy
	conn, err := Dial(transport.Proxy{})(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if _, err := Dial(transport.Proxy{})(t.Context(), "tcp", "broker.example:8883"); err == nil || !strings.Contains(err.Error(), "through the proxy http://127.0.0.1:1") {
		t.Errorf("%v", err)
	}
	t.Setenv("HTTPS_PROXY", "://")
	if _, err := Dial(transport.Proxy{})(t.Context(), "tcp", "broker.example:8883"); err == nil {
		t.Error("a proxy that is none was taken")
	}
}

func TestExplain(t *testing.T) {
	for name, c := range map[string]struct {
		cause error
		code  transport.Code
		hint  string
	}{
		"untrusted": {&tls.CertificateVerificationError{Err: errors.New("x")}, transport.CodeUnauthenticated, "CA file"},
		"refused":   {&net.OpError{Op: "remote error", Err: errors.New("x")}, transport.CodeUnauthenticated, "client certificate"},
		"plaintext": {tls.RecordHeaderError{Msg: "x"}, transport.CodeUnavailable, "does not speak TLS"},
		"other":     {os.ErrClosed, transport.CodeUnavailable, ""},
	} {
		e := &transport.Error{Code: transport.CodeUnavailable}
		if known := Explain(e, c.cause); known != (c.hint != "") || e.Code != c.code || !strings.Contains(e.Hint, c.hint) {
			t.Errorf("%s: %+v", name, e)
		}
	}
}
