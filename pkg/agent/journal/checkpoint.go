package journal

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Checkpoint stores the cursor, after everything that was put or removed before
// is on stable storage. It takes as long as the disk takes for all works that
// changed since the last one; nothing else is done meanwhile. While a work is
// dirty it changes nothing and returns the error of that work. The error is an
// *Error; the former cursor is in force then, and trying again later is right.
func (j *Journal) Checkpoint(c codec.Cursor) error {
	if c == (codec.Cursor{}) {
		return errNoCursor
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.phase != loaded {
		return errNotLoaded
	}
	if err := j.bind(); err != nil {
		return err
	}
	if err := j.settle(); err != nil {
		return err
	}
	j.rewrite()
	if names := slices.Sorted(maps.Keys(j.dirty)); len(names) > 0 {
		return fmt.Errorf("%d works are not in the state directory: %w", len(names), j.dirty[names[0]].err)
	}
	if err := j.flush(); err != nil || c == j.cursor {
		return err
	}
	j.cursor = codec.Cursor{}
	if err := j.replaceSynced(cursorFile, encodeCursor(c)); err != nil {
		return err
	}
	j.cursor = c
	return nil
}

// syncsAtOnce is how many files are synced at the same time: a file system does
// many together for little more than one.
const syncsAtOnce = 16

// flush makes works/ stable.
func (j *Journal) flush() error {
	names := slices.Sorted(maps.Keys(j.unsynced))
	errs := make([]error, len(names))
	var next atomic.Int64
	syncSome := func() {
		for i := next.Add(1) - 1; i < int64(len(names)); i = next.Add(1) - 1 {
			errs[i] = j.sync(worksDir + "/" + names[i])
		}
	}
	var others sync.WaitGroup
	for range min(j.width, len(names)) - 1 {
		others.Go(syncSome)
	}
	syncSome()
	others.Wait()
	for i, name := range names {
		if errs[i] != nil {
			j.suspect[name] = j.unsynced[name]
		}
		delete(j.unsynced, name)
	}
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return errs[i]
	}
	if !j.changed {
		return nil
	}
	if err := j.sync(worksDir); err != nil {
		return err
	}
	j.changed = false
	return nil
}

// rewrite writes the entries anew whose sync failed: a second sync of the same
// file would succeed whether the data is there or not.
func (j *Journal) rewrite() {
	for _, name := range slices.Sorted(maps.Keys(j.suspect)) {
		id := j.suspect[name]
		path := worksDir + "/" + name
		b, err := j.read(path, maxEntry)
		if err == nil {
			_, _, err = decodeEntry(name, b)
			err = j.failure("read", path, err)
		}
		if err == nil {
			j.changed = true
			err = j.replace(path, b)
		}
		delete(j.suspect, name)
		if err != nil {
			j.dirty[name] = lapse{id: id, err: err}
			continue
		}
		j.unsynced[name] = id
	}
}
