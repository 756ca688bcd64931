package store

import (
	"cmp"
	"slices"

	"github.com/hawser-io/hawser/pkg/codec"
)

// View is what the store holds around one op, as [Look] collects it. Decide
// does not modify what it points to.
type View struct {
	// Head is the last revision assigned.
	Head uint64
	// Subscribed: some agent of the op's cluster subscribed to its data type.
	Subscribed bool
	// Record has the op's key, nil when there is none.
	Record *Meta
	// NameOwner holds the op's name, nil when nobody does. It may be Record.
	NameOwner *Meta
	// BlockedBy is the tombstone of another id behind which the op's id waits.
	BlockedBy *Meta
	// QueuedRecord is the record with the id that waits behind Record, or else behind
	// Holder, when it is another id than theirs; if there is one it is a grave.
	QueuedRecord *Meta
}

// Decision is what one op does to the store. Pure data: an engine carries it
// out, in order, or forgets it.
type Decision struct {
	Outcome Outcome
	// Writes name every key at most once. A name that moves from one record to
	// another is given up by an earlier write than the one that takes it.
	Writes []Write
	// Changes are the entries for the feed; their revisions follow View.Head
	// without a gap.
	Changes []Change
}

// Write replaces, creates or removes one record.
type Write struct {
	Key Key
	// Old is what was there, nil when nothing was. New is what will be, nil
	// when the record is removed with all its payloads.
	Old, New *Meta
	// What becomes of the payloads when New is not nil. Queued is the event of
	// New.Waiting.
	Spec, Status, Queued Payload
}

// Payload says what becomes of one payload of a record.
type Payload uint8

// What may become of a payload.
const (
	// Keep leaves it as it is, also when there is none.
	Keep Payload = iota
	// Clear removes it.
	Clear
	// FromOp stores the event of the op.
	FromOp
	// FromQueued stores the event that waited behind the record with the op's
	// key, as it was before this decision; none if that had none.
	FromQueued
)

// Reader is what [Look] reads; an engine implements it over the state that the
// earlier ops of the batch left.
type Reader interface {
	// Meta returns the record, nil when there is none.
	Meta(k Key) (*Meta, error)
	// Named returns the id of the record that holds a name (see [Holds]).
	Named(dt codec.DataType, cluster, name string) (id string, ok bool, err error)
	// Behind returns the id of the tombstone behind which the spec with key k
	// waits, if that is another id.
	Behind(k Key) (id string, ok bool)
	// Subscribed as in [Store].
	Subscribed(dt codec.DataType, cluster string) (uid string, ok bool)
}

// Look collects what Decide needs to know for one op. It returns the errors of
// r as they are.
func Look(r Reader, head uint64, op *Op) (v View, err error) {
	v.Head = head
	_, v.Subscribed = r.Subscribed(op.Key.DataType, op.Key.Cluster)
	if v.Record, err = r.Meta(op.Key); err != nil {
		return View{}, err
	}
	if op.Kind == PutSpec {
		if v.NameOwner, err = holder(r, op, v.Record); err != nil {
			return View{}, err
		}
	}
	id, _ := r.Behind(op.Key)
	if v.BlockedBy, err = sibling(r, op.Key, id); err != nil {
		return View{}, err
	}
	v.QueuedRecord, err = sibling(r, op.Key, cmp.Or(QueuedID(v.Record), QueuedID(v.NameOwner)))
	return v, err
}

// holder returns the record that holds the name of op. Most often it is the
// op's own, which needs no look at the index.
func holder(r Reader, op *Op, own *Meta) (*Meta, error) {
	name := nameOf(op)
	if slices.Contains(Holds(own), name) {
		return own, nil
	}
	id, _, err := r.Named(op.Key.DataType, op.Key.Cluster, name)
	if err != nil {
		return nil, err
	}
	return sibling(r, op.Key, id)
}

// sibling returns the record with another id, nil for none.
func sibling(r Reader, k Key, id string) (*Meta, error) {
	if id == "" {
		return nil, nil
	}
	k.ResourceID = id
	return r.Meta(k)
}

// Holds returns the names that a record keeps from others: its own unless it
// is a grave, and that of the spec which waits behind it. m may be nil.
func Holds(m *Meta) []string {
	switch {
	case m == nil || m.State == ConfirmedTombstone:
		return nil
	case m.Queued != nil && m.Queued.Name != m.Name:
		return []string{m.Name, m.Queued.Name}
	default:
		return []string{m.Name}
	}
}

// QueuedID returns the id that waits behind m when it is another than m's,
// else "". m may be nil.
func QueuedID(m *Meta) string {
	if m == nil || m.Queued == nil || m.Queued.ResourceID == m.ResourceID {
		return ""
	}
	return m.Queued.ResourceID
}

// Entries returns the revisions under which a record is in the change feed, 0
// for a half that is not in it: graves have no spec there, and a status only
// what has one. m may be nil.
func Entries(m *Meta) (spec, status uint64) {
	if m == nil {
		return 0, 0
	}
	if m.State != ConfirmedTombstone {
		spec = m.SpecRevision
	}
	return spec, m.StatusRevision
}

// Decide says what one op does. It is pure, and total: every op has an outcome.
func Decide(v View, op *Op) Decision {
	p := plan{View: v, op: op, revision: v.Head}
	if problem := op.problem(); problem != "" {
		p.d.Outcome = Outcome{Result: Invalid, Detail: problem, Head: v.Head}
		return p.d
	}
	p.decide()
	p.d.Outcome.Head = p.revision
	return p.d
}

func (p *plan) decide() {
	switch p.op.Kind {
	case PutSpec:
		p.putSpec()
	case PutStatus:
		p.putStatus()
	case CollectTombstone:
		p.acked()
	case Forget:
		p.forget()
	case Drop:
		p.drop()
	case Transfer:
		p.adopt()
	case TakeOver:
		p.takeOver()
	}
}

// plan is a decision in the making.
type plan struct {
	View
	op       *Op
	revision uint64 // last one taken
	d        Decision
}

// next takes a revision.
func (p *plan) next() uint64 {
	p.revision++
	return p.revision
}

// answer sets the outcome. m is the record it is about, nil when there is none.
func (p *plan) answer(v ResultCode, m *Meta, revision uint64) {
	p.d.Outcome = Outcome{Result: v, Revision: revision}
	if m != nil {
		p.d.Outcome.Owner = m.Owner
	}
}

// wrote sets the outcome of an op that wrote n, nil when it removed its record, under
// the last revision.
func (p *plan) wrote(v ResultCode, n *Meta) { p.answer(v, n, p.revision) }

// refuse sets an outcome without a write, about the spec of m.
func (p *plan) refuse(v ResultCode, m *Meta) {
	p.answer(v, m, 0)
	if m != nil {
		p.d.Outcome.Revision = m.SpecRevision
	}
}

// stale refuses what is older than what m has; revision is of the half that is
// newer, 0 when it only waits.
func (p *plan) stale(m *Meta, revision uint64, why string) {
	p.answer(Stale, m, revision)
	p.d.Outcome.Detail = why
}

// put writes a record; n is not shared with anything.
func (p *plan) put(old, n *Meta, spec, status, waiting Payload) {
	n.Sizes = p.sizes(old, spec, status, waiting)
	p.d.Writes = append(p.d.Writes, Write{Key: n.Key, Old: old, New: n, Spec: spec, Status: status, Queued: waiting})
}

// changed tells the feed about one half of n.
func (p *plan) changed(n *Meta, part Part) {
	c := Change{Revision: n.SpecRevision, Key: n.Key, Owner: n.Owner, Part: part, State: n.State}
	if part == StatusPart {
		c.Revision = n.StatusRevision
	}
	p.d.Changes = append(p.d.Changes, c)
}

// remove takes a record out of the store.
func (p *plan) remove(old *Meta) {
	p.d.Writes = append(p.d.Writes, Write{Key: old.Key, Old: old})
	gone := func(part Part) {
		p.d.Changes = append(p.d.Changes, Change{Revision: p.next(), Key: old.Key, Owner: old.Owner, Part: part, Gone: true})
	}
	spec, status := Entries(old)
	if spec != 0 {
		gone(SpecPart)
	}
	if status != 0 {
		gone(StatusPart)
	}
}

// key is that of another record of the op's cluster and data type.
func (p *plan) key(id string) Key {
	k := p.op.Key
	k.ResourceID = id
	return k
}
