// Package changefeed passes the changes of the store to the parts of one broker. A part loads what it needs of
// the store when it is made, and then follows the changes. So its memory is a function of the store, and not of
// the writes that happened to go through this broker.
package changefeed

import (
	"context"
	"sync"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// Part is a part of the broker that follows the changes. It gets them in the order of their revisions, from one
// goroutine, and must not block. The changes are valid during the call. An error ends the broker: the part
// cannot read what the store holds.
type Part func([]store.Change) error

// Store is the store that a follower reads.
type Store interface {
	store.Feed
	Head() store.Head
}

// Follower reads the change feed, once for all parts. Its methods are safe for concurrent use.
type Follower struct {
	feed  store.Feed
	parts []Part

	mu       sync.Mutex
	position uint64
	ended    bool
	// moved is closed when position or ended changes. It is nil while no call of Await waits.
	moved chan struct{}
}

// New returns a follower that begins at the head of the store. Create it before the parts load their state.
// Otherwise a part can miss a change.
func New(s Store) *Follower { return &Follower{feed: s, position: s.Head().Revision} }

// Add adds a part behind the earlier ones. Call it before Run.
func (f *Follower) Add(p Part) { f.parts = append(f.parts, p) }

// Run passes the changes until ctx ends or the store fails.
func (f *Follower) Run(ctx context.Context) error {
	defer f.move(func() { f.ended = true })
	const atOnce = 1024
	for after := f.position; ; { // only this goroutine writes position
		changes, err := f.feed.Changes(ctx, after, atOnce)
		if err != nil {
			return err
		}
		if len(changes) == 0 {
			continue
		}
		for _, part := range f.parts {
			if err := part(changes); err != nil {
				return err
			}
		}
		after = changes[len(changes)-1].Revision
		f.move(func() { f.position = after })
		f.feed.Passed(after)
	}
}

func (f *Follower) move(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	if f.moved != nil {
		close(f.moved)
		f.moved = nil
	}
}

// Await waits until all parts have followed the changes up to a revision. A client that commits a change and
// promises its effect calls it before it answers. Errors are that of ctx, and [store.ErrClosed] after the end of
// Run.
func (f *Follower) Await(ctx context.Context, revision uint64) error {
	for {
		f.mu.Lock()
		reached, ended := f.position >= revision, f.ended
		if f.moved == nil && !reached {
			f.moved = make(chan struct{})
		}
		moved := f.moved
		f.mu.Unlock()
		switch {
		case reached:
			return nil
		case ended:
			return store.ErrClosed
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
