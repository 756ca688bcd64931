package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/storecopy"
	"github.com/hawser-io/hawser/internal/broker/store/value"
)

// ErrFormer means that an earlier release wrote the store. Its bookmarks get their revisions when a broker opens it.
var ErrFormer = errors.New("an earlier release wrote this store; start the broker of this release with it once, and stop it")

// keyCopied is the kind of a value in an incomplete target of a migration: the key of the last value that was copied.
const keyCopied = 'p'

// migrated lists the kinds of values that a migration copies. The others are functions of them.
var migrated = [...]byte{value.Incarnation, value.Bookmark, value.Meta, value.Spec, value.Status, value.Queued}

// values calls f for each value that a migration copies.
func values(ctx context.Context, r engine.Reader, f func(value.Stored) error) error {
	for _, kind := range migrated {
		if err := eachStored(ctx, r, within([]byte{kind}), f); err != nil {
			return err
		}
	}
	return nil
}

// Source is a store that a migration reads. It implements [storecopy.Source].
type Source struct {
	db   *engine.DB
	lock *engine.Lock
	head store.Head
}

// OpenSource checks the store in dir, and keeps brokers from opening it. It changes nothing. Errors are those of [Check],
// [*DamagedError] and [ErrFormer]. The caller must call Close.
func OpenSource(ctx context.Context, dir string) (s *Source, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("store: read %s: %w", dir, err)
		}
	}()
	lock, err := lockToRead(vfs.Default, dir)
	if err != nil {
		return nil, err
	}
	s = &Source{lock: lock}
	if err := s.open(ctx, dir); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Source) open(ctx context.Context, dir string) error {
	r, err := checkLocked(ctx, vfs.Default, dir, s.lock)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		return err
	}
	s.head = store.Head{StoreID: r.StoreID, Incarnation: r.Incarnation, Revision: r.Revision}
	if s.db, err = openLocked(dir, s.lock, true); err != nil {
		return err
	}
	former := &engine.IterOptions{LowerBound: []byte{keyFormerBookmark}, UpperBound: []byte{keyFormerCluster + 1}}
	return eachStored(ctx, s.db, former, func(value.Stored) error { return ErrFormer })
}

// openLocked opens the database of a directory whose lock is held.
func openLocked(dir string, lock *engine.Lock, readOnly bool) (*engine.DB, error) {
	o := Options{Dir: dir}
	o.setDefaults()
	e := engineOptions(&o, o.FS, newFailure(o.Log))
	e.ReadOnly, e.Lock = readOnly, lock
	return openEngine(dir, e)
}

// Head implements [storecopy.Source].
func (s *Source) Head() store.Head { return s.head }

// Values implements [storecopy.Reader].
func (s *Source) Values(ctx context.Context, f func(value.Stored) error) error {
	return values(ctx, s.db, f)
}

// Close releases the directory.
func (s *Source) Close() error {
	var err error
	if s.db != nil {
		err = s.db.Close()
	}
	return errors.Join(err, s.lock.Close())
}

// Target is a directory that a migration fills. It implements [storecopy.Target].
type Target struct {
	fs      vfs.FS
	dir     string
	db      *engine.DB // nil before Begin and after Finish
	lock    *engine.Lock
	content []string // names of the files, without those that are no store
}

// OpenTarget locks a directory that is empty, missing, or has an incomplete migration. Errors are [ErrInUse] and those
// of the file system. The caller must call Close.
func OpenTarget(dir string) (*Target, error) {
	t := &Target{fs: vfs.Default, dir: dir}
	if err := t.open(); err != nil {
		return nil, fmt.Errorf("store: write to %s: %w", dir, err)
	}
	return t, nil
}

func (t *Target) open() (err error) {
	if err := makeDir(t.fs, t.dir); err != nil {
		return err
	}
	if t.lock, err = lockDirectory(t.fs, t.dir); err != nil {
		return err
	}
	if t.content, err = t.fs.List(t.dir); err != nil {
		return errors.Join(err, t.lock.Close())
	}
	t.content = slices.DeleteFunc(t.content, NoStore)
	return nil
}

// Begin implements [storecopy.Target]. The file INCOMPLETE names the store that is copied. Alone in a directory it
// stands for nothing: its content may be cut.
func (t *Target) Begin(_ context.Context, of store.Head) (last []byte, err error) {
	mark, name := []byte(storecopy.Mark(of)), t.fs.PathJoin(t.dir, IncompleteName)
	others := slices.DeleteFunc(slices.Clone(t.content), func(name string) bool { return name == IncompleteName })
	if len(others) > 0 {
		var found bytes.Buffer
		switch err := copyTo(&found, t.fs, name); {
		case errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("%s: %w: it has %s", t.dir, storecopy.ErrNotEmpty, others[0])
		case err != nil:
			return nil, err
		case !bytes.Equal(found.Bytes(), mark):
			return nil, fmt.Errorf("%s: %w", t.dir, storecopy.ErrOther)
		}
	} else if err := t.mark(name, mark); err != nil {
		return nil, err
	}
	if t.db, err = openLocked(t.dir, t.lock, false); err != nil {
		return nil, err
	}
	last, _, err = get(t.db, []byte{keyCopied})
	return last, err
}

// mark writes the file INCOMPLETE.
func (t *Target) mark(name string, content []byte) error {
	f, err := t.fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close(), syncDir(t.fs, t.dir))
}

// Values implements [storecopy.Reader].
func (t *Target) Values(ctx context.Context, f func(value.Stored) error) error {
	return values(ctx, t.db, f)
}

// Write implements [storecopy.Target].
func (t *Target) Write(_ context.Context, list []value.Stored) error {
	b := &batch{Batch: t.db.NewBatch()}
	defer func() { _ = b.Close() }() // it has no error after a commit
	for _, v := range list {
		if err := b.copied(v); err != nil {
			return err
		}
	}
	b.set([]byte{keyCopied}, list[len(list)-1].Key)
	if b.err != nil {
		return b.err
	}
	return b.Commit(engine.Sync)
}

// copied adds one value, and those that are derived from it.
func (b *batch) copied(v value.Stored) error {
	if err := b.Set(v.Key, v.Value, nil); err != nil {
		return err
	}
	body, err := value.Unseal(v.Key, v.Value)
	if err != nil {
		return err
	}
	switch v.Key[0] {
	case value.Bookmark:
		mark, err := value.DecodeBookmark(v.Key, body)
		if err != nil {
			return err
		}
		c := bookmarkChange(string(v.Key[1:]), mark)
		b.set(value.NumberKey(value.Revision, c.Revision), value.AppendChange(nil, &c))
	case value.Meta:
		m, err := value.ParseMeta(v.Key, body)
		if err != nil {
			return err
		}
		var buffer [maxEntries]entry
		for _, e := range entries(buffer[:0], m) {
			b.set(e.appendKey(nil, m.Key), e.appendBody(nil, m))
		}
	}
	return nil
}

// Finish implements [storecopy.Target]. It checks the whole store.
func (t *Target) Finish(ctx context.Context, of store.Head) error {
	b := &batch{Batch: t.db.NewBatch()}
	b.set([]byte{keyStoreID}, []byte(of.StoreID))
	b.set([]byte{keyHead}, encodeNumber(of.Revision))
	b.remove([]byte{keyCopied})
	db := t.db
	t.db = nil
	if err := errors.Join(b.err, b.Commit(engine.Sync), b.Close(), db.Close()); err != nil {
		return err
	}
	at := shutdownMarker{incarnation: of.Incarnation, revision: of.Revision}
	if err := at.sign(t.fs, t.dir); err != nil {
		return err
	}
	r, err := checkLocked(ctx, t.fs, t.dir, t.lock)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		return err
	}
	return (&incoming{fs: t.fs, dir: t.dir}).unmark()
}

// Close releases the directory.
func (t *Target) Close() error {
	var err error
	if t.db != nil {
		err = t.db.Close()
	}
	return errors.Join(err, t.lock.Close())
}
