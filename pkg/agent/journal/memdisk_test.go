package journal

import (
	"bytes"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"syscall"
)

// memDisk is a disk that fails, crashes and loses power on demand.
//
// Names and contents have a volatile state, which every process sees, and a stable one. After a power loss each
// name may have any of the inodes that it had since the last sync of its directory. Data appended without a
// sync may be present, cut off, zero, have a hole, or be absent.
type memDisk struct {
	files map[string]*inode
	// past has the inodes of each name since the last sync of its directory, the stable one first. Unchanged
	// names are not in it.
	past   map[string][]*inode
	locked bool
	// forgotten: a process saw a failed sync and ended. The next process cannot know that; it has only
	// checksums.
	forgotten bool

	// fault returns the effect of each operation; nil: all succeed.
	fault func(op, name string) effect
}

// inode is the content of a file.
type inode struct {
	data []byte
	// stable is the content that certainly survives a power loss.
	stable []byte
	// unlinked: a sync failed. Later syncs succeed without effect, until the file is written again.
	unlinked bool
}

// effect is the effect of an operation.
type effect int

const (
	well effect = iota
	// refused: the operation fails without an effect.
	refused
	// full: the operation fails because the disk is full.
	full
	// torn: a write or an append stores half; a rename or removal is executed. Then the operation fails.
	torn
	// crashBefore and crashAfter: the process ends before the operation, or after it was torn.
	crashBefore
	crashAfter
)

// crashed is the panic that ends a process.
type crashed struct{}

func newMemDisk() *memDisk {
	return &memDisk{files: map[string]*inode{}, past: map[string][]*inode{}}
}

// begin starts an operation. half: only a part of it is executed. err: the error to return after it. done: it is
// not executed.
func (d *memDisk) begin(op, name string) (half, done bool, err error) {
	if d.fault == nil {
		return false, false, nil
	}
	switch d.fault(op, name) {
	case refused:
		return false, true, syscall.EIO
	case full:
		return false, true, syscall.ENOSPC
	case torn:
		return true, false, syscall.EIO
	case crashBefore:
		panic(crashed{})
	case crashAfter:
		return true, false, nil
	default:
		return false, false, nil
	}
}

// end panics after a torn operation with crashAfter.
func end(half bool, err error) error {
	if half && err == nil {
		panic(crashed{})
	}
	return err
}

func (d *memDisk) mkdir() error {
	half, _, err := d.begin("mkdir", ".")
	return end(half, err)
}

func (d *memDisk) lock(name string) (func() error, error) {
	half, _, err := d.begin("lock", name)
	if err = end(half, err); err != nil {
		return nil, err
	}
	if d.locked {
		return nil, syscall.EWOULDBLOCK
	}
	d.locked = true
	return func() error { d.locked = false; return nil }, nil
}

func (d *memDisk) list(dir string) ([]string, error) {
	half, _, err := d.begin("list", dir)
	if err = end(half, err); err != nil {
		return nil, err
	}
	var names []string
	for name := range d.files {
		if path.Dir(name) == dir {
			names = append(names, path.Base(name))
		}
	}
	slices.Sort(names)
	return names, nil
}

func (d *memDisk) open(name string) (io.ReadCloser, error) {
	half, _, err := d.begin("open", name)
	if err = end(half, err); err != nil {
		return nil, err
	}
	f := d.files[name]
	if f == nil {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(bytes.NewReader(f.data)), nil
}

// put sets the inode of a name; nil removes the name.
func (d *memDisk) put(name string, f *inode) {
	if d.past[name] == nil {
		d.past[name] = []*inode{d.files[name]}
	}
	d.past[name] = append(d.past[name], f)
	if f == nil {
		delete(d.files, name)
	} else {
		d.files[name] = f
	}
}

func (d *memDisk) write(name string, content []byte) error {
	half, done, err := d.begin("write", name)
	if done {
		return err
	}
	if d.files[name] != nil {
		return fs.ErrExist
	}
	if half {
		content = content[:len(content)/2]
	}
	d.put(name, &inode{data: bytes.Clone(content)})
	return end(half, err)
}

func (d *memDisk) append(name string, content []byte) error {
	half, done, err := d.begin("append", name)
	if done {
		return err
	}
	f := d.files[name]
	if f == nil {
		return fs.ErrNotExist
	}
	if half {
		content = content[:len(content)/2]
	}
	f.data = slices.Concat(f.data, content)
	return end(half, err)
}

func (d *memDisk) sync(name string) error {
	half, done, err := d.begin("sync", name)
	f := d.files[name]
	switch {
	case name == ".":
		if !done && !half {
			d.syncDir(name)
		}
	case f == nil:
		return fs.ErrNotExist
	case err != nil:
		f.unlinked = true
	case half: // the process ends before it knows whether the sync succeeded
	case !f.unlinked:
		f.stable = f.data
	}
	return end(half, err)
}

func (d *memDisk) syncDir(dir string) {
	for name := range d.past {
		if path.Dir(name) == dir {
			delete(d.past, name)
		}
	}
}

func (d *memDisk) rename(from, to string) error {
	half, done, err := d.begin("rename", from)
	if done {
		return err
	}
	f := d.files[from]
	if f == nil {
		return fs.ErrNotExist
	}
	d.put(from, nil)
	d.put(to, f)
	return end(half, err)
}

func (d *memDisk) remove(name string) error {
	half, done, err := d.begin("remove", name)
	if done {
		return err
	}
	if d.files[name] == nil {
		return end(half, fs.ErrNotExist)
	}
	d.put(name, nil)
	return end(half, err)
}

// endProcess ends the process that has the lock.
func (d *memDisk) endProcess() {
	d.locked = false
	for _, f := range d.files {
		d.forgotten = d.forgotten || f.unlinked
	}
}

// powerLoss ends the process and drops state that is not stable. choose(n) selects one of n possible results.
func (d *memDisk) powerLoss(choose func(n int) int) {
	d.endProcess()
	for _, name := range slices.Sorted(maps.Keys(d.past)) {
		delete(d.files, name)
		if f := d.past[name][choose(len(d.past[name]))]; f != nil {
			d.files[name] = f
		}
	}
	d.past = map[string][]*inode{}
	for _, name := range slices.Sorted(maps.Keys(d.files)) {
		f := d.files[name]
		if !bytes.Equal(f.data, f.stable) {
			added := f.data[len(f.stable):]
			n := len(added)
			none, some := make([]byte, n), added[:n/2]
			remains := [][]byte{f.data, f.stable}
			for _, rest := range [][]byte{some, none, slices.Concat(some, none[n/2:]), slices.Concat(none[:n/2], added[n/2:])} {
				remains = append(remains, slices.Concat(f.stable, rest))
			}
			f = &inode{data: remains[choose(len(remains))]}
		}
		d.files[name] = &inode{data: f.data, stable: f.data}
	}
}

// flip flips a bit of a file on the disk.
func (d *memDisk) flip(name string, at int) {
	f := d.files[name]
	data := bytes.Clone(f.data)
	data[at%len(data)] ^= 0x10
	d.files[name] = &inode{data: data, stable: data}
	for i, p := range d.past[name] {
		if p == f {
			d.past[name][i] = d.files[name]
		}
	}
}
