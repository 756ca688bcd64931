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
	ops     []store.Op // mostly one, maybe after a takeover
	size    int        // bytes that are charged
	// checkValid is called when the publish is queued. It returns the error if the publish is rejected; nil: no
	// check.
	checkValid func() *transport.Error
	// number counts the publishes. A flush waits until remaining, the number of queued publishes of its client with
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
	if own := p.own(); from.Role == identity.Source && len(own) > 0 {
		p.cluster = own[0].Key.Cluster
	}
	return p
}

// own returns the ops without a takeover. If there is none, the publish is a flush: it waits for what its client has
// queued.
func (p *pending) own() []store.Op {
	if len(p.ops) > 0 && p.ops[0].Kind == store.Supersede {
		return p.ops[1:]
	}
	return p.ops
}

// position returns the id of the work in the publish, 0 if the publish is not about exactly one work. urgent is
// true for deletions, which go before the other publishes of the cluster.
//
// The id is a hash of the key, which has five strings, so that the queue compares numbers. If two works have
// the same hash, a deletion only loses its priority.
func (p *pending) position() (id uint64, urgent bool) {
	own := p.own()
	if len(own) != 1 {
		return 0, false
	}
	op := &own[0]
	return max(maphash.Comparable(seed, op.Key), 1), op.Deleting || op.Deleted
}

var seed = maphash.MakeSeed()

// queue holds the publishes that wait for a commit. It schedules clients fairly by bytes, and within a client
// its clusters. A client that publishes many bytes delays only its own publishes. Publishes about one work keep
// their order. A byte budget limits the queue.
type queue struct {
	budget *bytebudget.Budget

	mu      sync.Mutex
	waiting fair.Tree[identity.Identity, string, uint64, *pending] // by client and cluster
	number  uint64                                                 // of the last publish
	flushes []*pending                                             // publishes without ops of their own
	taken   map[identity.Identity]int                              // bytes in the present commit, by client
	closed  bool
	// wake has a token if something was put since the committer last read the queue.
	wake taskgroup.Bell
}

func newQueue(bytes int) *queue {
	return &queue{budget: bytebudget.NewBudget(bytes), taken: map[identity.Identity]int{}, wake: taskgroup.NewBell()}
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
	if len(p.own()) == 0 {
		p.number = q.number
		p.remaining, _ = q.waiting.Len(p.from, "")
		q.flushes = append(q.flushes, p)
		return nil
	}
	q.number++
	p.number = q.number
	id, urgent := p.position()
	q.waiting.Push(p.from, p.cluster, id, urgent, p.size, p)
	return nil
}

// pop appends the publishes for the next commit to batch, until ops or bytes are reached. No client gets more
// than its share. At least one publish is popped, if there is one.
func (q *queue) pop(batch []*pending, ops, bytes int) []*pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.taken)
	var full []identity.Identity
	for ops > 0 && bytes > 0 {
		from, p, ok := q.waiting.Pop()
		if !ok {
			break
		}
		batch = append(batch, p)
		ops -= len(p.ops)
		bytes -= p.size
		for _, f := range q.flushes {
			if f.from == from && p.number <= f.number {
				f.remaining--
			}
		}
		if q.taken[from] += p.size; q.taken[from] >= shareBytes {
			q.waiting.Park(from)
			full = append(full, from)
		}
	}
	for _, from := range full {
		q.waiting.Resume(from)
	}
	q.flushes = slices.DeleteFunc(q.flushes, func(f *pending) bool {
		if f.remaining == 0 {
			batch = append(batch, f)
		}
		return f.remaining == 0
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
