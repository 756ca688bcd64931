package delivery

import (
	"cmp"
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

// subscription is the shared state of a subscribed client. Other goroutines put keys, lists and the end into it
// under its lock; its stream takes out the next step. It has no events.
type subscription struct {
	id     string
	client identity.Identity
	scope  store.Scope
	part   codec.Subresource // the part that it receives
	hello  transport.Hello
	conn   uint64
	// transport is the transport of its connection.
	transport string
	since     time.Time
	// cursor is the position from which the client continues; nil: the client sends a list.
	cursor *codec.Cursor
	intake Intake
	// list has the mismatches of the agent's last list.
	list *syncstate.List

	// wake rings when something is put.
	wake *taskgroup.Turns

	mu        sync.Mutex
	phase     phase
	mail      deliveryqueue.Queue
	requests  []*list        // lists to compare, oldest first
	pages     []*pageRequest // of a source's inventory, oldest first
	requested bool           // a page was requested at some time
	end       *transport.Error
	holdback  holdback // for an OCM agent
	sync      syncState
	orphans   orphanReport
}

// ID, Scope and Conn implement [subscribers.Member].
func (s *subscription) ID() string         { return s.id }
func (s *subscription) Scope() store.Scope { return s.scope }
func (s *subscription) Conn() uint64       { return s.conn }

// newQueue returns an empty queue. The clusters of a source share one queue.
func newQueue(part codec.Subresource) deliveryqueue.Queue {
	if part == codec.Status {
		return deliveryqueue.Shared()
	}
	return deliveryqueue.Queue{}
}

// list is a client's list of the records that it has.
type list struct {
	versions []codec.ResourceVersion // of an agent
	hashes   []codec.StatusHash      // of a source
	cluster  string                  // of a source: the list is about this cluster only; "": about all clusters
	// timedOut is true if the client sent no list in time.
	timedOut bool
	// free must be called when the list is no longer needed.
	free func()
}

const (
	// maxRequests is the maximum number of waiting lists of a source, which sends them in chunks.
	maxRequests = 1024
	// maxPages is the maximum number of waiting page requests of one subscription.
	maxPages = 16
)

// on applies an event to the phase. The caller has the lock.
func (s *subscription) on(t phaseEvent) { s.phase = transitions[s.phase][t] }

// resume applies the event changed or unchanged: whether something changed since the client's cursor.
func (s *subscription) resume(t phaseEvent) { s.locked(func() { s.on(t) }) }

// complete records that the queue has the changes since the cursor, or the answer to a list that was just
// compared. l is nil or that list.
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

// post puts a change into the queue.
func (s *subscription) post(k deliveryqueue.Key, revision uint64, f deliveryqueue.Flags) {
	s.change(func() { s.mail.Post(s.intern(k), revision, f) })
}

// answer puts a record into the queue that the client lacks, according to its list or cursor.
func (s *subscription) answer(k deliveryqueue.Key, revision uint64, f deliveryqueue.Flags) {
	s.change(func() { s.mail.Answer(s.intern(k), revision, f) })
}

// discard removes the entry of a removed record.
func (s *subscription) discard(k deliveryqueue.Key) {
	s.change(func() { s.mail.Remove(k) })
	if s.part == codec.Spec && s.hello.Protocol > 0 {
		s.recheck() // the set of works that the agent must hold has changed
	}
}

// change changes the queue, unless the subscription is closed.
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

// mailed returns the number of records in the queue.
func (s *subscription) mailed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mail.Len()
}

// intern replaces the cluster of a key with the equal string of the scope, so that keys share memory.
func (s *subscription) intern(k deliveryqueue.Key) deliveryqueue.Key {
	if s.scope.Cluster != "" {
		k.Cluster = s.scope.Cluster
	}
	return k
}

// request queues a list. It returns false if too many are queued, or the subscription is closed. An agent's
// list is complete, so it replaces a queued one.
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

// listTimeout queues an empty list for a client that sent none in time. The caller has the lock.
func (s *subscription) listTimeout() {
	s.requests = append(s.requests, &list{timedOut: true, free: func() {}})
	s.on(lists)
}

// requestPage queues a page request. It returns false if too many are queued, or the subscription is closed.
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

// compares reports whether the subscription is of a source that compares its works.
func (s *subscription) compares() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requested
}

// stop ends the stream with err. After it returns, events that the client publishes on the subscription are
// rejected.
func (s *subscription) stop(err *transport.Error) {
	s.intake.End(s.id)
	s.put(func() { s.end = cmp.Or(s.end, err) })
}

// leave frees the queued lists and pages and the orphan report when the stream ends.
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

// locked calls f under the lock; put does the same and wakes the stream.
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

// phase states whether the queue has everything that the client lacks:
//
//	┌────────────────┐ cursor, changed   ┌──────────┐ filled, a list waits ┌───────────┐
//	│ awaitingClient ├──────────────────►│ filling  ├─────────────────────►│ comparing │◄──┐
//	└─┬─────┬────────┘                   └────┬─────┘                      └─────┬─────┘   │ list
//	  │     │                          filled │      compared, no list waits     │         │
//	  │     │ cursor, unchanged          ┌────▼─────┐                            │         │
//	  │     └───────────────────────────►│ caughtUp │◄───────────────────────────┘         │
//	  │                                  └────┬─────┘                                      │
//	  │ list                                  └────────────────────────────────────────────┤
//	  └────────────────────────────────────────────────────────────────────────────────────┘
//	  comparing ── cursor, changed ──► filling: the list came first, and waits
//	  each      ── left ─────────────► closed
//
// Only in awaitingClient and caughtUp is the queue complete, so only then a checkpoint may be sent.
type phase uint8

const (
	// awaitingClient: the client gave no valid cursor and has not sent its list yet.
	awaitingClient phase = iota
	// filling: the changes since its cursor are not in the queue yet.
	filling
	// comparing: a list waits to be compared.
	comparing
	// caughtUp: everything that the client lacks is in the queue.
	caughtUp
	// closed: the stream has ended.
	closed
	phases // number of phases
)

// phaseEvent is an event that changes the phase.
type phaseEvent uint8

const (
	lists          phaseEvent = iota // a list arrived, or the client sent none in time
	changed                          // the client continues from a cursor, after which something changed
	unchanged                        // the client continues from a cursor, after which nothing changed
	done                             // filled or compared; no list waits
	more                             // filled or compared; a list waits
	left                             // the stream has ended
	numPhaseEvents                   // number of events
)

// transitions: phase × event → next phase. An event without an arrow in the picture changes nothing.
var transitions = [phases][numPhaseEvents]phase{
	awaitingClient: {lists: comparing, changed: filling, unchanged: caughtUp, done: awaitingClient, more: awaitingClient, left: closed},
	filling:        {lists: filling, changed: filling, unchanged: filling, done: caughtUp, more: comparing, left: closed},
	comparing:      {lists: comparing, changed: filling, unchanged: comparing, done: caughtUp, more: comparing, left: closed},
	caughtUp:       {lists: comparing, changed: caughtUp, unchanged: caughtUp, done: caughtUp, more: caughtUp, left: closed},
	closed:         {lists: closed, changed: closed, unchanged: closed, done: closed, more: closed, left: closed},
}

// idle reports whether the queue has everything that the client asked for.
func (p phase) idle() bool { return p == awaitingClient || p == caughtUp }
