package pebble

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// At the end of a log Pebble takes damage for the torn write of a power loss
// and drops it, with everything behind it. After a clean stop there is no torn
// write: a file beside the log says with which term and revision the store was
// closed, and a store that has less is damaged.

const cleanName = "CLEAN"

// clean is the position at which a store was closed.
type clean struct {
	term     string
	revision uint64
}

// position is that of a store that writes nothing at present.
func (s *Store) position() clean { return clean{s.head.Term, s.head.Revision} }

// value is what the file holds.
func (c clean) value() []byte {
	body := encodeTerm(term{c.term, c.revision})
	v := make([]byte, sealed(body))
	sealTo(v, []byte(cleanName), body)
	return v
}

// sign writes the file, which survives a power loss when it returns.
func (c clean) sign(files vfs.FS, dir string) error {
	f, err := files.Create(files.PathJoin(dir, cleanName), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(c.value())
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return syncDir(files, dir)
}

// readClean returns what the last Close wrote; ok is false when the store was
// not closed, or is new.
func readClean(files vfs.FS, dir string) (c clean, ok bool, err error) {
	name := files.PathJoin(dir, cleanName)
	f, err := files.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return clean{}, false, nil
	}
	if err != nil {
		return clean{}, false, err
	}
	v, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return clean{}, false, err
	}
	body, err := unseal([]byte(cleanName), v)
	if err != nil {
		return clean{}, false, &store.DamageError{Key: name, What: "it says where the store was closed; remove it to open the store as after a crash"}
	}
	t, err := decodeTerm(body)
	if err != nil {
		return clean{}, false, &store.DamageError{Key: name, What: err.Error()}
	}
	return clean{t.id, t.first}, true, nil
}

// checkClean compares the store with what the last Close wrote, and removes
// that: from now on the store may end without a Close.
func (s *Store) checkClean(o *Options) error {
	c, ok, err := readClean(o.FS, o.Dir)
	if err != nil || !ok {
		return err
	}
	if err := c.compare(o.Dir, &s.state); err != nil {
		return err
	}
	if err := o.FS.Remove(o.FS.PathJoin(o.Dir, cleanName)); err != nil {
		return err
	}
	return syncDir(o.FS, o.Dir)
}

// compare says what a store in dir has lost since it was closed.
func (c clean) compare(dir string, s *state) error {
	head := s.highest()
	switch i := slices.IndexFunc(s.terms, func(t term) bool { return t.id == c.term }); {
	case i < 0:
		return &store.DamageError{Key: dir, What: "it was closed under a term that it does not have: the end of its log is lost"}
	case i == len(s.terms)-1 && head != c.revision:
		return &store.DamageError{Key: dir, What: fmt.Sprintf("it was closed at revision %d and has %d: the end of its log is lost", c.revision, head)}
	default:
		return nil
	}
}
