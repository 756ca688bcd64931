package store

import (
	"cmp"
	"math"

	"github.com/hawser-io/hawser/pkg/codec"
)

// This file implements the table of the package comment, with its conditions: the effect of each op in each
// state of a record. transitions.go has the writes.

// Reasons for Stale, in Outcome.Detail.
const (
	detailOlderVersion    = "a newer version is stored"
	detailUpdateOfDeleted = "the work was deleted"
	detailOlderSequence   = "a newer sequence id is stored"
	detailBadSequence     = "the sequence id is invalid or too far ahead"
)

func (p *plan) putSpec() {
	current := uint64(0)
	if p.Record != nil {
		current = p.Record.SpecRevision
	}
	conditionFails := func(want uint64) bool { return want != 0 && want != current }
	foreign := p.foreign(p.Record) || p.foreign(p.BlockedBy)
	switch {
	case p.op.OutOfScope && (foreign || p.isUnknown()):
		p.answer(Ignored, nil, 0)
	case foreign:
		p.putForeign()
	case conditionFails(p.op.Supersedes), conditionFails(p.op.IfRevision):
		p.refuse(ConditionFailed, p.Record)
	case p.BlockedBy != nil:
		p.putQueued(p.BlockedBy)
	case p.isUnknown():
		if p.op.Deleting {
			p.deleteUnknown(p.Record)
		} else {
			p.putNew(p.Record)
		}
	case p.Record.State == Tombstone:
		p.putTombstone(p.Record)
	default:
		p.putLive(p.Record)
	}
}

func (p *plan) foreign(m *Meta) bool { return m != nil && m.Owner != p.op.Owner }

// isUnknown reports whether the op's id has no record, or only a confirmed tombstone.
func (p *plan) isUnknown() bool {
	return p.BlockedBy == nil && (p.Record == nil || p.Record.State == ConfirmedTombstone)
}

// putForeign rejects an op whose id belongs to another source. An op with a condition gets ConditionFailed, as
// if there were no record.
func (p *plan) putForeign() {
	if p.op.Supersedes != 0 || p.op.IfRevision != 0 {
		p.refuse(ConditionFailed, nil)
		return
	}
	p.refuse(OwnedByOther, cmp.Or(p.Record, p.BlockedBy))
}

// wins reports whether the op's version replaces the stored version.
func (p *plan) wins(stored int64) bool {
	conditional := p.op.Supersedes != 0 || p.op.Deleting && p.op.IfRevision != 0
	return conditional || p.op.Version == 0 || p.op.Version >= stored
}

// keepsName reports whether the op is a deletion without data, which keeps the last spec and its name.
func (p *plan) keepsName() bool { return p.op.Deleting && len(p.op.Event) == 0 }

// nameInUse reports whether the name of the op belongs to a record other than m.
func (p *plan) nameInUse(m *Meta) bool {
	return !p.keepsName() && p.NameOwner != nil && p.NameOwner.ResourceID != m.ResourceID
}

// eventOr returns FromOp if the op has an event, and none otherwise.
func (p *plan) eventOr(none Payload) Payload {
	if len(p.op.Event) == 0 {
		return none
	}
	return FromOp
}

// putLive decides about a spec whose record is live.
func (p *plan) putLive(m *Meta) {
	switch {
	case p.op.Tag == m.Tag:
		p.refuse(Unchanged, m)
	case !p.wins(m.Version):
		p.stale(m, m.SpecRevision, detailOlderVersion)
	case p.nameInUse(m):
		p.refuse(NameConflict, m)
	case p.op.Deleting:
		p.createTombstone(m)
	default:
		p.wrote(Accepted, p.revise(m, Live, FromOp, Keep))
	}
}

// neverSubscribed reports whether the cluster never had the work, according to the store and the source.
func (p *plan) neverSubscribed() bool { return !p.Subscribed && !p.op.Reported }

// putTombstone decides about a spec whose record is a tombstone.
func (p *plan) putTombstone(m *Meta) {
	own := m.Queued != nil && m.Queued.ResourceID == m.ResourceID
	// A deletion of the queued spec may look like the deletion before it. Both deletions may have no data, and the
	// new work may repeat the versions of the old one. Then only the times differ.
	another := own && p.op.Deleting && !p.op.DeletedAt.Equal(m.DeletedAt)
	switch {
	case p.op.Tag == m.Tag && !another:
		if p.isUncertain(m) {
			p.wrote(Accepted, p.setQueued(m, m.Queued, Keep))
		} else {
			p.refuse(Unchanged, m)
		}
	case p.nameInUse(m):
		p.refuse(NameConflict, m)
	case p.op.Deleting && own:
		p.takeBack(m)
	case p.op.Deleting && !p.wins(m.Version):
		p.stale(m, m.SpecRevision, detailOlderVersion)
	case p.op.Deleting:
		p.createTombstone(m)
	case p.op.Supersedes != 0:
		p.undelete(m)
	default:
		p.putBehind(m, own)
	}
}

// putBehind decides about a spec for the id of tombstone m. own is true if a spec for this id is already queued
// behind m.
func (p *plan) putBehind(m *Meta, own bool) {
	switch {
	case !own && p.op.Action != codec.CreateRequest:
		p.stale(m, m.SpecRevision, detailUpdateOfDeleted)
	case own && p.op.Tag == m.Queued.Tag && p.isUncertain(m):
		p.setQueued(m, m.Queued, Keep)
		p.answer(Queued, m, 0)
	case own && p.op.Tag == m.Queued.Tag:
		p.answer(Unchanged, m, 0)
	case own && !p.wins(m.Queued.Version):
		p.stale(m, 0, detailOlderVersion)
	default:
		p.wait(m)
	}
}

// takeBack deletes the spec that is queued behind the tombstone of its own id. The tombstone then also is the
// deletion of that work.
//
// Scenario:
//
//	t1: a deletion is confirmed, and the id is used again by a new work, which an agent applies.
//	t2: the store is restored to a state before t1, and the source publishes its works again.
//	t3: the source deletes the new work.
//	t4: the agent lists the new work.
//
// Result: the agent is sent a deletion that is not older than the listed work.
func (p *plan) takeBack(m *Meta) {
	switch {
	case !p.wins(m.Queued.Version):
		p.stale(m, m.SpecRevision, detailOlderVersion)
	case p.op.Version > m.Version:
		p.updateTombstone(m, Keep, Clear)
	default:
		p.answer(Accepted, m, p.setQueued(m, nil, Clear).SpecRevision)
	}
}

// isUncertain reports whether tombstone m is from before the store was opened. The store may have lost later
// changes that undid the deletion, so no agent with a newer version is sent it. A source that publishes the
// deletion again, or a spec that is queued behind it, shows that the deletion is right. Then the tombstone gets a
// new revision.
func (p *plan) isUncertain(m *Meta) bool { return m.SpecRevision < p.FirstRevision }

// putNew decides about a live spec without a record, or with only a confirmed tombstone.
func (p *plan) putNew(confirmed *Meta) {
	h := p.NameOwner
	switch {
	case confirmed != nil && p.updatesDeleted(confirmed):
		p.stale(confirmed, confirmed.SpecRevision, detailUpdateOfDeleted)
	case h == nil:
		p.createLive(confirmed)
	case h.Owner != p.op.Owner:
		p.refuse(NameConflict, nil)
	case h.State == Tombstone:
		p.wait(h)
	default:
		p.remove(h)
		p.createLive(confirmed)
	}
}

// updatesDeleted reports whether the spec is a late update of the work with this confirmed tombstone. A create
// action, or a version above that of the deletion, shows that the work was created again.
func (p *plan) updatesDeleted(confirmed *Meta) bool {
	return p.op.Supersedes == 0 && p.op.Action != codec.CreateRequest && p.op.Version <= confirmed.Version
}

// deleteUnknown decides about a deletion without a record, or with only a confirmed tombstone. The cluster may
// still hold a work from before a loss of the store. A confirmed tombstone answers only its own deletion, for
// any version.
//
// Scenario:
//
//	t1: a deletion is confirmed.
//	t2: the hub is restored to a state before t1; the work is live, and its cluster applies it again.
//	t3: the store is restored to a state before t2; it has the confirmed tombstone of t1.
//	t4: the work is deleted again.
//
// Result: the cluster must confirm the deletion of t4.
func (p *plan) deleteUnknown(confirmed *Meta) {
	h := p.NameOwner
	dead := confirmed != nil && (p.op.Tag == confirmed.Tag || p.op.Version != 0 && p.op.Version <= confirmed.Version)
	switch {
	case p.neverSubscribed() || dead && p.op.DeletedAt.Equal(confirmed.DeletedAt):
		p.wrote(Confirmed, p.confirmWithoutCluster(p.spec(), confirmed))
	case h == nil:
		p.wrote(Accepted, p.createRecord(p.spec(), confirmed, p.eventOr(Clear), Keep))
	case dead:
		p.wrote(Confirmed, p.confirmWithoutCluster(p.spec(), confirmed)) // another record has the name now
	case h.State == Tombstone && h.Owner == p.op.Owner && h.Queued == nil:
		p.wait(h)
	case p.mayHave(h):
		p.refuse(ConditionFailed, p.Record)
	default:
		// The name belongs to another record. The cluster holds that record's work under it, and a deletion would
		// remove it.
		p.wrote(Confirmed, p.confirmWithoutCluster(p.spec(), confirmed))
	}
}

// mayHave reports whether the cluster may hold the op's work under the name that record h has now. The op's
// work has no record. If mayHave returns true, the deletion cannot be decided before h is gone.
func (p *plan) mayHave(h *Meta) bool {
	if h.Owner == p.op.Owner {
		// If the source has a status, the cluster had the work. Then h is older, because the store was restored.
		return p.op.Reported
	}
	// The cluster may hold the work if the store lost its record, or was restored to a state before it. A tombstone
	// h is confirmed soon, and then the deletion can be decided.
	return h.State == Tombstone
}

// putQueued decides about a spec whose id is queued behind b, the tombstone of another id.
func (p *plan) putQueued(b *Meta) {
	w := b.Queued
	again := w.Deleting && !p.op.Deleting // a work that is created again may have any version
	switch {
	case p.op.Tag == w.Tag:
		p.answer(Unchanged, b, 0)
	case again && p.op.Action != codec.CreateRequest && p.op.Version <= w.Version:
		p.stale(b, 0, detailUpdateOfDeleted)
	case !again && !p.wins(w.Version):
		p.stale(b, 0, detailOlderVersion)
	case !p.keepsName() && p.op.SpecName() != w.Name:
		p.answer(NameConflict, b, 0) // a queued spec keeps its name; only a live record may be renamed
	case p.op.Deleting && p.neverSubscribed():
		p.setQueued(b, nil, Clear)
		p.wrote(Confirmed, p.confirmWithoutCluster(p.spec(), p.Record))
	default:
		p.wait(b)
	}
}

func (p *plan) putStatus() {
	m := p.Record
	switch {
	case m == nil:
		p.answer(Ignored, nil, 0)
		return
	case m.State == ConfirmedTombstone:
		p.answer(Ignored, m, m.StatusRevision)
		return
	case m.State == Live && p.op.Deleted:
		// The sequence id is ignored, because the cluster does not hold the work.
		p.refuse(ResendSpec, m)
		return
	}
	switch why := p.outdated(m); {
	case Repeats(m, p.op):
		// The status was sent twice, and the agent may wait for the answer to the first copy.
		p.answer(Unchanged, m, m.StatusRevision)
	case why != "":
		p.stale(m, m.StatusRevision, why)
	case p.op.Deleted && !confirms(m, p.op.Version):
		p.refuse(ResendSpec, m)
	default:
		// The version is not compared. A version above the spec's is valid, because the store may have been restored
		// from a backup. A lower version means that the cluster has not applied the spec yet. Sources drop statuses
		// that they cannot use.
		p.report(m)
	}
}

// outdated returns the reason if the op's status is older than the status of m, otherwise "".
func (p *plan) outdated(m *Meta) string {
	newer, err := codec.CompareSequence(m.Sequence, p.op.Sequence)
	switch {
	case codec.CheckSequence(p.op.Sequence, p.op.At) != nil:
		return detailBadSequence
	case m.Sequence != "" && codec.CheckSequence(m.Sequence, p.op.At) != nil:
		return "" // the stored id is ignored, because it was made with a wrong clock
	case p.op.Deleted && p.op.Version == m.Version && m.StatusRevision != 0 && !unversioned(m):
		return "" // it answers exactly this deletion, for any clock of the agent
	case err != nil || !newer:
		return detailOlderSequence
	}
	return ""
}

// Repeats reports whether m already has the status of op, so that the outcome is Unchanged.
func Repeats(m *Meta, op *Op) bool {
	return m.State != ConfirmedTombstone && !op.Deleted && m.StatusRevision != 0 && op.Sequence == m.Sequence && op.Version == m.StatusVersion &&
		op.StatusHash != "" && op.StatusHash == m.StatusHash
}

// confirms reports whether a Deleted status about version answers tombstone m. An agent may answer a deletion
// that was sent as version 0 with any version.
func confirms(m *Meta, version int64) bool {
	return unversioned(m) || version >= m.Version
}

func unversioned(m *Meta) bool {
	return m.SpecSupersedes || m.Version == 0 || m.Version > math.MaxInt32
}

func (p *plan) acked() {
	m := p.Record
	switch {
	case m == nil:
		p.answer(Ignored, nil, 0)
	case m.Owner != p.op.Owner:
		p.refuse(OwnedByOther, m)
	case m.State != ConfirmedTombstone, p.op.IfRevision != 0 && p.op.IfRevision < m.StatusRevision:
		p.answer(Ignored, m, m.StatusRevision)
	default:
		p.remove(m)
		p.wrote(Accepted, nil)
	}
}

func (p *plan) forget() {
	m := p.Record
	switch {
	case p.BlockedBy != nil:
		// According to the store, the cluster never had the queued work. A confirmed tombstone reports its deletion to
		// the owner.
		p.setQueued(p.BlockedBy, nil, Clear)
		p.wrote(Confirmed, p.confirmWithoutCluster(*p.BlockedBy.Queued, m))
	case m == nil:
		p.answer(Ignored, nil, 0)
	case m.State == ConfirmedTombstone:
		p.remove(m)
		p.wrote(Accepted, nil)
	default:
		p.giveUp(m, *m, p.op.StatusHash, p.eventOr(Clear))
	}
}

func (p *plan) drop() {
	foreign := func(m *Meta) bool { return m != nil && p.op.Owner != "" && m.Owner != p.op.Owner }
	switch {
	case foreign(p.Record):
		p.refuse(OwnedByOther, p.Record)
		return
	case foreign(p.BlockedBy):
		p.refuse(OwnedByOther, p.BlockedBy)
		return
	case p.Record == nil && p.BlockedBy == nil:
		p.answer(Ignored, nil, 0)
		return
	}
	if p.BlockedBy != nil {
		p.setQueued(p.BlockedBy, nil, Clear)
		p.answer(Accepted, nil, p.BlockedBy.SpecRevision)
	}
	if p.Record != nil {
		p.remove(p.Record)
		p.wrote(Accepted, nil)
	}
}

func (p *plan) adopt() {
	m := p.Record
	switch {
	case m == nil, p.BlockedBy != nil:
		p.answer(Ignored, m, 0)
	case m.Owner == p.op.Owner:
		p.refuse(Unchanged, m)
	default:
		if m.Queued != nil && p.QueuedRecord != nil {
			p.changeOwner(p.QueuedRecord) // the confirmed tombstone of the queued id
		}
		p.wrote(Accepted, p.changeOwner(m))
	}
}

func (p *plan) takeOver() {
	m := p.Record
	switch {
	case m == nil:
		p.answer(Ignored, nil, 0)
	case m.SpecRevision != p.op.IfRevision, !queuedLive(m), m.Queued.Name != m.Name:
		p.refuse(Ignored, m)
	default:
		p.giveUp(m, *m, "", Clear)
	}
}
