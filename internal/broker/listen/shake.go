package listen

import (
	"net"
	"time"
)

// shaking is a connection during its handshake. What comes is worked on by few connections at
// a time, each of which then rests for as long as it worked.
//
// t1 a fleet, or who means no good, opens connections by the hundred, t2 all of them compute at
// the same time, a millisecond each, t3 an event for somebody who is connected waits for all of
// them. Therefore they take turns, and the rest between two turns is the time of the others.
type shaking struct {
	net.Conn
	slots chan struct{} // full: all are taken; nil: the handshake is over
	began time.Time     // of the turn that it has; zero: it has none
}

// Read implements net.Conn: it waits without a turn, and returns with one.
func (s *shaking) Read(b []byte) (int, error) {
	if s.slots == nil {
		return s.Conn.Read(b)
	}
	s.rest()
	n, err := s.Conn.Read(b)
	s.slots <- struct{}{}
	s.began = time.Now()
	return n, err
}

// rest gives the turn back, if it has one. Who was kept from working meanwhile rests no longer
// than whoever worked for long.
func (s *shaking) rest() {
	if s.began.IsZero() {
		return
	}
	<-time.After(min(time.Since(s.began), rest))
	s.began = time.Time{}
	<-s.slots
}

// end is called once, when the handshake is over.
func (s *shaking) end() {
	s.rest()
	s.slots = nil
}
