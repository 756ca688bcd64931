package pebble

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/taskgroup"
)

// spaceGuard tracks whether disk space and file descriptors are left for the store. A lack of them is not a
// failure of the disk. It can end without a restart:
//
//	      begins when                          ends when                          the store accepts
//	ample –                                    –                                  all writes
//	low   less than a mark is free,            half as much more is free,         only deletions
//	      or the reserve was released          and the reserve exists
//	none  a call of the engine finds no space, no call waits any more             no writes
//	      or no file descriptor
//
// In the state none, the engine sees no error, because its call is repeated until it succeeds. The reserve is a
// file that only occupies space. It is removed when a call finds no space. So a store can be opened on a full
// disk, and deletions still succeed.
type spaceGuard struct {
	fs  vfs.FS
	dir string
	log *slog.Logger
	// Waiting ends once one of these is closed.
	stop, closing <-chan struct{}

	written atomic.Bool // there were writes since the last compaction

	file     sync.Mutex // held while the reserve is made or removed
	reserved bool

	mu      sync.Mutex
	waiters int   // number of waiting calls of the engine
	cause   error // error of the call that began to wait last
	low     error // nil: there is ample space
}

const (
	reserveName = "RESERVE"
	// maxReserve is the maximum size of the reserve, in bytes. It is enough to write the logs of a store that was
	// low on space as a table. Small disks have a smaller reserve: 1/32 of the disk.
	maxReserve = 64 << 20
	// lowReserves is the number of reserves that must be free. That covers the writes of other programs between two
	// measurements, and the space that a compaction needs before it frees some.
	lowReserves = 4

	waitPause = time.Second / 4
	lookEvery = time.Second
	// compactPart limits compactions to about 1/compactPart of the time.
	compactPart = 10
)

// exhausted reports whether err is a lack of space or of file descriptors.
func exhausted(err error) bool { return full(err) || isAny(err, syscall.EMFILE, syscall.ENFILE) }

// full reports whether err is a lack of space.
func full(err error) bool { return isAny(err, syscall.ENOSPC, syscall.EDQUOT) }

func isAny(err error, all ...syscall.Errno) bool {
	return slices.ContainsFunc(all, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

// err returns nil while there is ample space.
func (r *spaceGuard) err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiters > 0 {
		return fmt.Errorf("%w: %w", store.ErrNoSpace, r.cause)
	}
	return r.low
}

func (r *spaceGuard) ample() bool { return r.err() == nil }

// none returns the error if all writes are rejected now, otherwise nil.
func (r *spaceGuard) none() error {
	if err := r.err(); errors.Is(err, store.ErrNoSpace) {
		return err
	}
	return nil
}

// retry repeats a call that just failed with err until there is space for it.
func (r *spaceGuard) retry(err error, call func() error) error {
	r.begin(err)
	for err = call(); exhausted(err) && r.wait(); err = call() {
	}
	r.end(err)
	return err
}

func (r *spaceGuard) begin(err error) {
	r.mu.Lock()
	if r.waiters++; r.waiters == 1 {
		r.log.Error("disk is full or no file descriptor is left; the store rejects writes until there is space", "error", err)
	}
	r.cause = err
	if full(err) && r.low == nil {
		r.low = lowFor(errGivenUp)
	}
	r.mu.Unlock()
	if full(err) {
		r.giveUp()
	}
}

func (r *spaceGuard) end(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiters--; r.waiters == 0 && !exhausted(err) {
		r.log.Info("store accepts writes again")
	}
}

// wait returns true after waitPause, or false if waiting has ended.
func (r *spaceGuard) wait() bool {
	select {
	case <-r.stop:
	case <-r.closing:
	case <-time.After(waitPause):
		return true
	}
	return false
}

// look measures the free space, and makes the reserve if there is space for it. If the file system cannot
// report free space, only a failed write shows that it is full.
func (r *spaceGuard) look() {
	u, err := r.fs.GetDiskUsage(r.dir)
	if err != nil {
		return
	}
	size := max(min(u.TotalBytes/32, maxReserve), 1)
	free, missing := u.AvailBytes, r.keep(size, u.AvailBytes >= 2*size)
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.low
	r.low = lowness(before != nil, free, lowReserves*size, missing)
	switch {
	case before == nil && r.low != nil:
		r.log.Error("disk is nearly full; the store accepts only deletions", "error", r.low)
	case before != nil && r.low == nil:
		r.log.Info("store has enough disk space again", "free_bytes", free)
	}
}

// lowness returns an error if less than mark is free or the reserve is missing, otherwise nil.
func lowness(was bool, free, mark uint64, missing error) error {
	if was {
		mark += mark / 2
	}
	if free < mark {
		return lowFor(fmt.Errorf("%d MiB free, %d MiB required", free>>20, mark>>20))
	}
	if missing != nil {
		return lowFor(missing)
	}
	return nil
}

func lowFor(why error) error { return fmt.Errorf("%w: %w", store.ErrLow, why) }

var errGivenUp = errors.New("its disk was full, and its reserve was deleted")

// keep makes a reserve of this size if may is true and there is none. It returns an error if there is no
// reserve.
func (r *spaceGuard) keep(size uint64, may bool) error {
	r.file.Lock()
	defer r.file.Unlock()
	if r.reserved {
		return nil
	}
	path := r.fs.PathJoin(r.dir, reserveName)
	info, err := r.fs.Stat(path)
	switch {
	case err == nil && uint64(info.Size()) >= size:
	case !may:
		return errGivenUp
	default:
		if err := fillFile(r.fs, path, size); err != nil {
			return errors.Join(fmt.Errorf("the reserve cannot be made: %w", err), r.fs.Remove(path))
		}
	}
	r.reserved = true
	return nil
}

// fillFile makes a file that occupies size bytes.
func fillFile(files vfs.FS, path string, size uint64) error {
	f, err := files.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if err = f.Preallocate(0, int64(size)); err == nil {
		_, err = f.WriteAt([]byte{0}, int64(size)-1) // the size of the file shows that it is complete
	} else if !exhausted(err) { // preallocation is not supported; random bytes cannot be compressed away
		_, err = io.CopyN(f, rand.NewChaCha8([32]byte{}), int64(size))
	}
	return errors.Join(err, f.Close())
}

// giveUp removes the reserve, so that the store can use its space.
func (r *spaceGuard) giveUp() {
	r.file.Lock()
	defer r.file.Unlock()
	r.reserved = false
	switch err := r.fs.Remove(r.fs.PathJoin(r.dir, reserveName)); {
	case err == nil:
		r.log.Warn("store deleted its reserve to free disk space")
	case !errors.Is(err, fs.ErrNotExist):
		r.log.Error("store cannot delete its reserve", "error", err)
	}
}

// watch measures the space of a store until it is closed.
func (s *Store) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-s.calls.Closing; cancel() }()
	var next time.Time // earliest time of the next compaction
	taskgroup.Every(ctx, lookEvery, func() {
		now := time.Now()
		s.space.look()
		if errors.Is(s.space.err(), store.ErrLow) && now.After(next) && s.space.written.Swap(false) {
			s.reclaim(ctx)
			next = time.Now().Add(compactPart * time.Since(now))
		}
	})
}

// reclaim frees the space of deleted data. The engine frees it only after many writes, and writes wait until
// space is free.
func (s *Store) reclaim(ctx context.Context) {
	err := s.failure.call(func() error { return s.db.Compact(ctx, []byte{0}, []byte{0xff}, false) })
	if err != nil && ctx.Err() == nil {
		s.space.log.Warn("store could not free the space of deleted data", "error", err)
	}
}
