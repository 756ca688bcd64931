package listener

import (
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestListen_ConnectionsWithoutData checks that a connection is accepted only when data arrives on it, even
// after a long time.
func TestListen_ConnectionsWithoutData(t *testing.T) {
	p, _, err := New(Config{Addr: "127.0.0.1:0", Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	l, fill, err := p.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var filling sync.WaitGroup
	filling.Go(fill)
	defer filling.Wait()
	defer l.Close()
	dial := func() net.Conn {
		var d net.Dialer
		c, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	muted, speaking := dial(), dial()
	for _, c := range []net.Conn{speaking, muted} {
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer accepted.Close()
		if got, want := accepted.RemoteAddr().String(), c.LocalAddr().String(); got != want {
			t.Errorf("accepted %s, want %s", got, want)
		}
	}
}

// TestEndUnacknowledged checks the option of the socket: no peer here can die without a notice.
func TestEndUnacknowledged(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := (&Connection{raw: c}).EndUnacknowledged(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var got int
	failed := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) })
	if failed != nil || err != nil || got != 30_000 {
		t.Errorf("timeout %d ms, want 30000; %v, %v", got, failed, err)
	}
	_ = c.Close() // the test ends
	if err := (&Connection{raw: c}).EndUnacknowledged(time.Second); err == nil {
		t.Error("no error for a closed connection")
	}
	piped, other := net.Pipe()
	defer piped.Close()
	defer other.Close()
	if err := (&Connection{raw: piped}).EndUnacknowledged(time.Second); err != nil {
		t.Errorf("a connection within the process: %v", err)
	}
}
