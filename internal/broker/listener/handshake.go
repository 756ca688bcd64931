package listener

import (
	"net"
	"time"
)

// throttledHandshake is a connection during its handshake. What comes is worked on by few connections at
// a time, each of which then rests for as long as it worked.
//
// t1 a fleet, or who means no good, opens connections by the hundred, t2 all of them compute at
// the same time, a millisecond each, t3 an event for somebody who is connected waits for all of
// them. Therefore they take turns, and the rest between two turns is the time of the others.
type throttledHandshake struct {
	net.Conn
	slots chan struct{} // full: all are taken; nil: the handshake is over
	began time.Time     // of the turn that it has; zero: it has none
}

// Read implements net.Conn: it waits without a turn, and returns with one.
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

// pause gives the turn back, if it has one. Who was kept from working meanwhile rests no longer
// than whoever worked for long.
func (s *throttledHandshake) pause() {
	if s.began.IsZero() {
		return
	}
	<-time.After(min(time.Since(s.began), refusalPause))
	s.began = time.Time{}
	<-s.slots
}

// end is called once, when the handshake is over.
func (s *throttledHandshake) end() {
	s.pause()
	s.slots = nil
}
