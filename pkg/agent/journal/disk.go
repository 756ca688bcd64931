package journal

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// disk is what a Journal needs of a file system. Names are relative to the state
// directory and have at most one "/"; "." is the directory itself. Errors are
// those of the system; errors.Is tells them apart. Methods may be
// called concurrently.
type disk interface {
	// mkdir makes a directory and those above it, for the owner only. It is no
	// error if the directory is there.
	mkdir(name string) error
	// lock makes a file if needed and holds it until unlock, or until the process
	// ends. The error is syscall.EWOULDBLOCK if another process holds it.
	lock(name string) (unlock func() error, err error)
	// list returns the names in a directory.
	list(dir string) ([]string, error)
	// read returns a whole file; one that is longer than limit, or no regular
	// file, is a damage.
	read(name string, limit int64) ([]byte, error)
	// write makes a new file with this content; a file that had the name is
	// unlinked. When it fails, any part of the content may be there.
	write(name string, content []byte) error
	// sync returns when the contents of a file, or the names in a directory, are
	// on stable storage.
	sync(name string) error
	// rename replaces the target at once. It is on stable storage when the
	// directory is synced, and so is remove.
	rename(from, to string) error
	remove(name string) error
}

// osDisk is a directory of this machine.
type osDisk struct{ dir string }

func (d osDisk) path(name string) string { return filepath.Join(d.dir, name) }

func (d osDisk) mkdir(name string) error { return os.MkdirAll(d.path(name), 0o700) }

func (d osDisk) lock(name string) (func() error, error) {
	f, err := os.OpenFile(d.path(name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		// Closing is not enough: a process that is being started has a copy of the
		// file until it runs.
		return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close())
	}, nil
}

func (d osDisk) list(dir string) ([]string, error) {
	entries, err := os.ReadDir(d.path(dir))
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

func (d osDisk) read(name string, limit int64) ([]byte, error) {
	// A pipe under that name must not make the agent wait for a writer.
	f, err := os.OpenFile(d.path(name), os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	b, err := contents(f, limit)
	return b, errors.Join(err, f.Close())
}

func contents(f *os.File, limit int64) ([]byte, error) {
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, damage("it is no file")
	case info.Size() > limit:
		return nil, damage("it is too long")
	}
	b := make([]byte, info.Size())
	_, err = io.ReadFull(f, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, damage("it was cut off")
	}
	return b, err
}

func (d osDisk) write(name string, content []byte) error {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	f, err := os.OpenFile(d.path(name), flags, 0o600)
	if errors.Is(err, fs.ErrExist) {
		if err = os.Remove(d.path(name)); err == nil {
			f, err = os.OpenFile(d.path(name), flags, 0o600)
		}
	}
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}

func (d osDisk) sync(name string) error {
	f, err := os.Open(d.path(name))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (d osDisk) rename(from, to string) error { return os.Rename(d.path(from), d.path(to)) }

func (d osDisk) remove(name string) error { return os.Remove(d.path(name)) }

// gone makes it no error that a file is not there.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
