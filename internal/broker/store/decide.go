package store

import (
	"cmp"
	"slices"

	"github.com/hawser-io/hawser/pkg/codec"
)

// View is the part of the store that matters to one op, as [Look] collects it. Decide does not modify it.
type View struct {
	// Head is the last revision assigned, FirstRevision the first one of this incarnation.
	Head, FirstRevision uint64
	// Subscribed: some agent of the op's cluster subscribed to its data type.
	Subscribed bool
	// Record has the op's key, nil when there is none.
	Record *Meta
	// NameOwner is the record that has the op's name, nil if there is none. It may be Record.
	NameOwner *Meta
	// BlockedBy is the tombstone of another id behind which the op's id is queued.
	BlockedBy *Meta
	// QueuedRecord is the record of the id that is queued behind Record, or else behind NameOwner. It is nil if the
	// queued spec has the same id as its tombstone. If the record exists, it is a confirmed tombstone.
	QueuedRecord *Meta
	// Bookmark is the bookmark or the binding that the op names, nil if there is none. The fields of records are then
	// not set.
	Bookmark *Bookmark
	// Guard is the bookmark that the condition of the op is about, nil if there is none.
	Guard *Bookmark
	// Fenced: a later subscription of the source has taken over. The other fields except the revisions are then not
	// set.
	Fenced bool
}

// Decision is the effect of one op on the store. It is pure data: an engine executes it in order, or drops it.
type Decision struct {
	Outcome Outcome
	// Writes contains each key at most once. If a name moves between records, the write that frees it comes before
	// the write that uses it.
	Writes []Write
	// Bookmark is the change of a bookmark or a binding, nil if there is none.
	Bookmark *BookmarkWrite
	// Changes are the entries for the change feed. Their revisions follow View.Head without a gap.
	Changes []Change
}

// Write replaces, creates or removes one record.
type Write struct {
	Key Key
	// Old is the previous record, nil if there was none. New is the next one, nil if the record is removed with all
	// its payloads.
	Old, New *Meta
	// Spec, Status and Queued are the changes of the payloads when New is not nil. Queued is the event of
	// New.Queued.
	Spec, Status, Queued Payload
}

// Payload is the change of one payload of a record.
type Payload uint8

// Payload changes.
const (
	// Keep leaves the payload unchanged; there may be none.
	Keep Payload = iota
	// Clear removes it.
	Clear
	// FromOp stores the event of the op.
	FromOp
	// FromQueued stores the event that was queued behind the record with the op's key before this decision. If
	// there was none, nothing is stored.
	FromQueued
)

// Reader is the input of [Look]. An engine implements Reader on the state after the earlier ops of the batch.
type Reader interface {
	// Meta returns the record, nil when there is none.
	Meta(k Key) (*Meta, error)
	// IDByName returns the id of the record that has a name (see [ReservedNames]).
	IDByName(dt codec.DataType, cluster, name string) (id string, ok bool, err error)
	// BlockingTombstone returns the id of the tombstone behind which the spec with key k is queued, if that is
	// another id.
	BlockingTombstone(k Key) (id string, ok bool)
	// IsSubscribed reports whether an agent of a cluster ever subscribed to a data type.
	IsSubscribed(dt codec.DataType, cluster string) bool
	// Bookmark returns the bookmark or the binding with a name (see [BindingName]), nil when there is none.
	Bookmark(name string) *Bookmark
}

// Look collects the view for one op on a store with this head. It returns errors of r unchanged.
func Look(r Reader, head Head, op *Op) (v View, err error) {
	v.Head, v.FirstRevision = head.Revision, head.FirstRevision
	if v.Fenced, err = isFenced(r, op.Fence); v.Fenced || err != nil {
		return v, err
	}
	switch op.Kind {
	case Supersede:
		v.Bookmark = r.Bookmark(op.Fence.Name)
		return v, nil
	case SetBookmark:
		v.Bookmark = r.Bookmark(op.Name)
		v.Guard = r.Bookmark(cmp.Or(op.Guard, op.Name))
		return v, nil
	case BindCluster, UnbindCluster:
		v.Bookmark = r.Bookmark(BindingName(op.Key.DataType, op.Key.Cluster))
		return v, nil
	}
	v.Subscribed = r.IsSubscribed(op.Key.DataType, op.Key.Cluster)
	if v.Record, err = r.Meta(op.Key); err != nil {
		return View{}, err
	}
	if op.Kind == PutSpec {
		if v.NameOwner, err = holder(r, op, v.Record); err != nil {
			return View{}, err
		}
	}
	id, _ := r.BlockingTombstone(op.Key)
	if v.BlockedBy, err = sibling(r, op.Key, id); err != nil {
		return View{}, err
	}
	v.QueuedRecord, err = sibling(r, op.Key, cmp.Or(QueuedID(v.Record), QueuedID(v.NameOwner)))
	return v, err
}

// holder returns the record that has the name of op. It is usually the op's own record; then no index lookup is
// needed.
func holder(r Reader, op *Op, own *Meta) (*Meta, error) {
	name := op.SpecName()
	if slices.Contains(ReservedNames(own), name) {
		return own, nil
	}
	id, _, err := r.IDByName(op.Key.DataType, op.Key.Cluster, name)
	if err != nil {
		return nil, err
	}
	return sibling(r, op.Key, id)
}

// sibling returns the record with another id; it returns nil if id is "".
func sibling(r Reader, k Key, id string) (*Meta, error) {
	if id == "" {
		return nil, nil
	}
	k.ResourceID = id
	return r.Meta(k)
}

// ReservedNames returns the names that m reserves: its own name, unless it is a confirmed tombstone, and the
// name of its queued spec. m may be nil.
func ReservedNames(m *Meta) []string {
	switch {
	case m == nil || m.State == ConfirmedTombstone:
		return nil
	case m.Queued != nil && m.Queued.Name != m.Name:
		return []string{m.Name, m.Queued.Name}
	default:
		return []string{m.Name}
	}
}

// QueuedID returns the id of the spec queued behind m if it differs from m's id, otherwise "". m may be nil.
func QueuedID(m *Meta) string {
	if m == nil || m.Queued == nil || m.Queued.ResourceID == m.ResourceID {
		return ""
	}
	return m.Queued.ResourceID
}

// Entries returns the revisions of a record in the change feed, 0 for a part that is not in it. Confirmed
// tombstones have no spec entry. Records without a status have no status entry. m may be nil.
func Entries(m *Meta) (spec, status uint64) {
	if m == nil {
		return 0, 0
	}
	if m.State != ConfirmedTombstone {
		spec = m.SpecRevision
	}
	return spec, m.StatusRevision
}

// Decide returns the effect of one op. It is pure and total: each op has an outcome.
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
	if p.Fenced {
		p.answer(Fenced, nil, 0)
		return
	}
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
	case SetBookmark:
		p.setBookmark()
	case Supersede:
		p.supersede()
	case BindCluster:
		p.bindCluster()
	case UnbindCluster:
		p.writeBookmark(BindingName(p.op.Key.DataType, p.op.Key.Cluster), nil)
	}
}

// plan builds a decision.
type plan struct {
	View
	op       *Op
	revision uint64 // last assigned one
	d        Decision
}

// next assigns a revision.
func (p *plan) next() uint64 {
	p.revision++
	return p.revision
}

// answer sets the outcome. m is the record that the outcome is about, nil if there is none.
func (p *plan) answer(v ResultCode, m *Meta, revision uint64) {
	p.d.Outcome = Outcome{Result: v, Revision: revision}
	if m != nil {
		p.d.Outcome.Owner = m.Owner
	}
}

// wrote sets the outcome of an op that wrote n, under the last revision. n is nil if the op removed its record.
func (p *plan) wrote(v ResultCode, n *Meta) { p.answer(v, n, p.revision) }

// refuse sets an outcome without a write, with the spec revision of m.
func (p *plan) refuse(v ResultCode, m *Meta) {
	p.answer(v, m, 0)
	if m != nil {
		p.d.Outcome.Revision = m.SpecRevision
	}
}

// stale sets the outcome Stale, because m has a newer spec or status. revision is that of the newer part, 0 for
// a queued spec.
func (p *plan) stale(m *Meta, revision uint64, why string) {
	p.answer(Stale, m, revision)
	p.d.Outcome.Detail = why
}

// put writes a record. Nothing else refers to n.
func (p *plan) put(old, n *Meta, spec, status, waiting Payload) {
	n.Sizes = p.sizes(old, spec, status, waiting)
	p.d.Writes = append(p.d.Writes, Write{Key: n.Key, Old: old, New: n, Spec: spec, Status: status, Queued: waiting})
}

// changed adds a change of one part of n to the feed.
func (p *plan) changed(n *Meta, part Part) {
	c := Change{Revision: n.SpecRevision, Key: n.Key, Owner: n.Owner, Part: part, State: n.State}
	if part == StatusPart {
		c.Revision = n.StatusRevision
	}
	p.publish(c)
}

// publish adds a change to the feed.
func (p *plan) publish(c Change) { p.d.Changes = append(p.d.Changes, c) }

// remove removes a record from the store.
func (p *plan) remove(old *Meta) {
	p.d.Writes = append(p.d.Writes, Write{Key: old.Key, Old: old})
	gone := func(part Part) {
		p.publish(Change{Revision: p.next(), Key: old.Key, Owner: old.Owner, Part: part, Gone: true})
	}
	spec, status := Entries(old)
	if spec != 0 {
		gone(SpecPart)
	}
	if status != 0 {
		gone(StatusPart)
	}
}

// key returns the key of another record of the op's cluster and data type.
func (p *plan) key(id string) Key {
	k := p.op.Key
	k.ResourceID = id
	return k
}
