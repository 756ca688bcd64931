package feed

import (
	"time"

	"github.com/hawser-io/hawser/internal/broker/route"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// step is what a stream does next.
type step struct {
	kind    stepKind
	entry   route.Entry
	list    *list
	page    *pageRequest
	chunk   []codec.StatusHash
	mark    mark
	resolve codec.Resolve
	err     *transport.Error
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
	force                      // look once more at the works of which the agent has newer versions
	ask                        // ask the agent for the statuses of step.chunk
	deliver                    // send what step.entry stands for
	checkpoint                 // send step.mark
	resolve                    // send step.resolve
)

// reads reports whether the step needs one of the slots for comparing.
func (st *step) reads() bool {
	return st.kind == fill || st.kind == compare || st.kind == inventory
}

// agenda is what a stream has to do besides what its subscription has for it.
type agenda struct {
	nextBeat, graceEnd time.Time
	// calm is the time before which no further comparison is made.
	calm time.Time
	// hashes is what is still to be asked of an agent, in chunks.
	hashes [][]codec.StatusHash
	// asking alternates between mailbox and what else is to be sent.
	asking bool
}

// start sets the clock of a stream.
func (a *agenda) start(now time.Time, heartbeat, grace time.Duration) {
	a.nextBeat, a.graceEnd = now.Add(heartbeat), now.Add(grace)
}

// calmFactor is how many times as long as a comparison took the stream then makes none, so
// that whoever keeps asking does not occupy a processor.
const calmFactor = 9

// calmDown lets no comparison be made for a while after one that ended now.
func (a *agenda) calmDown(now time.Time, took time.Duration) { a.calm = now.Add(calmFactor * took) }

// askFor replaces what is to be asked of an agent.
func (a *agenda) askFor(chunks [][]codec.StatusHash) { a.hashes = chunks }

// next says what the stream does next at the time now. mayCompare: what reads much may be
// done at this moment. position is that of the registry before the call. A heartbeat that is
// due comes before everything that could delay it.
func (t *stream) next(now time.Time, mayCompare bool, position uint64) step {
	s := t.sub
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		return step{kind: finish, err: s.end}
	}
	if !now.Before(t.nextBeat) {
		t.nextBeat = now.Add(t.cfg.Heartbeat)
		s.rests.prune(now)
		return step{kind: beat}
	}
	if len(s.applied.orders) > 0 {
		return step{kind: resolve, resolve: pop(&s.applied.orders)}
	}
	s.giveBack(s.rests.due(now))
	if s.phase == unasked && !now.Before(t.graceEnd) {
		s.silence()
	}
	if st, ok := t.nextRead(now, mayCompare); ok {
		return st
	}
	if st, ok := t.nextSent(now, position); ok {
		return st
	}
	return step{kind: idle, until: t.until(now, position)}
}

// nextRead is the next step that reads much.
func (t *stream) nextRead(now time.Time, mayCompare bool) (st step, ok bool) {
	s := t.sub
	switch {
	case !mayCompare || !t.hasToRead(now):
		return st, false
	case s.phase == filling:
		return step{kind: fill}, true
	case len(s.requests) > 0:
		return step{kind: compare, list: pop(&s.requests)}, true
	case t.turnToAsk():
		return step{kind: inventory, page: pop(&s.pages)}, true
	}
	return st, false
}

// turnToAsk reports whether it is not the mailbox's turn, and gives it the next one then.
func (t *stream) turnToAsk() bool {
	mine := t.asking || t.sub.mail.Len() == 0
	if mine {
		t.asking = false
	}
	return mine
}

// hasToRead reports whether a step that reads much is due.
func (t *stream) hasToRead(now time.Time) bool {
	return (t.sub.phase == filling || len(t.sub.requests)+len(t.sub.pages) > 0) && !now.Before(t.calm)
}

// wantsToCompare reports whether a step that reads much is due but for next's mayCompare.
func (t *stream) wantsToCompare(now time.Time) bool {
	t.sub.mu.Lock()
	defer t.sub.mu.Unlock()
	return t.hasToRead(now)
}

// nextSent is the next step that sends, or prepares to.
func (t *stream) nextSent(now time.Time, position uint64) (st step, ok bool) {
	s := t.sub
	if s.sync.rechecks() {
		return step{kind: force}, true
	}
	if m, ok := s.partialMark(now, position); ok {
		return step{kind: checkpoint, mark: m}, true
	}
	if len(t.hashes) > 0 && t.turnToAsk() {
		return step{kind: ask, chunk: pop(&t.hashes)}, true
	}
	if e, ok := s.pop(); ok {
		t.asking = true
		s.sync.progress.Touch()
		return step{kind: deliver, entry: e}, true
	}
	if m, ok := s.completeMark(now, position); ok {
		return step{kind: checkpoint, mark: m}, true
	}
	return st, false
}

// until returns when next has to be asked anew although nothing was put.
func (t *stream) until(now time.Time, position uint64) time.Time {
	s := t.sub
	first := t.nextBeat
	earlier := func(u time.Time) {
		if u.Before(first) {
			first = u
		}
	}
	if s.phase == unasked {
		earlier(t.graceEnd)
	}
	if len(s.requests)+len(s.pages) > 0 && now.Before(t.calm) {
		earlier(t.calm)
	}
	if len(s.rests.later) > 0 {
		earlier(s.rests.look)
	}
	if u, ok := s.sync.progress.Until(position); ok && s.phase.idle() {
		earlier(u)
	}
	return first
}
