package broker

import (
	"math"
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
	// serial orders subscriptions by the time they were added.
	serial uint64
	since  time.Time
	// cursor is where it continues from; nil: it says what it holds.
	cursor *codec.Cursor

	// wake holds a token when something was put since the last look.
	wake chan struct{}

	mu       sync.Mutex
	mail     route.Mailbox
	mailed   func(delta int) // told how the number of keys changes
	requests []*list         // lists to compare with, oldest first
	asked    bool            // a list came, or the grace is over, or there is a cursor
	filling  bool            // what changed since the cursor is not in the mailbox yet
	pages    []*pageRequest  // of a source's inventory, oldest first
	released bool
	rests    rests // of a stock agent
	end      *transport.Error
	order    order // of what a source says
	// resolves are what operators want of the agent, oldest first.
	resolves []codec.Resolve
	sync     syncState

	// The rest belongs to the stream's goroutine.

	nextBeat time.Time
	graceEnd time.Time
	// calm is the time before which no further comparison is made.
	calm time.Time
	// hashes is what is still to be asked of an agent, in chunks.
	hashes [][]codec.StatusHash
	// answered is the highest spec revision that the last comparison of a list
	// saw; notCompared before the first one.
	answered uint64
	// deleted are the deletions that were sent to a stock agent, with the
	// revisions of their specs, until the router is past the last comparison.
	deleted map[string]uint64
	// early are the works of which a stock agent was sent a spec before the first
	// comparison, until the router is past that.
	early map[string]bool
	// asking alternates between mailbox and what else is to be sent.
	asking bool
	// overruled are the versions that the agent listed of works that it is sent
	// although it holds a newer version, until they were sent.
	overruled map[string]int64
}

const notCompared = math.MaxUint64

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
	page  *pageRequest
	chunk []codec.StatusHash
	mark  mark
	err   *transport.Error
	// resolve is what an operator wants of the agent.
	resolve codec.Resolve
	until   time.Time
}

type stepKind uint8

const (
	idle       stepKind = iota // wait until something is put or until step.until
	finish                     // the stream ends with step.err
	beat                       // send a heartbeat
	fill                       // put what changed since the cursor into the mailbox
	compare                    // compare step.list
	inventory                  // answer step.page
	overrule                   // look again at the works that the agent has newer
	ask                        // ask the agent for the statuses of step.chunk
	deliver                    // send what step.entry stands for
	checkpoint                 // send step.mark
	resolve                    // send step.resolve
)

// reads reports whether the step needs one of the slots for comparing.
func (st *step) reads() bool {
	return st.kind == fill || st.kind == compare || st.kind == inventory
}

// next says what the stream does next at the time now. mayCompare: what reads
// much may be done at this moment. position is that of the hub before the call.
// A heartbeat that is due comes before everything that could hold it up.
func (s *subscription) next(now time.Time, heartbeat time.Duration, mayCompare bool, position uint64) step {
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
	if len(s.resolves) > 0 {
		first := s.resolves[0]
		s.resolves = s.resolves[1:]
		return step{kind: resolve, resolve: first}
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
	if st, ok := s.nextRead(now, mayCompare); ok {
		return st
	}
	if st, ok := s.nextSent(now, position); ok {
		return st
	}
	return step{kind: idle, until: s.until(now, position)}
}

// nextRead is the next step that reads much.
func (s *subscription) nextRead(now time.Time, mayCompare bool) (st step, ok bool) {
	switch {
	case !mayCompare || !s.hasToRead(now):
		return st, false
	case s.filling:
		s.filling = false
		return step{kind: fill}, true
	case len(s.requests) > 0:
		l := s.requests[0]
		s.requests[0] = nil
		s.requests = s.requests[1:]
		return step{kind: compare, list: l}, true
	case s.asking || s.mail.Len() == 0:
		p := s.pages[0]
		s.pages[0] = nil
		s.pages = s.pages[1:]
		s.asking = false
		return step{kind: inventory, page: p}, true
	}
	return st, false
}

// hasToRead reports whether a step that reads much is due.
func (s *subscription) hasToRead(now time.Time) bool {
	return (s.filling || len(s.requests) > 0 || len(s.pages) > 0) && !now.Before(s.calm)
}

// nextSent is the next step that sends, or prepares to.
func (s *subscription) nextSent(now time.Time, position uint64) (st step, ok bool) {
	if s.sync.recheck {
		s.sync.recheck = false
		if len(s.sync.ahead) > 0 {
			return step{kind: overrule}, true
		}
	}
	if m, ok := s.partialMark(now, position); ok {
		return step{kind: checkpoint, mark: m}, true
	}
	if len(s.hashes) > 0 && (s.asking || s.mail.Len() == 0) {
		chunk := s.hashes[0]
		s.hashes[0] = nil
		s.hashes = s.hashes[1:]
		s.asking = false
		return step{kind: ask, chunk: chunk}, true
	}
	if e, ok := s.mail.Next(); ok {
		s.mailed(-1)
		s.asking = true
		s.sync.progress.Touch()
		return step{kind: deliver, entry: e}, true
	}
	if m, ok := s.completeMark(now, position); ok {
		return step{kind: checkpoint, mark: m}, true
	}
	return st, false
}

// until returns when next has to be asked again although nothing was put.
func (s *subscription) until(now time.Time, position uint64) time.Time {
	t := s.nextBeat
	earlier := func(u time.Time) {
		if u.Before(t) {
			t = u
		}
	}
	if !s.asked {
		earlier(s.graceEnd)
	}
	if len(s.requests)+len(s.pages) > 0 && now.Before(s.calm) {
		earlier(s.calm)
	}
	if len(s.rests.later) > 0 {
		earlier(s.rests.look)
	}
	if u, ok := s.sync.progress.Until(position); ok && s.settled() {
		earlier(u)
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

// wantsToCompare reports whether a step that reads much is due but for next's
// mayCompare.
func (s *subscription) wantsToCompare(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hasToRead(now)
}

// post puts a change into the mailbox.
func (s *subscription) post(k route.Key, revision uint64, f route.Flags) {
	s.change(func() {
		s.mail.Post(s.intern(k), revision, f)
		s.sync.explain(k.ResourceID)
	})
}

// answer puts a record into the mailbox that a list lacks, or a cursor.
func (s *subscription) answer(k route.Key, revision uint64, f route.Flags) {
	s.change(func() { s.mail.Answer(s.intern(k), revision, f) })
}

// discard takes a record out that is no more.
func (s *subscription) discard(k route.Key) {
	s.change(func() { s.mail.Remove(k) })
	if s.part == codec.Spec && s.hello.Protocol > 0 {
		s.recheck() // what the agent should hold is something else now
	}
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
	for _, p := range s.pages {
		p.settle()
	}
	s.released, s.requests, s.pages = true, nil, nil
	s.mailed(-s.mail.Len())
	s.mail = route.Mailbox{}
	s.sync.keep(nil, nil)
}

func (s *subscription) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
