package listener

import (
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pires/go-proxyproto"
)

// whatCame is a connection on which data is always available.
type whatCame struct{ net.Conn }

// Read implements net.Conn.
func (whatCame) Read(b []byte) (int, error) { return len(b), nil }

// TestThrottledHandshake checks that a limited number of handshakes computes at a time. On a single processor each
// pauses for half of the time.
func TestThrottledHandshake(t *testing.T) {
	for atOnce, pauses := range map[int]bool{1: true, 2: false} {
		synctest.Test(t, func(t *testing.T) {
			const many, steps, work = 20, 3, pausedHandshakes / 2
			turns := make(chan struct{}, atOnce)
			var working, computed atomic.Int32
			var all sync.WaitGroup
			began := time.Now()
			for range many {
				all.Go(func() {
					s := &throttledHandshake{Conn: whatCame{}, slots: turns, pauses: pauses, computed: func() { computed.Add(1) }}
					for range steps {
						if n, err := s.Read(make([]byte, 1)); n != 1 || err != nil {
							t.Error(n, err)
						}
						if n := working.Add(1); int(n) > atOnce {
							t.Errorf("%d are worked on", n)
						}
						<-time.After(work)
						working.Add(-1)
					}
					s.end()
					if s.slots != nil || !s.began.IsZero() {
						t.Error("the handshake slot was not released")
					}
				})
			}
			all.Wait()
			want := many * steps * work / time.Duration(atOnce)
			if pauses {
				want *= 2
			}
			if took := time.Since(began); took != want || computed.Load() != many {
				t.Errorf("took %v, want %v; %d got their first slot", took, want, computed.Load())
			}
			if len(turns) != 0 {
				t.Errorf("%d turns were not given back", len(turns))
			}
		})
	}
}

// dead is a listener that accepts 200 connections of one address, each in 0.1 ms.
type dead struct {
	net.Listener
	left int
	end  func() error
}

// Accept implements net.Listener.
func (d *dead) Accept() (net.Conn, error) {
	if d.left--; d.left < 0 {
		_ = d.end() // of the listener around it
		return nil, net.ErrClosed
	}
	<-time.After(refusalBurst / 10)
	return &fromConn{addr: "192.0.2.1"}, nil
}

// Close implements net.Listener.
func (d *dead) Close() error { return nil }

// TestListener_PausesAfterRejections: a listener that rejects connections without end pauses half of the time.
func TestListener_PausesAfterRejections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 200
		g, _, _ := limiterOf(limits{})
		refused := 0
		p := &Port{limiter: g}
		inner := &dead{left: many}
		l := p.arranged(inner)
		inner.end, l.refused = l.Close, func(string, net.Addr, error) { refused++ }
		began := time.Now()
		l.fill()
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		if refused != many {
			t.Errorf("%d were refused, want %d", refused, many)
		}
		if took, worked := time.Since(began), many*refusalBurst/10; took < worked*3/2 || took > worked*3 {
			t.Errorf("took %v for work of %v", took, worked)
		}
	})
}

// TestBehindHeader checks what the first bytes of a proxied connection show.
func TestBehindHeader(t *testing.T) {
	client, port := &net.TCPAddr{IP: net.ParseIP("192.0.2.7").To4(), Port: 1234}, &net.TCPAddr{IP: net.ParseIP("192.0.2.8").To4(), Port: 8090}
	for _, version := range []byte{1, 2} {
		header, err := proxyproto.HeaderProxyFromAddrs(version, client, port).Format()
		if err != nil {
			t.Fatal(err)
		}
		for _, rest := range []string{"", "hello"} {
			if from, got := behindHeader(append(slices.Clone(header), rest...)); from == nil || from.String() != client.String() || string(got) != rest {
				t.Errorf("version %d: %v, %q, want %q", version, from, got, rest)
			}
		}
		if from, _ := behindHeader(header[:len(header)-1]); from != nil {
			t.Errorf("version %d, not complete: %v", version, from)
		}
	}
	local, err := (&proxyproto.Header{Version: 2, Command: proxyproto.LOCAL, TransportProtocol: proxyproto.UNSPEC}).Format()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range [][]byte{nil, []byte("no header"), local} {
		if from, _ := behindHeader(b); from != nil {
			t.Errorf("%q: %v", b, from)
		}
	}
}

// TestListener_LooksTwice checks a ClientHello that arrives in two parts: its ticket is found.
func TestListener_LooksTwice(t *testing.T) {
	l := smallLimits
	l.computing = 0 // all wait
	g, _, _ := limiterOf(l)
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	arranged := (&Port{limiter: g}).arranged(inner)
	hello := []byte("\x16\x03\x01\x00\x06ticket")
	looks := make(chan func(), 1)
	arranged.resumes = func(b []byte) bool { return string(b) == string(hello) }
	arranged.later = func(f func()) { looks <- f }
	ended := make(chan struct{})
	go func() { arranged.fill(); close(ended) }() // received below
	c, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(hello[:7]); err != nil {
		t.Fatal(err)
	}
	look := <-looks
	if _, err := c.Write(hello[7:]); err != nil {
		t.Fatal(err)
	}
	for g.queued(resuming) == 0 { // until the rest has arrived
		look()
		<-time.After(time.Millisecond)
	}
	if g.queued(unknown) != 0 {
		t.Error("it waits twice")
	}
	if err := arranged.Close(); err != nil {
		t.Error(err)
	}
	<-ended
}

// queued returns the number of arrivals in the queue of a class.
func (g *limiter) queued(c class) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.queues[c].Len()
}
