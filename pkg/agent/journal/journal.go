package journal

import (
	"errors"
	"iter"
	"log/slog"
	"sync"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Names in the state directory.
const (
	lockFile  = "lock"
	logFile   = "log"
	draftFile = "log.new" // a log that is being written
)

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
	dir    string
	disk   disk
	log    *slog.Logger
	unlock func() error // nil while the directory cannot be used

	mu   sync.Mutex
	head head
	// size is how long the log is, renewed how long it was when it was begun.
	size, renewed int
	// outdated: the log may have what does not count any more, or cannot be read.
	outdated bool
	// err is why nothing can be added. What failed to be written may be there or not,
	// and what a sync failed to make stable may read well and be lost with the page
	// cache: another sync of the same file would succeed whether it is there or not.
	err error
}

// head is what is known besides works. It is JSON on disk.
type head struct {
	Instance string       `json:"instance,omitempty"`
	Binding  Binding      `json:"binding"`
	Cursor   codec.Cursor `json:"cursor"`
	Reserved string       `json:"reserved,omitempty"`
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
	return j.do(func() error { return j.add(r) })
}

// Remove forgets a work. The broker must not count on this agent having it any
// more: its deletion was confirmed, or the broker has no record of it, or
// another work took its place. After an error the work may be loaded again. The
// error is an *Error.
func (j *Journal) Remove(id string) error {
	return j.do(func() error { return j.add(record{kind: recordWork, key: id}) })
}

// Checkpoint stores the cursor, after everything that was put or removed before
// is on stable storage; the zero cursor means that the next process lists what it
// has. It takes as long as the disk takes for all that was added since the last
// one; nothing else is done meanwhile. It is not called while a work that the cursor
// covers could not be put or removed. The error is an *Error; the former cursor or
// this one is in force then.
func (j *Journal) Checkpoint(c codec.Cursor) error {
	return j.do(func() error {
		if err := j.disk.sync(logFile); err != nil || j.head.Cursor == c {
			return err
		}
		j.head.Cursor = c
		return j.addStable(jsonRecord(recordHead, j.head))
	})
}

// Reserve notes, before they are used, that sequence ids up to this one may be.
// An earlier process may have sent a status that has not arrived yet: whatever
// the clock says by then, ids go on above it. The error is an *Error.
func (j *Journal) Reserve(sequence string) error {
	return j.do(func() error {
		j.head.Reserved = sequence
		return j.addStable(jsonRecord(recordHead, j.head))
	})
}

// SaveReported stores what the broker accepted; see Reported. The error is an
// *Error; what was saved before may be there then.
func (j *Journal) SaveReported(r Reported) error { return j.save(recordReported, r) }

// SaveLeft stores how objects were left, in a form that the caller knows, by
// whatever names them. It is saved now and then, and can be lost: it may only
// spare work, and must be true of an object that has changed since. The error is
// an *Error.
func (j *Journal) SaveLeft(left map[string]map[string]string) error { return j.save(recordLeft, left) }

func (j *Journal) save(kind byte, v any) error {
	return j.do(func() error { return j.addStable(jsonRecord(kind, v)) })
}

// Instance is a random name that stays with the directory: two processes have
// the same one only if one follows the other.
func (j *Journal) Instance() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.head.Instance
}

// Due reports whether Renew is to be called: at the start, after a failure, and when
// half of the log may not count.
func (j *Journal) Due() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err != nil || j.outdated || j.size > 2*j.renewed+waste
}

// Renew replaces the log by a new one with this content: whatever was put and not
// removed is in it. That is the end of what failed before, and of what removed works
// said. The error is an *Error; the former log or this one is there then.
func (j *Journal) Renew(c Content) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if wrong := misuse(""); errors.As(j.err, &wrong) {
		return typed(j.err)
	}
	return typed(j.renew(c))
}

// Close lets another process have the directory. What was put after the last
// Checkpoint stays, but is not synced.
func (j *Journal) Close() (err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.unlock != nil {
		err = j.unlock()
	}
	j.unlock, j.err = nil, errClosed
	return typed(err)
}

// do calls what a method does, unless nothing can be added.
func (j *Journal) do(what func() error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == nil {
		j.err = what()
	}
	return typed(j.err)
}
