package ingest

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/bytebudget"
	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/transport"
)

// pending is one publish that waits for its commit.
type pending struct {
	from identity.Identity
	// cluster is the one that it is about, of a source: its clusters have shares of their own.
	cluster string
	ops     []store.Op // mostly one; none: it waits for what its party has queued
	size    int        // bytes it counts for
	// checkValid, if set, says why it counts no longer when it is queued, nil if it does.
	checkValid func() *transport.Error
	// number counts what its party has queued. One without ops waits for left of those up to it.
	number    uint64
	remaining int
	// done receives once, when the commit is over; nobody has to listen.
	done chan answer
}

type answer struct {
	outcomes []store.Outcome // one per op
	err      error
}

func newPending(from identity.Identity, ops []store.Op) *pending {
	p := &pending{from: from, ops: ops, size: entryBytes * len(ops), done: make(chan answer, 1)}
	for i := range ops {
		p.size += len(ops[i].Event)
	}
	if from.Role == identity.Source && len(ops) > 0 {
		p.cluster = ops[0].Key.Cluster
	}
	return p
}

// position returns the work that it is about, 0 if that is not one, and whether it
// goes before others of its cluster: deletions do.
//
// Instead of the key, which has five strings, its hash is the id: then the queue compares numbers.
// Of two works with one hash, a deletion would only wait for its turn.
func (p *pending) position() (id uint64, urgent bool) {
	if len(p.ops) != 1 {
		return 0, false
	}
	op := &p.ops[0]
	return max(maphash.Comparable(seed, op.Key), 1), op.Deleting || op.Deleted
}

var seed = maphash.MakeSeed()

// queue holds what waits for a commit. Parties take turns, and in each its clusters, by bytes:
// whoever publishes a lot, or for one of its clusters, waits for itself. What is about one
// work stays in order. The queue is bounded by its budget.
type queue struct {
	budget *bytebudget.Budget

	mu        sync.Mutex
	scheduler fair.Scheduler[identity.Identity]
	clients   map[identity.Identity]*clientQueue
	passed    []*pending // without ops, of parties that have nothing queued
	commits   uint64
	spare     *clientQueue // of a party that has nothing queued any more
	closed    bool
	// wake holds a token when something was put since the last look.
	wake taskgroup.Bell
}

// clientQueue is what waits of one party.
type clientQueue struct {
	queue        fair.Queue[string, uint64, *pending]
	number       uint64
	flushWaiters []*pending // without ops
	// taken is how much of a commit it has, of the one that is counted in commit.
	taken  int
	commit uint64
}

func newQueue(bytes int) *queue {
	return &queue{budget: bytebudget.NewBudget(bytes), clients: map[identity.Identity]*clientQueue{}, wake: taskgroup.NewBell()}
}

// put adds p, or says why not. A refusal for want of room has no delay yet. It returns
// [call.CallerGone] when ctx has ended: whoever gave up may have put something newer since.
// After close it returns [call.ErrDraining], and of what no longer counts the reason.
func (q *queue) put(ctx context.Context, p *pending) *transport.Error {
	if ok, others := q.budget.ReservePart(p.from, p.cluster, p.size); !ok {
		full := request.Overloaded("the broker has too much to write", 0)
		if p.cluster != "" && others {
			full.ClusterOnly, full.Message = true, "the broker has too much to write of cluster "+p.cluster
		}
		return full
	}
	if refused := q.add(ctx, p); refused != nil {
		q.budget.FreePart(p.from, p.cluster, p.size)
		return refused
	}
	q.wake.Ring()
	return nil
}

func (q *queue) add(ctx context.Context, p *pending) *transport.Error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return request.CallerGone(ctx)
	case q.closed:
		return request.ErrDraining()
	case p.checkValid != nil:
		if refused := p.checkValid(); refused != nil {
			return refused
		}
	}
	of := q.clients[p.from]
	switch {
	case of == nil && len(p.ops) == 0:
		q.passed = append(q.passed, p)
		return nil
	case of == nil:
		if of, q.spare = q.spare, nil; of == nil {
			of = &clientQueue{}
		}
		q.clients[p.from] = of
		q.scheduler.Join(p.from)
	case len(p.ops) == 0:
		p.number, p.remaining = of.number, of.queue.Len()
		of.flushWaiters = append(of.flushWaiters, p)
		return nil
	}
	of.number++
	p.number = of.number
	id, urgent := p.position()
	of.queue.Push(p.cluster, id, urgent, p.size, p)
	return nil
}

// pop appends to batch what goes into the next commit, until ops or bytes are reached. No party
// gets more than its share of it. At least one is popped, if there is one.
func (q *queue) pop(batch []*pending, ops, bytes int) []*pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	batch = append(batch, q.passed...)
	q.passed = nil
	q.commits++
	var full []identity.Identity
	for ops > 0 && bytes > 0 {
		from, ok := q.scheduler.Next(0)
		if !ok {
			break
		}
		of := q.clients[from]
		_, p, _ := of.queue.Pop()
		q.scheduler.Charge(from, p.size)
		batch = of.passed(append(batch, p), p.number)
		ops -= len(p.ops)
		bytes -= p.size
		switch {
		case of.queue.Len() == 0:
			q.scheduler.Leave(from)
			delete(q.clients, from)
			of.commit = 0 // counts from 1
			q.spare = of
		case of.takes(q.commits, p.size) >= shareBytes:
			q.scheduler.Leave(from)
			full = append(full, from)
		}
	}
	for _, from := range full {
		q.scheduler.Join(from)
	}
	return batch
}

// takes counts what goes into a commit, and returns how much of it the party has.
func (w *clientQueue) takes(commit uint64, bytes int) int {
	if w.commit != commit {
		w.commit, w.taken = commit, 0
	}
	w.taken += bytes
	return w.taken
}

// passed takes it that a publish was popped, and appends those that waited for it and for
// nothing else.
func (w *clientQueue) passed(batch []*pending, number uint64) []*pending {
	w.flushWaiters = slices.DeleteFunc(w.flushWaiters, func(b *pending) bool {
		if number <= b.number {
			b.remaining--
		}
		if b.remaining == 0 {
			batch = append(batch, b)
		}
		return b.remaining == 0
	})
	return batch
}

// free gives the room of a batch back, once it is answered.
func (q *queue) free(batch []*pending) {
	for _, p := range batch {
		q.budget.FreePart(p.from, p.cluster, p.size)
	}
}

// close refuses what comes from now on. What is in the queue stays.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}
