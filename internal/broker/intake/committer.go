package intake

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/call"
	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Bounds of one commit: enough to make a sync cheap per publish, small enough to be written
// within a few milliseconds.
const (
	commitOps   = 1024
	commitBytes = 2 << 20
	// partOps is how many of its writes a long list gives to one commit.
	partOps = 256
	// entryBytes is what a queued publish takes besides its event.
	entryBytes = 1 << 10
)

// committer turns publishes that arrive together into one commit. There is no waiting
// timer: whatever arrived while one commit was written makes up the next one.
type committer struct {
	cfg     *call.Config
	queue   *queue
	metrics *metrics

	batch []*pending // of step, kept for its memory
	ops   []store.Op
	// pace is how long the last commit took, for the delays that are advised.
	pace atomic.Int64
	// failure is the error of the last commit, nil while commits succeed.
	failure atomic.Pointer[error]
}

// commit queues ops of from and returns their outcomes once they are on disk. When ctx ends
// first, they may still be committed, but not if it ended before they were queued. Nothing
// is written either if void gives a reason at the moment of queueing.
func (c *committer) commit(ctx context.Context, from identity.Identity, void func() *transport.Error, ops ...store.Op) (all []store.Outcome, err error) {
	if len(ops) <= partOps {
		return c.commitPart(ctx, from, void, ops)
	}
	for part := range slices.Chunk(ops, partOps) {
		outcomes, err := c.commitPart(ctx, from, void, part)
		if err != nil {
			return all, err
		}
		all = append(all, outcomes...)
	}
	return all, nil
}

func (c *committer) commitPart(ctx context.Context, from identity.Identity, void func() *transport.Error, ops []store.Op) ([]store.Outcome, error) {
	if err := c.room(ops); err != nil {
		return nil, call.Store(err)
	}
	p := &pending{from: from, ops: ops, size: entryBytes * len(ops), void: void, done: make(chan answer, 1)}
	for i := range ops {
		p.size += len(ops[i].Event)
	}
	ok, err := c.queue.put(ctx, p)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, call.Overloaded("the broker has too much to write", c.delay())
	}
	select {
	case a := <-p.done:
		return a.outcomes, a.err
	case <-ctx.Done():
		return nil, call.CallerGone(ctx)
	}
}

// room says why the store has none for ops.
func (c *committer) room(ops []store.Op) error {
	err := c.cfg.Store.Err()
	stays := func(op store.Op) bool { return !op.MakesRoom() }
	if errors.Is(err, store.ErrLow) && !slices.ContainsFunc(ops, stays) {
		return nil
	}
	return err
}

// delay is when somebody who found the queue full should try again: it holds several
// commits' worth.
func (c *committer) delay() time.Duration {
	return min(max(8*time.Duration(c.pace.Load()), 50*time.Millisecond), 5*time.Second)
}

// failed returns the error of the last commit.
func (c *committer) failed() error {
	if err := c.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// run commits until ctx ends, then what is still queued.
func (c *committer) run(ctx context.Context) error {
	for {
		for c.step() {
		}
		select {
		case <-c.queue.wake:
		case <-ctx.Done():
			c.finish()
			return nil
		}
	}
}

// finish lets nothing more in, and commits what is queued.
func (c *committer) finish() {
	c.queue.close()
	for c.step() {
	}
}

// step makes one commit of what is queued; false: nothing was.
func (c *committer) step() bool {
	c.batch = c.queue.pop(c.batch[:0], commitOps, commitBytes)
	if len(c.batch) == 0 {
		return false
	}
	c.ops = c.ops[:0]
	for _, p := range c.batch {
		c.ops = append(c.ops, p.ops...)
	}
	start := c.cfg.Now()
	// Callers come and go; what is written together is written to the end.
	outcomes, err := c.cfg.Store.Commit(context.Background(), c.ops)
	c.result(c.cfg.Now().Sub(start), err)
	written := 0
	for _, p := range c.batch {
		a := answer{err: err}
		if err == nil {
			a.outcomes = outcomes[written : written+len(p.ops) : written+len(p.ops)]
			written += len(p.ops)
		}
		p.done <- a
	}
	c.queue.free(c.batch)
	clear(c.batch)
	clear(c.ops)
	return true
}

// result notes how a commit went, before its callers hear of it.
func (c *committer) result(took time.Duration, err error) {
	c.metrics.committed(len(c.ops), took, err)
	c.pace.Store(int64(took))
	if err == nil {
		c.failure.Store(nil)
		return
	}
	if errors.Is(err, store.ErrNoRoom) { // which the store tells, until there is
		return
	}
	c.cfg.Log.Error("commit failed", "error", err)
	c.failure.Store(&err)
}

// pending is one publish that waits for its commit.
type pending struct {
	from identity.Identity
	ops  []store.Op // mostly one
	size int        // bytes it counts for
	// void, if set, says why it counts no longer when it is queued, nil if it does.
	void func() *transport.Error
	// done receives once, when the commit is over; nobody has to listen.
	done chan answer
}

type answer struct {
	outcomes []store.Outcome // one per op
	err      error
}

// queue holds what waits for a commit: one line per party, which have their turns, so that
// whoever publishes a lot waits for itself. It is bounded by its budget.
type queue struct {
	budget *call.Budget

	mu     sync.Mutex
	lines  map[identity.Identity]*line
	turn   []*line // those that are not empty, next one first
	closed bool
	// wake holds a token when something was put since the last look.
	wake chan struct{}
}

type line struct {
	from    identity.Identity
	waiting []*pending
}

func newQueue(bytes int) *queue {
	return &queue{budget: call.NewBudget(bytes), lines: map[identity.Identity]*line{}, wake: make(chan struct{}, 1)}
}

// put adds p. false: there is no room. It returns [call.CallerGone] when ctx has ended:
// whoever gave up may have put something newer since. After close it returns
// [call.GoingAway], and of what no longer counts the reason.
func (q *queue) put(ctx context.Context, p *pending) (bool, error) {
	if !q.budget.Reserve(p.from, p.size) {
		return false, nil
	}
	if refused := q.add(ctx, p); refused != nil {
		q.budget.Free(p.from, p.size)
		return false, refused
	}
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return true, nil
}

func (q *queue) add(ctx context.Context, p *pending) *transport.Error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return call.CallerGone(ctx)
	case q.closed:
		return call.GoingAway()
	case p.void != nil:
		if refused := p.void(); refused != nil {
			return refused
		}
	}
	l := q.lines[p.from]
	if l == nil {
		l = &line{from: p.from}
		q.lines[p.from] = l
		q.turn = append(q.turn, l)
	}
	l.waiting = append(l.waiting, p)
	return nil
}

// pop appends to batch what goes into the next commit: one publish of every line in turn,
// until ops or bytes are reached. At least one is popped, if there is one.
func (q *queue) pop(batch []*pending, ops, bytes int) []*pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.turn) > 0 && ops > 0 && bytes > 0 {
		l := q.turn[0]
		p := l.waiting[0]
		batch = append(batch, p)
		ops -= len(p.ops)
		bytes -= p.size
		l.waiting[0] = nil
		l.waiting = l.waiting[1:]
		q.turn = q.turn[1:]
		if len(l.waiting) > 0 {
			q.turn = append(q.turn, l)
		} else {
			delete(q.lines, l.from)
		}
	}
	return batch
}

// free gives the room of a batch back, once it is answered.
func (q *queue) free(batch []*pending) {
	for _, p := range batch {
		q.budget.Free(p.from, p.size)
	}
}

// close refuses what comes from now on. What is in the queue stays.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

// metrics are listed, with their meaning, in docs/metrics.md.
type metrics struct {
	commitDuration                           prometheus.Observer
	commitOperations                         prometheus.Histogram
	commitFailures, graveRemoved, graveAcked prometheus.Counter
	graves                                   prometheus.Gauge
	overQuota                                *prometheus.CounterVec
}

func newMetrics(m telemetry.Meter) *metrics {
	return &metrics{
		commitDuration:   m.Seconds("commit_duration_seconds", "Time of one commit, sync included.").WithLabelValues(),
		commitOperations: m.Sizes("commit_operations", "Operations written by one commit."),
		commitFailures:   m.Counter("commit_failures_total", "Commits that failed; nothing of them was acknowledged."),
		graveRemoved:     m.Counter("graves_removed_total", "Graves removed after their retention."),
		graveAcked:       m.Counter("graves_acknowledged_total", "Graves removed because their source has seen them."),
		overQuota:        m.Counters("over_quota_total", "Specs and statuses refused because of a quota, by whose it is and what it bounds.", "of", "what"),
		graves:           m.Gauge("graves", "Confirmed deletions kept for their sources, at the last sweep."),
	}
}

// refused counts what was over a quota, if it was.
func (m *metrics) refused(x quota.Excess) {
	if x != (quota.Excess{}) {
		m.overQuota.WithLabelValues(string(x.Of), string(x.What)).Inc()
	}
}

func (m *metrics) committed(ops int, took time.Duration, err error) {
	m.commitDuration.Observe(took.Seconds())
	m.commitOperations.Observe(float64(ops))
	if err != nil {
		m.commitFailures.Inc()
	}
}
