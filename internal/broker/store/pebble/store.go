package pebble

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/internal/broker/store/value"
)

// ErrInUse means that another process, or another store in this process, uses the directory.
var ErrInUse = errors.New("another broker uses this directory; stop it first, or give each broker its own directory")

// Options configures a store. Only Dir is required.
type Options struct {
	// Dir is the directory of the store. If it is missing, it is created, readable by the owner only: works can
	// carry Secrets.
	Dir string
	// FS is the file system, nil for that of the machine.
	FS vfs.FS
	// Log receives failures; nil discards them.
	Log *slog.Logger
	// NewID makes store ids and incarnation ids. No two calls may return the same id, and no id may contain "/" or
	// be empty. nil means 26 random characters.
	NewID func() string
	// Stop ends all waiting for disk space or file descriptors when it is closed. If it is nil, the closing of the
	// store ends it.
	Stop <-chan struct{}
	// CacheBytes is the size of memtables and block cache together, 0 for 80 MiB.
	CacheBytes int64

	ringSize      uint64 // 0 for 4096 changes
	memTableBytes uint64 // 0 for 32 MiB; tests use less to get flushes soon
}

const (
	// The engine subtracts its memtables from the block cache. At rest there are two: the current one, and one that
	// the engine keeps for reuse. 16 MiB remain for blocks: the values that are read most (metas, and the specs of
	// the last changes) take a few MiB. For other values the cache of the operating system is enough. Without that
	// addition each lookup reads its index and filter blocks from files again.
	defaultCacheBytes = 16<<20 + 2*defaultMemTableBytes
	// Without cgo, memtables are part of the Go heap, and the runtime allows as much garbage as there is heap. So
	// each byte of a table that is kept at rest costs two. A smaller table is flushed more often and compacted with
	// fewer versions dropped: with 16 MiB, 100,000 works write a quarter more bytes, with 64 MiB hardly fewer. A
	// batch above half of the size is flushed separately, so the size must exceed twice a group commit, which has 2
	// MiB.
	defaultMemTableBytes = 32 << 20
	openFiles            = 500
	// defaultRingSize is the number of last changes that are read from memory, without the disk. It needs about 1
	// MiB.
	defaultRingSize = 4096
)

// separation keeps large payloads in files of their own, so that a compaction does not copy them. The engine
// rewrites such a file when a fifth of it is garbage, so that deletions free space. The format that the engine
// is set to has these files, so a release without this policy reads them.
var separation = engine.ValueSeparationPolicy{
	Enabled: true, MinimumSize: 16 << 10, MaxBlobReferenceDepth: 10, RewriteMinimumAge: time.Minute, TargetGarbageRatio: 0.2,
}

func (o *Options) setDefaults() {
	o.FS = cmp.Or(o.FS, vfs.Default)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.NewID == nil {
		o.NewID = rand.Text
	}
	o.CacheBytes = cmp.Or(o.CacheBytes, defaultCacheBytes)
	o.memTableBytes = cmp.Or(o.memTableBytes, defaultMemTableBytes)
	o.ringSize = cmp.Or(o.ringSize, defaultRingSize)
}

// Store implements [store.Store] in one directory.
type Store struct {
	memory

	db      *engine.DB
	lock    *engine.Lock
	failure *failure
	space   *spaceGuard
	fs      vfs.FS
	dir     string
	closed  *shutdownMarker // the marker that Open found; nil if there was none
	staging string          // directory in which a backup begins
	backups sync.Mutex      // one backup at a time, because there is one staging directory

	// commit serializes writes.
	commit sync.Mutex

	// calls are those that may take long.
	calls *store.Calls
}

var _ store.Store = (*Store)(nil)

// Open opens the store in o.Dir, or creates it, in a new incarnation that is on disk when Open returns. It
// reads the meta of each record once. Errors are [ErrInUse], [ErrIncomplete] for half a copy,
// [*store.DamageError], [*FormatError] for a store of a newer release, and those of the file system. The caller
// must call [Store.Close].
func Open(o Options) (*Store, error) {
	if o.Dir == "" {
		return nil, errors.New("store: no directory is given")
	}
	o.setDefaults()
	s := &Store{
		fs: o.FS, dir: o.Dir, staging: o.FS.PathJoin(o.Dir, stagingName),
		failure: newFailure(o.Log), calls: store.NewCalls(),
		memory: memory{memIndex: newState(), metas: newMetas(), events: newEvents(), commits: make(chan struct{})},
	}
	s.Memory = memindex.NewMemory(&s.mu, &s.state)
	s.space = &spaceGuard{fs: o.FS, dir: o.Dir, log: o.Log, stop: o.Stop, closing: s.calls.Closing}
	if err := s.open(&o); err != nil {
		return nil, fmt.Errorf("store: open %s: %w", o.Dir, err)
	}
	s.space.look()
	s.failure.calls.Go(s.watch)
	return s, nil
}

func (s *Store) open(o *Options) (err error) {
	if err := o.FS.MkdirAll(o.Dir, 0o700); err != nil {
		return err
	}
	if s.lock, err = lockDirectory(o.FS, o.Dir); err != nil {
		return err
	}
	for _, step := range []func(*Options) error{s.tidy, s.readClean, s.openEngine, s.loadState, s.checkClean, s.begin} {
		if err := step(o); err != nil {
			err = errors.Join(err, s.stop(func() error { return nil }))
			return cmp.Or(s.failure.get(), err)
		}
	}
	return nil
}

// tidy removes the staging directory of a backup that ended with its process, also the one of an earlier
// release.
func (s *Store) tidy(o *Options) error {
	if err := checkComplete(o.FS, o.Dir); err != nil {
		return err
	}
	return errors.Join(o.FS.RemoveAll(s.staging), o.FS.RemoveAll(o.FS.PathJoin(o.Dir, formerStagingName)))
}

func (s *Store) openEngine(o *Options) error {
	e := engineOptions(o, &disk{FS: o.FS, failure: s.failure, space: s.space, staging: s.staging}, s.failure)
	e.Lock = s.lock
	err := s.failure.attempt(func() (err error) {
		s.db, err = openEngine(o.Dir, e)
		return err
	})
	if engine.IsCorruptionError(err) {
		return &store.DamageError{Key: o.Dir, What: err.Error()}
	}
	return err
}

func engineOptions(o *Options, files vfs.FS, f *failure) *engine.Options {
	e := &engine.Options{
		FS:        files,
		CacheSize: o.CacheBytes,
		// The format is set by name, so that an upgrade of the library alone does not prevent a downgrade of the
		// broker.
		FormatMajorVersion: engine.FormatValueSeparation,
		MemTableSize:       o.memTableBytes,
		// Write stalls begin late. So a burst of works is flushed at the speed of the disk, and L0 may grow during
		// compactions.
		MemTableStopWritesThreshold: 6,
		// At a lower value more bytes are compacted per publish, because fewer versions of a work are dropped.
		L0CompactionThreshold: 8,
		L0StopWritesThreshold: 1000,
		MaxOpenFiles:          openFiles,
		EventListener:         f.listener(),
		Logger:                logger{f},
	}
	e.Experimental.ValueSeparationPolicy = func() engine.ValueSeparationPolicy { return separation }
	for i := range e.Levels {
		// Bloom filters help because most lookups for a new work are for missing keys.
		e.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		e.Levels[i].FilterType = engine.TableFilter
	}
	return e
}

// loadState loads the in-memory state.
func (s *Store) loadState(o *Options) error {
	ctx := context.Background()
	for _, kind := range loaded {
		err := each(ctx, s.db, within([]byte{kind}), func(key, body []byte) error {
			m, err := s.load(key, body)
			if err != nil || m == nil {
				return err
			}
			if what := s.aboveHead(m); what != "" {
				return value.Damage(key, what)
			}
			s.addRecord(m)
			return nil
		})
		if err != nil {
			return err
		}
	}
	s.state.Tally.Sort()
	s.ring = memindex.NewRing(o.ringSize, s.state.At.Revision+1)
	switch {
	case s.state.At.StoreID == "":
		// A store without a store id is new, or has lost its id.
		return each(ctx, s.db, &engine.IterOptions{}, func(key, _ []byte) error {
			return value.Damage([]byte{keyStoreID}, "it is missing, but there is "+value.PrintableKey(key))
		})
	case !s.headFound:
		return value.Damage([]byte{keyHead}, "it is missing in a store that has a store id")
	}
	above := within([]byte{value.Revision})
	above.LowerBound = value.NumberKey(value.Revision, s.state.At.Revision+1)
	return each(ctx, s.db, above, func(key, _ []byte) error {
		return value.Damage(key, fmt.Sprintf("it is above the head %d", s.state.At.Revision))
	})
}

// begin writes a new incarnation, and the store id of a new store.
func (s *Store) begin(o *Options) error {
	if s.lastIncarnation == math.MaxUint64 {
		return value.Damage(value.NumberKey(value.Incarnation, s.lastIncarnation), "there is no number for another incarnation")
	}
	return s.update(context.Background(), 0, func(b *batch) (apply func(), err error) {
		epoch, number := s.state.At.StoreID, s.lastIncarnation+1
		if epoch == "" {
			epoch = o.NewID()
			b.set([]byte{keyStoreID}, []byte(epoch))
			b.set([]byte{keyHead}, encodeNumber(0))
		}
		t := memindex.Incarnation{ID: o.NewID(), First: s.state.At.Revision + 1}
		b.set(value.NumberKey(value.Incarnation, number), value.EncodeIncarnation(t))
		if number > store.MaxIncarnations {
			b.removeRange(value.NumberKey(value.Incarnation, 0), value.NumberKey(value.Incarnation, number-store.MaxIncarnations+1))
		}
		// The readers of a new process begin at the head.
		err = each(context.Background(), s.db, within([]byte{value.Removal}), func(key, _ []byte) error {
			b.remove(key)
			return nil
		})
		if err != nil {
			return nil, err
		}
		renewed := s.renewBookmarks(b)
		return func() {
			s.newIncarnation(epoch, t)
			s.compacted = t.First - 1
			for _, c := range renewed {
				s.state.Bookmarks.Set(c.Key.ResourceID, &store.Bookmark{Value: c.Value, Revision: c.Revision})
				s.ring.Append(c)
				s.state.At.Revision = c.Revision
			}
		}, nil
	})
}

// renewBookmarks gives the bookmarks of a former format, which have no revision, the first revisions of the new
// incarnation. It returns their entries in the feed.
func (s *Store) renewBookmarks(b *batch) (entries []store.Change) {
	for name, v := range s.state.Bookmarks.All() {
		if v.Revision == 0 {
			entries = append(entries, bookmarkChange(name, v))
		}
	}
	if len(entries) == 0 {
		return nil
	}
	slices.SortFunc(entries, func(a, b store.Change) int { return cmp.Compare(a.Key.ResourceID, b.Key.ResourceID) })
	for i := range entries {
		entries[i].Revision = s.state.At.Revision + uint64(i) + 1
		b.setBookmark(entries[i].Key.ResourceID, store.Bookmark{Value: entries[i].Value, Revision: entries[i].Revision})
	}
	b.set([]byte{keyHead}, encodeNumber(entries[len(entries)-1].Revision))
	for _, kind := range []byte{keyFormerBookmark, keyFormerCluster} {
		b.removeRange([]byte{kind}, []byte{kind + 1})
	}
	return entries
}

// Err implements [store.Store].
func (s *Store) Err() error { return cmp.Or(s.failure.refusal(), s.space.err()) }

// Fatal implements [store.Store]. A full disk and too many open files are not fatal: then writes wait or are
// rejected, and [Store.Err] returns the cause.
func (s *Store) Fatal() <-chan error { return s.failure.fatal }

// Close implements [store.Store]. It returns the failure of the store, if there was one. After a failed write
// it does not touch the engine, and the directory stays locked until the process ends.
func (s *Store) Close() error {
	return s.calls.Close(func() error {
		stopped := s.stop(func() error { return s.position().sign(s.fs, s.dir) })
		return cmp.Or(s.failure.get(), stopped)
	})
}

// stop closes everything that Open opened. Unless the store failed, it calls sign at the end, while the
// directory is still locked. It first waits for engine calls that are still running after a failure, because
// they panic when the database is closed.
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
