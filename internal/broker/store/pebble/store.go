package pebble

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Store implements [store.Store] in one directory.
type Store struct {
	db      *engine.DB
	lock    *engine.Lock
	failure *failure
	grace   time.Duration
	retired retired
	fs      vfs.FS
	guard   *guard
	staging string            // where a backup begins
	sign    func(clean) error // by Close
	backups sync.Mutex        // there is one staging

	// commit serialises what writes.
	commit sync.Mutex

	// calls is held for reading by every call that may take long, and for
	// writing by Close.
	calls sync.RWMutex
	// closing is closed when Close begins.
	closing   chan struct{}
	closeOnce sync.Once

	// mu guards what follows; it is never held during a read or write of the disk.
	// Who holds commit may read without it.
	mu      sync.RWMutex
	head    store.Head
	terms   []term // in the order of the openings
	places  map[where]*place
	tally   *store.Tally
	marks   store.BookmarkList
	behind  map[store.Key]string // id that waits to the id of its tombstone
	ring    ring
	metas   recent[store.Key, *store.Meta]
	events  recent[half, []byte]
	view    *view
	commits chan struct{} // closed and replaced at each commit
}

var _ store.Store = (*Store)(nil)

// term is one opening.
type term struct {
	id    string
	first uint64 // revision
}

// Err returns why the store is read-only, nil while it is not.
func (s *Store) Err() error { return s.failure.get() }

// Failed is closed when the store turns read-only.
func (s *Store) Failed() <-chan struct{} { return s.failure.c }

// enter begins a call; leave ends it.
func (s *Store) enter() (leave func(), err error) {
	// TryRLock fails only when Close waits or has finished.
	if !s.calls.TryRLock() {
		return nil, store.ErrClosed
	}
	select {
	case <-s.closing:
		s.calls.RUnlock()
		return nil, store.ErrClosed
	default:
		return s.calls.RUnlock, nil
	}
}

// read begins a call that reads the disk; done ends it.
func (s *Store) read() (v *view, done func(), err error) {
	leave, err := s.enter()
	if err != nil {
		return nil, nil, err
	}
	s.mu.RLock()
	v = s.view
	v.holders.Add(1)
	s.mu.RUnlock()
	return v, func() {
		v.release()
		leave()
	}, nil
}

// Head implements [store.Store].
func (s *Store) Head() store.Head {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.head
}

// ClusterHead implements [store.Store].
func (s *Store) ClusterHead(dt codec.DataType, cluster string) store.ClusterHead {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.tally.ClusterHead(dt, cluster)
}

// Clusters implements [store.Store].
func (s *Store) Clusters(dt codec.DataType) []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	set := map[string]struct{}{}
	s.tally.Clusters(dt, set)
	for w, p := range s.places {
		if w.dt == dt && p.subscribed {
			set[w.cluster] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// Digests implements [store.Store].
func (s *Store) Digests(dt codec.DataType, owner string) []codec.ClusterDigest {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.tally.Digests(dt, owner)
}

// ValidCursor implements [store.Store].
func (s *Store) ValidCursor(c store.Cursor) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if c.Epoch != s.head.Epoch || c.Revision > s.head.Revision {
		return false
	}
	i := slices.IndexFunc(s.terms, func(t term) bool { return t.id == c.Term })
	return i >= 0 && (i+1 == len(s.terms) || c.Revision < s.terms[i+1].first)
}

// Subscribed implements [store.Store].
func (s *Store) Subscribed(dt codec.DataType, cluster string) (string, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if p := s.places[where{dt, cluster}]; p != nil {
		return p.uid, p.subscribed
	}
	return "", false
}

// MarkSubscribed implements [store.Store]. What is known already costs no
// write.
func (s *Store) MarkSubscribed(ctx context.Context, dt codec.DataType, cluster, uid string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := store.CheckPlace(dt, cluster); err != nil {
		return err
	}
	return s.update(0, func(b *engine.Batch) (apply func(), err error) {
		if known, ok := s.Subscribed(dt, cluster); ok && (uid == "" || uid == known) {
			return nil, nil
		}
		key := clusterKey(dt, cluster)
		return func() {
			p := s.place(where{dt, cluster})
			p.subscribed, p.uid = true, uid
		}, set(b, key, []byte(uid))
	})
}

// ForgetCluster implements [store.Store].
func (s *Store) ForgetCluster(ctx context.Context, cluster string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.update(0, func(b *engine.Batch) (apply func(), err error) {
		var marked []where
		s.mu.RLock()
		for w, p := range s.places {
			if w.cluster == cluster && p.subscribed {
				marked = append(marked, w)
			}
		}
		s.mu.RUnlock()
		var errs []error
		for _, w := range marked {
			errs = append(errs, b.Delete(clusterKey(w.dt, cluster), nil))
		}
		return func() {
			for _, w := range marked {
				p := s.places[w]
				p.subscribed, p.uid = false, ""
			}
		}, errors.Join(errs...)
	})
}

// SetBookmarks implements [store.Store]. What is there already costs no write.
func (s *Store) SetBookmarks(ctx context.Context, bookmarks map[string][]byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := store.CheckBookmarks(bookmarks); err != nil {
		return err
	}
	return s.update(0, func(b *engine.Batch) (apply func(), err error) {
		var errs []error
		for name, value := range bookmarks {
			known, ok := s.bookmark(name)
			switch {
			case ok && value == nil:
				errs = append(errs, b.Delete(bookmarkKey(name), nil))
			case value != nil && (!ok || !bytes.Equal(known, value)):
				errs = append(errs, set(b, bookmarkKey(name), value))
			}
		}
		return func() { s.marks.Set(bookmarks) }, errors.Join(errs...)
	})
}

// bookmark returns the value of one bookmark.
func (s *Store) bookmark(name string) (value []byte, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.marks.Get(name)
}

// Bookmarks implements [store.Store].
func (s *Store) Bookmarks(prefix string) map[string][]byte {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.marks.Under(prefix)
}

// update writes what f puts into the batch, which has room for size bytes at
// first; apply is called with mu held when that is durable. Nothing is written
// for an empty batch.
func (s *Store) update(size int, f func(b *engine.Batch) (apply func(), err error)) error {
	leave, err := s.enter()
	if err != nil {
		return err
	}
	defer leave()
	s.commit.Lock()
	defer s.commit.Unlock()
	if s.failure.get() != nil {
		return s.failure.readOnly()
	}
	b := s.db.NewBatchWithSize(size)
	apply, err := f(b)
	if err != nil {
		return errors.Join(err, b.Close())
	}
	if b.Empty() {
		return b.Close()
	}
	v, err := s.write(b)
	if err != nil {
		return err
	}
	s.publish(v, apply)
	return nil
}

// place returns the place of w, new if there is none; mu is held.
func (s *Store) place(w where) *place {
	p := s.places[w]
	if p == nil {
		p = &place{}
		s.places[w] = p
	}
	return p
}

// Close implements [store.Store]. On a store that failed the engine may not let
// go; then Close returns the failure after a while, and the directory stays
// locked until the process ends.
func (s *Store) Close() error {
	err := store.ErrClosed
	s.closeOnce.Do(func() { err = s.shut() })
	return err
}

func (s *Store) shut() error {
	close(s.closing)
	s.calls.Lock()                                                                           // and never unlocked: no call may enter any more
	err := s.stopEngine(func() error { return s.sign(clean{s.head.Term, s.head.Revision}) }) // which may fail
	return errors.Join(s.failure.get(), err)
}

// stopEngine closes what Open opened; sign is called at the end, while the
// directory is still locked, when there was no failure. It gives up on an engine
// that failed and whose goroutines the guard has stopped.
func (s *Store) stopEngine(sign func() error) error {
	done := make(chan error, 1)
	go func() {
		if s.view != nil {
			s.view.release()
		}
		err := errors.Join(s.retired.close(), s.db.Close())
		if err == nil && s.failure.get() == nil {
			err = sign()
		}
		done <- errors.Join(err, s.lock.Close())
	}()
	err, ok := await(s, done)
	if !ok {
		return errors.New("the engine does not stop after a failure: the directory stays locked until the process ends")
	}
	return err
}

// await waits for a result; after a failure only for a while, because the guard
// may have stopped what leads to it.
func await[T any](s *Store, done <-chan T) (result T, ok bool) {
	select {
	case r := <-done:
		return r, true
	case <-s.failure.c:
	}
	timer := time.NewTimer(s.grace)
	defer timer.Stop()
	select {
	case r := <-done:
		return r, true
	case <-timer.C:
		return result, false
	}
}
