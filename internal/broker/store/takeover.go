package store

// A work can leave its hub while its cluster is disconnected, because an operator removed its finalizer. It can
// then be created again under its name. The new spec is queued behind the old tombstone until the cluster has
// deleted the old objects. If the agent was never sent the deletion, the spec need not wait. The agent then
// treats the new work as the next one of that name. It keeps the objects, and prunes those that the new work
// does not contain.

// UnsentDeletion describes a tombstone that this process of the broker wrote. The zero value means unknown.
type UnsentDeletion struct {
	// Spec is the revision of the last live spec. The deletion did not change it, so an agent with this spec knows
	// which objects outlive the work.
	Spec uint64
	// First is the revision of the deletion, Last that of its latest repetition.
	First, Last uint64
}

// DeletedRecord is the record that a deletion is about to change.
type DeletedRecord struct {
	State State
	// Revision is the revision of its spec.
	Revision uint64
	// Unchanged: the deletion carries the data that the record has, or none.
	Unchanged bool
}

// Deleted returns the description after a deletion with this outcome. u is the previous description, the zero
// value if the record was live.
func (u UnsentDeletion) Deleted(m DeletedRecord, o Outcome) UnsentDeletion {
	switch {
	case o.Result != Accepted || o.Replaced == 0 || o.Replaced != m.Revision || !m.Unchanged:
		return UnsentDeletion{} // there was another record, or the deletion changed the set of objects that outlive the work
	case m.State == Live:
		return UnsentDeletion{Spec: o.Replaced, First: o.Revision, Last: o.Revision}
	case u.Last != o.Replaced:
		return UnsentDeletion{}
	}
	u.Last = o.Revision
	return u
}

// Subscriber is an agent that has subscribed and was not sent anything yet.
type Subscriber struct {
	// Cursor is the position of this store up to which the agent has saved everything. It is 0 if the agent reports
	// none, like OCM agents.
	Cursor uint64
	// Alone is true if no other agent of the cluster is subscribed. Sent is the store head when the last agent
	// disconnected, 0 if there was none since the broker started. Revisions above Sent were sent to no agent.
	Alone bool
	Sent  uint64
}

// CanReplaceTombstone reports whether the spec queued behind a tombstone may take over the name without a
// deletion. Both have the same owner and name. The agent that subscribes has the last spec of the deleted work
// and cannot have been sent the deletion. It is unknown what an earlier process of the broker sent, so u and
// the tombstone must be from this process.
func CanReplaceTombstone(m Meta, u UnsentDeletion, a Subscriber) bool {
	w := m.Queued
	switch {
	case !queuedLive(&m) || w.Owner != m.Owner || w.Name != m.Name:
		return false // no spec is queued, or it is not the next work of that name
	case u.Last == 0 || u.Last != m.SpecRevision:
		return false // the deletion is from before this process, or changed since
	case !a.Alone || a.Sent >= u.First:
		return false // another agent may have been sent the deletion
	case a.Cursor == 0 || a.Cursor < u.Spec || a.Cursor >= u.First:
		return false // this agent lacks the last spec, or was sent the deletion
	}
	return true
}

// queuedLive reports whether a live spec of another id is queued behind m.
func queuedLive(m *Meta) bool {
	return m.State == Tombstone && QueuedID(m) != "" && !m.Queued.Deleting
}
