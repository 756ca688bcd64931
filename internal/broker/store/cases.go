package store

import (
	"cmp"
	"math"

	"github.com/hawser-io/hawser/pkg/codec"
)

// What each op means in each state of a record: the table of the package comment,
// with its conditions. What is written then is in transitions.go.

// Why a spec or a status is stale, for Outcome.Detail.
const (
	detailOlderVersion    = "a newer version is stored"
	detailUpdateOfDeleted = "the work was deleted"
	detailOlderSequence   = "a newer sequence id is stored"
	detailBadSequence     = "no agent makes such a sequence id now"
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

// isUnknown reports whether there is no record of a work with the op's id, but for a grave.
func (p *plan) isUnknown() bool {
	return p.BlockedBy == nil && (p.Record == nil || p.Record.State == ConfirmedTombstone)
}

// putForeign: the id is another source's. Whoever names a condition is told what it would be
// told if there were no record.
func (p *plan) putForeign() {
	if p.op.Supersedes != 0 || p.op.IfRevision != 0 {
		p.refuse(ConditionFailed, nil)
		return
	}
	p.refuse(OwnedByOther, cmp.Or(p.Record, p.BlockedBy))
}

// wins reports whether the op's version takes the place of the stored one.
func (p *plan) wins(stored int64) bool {
	conditional := p.op.Supersedes != 0 || p.op.Deleting && p.op.IfRevision != 0
	return conditional || p.op.Version == 0 || p.op.Version >= stored
}

// keepsName: a deletion without data leaves the last spec, and its name.
func (p *plan) keepsName() bool { return p.op.Deleting && len(p.op.Event) == 0 }

// nameInUse reports whether the op would take the name of a record other than m.
func (p *plan) nameInUse(m *Meta) bool {
	return !p.keepsName() && p.NameOwner != nil && p.NameOwner.ResourceID != m.ResourceID
}

// eventOr is where the spec comes from: the op, or else what is given.
func (p *plan) eventOr(none Payload) Payload {
	if len(p.op.Event) == 0 {
		return none
	}
	return FromOp
}

// putLive: the record is live.
func (p *plan) putLive(m *Meta) {
	switch {
	case p.op.Tag == m.Tag:
		p.refuse(Unchanged, m)
	case !p.wins(m.Version):
		p.stale(m, m.SpecRevision, detailOlderVersion)
	case p.nameInUse(m):
		p.refuse(NameTaken, m)
	case p.op.Deleting:
		p.createTombstone(m)
	default:
		p.wrote(Accepted, p.revise(m, Live, FromOp, Keep))
	}
}

// neverSubscribed reports whether the op is about a work that no cluster ever had, as far
// as anybody knows.
func (p *plan) neverSubscribed() bool { return !p.Subscribed && !p.op.Reported }

// putTombstone: the record is a tombstone.
func (p *plan) putTombstone(m *Meta) {
	own := m.Queued != nil && m.Queued.ResourceID == m.ResourceID
	// A deletion of what waits may look like the one before it: the versions of
	// the new life are those of the old one, and there is no data.
	another := own && p.op.Deleting && !p.op.DeletedAt.Equal(m.DeletedAt)
	switch {
	case p.op.Tag == m.Tag && !another:
		p.refuse(Unchanged, m)
	case p.nameInUse(m):
		p.refuse(NameTaken, m)
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

// putBehind: the spec is for the id of tombstone m; own says that one for this
// id waits there already.
func (p *plan) putBehind(m *Meta, own bool) {
	switch {
	case !own && p.op.Action != codec.CreateRequest:
		p.stale(m, m.SpecRevision, detailUpdateOfDeleted)
	case own && p.op.Tag == m.Queued.Tag:
		p.answer(Unchanged, m, 0)
	case own && !p.wins(m.Queued.Version):
		p.stale(m, 0, detailOlderVersion)
	default:
		p.wait(m)
	}
}

// takeBack: the deletion is of the create that waits behind its own tombstone. It is one
// of that life too:
//
//	t1 The deletion was confirmed, and an agent made the next life.
//	t2 The store goes back to before t1, and is told again what its source had said.
//	t3 The source deletes the next life.
//	t4 The agent lists that life. The deletion is no older.
func (p *plan) takeBack(m *Meta) {
	switch {
	case !p.wins(m.Queued.Version):
		p.stale(m, m.SpecRevision, detailOlderVersion)
	case p.op.Version > m.Version:
		p.updateTombstone(m, Keep, Clear)
	default:
		p.setQueued(m, nil, Clear)
		p.answer(Accepted, m, m.SpecRevision)
	}
}

// putNew: there is no record, or only a grave; the spec is live.
func (p *plan) putNew(confirmed *Meta) {
	h := p.NameOwner
	switch {
	case confirmed != nil && p.updatesDeleted(confirmed):
		p.stale(confirmed, confirmed.SpecRevision, detailUpdateOfDeleted)
	case h == nil:
		p.createLive(confirmed)
	case h.Owner != p.op.Owner:
		p.refuse(NameTaken, nil)
	case h.State == Tombstone:
		p.wait(h)
	default:
		p.remove(h)
		p.createLive(confirmed)
	}
}

// updatesDeleted reports whether the spec is a late update of the work in the
// grave: nothing says that it was created again, neither the action nor a
// version that the deletion did not know.
func (p *plan) updatesDeleted(confirmed *Meta) bool {
	return p.op.Supersedes == 0 && p.op.Action != codec.CreateRequest && p.op.Version <= confirmed.Version
}

// deleteUnknown: there is no record, or only a grave; the spec is a deletion.
// The cluster may hold the work all the same, from before a loss of the store. A grave
// proves nothing about another deletion than its own, whatever the versions:
//
//	t1 A deletion is confirmed.
//	t2 The hub goes back to before t1. The work lives, and its cluster has it again.
//	t3 The store goes back to before t2, and has the grave of t1.
//	t4 The work is deleted anew.
func (p *plan) deleteUnknown(confirmed *Meta) {
	h := p.NameOwner
	dead := confirmed != nil && (p.op.Tag == confirmed.Tag || p.op.Version != 0 && p.op.Version <= confirmed.Version)
	switch {
	case p.neverSubscribed() || dead && p.op.DeletedAt.Equal(confirmed.DeletedAt):
		p.wrote(Confirmed, p.confirmWithoutCluster(p.spec(), confirmed))
	case h == nil:
		p.wrote(Accepted, p.createRecord(p.spec(), confirmed, p.eventOr(Clear), Keep))
	case dead:
		p.wrote(Confirmed, p.confirmWithoutCluster(p.spec(), confirmed)) // and the name has gone to another record since
	case h.State == Tombstone && h.Owner == p.op.Owner && h.Queued == nil:
		p.wait(h)
	case p.mayHave(h):
		p.refuse(ConditionFailed, p.Record)
	default:
		// The name belongs to another record: what the cluster holds under it is
		// that record's, and a deletion would hit it.
		p.wrote(Confirmed, p.confirmWithoutCluster(p.spec(), confirmed))
	}
}

// mayHave reports whether, under the name of a work without a record, the cluster
// may have that work rather than h, which holds the name here. Nothing can be said
// of its deletion before h is gone.
func (p *plan) mayHave(h *Meta) bool {
	if h.Owner == p.op.Owner {
		// The cluster had the work, so h is older: the store went back in time.
		return p.op.Reported
	}
	// The cluster may have the work, where the store lost its record, or went back to
	// before it was made; h is confirmed before long, and then it is known.
	return h.State == Tombstone
}

// putQueued: the op's id waits behind b, the tombstone of another id.
func (p *plan) putQueued(b *Meta) {
	w := b.Queued
	again := w.Deleting && !p.op.Deleting // the versions of a new life start anew
	switch {
	case p.op.Tag == w.Tag:
		p.answer(Unchanged, b, 0)
	case again && p.op.Action != codec.CreateRequest && p.op.Version <= w.Version:
		p.stale(b, 0, detailUpdateOfDeleted)
	case !again && !p.wins(w.Version):
		p.stale(b, 0, detailOlderVersion)
	case !p.keepsName() && nameOf(p.op) != w.Name:
		p.answer(NameTaken, b, 0) // of its own spec; it may change when it is live
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
		// Whatever its sequence: the cluster does not hold the work.
		p.refuse(ResendSpec, m)
		return
	}
	switch why := p.outdated(m); {
	case p.sameStatus(m):
		// It came twice, and whoever waits for the answer may have sent the other.
		p.answer(Unchanged, m, m.StatusRevision)
	case why != "":
		p.stale(m, m.StatusRevision, why)
	case p.op.Deleted && !confirms(m, p.op.Version):
		p.refuse(ResendSpec, m)
	default:
		// The version is not compared: one above the spec's is the truth about the
		// cluster too (the store was restored from a backup), one below says that
		// the cluster is not there yet. Sources drop what they cannot use.
		p.report(m)
	}
}

// outdated says why the op's status is older than that of m, "" if it is not.
func (p *plan) outdated(m *Meta) string {
	newer, err := codec.CompareSequence(m.Sequence, p.op.Sequence)
	switch {
	case codec.CheckSequence(p.op.Sequence, p.op.At) != nil:
		return detailBadSequence
	case m.Sequence != "" && codec.CheckSequence(m.Sequence, p.op.At) != nil:
		return "" // what no agent makes is no measure: a clock was wrong when it was stored
	case p.op.Deleted && p.op.Version == m.Version && m.StatusRevision != 0 && !unversioned(m):
		return "" // it answers this deletion and no other, whatever its agent's clock says
	case err != nil || !newer:
		return detailOlderSequence
	}
	return ""
}

// sameStatus reports whether the op is the status that m has.
func (p *plan) sameStatus(m *Meta) bool {
	return !p.op.Deleted && m.StatusRevision != 0 && p.op.Sequence == m.Sequence && p.op.Version == m.StatusVersion &&
		p.op.StatusHash != "" && p.op.StatusHash == m.StatusHash
}

// confirms reports whether a Deleted status about version answers tombstone m.
// A deletion that goes out as version 0 comes back as anything.
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
		// It never was on the cluster as far as the store knows; a grave tells
		// its owner that it will not be.
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
			p.changeOwner(p.QueuedRecord) // the grave of what waits
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
