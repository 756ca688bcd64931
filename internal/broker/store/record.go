package store

import (
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Key names a record.
type Key struct {
	DataType   codec.DataType
	Cluster    string
	ResourceID string
}

// Beside returns the key of another id in the same cluster.
func (k Key) Beside(id string) Key { return Key{k.DataType, k.Cluster, id} }

// State is the state of a record.
type State uint8

// States of a record.
const (
	Live State = iota + 1
	Tombstone
	ConfirmedTombstone
)

// Meta is a record without its payloads.
type Meta struct {
	Key
	State State
	Owner string // source name
	Name  string // object name from the metadata extension; unique per (cluster, data type)

	Version      int64 // version of the spec; 0 means unversioned
	Tag          codec.Tag
	SpecRevision uint64
	// SpecSupersedes: the spec replaced a newer version at the request of its source, because the hub went back in
	// time. OCM agents are sent it as version 0.
	SpecSupersedes bool
	// Superseded is the highest version that a lower one replaced, 0 if there is none. SpecSupersedes stays set
	// until the version of the spec is higher: a disconnected agent may still hold that version.
	Superseded int64

	StatusRevision uint64 // 0: the work never had a status
	StatusVersion  int64  // spec version the status is about
	Sequence       string // highest accepted sequence id, decimal; "" when none
	StatusHash     string // statushash attribute of that status; may be ""
	Failing        bool   // the last status reports that the work is not applied, or not available

	// DeletedAt is the deletion timestamp of the source (UTC). It is set in a tombstone and in its confirmed
	// tombstone. It is zero in a live record, and in the confirmed tombstone of a record that was live when an
	// operator gave it up.
	DeletedAt time.Time
	// ConfirmedAt is when the record became a confirmed tombstone (UTC); zero otherwise.
	ConfirmedAt time.Time

	// Queued is the spec queued behind this tombstone, without a revision; nil if there is none.
	Queued *QueuedSpec

	Sizes Sizes
}

// CollectableWhenAcked reports whether m is a confirmed tombstone that is removed once its source has
// acknowledged it. That is so if its cluster has confirmed the deletion. Without that confirmation, the record
// stays until its retention time is over.
//
// Scenario:
//
//	t1: the store is lost, and with it the status that the hub had.
//	t2: the work is deleted before an agent connects to the new store: no agent can confirm.
//	t3: the source acknowledges the deletion.
//	t4: the agent connects and lists the work.
//
// Result: the confirmed tombstone is still there, and the agent is sent the deletion.
func (m *Meta) CollectableWhenAcked() bool { return m.State == ConfirmedTombstone && m.Sequence != "" }

// AwaitsStatus reports whether the cluster has no status for the current spec yet. For an unversioned spec, any
// later status counts.
func (m *Meta) AwaitsStatus() bool {
	if unversioned(m) {
		return m.StatusRevision < m.SpecRevision
	}
	return m.StatusVersion < m.Version
}

// QueuedSpec is a spec that arrived while its name or id was still a tombstone of the same owner. It becomes a
// record when the tombstone is confirmed, or when it replaces the tombstone (see [CanReplaceTombstone]). That
// record is live. If the queued spec is a deletion, the record is a tombstone: the cluster may hold that work from
// before a loss of the store.
type QueuedSpec struct {
	ResourceID string
	Owner      string
	Name       string
	Version    int64
	Tag        codec.Tag
	Deleting   bool      // never set when ResourceID is the tombstone's
	DeletedAt  time.Time // as in Meta, when Deleting
}

// Record is Meta with payloads: the protobuf bytes of CloudEvents, normalised at ingest. They are shared and
// must not be modified.
type Record struct {
	Meta
	// Spec is the last spec with data, always in its live form: without deletiontimestamp, which is Meta.DeletedAt.
	// A tombstone keeps it; in a confirmed tombstone it is nil. It is also nil in a tombstone if the store never
	// saw the work live and its deletion carried no data. Then the store has only Meta.
	Spec []byte
	// Status is the last status, nil if there is none. In a confirmed tombstone it is the last report of the agent,
	// or the Event of Forget. It is nil if no agent confirmed: then the broker makes the Deleted status from Meta.
	Status []byte
}

// Part is the part of a record that a change is about.
type Part uint8

// Parts of a record, and BookmarkPart for changes of bookmarks.
const (
	SpecPart Part = iota + 1
	StatusPart
	BookmarkPart
)

// Change is one entry of the change feed.
type Change struct {
	Revision uint64
	// Key of the record. For BookmarkPart it has only the name of the bookmark, as ResourceID.
	Key   Key
	Owner string
	Part  Part
	// State of the record after the change; zero when Gone. A bookmark that is not removed is Live.
	State State
	// Gone: the record was removed (dropped, acknowledged, or replaced under its name), or the bookmark. Nothing is
	// sent for a removed record. There is one such change per part that was in the feed, until all readers have
	// passed it (see [Feed]).
	Gone bool
	// Value is the value of a bookmark, nil when Gone and in a change of a record. It must not be modified.
	Value []byte
	// LastSpec is the revision of the spec that a deletion replaced, if that is among the last changes of the store,
	// else 0. A reader that is below it does not get the spec any more.
	LastSpec uint64
}

// ClusterHead is the summary of one cluster and data type that needs no disk read.
type ClusterHead struct {
	// SpecRevision is the revision of the last change that agents have to acknowledge, 0 if there is none. That is
	// a change of a spec, or of a live record that became a confirmed tombstone. The confirmation of a tombstone
	// does not count: no agent is sent it.
	SpecRevision uint64
	Digest       Digest // of the live records
	Tombstones   int
	// Failing is the number of live records whose status reports a failure. Statuses that earlier releases stored
	// do not have this flag and are not counted.
	Failing int
	// Unanswered is the number of live records that wait for a status (see [Meta.AwaitsStatus]).
	Unanswered int
	// Sequence is the highest sequence id of an accepted status that an agent can continue from, "" if there is
	// none. Ids that no agent can have made (see [codec.Sequencer]) cannot be compared and are skipped.
	Sequence string
}
