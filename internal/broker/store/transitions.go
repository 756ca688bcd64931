package store

import "github.com/hawser-io/hawser/pkg/codec"

// The steps in the life of a record (the arrows of the picture in the package
// comment). Each writes the record, tells the feed, and is the only place that does;
// which one is taken, and when, is in cases.go.

// spec is what the op publishes, in the form in which a spec can wait.
func (p *plan) spec() QueuedSpec {
	w := QueuedSpec{
		ResourceID: p.op.Key.ResourceID, Owner: p.op.Owner, Name: nameOf(p.op), Version: p.op.Version, Tag: p.op.Tag, Deleting: p.op.Deleting,
	}
	if w.Deleting {
		w.DeletedAt = p.op.DeletedAt
	}
	return w
}

// revised is m with the op's spec; the revision is still m's.
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

// revise writes the op's spec over m, which is in this state then.
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

// createTombstone makes a tombstone of m or, when there is no cluster to reach, a grave.
func (p *plan) createTombstone(m *Meta) {
	if p.neverSubscribed() && m.StatusRevision == 0 && m.Sequence == "" {
		p.giveUp(m, p.revised(m), "", Clear)
		return
	}
	p.updateTombstone(m, p.eventOr(Keep), Keep)
}

// updateTombstone makes a tombstone of m, or a later one.
func (p *plan) updateTombstone(m *Meta, spec, waiting Payload) {
	p.wrote(Accepted, p.revise(m, Tombstone, spec, waiting))
	p.d.Outcome.Replaced = m.SpecRevision
}

// undelete makes tombstone m live: its source, which saw it, says that the work lives.
func (p *plan) undelete(m *Meta) {
	moves := QueuedID(m) != "" && m.Queued.Name != nameOf(p.op) // nothing left to wait for
	if !moves {
		p.clearQueued(m)
	}
	n := p.revise(m, Live, FromOp, Clear)
	if moves {
		p.promoteQueued(m)
	}
	p.wrote(Accepted, n)
}

// createRecord makes a record of a spec in place of old: its grave, or the tombstone behind
// which it waited, nil when there is neither.
func (p *plan) createRecord(w QueuedSpec, old *Meta, spec, waiting Payload) *Meta {
	n := &Meta{
		Key: p.key(w.ResourceID), State: Live, Owner: w.Owner, Name: w.Name, Version: w.Version, Tag: w.Tag,
		DeletedAt: w.DeletedAt, SpecRevision: p.next(),
	}
	if w.Deleting {
		n.State = Tombstone
	}
	if old != nil {
		n.Sequence = old.Sequence // statuses of the former life stay old
	}
	p.put(old, n, spec, Clear, waiting)
	p.changed(n, SpecPart)
	return n
}

// createLive makes the op a live record, in place of its grave if there is one.
func (p *plan) createLive(confirmed *Meta) {
	n := p.createRecord(p.spec(), confirmed, FromOp, Keep)
	if confirmed != nil && p.op.Supersedes != 0 && p.op.Version <= max(confirmed.Version, confirmed.Superseded) {
		n.Superseded = max(confirmed.Version, confirmed.Superseded)
		n.SpecSupersedes = n.Superseded != 0
	}
	p.wrote(Accepted, n)
}

// promoteQueued makes a record of the spec of another id that waits behind m, which
// is the op's record and has given up the name.
func (p *plan) promoteQueued(m *Meta) {
	if m.Queued.Deleting && !p.Subscribed {
		p.confirmWithoutCluster(*m.Queued, p.QueuedRecord)
		return
	}
	p.createRecord(*m.Queued, p.QueuedRecord, FromQueued, Keep)
}

// wait puts the op into the slot behind h, in place of what is there under the
// same name. There is one slot: of two specs with different names, which only
// renaming brings behind one tombstone, the second is refused until the first
// has left.
func (p *plan) wait(h *Meta) {
	w, event := p.spec(), p.eventOr(Clear)
	if before := h.Queued; before != nil {
		if before.ResourceID != w.ResourceID && before.Name != w.Name {
			p.answer(NameTaken, h, 0)
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

// setQueued puts w, nil for nothing, behind m.
func (p *plan) setQueued(m *Meta, w *QueuedSpec, event Payload) {
	n := *m
	n.Queued = w
	p.put(m, &n, Keep, Keep, event)
}

// clearQueued clears the slot behind m for another spec. Of a create nothing is left,
// as of a live record that is replaced; of a deletion the owner still has to hear.
func (p *plan) clearQueued(m *Meta) {
	if id := QueuedID(m); id != "" && id != p.op.Key.ResourceID && m.Queued.Deleting {
		p.confirmWithoutCluster(*m.Queued, p.QueuedRecord)
	}
}

// confirmWithoutCluster digs the grave of a spec that no cluster has to confirm, or renews the one
// that its id has, so that the owner hears of it (again). A status that was there
// stays.
func (p *plan) confirmWithoutCluster(w QueuedSpec, confirmed *Meta) *Meta {
	n := Meta{Key: p.key(w.ResourceID), Owner: w.Owner, Name: w.Name, StatusVersion: w.Version}
	if confirmed != nil {
		n = *confirmed
	}
	n.Version, n.Tag, n.DeletedAt = max(n.Version, w.Version), w.Tag, w.DeletedAt
	p.writeConfirmedTombstone(confirmed, &n, Keep, Keep, Keep)
	return &n
}

// writeConfirmedTombstone writes n as a grave in place of old.
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
		n.Sequence = p.op.Sequence // else it confirms a deletion although its number is lower
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

// giveUp ends m without a word of its cluster. n is m with what the grave shall say.
func (p *plan) giveUp(m *Meta, n Meta, hash string, status Payload) {
	n.StatusVersion, n.StatusHash = n.Version, hash
	p.confirm(m, n, status)
}

// confirm: nothing of m is left on its cluster. n is m with what the grave
// shall say; status is its final status. What waits for m begins. A new life of the
// same id takes its place: the owner hears no Deleted, which it would take for that of
// the new life.
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

// changeOwner gives m, and what waits behind it, to the op's owner.
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
