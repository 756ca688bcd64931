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

// spaceGuard is what a store knows of the room that disk and process have for it. It comes
// and goes without a fault of the disk, so nobody has to start anything again:
//
//	      begins when                          ends when                          the store takes
//	ample –                                    –                                  everything
//	low   less than a mark is free,            half as much more is free,         what makes room
//	      or the reserve was given up          and the reserve is there
//	none  a call of the engine finds no room,  no call waits any more             nothing
//	      or no file descriptor
//
// The engine does not hear of the last one: its call is made again until it comes
// through. The reserve is a file that only takes room. It is given up for a call
// that finds none, so that a store can be opened on a full disk, and what makes room
// goes on.
type spaceGuard struct {
	fs  vfs.FS
	dir string
	log *slog.Logger
	// Nothing is waited for once one of these is closed.
	stop, closing <-chan struct{}

	written atomic.Bool // since room was given back

	file     sync.Mutex // held while the reserve is made or given up
	reserved bool

	mu      sync.Mutex
	waiters int   // calls of the engine
	cause   error // of the last one that began to wait
	low     error // nil: there is ample room
}

const (
	reserveName = "RESERVE"
	// maxReserve is enough to make a table of what is in the logs of a store that was
	// low on room. Small disks have a smaller one: a part of 32.
	maxReserve = 64 << 20
	// So many reserves have to be free. What others write between two looks must fit
	// in, and what a compaction needs before it makes room.
	lowReserves = 4

	waitPause = time.Second / 4
	lookEvery = time.Second
	// compactPart of the time is spent with giving room back.
	compactPart = 10
)

// exhausted: there is no room, or no file descriptor is left.
func exhausted(err error) bool { return full(err) || isAny(err, syscall.EMFILE, syscall.ENFILE) }

// full: there is no room.
func full(err error) bool { return isAny(err, syscall.ENOSPC, syscall.EDQUOT) }

func isAny(err error, all ...syscall.Errno) bool {
	return slices.ContainsFunc(all, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

// err is nil while there is ample room.
func (r *spaceGuard) err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiters > 0 {
		return fmt.Errorf("%w: %w", store.ErrNoSpace, r.cause)
	}
	return r.low
}

func (r *spaceGuard) ample() bool { return r.err() == nil }

// none is why nothing is written at the moment.
func (r *spaceGuard) none() error {
	if err := r.err(); errors.Is(err, store.ErrNoSpace) {
		return err
	}
	return nil
}

// retry makes a call, that just ended with err, until there is room for it.
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
		r.log.Error("store has no room or no file descriptor; it takes nothing until there is", "error", err)
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
		r.log.Info("store goes on writing")
	}
}

// wait returns after a while; false: nothing is waited for any more.
func (r *spaceGuard) wait() bool {
	select {
	case <-r.stop:
	case <-r.closing:
	case <-time.After(waitPause):
		return true
	}
	return false
}

// look measures what is free, and makes the reserve where there is room for it. A file
// system that does not say what is free is full when a write fails.
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
		r.log.Error("store takes only what makes room, as deletions", "error", r.low)
	case before != nil && r.low == nil:
		r.log.Info("store has room again", "free_bytes", free)
	}
}

// lowness is why there is not ample room: less than the mark is free, or the reserve
// is missing.
func lowness(was bool, free, mark uint64, missing error) error {
	if was {
		mark += mark / 2
	}
	if free < mark {
		return lowFor(fmt.Errorf("%d MiB are free, %d MiB have to be", free>>20, mark>>20))
	}
	if missing != nil {
		return lowFor(missing)
	}
	return nil
}

func lowFor(why error) error { return fmt.Errorf("%w: %w", store.ErrLow, why) }

var errGivenUp = errors.New("its disk was full, and its reserve was given up")

// keep returns why there is no reserve of that size, and makes one if it may.
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

// fillFile makes a file that takes room.
func fillFile(files vfs.FS, path string, size uint64) error {
	f, err := files.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if err = f.Preallocate(0, int64(size)); err == nil {
		_, err = f.WriteAt([]byte{0}, int64(size)-1) // it has its size when it is whole
	} else if !exhausted(err) { // the file system cannot do that; what can be compressed would take no room
		_, err = io.CopyN(f, rand.NewChaCha8([32]byte{}), int64(size))
	}
	return errors.Join(err, f.Close())
}

// giveUp makes the room of the reserve that of the store.
func (r *spaceGuard) giveUp() {
	r.file.Lock()
	defer r.file.Unlock()
	r.reserved = false
	switch err := r.fs.Remove(r.fs.PathJoin(r.dir, reserveName)); {
	case err == nil:
		r.log.Warn("store gave up its reserve")
	case !errors.Is(err, fs.ErrNotExist):
		r.log.Error("store cannot give up its reserve", "error", err)
	}
}

// watch looks after the room of a store until it is closed.
func (s *Store) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-s.closing; cancel() }()
	var next time.Time // when room is given back
	taskgroup.Every(ctx, lookEvery, func() {
		now := time.Now()
		s.space.look()
		if errors.Is(s.space.err(), store.ErrLow) && now.After(next) && s.space.written.Swap(false) {
			s.reclaim(ctx)
			next = time.Now().Add(compactPart * time.Since(now))
		}
	})
}

// reclaim gives back the room of what is deleted. The engine does so when enough is
// written, and that waits for the room.
func (s *Store) reclaim(ctx context.Context) {
	err := s.failure.call(func() error { return s.db.Compact(ctx, []byte{0}, []byte{0xff}, false) })
	if err != nil && ctx.Err() == nil {
		s.space.log.Warn("store could not give back the room of what is deleted", "error", err)
	}
}
