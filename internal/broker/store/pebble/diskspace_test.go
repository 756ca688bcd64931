package pebble

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// until waits until done returns true; another goroutine causes that.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for !done() {
		select {
		case <-deadline:
			t.Fatalf("not within 30 s: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

// waits checks a store whose next engine call finds no space. It must reject new writes at once, and must not
// ask to end the process.
func waits(t *testing.T, s *Store, cause error) {
	t.Helper()
	until(t, "it waits", func() bool { return errors.Is(s.Err(), store.ErrNoSpace) })
	for what, err := range map[string]error{
		"err":    s.Err(),
		"commit": func() error { _, err := s.Commit(t.Context(), []store.Op{testOp(1, 1<<40)}); return err }(),
	} {
		if !errors.Is(err, store.ErrNoSpace) || !errors.Is(err, cause) {
			t.Errorf("%s of a store without room: %v", what, err)
		}
	}
	select {
	case err := <-s.Fatal():
		t.Errorf("it is to be ended: %v", err)
	default:
	}
}

// exhausting is a file system that fails with err at the ops that fault selects, while on is set.
func exhausting(fs vfs.FS, err error, fault func(op errorfs.Op) bool) (files vfs.FS, on *atomic.Bool) {
	return failing(fs, func(op errorfs.Op) error {
		if fault(op) {
			return err
		}
		return nil
	})
}

func created(op errorfs.Op) bool { return op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpRename }

// TestSpaceGuard_ResumesWhenSpaceReturns: each part of the engine in turn finds no space or no file descriptor.
// Only durable writes are acknowledged. The store continues when there is space.
func TestSpaceGuard_ResumesWhenSpaceReturns(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]struct {
		err   error
		fault func(op errorfs.Op) bool
	}{
		"disk full":                           {syscall.ENOSPC, func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileWrite }},
		"quota":                               {syscall.EDQUOT, func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileWrite }},
		"no new log":                          {syscall.ENOSPC, func(op errorfs.Op) bool { return created(op) && ofFile(op, "*.log") }},
		"no new table":                        {syscall.ENOSPC, func(op errorfs.Op) bool { return created(op) && ofFile(op, "*.sst") }},
		"too many open files, of the process": {syscall.EMFILE, func(op errorfs.Op) bool { return created(op) && ofFile(op, "*.log") }},
		"too many open files, of all":         {syscall.ENFILE, func(op errorfs.Op) bool { return created(op) && ofFile(op, "*.sst") }},
		"no log is opened":                    {syscall.EMFILE, func(op errorfs.Op) bool { return op.Kind == errorfs.OpOpen && ofFile(op, "*.log") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mem := vfs.NewCrashableMem()
			files, on := exhausting(mem, f.err, f.fault)
			s := mustOpen(t, tiny(files))
			a := newAcked()
			if err := a.churn(s, 0, 20); err != nil {
				t.Fatal(err)
			}
			on.Store(true)
			churned := make(chan error, 1)
			go func() { churned <- a.churn(s, 20, 500) }() // the result is received below
			waits(t, s, f.err)
			r, err := s.Get(t.Context(), testKey(1))
			if err != nil || string(r.Spec) != string(content(1, r.Version)) {
				t.Errorf("get from a store without room: version %d, %v", r.Version, err)
			}
			on.Store(false)
			if err := <-churned; err != nil && !errors.Is(err, store.ErrNoSpace) {
				t.Errorf("commit: %v", err)
			}
			until(t, "there is room", func() bool { return !errors.Is(s.Err(), store.ErrNoSpace) })
			if err := a.churn(s, 600, 50); err != nil {
				t.Fatal(err)
			}
			a.check(t, s)
			mustClose(t, s)
			s = mustOpen(t, tiny(mem.CrashClone(vfs.CrashCloneCfg{})))
			a.check(t, s)
			mustClose(t, s)
		})
	}
}

// TestSpaceGuard_ReadersWait: a file that cannot be opened for lack of a descriptor is not reported as damaged.
func TestSpaceGuard_ReadersWait(t *testing.T) {
	t.Parallel()
	files, on := exhausting(vfs.NewMem(), syscall.EMFILE, func(op errorfs.Op) bool { return op.Kind == errorfs.OpOpen && ofFile(op, "*.sst") })
	s := mustOpen(t, tiny(files))
	a := newAcked()
	if err := a.churn(s, 0, 3); err != nil {
		t.Fatal(err)
	}
	on.Store(true)
	if err := s.db.Flush(); err != nil { // makes a table that no reader has opened yet
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() { // the result is received below
		read <- s.Scan(context.Background(), store.Scope{DataType: codec.ManifestBundles}, func(store.Meta) error { return nil })
	}()
	waits(t, s, syscall.EMFILE)
	on.Store(false)
	if err := <-read; err != nil {
		t.Errorf("scan: %v", err)
	}
	until(t, "there is a descriptor", func() bool { return s.Err() == nil })
	a.check(t, s)
	mustClose(t, s)
}

// TestSpaceGuard_WakesAllWaitersAtTheEnd: a store that must stop does not wait for space. Commits in progress
// are not acknowledged.
func TestSpaceGuard_WakesAllWaitersAtTheEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(s *Store, stop chan struct{}){
		"close": func(*Store, chan struct{}) {},
		"stop":  func(_ *Store, stop chan struct{}) { close(stop) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mem := vfs.NewCrashableMem()
			files, on := exhausting(mem, syscall.ENOSPC, func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileWrite })
			o, stop := tiny(files), make(chan struct{})
			o.Stop = stop
			s := mustOpen(t, o)
			a := newAcked()
			if err := a.churn(s, 0, 20); err != nil {
				t.Fatal(err)
			}
			on.Store(true)
			committed := make(chan error, 1)
			go func() { _, err := s.Commit(context.Background(), []store.Op{testOp(1, 1<<40)}); committed <- err }() // the result is received below
			until(t, "it waits", func() bool { return errors.Is(s.Err(), store.ErrNoSpace) })
			end(s, stop)
			if err := s.Close(); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("close: %v", err)
			}
			// ErrNoSpace: a background flush had found the disk full before. ErrClosed: a flush found the disk full, and
			// the commit began after the store was closed.
			if err := <-committed; !errors.Is(err, store.ErrReadOnly) && !errors.Is(err, store.ErrNoSpace) && !errors.Is(err, store.ErrClosed) {
				t.Errorf("commit: %v", err)
			}
			s = mustOpen(t, tiny(mem.CrashClone(vfs.CrashCloneCfg{})))
			a.tried[1] = 1 << 40
			a.check(t, s)
			mustClose(t, s)
		})
	}
}

// measured sets the size of a file system to 1 MiB, and its free space.
func measured(t *testing.T, files *vfs.MemFS, free uint64) {
	t.Helper()
	files.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: free, TotalBytes: 1 << 20})
}

// TestSpaceGuard_OpensOnAFullDisk: the reserve makes the opening possible. Then the store accepts only
// deletions, and all writes once the reserve exists again.
func TestSpaceGuard_OpensOnAFullDisk(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	measured(t, mem, 1<<19)
	s := mustOpen(t, tiny(mem))
	a := newAcked()
	if err := errors.Join(s.Err(), a.churn(s, 0, 20)); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	reserve := mem.PathJoin(dir, reserveName)
	if info, err := mem.Stat(reserve); err != nil || info.Size() != 1<<15 {
		t.Fatalf("reserve: %+v, %v", info, err)
	}
	full := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind != errorfs.OpCreate && op.Kind != errorfs.OpFileWrite {
			return nil
		}
		if _, err := mem.Stat(reserve); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return syscall.ENOSPC
	}))
	measured(t, mem, 0)
	s = mustOpen(t, tiny(full))
	if err := s.Err(); !errors.Is(err, store.ErrLow) {
		t.Errorf("on a full disk: %v", err)
	}
	a.check(t, s)
	deletion := testOp(1, 1<<30)
	deletion.Deleting, deletion.Event = true, nil
	if out, err := s.Commit(t.Context(), []store.Op{deletion}); err != nil || out[0].Result != store.Confirmed {
		t.Errorf("deletion: %+v, %v", out, err)
	}
	measured(t, mem, 1<<19)
	s.space.look()
	if err := s.Err(); err != nil {
		t.Errorf("with room: %v", err)
	}
	if _, err := mem.Stat(reserve); err != nil {
		t.Errorf("the reserve is not there again: %v", err)
	}
	mustClose(t, s)
}

// TestSpaceGuard_Bookmarks: below the mark the store is low on space, until half as much more is free and the
// reserve exists.
func TestSpaceGuard_Bookmarks(t *testing.T) {
	t.Parallel()
	missing := errors.New("missing")
	for _, c := range []struct {
		was     bool
		free    uint64
		missing error
		low     string
	}{
		{false, 1000 << 20, nil, ""},
		{false, 99 << 20, nil, "99 MiB free, 100 MiB required"},
		{false, 100 << 20, nil, ""},
		{true, 100 << 20, nil, "100 MiB free, 150 MiB required"},
		{true, 150 << 20, nil, ""},
		{false, 1000 << 20, missing, "missing"},
		{true, 1000 << 20, missing, "missing"},
		{true, 0, missing, "0 MiB free"},
	} {
		err := lowness(c.was, c.free, 100<<20, c.missing)
		if (err == nil) != (c.low == "") || err != nil && (!errors.Is(err, store.ErrLow) || !strings.Contains(err.Error(), c.low)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestSpaceGuard_ReleasesReserve: deletions are accepted on a disk that is nearly full, and they free space
// even without other writes.
func TestSpaceGuard_ReleasesReserve(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	s := mustOpen(t, tiny(mem))
	var puts, drops []store.Op
	random := rand.NewChaCha8([32]byte{})
	for n := range 100 {
		op := testOp(n, 1)
		op.Event = make([]byte, 4<<10) // this event cannot be compressed
		if _, err := random.Read(op.Event); err != nil {
			t.Fatal(err)
		}
		puts = append(puts, op)
		drops = append(drops, store.Op{Kind: store.Drop, Key: op.Key, At: op.At})
	}
	if _, err := s.Commit(t.Context(), puts); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Flush(); err != nil {
		t.Fatal(err)
	}
	before := tables(t, mem)
	measured(t, mem, 0)
	s.space.look()
	if _, err := s.Commit(t.Context(), drops); err != nil {
		t.Fatal(err)
	}
	until(t, "there is a tenth of the tables", func() bool { return tables(t, mem) < before/10 })
	mustClose(t, s)
}

// tables returns the size of all tables, in bytes.
func tables(t *testing.T, files vfs.FS) (bytes int64) {
	t.Helper()
	names, err := files.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if filepath.Ext(name) != ".sst" {
			continue
		}
		if info, err := files.Stat(files.PathJoin(dir, name)); err == nil { // an error means: it was just removed
			bytes += info.Size()
		}
	}
	return bytes
}

// TestSpaceGuard_ReserveStays: the reserve is not part of a backup.
func TestSpaceGuard_ReserveStays(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	measured(t, mem, 1<<19)
	s := mustOpen(t, tiny(mem))
	a := newAcked()
	if err := a.churn(s, 0, 20); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	if _, err := copyStore(t.Context(), mem, dir, "copy"); err != nil {
		t.Fatal(err)
	}
	names, err := mem.List("copy")
	if err != nil || slices.Contains(names, reserveName) {
		t.Errorf("copied: %q, %v", names, err)
	}
}

// TestClose_NoSpaceForTheShutdownMarker: half a marker would be damage, so none is written.
func TestClose_NoSpaceForTheShutdownMarker(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	files, on := failing(mem, func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite && ofFile(op, cleanName+"*") {
			return syscall.ENOSPC
		}
		return nil
	})
	s := mustOpen(t, tiny(files))
	a := newAcked()
	if err := a.churn(s, 0, 20); err != nil {
		t.Fatal(err)
	}
	on.Store(true)
	if err := s.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("close: %v", err)
	}
	s = mustOpen(t, tiny(mem))
	a.check(t, s)
	mustClose(t, s)
}
