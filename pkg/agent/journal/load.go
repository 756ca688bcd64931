package journal

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"syscall"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Open locks the directory, which it makes if needed, and finds out its
// instance id. A directory that is there and cannot be used is no error: what the
// methods return says so, until it can. The error is a *LockedError, a
// *FormatError, or an *Error if there is no such directory and none can be made.
// Load comes next.
func Open(c Config) (*Journal, error) {
	j := &Journal{dir: c.Dir, disk: c.disk, log: c.Log, head: head{Instance: rand.Text()}, err: errNotLoaded}
	if j.disk == nil {
		j.disk = osDisk{dir: c.Dir}
	}
	if j.log == nil {
		j.log = slog.New(slog.DiscardHandler)
	}
	if err := j.disk.mkdir(); err != nil {
		return nil, typed(err)
	}
	h, err := j.lock()
	if locked := (*LockedError)(nil); errors.As(err, &locked) || isNewer(err) {
		return nil, err
	} else if err != nil {
		j.log.Error("state directory cannot be used: the agent works without what it knew", "error", err)
		return j, nil
	}
	if h == j.head { // nobody knows whose it is; from now on it has a name
		err, j.err = j.renew(noContent), errNotLoaded
		if err != nil {
			j.log.Warn("state directory: its instance id cannot be stored", "error", err)
		}
	}
	j.head = h
	return j, nil
}

var noContent = Content{Works: func(func(codec.Event, error) bool) {}}

// lock locks the directory and finds out whose it is, unless that is done. Of a
// newer version it takes nothing.
func (j *Journal) lock() (head, error) {
	h := j.head
	if j.unlock != nil {
		return h, nil
	}
	unlock, err := j.disk.lock(lockFile)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return h, &LockedError{Dir: j.dir}
	} else if err != nil {
		return h, err
	}
	var damaged error
	for r, err := range j.records {
		if isNewer(err) {
			return h, errors.Join(err, unlock())
		}
		if damaged = cmp.Or(damaged, err); err == nil && r.kind == recordHead && json.Unmarshal(r.value, &h) == nil {
			damaged = nil
			break
		}
	}
	if damaged != nil {
		j.log.Warn("state directory: it cannot be read whose works these are, they are discarded", "error", damaged)
	}
	j.unlock = unlock
	return h, nil
}

// Load reads what an earlier process left under the same binding. In the order in
// which that was done it calls put for each spec of a work and removed for each work
// that was removed; they must not call the Journal. When put returns an error, the
// record is of no use: it counts as damaged. That the directory cannot be read or
// written is no error here, but leads to an empty State, and to errors of Put and
// Checkpoint. The error of Load is a *FormatError; the journal is of no use then.
// Load is called once, before the other methods, and Renew comes next.
func (j *Journal) Load(b Binding, put func(codec.Event) error, removed func(id string)) (State, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !errors.Is(j.err, errNotLoaded) {
		return State{}, misuse("it was loaded, or closed, before")
	}
	s, ours := State{}, j.recognize(b)
	var first error
	for r, err := range j.records {
		if isNewer(err) {
			return State{}, err
		}
		switch {
		case err != nil:
		case r.kind == recordHead:
			err = json.Unmarshal(r.value, &j.head)
		case ours:
			err = s.read(r, put, removed)
		}
		if j.size += len(r.value); err != nil && !errors.Is(err, errTorn) {
			s.Damaged++
			first = cmp.Or(first, err)
		}
	}
	if s.Reserved = j.head.Reserved; ours && s.Damaged == 0 {
		s.Cursor = j.head.Cursor
	} else if ours {
		j.log.Warn("state directory: records that cannot be used are dropped, the broker sends the works again", "records", s.Damaged, "first", first)
	}
	// An earlier process may have ended before the log that is here was sure to be the one
	// that is. Nothing is added to what was not read whole, or is another's.
	j.head.Binding, j.head.Cursor, j.outdated, j.err = b, s.Cursor, true, errors.Join(first, j.disk.sync("."))
	if !ours {
		s.Damaged, j.err = 0, j.renew(noContent)
	}
	return s, nil
}

// recognize reports whether the directory is bound as it should be.
func (j *Journal) recognize(b Binding) bool {
	held := j.head.Binding
	if held != b && held != (Binding{}) {
		j.log.Warn("state directory: its works are of another cluster, hub or agent, they are discarded", "dir", j.dir,
			"held_cluster_uid", held.ClusterUID, "held_cluster", held.Cluster, "held_hub_hash", held.HubHash, "held_agent_id", held.AgentID)
	}
	return held == b
}

// read takes over what a record says besides the head.
func (s *State) read(r record, put func(codec.Event) error, removed func(id string)) error {
	switch r.kind {
	case recordReported:
		s.Reported = Reported{} // not to be mixed with an earlier one
		return json.Unmarshal(r.value, &s.Reported)
	case recordLeft:
		s.Left = nil
		return json.Unmarshal(r.value, &s.Left)
	case recordWork:
		if len(r.value) == 0 {
			removed(r.key)
			return nil
		}
		e, err := codec.Unmarshal(r.value)
		if err == nil {
			err = put(e)
		}
		return err
	}
	return nil
}
