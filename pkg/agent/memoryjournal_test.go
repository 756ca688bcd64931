package agent

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hawser-io/hawser/pkg/agent/journal"
	"github.com/hawser-io/hawser/pkg/codec"
)

// memoryJournal is a state directory in memory. It outlives the agent. Like the one on disk, it may be called by
// several goroutines. Tests read its fields while no goroutine runs.
type memoryJournal struct {
	mu       sync.Mutex
	binding  journal.Binding
	entries  map[string][]byte
	cursor   codec.Cursor
	reported journal.Reported
	reserved string
	left     map[string]map[string]string
	loaded   bool
	// broken is the error of every write until the next renew; nil if writes succeed.
	broken error

	// fail, if set, returns the error of an operation: "put", "remove", "checkpoint", "drop", "reserve", "left",
	// "reported" and "renew", with the id of a work. A failed operation other than "renew" sets broken.
	fail func(op, id string) error
	// did lists the operations that succeeded.
	did []string
}

func (j *memoryJournal) do(op, id string) error {
	if !j.loaded {
		return errors.New("not loaded")
	}
	if j.broken != nil && op != "renew" {
		return j.broken
	}
	if j.fail != nil {
		if err := j.fail(op, id); err != nil {
			err = &journal.Error{Err: fmt.Errorf("write /state/log: %w", err)}
			if op != "renew" {
				j.broken = err
			}
			return err
		}
	}
	j.did = append(j.did, op+" "+id)
	return nil
}

func (j *memoryJournal) Load(b journal.Binding, put func(codec.Event) error, _ func(string)) (journal.LoadResult, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.loaded, j.broken = true, nil
	if j.binding != b {
		j.binding, j.cursor, j.reported, j.left = b, codec.Cursor{}, journal.Reported{}, nil
		clear(j.entries)
	}
	s := journal.LoadResult{Cursor: j.cursor, Reported: j.reported, Reserved: j.reserved, Left: maps.Clone(j.left)}
	written := func(id string) time.Time { // the time at which the entry of a work was written
		e, err := codec.Unmarshal(j.entries[id])
		if err != nil {
			return time.Time{}
		}
		return e.Time()
	}
	ids := slices.SortedFunc(maps.Keys(j.entries), func(a, b string) int { return cmp.Or(written(a).Compare(written(b)), cmp.Compare(a, b)) })
	for _, id := range ids {
		e, err := codec.Unmarshal(j.entries[id])
		if err == nil {
			err = put(e)
		}
		if err != nil {
			s.Damaged++
			s.Cursor = codec.Cursor{}
			delete(j.entries, id)
		}
	}
	return s, nil
}

func (j *memoryJournal) Put(e codec.Event) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	id, _, err := codec.StringExtension(e, codec.ExtResourceID)
	if err == nil {
		err = j.do("put", id)
	}
	if err != nil {
		return err
	}
	j.entries[id], err = codec.Marshal(e)
	return err
}

func (j *memoryJournal) Remove(id string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.do("remove", id); err != nil {
		return err
	}
	delete(j.entries, id)
	return nil
}

func (j *memoryJournal) Checkpoint(c codec.Cursor) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	op, about := "checkpoint", c.String()
	if c == (codec.Cursor{}) {
		op, about = "drop", ""
	}
	if err := j.do(op, about); err != nil {
		return err
	}
	j.cursor = c
	return nil
}

func (j *memoryJournal) NeedsCompaction() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.broken != nil
}

func (j *memoryJournal) Compact(c journal.Content) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.do("renew", ""); err != nil {
		return err
	}
	entries := map[string][]byte{}
	for e, err := range c.Works {
		if err != nil {
			return err
		}
		id, _, err := codec.StringExtension(e, codec.ExtResourceID)
		if err != nil {
			return err
		}
		if entries[id], err = codec.Marshal(e); err != nil {
			return err
		}
	}
	j.entries, j.reported, j.left, j.broken = entries, c.Reported, c.Left, nil
	return nil
}

func (j *memoryJournal) Note(r journal.Reported, left map[string]map[string]string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.do("reported", ""); err != nil {
		return err
	}
	j.reported = journal.Reported{Sequence: r.Sequence, Accepted: maps.Clone(r.Accepted)}
	if left == nil {
		return nil
	}
	if err := j.do("left", ""); err != nil {
		return err
	}
	j.left = maps.Clone(left)
	return nil
}

func (j *memoryJournal) Reserve(sequence string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.do("reserve", ""); err != nil {
		return err
	}
	j.reserved = sequence
	return nil
}

// has returns the ids of the works on the journal.
func (j *memoryJournal) has() []string { return slices.Sorted(maps.Keys(j.entries)) }
