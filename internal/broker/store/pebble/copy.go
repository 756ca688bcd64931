package pebble

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// Copy copies the store in from, which no broker may have open, to a directory
// that is empty or not there: to back it up, or to restore a backup. It checks
// the store before, and the copy after, and leaves nothing behind when either is
// damaged ([*DamagedError]) or something else fails. The report is that of the
// copy, which is on disk when Copy returns nil. Opened, the copy begins a new
// term, so that cursors given out after it was made are not taken. Errors are
// those of [Check] and [ErrNotEmpty].
func Copy(ctx context.Context, from, to string) (*Report, error) {
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
	t, err := newTarget(files, to)
	if err != nil {
		return nil, err
	}
	if err := t.copyAll(ctx, from); err != nil {
		return nil, t.abandon(err)
	}
	return t.verify(ctx, before)
}

// copyAll copies the files of a store that is not open.
func (t *target) copyAll(ctx context.Context, from string) error {
	names, err := t.fs.List(from)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		path := t.fs.PathJoin(from, name)
		info, err := t.fs.Stat(path)
		if err != nil {
			return err
		}
		if info.IsDir() || name == lockName { // to open the lock would give it up
			continue
		}
		if err := t.copy(path, name); err != nil {
			return err
		}
	}
	return nil
}

// verify checks a copy, and compares it with its original if that is known.
func (t *target) verify(ctx context.Context, original *Report) (*Report, error) {
	r, err := checkLocked(ctx, t.fs, t.dir, t.lock)
	if err == nil {
		err = r.Err()
	}
	if err == nil && original != nil {
		err = original.same(r)
	}
	if err != nil {
		return nil, t.abandon(err)
	}
	return r, t.finish()
}

// same says how a copy differs.
func (r *Report) same(o *Report) error {
	if r.Epoch == o.Epoch && r.Term == o.Term && r.Revision == o.Revision && r.Values == o.Values && r.Bytes == o.Bytes &&
		slices.Equal(r.Clusters, o.Clusters) {
		return nil
	}
	return &store.DamageError{Key: o.Dir, What: "the copy does not hold what the original holds"}
}

// Receive writes the files of a backup that come from elsewhere to a directory
// that is empty or not there, and checks them. next returns parts of one file
// after the other, with its name in the first part of each, and io.EOF after the
// last; another error of it ends the copy and is returned. What arrived is
// removed again when something fails. Errors are those of [Copy].
func Receive(ctx context.Context, to string, next func() (name string, data []byte, err error)) (*Report, error) {
	r, err := receive(ctx, vfs.Default, to, next)
	if err != nil {
		return nil, fmt.Errorf("store: copy to %s: %w", to, err)
	}
	return r, nil
}

func receive(ctx context.Context, files vfs.FS, to string, next func() (string, []byte, error)) (*Report, error) {
	// Who is refused at once leaves no directory behind.
	name, data, err := next()
	if errors.Is(err, io.EOF) {
		err = errors.New("nothing was sent")
	}
	if err != nil {
		return nil, err
	}
	t, err := newTarget(files, to)
	if err != nil {
		return nil, err
	}
	in := &incoming{target: t}
	for ; err == nil; name, data, err = next() {
		if err = in.take(name, data); err != nil {
			break
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if err = errors.Join(err, in.shut()); err != nil {
		return nil, t.abandon(err)
	}
	return t.verify(ctx, nil)
}

// incoming writes the parts of files as they come.
type incoming struct {
	*target
	file vfs.File // nil before the first one
}

func (in *incoming) shut() error {
	if in.file == nil {
		return nil
	}
	f := in.file
	in.file = nil
	return errors.Join(f.Sync(), f.Close())
}

func (in *incoming) take(name string, data []byte) error {
	if name == lockName && len(data) == 0 { // this directory has its own
		return nil
	}
	if name != "" {
		err := errors.Join(in.shut(), in.checkName(name))
		if err == nil {
			in.file, err = in.create(name)
		}
		if err != nil {
			return err
		}
	}
	if in.file == nil {
		return errors.New("the first part has no name")
	}
	_, err := in.file.Write(data)
	return err
}

// checkName: whoever sends must not choose where a file goes.
func (t *target) checkName(name string) error {
	if strings.ContainsAny(name, "/\\\x00") || name == "." || name == ".." || name == lockName || slices.Contains(t.made, name) {
		return fmt.Errorf("a store has no file %q, or it came twice", name)
	}
	return nil
}
