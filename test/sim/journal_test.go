package sim

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"

	"github.com/hawser-io/hawser/pkg/agent"
	"github.com/hawser-io/hawser/pkg/agent/journal"
	"github.com/hawser-io/hawser/pkg/codec"
)

// stateDir is the state directory of an agent, as journal.Journal keeps it: what
// was put survives the process, but a power loss only once there was a
// checkpoint. It outlives the process.
type stateDir struct {
	full bool // the file system has no room

	loaded  bool
	binding journal.Binding
	seen    files // what the process reads
	stable  files // what is left after a power loss

	// unsynced are entries that differ, or may, between the two. dirty are those
	// that could not be written.
	unsynced map[string]bool
	dirty    map[string]error
}

// files are the contents of the directory; entries are never modified.
type files struct {
	entries  map[string][]byte
	cursor   codec.Cursor
	reported journal.Reported
	left     map[string]string
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
		unsynced: map[string]bool{}, dirty: map[string]error{},
	}
}

// powerLoss is the end of the machine: of what was not synced, some is there,
// some is as it was before, and some is torn.
func (d *stateDir) powerLoss(r *rand.Rand) {
	for _, id := range slices.Sorted(maps.Keys(d.unsynced)) {
		entry, has := d.seen.entries[id]
		switch r.IntN(4) {
		case 0:
			if has {
				d.stable.entries[id] = entry[:len(entry)/2]
			}
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

// backup copies the directory; restored makes a directory of a copy.
func (d *stateDir) backup() *stateDir {
	c := newStateDir()
	c.binding, c.seen, c.stable = d.binding, d.seen.clone(), d.seen.clone()
	return c
}

func (d *stateDir) room(op string) error {
	switch {
	case !d.loaded:
		return errors.New("the journal is not loaded")
	case d.full:
		return &journal.Error{Op: op, Path: "works", Err: syscall.ENOSPC}
	}
	return nil
}

// Load implements agent.Journal.
func (d *stateDir) Load(b journal.Binding, take func(codec.Event) error) (journal.State, error) {
	d.loaded = true
	clear(d.dirty)
	if d.binding != b {
		d.binding = b
		d.seen, d.stable = files{entries: map[string][]byte{}}, files{entries: map[string][]byte{}}
		clear(d.unsynced)
	}
	s := journal.State{Cursor: d.seen.cursor, Reported: d.seen.reported, Reserved: d.seen.reserved, Left: maps.Clone(d.seen.left)}
	for _, id := range slices.Sorted(maps.Keys(d.seen.entries)) {
		e, err := codec.Unmarshal(d.seen.entries[id])
		if err == nil {
			err = take(e)
		}
		if err == nil {
			s.Works++
			continue
		}
		s.Damaged++
		s.Cursor = codec.Cursor{}
		delete(d.seen.entries, id)
		delete(d.stable.entries, id)
	}
	if s.Damaged > 0 {
		d.seen.cursor, d.stable.cursor = codec.Cursor{}, codec.Cursor{}
	}
	return s, nil
}

// Put implements agent.Journal.
func (d *stateDir) Put(e codec.Event) error {
	id, _, err := codec.StringExtension(e, codec.ExtResourceID)
	if err == nil {
		err = d.room("write")
	}
	if err != nil {
		d.dirty[id] = err
		return err
	}
	if d.seen.entries[id], err = codec.Marshal(e); err != nil {
		panic(err)
	}
	delete(d.dirty, id)
	d.unsynced[id] = true
	return nil
}

// Remove implements agent.Journal. It takes no room.
func (d *stateDir) Remove(id string) error {
	delete(d.dirty, id)
	delete(d.seen.entries, id)
	d.unsynced[id] = true
	return nil
}

// Checkpoint implements agent.Journal.
func (d *stateDir) Checkpoint(c codec.Cursor) error {
	for _, id := range slices.Sorted(maps.Keys(d.dirty)) {
		return d.dirty[id]
	}
	if err := d.room("write"); err != nil {
		return err
	}
	d.seen.cursor = c
	d.stable.entries, d.stable.cursor = maps.Clone(d.seen.entries), c
	clear(d.unsynced)
	return nil
}

// DropCursor implements agent.Journal. It takes no room.
func (d *stateDir) DropCursor() error {
	d.seen.cursor, d.stable.cursor = codec.Cursor{}, codec.Cursor{}
	return nil
}

// Dirty implements agent.Journal.
func (d *stateDir) Dirty() []string { return slices.Sorted(maps.Keys(d.dirty)) }

// Reserve implements agent.Journal.
func (d *stateDir) Reserve(sequence string) error {
	if err := d.room("write"); err != nil {
		return err
	}
	d.seen.reserved, d.stable.reserved = sequence, sequence
	return nil
}

// SaveLeft implements agent.Journal.
func (d *stateDir) SaveLeft(left map[string]string) error {
	if err := d.room("write"); err != nil {
		return err
	}
	d.seen.left = maps.Clone(left)
	d.stable.left = d.seen.left
	return nil
}

// SaveReported implements agent.Journal.
func (d *stateDir) SaveReported(r journal.Reported) error {
	if err := d.room("write"); err != nil {
		return err
	}
	r.Accepted = maps.Clone(r.Accepted)
	d.seen.reported, d.stable.reported = r, r
	return nil
}
