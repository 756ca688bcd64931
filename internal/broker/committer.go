package broker

import (
	"context"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Bounds of one commit: enough to make a sync cheap per publish, small enough
// to be written within a few milliseconds.
const (
	commitOps   = 1024
	commitBytes = 2 << 20
	// jobOps is how many of its writes a long job gives to one commit, so that
	// publishes get their turn between them.
	jobOps = 256
	// entryBytes is what a queued publish takes besides its event.
	entryBytes = 1 << 10
)

// committer turns publishes that arrive together into one commit. There is no
// waiting timer: whatever arrived while one commit was written makes up the
// next one.
type committer struct {
	store   store.Store
	queue   *queue
	metrics *metrics
	now     func() time.Time
	// onResult hears how each commit went, before its callers do.
	onResult func(error)

	batch []*pending // of step, kept for its memory
	ops   []store.Op
	// pace is how long the last commit took, for the delays that are advised;
	// owned by queue.mu.
	pace time.Duration
}

func newCommitter(cfg Config, onResult func(error)) *committer {
	return &committer{
		store: cfg.Store, queue: newQueue(cfg.QueueBytes), now: cfg.Now, onResult: onResult,
	}
}

// commit queues ops of from and returns their outcomes once they are on disk.
// When ctx ends first, they may still be committed.
func (c *committer) commit(ctx context.Context, from identity.Identity, ops ...store.Op) ([]store.Outcome, error) {
	return c.commitUnless(ctx, from, nil, ops...)
}

// commitUnless is commit, unless void gives a reason at the moment of queueing;
// then nothing is written. Nor is it when ctx has ended before.
func (c *committer) commitUnless(ctx context.Context, from identity.Identity, void func() *transport.Error, ops ...store.Op) ([]store.Outcome, error) {
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
		return nil, overloaded("the broker has too much to write", c.delay())
	}
	select {
	case a := <-p.done:
		return a.outcomes, a.err
	case <-ctx.Done():
		return nil, callerGone(ctx)
	}
}

// delay is when somebody who found the queue full should try again: it holds
// several commits' worth.
func (c *committer) delay() time.Duration {
	c.queue.mu.Lock()
	defer c.queue.mu.Unlock()
	return min(max(8*c.pace, 50*time.Millisecond), 5*time.Second)
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

// finish takes nothing more, and commits what was taken.
func (c *committer) finish() {
	c.queue.close()
	for c.step() {
	}
}

// step makes one commit of what is queued; false: nothing was.
func (c *committer) step() bool {
	c.batch = c.queue.take(c.batch[:0], commitOps, commitBytes)
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
	took := c.now().Sub(start)
	c.metrics.committed(len(c.ops), took, err)
	c.onResult(err)
	done := 0
	for _, p := range c.batch {
		a := answer{err: err}
		if err == nil {
			a.outcomes = outcomes[done : done+len(p.ops) : done+len(p.ops)]
			done += len(p.ops)
		}
		p.done <- a
	}
	c.queue.release(c.batch)
	clear(c.batch)
	clear(c.ops)
	c.queue.mu.Lock()
	c.pace = took
	c.queue.mu.Unlock()
	return true
}
