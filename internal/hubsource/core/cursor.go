package core

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/codec"
)

// cursor is the position in the broker's stream up to which all reports are on the hub.
//
// A checkpoint states that everything before it was sent. Its cursor is reached when every report before it is
// written, or dropped for good. A report that a newer one replaced counts as dropped: the newer one comes again
// after the cursor.
type cursor struct {
	f *workIndex
	// reached is the last reached cursor. ackDue: the broker does not know it yet; ackAt is the earliest time for
	// reached is the last reached cursor. ackDue: reached was not sent to the broker yet; ackAt is the earliest
	// time for the next ack.
	reached  codec.Cursor
	ackDue   bool
	ackAt    time.Time
	ackRetry retry

	// closed are the parts of the stream that ended with a checkpoint, oldest first. open is the part after the
	// last checkpoint.
	closed []segment
	open   segment

	// A checkpoint has to wait in four cases. requests counts the clusters whose statuses are still to be
	// requested. releasing counts the clusters to release, whose reports are ignored. lists counts the lists that
	// were sent on this subscription; the checkpoint must come after their answers. unreported is the subscription
	// on which a list was refused. deferred is the last checkpoint that had to wait.
	requests, releasing int
	lists               uint64
	unreported          int
	deferred            *codec.Checkpoint
}

// segment is a part of the stream.
type segment struct {
	cursor codec.Cursor // of the checkpoint that ended it
	number int          // from 1; a report belongs to the first segment with its number or a higher one
	held   int          // number of its unfinished reports
}

// maxSegments limits the checkpoints that wait for reports to be written.
const maxSegments = 64

// ackEvery is the shortest time between two acks.
const ackEvery = time.Second

func newCursor(f *workIndex, saved string) *cursor {
	c := &cursor{f: f, open: segment{number: 1}}
	if at, err := codec.ParseCursor(saved); err == nil {
		c.reached = at
	}
	return c
}

func (c *cursor) at() string { return c.reached.String() }

// subscribe resets the cursor for a new subscription. Checkpoints of the previous subscription are no longer
// valid, because the broker may have another store.
func (c *cursor) subscribe() {
	c.join()
	c.deferred, c.lists, c.ackDue = nil, 0, false
	c.ackRetry.reset()
	if c.f.lists {
		c.reached = codec.Cursor{} // the broker does not know the cursor
	}
}

func (c *cursor) disconnect() { c.deferred = nil }

// hold stops the cursor at the open segment until letGo is called with the returned number.
func (c *cursor) hold() (number int) {
	c.open.held++
	return c.open.number
}

// letGo ends one hold of a segment.
func (c *cursor) letGo(number int) {
	s := &c.open
	if i := slices.IndexFunc(c.closed, func(s segment) bool { return s.number >= number }); i >= 0 {
		s = &c.closed[i]
	}
	if s.held--; s.held == 0 {
		c.advance()
	}
}

// checkpoint handles a checkpoint of the broker.
func (c *cursor) checkpoint(cp codec.Checkpoint) {
	if c.f.connected && c.unreported != c.f.sub {
		c.deferred = &cp
		c.resume()
	}
}

// resume applies the last deferred checkpoint if it no longer has to wait. Reports that came after it are held
// as if they had come before.
func (c *cursor) resume() {
	cp := c.deferred
	if cp == nil || !c.f.connected || c.requests > 0 || c.releasing > 0 || cp.AnsweredStatusRequests < c.lists {
		return
	}
	ended := segment{cp.Cursor, c.open.number, c.open.held}
	c.deferred, c.open = nil, segment{number: ended.number + 1}
	if n := len(c.closed); n == maxSegments {
		ended.held += c.closed[n-1].held
		c.closed = c.closed[:n-1]
	}
	c.closed = append(c.closed, ended)
	c.advance()
}

// advance moves the cursor over all finished segments.
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
	c.f.wakeAt(BrokerQueue, Key{}, c.ackAt)
	c.f.wake(HubQueue, Key{}, 0)
}

// holdBack defers the checkpoints that wait for reports, because some of the reports are dropped and may be
// requested again. The cursor stops until all requests are answered. So the next subscription brings those
// reports again.
func (c *cursor) holdBack() {
	if n := len(c.closed); n > 0 && c.deferred == nil {
		c.deferred = &codec.Checkpoint{Cursor: c.closed[n-1].cursor, AnsweredStatusRequests: c.lists}
	}
	c.join()
}

// join merges all closed segments into the open one.
func (c *cursor) join() {
	for _, old := range c.closed {
		c.open.held += old.held
	}
	c.closed = nil
}

// releases counts one more cluster to release, or one less.
func (c *cursor) releases(more bool) { c.releasing += sign(more) }

// requesting counts one more cluster whose statuses are to be requested, or one less.
func (c *cursor) requesting(more bool) { c.requests += sign(more) }

// listed counts n lists as sent; refused: the broker refused a list.
func (c *cursor) listed(n int, refused bool) {
	if c.lists += uint64(max(n, 0)); refused {
		c.unreported = c.f.sub
	}
}

// nextAck decides whether to send the cursor to the broker.
func (c *cursor) nextAck() *todo {
	c.resume()
	if !c.ackDue || !c.f.connected || c.f.ocmBroker || c.f.until(BrokerQueue, Key{}, c.ackAt) || !c.f.due(BrokerQueue, Key{}, &c.ackRetry) {
		return nil
	}
	at := c.reached
	return &todo{SendAck{Cursor: at}, func(r Result) { c.doneSendAck(at, r) }}
}

func (c *cursor) doneSendAck(at codec.Cursor, r Result) {
	if c.f.brokerFailed(Key{}, &c.ackRetry, r.Err) {
		return
	}
	c.ackAt = c.f.Now().Add(ackEvery)
	c.ackRetry.reset()
	c.ackDue = c.ackDue && c.reached != at
	c.f.wake(BrokerQueue, Key{}, ackEvery)
}

// statusLists are the statuses of a cluster that may have been missed and are to be requested.
type statusLists struct {
	// all: the statuses of all works are requested. left are the works still to list. attempt counts the
	// requests, so that the answer to an earlier one is detected.
	all, requesting bool
	left            []types.UID
	attempt         int
	counted         bool // the cluster is counted in cursor.requests
	retry           retry
}

// maxListed is the number of works in one [RequestStatuses].
const maxListed = resync.MaxHashes

// repeat starts again with the list of all works of the cluster, or with an empty one.
func (s *statusLists) repeat(c *cursor, all bool) {
	s.all, s.left = all, nil
	s.attempt++
	s.count(c)
}

// add adds one work to the list.
func (s *statusLists) add(c *cursor, uid types.UID) {
	if !s.all {
		s.left = append(s.left, uid)
		s.count(c)
	}
}

// count updates the number of clusters whose statuses are to be requested.
func (s *statusLists) count(c *cursor) {
	if open := s.all || s.requesting || len(s.left) > 0; open != s.counted {
		s.counted = open
		c.requesting(open)
	}
}

// subscribe repeats a request in flight on the new subscription, and keeps the works still to list.
func (s *statusLists) subscribe(c *cursor, all bool) {
	s.requesting = false
	s.retry.reset()
	if all {
		s.all, s.left = true, nil
	}
	s.attempt++
	s.count(c)
}

// listed removes the first n works from the list.
func (s *statusLists) listed(n int) {
	if s.left = s.left[n:]; len(s.left) == 0 {
		s.left = nil
	}
}

// request lists one work. Before the first subscription it does nothing: that subscription lists all works if
// needed.
func (c *cursor) request(w *work) {
	if c.f.begun && w.cl.selected {
		w.cl.lists.add(c, w.uid)
		c.f.wakeCluster(BrokerQueue, w.cl)
	}
}

// nextStatusRequest decides the next request for statuses that may have been missed.
func (s *statuses) nextStatusRequest(cl *cluster) *todo {
	l := &cl.lists
	defer l.count(s.cursor)
	if l.requesting || !s.f.mayReport(cl) {
		return nil
	}
	if l.all {
		l.all, l.left = false, slices.Sorted(maps.Keys(cl.works))
	}
	for len(l.left) > 0 {
		n := min(maxListed, len(l.left))
		held := heldOf(cl, l.left[:n])
		if len(held) == 0 { // all of these works have left the hub
			l.listed(n)
			continue
		}
		if !s.f.due(BrokerQueue, cl.key(), &l.retry) {
			return nil
		}
		l.requesting = true
		attempt := l.attempt
		return s.f.ofCluster(cl, RequestStatuses{Cluster: cl.name, Statuses: held, Stamp: s.f.stamp(cl), Limit: s.f.limit}, func(r Result) { s.doneStatusRequest(cl, n, attempt == l.attempt, r) })
	}
	return nil
}

// heldOf returns references to the statuses that the hub holds.
func heldOf(cl *cluster, uids []types.UID) []StatusRef {
	var held []StatusRef
	for _, uid := range uids {
		w := cl.works[uid]
		if w == nil || w.hub.object == nil || w.hub.ended != alive {
			continue
		}
		h := StatusRef{UID: uid, Work: w.hub.object}
		if p := w.report.pending; p != nil && p.Hash != "" {
			h = StatusRef{UID: uid, Hash: p.Hash}
		} else if w.problems.status != nil {
			h = StatusRef{UID: uid, Hash: "none"} // request also the status that the hub shows: it clears the problem in Delivered
		}
		held = append(held, h)
	}
	return held
}

// doneStatusRequest handles the result of a request for n listed works; wanted: the request was not replaced.
func (s *statuses) doneStatusRequest(cl *cluster, n int, wanted bool, r Result) {
	l := &cl.lists
	l.requesting = false
	refused := false
	switch {
	case !wanted:
	case r.Err == nil:
		l.retry.reset()
		l.listed(n)
	case s.f.brokerFailed(cl.key(), &l.retry, r.Err):
	default: // no retry before the next subscription
		l.left, refused = nil, true
	}
	s.cursor.listed(r.Sent, refused)
	l.count(s.cursor)
	s.cursor.resume()
	s.f.wakeCluster(BrokerQueue, cl)
	s.compare.tidy(cl)
}
