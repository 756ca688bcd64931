package sim

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"

	"github.com/hawser-io/hawser/pkg/agent"
	"github.com/hawser-io/hawser/pkg/agent/journal"
	"github.com/hawser-io/hawser/pkg/codec"
)

// stateDir is the state directory of an agent, as journal.Journal keeps it. Written entries survive the
// process. They survive a power loss only after a checkpoint. The directory outlives the process.
type stateDir struct {
	full bool // the file system is full

	loaded  bool
	binding journal.Binding
	seen    files // what the process reads
	stable  files // what is left after a power loss

	// unsynced are entries that differ, or may, between the two.
	unsynced map[string]bool
	// torn: a record was cut off, and other records follow. It is unknown which record it was. The previous record
	// of the same work is still there.
	torn bool
	// due: the log is as an earlier process left it. broken is the failure after which the whole log must be
	// rewritten before anything is appended.
	due    bool
	broken error
}

// files are the contents of the directory; entries are never modified.
type files struct {
	entries  map[string][]byte
	cursor   codec.Cursor
	reported journal.Reported
	left     map[string]map[string]string
	reserved string
}

var _ agent.Journal = (*stateDir)(nil)

func (f files) clone() files {
	f.entries = maps.Clone(f.entries)
	return f
}

func newStateDir() *stateDir {
	return &stateDir{
		seen: files{entries: map[string][]byte{}}, stable: files{entries: map[string][]byte{}},
		unsynced: map[string]bool{},
	}
}

// powerLoss ends the machine. Unsynced entries are written, as before, or torn.
func (d *stateDir) powerLoss(r *rand.Rand) {
	for _, id := range slices.Sorted(maps.Keys(d.unsynced)) {
		entry, has := d.seen.entries[id]
		switch r.IntN(4) {
		case 0:
			d.torn = true
		case 1:
			delete(d.stable.entries, id)
			if has {
				d.stable.entries[id] = entry
			}
		}
	}
	clear(d.unsynced)
	d.seen = d.stable.clone()
}

// backup copies the directory; restored creates a directory from a copy.
func (d *stateDir) backup() *stateDir {
	c := newStateDir()
	c.binding, c.seen, c.stable = d.binding, d.seen.clone(), d.seen.clone()
	return c
}

// add is called before each write, and returns an error if it fails.
func (d *stateDir) add() error {
	if d.broken == nil {
		d.broken = d.checkSpace()
	}
	return d.broken
}

func (d *stateDir) checkSpace() error {
	switch {
	case !d.loaded:
		return errors.New("the journal is not loaded")
	case d.full:
		return &journal.Error{Err: fmt.Errorf("write log: %w", syscall.ENOSPC)}
	}
	return nil
}

// Load implements agent.Journal.
func (d *stateDir) Load(b journal.Binding, put func(codec.Event) error, _ func(string)) (journal.LoadResult, error) {
	d.loaded, d.due, d.broken = true, true, nil
	if d.binding != b {
		d.binding, d.torn, d.broken = b, false, d.checkSpace()
		d.seen, d.stable = files{entries: map[string][]byte{}}, files{entries: map[string][]byte{}}
		clear(d.unsynced)
	}
	s := journal.LoadResult{Cursor: d.seen.cursor, Reported: d.seen.reported, Reserved: d.seen.reserved, Left: maps.Clone(d.seen.left)}
	for _, id := range slices.Sorted(maps.Keys(d.seen.entries)) {
		e, err := codec.Unmarshal(d.seen.entries[id])
		if err == nil {
			err = put(e)
		}
		if err == nil {
			continue
		}
		s.Damaged++
		s.Cursor = codec.Cursor{}
		delete(d.seen.entries, id)
		delete(d.stable.entries, id)
	}
	if d.torn {
		s.Damaged, s.Cursor = s.Damaged+1, codec.Cursor{}
	}
	if s.Damaged > 0 {
		d.seen.cursor, d.stable.cursor = codec.Cursor{}, codec.Cursor{}
	}
	return s, nil
}

// Put implements agent.Journal.
func (d *stateDir) Put(e codec.Event) error {
	if err := d.add(); err != nil {
		return err
	}
	id, b := entryOf(e)
	d.seen.entries[id], d.unsynced[id] = b, true
	return nil
}

// entryOf returns the stored form of a work.
func entryOf(e codec.Event) (id string, b []byte) {
	id, _, err := codec.StringExtension(e, codec.ExtResourceID)
	if err != nil {
		panic(err)
	}
	if b, err = codec.Marshal(e); err != nil {
		panic(err)
	}
	return id, b
}

// Remove implements agent.Journal.
func (d *stateDir) Remove(id string) error {
	if err := d.add(); err != nil {
		return err
	}
	delete(d.seen.entries, id)
	d.unsynced[id] = true
	return nil
}

// Checkpoint implements agent.Journal.
func (d *stateDir) Checkpoint(c codec.Cursor) error {
	if err := d.add(); err != nil {
		return err
	}
	d.seen.cursor = c
	d.sync()
	return nil
}

func (d *stateDir) sync() {
	d.stable = d.seen.clone()
	clear(d.unsynced)
}

// NeedsCompaction implements agent.Journal.
func (d *stateDir) NeedsCompaction() bool { return d.due || d.broken != nil }

// Compact implements agent.Journal.
func (d *stateDir) Compact(c journal.Content) error {
	if err := d.checkSpace(); err != nil {
		return err
	}
	entries := map[string][]byte{}
	for e, err := range c.Works {
		if err != nil {
			return err
		}
		id, b := entryOf(e)
		entries[id] = b
	}
	d.seen.entries, d.seen.reported, d.seen.left, d.broken = entries, c.Reported, maps.Clone(c.Left), nil
	d.due, d.torn = false, false
	d.sync()
	return nil
}

// Reserve implements agent.Journal.
func (d *stateDir) Reserve(sequence string) error {
	if err := d.add(); err != nil {
		return err
	}
	d.seen.reserved = sequence
	d.sync()
	return nil
}

// Note implements agent.Journal.
func (d *stateDir) Note(r journal.Reported, left map[string]map[string]string) error {
	if err := d.add(); err != nil {
		return err
	}
	r.Accepted = maps.Clone(r.Accepted)
	d.seen.reported = r
	if left != nil {
		d.seen.left = maps.Clone(left)
	}
	d.sync()
	return nil
}
