package pebble

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"sync"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/resident"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Store implements [store.Store] in one directory.
type Store struct {
	db      *engine.DB
	lock    *engine.Lock
	failure *failure
	fs      vfs.FS
	dir     string
	closed  *clean     // how it was, before it was opened
	staging string     // where a backup begins
	backups sync.Mutex // there is one staging

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
	mu sync.RWMutex
	state
	ring    *resident.Ring
	metas   recent[store.Key, *store.Meta]
	events  recent[resident.Half, []byte]
	view    *view
	commits chan struct{} // closed and replaced at each commit
}

var _ store.Store = (*Store)(nil)

// Err returns why the store takes no writes, nil while it does.
func (s *Store) Err() error { return s.failure.get() }

// Fatal implements [store.Store]. A full disk and too many open files are no
// such errors: then the store is read-only, and [Store.Err] has the cause.
func (s *Store) Fatal() <-chan error { return s.failure.fatal }

func (s *Store) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
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
	return s.subscribed.Clusters(s.tally, dt)
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
	return s.terms.Valid(s.head, c)
}

// Subscribed implements [store.Store].
func (s *Store) Subscribed(dt codec.DataType, cluster string) (string, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	uid, ok := s.subscribed[resident.Place{DataType: dt, Cluster: cluster}]
	return uid, ok
}

// MarkSubscribed implements [store.Store]. What is known already costs no
// write.
func (s *Store) MarkSubscribed(ctx context.Context, dt codec.DataType, cluster, uid string) error {
	if err := store.CheckPlace(dt, cluster); err != nil {
		return err
	}
	return s.update(ctx, 0, func(b *engine.Batch) (apply func(), err error) {
		p := resident.Place{DataType: dt, Cluster: cluster}
		if !s.subscribed.News(p, uid) {
			return nil, nil
		}
		return func() { s.subscribed[p] = uid }, set(b, clusterKey(dt, cluster), []byte(uid))
	})
}

// ForgetCluster implements [store.Store].
func (s *Store) ForgetCluster(ctx context.Context, cluster string) error {
	return s.update(ctx, 0, func(b *engine.Batch) (apply func(), err error) {
		for p := range s.subscribed {
			if p.Cluster == cluster {
				err = errors.Join(err, b.Delete(clusterKey(p.DataType, cluster), nil))
			}
		}
		return func() { s.subscribed.Forget(cluster) }, err
	})
}

// SetBookmarks implements [store.Store]. What is there already costs no write.
func (s *Store) SetBookmarks(ctx context.Context, bookmarks map[string][]byte) error {
	if err := store.CheckBookmarks(bookmarks); err != nil {
		return err
	}
	return s.update(ctx, 0, func(b *engine.Batch) (apply func(), err error) {
		for name, value := range bookmarks {
			known, ok := s.marks[name]
			switch {
			case ok && value == nil:
				err = errors.Join(err, b.Delete(bookmarkKey(name), nil))
			case value != nil && (!ok || !bytes.Equal(known, value)):
				err = errors.Join(err, set(b, bookmarkKey(name), value))
			}
		}
		return func() { s.marks.Set(bookmarks) }, err
	})
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
func (s *Store) update(ctx context.Context, size int, f func(b *engine.Batch) (apply func(), err error)) error {
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	s.commit.Lock()
	defer s.commit.Unlock()
	if err := s.failure.refusal(); err != nil {
		return err
	}
	b := s.db.NewBatchWithSize(size)
	apply, err := f(b)
	if err != nil || b.Empty() {
		return errors.Join(err, b.Close())
	}
	v, err := s.write(b)
	if err != nil {
		return err
	}
	s.publish(v, apply)
	return nil
}

// write applies and syncs a batch, and returns the view of what is durable then.
func (s *Store) write(b *engine.Batch) (*view, error) {
	err := s.failure.attempt(func() error { return errors.Join(s.db.Apply(b, engine.Sync), b.Close()) })
	if err != nil {
		s.failure.set(err)
	}
	// The engine returns nil after its fatal errors too.
	if err := s.failure.refusal(); err != nil {
		return nil, err
	}
	return s.newView(), nil
}

// publish makes a durable batch visible.
func (s *Store) publish(v *view, apply func()) {
	s.mu.Lock()
	before := s.view
	s.view = v
	head := s.head.Revision
	apply()
	if s.head.Revision != head {
		close(s.commits)
		s.commits = make(chan struct{})
	}
	s.mu.Unlock()
	before.unref()
}

// Close implements [store.Store]. It returns why the store failed, if it did.
// After a write that failed it leaves the engine alone, and the directory is
// locked until the process ends.
func (s *Store) Close() error {
	err := store.ErrClosed
	s.closeOnce.Do(func() {
		close(s.closing)
		s.calls.Lock() // and never unlocked: no call may enter any more
		stopped := s.stop(func() error {
			at, err := s.position().at(s.fs, s.dir)
			if err != nil {
				return err
			}
			return at.sign(s.fs, s.dir)
		})
		err = cmp.Or(s.failure.get(), stopped)
	})
	return err
}

// stop closes what Open opened. sign is called at the end, while the directory
// is still locked, unless the store failed. Calls of the engine that a failure
// left behind come first: without a database they panic.
func (s *Store) stop(sign func() error) error {
	done := make(chan error, 1)
	go func() {
		var err error
		s.failure.calls.Wait()
		if s.view != nil {
			err = s.view.snapshot.Close()
		}
		if s.db != nil {
			err = errors.Join(err, s.db.Close())
		}
		if err == nil && s.failure.get() == nil {
			err = sign()
		}
		done <- errors.Join(err, s.lock.Close())
	}()
	return s.failure.await(done)
}
