// Package store is the broker's memory: for every (data type, cluster,
// resource id) one record with the latest accepted spec and the latest accepted
// status. The broker decides nothing itself about versions, owners and names:
// [Decide] does, a pure function over what the store holds, and every engine
// runs it inside its commit. Engines are packages below this one; storetest
// holds the suite they must all pass.
//
// # Records
//
// A record is live, a tombstone (its source deleted the work; the cluster has
// not confirmed yet; the last spec is kept) or a grave (confirmed; id, version,
// sequence id and the final status are kept until the source has seen it).
//
// # Revisions
//
// Every accepted write gets the next revision, one counter per store, assigned
// in commit order and never reused. A record's spec and status carry the
// revision of their last change, so the change feed ([Store.Changes]) holds each
// at most once: a reader that lags gets the latest state of each and never
// "too old". Each revision belongs to exactly one entry of the feed.
//
// # Names
//
// A name belongs to one record per (cluster, data type): the live record or
// tombstone that carries it, or the tombstone behind which a spec with that
// name waits. Graves hold no name. An event without a name is held under its
// resource id, as agents do.
package store

import (
	"context"
	"errors"
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
	Grave
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

	// DeletedAt is the deletion timestamp the source gave (UTC): set in a
	// tombstone and in the grave of one, zero in a live record and in the grave
	// of a record that was live when an operator gave it up.
	DeletedAt time.Time
	// Buried is when a grave was dug (UTC); zero otherwise.
	Buried time.Time

	// Waiting is the revision-less spec that waits behind this tombstone, nil when none.
	Waiting *Waiting
}

// Waiting is a spec that arrived while the name or the id was still a
// tombstone of the same owner. It becomes a record when the tombstone is
// confirmed: live, or, when it was deleted meanwhile, a tombstone of its own,
// because the cluster may hold it from before a loss of the store.
type Waiting struct {
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

// Op is one write. Which fields count depends on Kind.
type Op struct {
	Kind OpKind
	Key  Key
	// Owner is the publishing source (PutSpec), the owner the record must have
	// (Drop, Acked; "" in Drop: any), or the new owner (Adopt).
	Owner string
	Name  string // PutSpec: object name; "" stands for the resource id
	// Action of the event: an update_request on a tombstone is stale, a
	// create_request waits behind it.
	Action   codec.Action
	Version  int64
	Tag      codec.Tag
	Deleting bool // PutSpec: the work is deleted at its source
	// DeletedAt is the deletion timestamp when Deleting.
	DeletedAt time.Time
	// Supersedes and IfRevision are the source's conditions, 0 when absent: the
	// spec revision the record must have. A spec with a Supersedes that holds,
	// or a deletion with an IfRevision that holds, wins whatever the versions.
	// In Acked, IfRevision is the status revision the owner has seen.
	Supersedes, IfRevision uint64

	Sequence   string // PutStatus
	StatusHash string // PutStatus
	Deleted    bool   // PutStatus: carries condition Deleted=True

	// Event is the normalised protobuf bytes; of a deletion they are in live
	// form, and nil when it carried no data: the record then keeps its last spec.
	Event []byte
	At    time.Time // now, from the broker's clock
}

// OpKind is the kind of a write.
type OpKind uint8

// The kinds of writes.
const (
	// PutSpec: a source publishes a work, or its deletion.
	PutSpec OpKind = iota + 1
	// PutStatus: the agent of Key.Cluster publishes a status.
	PutStatus
	// Acked: the owner has seen the final status of this grave; it is removed.
	// Ignored when there is no such grave, or a later one (IfRevision).
	Acked
	// Forget: an operator gives the record up, whatever its state: a live
	// record or tombstone becomes a grave with a final status (Event, may be
	// nil), as if confirmed; a grave is removed; a waiting spec becomes a grave.
	Forget
	// Drop: the record leaves without a tombstone (its cluster was released),
	// with the spec that waits behind it, or from where it waits.
	Drop
	// Adopt: the record, in any state, and what waits behind it get a new
	// owner. Spec and status (when there is one) get new revisions.
	Adopt
)

// Verdict says what became of an Op. Only Accepted, Confirmed and Waits wrote.
type Verdict uint8

// The verdicts, with the outcome a publisher is told.
const (
	// Accepted: written under Outcome.Revision (the last one, when the op took
	// several). A deletion that takes back a create which waits behind its own
	// tombstone is accepted under that tombstone's revision.
	Accepted Verdict = iota + 1
	// Confirmed: the record became a grave (a deletion reached the cluster, or
	// there was nothing to reach), or gave way to the spec that waited for it.
	Confirmed
	// Waits: kept behind a tombstone of the same id or name.
	Waits
	// Unchanged: same tag as what is stored.
	Unchanged
	// Stale: older version or sequence than what is stored, an update of a
	// deleted work, or a sequence id that cannot be compared (Outcome.Detail).
	Stale
	// Ignored: means nothing for this record (a status for an unknown id or a
	// grave, an Acked without its grave).
	Ignored
	// SpecAgain: a Deleted status for a live record, or for a tombstone of a
	// higher version: not stored, and the spec (the deletion) must be sent to
	// the agent again.
	SpecAgain
	// OwnedByOther: another source owns the record.
	OwnedByOther
	// NameTaken: another record has the name: one of another source, or one of
	// the same source and this op would rename a record onto it.
	NameTaken
	// ConditionFailed: Supersedes or IfRevision does not hold; Outcome.Revision
	// is the record's current spec revision, 0 when there is none.
	ConditionFailed
	// Invalid: the op lacks a field its kind needs, or holds one that cannot be
	// stored; Outcome.Detail says which. The other ops of the batch are not
	// concerned.
	Invalid
)

// Outcome answers one Op.
type Outcome struct {
	Verdict Verdict
	// Revision is that of the write; where nothing was written, the current one
	// of the half the op is about, 0 when there is none.
	Revision uint64
	// Owner of the record after the op, for routing; "" when there is none.
	Owner string
	// Detail says more in a few words where the verdict alone leaves a question
	// (Stale, Invalid); never from a payload; mostly "".
	Detail string
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

// Head is the identity and position of a store.
type Head struct {
	Epoch    string // written at creation
	Term     string // random per opening
	Revision uint64 // of the last commit, 0 when empty
	// TermStart is the first revision that this term may assign.
	TermStart uint64
}

// Cursor in text form, "<epoch>/<term>/<revision>".
type Cursor struct {
	Epoch, Term string
	Revision    uint64
}

// Digest over records that are neither tombstones nor graves: sum modulo 2^128
// of H(resource id, tag), H = first 16 bytes of SHA-256 over
// len(id) as 8 bytes big endian, id, tag.
type Digest struct {
	Count uint64
	Sum   [16]byte
}

// Errors of a Store. Any other error is a failing disk or a bug: nothing of the
// batch may be acknowledged and the store refuses further commits.
var (
	// ErrNotFound: no record with this key.
	ErrNotFound = errors.New("record not found")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store is closed")
	// ErrReadOnly: an earlier write failed or damage was found; restart after repair.
	ErrReadOnly = errors.New("store is read-only after an error")
)

// DamageError names a value whose checksum or form is wrong. The store turns
// read-only when it meets one.
type DamageError struct {
	Key  string // printable form of the storage key
	What string
}

// Error says which value is damaged.
func (e *DamageError) Error() string { return "store: damaged value at " + e.Key + ": " + e.What }

// Scope selects records of one data type: all, those of a cluster, of an
// owner, or of both.
type Scope struct {
	DataType codec.DataType
	Cluster  string // "" = all
	Owner    string // "" = all
}

// Store keeps records. All methods may be called concurrently; Commit calls
// are applied one after the other.
type Store interface {
	// Commit applies ops in order, each on the state the previous ones left,
	// writes and syncs once, and returns one outcome per op. When it returns
	// nil, everything accepted survives a power loss and is visible to Get,
	// Scan and Changes. On error nothing was applied.
	Commit(ctx context.Context, ops []Op) ([]Outcome, error)
	// Get returns the record, payloads included, or ErrNotFound.
	Get(ctx context.Context, k Key) (Record, error)
	// Scan calls f for the Meta of every record in scope (tombstones and graves
	// too) in key order, on one consistent snapshot. An error of f ends the
	// scan and is returned.
	Scan(ctx context.Context, s Scope, f func(Meta) error) error
	// Changes returns up to limit changes with a revision above after, in
	// revision order, each (record, part) once with its latest revision. It
	// waits until there is one or ctx ends.
	Changes(ctx context.Context, after uint64, limit int) ([]Change, error)
	// Head returns identity and position.
	Head() Head
	// ClusterHead returns the revision of the last spec change of a cluster,
	// 0 when there is none; and its digest. It reads no disk. Records that are
	// gone do not count, so the revision may be lower after a reopening.
	ClusterHead(dt codec.DataType, cluster string) (revision uint64, d Digest)
	// ValidCursor reports whether c is a position of this store: its epoch is
	// the store's, its term is known, and its revision lies before the next
	// term's first and is not above the head. Terms older than the last 1024
	// openings are forgotten.
	ValidCursor(c Cursor) bool
	// MarkSubscribed remembers durably that an agent of the cluster subscribed
	// to the data type; Subscribed asks. Clusters are never unmarked except by
	// ForgetCluster. An empty uid does not replace one given earlier. From then
	// on tombstones of that cluster wait for a confirmation; until then one
	// without a status confirms itself.
	MarkSubscribed(ctx context.Context, dt codec.DataType, cluster, uid string) error
	// Subscribed returns the cluster uid an agent gave ("" when it gave none)
	// and whether any agent ever subscribed.
	Subscribed(dt codec.DataType, cluster string) (uid string, ok bool)
	// ForgetCluster removes what MarkSubscribed remembered.
	ForgetCluster(ctx context.Context, cluster string) error
	// Close wakes waiting calls of Changes with ErrClosed, waits for running
	// calls, syncs and releases the files. It must not be called from f of
	// Scan. A second Close returns ErrClosed.
	Close() error
}
