package core

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/codec"
)

// cursor is how far the reports of the broker's stream are on the hub.
//
// A checkpoint says that everything before it was sent. Its cursor counts when
// every report taken before it is written, or dropped for good. A report that a
// newer one replaced counts as dropped: the newer one comes again after the
// cursor.
type cursor struct {
	f *workIndex
	// reached is the last one that counts. ackDue: the broker is to be told; ackAt
	// bounds how often.
	reached  codec.Cursor
	ackDue   bool
	ackAt    time.Time
	ackRetry retry

	// closed are the parts of the stream before checkpoints, oldest first, open
	// is what came after the last one.
	closed []segment
	open   segment

	// What keeps a checkpoint from being taken: clusters whose statuses are
	// still to be asked for (asks), lists that were sent on this subscription and
	// not answered before it, clusters that are to be released, whose reports
	// are ignored (releasing), and a refusal to be asked on subscription unheard.
	// deferred is the last one that had to wait.
	requests, releasing int
	lists               uint64
	unreported          int
	deferred            *codec.Checkpoint
}

// segment is a part of the stream.
type segment struct {
	cursor codec.Cursor // of the checkpoint that ended it
	number int          // counted from 1; a report is in the first that has its number, or a higher one
	held   int          // reports of it that are not dealt with
}

// maxSegments bounds how many checkpoints wait for reports to be written.
const maxSegments = 64

// ackEvery is how often the broker is told of a new cursor.
const ackEvery = time.Second

func newCursor(f *workIndex, saved string) *cursor {
	c := &cursor{f: f, open: segment{number: 1}}
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

// hold keeps the cursor back until letGo of the number that it returns.
func (c *cursor) hold() (number int) {
	c.open.held++
	return c.open.number
}

// letGo ends that.
func (c *cursor) letGo(number int) {
	s := &c.open
	if i := slices.IndexFunc(c.closed, func(s segment) bool { return s.number >= number }); i >= 0 {
		s = &c.closed[i]
	}
	if s.held--; s.held == 0 {
		c.advance()
	}
}

// checkpoint takes the word that everything up to a cursor has been sent.
func (c *cursor) checkpoint(cp codec.Checkpoint) {
	if c.f.connected && c.unreported != c.f.sub {
		c.deferred = &cp
		c.resume()
	}
}

// resume takes the last checkpoint if nothing speaks against it. Reports that
// came after it are held as if they had come before.
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
	c.f.wakeAt(BrokerQueue, Key{}, c.ackAt)
	c.f.wake(HubQueue, Key{}, 0)
}

// holdBack takes back the checkpoints that wait for reports, because some of them
// are dropped and may be wanted again: until all that is asked for was answered
// the cursor stays where it is, so that they come again on the next subscription.
func (c *cursor) holdBack() {
	if n := len(c.closed); n > 0 && c.deferred == nil {
		c.deferred = &codec.Checkpoint{Cursor: c.closed[n-1].cursor, AnsweredStatusRequests: c.lists}
	}
	c.join()
}

// join makes one part of all that no cursor has passed.
func (c *cursor) join() {
	for _, old := range c.closed {
		c.open.held += old.held
	}
	c.closed = nil
}

// releases counts a cluster that is to be released, or no longer.
func (c *cursor) releases(more bool) { c.releasing += sign(more) }

// requesting counts a cluster whose statuses are to be asked for, or no longer.
func (c *cursor) requesting(more bool) { c.requests += sign(more) }

// listed takes it that lists were sent, or that nobody answers any.
func (c *cursor) listed(n int, refused bool) {
	if c.lists += uint64(max(n, 0)); refused {
		c.unreported = c.f.sub
	}
}

// nextAck decides about telling the broker how far its stream is on the hub.
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

// statusLists is what is to be asked for of the statuses of a cluster: those that
// may have been missed.
type statusLists struct {
	// all: those of all its works; left is what is left to be listed. attempt tells
	// an answer to an earlier attempt.
	all, requesting bool
	left            []types.UID
	attempt         int
	counted         bool // one of them is to be done
	retry           retry
}

// maxListed is the number of works in one [RequestStatuses].
const maxListed = resync.MaxHashes

// repeat begins anew with listing all works of the cluster, or with nothing.
func (s *statusLists) repeat(c *cursor, all bool) {
	s.all, s.left = all, nil
	s.attempt++
	s.count(c)
}

// add lists one work.
func (s *statusLists) add(c *cursor, uid types.UID) {
	if !s.all {
		s.left = append(s.left, uid)
		s.count(c)
	}
}

// count keeps the number of clusters whose statuses are still to be asked for.
func (s *statusLists) count(c *cursor) {
	if open := s.all || s.requesting || len(s.left) > 0; open != s.counted {
		s.counted = open
		c.requesting(open)
	}
}

// subscribe begins anew with a subscription. What was to be listed still is.
func (s *statusLists) subscribe(c *cursor, all bool) {
	s.requesting = false
	s.retry.reset()
	if all {
		s.all, s.left = true, nil
	}
	s.attempt++
	s.count(c)
}

// listed lets go of the first n that were to be listed.
func (s *statusLists) listed(n int) {
	if s.left = s.left[n:]; len(s.left) == 0 {
		s.left = nil
	}
}

// request lists one work. What there was before the first subscription is listed there,
// if it has to be.
func (c *cursor) request(w *work) {
	if c.f.begun && w.cl.selected {
		w.cl.lists.add(c, w.uid)
		c.f.wakeCluster(BrokerQueue, w.cl)
	}
}

// nextStatusRequest decides about the statuses of a cluster that may have been missed.
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
		if len(held) == 0 { // they left since
			l.listed(n)
			continue
		}
		if !s.f.due(BrokerQueue, cl.key(), &l.retry) {
			return nil
		}
		l.requesting = true
		attempt := l.attempt
		return s.f.ofCluster(cl, RequestStatuses{Cluster: cl.name, Held: held, Stamp: s.f.stamp(cl), Limit: s.f.limit}, func(r Result) { s.doneStatusRequest(cl, n, attempt == l.attempt, r) })
	}
	return nil
}

// heldOf returns what the hub holds of the statuses of works.
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
			h = StatusRef{UID: uid, Hash: "none"} // also what the hub shows is news: it ends what Delivered says
		}
		held = append(held, h)
	}
	return held
}

// doneStatusRequest takes what came of asking for n works of a list; wanted: it still is.
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
	default: // until the next subscription
		l.left, refused = nil, true
	}
	s.cursor.listed(r.Sent, refused)
	l.count(s.cursor)
	s.cursor.resume()
	s.f.wakeCluster(BrokerQueue, cl)
	s.compare.tidy(cl)
}
