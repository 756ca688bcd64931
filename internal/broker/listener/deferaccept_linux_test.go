package listener

import (
	"net"
	"sync"
	"testing"
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
