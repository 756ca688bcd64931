package store

import "github.com/hawser-io/hawser/pkg/codec"

// What waits, and what becomes of it when the tombstone before it is confirmed.

// putWaiting: the op's id waits behind b, the tombstone of another id.
func (p *plan) putWaiting(b *Meta) {
	w := b.Waiting
	again := w.Deleting && !p.op.Deleting // the versions of a new life start anew
	switch {
	case p.op.Tag == w.Tag:
		p.say(Unchanged, b, 0)
	case again && p.op.Action != codec.CreateRequest && p.op.Version <= w.Version:
		p.stale(b, 0, detailUpdateOfDeleted)
	case !again && !p.wins(w.Version):
		p.stale(b, 0, detailOlderVersion)
	case !p.keepsName() && nameOf(p.op) != w.Name:
		p.say(NameTaken, b, 0) // of its own spec; it may change when it is live
	case p.op.Deleting && p.lonely():
		p.clearSlot(b)
		p.bury(p.Record)
	default:
		p.wait(b)
	}
}

// wait puts the op into the slot behind h, in place of what is there under the
// same name. There is one slot: of two specs with different names, which only
// renaming brings behind one tombstone, the second is refused until the first
// has left.
func (p *plan) wait(h *Meta) {
	if w := h.Waiting; w != nil && w.ResourceID != p.op.Key.ResourceID && w.Name != nameOf(p.op) {
		p.say(NameTaken, h, 0)
		return
	}
	p.evict(h)
	n := *h
	n.Waiting = &Waiting{
		ResourceID: p.op.Key.ResourceID, Owner: p.op.Owner, Name: nameOf(p.op),
		Version: p.op.Version, Tag: p.op.Tag,
	}
	event := p.eventOr(Clear)
	if p.op.Deleting {
		n.Waiting.Deleting, n.Waiting.DeletedAt = true, p.op.DeletedAt
		if before := h.Waiting; before != nil && p.keepsName() {
			n.Waiting.Name = before.Name
			event = Keep
		}
	}
	p.put(h, &n, Keep, Keep, event)
	p.say(Waits, &n, 0)
}

// evict clears the slot behind m for another spec. Of a create nothing is left,
// as of a live record that is replaced; of a deletion the owner still has to hear.
func (p *plan) evict(m *Meta) {
	id := WaitsBehind(m)
	if id == "" || id == p.op.Key.ResourceID || !m.Waiting.Deleting {
		return
	}
	p.digWaiting(m, p.Waiter)
}

// clearSlot writes m without what waits behind it.
func (p *plan) clearSlot(m *Meta) {
	n := *m
	n.Waiting = nil
	p.put(m, &n, Keep, Keep, Clear)
}

// digWaiting digs the grave of what waits behind m, or renews grave, the one
// that the waiting id has already.
func (p *plan) digWaiting(m, grave *Meta) {
	w := m.Waiting
	n := Meta{Key: p.key(w.ResourceID), Owner: m.Owner, Name: w.Name, StatusVersion: w.Version}
	if grave != nil {
		n = *grave
	}
	n.Version, n.Tag, n.DeletedAt = max(n.Version, w.Version), w.Tag, w.DeletedAt
	p.dig(grave, n)
}

// dig writes n as a grave in place of old, which is a grave or nothing; a
// status that was there stays.
func (p *plan) dig(old *Meta, n Meta) {
	n.State, n.Buried = Grave, p.op.At
	n.StatusRevision = p.next()
	n.SpecRevision = n.StatusRevision
	p.put(old, &n, Keep, Keep, Keep)
	p.changed(&n, StatusPart)
}

// confirm: nothing of m is left on its cluster. n is m with what the grave
// shall say; status is its final status.
func (p *plan) confirm(m, n *Meta, status Payload) {
	w := m.Waiting
	if w != nil && w.ResourceID == m.ResourceID {
		p.rebirth(m, n.Sequence)
		return
	}
	n.State, n.Waiting, n.Buried = Grave, nil, p.op.At
	n.StatusRevision = p.next()
	n.SpecRevision = n.StatusRevision
	waiting := Keep
	if w != nil {
		waiting = Clear
	}
	p.put(m, n, Clear, status, waiting)
	p.changed(n, StatusPart)
	if w != nil {
		p.promote(m)
	}
	p.say(Confirmed, n, p.revision)
}

// rebirth makes the spec that waits behind its own tombstone live. The owner
// hears no Deleted: it would take it for the new life's.
func (p *plan) rebirth(m *Meta, sequence string) {
	w := m.Waiting
	n := &Meta{
		Key: m.Key, State: Live, Owner: m.Owner, Name: w.Name, Version: w.Version, Tag: w.Tag,
		SpecRevision: p.next(), Sequence: sequence,
	}
	p.put(m, n, FromWaiting, Clear, Clear)
	p.changed(n, SpecPart)
	p.say(Confirmed, n, n.SpecRevision)
}

// promote makes a record of the spec of another id that waits behind m, which
// is the op's record and has given up the name.
func (p *plan) promote(m *Meta) {
	w := m.Waiting
	if w.Deleting && !p.Subscribed {
		p.digWaiting(m, p.Waiter)
		return
	}
	n := &Meta{
		Key: p.key(w.ResourceID), State: Live, Owner: m.Owner, Name: w.Name, Version: w.Version, Tag: w.Tag,
		SpecRevision: p.next(),
	}
	if w.Deleting {
		n.State, n.DeletedAt = Tombstone, w.DeletedAt
	}
	if p.Waiter != nil {
		n.Sequence = p.Waiter.Sequence
	}
	p.put(p.Waiter, n, FromWaiting, Clear, Keep)
	p.changed(n, SpecPart)
}
