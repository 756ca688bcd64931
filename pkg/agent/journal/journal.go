package journal

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"syscall"

	"github.com/hawser-io/hawser/pkg/codec"
)

// lockFile is held while a process uses the directory.
const lockFile = "lock"

// Config says where a Journal is.
type Config struct {
	// Dir is the state directory. It is made if it is not there.
	Dir string
	// Log may be nil.
	Log *slog.Logger

	disk disk // of a test
}

// Binding is whose desired state a directory holds. Works of another binding
// are not enforced: they are discarded.
type Binding struct {
	// ClusterUID is the uid of the cluster's namespace kube-system, Cluster the
	// name of the cluster on the hub.
	ClusterUID, Cluster string
	// HubHash and AgentID are those of AppliedManifestWorks.
	HubHash, AgentID string
}

// LoadResult is what a directory held, the works aside.
type LoadResult struct {
	// Cursor is how far the broker's history is covered by the works; the zero
	// cursor if nobody knows.
	Cursor codec.Cursor
	// Reported is what was saved last; see there when it may be relied on.
	Reported Reported
	// Reserved is up to where sequence ids may have been used, under whatever
	// binding; "" if none was.
	Reserved string
	// Left is what was saved last of how objects were left; nil if nothing was, or
	// it cannot be read.
	Left map[string]map[string]string
	// Damaged is the number of records that could not be used.
	Damaged int
}

// Reported is what the broker accepted of this agent's statuses.
//
// It is saved now and then, so what was loaded may be out of date, and relying
// on it could leave an older status on the hub. It is complete exactly if
// Sequence is the highest sequence id that the broker accepted from this agent,
// as its checkpoint says: wait for that before a status is left unsent on the
// ground of Accepted, and forget Accepted where the two differ.
type Reported struct {
	// Sequence is the highest sequence id that was accepted; "" if none was.
	// Sequence ids go on above it.
	Sequence string
	// Accepted is the fingerprint of the latest status that was accepted, for
	// each resource id. A status whose outcome is not known is not in it.
	Accepted map[string]string
}

// Content is everything that is to be in a log besides what the Journal knows
// itself.
type Content struct {
	// Works are the events of the works that are held. An error ends them.
	Works    iter.Seq2[codec.Event, error]
	Reported Reported
	Left     map[string]map[string]string
}

// Journal is a state directory that this process has locked. Methods may be
// called concurrently; they take effect one after the other. The order of what
// concerns one work is up to the caller.
type Journal struct {
	dir  string
	disk disk
	slog *slog.Logger

	mu     sync.Mutex
	unlock func() error // nil while the directory cannot be used
	head   head
	log    log
}

// head is what is known besides works. It is JSON on disk.
type head struct {
	Instance string       `json:"instance,omitempty"`
	Binding  Binding      `json:"binding"`
	Cursor   codec.Cursor `json:"cursor"`
	Reserved string       `json:"reserved,omitempty"`
}

// Open locks the directory, which it makes if needed, and finds out its
// instance id. A directory that is there and cannot be used is no error: what the
// methods return says so, until it can. The error is a *LockedError, a
// *FormatError, or an *Error if there is no such directory and none can be made.
// Load comes next.
func Open(c Config) (*Journal, error) {
	j := &Journal{dir: c.Dir, disk: c.disk, slog: c.Log, head: head{Instance: rand.Text()}}
	if j.disk == nil {
		j.disk = osDisk{dir: c.Dir}
	}
	if j.slog == nil {
		j.slog = slog.New(slog.DiscardHandler)
	}
	j.log = log{disk: j.disk, dir: c.Dir, err: errNotLoaded}
	if err := j.disk.mkdir(); err != nil {
		return nil, typed(err)
	}
	h, err := j.lock()
	if locked := (*LockedError)(nil); errors.As(err, &locked) || isNewer(err) {
		return nil, err
	} else if err != nil {
		j.slog.Error("state directory cannot be used: the agent works without what it knew", "error", err)
		return j, nil
	}
	if h == j.head { // nobody knows whose it is; from now on it has a name
		if err := j.log.replace(jsonRecord(recordHead, h), noWorks); err != nil {
			j.slog.Warn("state directory: its instance id cannot be stored", "error", err)
		}
		j.log.fail(errNotLoaded)
	}
	j.head = h
	return j, nil
}

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
	for r, err := range j.log.read {
		if isNewer(err) {
			return h, errors.Join(err, unlock())
		}
		if damaged = cmp.Or(damaged, err); err == nil && r.kind == recordHead && json.Unmarshal([]byte(formerKeys.Replace(string(r.value))), &h) == nil {
			damaged = nil
			break
		}
	}
	if damaged != nil {
		j.slog.Warn("state directory: it cannot be read whose works these are, they are discarded", "error", damaged)
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
func (j *Journal) Load(b Binding, put func(codec.Event) error, removed func(id string)) (LoadResult, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !errors.Is(j.log.err, errNotLoaded) {
		return LoadResult{}, errLoaded
	}
	s, ours := LoadResult{}, j.recognize(b)
	var first error
	for r, err := range j.log.read {
		if isNewer(err) {
			return LoadResult{}, err
		}
		switch {
		case err != nil:
		case r.kind == recordHead:
			err = json.Unmarshal([]byte(formerKeys.Replace(string(r.value))), &j.head)
		case ours:
			err = s.take(r, put, removed)
		}
		if err != nil && !errors.Is(err, errTorn) {
			s.Damaged++
			first = cmp.Or(first, err)
		}
	}
	if s.Reserved = j.head.Reserved; ours && s.Damaged == 0 {
		s.Cursor = j.head.Cursor
	} else if ours {
		j.slog.Warn("state directory: records that cannot be used are dropped, the broker sends the works again", "records", s.Damaged, "first", first)
	}
	j.head.Binding, j.head.Cursor = b, s.Cursor
	if !ours {
		first, s.Damaged = j.renew(Content{Works: noWorks}), 0
	}
	j.log.found(first)
	return s, nil
}

// recognize reports whether the directory is bound as it should be.
func (j *Journal) recognize(b Binding) bool {
	held := j.head.Binding
	if held != b && held != (Binding{}) {
		j.slog.Warn("state directory: its works are of another cluster, hub or agent, they are discarded", "dir", j.dir,
			"held_cluster_uid", held.ClusterUID, "held_cluster", held.Cluster, "held_hub_hash", held.HubHash, "held_agent_id", held.AgentID)
	}
	return held == b
}

// take takes over what a record says besides the head.
func (s *LoadResult) take(r record, put func(codec.Event) error, removed func(id string)) error {
	switch {
	case r.kind == recordReported:
		s.Reported = Reported{} // not to be mixed with an earlier one
		return json.Unmarshal(r.value, &s.Reported)
	case r.kind == recordLeft:
		s.Left = nil
		return json.Unmarshal(r.value, &s.Left)
	case r.kind == recordWork && len(r.value) == 0:
		removed(r.key)
	case r.kind == recordWork:
		e, err := codec.Unmarshal(r.value)
		if err == nil {
			err = put(e)
		}
		return err
	}
	return nil
}

// Put stores the latest spec of a work, as it was received. When it returns nil,
// the spec survives the end of this process; a power loss only after the next
// Checkpoint. When it returns an error, what is on disk of the work is the former
// spec or this one. The error is an *Error, or about an event that names no work.
func (j *Journal) Put(e codec.Event) error {
	r, err := workRecord(e)
	if err != nil {
		return err
	}
	return j.add(false, r)
}

// Remove forgets a work. The broker must not count on this agent having it any
// more: its deletion was confirmed, or the broker has no record of it, or
// another work took its place. After an error the work may be loaded again. The
// error is an *Error.
func (j *Journal) Remove(id string) error {
	return j.add(false, record{kind: recordWork, key: id})
}

// Checkpoint stores the cursor, after everything that was put or removed before
// is on stable storage; the zero cursor means that the next process lists what it
// has. It takes as long as the disk takes for all that was added since the last
// one; nothing else is done meanwhile. It is not called while a work that the cursor
// covers could not be put or removed. The error is an *Error; the former cursor or
// this one is in force then.
func (j *Journal) Checkpoint(c codec.Cursor) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	err := j.log.sync()
	if err == nil && j.head.Cursor != c {
		j.head.Cursor = c
		err = j.log.add(true, jsonRecord(recordHead, j.head))
	}
	return typed(err)
}

// Reserve notes, before they are used, that sequence ids up to this one may be.
// An earlier process may have sent a status that has not arrived yet: whatever
// the clock says by then, ids go on above it. The error is an *Error.
func (j *Journal) Reserve(sequence string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.head.Reserved = sequence
	return typed(j.log.add(true, jsonRecord(recordHead, j.head)))
}

// Note stores what the broker accepted, and how objects were left; nil if that is as it
// was. The latter is in a form that the caller knows, by whatever names them: it can be
// lost, so it may only spare work, and must be true of an object that has changed since.
// The error is an *Error; what was noted before may be there then.
func (j *Journal) Note(r Reported, left map[string]map[string]string) error {
	notes := []record{jsonRecord(recordReported, r)}
	if left != nil {
		notes = append(notes, jsonRecord(recordLeft, left))
	}
	return j.add(true, notes...)
}

func (j *Journal) add(stable bool, all ...record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return typed(j.log.add(stable, all...))
}

// Instance is a random name that stays with the directory: two processes have
// the same one only if one follows the other.
func (j *Journal) Instance() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.head.Instance
}

// NeedsCompaction reports whether Renew is to be called: at the start, after a failure, and when
// half of the log may not count.
func (j *Journal) NeedsCompaction() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.log.due()
}

// Compact replaces the log by a new one with this content: whatever was put and not
// removed is in it. That is the end of what failed before, and of what removed works
// said. The error is an *Error; the former log or this one is there then.
func (j *Journal) Compact(c Content) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if errors.Is(j.log.err, errNotLoaded) || errors.Is(j.log.err, errClosed) {
		return typed(j.log.err)
	}
	return typed(j.renew(c))
}

func noWorks(func(codec.Event, error) bool) {}

func (j *Journal) renew(c Content) error {
	h, err := j.lock()
	// What is found so late is not loaded.
	if j.head.Reserved = cmp.Or(j.head.Reserved, h.Reserved); err != nil {
		return err
	}
	first := j.head // it is there twice: damage costs one of them
	first.Cursor = codec.Cursor{}
	return j.log.replace(jsonRecord(recordHead, first), c.Works,
		jsonRecord(recordReported, c.Reported), jsonRecord(recordLeft, c.Left), jsonRecord(recordHead, j.head))
}

// Close lets another process have the directory. What was put after the last
// Checkpoint stays, but is not synced.
func (j *Journal) Close() (err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.unlock != nil {
		err = j.unlock()
	}
	j.unlock = nil
	j.log.fail(errClosed)
	return typed(err)
}
