package agent

import (
	"errors"
	"maps"
	"slices"

	"github.com/hawser-io/hawser/pkg/agent/journal"
	"github.com/hawser-io/hawser/pkg/codec"
)

// memoryJournal is a state directory in memory. It outlives the agent.
type memoryJournal struct {
	binding  journal.Binding
	entries  map[string][]byte
	cursor   codec.Cursor
	reported journal.Reported
	reserved string
	left     map[string]string
	dirty    map[string]bool
	loaded   bool

	// fail, if set, decides which operations fail: "put", "remove",
	// "checkpoint", "drop", "reserve", "left" and "reported", with the id of a work.
	fail func(op, id string) error
	// rots: the next Checkpoint finds that an entry cannot be read any more.
	rots string
	// did are the operations that did not fail.
	did []string
}

func (j *memoryJournal) do(op, id string) error {
	if !j.loaded {
		return errors.New("not loaded")
	}
	if j.fail != nil {
		if err := j.fail(op, id); err != nil {
			return &journal.Error{Op: op, Path: "/state", Err: err}
		}
	}
	j.did = append(j.did, op+" "+id)
	return nil
}

func (j *memoryJournal) Load(b journal.Binding, take func(codec.Event) error) (journal.State, error) {
	j.loaded = true
	if j.binding != b {
		j.binding, j.cursor, j.reported, j.left = b, codec.Cursor{}, journal.Reported{}, nil
		clear(j.entries)
	}
	s := journal.State{Cursor: j.cursor, Reported: j.reported, Reserved: j.reserved, Left: maps.Clone(j.left)}
	clear(j.dirty)
	for _, id := range slices.Sorted(maps.Keys(j.entries)) {
		e, err := codec.Unmarshal(j.entries[id])
		if err == nil {
			err = take(e)
		}
		if err != nil {
			s.Damaged++
			s.Cursor = codec.Cursor{}
			delete(j.entries, id)
			continue
		}
		s.Works++
	}
	return s, nil
}

func (j *memoryJournal) Put(e codec.Event) error {
	id, _, err := codec.StringExtension(e, codec.ExtResourceID)
	if err == nil {
		err = j.do("put", id)
	}
	if err != nil {
		j.dirty[id] = true
		return err
	}
	delete(j.dirty, id)
	j.entries[id], err = codec.Marshal(e)
	return err
}

func (j *memoryJournal) Remove(id string) error {
	if err := j.do("remove", id); err != nil {
		return err
	}
	delete(j.dirty, id)
	delete(j.entries, id)
	return nil
}

func (j *memoryJournal) Checkpoint(c codec.Cursor) error {
	if j.rots != "" {
		j.dirty[j.rots], j.rots = true, ""
	}
	if len(j.dirty) > 0 {
		return &journal.Error{Op: "put", Path: "/state", Err: errors.New("dirty")}
	}
	if err := j.do("checkpoint", c.String()); err != nil {
		return err
	}
	j.cursor = c
	return nil
}

func (j *memoryJournal) DropCursor() error {
	if err := j.do("drop", ""); err != nil {
		return err
	}
	j.cursor = codec.Cursor{}
	return nil
}

func (j *memoryJournal) Dirty() []string { return slices.Sorted(maps.Keys(j.dirty)) }

func (j *memoryJournal) SaveReported(r journal.Reported) error {
	if err := j.do("reported", ""); err != nil {
		return err
	}
	j.reported = journal.Reported{Sequence: r.Sequence, Accepted: maps.Clone(r.Accepted)}
	return nil
}

func (j *memoryJournal) SaveLeft(left map[string]string) error {
	if err := j.do("left", ""); err != nil {
		return err
	}
	j.left = maps.Clone(left)
	return nil
}

func (j *memoryJournal) Reserve(sequence string) error {
	if err := j.do("reserve", ""); err != nil {
		return err
	}
	j.reserved = sequence
	return nil
}

// has returns the ids of the works on the journal.
func (j *memoryJournal) has() []string { return slices.Sorted(maps.Keys(j.entries)) }
