package intake

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hawser-io/hawser/internal/broker/call"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
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
	store   store.Store
	queue   *queue
	metrics *metrics
	log     *slog.Logger
	now     func() time.Time

	batch []*pending // of step, kept for its memory
	ops   []store.Op
	// pace is how long the last commit took, for the delays that are advised.
	pace atomic.Int64
	// failure is the error of the last commit, nil while commits succeed.
	failure atomic.Pointer[error]
}

func newCommitter(cfg Config, q *queue, m *metrics) *committer {
	return &committer{store: cfg.Store, queue: q, metrics: m, log: cfg.Log, now: cfg.Now}
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
	p := &pending{from: from, size: entryBytes * len(ops), void: void, done: make(chan answer, 1)}
	if len(ops) == 1 {
		p.one[0] = ops[0]
		p.ops = p.one[:]
	} else {
		p.ops = ops
	}
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
	start := c.now()
	// Callers come and go; what is written together is written to the end.
	outcomes, err := c.store.Commit(context.Background(), c.ops)
	c.result(c.now().Sub(start), err)
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
	c.log.Error("commit failed", "error", err)
	c.failure.Store(&err)
}
