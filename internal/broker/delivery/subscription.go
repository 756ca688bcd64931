package delivery

import (
	"sync"
	"time"

	"github.com/hawser-io/hawser/internal/broker/deliveryqueue"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/syncstate"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// subscription is what everybody sees of a party that subscribed. Others put keys, lists and
// the end into it under its lock; its stream takes out what to do next. It has no events.
type subscription struct {
	id     string
	client identity.Identity
	scope  store.Scope
	part   codec.Subresource // what it receives
	hello  transport.Hello
	conn   uint64
	// transport is how it is connected.
	transport string
	since     time.Time
	// cursor is where it continues from; nil: it says what it has.
	cursor *codec.Cursor
	intake Intake
	// list is what does not fit of what an agent listed last.
	list *syncstate.List

	// wake holds a token when something was put since the last look.
	wake taskgroup.Bell

	mu        sync.Mutex
	phase     phase
	mail      deliveryqueue.Queue
	requests  []*list        // lists to compare with, oldest first
	pages     []*pageRequest // of a source's inventory, oldest first
	requested bool           // for a page, at some time
	end       *transport.Error
	holdback  holdback // of a stock agent
	sync      syncState
	orphans   orphanReport
}

// mailboxFor returns an empty mailbox: a source's is shared by its clusters.
func mailboxFor(part codec.Subresource) deliveryqueue.Queue {
	if part == codec.Status {
		return deliveryqueue.Shared()
	}
	return deliveryqueue.Queue{}
}

// list is what a party says it has.
type list struct {
	versions []codec.ResourceVersion // of an agent
	hashes   []codec.StatusHash      // of a source
	cluster  string                  // of a source: asks about this one only; "" is all
	// timedOut: the party said nothing at all within the grace.
	timedOut bool
	// free is called when the list is no longer needed.
	free func()
}

const (
	// maxRequests is how many lists of a source may wait; it asks in chunks.
	maxRequests = 1024
	// maxPages is how many requests for pages of one subscription may wait.
	maxPages = 16
)

// on changes the phase. The caller has the lock.
func (s *subscription) on(t phaseEvent) { s.phase = transitions[s.phase][t] }

// resume says where the party continues: changed says whether something changed since its
// cursor.
func (s *subscription) resume(t phaseEvent) { s.locked(func() { s.on(t) }) }

// complete says that the mailbox has what changed since the cursor, or what a list lacks that
// was just compared; l is nil or that list.
func (s *subscription) complete(now time.Time, l *list) {
	s.locked(func() {
		if len(s.requests) > 0 {
			s.on(more)
		} else {
			s.on(done)
		}
		s.base(now, l)
	})
}

// post puts a change into the mailbox.
func (s *subscription) post(k deliveryqueue.Key, revision uint64, f deliveryqueue.Flags) {
	s.change(func() { s.mail.Post(s.intern(k), revision, f) })
}

// answer puts a record into the mailbox that a list lacks, or a cursor.
func (s *subscription) answer(k deliveryqueue.Key, revision uint64, f deliveryqueue.Flags) {
	s.change(func() { s.mail.Answer(s.intern(k), revision, f) })
}

// discard removes a record that is no more.
func (s *subscription) discard(k deliveryqueue.Key) {
	s.change(func() { s.mail.Remove(k) })
	if s.part == codec.Spec && s.hello.Protocol > 0 {
		s.recheck() // what the agent should have is something else now
	}
}

// change changes the mailbox, unless the stream has left.
func (s *subscription) change(f func()) {
	s.mu.Lock()
	before := s.mail.Len()
	if s.phase != closed {
		f()
	}
	grown := s.mail.Len() > before
	s.mu.Unlock()
	if grown {
		s.wake.Ring()
	}
}

// mailed is how many records are in the mailbox.
func (s *subscription) mailed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mail.Len()
}

// intern lets the keys of one cluster share its name.
func (s *subscription) intern(k deliveryqueue.Key) deliveryqueue.Key {
	if s.scope.Cluster != "" {
		k.Cluster = s.scope.Cluster
	}
	return k
}

// request hands a list over; false: too many wait, or the stream has left. The list of an
// agent is complete, so it replaces one that was not looked at yet.
func (s *subscription) request(l *list) bool {
	s.mu.Lock()
	defer s.wake.Ring()
	defer s.mu.Unlock()
	if s.phase == closed || s.part == codec.Status && len(s.requests) >= maxRequests {
		return false
	}
	if s.part == codec.Spec {
		for _, old := range s.requests {
			old.free()
		}
		s.requests = s.requests[:0]
	}
	s.requests = append(s.requests, l)
	s.on(lists)
	return true
}

// listTimeout is the list of a party that said nothing in time. The caller has the lock.
func (s *subscription) listTimeout() {
	s.requests = append(s.requests, &list{timedOut: true, free: func() {}})
	s.on(lists)
}

// requestPage hands a request over; false: too many wait, or the stream has left.
func (s *subscription) requestPage(p *pageRequest) bool {
	s.mu.Lock()
	defer s.wake.Ring()
	defer s.mu.Unlock()
	if s.phase == closed || len(s.pages) >= maxPages {
		return false
	}
	s.pages, s.requested = append(s.pages, p), true
	return true
}

// compares reports whether it is of a source that compares what it owns.
func (s *subscription) compares() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requested
}

// stop ends the stream with err. When it returns, nothing that the party publishes on the
// subscription counts any more.
func (s *subscription) stop(err *transport.Error) {
	s.intake.End(s.id)
	s.put(func() {
		if s.end == nil {
			s.end = err
		}
	})
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
	s.on(left)
	s.requests, s.pages = nil, nil
	s.mail = deliveryqueue.Queue{}
	s.list.Close()
	s.orphans.free()
}

// locked calls f under the lock; put does, and wakes the stream.
func (s *subscription) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *subscription) put(f func()) {
	s.locked(f)
	s.wake.Ring()
}

// pop removes the oldest entry of a queue that is not empty.
func pop[T any](queue *[]T) T {
	var zero T
	first := (*queue)[0]
	(*queue)[0] = zero
	*queue = (*queue)[1:]
	return first
}

// phase is how much of what the party lacks is in the mailbox of its subscription:
//
//	┌─────────┐ cursor, changed   ┌─────────┐ filled, a list waits ┌────────┐
//	│ unasked ├──────────────────►│ filling ├─────────────────────►│ listed │◄──┐
//	└─┬─────┬─┘                   └────┬────┘                      └───┬────┘   │ list
//	  │     │                   filled │      compared, no list waits  │        │
//	  │     │ cursor, unchanged   ┌────▼────┐                          │        │
//	  │     └────────────────────►│ current │◄─────────────────────────┘        │
//	  │                           └────┬────┘                                   │
//	  │ list                           └────────────────────────────────────────┤
//	  └─────────────────────────────────────────────────────────────────────────┘
//	  listed ── cursor, changed ──► filling: the list came first, and waits
//	  each   ── left ─────────────► over
//
// Only in unasked and current nothing is missing that the party asked for, so only then it
// may be told how far it is.
type phase uint8

const (
	// awaitingClient: it gave no cursor that counts, and did not say yet what it has.
	awaitingClient phase = iota
	// filling: what changed since its cursor is not in the mailbox yet.
	filling
	// comparing: a list waits to be compared.
	comparing
	// caughtUp: all that it lacks is in the mailbox.
	caughtUp
	// closed: the stream has left.
	closed
	phases // number of the above
)

// phaseEvent is what changes the phase.
type phaseEvent uint8

const (
	lists          phaseEvent = iota // a list came, or it was silent for too long
	changed                          // it continues from a cursor, behind which something changed
	unchanged                        // it continues from a cursor, behind which nothing changed
	done                             // filled or compared; no list waits
	more                             // filled or compared; a list waits
	left                             // the stream has left
	numPhaseEvents                   // number of the above
)

// transitions: phase × turn. What is no arrow of the picture changes nothing.
var transitions = [phases][numPhaseEvents]phase{
	awaitingClient: {lists: comparing, changed: filling, unchanged: caughtUp, done: awaitingClient, more: awaitingClient, left: closed},
	filling:        {lists: filling, changed: filling, unchanged: filling, done: caughtUp, more: comparing, left: closed},
	comparing:      {lists: comparing, changed: filling, unchanged: comparing, done: caughtUp, more: comparing, left: closed},
	caughtUp:       {lists: comparing, changed: caughtUp, unchanged: caughtUp, done: caughtUp, more: caughtUp, left: closed},
	closed:         {lists: closed, changed: closed, unchanged: closed, done: closed, more: closed, left: closed},
}

// idle reports whether nothing is missing in the mailbox that the party asked for.
func (p phase) idle() bool { return p == awaitingClient || p == caughtUp }
