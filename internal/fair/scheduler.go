// Package fair shares what many want: who is served next, and how much each may have. All
// keys weigh the same, and what counts is what serving them cost, not how often they came.
//
// [Scheduler] orders keys, [Queue] keeps what waits for them, [Bucket] counts against a [Rate].
// The package is pure: its users guard what they make of it, and say what time it is.
package fair

import (
	"cmp"
	"container/heap"
)

// Scheduler says whose turn it is among the keys for which something waits. It is start-time
// fair queueing: a virtual clock shows the start of the turn that was served last; after a
// turn that cost c, the next one of the same key starts c later; the earliest start is
// next. So
//
//   - of two keys that always wait, neither is served for more than the other but for two
//     of the dearest turns,
//   - a key for which something begins to wait is served after at most one turn of each
//     other one,
//   - nobody waits as long as there is something to do.
//
// What a turn costs may become known afterwards: see Charge. Whoever had more than the
// others is remembered as long as others wait, also while nothing waits for it.
//
// The zero value is empty and ready. Next costs the logarithm of the number of keys that wait.
type Scheduler[K comparable] struct {
	clock   int64
	arrived uint64
	keys    map[K]*keyState[K]
	waiting keyHeap[K]
	sweepAt int // so many places are looked through
}

// keyState is what is known of one key.
type keyState[K comparable] struct {
	key   K
	start int64  // of its next turn
	came  uint64 // orders equal starts
	at    int    // in the line; away: nothing waits for it
}

const (
	away = -1
	// fewest is the number of places that are not worth looking through.
	fewest = 64
)

// Join says that something waits for k. Said again it has no effect.
func (t *Scheduler[K]) Join(k K) {
	p := t.keyState(k)
	if p.at != away {
		return
	}
	t.arrived++
	p.start, p.came = max(p.start, t.clock), t.arrived
	heap.Push(&t.waiting, p)
}

// Leave says that nothing waits for k any more.
func (t *Scheduler[K]) Leave(k K) {
	p := t.keys[k]
	if p == nil || p.at == away {
		return
	}
	heap.Remove(&t.waiting, p.at)
	switch {
	case len(t.waiting) == 0: // whoever had more took it from nobody
		clear(t.keys)
	case p.start <= t.clock:
		delete(t.keys, k)
	}
}

// Next returns whose turn it is and charges it the least that the turn costs; false: nothing
// waits. The key stays in line until it leaves.
func (t *Scheduler[K]) Next(cost int) (k K, ok bool) {
	if len(t.waiting) == 0 {
		return k, false
	}
	p := t.waiting[0]
	t.clock = p.start
	t.delay(p, max(cost, 1))
	return p.key, true
}

// Charge says that a turn of k cost so much more.
func (t *Scheduler[K]) Charge(k K, cost int) {
	if cost > 0 && len(t.waiting) > 0 {
		t.delay(t.keyState(k), cost)
	}
}

// delay has the next turn of a place start later.
func (t *Scheduler[K]) delay(p *keyState[K], cost int) {
	p.start = max(p.start, t.clock) + int64(cost)
	if p.at != away {
		// Behind those that start with it: they wait for their turn, it had one.
		t.arrived++
		p.came = t.arrived
		heap.Fix(&t.waiting, p.at)
	}
}

// keyState returns what is known of a key.
func (t *Scheduler[K]) keyState(k K) *keyState[K] {
	p := t.keys[k]
	if p != nil {
		return p
	}
	t.sweep()
	p = &keyState[K]{key: k, start: t.clock, at: away}
	if t.keys == nil {
		t.keys = map[K]*keyState[K]{}
	}
	t.keys[k] = p
	return p
}

// sweep forgets who had no more than the others. It costs, over time, as much as remembering
// them did.
func (t *Scheduler[K]) sweep() {
	if len(t.keys) < max(t.sweepAt, fewest) {
		return
	}
	for k, p := range t.keys {
		if p.at == away && p.start <= t.clock {
			delete(t.keys, k)
		}
	}
	t.sweepAt = 2 * len(t.keys)
}

// keyHeap is a heap of the places for which something waits.
type keyHeap[K comparable] []*keyState[K]

// Len implements [heap.Interface].
func (l keyHeap[K]) Len() int { return len(l) }

// Less implements [heap.Interface].
func (l keyHeap[K]) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(l[i].start, l[j].start), cmp.Compare(l[i].came, l[j].came)) < 0
}

// Swap implements [heap.Interface].
func (l keyHeap[K]) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].at, l[j].at = i, j
}

// Push implements [heap.Interface].
func (l *keyHeap[K]) Push(p any) {
	last := p.(*keyState[K]) //nolint:forcetypeassert // from Join
	last.at = len(*l)
	*l = append(*l, last)
}

// Pop implements [heap.Interface].
func (l *keyHeap[K]) Pop() any {
	n := len(*l) - 1
	last := (*l)[n]
	(*l)[n] = nil
	*l = (*l)[:n]
	last.at = away
	return last
}
