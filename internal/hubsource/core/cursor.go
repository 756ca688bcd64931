package core

import (
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// cursor is how far the reports of the broker's stream are on the hub.
//
// A checkpoint says that everything before it was sent. Its cursor counts when
// every report taken before it is written, or dropped for good. A report that a
// newer one replaced counts as dropped: the newer one comes again after the
// cursor.
type cursor struct {
	f *fleet
	// reached is the last one that counts. ackDue: the broker is to be told; ackAt
	// bounds how often.
	reached  codec.Cursor
	ackDue   bool
	ackAt    time.Time
	ackRetry retry

	// closed are the parts of the stream before checkpoints, oldest first, open
	// is what came after the last one.
	closed []*segment
	open   *segment

	// What keeps a checkpoint from being taken: clusters whose statuses are
	// still to be asked for (asks), lists that were sent on this subscription and
	// not answered before it, clusters that are to be released, whose reports
	// are ignored (releasing), and a refusal to be asked on subscription unheard.
	// deferred is the last one that had to wait.
	asks, releasing int
	lists           uint64
	unheard         int
	deferred        *codec.Checkpoint
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

func newCursor(f *fleet, saved string) *cursor {
	c := &cursor{f: f, open: &segment{}}
	if at, err := codec.ParseCursor(saved); err == nil {
		c.reached = at
	}
	return c
}

func (c *cursor) at() string { return c.reached.String() }

// subscribe starts anew with a subscription. Checkpoints of the one before are
// no longer good for anything: the broker's store may be another one.
func (c *cursor) subscribe() {
	c.join()
	c.deferred, c.lists, c.ackDue = nil, 0, false
	c.ackRetry.reset()
	if c.f.lists {
		c.reached = codec.Cursor{} // the broker does not know it
	}
}

func (c *cursor) disconnect() { c.deferred = nil }

func (s *segment) join(other *segment) {
	other.held += s.held
	s.held, s.into = 0, other
}

// root is what has become of a segment.
func (s *segment) root() *segment {
	for s.into != nil {
		s = s.into
	}
	return s
}

// hold keeps the cursor back until letGo.
func (c *cursor) hold() *segment {
	c.open.held++
	return c.open
}

// letGo ends that.
func (c *cursor) letGo(s *segment) {
	s = s.root()
	if s.held--; s.held == 0 {
		c.advance()
	}
}

// checkpoint takes the word that everything up to a cursor has been sent.
func (c *cursor) checkpoint(cp codec.Checkpoint) {
	if c.f.connected && c.unheard != c.f.sub {
		c.deferred = &cp
		c.resume()
	}
}

// resume takes the last checkpoint if nothing speaks against it. Reports that
// came after it are held as if they had come before.
func (c *cursor) resume() {
	cp := c.deferred
	if cp == nil || !c.f.connected || c.asks > 0 || c.releasing > 0 || cp.AnsweredLists < c.lists {
		return
	}
	ended := c.open
	ended.cursor = cp.Cursor
	c.deferred, c.open = nil, &segment{}
	if n := len(c.closed); n == maxSegments {
		ended.join(c.closed[n-1])
		c.closed[n-1].cursor = cp.Cursor
	} else {
		c.closed = append(c.closed, ended)
	}
	c.advance()
}

// advance moves the cursor on.
func (c *cursor) advance() {
	moved := false
	for len(c.closed) > 0 && c.closed[0].held == 0 {
		c.reached, moved = c.closed[0].cursor, true
		c.closed = c.closed[1:]
	}
	if !moved {
		return
	}
	if len(c.closed) == 0 {
		c.closed = nil
	}
	c.ackDue = true
	c.f.wakeAt(SpecLane, Key{}, c.ackAt)
	c.f.wake(HubLane, Key{}, 0)
}

// holdBack takes back the checkpoints that wait for reports, because some of them
// are dropped and may be wanted again: until all that is asked for was answered
// the cursor stays where it is, so that they come again on the next subscription.
func (c *cursor) holdBack() {
	if n := len(c.closed); n > 0 && c.deferred == nil {
		c.deferred = &codec.Checkpoint{Cursor: c.closed[n-1].cursor, AnsweredLists: c.lists}
	}
	c.join()
}

// join makes one part of all that no cursor has passed.
func (c *cursor) join() {
	for _, old := range c.closed {
		old.join(c.open)
	}
	c.closed = nil
}

// releases counts a cluster that is to be released, or no longer.
func (c *cursor) releases(more bool) { c.releasing += sign(more) }

// asking counts a cluster whose statuses are to be asked for, or no longer.
func (c *cursor) asking(more bool) { c.asks += sign(more) }

// listed takes it that lists were sent, or that nobody answers any.
func (c *cursor) listed(n int, refused bool) {
	if c.lists += uint64(max(n, 0)); refused {
		c.unheard = c.f.sub
	}
}

// nextAck decides about telling the broker how far its stream is on the hub.
func (c *cursor) nextAck() *todo {
	c.resume()
	if !c.ackDue || !c.f.connected || c.f.stock || c.f.until(SpecLane, Key{}, c.ackAt) || !c.f.due(SpecLane, Key{}, &c.ackRetry) {
		return nil
	}
	at := c.reached
	return &todo{SendAck{Cursor: at}, func(r Result) { c.doneSendAck(at, r) }}
}

func (c *cursor) doneSendAck(at codec.Cursor, r Result) {
	if r.Err != nil && transport.Retryable(r.Err) {
		c.f.brokerFailed(Key{}, &c.ackRetry, r.Err)
		return
	}
	c.ackAt = c.f.Now().Add(ackEvery)
	c.ackRetry.reset()
	c.ackDue = c.ackDue && c.reached != at
	c.f.wake(SpecLane, Key{}, ackEvery)
}
