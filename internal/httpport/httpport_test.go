package httpport

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// net/http waits half a second before it closes a connection with unread data.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// serve serves a port that answers with the length of the body.
func serve(t *testing.T, limits Limits) *port {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, bound := Server(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_, _ = fmt.Fprintf(w, "%d", len(b))
	}), l, limits, slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- s.Serve(bound) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return bound.(*port)
}

// client is a connection from one of this machine's addresses.
type client struct {
	*testing.T
	net.Conn
}

func (p *port) dial(t *testing.T, from string) client {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 5 * time.Second}
	c, err := d.DialContext(t.Context(), "tcp", p.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return client{t, c}
}

// begins sends a request with a part of its body.
func (c client) begins(length, sent int) {
	c.Helper()
	if _, err := fmt.Fprintf(c.Conn, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", length, strings.Repeat("x", sent)); err != nil {
		c.Fatal(err)
	}
}

// answer reads one answer, "" if the connection has ended.
func (c client) answer() string {
	c.Helper()
	if err := c.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		c.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(c.Conn), nil)
	if err != nil {
		return ""
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return ""
	}
	return string(b)
}

func (c client) sends() string {
	c.Helper()
	c.begins(3, 3)
	return c.answer()
}

// until waits until the counts of the port meet a condition.
func (p *port) until(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for {
		p.mu.Lock()
		ok := is()
		p.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not within 5 s: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

func (p *port) accepted(t *testing.T, n uint64) {
	t.Helper()
	p.until(t, fmt.Sprintf("%d things happened to connections", n), func() bool { return p.count >= n })
}

func TestServer_EvictsFromAddressWithMostConnections(t *testing.T) {
	p := serve(t, Limits{Connections: 8, Bytes: 1 << 20})
	known := p.dial(t, "127.0.0.2")
	if got := known.sends(); got != "3" {
		t.Fatalf("answered %q", got)
	}
	var muted []client
	for i := range 7 {
		muted = append(muted, p.dial(t, "127.0.0.3"))
		p.accepted(t, uint64(3+i)) // accepted in order
	}
	fresh := p.dial(t, "127.0.0.2")
	if got := fresh.sends(); got != "3" {
		t.Errorf("a new client of a full port gets %q", got)
	}
	if got := known.sends(); got != "3" {
		t.Errorf("an earlier client gets %q", got)
	}
	if got := muted[0].answer(); got != "" {
		t.Errorf("the oldest of the most is answered %q, want its end", got)
	}
	if got := muted[6].sends(); got != "3" {
		t.Errorf("the latest of the most is answered %q", got)
	}
}

// Connections with an answer do not displace those that wait for their first one.
func TestServer_IdleConnectionsLeaveCapacity(t *testing.T) {
	p := serve(t, Limits{Connections: 8, Bytes: 1 << 20})
	var idle []client
	for range 8 {
		c := p.dial(t, "127.0.0.3")
		if got := c.sends(); got != "3" {
			t.Fatalf("answered %q", got)
		}
		idle = append(idle, c)
	}
	p.accepted(t, 16)
	slow := p.dial(t, "127.0.0.2")
	slow.begins(2, 1)
	p.accepted(t, 17)
	for range 3 {
		p.dial(t, "127.0.0.3")
	}
	p.accepted(t, 20)
	if _, err := slow.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if got := slow.answer(); got != "2" {
		t.Errorf("the one that was in its first request is answered %q", got)
	}
	if got := idle[0].answer(); got != "" {
		t.Errorf("the longest idle is answered %q, want its end", got)
	}
}

func TestServer_BytesOnTheirWayAreBounded(t *testing.T) {
	p := serve(t, Limits{Connections: 100, Bytes: 100_000})
	honest := p.dial(t, "127.0.0.2")
	honest.begins(2000, 1000)
	p.until(t, "the honest one has begun", func() bool { return p.bytes > 1000 })
	var hoarders []client
	for range 10 {
		c := p.dial(t, "127.0.0.3")
		c.begins(1<<20, 20_000)
		hoarders = append(hoarders, c)
	}
	ended := 0
	for _, c := range hoarders[:5] {
		if c.answer() == "" {
			ended++
		}
	}
	if ended != 5 {
		t.Errorf("%d of the oldest five that hoard have ended", ended)
	}
	p.until(t, "the bytes are within their bound", func() bool { return p.bytes <= 100_000 })
	if _, err := honest.Write([]byte(strings.Repeat("x", 1000))); err != nil {
		t.Fatal(err)
	}
	if got := honest.answer(); got != "2000" {
		t.Errorf("the honest one is answered %q", got)
	}
	p.until(t, "what was answered is not counted", func() bool { return p.bytes <= 80_500 })
}

func TestServer_SpeaksOneRequestAtATime(t *testing.T) {
	s, bound := Server(http.NotFoundHandler(), &net.TCPListener{}, Limits{}, slog.New(slog.DiscardHandler))
	if s.Protocols.HTTP2() || s.Protocols.UnencryptedHTTP2() || !s.Protocols.HTTP1() || bound == nil {
		t.Errorf("the server supports %v", s.Protocols)
	}
	for name, d := range map[string]time.Duration{"headers": s.ReadHeaderTimeout, "body": s.ReadTimeout, "answer": s.WriteTimeout, "idle": s.IdleTimeout} {
		if d <= 0 {
			t.Errorf("no deadline for %s", name)
		}
	}
}

// remote is a connection with any remote address.
type remote struct {
	net.Conn
	from string
}

func (r remote) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(r.from))
}

// TestAddressOf checks that all addresses of an IPv6 /64 count for the same host.
func TestAddressOf(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"[2001:db8::1]:1", "[2001:db8::ffff:2]:2", true},
		{"[2001:db8::1]:1", "[2001:db8:0:1::1]:1", false},
		{"[::ffff:10.0.0.1]:1", "10.0.0.1:2", true},
		{"10.0.0.1:1", "10.0.0.2:1", false},
	} {
		if same := addressOf(remote{from: c.a}) == addressOf(remote{from: c.b}); same != c.same {
			t.Errorf("%s and %s are of one host: %t", c.a, c.b, same)
		}
	}
}
