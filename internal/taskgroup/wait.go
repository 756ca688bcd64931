package taskgroup

import (
	"context"
	"time"
)

// Every calls f each time that so much time has passed, until ctx ends.
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

// Sleep waits so long, and returns false where ctx ends before.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Bell wakes the goroutine that receives from it. However often it rings meanwhile, it wakes once.
type Bell chan struct{}

// NewBell returns a Bell that did not ring.
func NewBell() Bell { return make(Bell, 1) }

// Ring does not block.
func (b Bell) Ring() {
	select {
	case b <- struct{}{}:
	default: // it rang already, and was not heard yet
	}
}
