package listener

import (
	"net"
	"runtime"
	"time"
)

// handshakesAtOnce returns the number of handshakes that compute at a time: half of the processors. The other half
// is for connections that exist, whose data the runtime would otherwise notice every 10 ms only.
func handshakesAtOnce() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// pausedHandshakes is the maximum pause of a handshake on a single processor.
const pausedHandshakes = time.Millisecond

// throttledHandshake is a connection during its handshake. Only some handshakes compute at a time.
//
// Scenario:
//
//	t1: hundreds of clients open connections at once.
//	t2: each handshake needs about 1 ms of CPU.
//	t3: an event on an open connection waits for all of them.
//
// Result: the handshakes take turns. On a single processor each of them also pauses as long as it computed.
type throttledHandshake struct {
	net.Conn
	slots    chan struct{} // full: all slots are taken; nil: the handshake is over
	computed func()        // called with the first slot, and not later
	pauses   bool
	began    time.Time // when it got its slot; zero: it has none
}

// Read implements net.Conn. It waits for data without a slot, and returns with one.
func (s *throttledHandshake) Read(b []byte) (int, error) {
	if s.slots == nil {
		return s.Conn.Read(b)
	}
	s.pause()
	n, err := s.Conn.Read(b)
	s.slots <- struct{}{}
	s.began = time.Now()
	if s.computed != nil {
		s.computed()
		s.computed = nil
	}
	return n, err
}

// pause releases the slot, if it has one. The bound covers handshakes that had a slot but no CPU.
func (s *throttledHandshake) pause() {
	if s.began.IsZero() {
		return
	}
	if s.pauses {
		<-time.After(min(time.Since(s.began), pausedHandshakes))
	}
	s.began = time.Time{}
	<-s.slots
}

// end is called once, after the handshake.
func (s *throttledHandshake) end() {
	s.pause()
	s.slots = nil
}
