package pebble

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// A backup and a copy both send the files of a store in parts, one file after the other. The target directory
// of both is marked as incomplete until all files are received, checked, and on disk.

const (
	// IncompleteName is a file in a directory that is being filled. It exists from before the first file until all
	// files are on disk. Without it, a broker could use half a copy as a store, or create a store in the directory.
	IncompleteName = "INCOMPLETE"
	// AsidePrefix is the prefix of directories that hold a previous store, in the directory of its successor.
	// Stores ignore them.
	AsidePrefix = "aside-"
	lockName    = "LOCK"
	lostEntry   = "lost+found" // in the root of a file system
	// partBytes is the maximum size of one part of a file.
	partBytes = 256 << 10
	// stagingName is a directory in that of the store, on the same file system, in which a backup begins. Hard
	// links to the tables are made there, which is fast. Commits wait only for these links.
	stagingName       = "outgoing"
	formerStagingName = "BACKUP"
)

var (
	// ErrNotEmpty means that the target directory of a copy is not empty.
	ErrNotEmpty = errors.New("the directory is not empty")
	// ErrIncomplete means that the directory holds half a copy.
	ErrIncomplete = errors.New("a copy into this directory was not finished")
)

// Backup sends the store as of one moment during the call: everything acknowledged until then and nothing else.
// Commits continue. send gets the parts of one file after the other, as [Receive] expects them; the first part
// of each file has its name. data is valid during the call.
//
// Backup returns [store.ErrBackup] if another backup is running, and [store.ErrClosed] if the store is closed
// during the call. It also returns [store.ErrReadOnly], or the error of send or of ctx.
func (s *Store) Backup(ctx context.Context, send func(name string, data []byte) error) (err error) {
	leave, err := s.calls.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if !s.backups.TryLock() {
		return store.ErrBackup
	}
	defer s.backups.Unlock()
	// Commits wait while the log is copied, so a flush makes it short first.
	if err := s.failure.call(s.db.Flush); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.fs.RemoveAll(s.staging)) }()
	at, err := s.stage()
	if err != nil {
		return err
	}
	err = sendFiles(ctx, s.fs, s.staging, func(name string, data []byte) error {
		if s.calls.AreClosing() {
			return store.ErrClosed
		}
		return send(name, data)
	})
	if err != nil {
		return err
	}
	// With the checksums of these files, the opening of the copy detects a lost end of its log.
	if at, err = at.at(s.fs, s.staging); err != nil {
		return err
	}
	return send(cleanName, at.value())
}

// stage copies the store as of the last commit; commits wait during the call.
func (s *Store) stage() (shutdownMarker, error) {
	s.commit.Lock()
	defer s.commit.Unlock()
	err := s.failure.call(func() error {
		if err := s.db.Checkpoint(s.staging); err != nil {
			return fmt.Errorf("store: back up: %w", err)
		}
		return nil
	})
	return s.position(), err
}

// sendFiles sends the files of a directory. Only the first part of each file has its name; data is valid during
// the call.
func sendFiles(ctx context.Context, files vfs.FS, dir string, send func(name string, data []byte) error) error {
	names, err := files.List(dir)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		path := files.PathJoin(dir, name)
		info, err := files.Stat(path)
		if err != nil {
			return err
		}
		if info.IsDir() || name == lockName || name == reserveName { // closing a second handle of the lock file would release the lock
			continue
		}
		if err := sendFile(ctx, files, path, name, send); err != nil {
			return err
		}
	}
	return nil
}

// sendFile sends one file. An empty file is sent as one empty part.
func sendFile(ctx context.Context, files vfs.FS, path, name string, send func(name string, data []byte) error) (err error) {
	f, err := files.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	buffer := make([]byte, partBytes)
	for {
		n, err := io.ReadFull(f, buffer)
		last := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !last {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if n > 0 || name != "" {
			if err := send(name, buffer[:n]); err != nil {
				return err
			}
		}
		if last {
			return nil
		}
		name = ""
	}
}

// Clone copies the store in directory from to directory to, which must be empty or missing. It makes or
// restores a backup. No broker may have the store open. Clone checks the store before and the copy after. If
// either is damaged ([*DamagedError]) or anything else fails, it leaves nothing behind. It returns the report
// about the copy, which is on disk when Clone returns nil. Opening the copy begins a new incarnation, so
// cursors that clients got after the copy are rejected. Errors are those of [Check] and [ErrNotEmpty].
func Clone(ctx context.Context, from, to string) (*Report, error) {
	return copyStore(ctx, vfs.Default, from, to)
}

func copyStore(ctx context.Context, files vfs.FS, from, to string) (r *Report, err error) {
	defer func() {
		if err != nil {
			r, err = nil, fmt.Errorf("store: copy %s to %s: %w", from, to, err)
		}
	}()
	lock, err := lockToRead(files, from)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	before, err := checkLocked(ctx, files, from, lock)
	if err == nil {
		err = before.Err()
	}
	if err != nil {
		return nil, err
	}
	return receive(ctx, files, to, before, func(take func(string, []byte) error) error {
		return sendFiles(ctx, files, from, take)
	})
}

// Receive writes the files of a backup to a directory that is empty or missing, and checks them. next returns
// the parts of one file after the other, with the name of the file in its first part, and io.EOF after the
// last. Another error of next ends the copy and is returned. If anything fails, the received files are removed.
// Errors are those of [Clone].
func Receive(ctx context.Context, to string, next func() (name string, data []byte, err error)) (*Report, error) {
	r, err := receive(ctx, vfs.Default, to, nil, pull(next))
	if err != nil {
		return nil, fmt.Errorf("store: copy to %s: %w", to, err)
	}
	return r, nil
}

// pull returns a function that passes the results of next to take.
func pull(next func() (name string, data []byte, err error)) func(take func(string, []byte) error) error {
	return func(take func(string, []byte) error) error {
		for {
			name, data, err := next()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err == nil {
				err = take(name, data)
			}
			if err != nil {
				return err
			}
		}
	}
}

// receive makes a store of the files that send passes to take, and checks it. If original is not nil, the copy
// must equal it. If send passes no file, receive makes no directory.
func receive(ctx context.Context, files vfs.FS, to string, original *Report, send func(take func(name string, data []byte) error) error) (*Report, error) {
	var in *incoming
	err := send(func(name string, data []byte) (err error) {
		if in == nil {
			if in, err = newIncoming(files, to); err != nil {
				return err
			}
		}
		return in.receive(name, data)
	})
	if in == nil {
		return nil, cmp.Or(err, errors.New("nothing was sent"))
	}
	var r *Report
	if err = errors.Join(err, in.endFile()); err == nil {
		r, err = checkLocked(ctx, files, to, in.lock)
	}
	if err == nil {
		err = r.Err()
	}
	if err == nil {
		err = r.sameAs(original)
	}
	if err == nil {
		err = in.unmark()
	}
	if err != nil {
		return nil, in.abandon(err)
	}
	return r, in.lock.Close()
}

// sameAs returns an error if a copy differs from its original; o may be nil.
func (r *Report) sameAs(o *Report) error {
	if o == nil || r.StoreID == o.StoreID && r.Incarnation == o.Incarnation && r.Revision == o.Revision && r.Values == o.Values && r.Bytes == o.Bytes &&
		slices.Equal(r.Clusters, o.Clusters) {
		return nil
	}
	return &store.DamageError{Key: r.Dir, What: "the copy does not hold what the original holds"}
}

// incoming is a directory that is being filled with the files of a store.
type incoming struct {
	fs   vfs.FS
	dir  string
	lock *engine.Lock
	made []string // created files
	file vfs.File // current file, nil before the first one
}

// newIncoming prepares a directory that is empty or missing.
func newIncoming(files vfs.FS, dir string) (*incoming, error) {
	if err := makeDir(files, dir); err != nil {
		return nil, err
	}
	lock, err := lockDirectory(files, dir)
	if err != nil {
		return nil, err
	}
	in := &incoming{fs: files, dir: dir, lock: lock}
	names, err := files.List(dir)
	if err == nil {
		names = slices.DeleteFunc(names, NoStore)
		slices.Sort(names)
		switch {
		case slices.Contains(names, IncompleteName):
			err = fmt.Errorf("%s: %w", dir, ErrIncomplete)
		case len(names) > 0:
			err = fmt.Errorf("%s: %w: it has %s", dir, ErrNotEmpty, names[0])
		}
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	if err := errors.Join(in.bookmark(), syncDir(files, dir)); err != nil {
		return nil, in.abandon(err)
	}
	return in, nil
}

// NoStore reports whether a file of this name in a directory is not a file of a store.
func NoStore(name string) bool {
	return name == lockName || name == lostEntry || strings.HasPrefix(name, AsidePrefix)
}

// makeDir creates a directory and its parents, readable by the owner only: works can carry Secrets. Once
// makeDir returns, they survive a power loss.
func makeDir(files vfs.FS, dir string) error {
	_, err := files.Stat(dir)
	if err == nil || files.PathDir(dir) == dir {
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeDir(files, files.PathDir(dir)); err != nil {
		return err
	}
	if err := files.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return syncDir(files, files.PathDir(dir))
}

// receive writes one part of a file.
func (in *incoming) receive(name string, data []byte) error {
	if name == lockName && len(data) == 0 { // this directory has its own lock
		return nil
	}
	if name != "" {
		// The sender must not write outside of the directory.
		if strings.ContainsAny(name, "/\\\x00") || name == "." || name == ".." || name == lockName || slices.Contains(in.made, name) {
			return fmt.Errorf("the file %q does not belong to a store, or was received twice", name)
		}
		if err := in.beginFile(name); err != nil {
			return err
		}
	}
	if in.file == nil {
		return errors.New("the first part has no name")
	}
	_, err := in.file.Write(data)
	return err
}

// beginFile ends the current file and begins the next file, which is removed if the copy fails.
func (in *incoming) beginFile(name string) error {
	if err := in.endFile(); err != nil {
		return err
	}
	f, err := in.fs.Create(in.fs.PathJoin(in.dir, name), vfs.WriteCategoryUnspecified)
	if err == nil {
		in.file, in.made = f, append(in.made, name)
	}
	return err
}

// endFile ends the current file.
func (in *incoming) endFile() error {
	if in.file == nil {
		return nil
	}
	f := in.file
	in.file = nil
	return errors.Join(f.Sync(), f.Close())
}

// bookmark creates the file INCOMPLETE, which marks the copy as incomplete.
func (in *incoming) bookmark() error { return errors.Join(in.beginFile(IncompleteName), in.endFile()) }

// unmark removes the file INCOMPLETE. The copy is then complete and survives a power loss.
func (in *incoming) unmark() error {
	if err := syncDir(in.fs, in.dir); err != nil {
		return err
	}
	if err := in.fs.Remove(in.fs.PathJoin(in.dir, IncompleteName)); err != nil {
		return err
	}
	if err := syncDir(in.fs, in.dir); err != nil { // the file INCOMPLETE may exist again after a power loss
		return errors.Join(err, in.bookmark())
	}
	return nil
}

// abandon removes the received files, so that the directory is empty for the next attempt, and returns err. It
// removes the file INCOMPLETE last.
func (in *incoming) abandon(err error) error {
	errs := []error{err}
	for _, name := range slices.Backward(in.made) {
		if rerr := in.fs.Remove(in.fs.PathJoin(in.dir, name)); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			errs = append(errs, rerr)
		}
	}
	return errors.Join(append(errs, syncDir(in.fs, in.dir), in.lock.Close())...)
}

// checkComplete returns an error for half a copy.
func checkComplete(files vfs.FS, dir string) error {
	_, err := files.Stat(files.PathJoin(dir, IncompleteName))
	switch {
	case err == nil:
		return fmt.Errorf("%w: empty it and make the copy again", ErrIncomplete)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	default:
		return err
	}
}
