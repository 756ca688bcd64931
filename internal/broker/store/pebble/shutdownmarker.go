package pebble

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"strings"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
)

// At the end of a log, and of a manifest, Pebble takes damage for the torn write of
// a power loss and drops it, with everything behind it. After a clean stop there is
// no torn write: a file beside them says with which term and revision the store was
// closed, and what these files were. A store that has less is damaged.

const cleanName = "CLEAN"

// shutdownMarker says how a store was closed.
type shutdownMarker struct {
	incarnation string
	revision    uint64
	files       []fileSum // manifest and logs, none in the mark of an earlier release
	changed     error     // how these differ now
}

// fileSum is the content of a file.
type fileSum struct {
	name string
	crc  uint64
}

// position is that of a store that writes nothing at present.
func (s *Store) position() shutdownMarker {
	return shutdownMarker{incarnation: s.head.Incarnation, revision: s.head.Revision}
}

// manifestOf returns the name of the present manifest, "" where there is none.
func manifestOf(files vfs.FS, dir string) (string, error) {
	d, err := engine.Peek(dir, files)
	if err != nil || !d.Exists {
		return "", err
	}
	return files.PathBase(d.ManifestFilename), nil
}

// at is c with the files in dir.
func (c shutdownMarker) at(files vfs.FS, dir string) (shutdownMarker, error) {
	manifest, err := manifestOf(files, dir)
	if err != nil {
		return c, err
	}
	names, err := files.List(dir)
	if err != nil {
		return c, err
	}
	slices.Sort(names)
	for _, name := range names {
		if name != manifest && !strings.HasSuffix(name, ".log") {
			continue
		}
		crc, err := sumOf(files, files.PathJoin(dir, name))
		if err != nil {
			return c, err
		}
		c.files = append(c.files, fileSum{name, crc})
	}
	return c, nil
}

func sumOf(files vfs.FS, path string) (uint64, error) {
	sum := crc32.New(castagnoli)
	err := copyTo(sum, files, path)
	return uint64(sum.Sum32()), err
}

// copyTo writes what a file holds to w.
func copyTo(w io.Writer, files vfs.FS, path string) error {
	f, err := files.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return errors.Join(err, f.Close())
}

// compareFiles says which file in dir is not what it was at the end. An opening that did
// not come to its own end has begun another manifest, and may have removed logs.
func (c shutdownMarker) compareFiles(files vfs.FS, dir string) error {
	manifest, err := manifestOf(files, dir)
	if err != nil || !slices.ContainsFunc(c.files, func(s fileSum) bool { return s.name == manifest }) {
		return err
	}
	for _, s := range c.files {
		path := files.PathJoin(dir, s.name)
		switch crc, err := sumOf(files, path); {
		case errors.Is(err, fs.ErrNotExist):
			return &store.DamageError{Key: path, What: "it is missing since the store was closed"}
		case err != nil:
			return err
		case crc != s.crc:
			return &store.DamageError{Key: path, What: "it changed since the store was closed"}
		}
	}
	return nil
}

// value is what the file holds.
func (c shutdownMarker) value() []byte {
	body := encodeTerm(memindex.Incarnation{ID: c.incarnation, First: c.revision})
	for _, s := range c.files {
		body = binary.AppendUvarint(appendString(body, s.name), s.crc)
	}
	v := make([]byte, sealed(body))
	sealTo(v, []byte(cleanName), body)
	return v
}

// sign writes the file about a store that is closed; it survives a power loss when
// sign returns. Before, there is none: half of one would be damage.
func (c shutdownMarker) sign(files vfs.FS, dir string) error {
	c, err := c.at(files, dir)
	if err != nil {
		return err
	}
	name := files.PathJoin(dir, cleanName)
	draft := name + ".new"
	f, err := files.Create(draft, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(c.value())
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, files.Remove(draft))
	}
	if err := files.Rename(draft, name); err != nil {
		return err
	}
	return syncDir(files, dir)
}

// readClean returns what the last Close wrote, and compares the files with it: the
// engine, when it opens, changes them. nil: the store was not closed, or is new.
func readClean(files vfs.FS, dir string) (*shutdownMarker, error) {
	name := files.PathJoin(dir, cleanName)
	var v bytes.Buffer
	switch err := copyTo(&v, files, name); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	body, err := unseal([]byte(cleanName), v.Bytes())
	if err != nil {
		return nil, &store.DamageError{Key: name, What: "it says where the store was closed; remove it to open the store as after a crash"}
	}
	r := reader{b: body}
	c := &shutdownMarker{incarnation: r.string(), revision: r.uint64()}
	for len(r.b) > 0 {
		c.files = append(c.files, fileSum{name: r.string(), crc: r.uint64()})
	}
	if r.what != "" {
		return nil, &store.DamageError{Key: name, What: r.what}
	}
	c.changed = c.compareFiles(files, dir)
	return c, nil
}

// readClean is the first step of an opening.
func (s *Store) readClean(o *Options) (err error) {
	s.closed, err = readClean(o.FS, o.Dir)
	return err
}

// checkClean compares the store with what the last Close wrote, and removes
// that: from now on the store may end without a Close.
func (s *Store) checkClean(o *Options) error {
	if s.closed == nil {
		return nil
	}
	if err := s.closed.compare(o.Dir, &s.memIndex); err != nil {
		return err
	}
	if err := o.FS.Remove(o.FS.PathJoin(o.Dir, cleanName)); err != nil {
		return err
	}
	return syncDir(o.FS, o.Dir)
}

// compare says what a store in dir has lost since it was closed.
func (c shutdownMarker) compare(dir string, s *memIndex) error {
	head := s.highest()
	switch i := slices.IndexFunc(s.incarnations, func(t memindex.Incarnation) bool { return t.ID == c.incarnation }); {
	case i < 0:
		return &store.DamageError{Key: dir, What: "it was closed under a term that it does not have: the end of its log is lost"}
	case i < len(s.incarnations)-1:
		return nil // it was opened since
	case head != c.revision:
		return &store.DamageError{Key: dir, What: fmt.Sprintf("it was closed at revision %d and has %d: the end of its log is lost", c.revision, head)}
	default:
		return c.changed
	}
}
