package journal

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Names in the state directory.
const (
	lockFile     = "lock"
	instanceFile = "instance"
	bindingFile  = "binding"
	cursorFile   = "cursor"
	reportedFile = "reported"
	sequenceFile = "sequence"
	leftFile     = "left"
	worksDir     = "works"

	// draftSuffix ends the name of a file that is being written.
	draftSuffix = ".new"
)

// Config says where a Journal is.
type Config struct {
	// Dir is the state directory. It is made if it is not there.
	Dir string
	// Log may be nil.
	Log *slog.Logger

	disk  disk // of a test, and then
	width int  // instead of syncsAtOnce
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

func (b *Binding) fields() []*string {
	return []*string{&b.ClusterUID, &b.Cluster, &b.HubHash, &b.AgentID}
}

// State is what a directory held, the works aside.
type State struct {
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
	Left map[string]string
	// Works is the number of works, Damaged that of files that could not be used.
	Works, Damaged int
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

// Journal is a state directory that this process has locked. Methods may be
// called concurrently; they take effect one after the other. The order of what
// concerns one work is up to the caller.
type Journal struct {
	dir      string
	disk     disk
	width    int
	log      *slog.Logger
	unlock   func() error // nil while the directory cannot be used
	instance string

	// saving is held while reported or sequence is written, and taken before mu.
	saving sync.Mutex

	mu      sync.Mutex
	phase   phase
	binding Binding
	// bound: the binding on disk is ours, and nothing else is in the directory.
	bound bool
	// cursor is what is certainly on disk; the zero cursor if that is not known.
	cursor codec.Cursor
	// stale: the cursor on disk covers more than the works do. It must go before
	// anything that it covers.
	stale bool
	// listed: what is in works/ is known.
	listed bool
	// obstacles are names in works/ that must go: nobody may take them for ours.
	obstacles map[string]bool
	// changed: names in works/ were made, replaced or removed since it was synced.
	changed bool
	// unsynced are entries (name to id) written since the last Checkpoint, or by
	// an earlier process. suspect are those whose sync failed: they may read well
	// and be lost with the page cache, so only writing them again helps.
	unsynced, suspect map[string]string
	// dirty are entries that are not on disk as they were given.
	dirty map[string]lapse
}

type phase int

const (
	opened phase = iota
	loaded
	closed
)

// lapse is a Put that failed.
type lapse struct {
	id  string
	err error
}

// Put stores the latest spec of a work, as it was received. When it returns nil,
// the spec survives the end of this process; a power loss only after the next
// Checkpoint. When it returns an error, the entry of the work is the former one
// or this one, the work is dirty, and no Checkpoint succeeds until it was put
// again or removed. The error is an *Error, or about an event that names no work.
func (j *Journal) Put(e codec.Event) error {
	id, err := resourceID(e)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.phase != loaded {
		return errNotLoaded
	}
	name := entryName(id)
	if err := j.put(name, e); err != nil {
		j.dirty[name] = lapse{id: id, err: err}
		return err
	}
	delete(j.dirty, name)
	delete(j.suspect, name)
	delete(j.obstacles, name)
	j.unsynced[name] = id
	return nil
}

func (j *Journal) put(name string, e codec.Event) error {
	event, err := codec.Marshal(e)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if err := j.bind(); err != nil {
		return err
	}
	j.changed = true
	return j.replace(worksDir+"/"+name, seal(name, event))
}

// Remove forgets a work. The broker must not count on this agent having it any
// more: its deletion was confirmed, or the broker has no record of it, or
// another work took its place. A failed removal is tried again by Checkpoint,
// which does not succeed before; until then the entry may be loaded again. The
// error is an *Error.
func (j *Journal) Remove(id string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.phase != loaded {
		return errNotLoaded
	}
	name := entryName(id)
	delete(j.dirty, name)
	delete(j.suspect, name)
	delete(j.unsynced, name)
	if err := j.bind(); err != nil {
		return err // what is there goes before the directory is ours
	}
	j.changed = true
	if err := j.remove(worksDir + "/" + name); err != nil {
		j.obstacles[name] = true
		return err
	}
	delete(j.obstacles, name)
	return nil
}

// Dirty returns the resource ids of the works that are not on disk as they were
// given, in ascending order.
func (j *Journal) Dirty() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var ids []string
	for _, d := range j.dirty {
		ids = append(ids, d.id)
	}
	slices.Sort(ids)
	return ids
}

// DropCursor forgets the cursor: the next process lists what it has. When it
// fails with an *Error, the next Checkpoint tries again, or replaces the cursor.
func (j *Journal) DropCursor() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.phase != loaded {
		return errNotLoaded
	}
	j.cursor, j.stale = codec.Cursor{}, true
	return j.dropStale()
}

// SaveReported stores what the broker accepted; see Reported. It does not wait
// for a Checkpoint that is under way longer than to see that the directory is
// ours. The error is an *Error; what was saved before may be there then.
func (j *Journal) SaveReported(r Reported) error {
	return j.saveBeside(reportedFile, encodeReported(r))
}

// SaveLeft stores how objects were left, in a form that the caller knows, by
// whatever names them. It is saved now and then, and can be lost: it may only
// spare work, and must be true of an object that has changed since. It waits like
// SaveReported; the error is an *Error.
func (j *Journal) SaveLeft(left map[string]string) error {
	return j.saveBeside(leftFile, encodeLeft(left))
}

// Reserve notes, before they are used, that sequence ids up to this one may be.
// An earlier process may have sent a status that has not arrived yet: whatever
// the clock says by then, ids go on above it. It waits like SaveReported; the
// error is an *Error.
func (j *Journal) Reserve(sequence string) error {
	return j.saveBeside(sequenceFile, encodeSequence(sequence))
}

// saveBeside replaces a file that has nothing to do with works and cursor.
func (j *Journal) saveBeside(name string, content []byte) error {
	j.saving.Lock()
	defer j.saving.Unlock()
	j.mu.Lock()
	err := errNotLoaded
	if j.phase == loaded {
		err = j.bind()
	}
	j.mu.Unlock()
	if err != nil {
		return err
	}
	return j.replaceSynced(name, content)
}

// Instance is a random name that stays with the directory: two processes have
// the same one only if one follows the other.
func (j *Journal) Instance() string { return j.instance }

// Close lets another process have the directory. What was put after the last
// Checkpoint stays, but is not synced.
func (j *Journal) Close() error {
	j.saving.Lock()
	defer j.saving.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.phase == closed {
		return nil
	}
	j.phase = closed
	if j.unlock == nil {
		return nil
	}
	return j.failure("unlock", lockFile, j.unlock())
}
