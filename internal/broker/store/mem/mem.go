// Package mem is the store in memory, for tests and the simulator. It has maps under one lock, no goroutines,
// and no randomness except the given ids. It makes the same decisions as all engines, and its content ends with
// the process. [Store.Backup] returns the state that a restart or a restore would read.
package mem

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
)

// Options configures a store.
type Options struct {
	// NewID makes store ids and incarnation ids. No two calls may return the same id, and no id may contain "/" or
	// be empty. Required.
	NewID func() string
	// From is the backup to open, nil for a new store.
	From *Backup
}

// Store implements [store.Store].
type Store struct {
	*shared
	id     string
	closed bool           // guarded by mu
	scans  sync.WaitGroup // running calls; Close waits for them
}

// shared is what the processes that use a store share.
type shared struct {
	mu   sync.RWMutex
	data data
	memindex.Memory
	commits chan struct{} // closed and replaced by each commit
	// passed has the revision that each process has passed.
	passed map[*Store]uint64
	// shares is the number of calls of Share.
	shares int
}

func newShared(d data) *shared {
	s := &shared{data: d, commits: make(chan struct{}), passed: make(map[*Store]uint64)}
	s.Memory = memindex.NewMemory(&s.mu, &s.data.state)
	return s
}

var _ store.Store = (*Store)(nil)

// Open opens a store, a new one or a backup, as a new incarnation.
func Open(o Options) *Store {
	s := &Store{}
	if o.From == nil {
		s.shared = newShared(newData(o.NewID()))
	} else {
		s.shared = newShared(o.From.data.clone())
	}
	at := &s.data.state.At
	s.data.begin(memindex.Incarnation{ID: o.NewID(), First: at.Revision + 1})
	s.passed[s], s.id = at.Revision, at.Incarnation
	return s
}

// Share returns the same store for another process of the broker. Both are closed separately.
func (s *Store) Share() *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shares++
	other := &Store{shared: s.shared, id: fmt.Sprint(s.data.state.At.Incarnation, "-", s.shares)}
	s.passed[other] = s.data.state.At.Revision
	return other
}

// Snapshot returns a store with the present state and the same incarnation, which later commits to s do not change.
func (s *Store) Snapshot() *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.data.clone()
	c.count(c.state.At.Revision + 1)
	return &Store{shared: newShared(c)}
}

// Backup is a copy of a store at one time.
type Backup struct{ data data }

// Backup copies the store. It also works after Close.
func (s *Store) Backup() *Backup {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Backup{data: s.data.clone()}
}

// Commit implements [store.Store].
func (s *Store) Commit(ctx context.Context, ops []store.Op) ([]store.Outcome, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, store.ErrClosed
	}
	head := s.data.state.At.Revision
	outcomes := make([]store.Outcome, len(ops))
	for i := range ops {
		v, err := store.Look(&s.data, s.data.state.At, &ops[i])
		if err != nil {
			return nil, err
		}
		d := store.Admit(s.data.state.Usage, &ops[i], store.Decide(v, &ops[i]))
		s.data.apply(d, &ops[i])
		outcomes[i] = d.Outcome
	}
	if s.data.state.At.Revision != head {
		s.broadcast()
	}
	return outcomes, nil
}

// broadcast wakes all waiting calls of Changes.
func (s *Store) broadcast() {
	close(s.commits)
	s.commits = make(chan struct{})
}

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, k store.Key) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return store.Record{}, store.ErrClosed
	}
	r := s.data.record(k)
	if r == nil {
		return store.Record{}, store.ErrNotFound
	}
	return store.Record{Meta: *r.meta, Spec: r.spec, Status: r.status}, nil
}

// Meta implements [store.Store].
func (s *Store) Meta(ctx context.Context, k store.Key) (store.Meta, error) {
	r, err := s.Get(ctx, k)
	return r.Meta, err
}

// Changes implements [store.Store].
func (s *Store) Changes(ctx context.Context, after uint64, limit int) ([]store.Change, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s.mu.Lock()
		closed, wait := s.closed, s.commits
		compacted := after != 0 && after < s.data.compacted
		out := s.data.after(after, max(limit, 1))
		s.mu.Unlock()
		switch {
		case closed:
			return nil, store.ErrClosed
		case compacted:
			return nil, store.ErrCompacted
		case len(out) > 0:
			return out, nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Passed implements [store.Store].
func (s *Store) Passed(revision uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.passed[s] = max(s.passed[s], revision)
		s.compact()
	}
}

// compact drops the removals that all processes have passed.
func (s *Store) compact() {
	if len(s.passed) > 0 {
		s.data.pass(slices.Min(slices.Collect(maps.Values(s.passed))))
	}
}

// Reach implements [store.Store]. The memory is the store.
func (*Store) Reach(ctx context.Context) error { return ctx.Err() }

// Replicas implements [store.Store].
func (s *Store) Replicas(context.Context) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := []string{s.id}
	for other := range s.passed {
		if other != s {
			ids = append(ids, other.id)
		}
	}
	return ids, nil
}

// Err implements [store.Store]. It returns nil: memory does not run full.
func (*Store) Err() error { return nil }

// Fatal implements [store.Store]. It returns nil: memory does not fail.
func (*Store) Fatal() <-chan error { return nil }

// Close implements [store.Store].
func (s *Store) Close() error {
	if err := s.stop(); err != nil {
		return err
	}
	s.scans.Wait()
	return nil
}

func (s *Store) stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return store.ErrClosed
	}
	s.closed = true
	delete(s.passed, s)
	s.compact()
	s.broadcast()
	return nil
}
