package taskgroup

import (
	"context"
	"sync/atomic"
	"time"
)

// Every calls f at each interval until ctx ends.
func Every(ctx context.Context, interval time.Duration, f func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f()
		case <-ctx.Done():
			return
		}
	}
}

// Sleep waits for d. It returns false if ctx ends before.
func Sleep(ctx context.Context, d time.Duration) bool { return WaitFor(ctx, nil, d) }

// Wait waits until c is closed or has a value, which it takes. It returns false if ctx ends before.
func Wait(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-ctx.Done():
		return false
	}
}

// WaitFor waits as [Wait] does, but no longer than d. It returns false if ctx ends before.
func WaitFor(ctx context.Context, c <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c:
	case <-t.C:
	case <-ctx.Done():
		return false
	}
	return true
}

// Bell wakes the goroutine that receives from it. Several rings before a receive wake it once.
type Bell chan struct{}

// NewBell returns a Bell that has not rung.
func NewBell() Bell { return make(Bell, 1) }

// Ring rings the bell. It does not block.
func (b Bell) Ring() {
	select {
	case b <- struct{}{}:
	default: // a ring is pending already
	}
}

// Semaphore limits the number of callers that hold one of its slots.
type Semaphore chan struct{}

// NewSemaphore returns a Semaphore with n free slots.
func NewSemaphore(n int) Semaphore { return make(Semaphore, n) }

// Acquire waits for a slot. It returns false if ctx ends before.
func (s Semaphore) Acquire(ctx context.Context) bool {
	select {
	case s <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// Release frees a slot of the caller.
func (s Semaphore) Release() { <-s }

// Turns calls a function in turns: at least once after each ring, and never twice at the same time. It has a
// goroutine only during a turn, so that thousands of them that rest need no stack.
type Turns struct {
	// rung is the number of rings that no turn has answered. The ring that makes it 1 begins a turn. It stays above
	// 0 before Start, and after the last turn.
	rung atomic.Int32
	turn func() (more bool)
}

// NewTurns returns Turns that keep the first ring until Start.
func NewTurns() *Turns {
	t := &Turns{}
	t.rung.Store(1)
	return t
}

// Start sets the function and takes the first turns. A turn that returns false is the last one. Start is called
// once.
func (t *Turns) Start(turn func() (more bool)) {
	t.turn = turn
	t.run()
}

// Ring asks for a turn. It does not block.
func (t *Turns) Ring() {
	if t.rung.Add(1) == 1 {
		go t.run() // ends after the turn
	}
}

// Take asks for a turn, and takes it in the calling goroutine if no other turn runs.
func (t *Turns) Take() {
	if t.rung.Add(1) == 1 {
		t.run()
	}
}

// run takes turns until all rings are answered.
//
// Scenario:
//
//	t1: a turn finds nothing to do.
//	t2: another goroutine adds work and rings.
//	t3: the turn ends, and the work of t2 waits for ever.
//
// Result: the rings are counted before a turn, and only these are answered by it.
func (t *Turns) run() {
	for {
		seen := t.rung.Load()
		if !t.turn() || t.rung.Add(-seen) == 0 {
			return
		}
	}
}
