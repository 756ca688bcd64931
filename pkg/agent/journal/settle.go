package journal

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"
)

// bind makes the directory ours: everything of another binding goes first.
func (j *Journal) bind() error {
	if j.bound {
		return nil
	}
	if err := j.settle(); err != nil {
		return err
	}
	for _, file := range []string{reportedFile, leftFile} {
		if err := j.remove(file); err != nil {
			return err
		}
	}
	for _, dir := range []string{worksDir, "."} {
		if err := j.sync(dir); err != nil {
			return err
		}
	}
	if err := j.replaceSynced(bindingFile, encodeBinding(j.binding)); err != nil {
		return err
	}
	j.bound = true
	return nil
}

// settle removes what must not be there: first a cursor that covers too much,
// then entries.
func (j *Journal) settle() error {
	if err := j.dropStale(); err != nil {
		return err
	}
	if err := j.look(); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(j.obstacles)) {
		j.changed = true
		if err := j.remove(worksDir + "/" + name); err != nil {
			return err
		}
		delete(j.obstacles, name)
	}
	return nil
}

func (j *Journal) dropStale() error {
	if !j.stale {
		return nil
	}
	if err := j.acquire(); err != nil {
		return err
	}
	if err := j.remove(cursorFile); err != nil {
		return err
	}
	if err := j.sync("."); err != nil {
		return err
	}
	j.stale = false
	return nil
}

// look finds out what is in works/, if that is not known: all that was not
// written by this process is in the way.
func (j *Journal) look() error {
	if j.listed {
		return nil
	}
	if err := j.mkdir(worksDir); err != nil {
		return err
	}
	names, err := j.list(worksDir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if j.unsynced[name] == "" && j.suspect[name] == "" && ours(name) {
			j.obstacles[name] = true
		}
	}
	j.listed = true
	return nil
}

// replace puts a file in place, by way of a draft.
func (j *Journal) replace(name string, content []byte) error {
	draft := name + draftSuffix
	err := j.failure("write", draft, j.disk.write(draft, content))
	if err == nil {
		err = j.failure("rename", draft, j.disk.rename(draft, name))
	}
	if err != nil { // half of a draft takes room that may be what is missing
		return errors.Join(err, j.remove(draft))
	}
	return nil
}

// replaceSynced does that on stable storage, for a file beside works/.
func (j *Journal) replaceSynced(name string, content []byte) error {
	draft := name + draftSuffix
	err := j.failure("write", draft, j.disk.write(draft, content))
	if err == nil {
		err = j.sync(draft)
	}
	if err == nil {
		err = j.failure("rename", draft, j.disk.rename(draft, name))
	}
	if err != nil {
		return errors.Join(err, j.remove(draft))
	}
	return j.sync(".")
}

// failure makes an *Error of a system's error.
func (j *Journal) failure(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Path: filepath.Join(j.dir, name), Err: err}
}

func (j *Journal) mkdir(name string) error { return j.failure("make", name, j.disk.mkdir(name)) }

func (j *Journal) sync(name string) error { return j.failure("sync", name, j.disk.sync(name)) }

// remove makes sure that a file is not there.
func (j *Journal) remove(name string) error {
	return j.failure("remove", name, gone(j.disk.remove(name)))
}

func (j *Journal) read(name string, limit int64) ([]byte, error) {
	b, err := j.disk.read(name, limit)
	return b, j.failure("read", name, err)
}

func (j *Journal) list(dir string) ([]string, error) {
	names, err := j.disk.list(dir)
	return names, j.failure("list", dir, err)
}
