package store

import "github.com/hawser-io/hawser/pkg/codec"

// This file has the state transitions of a record: the arrows of the picture in the package comment. Only these
// functions write the record and add to the feed. cases.go chooses the transition.

// spec returns the op as a queued spec.
func (p *plan) spec() QueuedSpec {
	w := QueuedSpec{
		ResourceID: p.op.Key.ResourceID, Owner: p.op.Owner, Name: p.op.SpecName(), Version: p.op.Version, Tag: p.op.Tag, Deleting: p.op.Deleting,
	}
	if w.Deleting {
		w.DeletedAt = p.op.DeletedAt
	}
	return w
}

// revised returns m with the op's spec and with the revision of m.
func (p *plan) revised(m *Meta) Meta {
	n, w := *m, p.spec()
	switch {
	case w.Version < m.Version:
		n.Superseded = max(m.Superseded, m.Version)
	case w.Version > m.Superseded:
		n.Superseded = 0
	}
	n.SpecSupersedes = n.Superseded != 0
	if !p.keepsName() {
		n.Name = w.Name
	}
	n.Version, n.Tag, n.DeletedAt = w.Version, w.Tag, w.DeletedAt
	return n
}

// revise writes the op's spec to m and sets the state s.
func (p *plan) revise(m *Meta, s State, spec, waiting Payload) *Meta {
	n := p.revised(m)
	n.State, n.SpecRevision = s, p.next()
	if waiting == Clear {
		n.Queued = nil
	}
	p.put(m, &n, spec, Keep, waiting)
	p.changed(&n, SpecPart)
	return &n
}

// createTombstone turns m into a tombstone, or into a confirmed tombstone if no agent ever subscribed.
func (p *plan) createTombstone(m *Meta) {
	if p.neverSubscribed() && m.StatusRevision == 0 && m.Sequence == "" {
		p.giveUp(m, p.revised(m), "", Clear)
		return
	}
	p.updateTombstone(m, p.eventOr(Keep), Keep)
}

// updateTombstone turns m into a tombstone, or replaces the tombstone by a later one.
func (p *plan) updateTombstone(m *Meta, spec, waiting Payload) {
	p.wrote(Accepted, p.revise(m, Tombstone, spec, waiting))
	p.d.Outcome.Replaced = m.SpecRevision
}

// undelete makes tombstone m live: its source has seen the tombstone and publishes the work again.
func (p *plan) undelete(m *Meta) {
	moves := QueuedID(m) != "" && m.Queued.Name != p.op.SpecName() // the name is free for the queued spec
	if !moves {
		p.clearQueued(m)
	}
	n := p.revise(m, Live, FromOp, Clear)
	if moves {
		p.promoteQueued(m)
	}
	p.wrote(Accepted, n)
}

// createRecord makes a record of a spec. old is its confirmed tombstone, or the tombstone behind which it was
// queued, or nil.
func (p *plan) createRecord(w QueuedSpec, old *Meta, spec, waiting Payload) *Meta {
	n := &Meta{
		Key: p.key(w.ResourceID), State: Live, Owner: w.Owner, Name: w.Name, Version: w.Version, Tag: w.Tag,
		DeletedAt: w.DeletedAt, SpecRevision: p.next(),
	}
	if w.Deleting {
		n.State = Tombstone
	}
	if old != nil {
		n.Sequence = old.Sequence // so that statuses of the deleted work with this id are stale
	}
	p.put(old, n, spec, Clear, waiting)
	p.changed(n, SpecPart)
	return n
}

// createLive makes a live record of the op. It replaces the confirmed tombstone, if there is one.
func (p *plan) createLive(confirmed *Meta) {
	n := p.createRecord(p.spec(), confirmed, FromOp, Keep)
	if confirmed != nil && p.op.Supersedes != 0 && p.op.Version <= max(confirmed.Version, confirmed.Superseded) {
		n.Superseded = max(confirmed.Version, confirmed.Superseded)
		n.SpecSupersedes = n.Superseded != 0
	}
	p.wrote(Accepted, n)
}

// promoteQueued makes a record of the queued spec of another id. m is the op's record, which has freed the
// name.
func (p *plan) promoteQueued(m *Meta) {
	if m.Queued.Deleting && !p.Subscribed {
		p.confirmWithoutCluster(*m.Queued, p.QueuedRecord)
		return
	}
	p.createRecord(*m.Queued, p.QueuedRecord, FromQueued, Keep)
}

// wait queues the op behind h and replaces a queued spec of the same name. Only one spec can be queued. Two
// specs with different names are possible only after a rename. Then the second spec is rejected until the first
// one is no longer queued.
func (p *plan) wait(h *Meta) {
	w, event := p.spec(), p.eventOr(Clear)
	if before := h.Queued; before != nil {
		if before.ResourceID != w.ResourceID && before.Name != w.Name {
			p.answer(NameConflict, h, 0)
			return
		}
		if p.keepsName() {
			w.Name, event = before.Name, Keep
		}
	}
	p.clearQueued(h)
	p.setQueued(h, &w, event)
	p.answer(Queued, h, 0)
}

// setQueued queues w behind m; nil clears the queue. If the op names m itself, it also confirms that m is right
// (see isUncertain). It returns the written record.
func (p *plan) setQueued(m *Meta, w *QueuedSpec, event Payload) *Meta {
	n := *m
	n.Queued = w
	renew := m.ResourceID == p.op.Key.ResourceID && p.isUncertain(m)
	if renew {
		n.SpecRevision = p.next()
	}
	p.put(m, &n, Keep, Keep, event)
	if renew {
		p.changed(&n, SpecPart)
	}
	return &n
}

// clearQueued removes the queued spec of another id before a new one replaces it. A queued deletion becomes a
// confirmed tombstone, because its owner needs the Deleted status. A queued create leaves no record.
func (p *plan) clearQueued(m *Meta) {
	if id := QueuedID(m); id != "" && id != p.op.Key.ResourceID && m.Queued.Deleting {
		p.confirmWithoutCluster(*m.Queued, p.QueuedRecord)
	}
}

// confirmWithoutCluster writes a confirmed tombstone for a spec that no cluster has to confirm. The owner gets
// its Deleted status, also if there already was a confirmed tombstone. An existing status is kept.
func (p *plan) confirmWithoutCluster(w QueuedSpec, confirmed *Meta) *Meta {
	n := Meta{Key: p.key(w.ResourceID), Owner: w.Owner, Name: w.Name, StatusVersion: w.Version}
	if confirmed != nil {
		n = *confirmed
	}
	n.Version, n.Tag, n.DeletedAt = max(n.Version, w.Version), w.Tag, w.DeletedAt
	p.writeConfirmedTombstone(confirmed, &n, Keep, Keep, Keep)
	return &n
}

// writeConfirmedTombstone replaces old by n as a confirmed tombstone.
func (p *plan) writeConfirmedTombstone(old, n *Meta, spec, status, waiting Payload) {
	n.State, n.Queued, n.ConfirmedAt = ConfirmedTombstone, nil, p.op.At
	n.StatusRevision = p.next()
	n.SpecRevision = n.StatusRevision
	p.put(old, n, spec, status, waiting)
	p.changed(n, StatusPart)
}

// report writes the op's status.
func (p *plan) report(m *Meta) {
	n := *m
	n.StatusVersion, n.StatusHash, n.Failing = p.op.Version, p.op.StatusHash, p.op.Failing
	if newer, err := codec.CompareSequence(p.op.Sequence, m.Sequence); err != nil || !newer || codec.CheckSequence(m.Sequence, p.op.At) != nil {
		n.Sequence = p.op.Sequence // otherwise the status confirms a deletion although its sequence id is lower
	}
	if p.op.Deleted {
		p.confirm(m, n, FromOp)
		return
	}
	n.StatusRevision = p.next()
	p.put(m, &n, Keep, FromOp, Keep)
	p.changed(&n, StatusPart)
	p.wrote(Accepted, &n)
}

// giveUp confirms the deletion of m without its cluster. n is m with the content of the confirmed tombstone.
func (p *plan) giveUp(m *Meta, n Meta, hash string, status Payload) {
	n.StatusVersion, n.StatusHash = n.Version, hash
	p.confirm(m, n, status)
}

// confirm ends tombstone m: its cluster has removed all objects of the work. n is m with the content of the
// confirmed tombstone; status is its final status. The queued spec becomes a record. A record with the same id
// replaces m. Then the owner gets no Deleted status, because it would read it as the status of the new work.
func (p *plan) confirm(m *Meta, n Meta, status Payload) {
	w := m.Queued
	switch {
	case w == nil:
		p.writeConfirmedTombstone(m, &n, Clear, status, Keep)
	case w.ResourceID != m.ResourceID:
		p.writeConfirmedTombstone(m, &n, Clear, status, Clear)
		p.promoteQueued(m)
	default:
		live := p.createRecord(*w, m, FromQueued, Clear)
		live.Sequence = n.Sequence
		n = *live
	}
	p.wrote(Confirmed, &n)
}

// changeOwner makes the op's owner the owner of m and of the spec queued behind it.
func (p *plan) changeOwner(m *Meta) *Meta {
	n := *m
	n.Owner = p.op.Owner
	if m.Queued != nil {
		w := *m.Queued
		w.Owner = p.op.Owner
		n.Queued = &w
	}
	p.put(m, &n, Keep, Keep, Keep)
	spec, status := Entries(m)
	if spec != 0 {
		n.SpecRevision = p.next()
		p.changed(&n, SpecPart)
	}
	if status != 0 {
		n.StatusRevision = p.next()
		p.changed(&n, StatusPart)
	}
	return &n
}
