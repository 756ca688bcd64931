package pebble

import (
	"fmt"
	"os"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// guard is the file system that Pebble sees. No error of a write or sync
// reaches Pebble, which answers some of them with a panic, some with a mutex
// unlocked twice, and tries others again without end: the store turns read-only
// and the goroutine that wanted to write stops for good, where it is. Reads go
// on. After a failed sync nothing that was written can be trusted anyway, so
// there is nothing to go on with but a restart.
type guard struct {
	vfs.FS
	failure *failure
	// spared is a directory in which a failure is not one of the store: its
	// error goes to whoever writes there. But where the directory itself cannot
	// be synced Pebble panics; that error is late, for whoever asked Pebble.
	spared string
	late   atomic.Pointer[error]
}

// check returns nil, or not at all; or the error, where that does no harm.
func (g *guard) check(op, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case name == g.spared && op == "sync":
		g.late.CompareAndSwap(nil, &err)
		return nil
	case name == g.spared || g.PathDir(name) == g.spared:
		return err
	}
	g.failure.set(fmt.Errorf("store: %s %s: %w", op, name, err))
	park()
	return err
}

// park stops the calling goroutine.
func park() { select {} }

func (g *guard) file(f vfs.File, name string) vfs.File {
	if f == nil {
		return nil
	}
	return &guardedFile{File: f, guard: g, name: name}
}

// Unwrap returns the file system below.
func (g *guard) Unwrap() vfs.FS { return g.FS }

func (g *guard) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := g.FS.Create(name, category)
	return g.file(f, name), g.check("create", name, err)
}

func (g *guard) Link(oldname, newname string) error {
	return g.check("link", newname, g.FS.Link(oldname, newname))
}

func (g *guard) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := g.FS.OpenReadWrite(name, category, opts...)
	return g.file(f, name), g.check("open", name, err)
}

func (g *guard) OpenDir(name string) (vfs.File, error) {
	f, err := g.FS.OpenDir(name)
	return g.file(f, name), g.check("open", name, err)
}

func (g *guard) Rename(oldname, newname string) error {
	return g.check("rename", newname, g.FS.Rename(oldname, newname))
}

func (g *guard) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := g.FS.ReuseForWrite(oldname, newname, category)
	return g.file(f, newname), g.check("reuse", newname, err)
}

func (g *guard) MkdirAll(dir string, perm os.FileMode) error {
	return g.check("make directory", dir, g.FS.MkdirAll(dir, perm))
}

// guardedFile is a file opened for writing.
type guardedFile struct {
	vfs.File
	guard *guard
	name  string
}

func (f *guardedFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	return n, f.guard.check("write", f.name, err)
}

func (f *guardedFile) WriteAt(p []byte, offset int64) (int, error) {
	n, err := f.File.WriteAt(p, offset)
	return n, f.guard.check("write", f.name, err)
}

func (f *guardedFile) Sync() error {
	return f.guard.check("sync", f.name, f.File.Sync())
}

func (f *guardedFile) SyncData() error {
	return f.guard.check("sync", f.name, f.File.SyncData())
}

func (f *guardedFile) SyncTo(length int64) (bool, error) {
	full, err := f.File.SyncTo(length)
	return full, f.guard.check("sync", f.name, err)
}

func (f *guardedFile) Close() error {
	return f.guard.check("close", f.name, f.File.Close())
}
