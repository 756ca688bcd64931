package store

import (
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Why a spec is stale, for Outcome.Detail.
const (
	detailOlderVersion    = "a newer version is stored"
	detailUpdateOfDeleted = "the work was deleted"
)

func (p *plan) putSpec() {
	current := uint64(0)
	if p.Record != nil {
		current = p.Record.SpecRevision
	}
	conditionFails := func(want uint64) bool { return want != 0 && want != current }
	switch {
	case p.Record != nil && p.Record.Owner != p.op.Owner:
		p.refuse(OwnedByOther, p.Record)
	case p.Barrier != nil && p.Barrier.Owner != p.op.Owner:
		p.refuse(OwnedByOther, p.Barrier)
	case conditionFails(p.op.Supersedes), conditionFails(p.op.IfRevision):
		p.refuse(ConditionFailed, p.Record)
	case p.Barrier != nil:
		p.putWaiting(p.Barrier)
	case p.Record == nil || p.Record.State == Grave:
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

// wins reports whether the op's version takes the place of the stored one.
func (p *plan) wins(stored int64) bool {
	conditional := p.op.Supersedes != 0 || p.op.Deleting && p.op.IfRevision != 0
	return conditional || p.op.Version == 0 || p.op.Version >= stored
}

// keepsName: a deletion without data leaves the last spec, and its name.
func (p *plan) keepsName() bool { return p.op.Deleting && len(p.op.Event) == 0 }

// nameInUse reports whether the op would take the name of a record other than m.
func (p *plan) nameInUse(m *Meta) bool {
	return !p.keepsName() && p.Holder != nil && p.Holder.ResourceID != m.ResourceID
}

// eventOr is where the spec comes from: the op, or else what is given.
func (p *plan) eventOr(none Payload) Payload {
	if len(p.op.Event) == 0 {
		return none
	}
	return FromOp
}

// revised is m with the op's spec; the revision is still m's.
func (p *plan) revised(m *Meta) *Meta {
	n := *m
	switch {
	case p.op.Version < m.Version:
		n.Superseded = max(m.Superseded, m.Version)
	case p.op.Version > m.Superseded:
		n.Superseded = 0
	}
	n.SpecSupersedes = n.Superseded != 0
	if !p.keepsName() {
		n.Name = nameOf(p.op)
	}
	n.Version, n.Tag, n.DeletedAt = p.op.Version, p.op.Tag, time.Time{}
	if p.op.Deleting {
		n.DeletedAt = p.op.DeletedAt
	}
	return &n
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
		p.entomb(m)
	default:
		n := p.revised(m)
		n.SpecRevision = p.next()
		p.put(m, n, FromOp, Keep, Keep)
		p.changed(n, SpecPart)
		p.say(Accepted, n, n.SpecRevision)
	}
}

// entomb makes a tombstone of m or, when there is no cluster to reach, a grave.
func (p *plan) entomb(m *Meta) {
	n := p.revised(m)
	if p.lonely() && m.StatusRevision == 0 && m.Sequence == "" {
		n.StatusVersion = n.Version
		p.confirm(m, n, Clear)
		return
	}
	n.State, n.SpecRevision = Tombstone, p.next()
	p.put(m, n, p.eventOr(Keep), Keep, Keep)
	p.changed(n, SpecPart)
	p.say(Accepted, n, n.SpecRevision)
	p.d.Outcome.Replaced = m.SpecRevision
}

// lonely reports whether the op is about a work that no cluster ever had, as far
// as anybody knows.
func (p *plan) lonely() bool { return !p.Subscribed && !p.op.Reported }

// putTombstone: the record is a tombstone.
func (p *plan) putTombstone(m *Meta) {
	own := m.Waiting != nil && m.Waiting.ResourceID == m.ResourceID
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
		p.entomb(m)
	case p.op.Supersedes != 0:
		p.revive(m)
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
	case own && p.op.Tag == m.Waiting.Tag:
		p.say(Unchanged, m, 0)
	case own && !p.wins(m.Waiting.Version):
		p.stale(m, 0, detailOlderVersion)
	default:
		p.wait(m)
	}
}

// takeBack: the deletion is of the create that waits behind its own tombstone.
func (p *plan) takeBack(m *Meta) {
	if !p.wins(m.Waiting.Version) {
		p.stale(m, m.SpecRevision, detailOlderVersion)
		return
	}
	n := *m
	n.Waiting = nil
	p.put(m, &n, Keep, Keep, Clear)
	p.say(Accepted, m, m.SpecRevision)
}

// revive: the source, which saw this tombstone, says that the work lives.
func (p *plan) revive(m *Meta) {
	n := p.revised(m)
	n.State, n.Waiting = Live, nil
	moves := WaitsBehind(m) != "" && m.Waiting.Name != n.Name // nothing left to wait for
	if !moves {
		p.evict(m)
	}
	n.SpecRevision = p.next()
	p.put(m, n, FromOp, Keep, Clear)
	p.changed(n, SpecPart)
	if moves {
		p.promote(m)
	}
	p.say(Accepted, n, p.revision)
}

// putNew: there is no record, or only a grave; the spec is live.
func (p *plan) putNew(grave *Meta) {
	h := p.Holder
	switch {
	case grave != nil && p.updatesDeleted(grave):
		p.stale(grave, grave.SpecRevision, detailUpdateOfDeleted)
	case h == nil:
		p.birth(grave)
	case h.Owner != p.op.Owner:
		p.refuse(NameTaken, nil)
	case h.State == Tombstone:
		p.wait(h)
	default:
		p.remove(h)
		p.birth(grave)
	}
}

// updatesDeleted reports whether the spec is a late update of the work in the
// grave: nothing says that it was created again, neither the action nor a
// version that the deletion did not know.
func (p *plan) updatesDeleted(grave *Meta) bool {
	return p.op.Supersedes == 0 && p.op.Action != codec.CreateRequest && p.op.Version <= grave.Version
}

// birth makes the op a live record, in place of its grave if there is one.
func (p *plan) birth(grave *Meta) {
	n := &Meta{Key: p.op.Key, State: Live, Owner: p.op.Owner, Name: nameOf(p.op), Version: p.op.Version, Tag: p.op.Tag}
	if grave != nil {
		n.Sequence = grave.Sequence // statuses of the former life stay old
		if p.op.Supersedes != 0 && p.op.Version <= max(grave.Version, grave.Superseded) {
			n.Superseded = max(grave.Version, grave.Superseded)
			n.SpecSupersedes = n.Superseded != 0
		}
	}
	n.SpecRevision = p.next()
	p.put(grave, n, FromOp, Clear, Keep)
	p.changed(n, SpecPart)
	p.say(Accepted, n, n.SpecRevision)
}

// deleteUnknown: there is no record, or only a grave; the spec is a deletion.
// The cluster may hold the work all the same, from before a loss of the store. A grave
// proves nothing about another deletion than its own, whatever the versions:
//
//	t1 A deletion is confirmed.
//	t2 The hub goes back to before t1. The work lives, and its cluster has it again.
//	t3 The store goes back to before t2, and has the grave of t1.
//	t4 The work is deleted anew.
func (p *plan) deleteUnknown(grave *Meta) {
	h := p.Holder
	dead := grave != nil && (p.op.Tag == grave.Tag || p.op.Version != 0 && p.op.Version <= grave.Version)
	switch {
	case p.lonely() || dead && p.op.DeletedAt.Equal(grave.DeletedAt):
		p.bury(grave)
	case h == nil:
		n := &Meta{
			Key: p.op.Key, State: Tombstone, Owner: p.op.Owner, Name: nameOf(p.op),
			Version: p.op.Version, Tag: p.op.Tag, DeletedAt: p.op.DeletedAt, SpecRevision: p.next(),
		}
		if grave != nil {
			n.Sequence = grave.Sequence
		}
		p.put(grave, n, p.eventOr(Clear), Clear, Keep)
		p.changed(n, SpecPart)
		p.say(Accepted, n, n.SpecRevision)
	case dead:
		p.bury(grave) // and the name has gone to another record since
	case h.State == Tombstone && h.Owner == p.op.Owner && h.Waiting == nil:
		p.wait(h)
	case p.mayHave(h):
		p.refuse(ConditionFailed, p.Record)
	default:
		// The name belongs to another record: what the cluster holds under it is
		// that record's, and a deletion would hit it.
		p.bury(grave)
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
	// No cluster has said that it had h. It may have the work, from before a loss of
	// the store, after which the other source was the first to come, with a deletion.
	return h.State == Tombstone && h.StatusRevision == 0 && h.Sequence == ""
}

// bury digs the grave of a deletion that no cluster has to confirm, or renews
// one, so that the owner hears of it (again).
func (p *plan) bury(grave *Meta) {
	n := Meta{Key: p.op.Key, Owner: p.op.Owner, Name: nameOf(p.op), StatusVersion: p.op.Version}
	if grave != nil {
		n = *grave
	}
	n.Version, n.Tag, n.DeletedAt = max(n.Version, p.op.Version), p.op.Tag, p.op.DeletedAt
	p.dig(grave, n)
	p.say(Confirmed, p.written(), p.revision)
}
