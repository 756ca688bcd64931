package pebble

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// disk is the file system that the engine sees. The first write or sync that
// fails is the last: it is told to failure, and its goroutine never comes back
// from it. The engine would answer some of these errors with a panic or with a
// mutex unlocked twice, which ends the process without the reason, and would try
// others again without end. After a failed sync nobody knows what is on disk, so
// only a restart can go on.
type disk struct {
	vfs.FS
	failure *failure
	// staging is the directory of a backup in the making. An error there is one
	// of the backup.
	staging string
}

// check returns nil; or the error, if it is one of a backup; or never.
func (d *disk) check(op, name string, err error) error {
	switch {
	case err == nil, d.PathDir(name) == d.staging:
		return err
	case name == d.staging && op == "sync": // about which the engine would panic
		return nil // what is staged survives nothing
	case name == d.staging:
		return err
	}
	d.failure.writeFailed(fmt.Errorf("store: %s %s: %w", op, name, err))
	select {}
}

func (d *disk) file(op, name string, f vfs.File, err error) (vfs.File, error) {
	if err := d.check(op, name, err); err != nil {
		return nil, err
	}
	return &diskFile{File: f, disk: d, name: name}, nil
}

// Unwrap returns the file system below.
func (d *disk) Unwrap() vfs.FS { return d.FS }

func (d *disk) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.Create(name, category)
	return d.file("create", name, f, err)
}

func (d *disk) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.OpenReadWrite(name, category, opts...)
	return d.file("open", name, f, err)
}

func (d *disk) OpenDir(name string) (vfs.File, error) {
	f, err := d.FS.OpenDir(name)
	return d.file("open", name, f, err)
}

func (d *disk) Rename(oldname, newname string) error {
	return d.check("rename", newname, d.FS.Rename(oldname, newname))
}

func (d *disk) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.ReuseForWrite(oldname, newname, category)
	return d.file("reuse", newname, f, err)
}

// diskFile is a file opened for writing.
type diskFile struct {
	vfs.File
	disk *disk
	name string
}

func (f *diskFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	return n, f.disk.check("write", f.name, err)
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
		if p := recover(); p != nil { // its answer to some damage
			err = fmt.Errorf("%w: %v", errEngine, p)
		}
	}()
	return engine.Open(dir, e)
}

// lockDirectory returns ErrInUse when another has the directory.
func lockDirectory(files vfs.FS, dir string) (*engine.Lock, error) {
	lock, err := engine.LockDirectory(dir, files)
	if err == nil {
		return lock, nil
	}
	// Of the file: a path error. Of the lock: in the way of the platform.
	if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
		return nil, err
	}
	return nil, fmt.Errorf("%w (%w)", ErrInUse, err)
}

// lockToRead keeps brokers off a store that is there.
func lockToRead(files vfs.FS, dir string) (*engine.Lock, error) {
	if _, err := files.List(dir); err != nil {
		return nil, err
	}
	if err := checkComplete(files, dir); err != nil {
		return nil, err
	}
	return lockDirectory(unchanged{files}, dir)
}

// unchanged is a file system on which a lock changes nothing. Where no file to
// lock was ever made, as in a backup, or none can be, as on a medium that is
// read-only, there is nobody to keep off.
type unchanged struct{ vfs.FS }

// Lock keeps others off until it is closed.
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
