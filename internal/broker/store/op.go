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

// Op is one write. Kind decides which fields are used.
type Op struct {
	Kind OpKind
	Key  Key
	// Owner is the publishing source (PutSpec), the required owner of the record (Drop, CollectTombstone; "" in
	// Drop: any), or the new owner (Transfer).
	Owner string
	Name  string // PutSpec: object name; "" stands for the resource id. SetBookmark: name of the bookmark
	// Action of the event. On a tombstone an update_request is stale and a create_request is queued.
	Action   codec.Action
	Version  int64
	Tag      codec.Tag
	Deleting bool // PutSpec: the work is deleted at its source
	// DeletedAt is the deletion timestamp when Deleting.
	DeletedAt time.Time
	// Supersedes and IfRevision are the source's conditions, 0 if absent: the spec revision that the record must
	// have. If Supersedes holds, the spec wins for any version; if IfRevision holds, a deletion does. In
	// CollectTombstone, IfRevision is the status revision up to which the owner has acknowledged everything; in
	// TakeOver, the revision of the tombstone.
	Supersedes, IfRevision uint64
	// Quota limits the source and the cluster (PutSpec, PutStatus). nil means no limit.
	Quota *quota.Quota
	// OutOfScope: the cluster is not among the allowed clusters of the source (PutSpec). Only deletions of works
	// that it still has there are processed; any other op gets the answer of a missing record.
	OutOfScope bool
	// Reported: the source has a status of the work, so its cluster had the work, even if this store has no record.
	Reported bool

	Sequence   string // PutStatus
	StatusHash string // PutStatus
	Deleted    bool   // PutStatus: carries condition Deleted=True
	Failing    bool   // PutStatus: the work is not applied, or not available

	// UID is the cluster uid that the agent sent (BindCluster), "" if it sent none.
	UID string
	// Value is the value of the bookmark Name (SetBookmark). nil removes the bookmark; an empty value does not.
	Value []byte
	// Conditional: the bookmark must have the revision IfRevision (SetBookmark). 0 means that there is none. If Guard
	// is set, the condition is about the bookmark with that name instead. A commit whose ops have the same guard, and
	// whose last one sets it, writes all of them or none.
	Conditional bool
	Guard       string

	// Fence is that of the source's subscription on which the op arrived. It is the zero value if the op names no
	// subscription of a source; then it is never Fenced.
	Fence Fence

	// Event is the normalised protobuf bytes. In a deletion they are in live form, or nil if it carried no data:
	// then the record keeps its last spec.
	Event []byte
	At    time.Time // current time of the broker's clock
}

// OpKind is the kind of a write.
type OpKind uint8

// Kinds of writes.
const (
	// PutSpec: a source publishes a work, or its deletion.
	PutSpec OpKind = iota + 1
	// PutStatus: the agent of Key.Cluster publishes a status.
	PutStatus
	// CollectTombstone: the owner has acknowledged the final status of this confirmed tombstone; it is removed.
	// Ignored if there is no confirmed tombstone, or a later one (IfRevision).
	CollectTombstone
	// Forget: an operator force-deletes the record, in any state. A live record or tombstone becomes a confirmed
	// tombstone with a final status (Event, may be nil). A confirmed tombstone is removed. A queued spec becomes a
	// confirmed tombstone.
	Forget
	// Drop: the record is removed without a tombstone, because its cluster was released. The spec queued behind it,
	// or the queued spec of the op's id, is removed too.
	Drop
	// Transfer: the record, in any state, gets a new owner, and so does its queued spec with the confirmed
	// tombstone of that id. Spec and status, if there is one, get new revisions. Ignored for a queued id: transfer
	// the record it is queued behind.
	Transfer
	// TakeOver: no agent was sent this tombstone, and the queued spec of another id takes over its name and
	// objects. The tombstone becomes a confirmed tombstone. The caller has proof of that; see
	// [CanReplaceTombstone]. Ignored if the record has changed, or if no spec is queued that may take over.
	TakeOver
	// SetBookmark: a small value is stored under a name, or removed.
	SetBookmark
	// BindCluster: an agent of the cluster subscribes to the data type. The first UID that an agent sends is bound
	// to the name of the cluster, until UnbindCluster. Another UID is OwnedByOther. From then on tombstones of the
	// cluster wait for a confirmation; before that, a tombstone without a status is confirmed at once.
	BindCluster
	// UnbindCluster: the binding of the cluster for the data type is removed.
	UnbindCluster
	// Supersede: the subscription with this Fence takes over from the earlier subscriptions of its source.
	Supersede
)

// ResultCode is the result of an Op. Only Accepted, Confirmed and Queued wrote.
type ResultCode uint8

// Results, with the outcome that the publisher gets.
const (
	// Accepted: written under Outcome.Revision. A deletion of a create that is queued behind the tombstone of its
	// own id is accepted under that tombstone's revision.
	Accepted ResultCode = iota + 1
	// Confirmed: the record became a confirmed tombstone, or its queued spec replaced it. Either the deletion
	// reached the cluster, or no cluster has to confirm.
	Confirmed
	// Queued: queued behind a tombstone of the same id or name.
	Queued
	// Unchanged: the stored record has the same tag. For a status: the same sequence id, version and hash.
	Unchanged
	// Stale: the version or sequence id is older than the stored one or cannot be compared, or the op updates a
	// deleted work (see Outcome.Detail).
	Stale
	// Ignored: no effect on this record. Examples: a status for an unknown id or for a confirmed tombstone, or a
	// CollectTombstone without one.
	Ignored
	// ResendSpec: a Deleted status for a live record, or for a tombstone of a higher version. It is not stored, and
	// the spec or the deletion must be sent to the agent again.
	ResendSpec
	// OwnedByOther: another source owns the record, or another cluster uid is bound to the name.
	OwnedByOther
	// NameConflict: another record has the name. It belongs to another source, or this op would rename another record
	// of the same source onto it. The result is the same if the op would change the name of a queued spec, or if
	// another spec is already queued. Such an op can succeed after the deletion is confirmed.
	NameConflict
	// ConditionFailed: Supersedes or IfRevision does not hold. Outcome.Revision is the current revision of the
	// record's spec, or of the bookmark, 0 if there is none. A deletion of a work without a record gets this result in two cases. If the
	// work was reported and its name belongs to a record, that record must be deleted first. If its name belongs to
	// another source's tombstone, the deletion can succeed after that tombstone is confirmed.
	ConditionFailed
	// Invalid: the op lacks a field that its kind needs, or has a field that cannot be stored. Outcome.Detail names
	// it. The other ops of the batch are not affected.
	Invalid
	// QuotaExceeded: the op exceeds a quota; Outcome.Excess names the limit.
	QuotaExceeded
	// Fenced: a later subscription of the source has taken over.
	Fenced
)

// Outcome is the result of one Op.
type Outcome struct {
	Result ResultCode
	// Revision is that of the last write of the op. If nothing was written, it is the current revision of the part
	// that the op is about. It is 0 if there is none, as for a queued spec.
	Revision uint64
	// Head is the last assigned revision after the op, its own writes included. Two outcomes for one record are in
	// the order of their heads.
	Head uint64
	// Owner is the owner of the record after the op, for routing; "" if there is no record.
	Owner string
	// Replaced is the spec revision of the record that an accepted deletion replaced. It is 0 if there was none,
	// and in all other outcomes.
	Replaced uint64
	// Detail explains the result in a few words (Stale, Invalid); mostly "". It never contains payload data.
	Detail string
	// Excess is the exceeded limit of an op with result QuotaExceeded.
	Excess quota.Excess
}

// maxKeyPart is the maximum length of each part of a storage key, in bytes. Kubernetes names have at most 253
// bytes.
const maxKeyPart = 1024

// SpecName returns the name of the op's spec, by default its resource id.
func (op *Op) SpecName() string { return cmp.Or(op.Name, op.Key.ResourceID) }

// CheckScope returns an error if a data type or a cluster cannot be stored.
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

// CheckSince returns an error if Since cannot answer. Engines call it.
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

// FreesQuota reports whether the op finally reduces the data on the disk. All ops do, except the spec or the
// status of a work that is not deleted.
func (op *Op) FreesQuota() bool {
	return op.Kind != PutSpec && op.Kind != PutStatus || op.Deleting || op.Deleted
}

// problem returns the reason if the op is invalid, otherwise "".
func (op *Op) problem() string {
	switch op.Kind {
	case SetBookmark:
		return bookmarkProblem(op.Name, op.Value)
	case Supersede:
		return bookmarkProblem(op.Fence.Name, nil)
	case BindCluster, UnbindCluster:
		return cmp.Or(scopeProblem(op.Key.DataType, op.Key.Cluster), bindingProblem(op.Key.DataType, op.Key.Cluster), keyPartProblem("cluster uid", op.UID))
	}
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
