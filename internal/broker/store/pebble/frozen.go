package pebble

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// frozen is a file system on which nothing can be changed: what checks a store
// must leave it as it is, whatever the engine would like to tidy up.
type frozen struct{ vfs.FS }

func refused(op, name string) error {
	return fmt.Errorf("%s %s: a check changes nothing: %w", op, name, fs.ErrPermission)
}

// Unwrap returns the file system below.
func (f frozen) Unwrap() vfs.FS { return f.FS }

func (frozen) Create(name string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	return nil, refused("create", name)
}

func (frozen) Link(_, newname string) error { return refused("link", newname) }

func (frozen) OpenReadWrite(name string, _ vfs.DiskWriteCategory, _ ...vfs.OpenOption) (vfs.File, error) {
	return nil, refused("open for writing", name)
}

func (frozen) Remove(name string) error { return refused("remove", name) }

func (frozen) RemoveAll(name string) error { return refused("remove", name) }

func (frozen) Rename(_, newname string) error { return refused("rename", newname) }

func (frozen) ReuseForWrite(_, newname string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	return nil, refused("reuse", newname)
}

func (frozen) MkdirAll(dir string, _ os.FileMode) error { return refused("make directory", dir) }

// Lock keeps others off while it is held. Where no file to lock was ever made,
// as in a backup, or none can be, as on a medium that is read-only, there is
// nobody to keep off.
func (f frozen) Lock(name string) (io.Closer, error) {
	if _, err := f.FS.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return nobody{}, nil
	}
	c, err := f.FS.Lock(name)
	if errors.Is(err, syscall.EROFS) {
		return nobody{}, nil
	}
	return c, err
}

type nobody struct{}

func (nobody) Close() error { return nil }
