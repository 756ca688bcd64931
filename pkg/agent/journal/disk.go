package journal

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// disk is the file system interface of a Journal. Names are relative to the state directory and have at most
// one "/"; "." is the directory itself. Errors name the operation and the file; errors.Is distinguishes them.
type disk interface {
	// mkdir creates the directory and its parents, for the owner only. An existing directory is no error.
	mkdir() error
	// lock creates a file if needed and locks it until unlock, or until the process ends. The error is
	// syscall.EWOULDBLOCK if another process has the lock.
	lock(name string) (unlock func() error, err error)
	// list returns the names in a directory, sorted.
	list(dir string) ([]string, error)
	// open opens a regular file for reading.
	open(name string) (io.ReadCloser, error)
	// write creates a new file with this content; append appends to an existing one. After an error any part of the
	// content may be written.
	write(name string, content []byte) error
	append(name string, content []byte) error
	// sync returns when the contents of a file, or the names in a directory, are on stable storage.
	sync(name string) error
	// rename replaces the target atomically. It is on stable storage after a sync of the directory, and so is
	// remove.
	rename(from, to string) error
	remove(name string) error
}

// osDisk is a directory of this machine.
type osDisk struct{ dir string }

func (d osDisk) path(name string) string { return filepath.Join(d.dir, name) }

func (d osDisk) mkdir() error { return os.MkdirAll(d.dir, 0o700) }

func (d osDisk) lock(name string) (func() error, error) {
	f, err := os.OpenFile(d.path(name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(&fs.PathError{Op: "lock", Path: f.Name(), Err: err}, f.Close())
	}
	return func() error {
		// Closing is not enough: a child process that is being started has a copy of the descriptor until exec.
		return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close())
	}, nil
}

func (d osDisk) list(dir string) (names []string, err error) {
	entries, err := os.ReadDir(d.path(dir))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (d osDisk) open(name string) (io.ReadCloser, error) {
	// A named pipe must not make the agent wait for a writer.
	f, err := os.OpenFile(d.path(name), os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(&fs.PathError{Op: "read", Path: f.Name(), Err: fs.ErrInvalid}, err, f.Close())
	}
	return f, nil
}

func (d osDisk) write(name string, content []byte) error {
	return d.put(name, os.O_CREATE|os.O_EXCL, content)
}

func (d osDisk) append(name string, content []byte) error { return d.put(name, os.O_APPEND, content) }

func (d osDisk) put(name string, flags int, content []byte) error {
	f, err := os.OpenFile(d.path(name), os.O_WRONLY|flags, 0o600)
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

// absent returns nil for the error of an absent file.
func absent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
