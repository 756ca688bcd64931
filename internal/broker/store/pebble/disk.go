package pebble

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"sync"
	"syscall"
	"time"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// failure is the reason why a store rejects all writes until a restart. It has one of two causes:
//
//   - A value cannot be read. The store is read-only; the engine works.
//   - A write or a sync failed. Then calls of the engine to the disk layer no longer return (see disk), and the owner of
//     the store must end the process.
//
// A full disk, or no free file descriptor, is not a failure: see spaceGuard.
type failure struct {
	log   *slog.Logger
	fatal chan error // capacity 1: there is at most one

	readOnly sync.Once
	c        chan struct{} // closed when err is set
	err      error

	noAnswer sync.Once
	stopped  chan struct{}  // closed when a write failed
	calls    sync.WaitGroup // calls that attempt made; some may outlast attempt
}

func newFailure(log *slog.Logger) *failure {
	return &failure{log: log, fatal: make(chan error, 1), c: make(chan struct{}), stopped: make(chan struct{})}
}

// set makes the store read-only. Only the first cause is kept.
func (f *failure) set(err error) {
	if f.refuse(err) {
		f.log.Error("store turned read-only; repair the disk or restore a backup, then restart", "error", err)
	}
}

// refuse makes the store reject writes. first is true if err is the first cause.
func (f *failure) refuse(err error) (first bool) {
	f.readOnly.Do(func() {
		f.err, first = err, true
		close(f.c)
	})
	return first
}

// writeFailed records the first failed write or sync. It sends to fatal before the store rejects writes, so a
// caller whose write is rejected can already see whether it is fatal.
func (f *failure) writeFailed(err error) {
	f.noAnswer.Do(func() {
		f.fatal <- err
		if f.refuse(err) {
			f.log.Error("store accepts no more writes; the process ends", "error", err)
		}
		close(f.stopped)
	})
}

// get returns the cause, nil while there is no failure.
func (f *failure) get() error {
	select {
	case <-f.c:
		return f.err
	default:
		return nil
	}
}

// refusal returns the error of writes after a failure, nil before.
func (f *failure) refusal() error {
	if err := f.get(); err != nil {
		return fmt.Errorf("%w: %w", store.ErrReadOnly, err)
	}
	return nil
}

// attempt makes a call of the engine. After a failure the call may never return, because it waits for the disk
// or retries without end because of damage. Then attempt returns the cause without waiting for the call.
func (f *failure) attempt(call func() error) error {
	done := make(chan error, 1)
	f.calls.Go(func() { done <- call() })
	return f.await(done)
}

// call is attempt for writes: it makes no call after a failure. If a failure occurs during the call, it returns
// the failure instead of the result.
func (f *failure) call(call func() error) error {
	if err := f.refusal(); err != nil {
		return err
	}
	err := f.attempt(call)
	return cmp.Or(f.refusal(), err)
}

// await waits for done, or for a failure that may block it for ever.
func (f *failure) await(done <-chan error) error {
	select {
	case err := <-done:
		return err
	case <-f.c:
	}
	select {
	case err := <-done: // most calls end soon
		return err
	case <-f.stopped:
	case <-time.After(time.Second):
	}
	return f.err
}

// logger receives the log of the engine. Fatal errors of the engine are about values that it read, because disk
// handles failed writes. After such an error the store is read-only, and the engine returns an error.
type logger struct{ *failure }

// Infof drops routine messages.
func (logger) Infof(string, ...any) {}

// Errorf logs a background problem that the engine survives.
func (l logger) Errorf(format string, args ...any) {
	l.log.Warn("store engine", "problem", fmt.Sprintf(format, args...))
}

// Fatalf makes the store read-only.
func (l logger) Fatalf(format string, args ...any) {
	l.set(fmt.Errorf("%w: %s", errEngine, fmt.Sprintf(format, args...)))
}

var errEngine = errors.New("store: fatal error of the engine")

// listener returns the listener for background events of the engine.
func (f *failure) listener() *engine.EventListener {
	return &engine.EventListener{
		BackgroundError: func(err error) {
			f.set(fmt.Errorf("store: background work: %w", err))
			// Without this pause, the engine would retry at once and find the same error.
			<-time.After(time.Second / 4)
		},
		DataCorruption: func(i engine.DataCorruptionInfo) {
			f.set(&store.DamageError{Key: i.Path, What: i.Details.Error()})
		},
	}
}

// disk is the file system of the engine. A call that finds no space, or no file descriptor, is retried until it
// succeeds. The first other failed write or sync is reported to failure, and the call never returns. The engine
// would answer some of these errors with a panic or with a double unlock, which ends the process without the
// reason. It would retry others without end. After a failed sync the content of the disk is unknown, so only a
// restart helps.
type disk struct {
	vfs.FS
	failure *failure
	space   *spaceGuard
	// staging is the directory of a backup in progress. Errors there only fail the backup.
	staging string
}

func (d *disk) staged(name string) bool { return name == d.staging || d.PathDir(name) == d.staging }

// check returns nil if err is nil, and err if it is about a file of a backup. For another error it never
// returns.
func (d *disk) check(op, name string, err error) error {
	switch {
	case err != nil && name == d.staging && op == "sync": // the engine would panic on this error
		return nil // staged files need not survive a power loss
	case err == nil, d.staged(name):
		return err
	}
	d.failure.writeFailed(named(op, name, err))
	select {}
}

func named(op, name string, err error) error { return fmt.Errorf("store: %s %s: %w", op, name, err) }

// patient repeats a call while there is no space for it. Not used for syncs: a second sync does not write what
// the first one failed to write.
func (d *disk) patient(op, name string, call func() error) error {
	err := call()
	if exhausted(err) && !d.staged(name) {
		err = d.space.retry(named(op, name, err), call)
	}
	return err
}

// file opens a file for writing.
func (d *disk) file(op, name string, open func() (vfs.File, error)) (f vfs.File, err error) {
	err = d.patient(op, name, func() error { f, err = open(); return err })
	if err := d.check(op, name, err); err != nil {
		return nil, err
	}
	return &diskFile{File: f, disk: d, name: name}, nil
}

// Unwrap returns the underlying file system.
func (d *disk) Unwrap() vfs.FS { return d.FS }

// Open opens a file for reading.
func (d *disk) Open(name string, opts ...vfs.OpenOption) (f vfs.File, err error) {
	err = d.patient("open", name, func() error { f, err = d.FS.Open(name, opts...); return err })
	return f, err
}

func (d *disk) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return d.file("create", name, func() (vfs.File, error) { return d.FS.Create(name, category) })
}

func (d *disk) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return d.file("open", name, func() (vfs.File, error) { return d.FS.OpenReadWrite(name, category, opts...) })
}

func (d *disk) OpenDir(name string) (vfs.File, error) {
	return d.file("open", name, func() (vfs.File, error) { return d.FS.OpenDir(name) })
}

func (d *disk) Rename(oldname, newname string) error {
	err := d.patient("rename", newname, func() error { return d.FS.Rename(oldname, newname) })
	return d.check("rename", newname, err)
}

// ReuseForWrite renames the file and opens it. Each step is retried while there is no space for it.
func (d *disk) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := d.Rename(oldname, newname); err != nil {
		return nil, err
	}
	return d.OpenReadWrite(newname, category)
}

// diskFile is a file that is open for writing.
type diskFile struct {
	vfs.File
	disk *disk
	name string
}

func (f *diskFile) Write(p []byte) (n int, err error) {
	err = f.disk.patient("write", f.name, func() error {
		some, err := f.File.Write(p[n:])
		n += some
		return err
	})
	return n, f.disk.check("write", f.name, err)
}

// Preallocate reserves space in advance, unless little space is left.
func (f *diskFile) Preallocate(offset, length int64) error {
	if f.disk.space.ample() {
		return f.File.Preallocate(offset, length)
	}
	return nil
}

func (f *diskFile) Sync() error { return f.disk.check("sync", f.name, f.File.Sync()) }

func (f *diskFile) SyncData() error { return f.disk.check("sync", f.name, f.File.SyncData()) }

func (f *diskFile) SyncTo(length int64) (bool, error) {
	full, err := f.File.SyncTo(length)
	return full, f.disk.check("sync", f.name, err)
}

func (f *diskFile) Close() error { return f.disk.check("close", f.name, f.File.Close()) }

// openEngine opens the database of a store.
func openEngine(dir string, e *engine.Options) (db *engine.DB, err error) {
	defer func() {
		if p := recover(); p != nil { // the engine panics on some damage
			err = fmt.Errorf("%w: %v", errEngine, p)
		}
	}()
	return engine.Open(dir, e)
}

// lockDirectory locks the directory. It returns ErrInUse if it is locked already.
func lockDirectory(files vfs.FS, dir string) (*engine.Lock, error) {
	lock, err := engine.LockDirectory(dir, files)
	// An error about the file is a path error. An error about the lock depends on the platform.
	if err == nil || errors.As(err, new(*fs.PathError)) {
		return lock, err
	}
	return nil, fmt.Errorf("%w (%w)", ErrInUse, err)
}

// lockToRead keeps brokers from opening an existing store.
func lockToRead(files vfs.FS, dir string) (*engine.Lock, error) {
	_, err := files.List(dir)
	if err == nil {
		err = checkComplete(files, dir)
	}
	if err != nil {
		return nil, err
	}
	return lockDirectory(unchanged{files}, dir)
}

// unchanged is a file system on which locking changes nothing. A backup has no lock file, and a read-only
// medium cannot have one. Then no broker can use the directory, and no lock is needed.
type unchanged struct{ vfs.FS }

// Lock locks a file until the result is closed.
func (u unchanged) Lock(name string) (io.Closer, error) {
	if _, err := u.FS.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return io.NopCloser(nil), nil
	}
	c, err := u.FS.Lock(name)
	if errors.Is(err, syscall.EROFS) {
		return io.NopCloser(nil), nil
	}
	return c, err
}

func syncDir(files vfs.FS, dir string) error {
	d, err := files.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
