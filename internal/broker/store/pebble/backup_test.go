package pebble

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// backup backs a store up into a directory of its file system.
func backup(ctx context.Context, s *Store, to string) error {
	_, err := receive(ctx, s.fs, to, nil, func(take func(string, []byte) error) error { return s.Backup(ctx, take) })
	return err
}

// TestBackup_HoldsAcknowledgedWrites: a backup made during commits has whole batches up to an acknowledged
// commit, and no damage. The store is not affected.
func TestBackup_HoldsAcknowledgedWrites(t *testing.T) {
	t.Parallel()
	files := vfs.NewMem()
	s := mustOpen(t, tiny(files))
	a := newAcked()
	enough := make(chan struct{})
	writing := make(chan error, 1)
	go func() {
		for round := 0; ; round++ {
			select {
			case <-enough:
				writing <- nil
				return
			default:
			}
			if err := a.churn(s, round, 1); err != nil {
				writing <- err
				return
			}
		}
	}()
	var taken []uint64
	for n := range 8 {
		before := s.Head().Revision
		at := fmt.Sprintf("backup-%d", n)
		if err := backup(t.Context(), s, at); err != nil {
			t.Fatal(err)
		}
		after := s.Head().Revision
		r := mustCheck(t, files, at)
		if err := r.Err(); err != nil {
			t.Fatal(err)
		}
		if r.Revision < before || r.Revision > after || !isWhole(r.Revision) || !r.Closed {
			t.Errorf("backup made between revisions %d and %d: %+v", before, after, r)
		}
		taken = append(taken, r.Revision)
	}
	close(enough)
	if err := <-writing; err != nil {
		t.Fatal(err)
	}
	a.check(t, s)
	epoch := s.Head().StoreID
	mustClose(t, s)
	if err := mustCheck(t, files, dir).Err(); err != nil {
		t.Error(err)
	}
	for n, revision := range taken {
		o := tiny(files)
		o.Dir = fmt.Sprintf("backup-%d", n)
		b := mustOpen(t, o)
		if h := b.Head(); h.StoreID != epoch || h.Revision != revision {
			t.Errorf("backup %d opens at %+v, want revision %d", n, h, revision)
		}
		if err := newAcked().churn(b, int(revision), 3); err != nil { // the backup can be used as a store
			t.Error(err)
		}
		mustClose(t, b)
	}
}

// TestBackup_Cursors: a restored backup rejects cursors that clients got after the backup.
func TestBackup_Cursors(t *testing.T) {
	t.Parallel()
	files := vfs.NewMem()
	s := mustOpen(t, tiny(files))
	a := newAcked()
	at := func() store.Cursor {
		h := s.Head()
		return store.Cursor{StoreID: h.StoreID, Incarnation: h.Incarnation, Revision: h.Revision}
	}
	noError(t, a.churn(s, 0, 2))
	early := at()
	noError(t, backup(t.Context(), s, "backup"))
	saved := at()
	noError(t, a.churn(s, 2, 2))
	lost := []store.Cursor{at()}
	mustClose(t, s)
	s = mustOpen(t, tiny(files))
	lost = append(lost, at())
	noError(t, a.churn(s, 4, 2))
	lost = append(lost, at())
	mustClose(t, s)

	for n, c := range []struct{ from, to string }{{"backup", "restored"}, {"restored", "again"}} {
		if _, err := copyStore(t.Context(), files, c.from, c.to); err != nil {
			t.Fatal(err)
		}
		o := tiny(files)
		o.Dir = c.to
		b := mustOpen(t, o)
		noError(t, newAcked().churn(b, 100*(n+1), 5)) // beyond the lost revisions
		for _, cursor := range []store.Cursor{early, saved} {
			if !b.ValidCursor(cursor) {
				t.Errorf("%s: cursor %v from before the backup is refused", c.to, cursor)
			}
		}
		for _, cursor := range lost {
			if b.ValidCursor(cursor) {
				t.Errorf("%s: cursor %v from after the backup is taken", c.to, cursor)
			}
		}
		mustClose(t, b)
	}
}

// TestBackup_OnDisk uses a real file system: a directory with missing parents, and one that has only
// lost+found.
func TestBackup_OnDisk(t *testing.T) {
	t.Parallel()
	d := t.TempDir()
	s := mustOpen(t, Options{Dir: filepath.Join(d, dir), memTableBytes: 64 << 10})
	noError(t, newAcked().churn(s, 0, 80))
	deep := filepath.Join(d, "a", "b", "backup")
	noError(t, backup(t.Context(), s, deep))
	if info := must(os.Stat(deep)); info.Mode().Perm() != 0o700 {
		t.Errorf("mode of the backup: %v", info.Mode())
	}
	mount := filepath.Join(d, "mount")
	noError(t, os.MkdirAll(filepath.Join(mount, lostEntry), 0o700))
	noError(t, backup(t.Context(), s, mount))
	for what, err := range map[string]error{
		"a backup is there": backup(t.Context(), s, deep),
		"the store's own":   backup(t.Context(), s, filepath.Join(d, dir)),
	} {
		if err == nil || !errors.Is(err, ErrNotEmpty) && !errors.Is(err, ErrInUse) {
			t.Errorf("%s: %v", what, err)
		}
	}
	file := filepath.Join(d, "file")
	noError(t, os.WriteFile(file, nil, 0o600))
	if err := backup(t.Context(), s, filepath.Join(file, "x")); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("below a file: %v", err)
	}
	if _, err := os.Stat(s.staging); !os.IsNotExist(err) {
		t.Errorf("staging is left: %v", err)
	}
	mustClose(t, s)
	for _, at := range []string{deep, mount} {
		r, err := Check(t.Context(), at)
		if err != nil || r.Err() != nil || r.Revision != afterRounds(80) {
			t.Errorf("%s: %+v, %v", at, r, err)
		}
	}
	r, err := Clone(t.Context(), deep, filepath.Join(d, "copy"))
	if err != nil || r.Dir != filepath.Join(d, "copy") {
		t.Errorf("copy: %+v, %v", r, err)
	}
}

// TestBackup_StopsWhenCanceled: the end of its context and Close both stop a backup. No file is left.
func TestBackup_StopsWhenCanceled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var hook atomic.Pointer[func()]
	mem := vfs.NewMem()
	files := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if f := hook.Load(); f != nil && op.Kind == errorfs.OpOpen && strings.HasPrefix(op.Path, dir+"/"+stagingName+"/") && strings.HasSuffix(op.Path, ".sst") {
			(*f)()
		}
		return nil
	}))
	s := mustOpen(t, tiny(files))
	noError(t, newAcked().churn(s, 0, 80))
	empty := func(what string) {
		t.Helper()
		names, err := mem.List("backup")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if names = slices.DeleteFunc(names, func(n string) bool { return n == lockName }); len(names) > 0 {
			t.Errorf("%s: %v is left", what, names)
		}
		if _, err := mem.Stat(s.staging); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: staging is left: %v", what, err)
		}
	}
	stop := func() { cancel() }
	hook.Store(&stop)
	if err := backup(ctx, s, "backup"); !errors.Is(err, context.Canceled) {
		t.Errorf("backup whose context ends: %v", err)
	}
	empty("context")
	if err := backup(ctx, s, "backup"); !errors.Is(err, context.Canceled) {
		t.Errorf("backup whose context has ended: %v", err)
	}
	second := func() {
		hook.Store(nil)
		if err := backup(t.Context(), s, "other"); !errors.Is(err, store.ErrBackup) {
			t.Errorf("a second backup meanwhile: %v", err)
		}
	}
	hook.Store(&second)
	noError(t, backup(t.Context(), s, "backup"))
	closed := make(chan error, 1)
	shut := func() {
		hook.Store(nil)
		go func() { closed <- s.Close() }()
		<-s.calls.Closing
	}
	hook.Store(&shut)
	if err := backup(t.Context(), s, "late"); !errors.Is(err, store.ErrClosed) {
		t.Errorf("backup of a store that is being closed: %v", err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if err := backup(t.Context(), s, "later"); !errors.Is(err, store.ErrClosed) {
		t.Errorf("backup of a closed store: %v", err)
	}
	if err := mustCheck(t, mem, "backup").Err(); err != nil {
		t.Error(err)
	}
}

// TestBackup_FullDisk: a disk that is full for the backup, or fails, does not harm the store. It leaves no half
// backup that looks complete.
func TestBackup_FullDisk(t *testing.T) {
	t.Parallel()
	below := func(dir string) func(op errorfs.Op) bool {
		return func(op errorfs.Op) bool { return strings.HasPrefix(op.Path, dir+"/") || op.Path == dir }
	}
	for name, where := range map[string]func(op errorfs.Op) bool{"staging": below(dir + "/" + stagingName), "target": below("backup")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mem := vfs.NewCrashableMem()
			var left atomic.Int64
			left.Store(1 << 40)
			files := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				// Removals succeed, because they need no space.
				if !where(op) || !writes(op) || op.Kind == errorfs.OpRemove || op.Kind == errorfs.OpRemoveAll {
					return nil
				}
				if left.Add(-1) < 0 {
					return syscall.ENOSPC
				}
				return nil
			}))
			s := mustOpen(t, tiny(files))
			a := newAcked()
			round := 0
			for ; round < 80; round++ {
				noError(t, a.churn(s, round, 1))
			}
			for n := int64(0); ; n++ {
				left.Store(n)
				err := backup(t.Context(), s, "backup")
				left.Store(1 << 40)
				if err == nil { // there was enough space
					if n < 5 {
						t.Errorf("a backup takes %d writes", n)
					}
					break
				}
				if !errors.Is(err, syscall.ENOSPC) {
					t.Fatalf("disk full after %d writes: %v", n, err)
				}
				noError(t, a.churn(s, round, 1)) // the store continues
				round++
				if r, err := checkDir(t.Context(), mem, "backup"); err == nil && r.Damaged == 0 {
					t.Fatalf("disk full after %d writes: there is a backup: %+v", n, r)
				}
			}
			noError(t, mustCheck(t, mem, "backup").Err())
			a.check(t, s)
			mustClose(t, s)
		})
	}
}

// TestBackup_FailedStore: a failed store cannot be backed up.
func TestBackup_FailedStore(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	files, on := failing(mem, func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite && ofFile(op, "*.log") || op.Kind == errorfs.OpCreate && ofFile(op, "*.sst") {
			return syscall.EIO
		}
		return nil
	})
	s := mustOpen(t, tiny(files))
	a := newAcked()
	noError(t, a.churn(s, 0, 3))
	on.Store(true)
	// The backup flushes a table, which cannot be written.
	if err := backup(t.Context(), s, "backup"); !errors.Is(err, store.ErrReadOnly) || !errors.Is(err, syscall.EIO) {
		t.Errorf("backup on a failing disk: %v", err)
	}
	if err := backup(t.Context(), s, "backup"); !errors.Is(err, store.ErrReadOnly) {
		t.Errorf("backup of a failed store: %v", err)
	}
	if _, err := mem.Stat("backup"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a backup: %v", err)
	}
	if err := s.Close(); !errors.Is(err, syscall.EIO) {
		t.Errorf("close: %v", err)
	}
}

// TestBackup_PowerLoss: a finished backup survives a power loss. An unfinished one does not look like a backup,
// and its files are removed.
func TestBackup_PowerLoss(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	var mu sync.Mutex // the engine also works in the background
	var moments []*vfs.MemFS
	files, on := failing(mem, func(op errorfs.Op) error {
		if writes(op) {
			mu.Lock()
			defer mu.Unlock()
			rng := rand.New(rand.NewPCG(uint64(len(moments)), 1))
			moments = append(moments, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rng}))
		}
		return nil
	})
	s := mustOpen(t, tiny(files))
	a := newAcked()
	noError(t, a.churn(s, 0, 30))
	noError(t, s.db.Flush())
	on.Store(true)
	err := backup(t.Context(), s, "backup")
	done := mem.CrashClone(vfs.CrashCloneCfg{})
	on.Store(false)
	noError(t, err)
	mustClose(t, s)
	if err := mustCheck(t, done, "backup").Err(); err != nil {
		t.Error(err)
	}
	mu.Lock() // a fault in progress has ended
	defer mu.Unlock()
	if len(moments) < 10 {
		t.Fatalf("power was lost %d times", len(moments))
	}
	for n, fs := range moments {
		switch r, err := checkDir(t.Context(), fs, "backup"); {
		case errors.Is(err, os.ErrNotExist), errors.Is(err, ErrNoStore), errors.Is(err, ErrIncomplete):
		case err != nil:
			t.Errorf("power lost at write %d: %v", n, err)
		case r.Err() != nil || r.Revision != afterRounds(30):
			t.Errorf("power lost at write %d: %+v", n, r)
		}
		after := mustOpen(t, tiny(fs))
		a.check(t, after)
		if _, err := fs.Stat(after.staging); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("power lost at write %d: staging is left: %v", n, err)
		}
		mustClose(t, after)
	}
}
