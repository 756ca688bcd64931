package listener

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// whatCame is a connection on which data is always available.
type whatCame struct{ net.Conn }

// Read implements net.Conn.
func (whatCame) Read(b []byte) (int, error) { return len(b), nil }

// TestShaking checks that at most GOMAXPROCS handshakes compute at a time, and that each pauses for half of the
// time.
func TestShaking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many, steps, work = 20, 3, refusalPause / 2
		atOnce := runtime.GOMAXPROCS(0)
		turns := make(chan struct{}, atOnce)
		var working atomic.Int32
		var all sync.WaitGroup
		began := time.Now()
		for range many {
			all.Go(func() {
				s := &throttledHandshake{Conn: whatCame{}, slots: turns}
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
		if took, want := time.Since(began), 2*many*steps*work/time.Duration(atOnce); took < want {
			t.Errorf("took %v, want %v at least", took, want)
		}
		if len(turns) != 0 {
			t.Errorf("%d turns were not given back", len(turns))
		}
	})
}

// dead is a listener that accepts 200 connections of one address, each in 0.1 ms.
type dead struct {
	net.Listener
	left int
}

// Accept implements net.Listener.
func (d *dead) Accept() (net.Conn, error) {
	if d.left--; d.left < 0 {
		return nil, net.ErrClosed
	}
	<-time.After(refusalBurst / 10)
	return &fromConn{addr: "192.0.2.1"}, nil
}

// TestListener_PausesAfterRejections: a listener that rejects connections without end pauses half of the time.
func TestListener_PausesAfterRejections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 200
		g, _, _ := limiterOf(limits{})
		refused := 0
		l := &listener{Listener: &dead{left: many}, limiter: g, refused: func(string, net.Addr, error) { refused++ }}
		began := time.Now()
		if _, err := l.Accept(); err == nil {
			t.Error("one was accepted")
		}
		if refused != many {
			t.Errorf("%d were refused, want %d", refused, many)
		}
		if took, worked := time.Since(began), many*refusalBurst/10; took < worked*3/2 || took > worked*3 {
			t.Errorf("took %v for work of %v", took, worked)
		}
	})
}
