// Package history notices that an API server has another history than before: its etcd was
// restored from a backup.
//
// A watch that goes on from a position of the former history gets nothing, or what comes after
// an equal number, and no error. Two things tell, after a connection broke, which each restore
// does: the server's position is before one that it had, or it lacks what this process wrote
// itself, where it was written to until its position was later. The rules are in [Behind] and
// [Write]; a [History] says for all watches of a process in which history they are.
package history

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Config is a History. Ended and OwnWrites may be nil.
type Config struct {
	// OwnWrites reads back what this process wrote last, and calls End if the server lacks
	// that. The error says that there was no answer.
	OwnWrites func(context.Context) error
	// Ended is told that a history ended. It must not block.
	Ended func()
	Log   *slog.Logger
}

// History is that of a server. Its methods may be called concurrently.
type History struct {
	config Config
	// lock is held by the one that reads own writes back; checked is when that began last.
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

// Present returns the number of the present history, and what is closed when it ends.
func (h *History) Present() (number int, over <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.number, h.over
}

// Over reports whether a history has ended.
func (h *History) Over(number int) bool {
	present, _ := h.Present()
	return number != present
}

// End ends the history with this number, if that is the present one: nothing that was read counts
// any more. reason is for people.
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

// checkWithin bounds the wait for the server's answer.
const checkWithin = 30 * time.Second

// Check reads own writes back, unless that was begun after since: one look serves all watches
// that broke together.
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
