package store

import (
	"cmp"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/pkg/codec"
)

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
	// In Acked, IfRevision is the status revision up to which the owner has seen
	// everything; in TakeOver, the revision of the tombstone.
	Supersedes, IfRevision uint64
	// Quota is what the source, and the cluster, may have (PutSpec, PutStatus); nil: anything.
	Quota *quota.Quota
	// OutOfScope: the source may have no works on the cluster (PutSpec). Only the deletion of what
	// it has there all the same counts; any other is as if nothing were there.
	OutOfScope bool
	// Reported: the source has a status of the work, so its cluster has had it
	// even if this store knows nothing of that.
	Reported bool

	Sequence   string // PutStatus
	StatusHash string // PutStatus
	Deleted    bool   // PutStatus: carries condition Deleted=True
	Failing    bool   // PutStatus: says that the work is not applied, or not available

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
	// CollectTombstone: the owner has seen the final status of this grave; it is removed.
	// Ignored when there is no such grave, or a later one (IfRevision).
	CollectTombstone
	// Forget: an operator gives the record up, whatever its state: a live
	// record or tombstone becomes a grave with a final status (Event, may be
	// nil), as if confirmed; a grave is removed; a waiting spec becomes a grave.
	Forget
	// Drop: the record leaves without a tombstone (its cluster was released),
	// with the spec that waits behind it, or from where it waits.
	Drop
	// Transfer: the record, in any state, and what waits behind it (with the grave
	// of that id, if there is one) get a new owner. Spec and status (when there is one) get new revisions. Ignored for
	// an id that waits: adopt what it waits behind.
	Transfer
	// TakeOver: no agent has heard of this tombstone, and the spec of another id that
	// waits behind it takes over the name, with the objects: the tombstone becomes a
	// grave, as if confirmed. The caller knows that nobody has heard; see
	// [CanReplaceTombstone]. Ignored where another record is there, or nothing takes over.
	TakeOver
)

// ResultCode says what became of an Op. Only Accepted, Confirmed and Waits wrote.
type ResultCode uint8

// The verdicts, with the outcome a publisher is told.
const (
	// Accepted: written under Outcome.Revision. A deletion that takes back a
	// create which waits behind its own tombstone is accepted under that
	// tombstone's revision.
	Accepted ResultCode = iota + 1
	// Confirmed: the record became a grave (a deletion reached the cluster, or
	// there was nothing to reach), or gave way to the spec that waited for it.
	Confirmed
	// Queued: kept behind a tombstone of the same id or name.
	Queued
	// Unchanged: same tag as what is stored; of a status, same sequence id, version
	// and hash.
	Unchanged
	// Stale: older version or sequence than what is stored, an update of a
	// deleted work, or a sequence id that cannot be compared (Outcome.Detail).
	Stale
	// Ignored: means nothing for this record (a status for an unknown id or a
	// grave, an Acked without its grave).
	Ignored
	// ResendSpec: a Deleted status for a live record, or for a tombstone of a
	// higher version: not stored, and the spec (the deletion) must be sent to
	// the agent again.
	ResendSpec
	// OwnedByOther: another source owns the record.
	OwnedByOther
	// NameTaken: another record has the name: one of another source, or one of
	// the same source and this op would rename a record onto it. Also where a
	// spec that waits would change its name, or meet another one that waits in
	// the same place: such an op can succeed after the confirmation.
	NameTaken
	// ConditionFailed: Supersedes or IfRevision does not hold; Outcome.Revision
	// is the record's current spec revision, 0 when there is none. Also where a
	// deletion of a reported work that has no record meets a record of its name:
	// that one has to be deleted first. And where a deletion of a work that has no
	// record meets another source's tombstone of its name: it can succeed after the
	// confirmation.
	ConditionFailed
	// Invalid: the op lacks a field its kind needs, or holds one that cannot be
	// stored; Outcome.Detail says which. The other ops of the batch are not
	// concerned.
	Invalid
	// OverQuota: there is no room for what the op adds; Outcome.Excess says which limit.
	OverQuota
)

// Outcome answers one Op.
type Outcome struct {
	Result ResultCode
	// Revision is that of the write, the last one when there are several; where
	// nothing was written, the current one of the half the op is about. 0 when
	// there is none, as for a spec that waits.
	Revision uint64
	// Head is the last revision assigned when the op was decided, its own writes
	// included. Two answers about one record are in the order of their heads.
	Head uint64
	// Owner of the record after the op, for routing; "" when there is none.
	Owner string
	// Replaced is the spec revision of the record whose place an accepted deletion
	// took; 0 when there was none, and in every other outcome.
	Replaced uint64
	// Detail says more in a few words where the verdict alone leaves a question
	// (Stale, Invalid); never from a payload; mostly "".
	Detail string
	// Excess is the limit of an op that is over its quota.
	Excess quota.Excess
}

// maxKeyPart bounds what becomes part of a storage key, in bytes. Kubernetes
// names have at most 253.
const maxKeyPart = 1024

// nameOf returns the name a spec is held under.
func nameOf(op *Op) string {
	if op.Name == "" {
		return op.Key.ResourceID
	}
	return op.Name
}

// CheckScope says what makes a data type or a cluster impossible to store, nil
// when nothing does. Engines call it in MarkSubscribed.
func CheckScope(dt codec.DataType, cluster string) error {
	if p := scopeProblem(dt, cluster); p != "" {
		return errors.New("store: " + p)
	}
	return nil
}

func scopeProblem(dt codec.DataType, cluster string) string {
	return cmp.Or(
		requiredProblem("group of the data type", dt.Group), requiredProblem("version of the data type", dt.Version),
		requiredProblem("resource of the data type", dt.Resource), requiredProblem("cluster", cluster),
	)
}

// CheckSince says why Since cannot answer, nil when it can. Engines call it.
func CheckSince(s Scope, part Part) error {
	switch {
	case part == SpecPart && s.Cluster == "":
		return errors.New("store: changed specs are those of a cluster, and the scope names none")
	case part == StatusPart && s.Owner == "":
		return errors.New("store: changed statuses are those of an owner, and the scope names none")
	case part != SpecPart && part != StatusPart:
		return errors.New("store: records have no part " + strconv.Itoa(int(part)))
	default:
		return nil
	}
}

// FreesQuota reports whether less is on disk in the end: after everything but a spec or a
// status of a work that stays.
func (op *Op) FreesQuota() bool {
	return op.Kind != PutSpec && op.Kind != PutStatus || op.Deleting || op.Deleted
}

// problem says what makes the op invalid, "" when nothing does.
func (op *Op) problem() string {
	return cmp.Or(
		scopeProblem(op.Key.DataType, op.Key.Cluster), requiredProblem("resource id", op.Key.ResourceID),
		keyPartProblem("owner", op.Owner), keyPartProblem("name", op.Name), op.kindProblem(),
	)
}

func requiredProblem(what, value string) string {
	if value == "" {
		return what + " is empty"
	}
	return keyPartProblem(what, value)
}

func keyPartProblem(what, value string) string {
	switch {
	case len(value) > maxKeyPart:
		return what + " is longer than " + strconv.Itoa(maxKeyPart) + " bytes"
	case strings.IndexByte(value, 0) >= 0:
		return what + " contains a zero byte"
	default:
		return ""
	}
}

func (op *Op) kindProblem() string {
	needsOwner := op.Kind == PutSpec || op.Kind == CollectTombstone || op.Kind == Transfer
	needsEvent := op.Kind == PutStatus || op.Kind == PutSpec && !op.Deleting
	switch {
	case op.Kind < PutSpec || op.Kind > TakeOver:
		return "unknown kind " + strconv.Itoa(int(op.Kind))
	case needsOwner && op.Owner == "":
		return "owner is empty"
	case op.Version < 0:
		return "version is negative"
	case needsEvent && len(op.Event) == 0:
		return "event is empty"
	case len(op.StatusHash) > maxKeyPart:
		return "status hash is longer than " + strconv.Itoa(maxKeyPart) + " bytes"
	case len(op.Sequence) > maxKeyPart:
		return "sequence id is longer than " + strconv.Itoa(maxKeyPart) + " bytes"
	default:
		return ""
	}
}

// MaxBookmark bounds the value of a bookmark, in bytes.
const MaxBookmark = 4096

// CheckBookmarks says what makes bookmarks impossible to store, nil when nothing
// does. Engines call it in SetBookmarks.
func CheckBookmarks(set map[string][]byte) error {
	for name, value := range set {
		switch p := requiredProblem("name of a bookmark", name); {
		case p != "":
			return errors.New("store: " + p)
		case len(value) > MaxBookmark:
			return errors.New("store: bookmark " + strconv.Quote(name) + " is longer than " + strconv.Itoa(MaxBookmark) + " bytes")
		}
	}
	return nil
}
