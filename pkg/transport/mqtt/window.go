package mqtt

import (
	"context"
	"slices"
	"sync"
	"time"
)

// window bounds the published messages that are not acknowledged: the broker's Receive Maximum and, if the
// broker limits bytes, their bytes. A message larger than the byte limit is sent alone.
type window struct {
	mu        sync.Mutex
	maxCount  int
	maxBytes  int // 0: unlimited
	count     int
	bytes     int
	waiting   []*waiter // in order of arrival
	closed    bool
	lastFreed time.Time
}

type waiter struct {
	size  int
	ready chan struct{}
}

// open sets the limits.
func (w *window) open(maxCount, maxBytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.maxCount, w.maxBytes = maxCount, maxBytes
	w.lastFreed = time.Now()
}

// acquire waits for space for a message. It returns the error of ctx, or errLost when the connection has ended.
func (w *window) acquire(ctx context.Context, size int) error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return errLost
	}
	if len(w.waiting) == 0 && w.fits(size) {
		w.take(size)
		w.mu.Unlock()
		return nil
	}
	me := &waiter{size: size, ready: make(chan struct{})}
	w.waiting = append(w.waiting, me)
	w.mu.Unlock()
	select {
	case <-me.ready:
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch i := slices.Index(w.waiting, me); {
	case i >= 0 && w.closed:
		return errLost
	case i >= 0:
		w.waiting = slices.Delete(w.waiting, i, i+1)
		w.admit() // a smaller one behind it may fit
		return ctx.Err()
	}
	return nil // there is space, even if ctx has ended in the meantime
}

func (w *window) fits(size int) bool {
	return w.count < w.maxCount && (w.maxBytes == 0 || w.count == 0 || w.bytes+size <= w.maxBytes)
}

func (w *window) take(size int) {
	w.count++
	w.bytes += size
}

// admit admits waiters in order of arrival, so that smaller messages do not delay a large one for ever.
func (w *window) admit() {
	for !w.closed && len(w.waiting) > 0 && w.fits(w.waiting[0].size) {
		w.take(w.waiting[0].size)
		close(w.waiting[0].ready)
		w.waiting = slices.Delete(w.waiting, 0, 1)
	}
}

// release frees the space of a message.
func (w *window) release(size int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count--
	w.bytes -= size
	w.lastFreed = time.Now()
	w.admit()
}

// stuck reports whether a message does not fit and no space was freed for d.
func (w *window) stuck(size int, d time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.fits(size) && time.Since(w.lastFreed) >= d
}

// close wakes all waiters.
func (w *window) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	w.closed = true
	for _, waiter := range w.waiting {
		close(waiter.ready)
	}
}
