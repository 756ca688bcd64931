package broker

import (
	"sync"
	"time"

	"github.com/hawser-io/hawser/internal/broker/route"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// subscription is one stream's state. Others put keys, lists and the end into
// it under its lock; its own goroutine takes out, by [subscription.next], what
// to do next. It holds no events.
type subscription struct {
	id    string
	party identity.Identity
	scope route.Scope
	part  codec.Subresource // what it receives
	hello transport.Hello
	conn  uint64
	since time.Time

	// wake holds a token when something was put since the last look.
	wake chan struct{}

	mu       sync.Mutex
	mail     route.Mailbox
	mailed   func(delta int) // told how the number of keys changes
	requests []*list         // lists to compare with, oldest first
	asked    bool            // a list came, or the grace is over
	released bool
	rests    rests // of a stock agent
	end      *transport.Error
	// acked is the revision up to which an agent has confirmed, proof what the
	// last confirmation showed.
	acked uint64
	proof proof

	// The rest belongs to the stream's goroutine.

	nextBeat time.Time
	graceEnd time.Time
	// calm is the time before which no further comparison is made.
	calm time.Time
	// hashes is what is still to be asked of an agent, in chunks.
	hashes [][]codec.StatusHash
	// asking alternates between mailbox and hashes.
	asking bool
}

// list is what a party says it holds.
type list struct {
	versions []codec.ResourceVersion // of an agent
	hashes   []codec.StatusHash      // of a source
	cluster  string                  // of a source: asks about this one only; "" is all
	// silent: the party said nothing at all within the grace.
	silent bool
	// settle is called when the list is no longer needed.
	settle func()
}

// maxRequests is how many lists of a source may wait; it asks in chunks.
const maxRequests = 1024

// step is what a stream does next.
type step struct {
	kind  stepKind
	entry route.Entry
	list  *list
	chunk []codec.StatusHash
	err   *transport.Error
	until time.Time
}

type stepKind uint8

const (
	idle    stepKind = iota // wait until something is put or until step.until
	finish                  // the stream ends with step.err
	beat                    // send a heartbeat
	compare                 // compare step.list; done() when that is over
	ask                     // ask the agent for the statuses of step.chunk
	deliver                 // send what step.entry stands for
)

// next says what the stream does next at the time now. comparable: a
// comparison may be made at this moment. A heartbeat that is due comes before
// everything that could hold it up.
func (s *subscription) next(now time.Time, heartbeat time.Duration, mayCompare bool) step {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		return step{kind: finish, err: s.end}
	}
	if !now.Before(s.nextBeat) {
		s.nextBeat = now.Add(heartbeat)
		s.rests.prune(now)
		return step{kind: beat}
	}
	for _, e := range s.rests.due(now) {
		before := s.mail.Len()
		s.mail.Return(e)
		s.mailed(s.mail.Len() - before)
	}
	if !s.asked && !now.Before(s.graceEnd) {
		s.asked = true
		s.requests = append(s.requests, &list{silent: true, settle: func() {}})
	}
	if len(s.requests) > 0 && mayCompare && !now.Before(s.calm) {
		l := s.requests[0]
		s.requests[0] = nil
		s.requests = s.requests[1:]
		return step{kind: compare, list: l}
	}
	if len(s.hashes) > 0 && (s.asking || s.mail.Len() == 0) {
		chunk := s.hashes[0]
		s.hashes[0] = nil
		s.hashes = s.hashes[1:]
		s.asking = false
		return step{kind: ask, chunk: chunk}
	}
	if e, ok := s.mail.Next(); ok {
		s.mailed(-1)
		s.asking = true
		return step{kind: deliver, entry: e}
	}
	return step{kind: idle, until: s.until(now)}
}

// until returns when next has to be asked again although nothing was put.
func (s *subscription) until(now time.Time) time.Time {
	t := s.nextBeat
	if !s.asked && s.graceEnd.Before(t) {
		t = s.graceEnd
	}
	if len(s.requests) > 0 && now.Before(s.calm) && s.calm.Before(t) {
		t = s.calm
	}
	if len(s.rests.later) > 0 && s.rests.look.Before(t) {
		t = s.rests.look
	}
	return t
}

// rest lets specs of a work wait until a time; see rests.
func (s *subscription) rest(id, name string, until time.Time) {
	s.mu.Lock()
	s.rests.set(id, name, until)
	waiting := len(s.rests.later) > 0
	s.mu.Unlock()
	if waiting {
		s.signal()
	}
}

// holdBack reports whether a work rests, and if so keeps the entry for later.
func (s *subscription) holdBack(e route.Entry, name string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := s.rests.end(e.ResourceID, name, now)
	if end.IsZero() {
		return false
	}
	s.rests.keep(e, name, end)
	return true
}

// wantsToCompare reports whether a comparison is due but for next's mayCompare.
func (s *subscription) wantsToCompare(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests) > 0 && !now.Before(s.calm)
}

// post puts a change into the mailbox.
func (s *subscription) post(k route.Key, revision uint64, f route.Flags) {
	s.change(func() { s.mail.Post(s.intern(k), revision, f) })
}

// answer puts a record into the mailbox that a list lacks.
func (s *subscription) answer(k route.Key, revision uint64, f route.Flags) {
	s.change(func() { s.mail.Answer(s.intern(k), revision, f) })
}

// discard takes a record out that is no more.
func (s *subscription) discard(k route.Key) {
	s.change(func() { s.mail.Remove(k) })
}

func (s *subscription) change(f func()) {
	s.mu.Lock()
	before := s.mail.Len()
	f()
	after := s.mail.Len()
	if after != before {
		s.mailed(after - before)
	}
	s.mu.Unlock()
	if after > before {
		s.signal()
	}
}

// intern lets the keys of one cluster share its name.
func (s *subscription) intern(k route.Key) route.Key {
	if s.scope.Cluster != "" {
		k.Cluster = s.scope.Cluster
	}
	return k
}

// request hands a list over; false: too many wait, or the stream is over. The
// list of an agent is complete, so it takes the place of one that was not
// looked at yet.
func (s *subscription) request(l *list) bool {
	s.mu.Lock()
	defer s.signal()
	defer s.mu.Unlock()
	if s.released {
		return false
	}
	s.asked = true
	if s.part == codec.Spec {
		for _, old := range s.requests {
			old.settle()
		}
		s.requests = append(s.requests[:0], l)
		return true
	}
	if len(s.requests) >= maxRequests {
		return false
	}
	s.requests = append(s.requests, l)
	return true
}

// recheck says that other sources than before have compared what they own on
// the agent's cluster.
func (s *subscription) recheck() { s.signal() }

// stop ends the stream with err.
func (s *subscription) stop(err *transport.Error) {
	s.mu.Lock()
	if s.end == nil {
		s.end = err
	}
	s.mu.Unlock()
	s.signal()
}

// release gives back what the ended subscription still held.
func (s *subscription) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.requests {
		l.settle()
	}
	s.released, s.requests = true, nil
	s.mailed(-s.mail.Len())
	s.mail = route.Mailbox{}
}

func (s *subscription) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
