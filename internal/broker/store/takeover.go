package store

// A work can leave its hub while its cluster is away, because somebody took its
// finalizer off, and be created again under its name. The new one waits behind the
// tombstone of the old one, until the cluster has deleted what it may keep. Where
// its agent never heard of the deletion, that is not needed: it takes the new work
// for the next one of that name, keeps the objects, and prunes what the new one
// lacks.

// UnsentDeletion is what a broker knows of a tombstone that it wrote itself, while it
// runs. The zero value knows nothing.
type UnsentDeletion struct {
	// Spec is the revision of the last live spec. The deletion left it as it was, so
	// that whoever has that one misses no change of what is to outlive the work.
	Spec uint64
	// First is the revision of the deletion, Last that of its last repetition.
	First, Last uint64
}

// DeletedRecord is a record that a deletion was about to meet.
type DeletedRecord struct {
	State State
	// Revision of its spec.
	Revision uint64
	// Unchanged: the deletion carries the data that the record has, or none.
	Unchanged bool
}

// Deleted returns what is known after a deletion with this outcome; u is what was
// known of the record before, the zero value if it was live.
func (u UnsentDeletion) Deleted(m DeletedRecord, o Outcome) UnsentDeletion {
	switch {
	case o.Result != Accepted || o.Replaced == 0 || o.Replaced != m.Revision || !m.Unchanged:
		return UnsentDeletion{} // it met another record, or changed what is to outlive the work
	case m.State == Live:
		return UnsentDeletion{Spec: o.Replaced, First: o.Revision, Last: o.Revision}
	case u.Last != o.Replaced:
		return UnsentDeletion{}
	}
	u.Last = o.Revision
	return u
}

// Subscriber is an agent that subscribes, before anything is sent to it.
type Subscriber struct {
	// Cursor is up to where it has everything safe, a position of this store; 0 when
	// it does not say, as agents of Open Cluster Management.
	Cursor uint64
	// Alone: no other agent of the cluster is subscribed. Sent is the head of the
	// store when the last one left, 0 when there was none since the broker started:
	// whatever is above it was sent to nobody.
	Alone bool
	Sent  uint64
}

// CanReplaceTombstone reports whether the spec that waits behind a tombstone takes over its
// name without a deletion: it is of the same owner and name, and the agent that
// arrives has the last spec of the deleted work and cannot have heard of the
// deletion. What an earlier process of the broker sent is not known: u is of this
// one, and so is the tombstone.
func CanReplaceTombstone(m Meta, u UnsentDeletion, a Subscriber) bool {
	w := m.Queued
	switch {
	case !queuedLive(&m) || w.Owner != m.Owner || w.Name != m.Name:
		return false // nothing waits, or what waits is not the next work of that name
	case u.Last == 0 || u.Last != m.SpecRevision:
		return false // it is from before this process, or not as it saw it
	case !a.Alone || a.Sent >= u.First:
		return false // another agent may have heard of it
	case a.Cursor == 0 || a.Cursor < u.Spec || a.Cursor >= u.First:
		return false // this one lacks the last spec, or has heard of it
	}
	return true
}

// queuedLive reports whether the live spec of another id waits behind m.
func queuedLive(m *Meta) bool {
	return m.State == Tombstone && QueuedID(m) != "" && !m.Queued.Deleting
}
