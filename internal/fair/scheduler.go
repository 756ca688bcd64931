// Package fair shares capacity among keys: which key is served next, and how much each may have. All keys have
// the same weight. The cost of service counts, not the number of requests.
//
// [Scheduler] orders keys, [Queue] holds their items, [Tree] holds those of clients that each have keys, [Bucket]
// enforces a [Rate]. The package is pure: its users lock the values, and pass the time.
package fair

import (
	"cmp"
	"container/heap"
)

// Scheduler decides which of the waiting keys is served next. It is start-time fair queueing. A virtual clock
// shows the start of the last turn. After a turn of cost c, the next turn of the same key starts c later. The
// earliest start is next. So:
//
//   - of two keys that always wait, neither gets more than the other by more than the cost of the two most
//     expensive turns,
//   - a key that begins to wait is served after at most one turn of each other key,
//   - no key waits while there is capacity.
//
// The cost of a turn may become known afterwards: see Charge. A key that was served more than others keeps its
// debt while others wait, even when it has no items.
//
// The zero value is empty and ready. Next takes logarithmic time in the number of waiting keys.
type Scheduler[K comparable] struct {
	clock   int64
	arrived uint64
	keys    map[K]*keyState[K]
	waiting Heap[*keyState[K]]
	sweepAt int // number of keys that starts the next sweep
}

// keyState is the state of one key.
type keyState[K comparable] struct {
	key   K
	start int64  // of its next turn
	came  uint64 // orders equal starts
	at    int    // index in the heap; Outside: the key does not wait
}

// fewest is the number of keys below which no sweep is done.
const fewest = 64

// Join makes k wait. It has no effect if k already waits.
func (t *Scheduler[K]) Join(k K) {
	p := t.keyState(k)
	if p.at != Outside {
		return
	}
	t.arrived++
	p.start, p.came = max(p.start, t.clock), t.arrived
	heap.Push(&t.waiting, p)
}

// Leave ends the wait of k.
func (t *Scheduler[K]) Leave(k K) {
	p := t.keys[k]
	if p == nil || p.at == Outside {
		return
	}
	heap.Remove(&t.waiting, p.at)
	switch {
	case len(t.waiting) == 0: // without other waiting keys, all debts end
		clear(t.keys)
	case p.start <= t.clock:
		delete(t.keys, k)
	}
}

// Next returns the key that is served next, and charges it cost, at least 1. It returns false if no key waits.
// The key keeps waiting until it leaves.
func (t *Scheduler[K]) Next(cost int) (k K, ok bool) {
	if len(t.waiting) == 0 {
		return k, false
	}
	p := t.waiting[0]
	t.clock = p.start
	t.delay(p, max(cost, 1))
	return p.key, true
}

// Charge adds cost to a turn of k.
func (t *Scheduler[K]) Charge(k K, cost int) {
	if cost > 0 && len(t.waiting) > 0 {
		t.delay(t.keyState(k), cost)
	}
}

// delay makes the next turn of p start later by cost.
func (t *Scheduler[K]) delay(p *keyState[K], cost int) {
	p.start = max(p.start, t.clock) + int64(cost)
	if p.at != Outside {
		// The key comes after keys with the same start, because these still wait for their turn.
		t.arrived++
		p.came = t.arrived
		heap.Fix(&t.waiting, p.at)
	}
}

// keyState returns the state of a key, and creates it if necessary.
func (t *Scheduler[K]) keyState(k K) *keyState[K] {
	p := t.keys[k]
	if p != nil {
		return p
	}
	t.sweep()
	p = &keyState[K]{key: k, start: t.clock, at: Outside}
	if t.keys == nil {
		t.keys = map[K]*keyState[K]{}
	}
	t.keys[k] = p
	return p
}

// sweep drops keys without a debt. Its amortized cost is that of adding them.
func (t *Scheduler[K]) sweep() {
	if len(t.keys) < max(t.sweepAt, fewest) {
		return
	}
	for k, p := range t.keys {
		if p.at == Outside && p.start <= t.clock {
			delete(t.keys, k)
		}
	}
	t.sweepAt = 2 * len(t.keys)
}

// Before implements [HeapItem]: the earliest start is first.
func (p *keyState[K]) Before(o *keyState[K]) bool {
	return cmp.Or(cmp.Compare(p.start, o.start), cmp.Compare(p.came, o.came)) < 0
}

// Moved implements [HeapItem].
func (p *keyState[K]) Moved(to int) { p.at = to }
