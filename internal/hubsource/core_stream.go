package hubsource

import (
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// stream is how far the reports of the broker's stream are on the hub.
//
// A checkpoint says that everything before it was sent. Its cursor counts when
// every report taken before it is written, or dropped for good. A report that a
// newer one replaced counts as dropped: the newer one comes again after the
// cursor.
type stream struct {
	// cursor is the last one that counts. acked: the broker knows; ackAt bounds
	// how often it is told.
	cursor   codec.Cursor
	ackDue   bool
	ackAt    time.Time
	ackRetry retry

	// closed are the parts of the stream before checkpoints, oldest first, open
	// is what came after the last one.
	closed []*segment
	open   *segment

	// What keeps a checkpoint from being taken: clusters whose statuses are
	// still to be asked for (asks), lists that were sent on this connection and
	// not answered before it, clusters that are to be released, whose reports
	// are ignored, and a refusal to be asked on connection unheard. deferred is
	// the last one that had to wait.
	asks, releases int
	lists          uint64
	unheard        int
	deferred       *codec.Checkpoint
}

// segment is a part of the stream.
type segment struct {
	cursor codec.Cursor // of the checkpoint that ended it
	held   int          // reports of it that are not dealt with
	into   *segment     // it was joined with
}

// maxSegments bounds how many checkpoints wait for reports to be written.
const maxSegments = 64

// ackEvery is how often the broker is told of a new cursor.
const ackEvery = time.Second

// beginStream starts anew with a connection. Checkpoints of the one before are
// no longer good for anything: the broker's store may be another one.
func (c *Core) beginStream() {
	s := &c.stream
	s.joinClosed()
	s.deferred, s.lists, s.ackDue, s.ackRetry = nil, 0, false, retry{}
	if c.asks {
		s.cursor = codec.Cursor{} // the broker does not know it
	}
}

func (s *segment) join(other *segment) {
	other.held += s.held
	s.held, s.into = 0, other
}

// hold keeps the cursor back until the work's report is dealt with.
func (c *Core) hold(w *work) {
	c.release(w)
	w.report.held = c.stream.open
	w.report.held.held++
}

// letGo ends that.
func (c *Core) letGo(w *work) {
	if c.release(w) {
		c.advance()
	}
}

func (c *Core) release(w *work) bool {
	s := w.report.held
	if s == nil {
		return false
	}
	for s.into != nil {
		s = s.into
	}
	w.report.held = nil
	s.held--
	return s.held == 0
}

// Checkpoint takes the word that everything up to a cursor has been sent.
func (c *Core) Checkpoint(cp codec.Checkpoint) {
	if c.cfg.NewID == nil || !c.connected || c.stream.unheard == c.conn {
		return
	}
	c.stream.deferred = &cp
	c.resumeCheckpoint()
}

// resumeCheckpoint takes the last checkpoint if nothing speaks against it.
// Reports that came after it are held as if they had come before.
func (c *Core) resumeCheckpoint() {
	s := &c.stream
	cp := s.deferred
	if cp == nil || !c.connected || s.asks > 0 || s.releases > 0 || cp.AnsweredLists < s.lists {
		return
	}
	if d := c.keep.calm.Sub(c.cfg.Now()); d > 0 {
		c.cfg.Waker.Wake(SpecLane, Key{}, d)
		return
	}
	s.deferred = nil
	ended := s.open
	ended.cursor = cp.Cursor
	s.open = &segment{}
	if n := len(s.closed); n == maxSegments {
		ended.join(s.closed[n-1])
		s.closed[n-1].cursor = cp.Cursor
	} else {
		s.closed = append(s.closed, ended)
	}
	c.advance()
}

// advance moves the cursor on.
func (c *Core) advance() {
	s := &c.stream
	moved := false
	for len(s.closed) > 0 && s.closed[0].held == 0 {
		s.cursor, moved = s.closed[0].cursor, true
		s.closed = s.closed[1:]
	}
	if !moved {
		return
	}
	if len(s.closed) == 0 {
		s.closed = nil
	}
	s.ackDue = true
	c.cfg.Waker.Wake(SpecLane, Key{}, max(0, s.ackAt.Sub(c.cfg.Now())))
	c.cfg.Waker.Wake(HubLane, Key{}, max(0, c.keep.savedAt.Add(saveEvery).Sub(c.cfg.Now())))
}

// loseCursor starts the stream over: what was written to the hub is there no
// more. A checkpoint that has to wait counts if all that is asked for now was
// answered before it.
func (c *Core) loseCursor() {
	s := &c.stream
	s.joinClosed()
	s.cursor, s.ackDue = codec.Cursor{}, false
}

// holdBack takes back the checkpoints that wait for reports, because some of them
// are dropped and may be wanted again: until all that is asked for was answered
// the cursor stays where it is, so that they come again on the next connection.
func (c *Core) holdBack() {
	s := &c.stream
	if n := len(s.closed); n > 0 && s.deferred == nil {
		s.deferred = &codec.Checkpoint{Cursor: s.closed[n-1].cursor, AnsweredLists: s.lists}
	}
	s.joinClosed()
}

// joinClosed makes one part of all that no cursor has passed.
func (s *stream) joinClosed() {
	for _, old := range s.closed {
		old.join(s.open)
	}
	s.closed = nil
}

// nextAck decides about telling the broker how far its stream is on the hub.
func (c *Core) nextAck() Effect {
	s := &c.stream
	c.resumeCheckpoint()
	if !s.ackDue || !c.connected {
		return nil
	}
	if d := s.ackAt.Sub(c.cfg.Now()); d > 0 {
		c.cfg.Waker.Wake(SpecLane, Key{}, d)
		return nil
	}
	if !c.due(SpecLane, Key{}, &s.ackRetry) {
		return nil
	}
	return SendAck{Cursor: s.cursor, conn: c.conn}
}

func (c *Core) doneSendAck(e SendAck, r Result) {
	s := &c.stream
	if e.conn != c.conn {
		return
	}
	if r.Err != nil && transport.Retryable(r.Err) {
		c.brokerFailed(Key{}, &s.ackRetry, r.Err)
		return
	}
	s.ackAt, s.ackRetry = c.cfg.Now().Add(ackEvery), retry{}
	s.ackDue = s.ackDue && s.cursor != e.Cursor
	c.cfg.Waker.Wake(SpecLane, Key{}, ackEvery)
}
