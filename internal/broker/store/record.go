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

// State of a record.
type State uint8

// The states.
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

	Version      int64 // of the spec; 0 is unversioned
	Tag          codec.Tag
	SpecRevision uint64
	// SpecSupersedes: the spec replaced a newer version on the source's word
	// (hub went back in time); it goes out to stock agents as version 0.
	SpecSupersedes bool
	// Superseded is the highest version that a lower one replaced, 0 when there
	// is none: until the versions pass it, SpecSupersedes stays set, because an
	// agent that was away may still hold it.
	Superseded int64

	StatusRevision uint64 // 0: the work never had a status
	StatusVersion  int64  // spec version the status is about
	Sequence       string // highest accepted sequence id, decimal; "" when none
	StatusHash     string // statushash attribute of that status; may be ""
	Failing        bool   // that status says that the work is not applied, or not available

	// DeletedAt is the deletion timestamp the source gave (UTC): set in a
	// tombstone and in the grave of one, zero in a live record and in the grave
	// of a record that was live when an operator gave it up.
	DeletedAt time.Time
	// ConfirmedAt is when a grave was dug (UTC); zero otherwise.
	ConfirmedAt time.Time

	// Queued is the revision-less spec that waits behind this tombstone, nil when none.
	Queued *QueuedSpec

	Sizes Sizes
}

// CollectableWhenAcked reports whether m is a grave that is of no use when its source has seen
// it: its cluster said that nothing is left. A grave without the word of a cluster stays
// until its time is over:
//
//	t1 The store is lost, and so is the status that the hub had.
//	t2 The work is deleted before an agent has come to the new store: nobody can confirm.
//	t3 The source has seen that it is gone.
//	t4 The agent comes and lists the work. The grave says that it has to go.
func (m *Meta) CollectableWhenAcked() bool { return m.State == ConfirmedTombstone && m.Sequence != "" }

// AwaitsStatus reports whether the cluster has said nothing of the present spec yet. Where the version
// does not tell, a status counts that came later.
func (m *Meta) AwaitsStatus() bool {
	if unversioned(m) {
		return m.StatusRevision < m.SpecRevision
	}
	return m.StatusVersion < m.Version
}

// QueuedSpec is a spec that arrived while the name or the id was still a
// tombstone of the same owner. It becomes a record when the tombstone is
// confirmed, or when it takes over from it (see [CanReplaceTombstone]): live, or, when it was deleted meanwhile, a tombstone of its own,
// because the cluster may hold it from before a loss of the store.
type QueuedSpec struct {
	ResourceID string
	Owner      string
	Name       string
	Version    int64
	Tag        codec.Tag
	Deleting   bool      // never set when ResourceID is the tombstone's
	DeletedAt  time.Time // as in Meta, when Deleting
}

// Record is Meta with payloads: protobuf bytes of CloudEvents as normalised at
// ingest. They are shared and must not be modified.
type Record struct {
	Meta
	// Spec is the last spec with data, always in its live form (without
	// deletiontimestamp, which is Meta.DeletedAt); kept in a tombstone, nil in
	// a grave. It is nil too in a tombstone of a work the store never saw live
	// whose deletion carried no data: Meta is all there is.
	Spec []byte
	// Status is the last status, nil when there is none. In a grave it is what
	// the agent reported at the end, or the Event of Forget; nil in a grave that
	// nobody reported (see Confirmed): the broker makes the Deleted status from Meta.
	Status []byte
}

// Part says which half of a record a change is about.
type Part uint8

// The parts.
const (
	SpecPart Part = iota + 1
	StatusPart
)

// Change is one entry of the feed.
type Change struct {
	Revision uint64
	Key      Key
	Owner    string
	Part     Part
	// State of the record after the change; zero when Gone.
	State State
	// Gone: the record is no longer there (dropped, acked, replaced under its
	// name); nothing is to be sent for it. One change per half that was in the
	// feed. Only readers that keep up are told: one that lags or begins anew
	// finds out by Get.
	Gone bool
}

// ClusterHead is what a store knows of one cluster and data type without a look
// at the disk.
type ClusterHead struct {
	// SpecRevision is that of the last change of what an agent should hold, 0 when there is none:
	// of a spec, or of a live record that became a grave. That a deletion is confirmed is none:
	// no agent is told of it, and none could acknowledge it.
	SpecRevision uint64
	Digest       Digest // of the live records
	Tombstones   int
	// Failing is how many of the live records have a status that says so. Of statuses that a
	// release before this one stored nobody knows; they do not count.
	Failing int
	// Unanswered is how many of the live records wait for a status (see [Meta.AwaitsStatus]).
	Unanswered int
	// Sequence is the highest sequence id of an accepted status from which an
	// agent can go on, "" when there is none. Ids that agents do not make (see
	// [codec.Sequencer]) cannot be compared with it and do not count.
	Sequence string
}
