package store

func (p *plan) acked() {
	m := p.Record
	switch {
	case m == nil:
		p.say(Ignored, nil, 0)
	case m.Owner != p.op.Owner:
		p.refuse(OwnedByOther, m)
	case m.State != Grave, p.op.IfRevision != 0 && p.op.IfRevision < m.StatusRevision:
		p.say(Ignored, m, m.StatusRevision)
	default:
		p.say(Accepted, nil, p.remove(m))
	}
}

func (p *plan) forget() {
	m := p.Record
	switch {
	case p.Barrier != nil:
		// It never was on the cluster as far as the store knows; a grave tells
		// its owner that it will not be.
		p.clearSlot(p.Barrier)
		p.digWaiting(p.Barrier, m)
		p.say(Confirmed, p.written(), p.revision)
	case m == nil:
		p.say(Ignored, nil, 0)
	case m.State == Grave:
		p.say(Accepted, nil, p.remove(m))
	default:
		n := *m
		n.StatusVersion, n.StatusHash = m.Version, p.op.StatusHash
		p.confirm(m, &n, p.eventOr(Clear))
	}
}

func (p *plan) drop() {
	foreign := func(m *Meta) bool { return m != nil && p.op.Owner != "" && m.Owner != p.op.Owner }
	switch {
	case foreign(p.Record):
		p.refuse(OwnedByOther, p.Record)
		return
	case foreign(p.Barrier):
		p.refuse(OwnedByOther, p.Barrier)
		return
	case p.Record == nil && p.Barrier == nil:
		p.say(Ignored, nil, 0)
		return
	}
	revision := uint64(0)
	if p.Barrier != nil {
		p.clearSlot(p.Barrier)
		revision = p.Barrier.SpecRevision
	}
	if p.Record != nil {
		revision = p.remove(p.Record)
	}
	p.say(Accepted, nil, revision)
}

func (p *plan) adopt() {
	m := p.Record
	switch {
	case m == nil, p.Barrier != nil:
		p.say(Ignored, m, 0)
		return
	case m.Owner == p.op.Owner:
		p.refuse(Unchanged, m)
		return
	}
	if m.Waiting != nil && p.Waiter != nil {
		p.hand(p.Waiter) // the grave of what waits
	}
	n := p.hand(m)
	p.say(Accepted, n, p.revision)
}

// hand gives m, and what waits behind it, to the op's owner.
func (p *plan) hand(m *Meta) *Meta {
	n := *m
	n.Owner = p.op.Owner
	if m.Waiting != nil {
		w := *m.Waiting
		w.Owner = p.op.Owner
		n.Waiting = &w
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
