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
	"github.com/hawser-io/hawser/internal/broker/store/value"
	"github.com/hawser-io/hawser/internal/fields"
)

// Pebble treats damage at the end of a log or a manifest as the torn write of a power loss. It drops the damage
// and everything behind it. After a clean stop there is no torn write. So Close writes a marker file with the
// incarnation and revision of the store, and with checksums of its manifest and logs. A store with less data
// than its marker states is damaged.

const cleanName = "CLEAN"

// shutdownMarker describes how a store was closed.
type shutdownMarker struct {
	incarnation string
	revision    uint64
	files       []fileSum // manifest and logs; none in the marker of an earlier release
	changed     error     // the error if these files have changed since, otherwise nil
}

// fileSum is the checksum of a file.
type fileSum struct {
	name string
	crc  uint64
}

// position returns the marker for the current state, without files. Nothing may be written during the call.
func (s *Store) position() shutdownMarker {
	return shutdownMarker{incarnation: s.state.At.Incarnation, revision: s.state.At.Revision}
}

// manifestOf returns the name of the current manifest, "" if there is none.
func manifestOf(files vfs.FS, dir string) (string, error) {
	d, err := engine.Peek(dir, files)
	if err != nil || !d.Exists {
		return "", err
	}
	return files.PathBase(d.ManifestFilename), nil
}

// at returns c with the files in dir.
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
	sum := crc32.New(fields.Castagnoli)
	err := copyTo(sum, files, path)
	return uint64(sum.Sum32()), err
}

// copyTo writes the content of a file to w.
func copyTo(w io.Writer, files vfs.FS, path string) error {
	f, err := files.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return errors.Join(err, f.Close())
}

// compareFiles returns an error if a file in dir changed after the store was closed. If the manifest is not in
// the marker, a failed opening has begun a new one and may have removed logs. Then compareFiles returns nil.
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

// value returns the content of the marker file.
func (c shutdownMarker) value() []byte {
	body := value.EncodeIncarnation(memindex.Incarnation{ID: c.incarnation, First: c.revision})
	for _, s := range c.files {
		body = binary.AppendUvarint(fields.AppendString(body, s.name), s.crc)
	}
	v := make([]byte, value.Len(body))
	value.SealTo(v, []byte(cleanName), body)
	return v
}

// sign writes the marker file of a closed store. It survives a power loss once sign returns. The file is
// created by a rename, because half a file would be damage.
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

// readClean reads the marker of the last Close and compares the files with it, before the engine changes them
// on opening. It returns nil if the store was not closed, or is new.
func readClean(files vfs.FS, dir string) (*shutdownMarker, error) {
	name := files.PathJoin(dir, cleanName)
	var v bytes.Buffer
	switch err := copyTo(&v, files, name); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	body, err := value.Unseal([]byte(cleanName), v.Bytes())
	if err != nil {
		return nil, &store.DamageError{Key: name, What: "the record of the last close is damaged; remove it to open the store as after a crash"}
	}
	r := fields.NewReader(body)
	c := &shutdownMarker{incarnation: r.String(), revision: r.Uint64()}
	for r.More() {
		c.files = append(c.files, fileSum{name: r.String(), crc: r.Uint64()})
	}
	if what := r.End(); what != "" {
		return nil, &store.DamageError{Key: name, What: what}
	}
	c.changed = c.compareFiles(files, dir)
	return c, nil
}

// readClean reads the marker into the store. Open calls it before the engine opens the files.
func (s *Store) readClean(o *Options) (err error) {
	s.closed, err = readClean(o.FS, o.Dir)
	return err
}

// checkClean compares the store with the marker of the last Close. Then it removes the marker, because the
// process may end without a Close.
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

// compare returns an error if a store in dir has lost data since it was closed.
func (c shutdownMarker) compare(dir string, s *memIndex) error {
	head := s.highest()
	switch i := slices.IndexFunc(s.state.Incarnations, func(t memindex.Incarnation) bool { return t.ID == c.incarnation }); {
	case i < 0:
		return &store.DamageError{Key: dir, What: "it was closed in an incarnation that it does not have: the end of its log is lost"}
	case i < len(s.state.Incarnations)-1:
		return nil // the store was opened again after the marker was written
	case head != c.revision:
		return &store.DamageError{Key: dir, What: fmt.Sprintf("it was closed at revision %d and has %d: the end of its log is lost", c.revision, head)}
	default:
		return c.changed
	}
}
