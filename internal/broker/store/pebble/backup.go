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

// There is one way out of a store, for a backup and for a copy: its files, in
// parts, one file after the other. And one way in: a directory that is marked as
// incomplete until all of them are there, checked, and on disk.

const (
	// IncompleteName is in a directory that is being filled, from before the
	// first file until all are on disk. Without it, half a copy could be taken
	// for a store, or for an empty place to make one in.
	IncompleteName = "INCOMPLETE"
	// AsidePrefix begins the names of directories that hold a former store, in the directory of the
	// store that followed it. No store takes notice of them.
	AsidePrefix = "aside-"
	lockName    = "LOCK"
	lostEntry   = "lost+found" // of a file system of its own
	// partBytes is how much of a file one part has at most.
	partBytes = 256 << 10
	// stagingName is a directory in that of the store, on its file system, in which
	// a backup begins: making second names of the tables is quick, so commits wait
	// for that and not for what comes after.
	stagingName       = "outgoing"
	formerStagingName = "BACKUP"
)

var (
	// ErrNotEmpty says that a copy should go where something is already.
	ErrNotEmpty = errors.New("the directory is not empty")
	// ErrIncomplete says that a directory holds half a copy.
	ErrIncomplete = errors.New("a copy into this directory was not finished")
)

// Backup sends the store, as it is at one moment during the call: everything
// acknowledged until then and nothing else. Commits go on. send gets parts of
// one file after the other, with its name in the first part of each, as
// [Receive] takes them; data is valid during the call. Backup returns
// [store.ErrBackup] when another one is being made, the error of send or of ctx,
// [store.ErrClosed] when the store is closed meanwhile, or [store.ErrReadOnly].
func (s *Store) Backup(ctx context.Context, send func(name string, data []byte) error) (err error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if !s.backups.TryLock() {
		return store.ErrBackup
	}
	defer s.backups.Unlock()
	// The log is copied while commits wait, so it shall be short.
	if err := s.failure.call(s.db.Flush); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.fs.RemoveAll(s.staging)) }()
	at, err := s.stage()
	if err != nil {
		return err
	}
	err = sendFiles(ctx, s.fs, s.staging, func(name string, data []byte) error {
		if s.isClosing() {
			return store.ErrClosed
		}
		return send(name, data)
	})
	if err != nil {
		return err
	}
	// Whoever opens the copy shall notice when it has lost its end.
	if at, err = at.at(s.fs, s.staging); err != nil {
		return err
	}
	return send(cleanName, at.value())
}

// stage copies the store as the last commit left it: none is under way.
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

// sendFiles sends the files of a directory. Only the first part of each has its
// name; data is valid during the call.
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
		if info.IsDir() || name == lockName || name == reserveName { // to open the lock would give it up
			continue
		}
		if err := sendFile(ctx, files, path, name, send); err != nil {
			return err
		}
	}
	return nil
}

// sendFile sends one file; an empty one is a part too.
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

// Clone copies the store in from, which no broker may have open, to a directory
// that is empty or not there: to back it up, or to restore a backup. It checks
// the store before, and the copy after, and leaves nothing behind when either is
// damaged ([*DamagedError]) or something else fails. The report is that of the
// copy, which is on disk when Clone returns nil. Opened, the copy begins a new
// term, so that cursors given out after it was made are not taken. Errors are
// those of [Check] and [ErrNotEmpty].
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

// Receive writes the files of a backup that come from elsewhere to a directory
// that is empty or not there, and checks them. next returns parts of one file
// after the other, with its name in the first part of each, and io.EOF after the
// last; another error of it ends the copy and is returned. What arrived is
// removed again when something fails. Errors are those of [Clone].
func Receive(ctx context.Context, to string, next func() (name string, data []byte, err error)) (*Report, error) {
	r, err := receive(ctx, vfs.Default, to, nil, pull(next))
	if err != nil {
		return nil, fmt.Errorf("store: copy to %s: %w", to, err)
	}
	return r, nil
}

// pull gives what next returns to take.
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

// receive makes a store of the files that send gives to take, and checks it, also
// against its original if that is known. Without any there is no directory.
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

// sameAs says how a copy differs from its original, if that is known.
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
	made []string // files
	file vfs.File // that comes at present, nil before the first one
}

// newIncoming takes a directory that is empty or not there.
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

// NoStore reports whether a name in the directory of a store belongs to no store.
func NoStore(name string) bool {
	return name == lockName || name == lostEntry || strings.HasPrefix(name, AsidePrefix)
}

// makeDir makes a directory with those that it is in, for the owner only: works
// can carry Secrets. They survive a power loss when it returns.
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
	if name == lockName && len(data) == 0 { // this directory has its own
		return nil
	}
	if name != "" {
		// Whoever sends must not choose where a file goes.
		if strings.ContainsAny(name, "/\\\x00") || name == "." || name == ".." || name == lockName || slices.Contains(in.made, name) {
			return fmt.Errorf("a store has no file %q, or it came twice", name)
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

// beginFile ends the file that comes at present and begins another one, which is
// taken away again if the copy fails.
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

// endFile ends the file that comes at present.
func (in *incoming) endFile() error {
	if in.file == nil {
		return nil
	}
	f := in.file
	in.file = nil
	return errors.Join(f.Sync(), f.Close())
}

// bookmark says that the copy is not finished.
func (in *incoming) bookmark() error { return errors.Join(in.beginFile(IncompleteName), in.endFile()) }

// unmark makes the copy count; it survives a power loss then.
func (in *incoming) unmark() error {
	if err := syncDir(in.fs, in.dir); err != nil {
		return err
	}
	if err := in.fs.Remove(in.fs.PathJoin(in.dir, IncompleteName)); err != nil {
		return err
	}
	if err := syncDir(in.fs, in.dir); err != nil { // it may be gone for good, or come back
		return errors.Join(err, in.bookmark())
	}
	return nil
}

// abandon takes away what was copied, so that another try finds the directory
// empty, and returns err. The mark of an incomplete copy goes last.
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
