// Package history detects that an API server has another history than before: its etcd was restored from a
// backup.
//
// A watch that continues from a position of the former history gets no error. It gets no events, or the events
// of the new history from the same number on. Each restore breaks the connections, so a check follows each
// broken watch. It finds a restore if the server's position is before a known one. It also finds one if the
// server lacks the last write of this process, although its position is later. The rules are in [IsBehind] and
// [Write]. A [History] holds the number of the present history for all watches of a process.
package history

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Config configures a History. Ended and OwnWrites may be nil.
type Config struct {
	// OwnWrites reads back the last write of this process, and calls End if the server lacks it. An error means
	// that there was no answer.
	OwnWrites func(context.Context) error
	// Ended is called when a history has ended. It must not block.
	Ended func()
	Log   *slog.Logger
}

// History is the history of a server. Its methods are safe for concurrent use.
type History struct {
	config Config
	// lock is held during a read of own writes; checked is when the last one began.
	lock    chan struct{}
	checked time.Time

	mu     sync.Mutex
	number int
	over   chan struct{}
}

// New returns the first history.
func New(c Config) *History {
	return &History{config: c, lock: make(chan struct{}, 1), over: make(chan struct{})}
}

// Present returns the number of the present history, and a channel that is closed when it ends.
func (h *History) Present() (number int, over <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.number, h.over
}

// HasEnded reports whether a history has ended.
func (h *History) HasEnded(number int) bool {
	present, _ := h.Present()
	return number != present
}

// End ends the history with this number, if it is the present one. Everything that was read in it is then
// invalid. reason goes to the log.
func (h *History) End(number int, reason string) {
	h.mu.Lock()
	if number != h.number {
		h.mu.Unlock()
		return
	}
	close(h.over)
	h.number, h.over = number+1, make(chan struct{})
	h.mu.Unlock()
	h.config.Log.Warn("the cluster has another history than before, as after a restore of its etcd: everything is read again", "reason", reason)
	if h.config.Ended != nil {
		h.config.Ended()
	}
}

// checkWithin limits the wait for the server's answer.
const checkWithin = 30 * time.Second

// Check reads own writes back, unless that began after since. One read serves all watches that broke together.
func (h *History) Check(ctx context.Context, since time.Time) error {
	select {
	case h.lock <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-h.lock }()
	if h.config.OwnWrites == nil || h.checked.After(since) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	begun := time.Now()
	err := h.config.OwnWrites(ctx)
	if err == nil {
		h.checked = begun
	}
	return err
}
