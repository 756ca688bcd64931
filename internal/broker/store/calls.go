package store

import (
	"context"
	"sync"
)

// Calls lets an engine close while its methods run. Make it with [NewCalls].
type Calls struct {
	// Closing is closed when Close begins.
	Closing chan struct{}

	running sync.RWMutex
	once    sync.Once
}

// NewCalls returns the calls of an open store.
func NewCalls() *Calls { return &Calls{Closing: make(chan struct{})} }

// Enter begins a call; the caller must call leave at its end. Errors are that of ctx, and [ErrClosed].
func (c *Calls) Enter(ctx context.Context) (leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// TryRLock fails only while Close waits, or after Close.
	if !c.running.TryRLock() {
		return nil, ErrClosed
	}
	if c.AreClosing() {
		c.running.RUnlock()
		return nil, ErrClosed
	}
	return c.running.RUnlock, nil
}

// AreClosing reports whether Close has begun.
func (c *Calls) AreClosing() bool {
	select {
	case <-c.Closing:
		return true
	default:
		return false
	}
}

// Wait waits for an event. Errors are that of ctx, and [ErrClosed].
func (c *Calls) Wait(ctx context.Context, event <-chan struct{}) error {
	select {
	case <-event:
		return nil
	case <-c.Closing:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close rejects new calls, waits for the running ones, and then calls end. A second call returns [ErrClosed].
func (c *Calls) Close(end func() error) error {
	err := ErrClosed
	c.once.Do(func() {
		close(c.Closing)
		c.running.Lock() // never unlocked, so no further call can begin
		err = end()
	})
	return err
}
