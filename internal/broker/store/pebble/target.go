package pebble

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// incompleteName is in a directory that is being filled, from before the
	// first file until all are on disk. Without it, half a copy could be taken
	// for a store, or for an empty place to make one in.
	incompleteName = "INCOMPLETE"
	lockName       = "LOCK"
	lostName       = "lost+found" // of a file system of its own
)

var (
	// ErrNotEmpty says that a copy should go where something is already.
	ErrNotEmpty = errors.New("the directory is not empty")
	// ErrIncomplete says that a directory holds half a copy.
	ErrIncomplete = errors.New("a copy into this directory was not finished")
)

// target is a directory that is being filled with the files of a store.
type target struct {
	fs   vfs.FS
	dir  string
	lock *engine.Lock
	made []string // files
}

// newTarget takes a directory that is empty or not there.
func newTarget(files vfs.FS, dir string) (*target, error) {
	if err := makeDir(files, dir); err != nil {
		return nil, err
	}
	lock, err := lockDirectory(files, dir)
	if err != nil {
		return nil, err
	}
	t := &target{fs: files, dir: dir, lock: lock}
	names, err := files.List(dir)
	if err == nil {
		names = slices.DeleteFunc(names, func(n string) bool { return n == lockName || n == lostName })
		slices.Sort(names)
		switch {
		case slices.Contains(names, incompleteName):
			err = fmt.Errorf("%s: %w", dir, ErrIncomplete)
		case len(names) > 0:
			err = fmt.Errorf("%s: %w: it has %s", dir, ErrNotEmpty, names[0])
		}
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return t, t.start()
}

// makeDir makes a directory with those that it is in, for the owner only: works
// can carry Secrets. They survive a power loss when it returns.
func makeDir(files vfs.FS, dir string) error {
	var missing []string
	at := dir
	for ; ; at = files.PathDir(at) {
		_, err := files.Stat(at)
		if err == nil || files.PathDir(at) == at {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		missing = append(missing, at)
	}
	if err := files.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, m := range missing {
		if err := syncDir(files, files.PathDir(m)); err != nil {
			return err
		}
	}
	return nil
}

func (t *target) start() error {
	f, err := t.create(incompleteName)
	if err == nil {
		err = errors.Join(f.Sync(), f.Close(), syncDir(t.fs, t.dir))
	}
	if err != nil {
		return t.abandon(err)
	}
	return nil
}

// create makes a file, which is taken away again if the copy fails.
func (t *target) create(name string) (vfs.File, error) {
	f, err := t.fs.Create(t.fs.PathJoin(t.dir, name), vfs.WriteCategoryUnspecified)
	if err == nil {
		t.made = append(t.made, name)
	}
	return f, err
}

// link makes a file of the target a second name of another, or a copy of it
// where that is not possible. The other one is never written again.
func (t *target) link(from, name string) error {
	t.made = append(t.made, name)
	return vfs.LinkOrCopy(t.fs, from, t.fs.PathJoin(t.dir, name))
}

// copy copies a file.
func (t *target) copy(from, name string) (err error) {
	src, err := t.fs.Open(from, vfs.SequentialReadsOption)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	dst, err := t.create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Sync(), dst.Close())
}

// finish makes the copy count; it survives a power loss then.
func (t *target) finish() error {
	if err := syncDir(t.fs, t.dir); err != nil {
		return t.abandon(err)
	}
	if err := t.fs.Remove(t.fs.PathJoin(t.dir, incompleteName)); err != nil {
		return t.abandon(err)
	}
	err := syncDir(t.fs, t.dir)
	if err == nil {
		return t.lock.Close()
	}
	// The mark may be gone for good, or come back.
	f, cerr := t.create(incompleteName)
	if cerr == nil {
		cerr = errors.Join(f.Sync(), f.Close())
	}
	return t.abandon(errors.Join(err, cerr))
}

// abandon takes away what was copied, so that another try finds the directory
// empty, and returns err. The mark of an incomplete copy goes last.
func (t *target) abandon(err error) error {
	errs := []error{err}
	for _, name := range slices.Backward(t.made) {
		if rerr := t.fs.Remove(t.fs.PathJoin(t.dir, name)); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			errs = append(errs, rerr)
		}
	}
	return errors.Join(append(errs, syncDir(t.fs, t.dir), t.lock.Close())...)
}

// checkComplete returns an error for half a copy.
func checkComplete(files vfs.FS, dir string) error {
	_, err := files.Stat(files.PathJoin(dir, incompleteName))
	switch {
	case err == nil:
		return fmt.Errorf("%w: empty it and make the copy again", ErrIncomplete)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	default:
		return err
	}
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
