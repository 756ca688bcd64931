package listener

import (
	"net"
	"time"
)

// throttledHandshake is a connection during its handshake. Only GOMAXPROCS handshakes compute at a time, and
// each pauses as long as it computed, 1 ms at most.
//
// Scenario:
//
//	t1: hundreds of clients open connections at once.
//	t2: each handshake needs about 1 ms of CPU.
//	t3: an event on an open connection waits for all of them.
//
// Result: the handshakes take turns, and the pauses leave CPU time to open connections.
type throttledHandshake struct {
	net.Conn
	slots chan struct{} // full: all slots are taken; nil: the handshake is over
	began time.Time     // when it got its slot; zero: it has none
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
	return n, err
}

// pause releases the slot, if it has one. The bound of 1 ms covers handshakes that had a slot but no CPU.
func (s *throttledHandshake) pause() {
	if s.began.IsZero() {
		return
	}
	<-time.After(min(time.Since(s.began), refusalPause))
	s.began = time.Time{}
	<-s.slots
}

// end is called once, after the handshake.
func (s *throttledHandshake) end() {
	s.pause()
	s.slots = nil
}
