package feed

import (
	"sync"
	"time"

	"github.com/hawser-io/hawser/internal/broker/route"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// subscription is what everybody sees of a party that subscribed. Others put keys, lists and
// the end into it under its lock; its stream takes out what to do next. It has no events.
type subscription struct {
	id    string
	party identity.Identity
	scope store.Scope
	part  codec.Subresource // what it receives
	hello transport.Hello
	conn  uint64
	since time.Time
	// cursor is where it continues from; nil: it says what it has.
	cursor *codec.Cursor
	fences Fences
	mailed func(delta int) // told how the number of keys changes

	// wake holds a token when something was put since the last look.
	wake chan struct{}

	mu       sync.Mutex
	phase    phase
	mail     route.Mailbox
	requests []*list        // lists to compare with, oldest first
	pages    []*pageRequest // of a source's inventory, oldest first
	end      *transport.Error
	rests    rests // of a stock agent
	sync     syncState
	applied  applied
}

// list is what a party says it has.
type list struct {
	versions []codec.ResourceVersion // of an agent
	hashes   []codec.StatusHash      // of a source
	cluster  string                  // of a source: asks about this one only; "" is all
	// silent: the party said nothing at all within the grace.
	silent bool
	// free is called when the list is no longer needed.
	free func()
}

const (
	// maxRequests is how many lists of a source may wait; it asks in chunks.
	maxRequests = 1024
	// maxPages is how many requests for pages of one subscription may wait.
	maxPages = 16
)

// turn changes the phase. The caller has the lock.
func (s *subscription) turn(t turn) { s.phase = transitions[s.phase][t] }

// resume says where the party continues: changed says whether something changed since its
// cursor.
func (s *subscription) resume(t turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn(t)
}

// complete says that the mailbox has what changed since the cursor, or what a list lacks that
// was just compared; l is nil or that list.
func (s *subscription) complete(now time.Time, l *list) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) > 0 {
		s.turn(more)
	} else {
		s.turn(done)
	}
	s.base(now, l)
}

// post puts a change into the mailbox.
func (s *subscription) post(k route.Key, revision uint64, f route.Flags) {
	s.change(func() { s.mail.Post(s.intern(k), revision, f) })
}

// answer puts a record into the mailbox that a list lacks, or a cursor.
func (s *subscription) answer(k route.Key, revision uint64, f route.Flags) {
	s.change(func() { s.mail.Answer(s.intern(k), revision, f) })
}

// discard removes a record that is no more.
func (s *subscription) discard(k route.Key) {
	s.change(func() { s.mail.Remove(k) })
	if s.part == codec.Spec && s.hello.Protocol > 0 {
		s.recheck() // what the agent should have is something else now
	}
}

// change changes the mailbox, unless the stream has left.
func (s *subscription) change(f func()) {
	s.mu.Lock()
	before := s.mail.Len()
	if s.phase != over {
		s.count(f)
	}
	grown := s.mail.Len() > before
	s.mu.Unlock()
	if grown {
		s.signal()
	}
}

// count tells how f changes the number of keys. The caller has the lock.
func (s *subscription) count(f func()) {
	before := s.mail.Len()
	f()
	if delta := s.mail.Len() - before; delta != 0 {
		s.mailed(delta)
	}
}

// pop takes the next entry out of the mailbox. The caller has the lock.
func (s *subscription) pop() (e route.Entry, ok bool) {
	s.count(func() { e, ok = s.mail.Next() })
	return e, ok
}

// giveBack returns entries to the mailbox that were popped and not sent. The caller has the
// lock.
func (s *subscription) giveBack(entries []route.Entry) {
	for _, e := range entries {
		s.count(func() { s.mail.Return(e) })
	}
}

// intern lets the keys of one cluster share its name.
func (s *subscription) intern(k route.Key) route.Key {
	if s.scope.Cluster != "" {
		k.Cluster = s.scope.Cluster
	}
	return k
}

// request hands a list over; false: too many wait, or the stream has left. The list of an
// agent is complete, so it replaces one that was not looked at yet.
func (s *subscription) request(l *list) bool {
	s.mu.Lock()
	defer s.signal()
	defer s.mu.Unlock()
	if s.phase == over || s.part == codec.Status && len(s.requests) >= maxRequests {
		return false
	}
	if s.part == codec.Spec {
		for _, old := range s.requests {
			old.free()
		}
		s.requests = s.requests[:0]
	}
	s.requests = append(s.requests, l)
	s.turn(lists)
	return true
}

// silence is the list of a party that said nothing in time. The caller has the lock.
func (s *subscription) silence() {
	s.requests = append(s.requests, &list{silent: true, free: func() {}})
	s.turn(lists)
}

// requestPage hands a request over; false: too many wait, or the stream has left.
func (s *subscription) requestPage(p *pageRequest) bool {
	s.mu.Lock()
	defer s.signal()
	defer s.mu.Unlock()
	if s.phase == over || len(s.pages) >= maxPages {
		return false
	}
	s.pages = append(s.pages, p)
	return true
}

// stop ends the stream with err. When it returns, nothing that the party publishes on the
// subscription counts any more.
func (s *subscription) stop(err *transport.Error) {
	s.fences.End(s.id)
	s.mu.Lock()
	if s.end == nil {
		s.end = err
	}
	s.mu.Unlock()
	s.signal()
}

// leave gives back what the subscription still had when its stream ended.
func (s *subscription) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.requests {
		l.free()
	}
	for _, p := range s.pages {
		p.free()
	}
	s.turn(left)
	s.requests, s.pages = nil, nil
	s.count(func() { s.mail = route.Mailbox{} })
	s.sync.odd.Close()
	s.applied.free()
}

func (s *subscription) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// pop removes the oldest entry of a queue that is not empty.
func pop[T any](queue *[]T) T {
	var zero T
	first := (*queue)[0]
	(*queue)[0] = zero
	*queue = (*queue)[1:]
	return first
}
