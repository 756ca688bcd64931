package route

// Key names a record within the data type of a subscription.
type Key struct {
	Cluster, ResourceID string
}

// Flags say how an entry is to be delivered.
type Flags uint8

// The flags.
const (
	// Deletion: the record was a tombstone when it was posted. Deletions have
	// a queue of their own.
	Deletion Flags = 1 << iota
	// Resync: the entry answers a resync request. Such entries have a queue of
	// their own too, so that a fresh change does not wait behind a long answer.
	Resync
	// SpecFirst: the subscriber may never have seen the last spec of this
	// tombstone, which says what deletion means.
	SpecFirst
)

// Entry is one record that a subscription still has to be sent.
type Entry struct {
	Key
	// Revision is the oldest one of this record that was not sent.
	Revision uint64
	Flags    Flags
}

// The queues, in the order in which they take turns.
const (
	fresh uint8 = iota
	deletions
	answers
	queues
)

// none ends a list of slots.
const none = -1

// slot is an entry and its places: one in a queue, and, when the router posted
// it, one in the list of router posts, which is ordered by revision.
type slot struct {
	Entry
	queue      uint8
	routed     bool
	prev, next int32
	older      int32
	younger    int32
}

type list struct{ head, tail int32 }

// Mailbox is the set of records one subscription still has to be sent. A record
// is in it at most once, and one that is posted again keeps its place, so that
// neither a fast source nor a slow reader makes it grow beyond the number of
// works, and no work waits for ever. Three queues (fresh changes, deletions,
// answers to resync requests) take turns.
//
// The zero value is empty and ready. Every method takes constant time
// (amortised). A Mailbox is for one goroutine at a time.
type Mailbox struct {
	slots  []slot
	free   int32 // list of unused slots, linked by next; valid when slots != nil
	byKey  map[Key]int32
	queue  [queues]list
	byAge  list // router posts, ascending by revision
	turn   uint8
	loose  int // entries that are not in byAge
	lowest uint64
}

// Post adds a change that the router saw. Revisions of successive Posts
// ascend. For an entry that is there already, what is known of it is merged:
// the oldest unsent revision stays; a deletion over an unsent spec turns into
// [SpecFirst].
func (m *Mailbox) Post(k Key, revision uint64, f Flags) {
	i, has := m.byKey[k]
	if !has {
		i = m.insert(k, revision, f)
		m.appendAge(i)
		return
	}
	s := &m.slots[i]
	sticky := s.Flags & SpecFirst
	if f&Deletion != 0 && s.Flags&Deletion == 0 {
		sticky |= SpecFirst
	}
	m.setFlags(i, f&^Resync|sticky)
}

// Answer adds a record that a resync request asks for. revision is the one of
// the record's last change. An entry that is there already stays as it is, but
// for [SpecFirst], which it may gain.
func (m *Mailbox) Answer(k Key, revision uint64, f Flags) {
	if i, has := m.byKey[k]; has {
		m.slots[i].Flags |= f & SpecFirst
		return
	}
	m.insert(k, revision, f|Resync)
	m.addLoose(revision)
}

// Return puts an entry back that Next took out and that was not delivered. What
// was posted of the record since then stays, and is merged.
func (m *Mailbox) Return(e Entry) {
	if i, has := m.byKey[e.Key]; has {
		s := &m.slots[i]
		s.Flags |= e.Flags & SpecFirst
		if e.Revision < s.Revision {
			m.loosen(i, e.Revision)
		}
		return
	}
	m.insert(e.Key, e.Revision, e.Flags)
	m.addLoose(e.Revision)
}

// loosen gives an entry an older revision, for which it loses its place in the
// order of ages.
func (m *Mailbox) loosen(i int32, revision uint64) {
	s := &m.slots[i]
	s.Revision = revision
	if s.routed {
		m.removeAge(i)
		s.routed = false
		m.addLoose(revision)
	} else if revision < m.lowest {
		m.lowest = revision
	}
}

func (m *Mailbox) addLoose(revision uint64) {
	if m.loose == 0 || revision < m.lowest {
		m.lowest = revision
	}
	m.loose++
}

// Next takes the next entry out. Queues that hold something take turns.
func (m *Mailbox) Next() (Entry, bool) {
	if len(m.byKey) == 0 {
		return Entry{}, false
	}
	for m.queue[m.turn].head == none {
		m.turn = (m.turn + 1) % queues
	}
	i := m.queue[m.turn].head
	m.turn = (m.turn + 1) % queues
	e := m.slots[i].Entry
	m.remove(i)
	return e, true
}

// Remove takes a record out; it is no error when it is not there.
func (m *Mailbox) Remove(k Key) {
	if i, has := m.byKey[k]; has {
		m.remove(i)
	}
}

// Len returns the number of records in the mailbox.
func (m *Mailbox) Len() int { return len(m.byKey) }

// Oldest returns a revision that is not above the oldest unsent revision of any
// record in the mailbox: everything below it was sent. It is exact except while
// answers to a resync request are pending, when it may stay at the lowest
// revision of that answer. false: the mailbox is empty.
func (m *Mailbox) Oldest() (uint64, bool) {
	if len(m.byKey) == 0 {
		return 0, false
	}
	if m.byAge.head == none {
		return m.lowest, true
	}
	oldest := m.slots[m.byAge.head].Revision
	if m.loose > 0 {
		oldest = min(oldest, m.lowest)
	}
	return oldest, true
}

func queueOf(f Flags) uint8 {
	switch {
	case f&Deletion != 0:
		return deletions
	case f&Resync != 0:
		return answers
	}
	return fresh
}

func (m *Mailbox) insert(k Key, revision uint64, f Flags) int32 {
	if m.slots == nil {
		m.reset()
	}
	i := m.free
	if i == none {
		m.slots = append(m.slots, slot{})
		i = int32(len(m.slots) - 1)
	} else {
		m.free = m.slots[i].next
	}
	m.slots[i] = slot{Entry: Entry{Key: k, Revision: revision, Flags: f}}
	m.byKey[k] = i
	m.enqueue(i, queueOf(f))
	return i
}

// reset makes an empty mailbox whose lists are linked by slot numbers.
func (m *Mailbox) reset() {
	nothing := list{head: none, tail: none}
	*m = Mailbox{
		slots: m.slots[:0],
		free:  none,
		byKey: map[Key]int32{},
		queue: [queues]list{nothing, nothing, nothing},
		byAge: nothing,
		turn:  m.turn,
	}
}

func (m *Mailbox) setFlags(i int32, f Flags) {
	m.slots[i].Flags = f
	if q := queueOf(f); q != m.slots[i].queue {
		m.dequeue(i)
		m.enqueue(i, q)
	}
}

func (m *Mailbox) enqueue(i int32, q uint8) {
	l := &m.queue[q]
	s := &m.slots[i]
	s.queue, s.prev, s.next = q, l.tail, none
	if l.tail == none {
		l.head = i
	} else {
		m.slots[l.tail].next = i
	}
	l.tail = i
}

func (m *Mailbox) dequeue(i int32) {
	s := &m.slots[i]
	l := &m.queue[s.queue]
	if s.prev == none {
		l.head = s.next
	} else {
		m.slots[s.prev].next = s.next
	}
	if s.next == none {
		l.tail = s.prev
	} else {
		m.slots[s.next].prev = s.prev
	}
}

func (m *Mailbox) appendAge(i int32) {
	s := &m.slots[i]
	s.routed, s.older, s.younger = true, m.byAge.tail, none
	if m.byAge.tail == none {
		m.byAge.head = i
	} else {
		m.slots[m.byAge.tail].younger = i
	}
	m.byAge.tail = i
}

func (m *Mailbox) removeAge(i int32) {
	s := &m.slots[i]
	if s.older == none {
		m.byAge.head = s.younger
	} else {
		m.slots[s.older].younger = s.younger
	}
	if s.younger == none {
		m.byAge.tail = s.older
	} else {
		m.slots[s.younger].older = s.older
	}
}

// shrinkAbove is the number of slots above which an empty mailbox gives its
// memory back: thousands of mailboxes are empty most of the time.
const shrinkAbove = 4

func (m *Mailbox) remove(i int32) {
	s := &m.slots[i]
	m.dequeue(i)
	if s.routed {
		m.removeAge(i)
	} else {
		m.loose--
	}
	delete(m.byKey, s.Key)
	if len(m.byKey) == 0 && len(m.slots) > shrinkAbove {
		*m = Mailbox{turn: m.turn}
		return
	}
	*s = slot{next: m.free}
	m.free = i
}
