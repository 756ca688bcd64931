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

// pending is a publish that waits for its commit.
type pending struct {
	from identity.Identity
	// cluster is the cluster of a source's publish: each cluster of a source has its own share.
	cluster string
	ops     []store.Op // mostly one; none: a flush that waits for what its client has queued
	size    int        // bytes that are charged
	// checkValid is called when the publish is queued. It returns the error if the publish is rejected; nil: no
	// check.
	checkValid func() *transport.Error
	// number counts the publishes of its client. A flush waits until remaining, the number of queued publishes with
	// numbers up to its own, is 0.
	number    uint64
	remaining int
	// done is closed after the commit. From then on answer is valid.
	done   chan struct{}
	answer answer
}

type answer struct {
	outcomes []store.Outcome // one per op
	err      error
}

func newPending(from identity.Identity, ops []store.Op) *pending {
	p := &pending{from: from, ops: ops, size: entryBytes * len(ops), done: make(chan struct{})}
	for i := range ops {
		p.size += len(ops[i].Event)
	}
	if from.Role == identity.Source && len(ops) > 0 {
		p.cluster = ops[0].Key.Cluster
	}
	return p
}

// position returns the id of the work in the publish, 0 if the publish is not about exactly one work. urgent is
// true for deletions, which go before the other publishes of the cluster.
//
// The id is a hash of the key, which has five strings, so that the queue compares numbers. If two works have
// the same hash, a deletion only loses its priority.
func (p *pending) position() (id uint64, urgent bool) {
	if len(p.ops) != 1 {
		return 0, false
	}
	op := &p.ops[0]
	return max(maphash.Comparable(seed, op.Key), 1), op.Deleting || op.Deleted
}

var seed = maphash.MakeSeed()

// queue holds the publishes that wait for a commit. It schedules clients fairly by bytes, and within a client
// its clusters. A client that publishes many bytes delays only its own publishes. Publishes about one work keep
// their order. A byte budget limits the queue.
type queue struct {
	budget *bytebudget.Budget

	mu        sync.Mutex
	scheduler fair.Scheduler[identity.Identity]
	clients   map[identity.Identity]*clientQueue
	passed    []*pending // flushes of clients without queued publishes
	commits   uint64
	spare     *clientQueue // of a client without queued publishes; reused
	closed    bool
	// wake has a token if something was put since the committer last read the queue.
	wake taskgroup.Bell
}

// clientQueue holds the queued publishes of one client.
type clientQueue struct {
	queue        fair.Queue[string, uint64, *pending]
	number       uint64
	flushWaiters []*pending // publishes without ops
	// taken is the number of bytes of the client in the commit with the number commit.
	taken  int
	commit uint64
}

func newQueue(bytes int) *queue {
	return &queue{budget: bytebudget.NewBudget(bytes), clients: map[identity.Identity]*clientQueue{}, wake: taskgroup.NewBell()}
}

// put adds p or returns an error. The error for a full queue has no delay yet. If ctx has ended, it returns
// [request.CallerGone]: the caller may have published a newer event since. After close it returns
// [request.ErrDraining]. If p is no longer valid it returns the reason.
func (q *queue) put(ctx context.Context, p *pending) *transport.Error {
	if ok, others := q.budget.ReservePart(p.from, p.cluster, p.size); !ok {
		full := request.Overloaded("the broker's commit queue is full", 0)
		if p.cluster != "" && others {
			full.ClusterOnly, full.Message = true, "the broker's commit queue is full for cluster "+p.cluster
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

// pop appends the publishes for the next commit to batch, until ops or bytes are reached. No client gets more
// than its share. At least one publish is popped, if there is one.
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
			of.commit = 0 // no commit has the number 0
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

// takes adds bytes to the client's part of a commit and returns the new size of that part.
func (w *clientQueue) takes(commit uint64, bytes int) int {
	if w.commit != commit {
		w.commit, w.taken = commit, 0
	}
	w.taken += bytes
	return w.taken
}

// passed records that the publish with this number was popped. It appends the flush waiters that waited only
// for it.
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

// free releases the memory budget of an answered batch.
func (q *queue) free(batch []*pending) {
	for _, p := range batch {
		q.budget.FreePart(p.from, p.cluster, p.size)
	}
}

// close rejects new publishes. Queued publishes stay.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}
