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

// lockFile is locked while a process uses the directory.
const lockFile = "lock"

// Config configures a Journal.
type Config struct {
	// Dir is the state directory. It is created if it does not exist.
	Dir string
	// Log receives warnings about the directory; nil means no log.
	Log *slog.Logger

	disk disk // set by tests
}

// Binding identifies the owner of the desired state in a directory. Works of another binding are discarded, not
// enforced.
type Binding struct {
	// ClusterUID is the uid of the namespace kube-system. Cluster is the name of the cluster on the hub.
	ClusterUID, Cluster string
	// HubHash and AgentID are those of AppliedManifestWorks.
	HubHash, AgentID string
}

// LoadResult is the content of a directory without the works.
type LoadResult struct {
	// Cursor is the position in the broker's history that the works cover; zero if it is unknown.
	Cursor codec.Cursor
	// Reported is the last saved value. The comment of the type states when it is reliable.
	Reported Reported
	// Reserved is the limit up to which sequence ids may have been used, under any binding; "" if there is none.
	Reserved string
	// Left is the last saved state in which objects were left; nil if there is none, or it is unreadable.
	Left map[string]map[string]string
	// Damaged is the number of unusable records.
	Damaged int
}

// Reported has the statuses of this agent that the broker accepted.
//
// It is saved periodically, so a loaded value may be outdated. Relying on it could then leave an older status
// on the hub. It is complete exactly if Sequence is the highest sequence id that the broker accepted from this
// agent, according to its checkpoint. Wait for that checkpoint before a status in Accepted is left unsent. Drop
// Accepted if the ids differ.
type Reported struct {
	// Sequence is the highest accepted sequence id; "" if there is none. Later sequence ids are above it.
	Sequence string
	// Accepted has the fingerprint of the latest accepted status by resource id. A status with an unknown result is
	// not in it.
	Accepted map[string]string
}

// Content is the content of a log except the head.
type Content struct {
	// Works yields the events of the held works. An error ends it.
	Works    iter.Seq2[codec.Event, error]
	Reported Reported
	Left     map[string]map[string]string
}

// Journal is a state directory locked by this process. Methods may be called concurrently; they are serialized.
// The caller orders the calls for one work.
type Journal struct {
	dir  string
	disk disk
	slog *slog.Logger

	mu     sync.Mutex
	unlock func() error // nil while the directory cannot be used
	head   head
	log    log
}

// head is the state besides the works. It is JSON on disk.
type head struct {
	Instance string       `json:"instance,omitempty"`
	Binding  Binding      `json:"binding"`
	Cursor   codec.Cursor `json:"cursor"`
	Reserved string       `json:"reserved,omitempty"`
}

// Open locks the directory, which it creates if needed, and reads its instance id. An existing but unusable
// directory is no error here: the methods return errors until it is usable. The error is a *LockedError, a
// *FormatError, or an *Error if the directory does not exist and cannot be created. Load must be called next.
func Open(c Config) (*Journal, error) {
	j := &Journal{dir: c.Dir, disk: c.disk, slog: c.Log, head: head{Instance: rand.Text()}}
	if j.disk == nil {
		j.disk = osDisk{dir: c.Dir}
	}
	j.slog = cmp.Or(j.slog, slog.New(slog.DiscardHandler))
	j.log = log{disk: j.disk, dir: c.Dir, err: errNotLoaded}
	if err := j.disk.mkdir(); err != nil {
		return nil, typed(err)
	}
	h, err := j.lock()
	if locked := (*LockedError)(nil); errors.As(err, &locked) || isNewer(err) {
		return nil, err
	} else if err != nil {
		j.slog.Error("state directory cannot be used: the agent starts without its previous state", "error", err)
		return j, nil
	}
	if h == j.head { // the directory has no instance id yet; a new one was just created
		if err := j.log.replace(jsonRecord(recordHead, h), noWorks); err != nil {
			j.slog.Warn("state directory: its instance id cannot be stored", "error", err)
		}
		j.log.fail(errNotLoaded)
	}
	j.head = h
	return j, nil
}

// lock locks the directory and reads its head, unless that is done. It reads nothing of a newer version.
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
		j.slog.Warn("state directory: the owner of its works is unreadable, the works are discarded", "error", damaged)
	}
	j.unlock = unlock
	return h, nil
}

// Load reads the state of an earlier process with the same binding. It calls put for each spec of a work and
// removed for each removed work, in the order of the log. They must not call the Journal. An error of put marks
// the record as damaged. An unreadable or unwritable directory is no error here. It leads to an empty
// LoadResult, and to errors of Put and Checkpoint. The error of Load is a *FormatError; the journal is then
// unusable. Load is called once, before the other methods, and Compact must be called next.
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
		j.slog.Warn("state directory: unusable records are dropped, the broker sends the works again", "records", s.Damaged, "first", first)
	}
	j.head.Binding, j.head.Cursor = b, s.Cursor
	if !ours {
		first, s.Damaged = j.renew(Content{Works: noWorks}), 0
	}
	j.log.found(first)
	return s, nil
}

// recognize reports whether the directory has the expected binding.
func (j *Journal) recognize(b Binding) bool {
	held := j.head.Binding
	if held != b && held != (Binding{}) {
		j.slog.Warn("state directory: its works are of another cluster, hub or agent, they are discarded", "dir", j.dir,
			"held_cluster_uid", held.ClusterUID, "held_cluster", held.Cluster, "held_hub_hash", held.HubHash, "held_agent_id", held.AgentID)
	}
	return held == b
}

// take applies a record other than the head.
func (s *LoadResult) take(r record, put func(codec.Event) error, removed func(id string)) error {
	switch {
	case r.kind == recordReported:
		s.Reported = Reported{} // must not be merged with an earlier one
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

// Put stores the latest spec of a work, as received. After a nil result the spec survives the end of this
// process; it survives a power loss only after the next Checkpoint. After an error the disk has the former spec
// or this one. The error is an *Error, or about an event without a work id.
func (j *Journal) Put(e codec.Event) error {
	r, err := workRecord(e)
	if err != nil {
		return err
	}
	return j.add(false, r)
}

// Remove removes a work. The broker must no longer rely on this agent having it. Either its deletion was
// confirmed, or the broker has no record of it, or another work replaced it. After an error the work may be
// loaded again. The error is an *Error.
func (j *Journal) Remove(id string) error {
	return j.add(false, record{kind: recordWork, key: id})
}

// Checkpoint stores the cursor after everything that was put or removed before is on stable storage. After a
// zero cursor the next process lists its works. It takes as long as the disk needs for everything added since
// the last one, and blocks the other methods. It must not be called while a work that the cursor covers could
// not be put or removed. The error is an *Error; the disk then has the former cursor or this one.
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

// Reserve stores the limit of sequence ids before they are used. An earlier process may have sent a status that
// has not arrived yet; later ids must be above it for any clock. The error is an *Error.
func (j *Journal) Reserve(sequence string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.head.Reserved = sequence
	return typed(j.log.add(true, jsonRecord(recordHead, j.head)))
}

// Note stores the accepted statuses and the state in which objects were left; left nil means unchanged. The
// caller defines the form of left. It may be lost, so it may only save work, and must be valid for an object
// that has changed since. The error is an *Error; the previous notes may be on disk then.
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

// Instance returns a random name of the directory: two processes have the same one only if they ran one after
// the other.
func (j *Journal) Instance() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.head.Instance
}

// NeedsCompaction reports whether Compact must be called: at the start, after a failure, and when half of the
// log may be outdated.
func (j *Journal) NeedsCompaction() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.log.due()
}

// Compact replaces the log by a new one with this content: all works that were put and not removed. It ends
// earlier failures and drops the content of removed works. The error is an *Error; the disk then has the former
// log or this one.
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
	// The works and the cursor of a directory that becomes usable only now are not loaded.
	if j.head.Reserved = cmp.Or(j.head.Reserved, h.Reserved); err != nil {
		return err
	}
	first := j.head // the head is written twice: damage affects only one of them
	first.Cursor = codec.Cursor{}
	return j.log.replace(jsonRecord(recordHead, first), c.Works,
		jsonRecord(recordReported, c.Reported), jsonRecord(recordLeft, c.Left), jsonRecord(recordHead, j.head))
}

// Close unlocks the directory. Specs put after the last Checkpoint stay, but are not synced.
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
