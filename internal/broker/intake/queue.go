package intake

import (
	"context"
	"sync"

	"github.com/hawser-io/hawser/internal/broker/call"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/transport"
)

// pending is one publish that waits for its commit.
type pending struct {
	from identity.Identity
	ops  []store.Op // mostly one
	size int        // bytes it counts for
	one  [1]store.Op
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
	budget *Budget

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
	return &queue{budget: NewBudget(bytes), lines: map[identity.Identity]*line{}, wake: make(chan struct{}, 1)}
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
