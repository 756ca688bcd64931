package route

import "math"

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
	// Overrule: the subscriber holds a newer version, and the record is the
	// truth all the same.
	Overrule
)

// sticky are the flags that an entry keeps whatever else is posted of it.
const sticky = SpecFirst | Overrule

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

// The lists of entries by age: what the router posted, and answers. Both mostly
// come in the order of their revisions; what does not is in no such list.
const (
	posts uint8 = iota
	answered
	ages
	loose
)

// slot is an entry and its places: one in a queue, and mostly one in a list of
// entries by age.
type slot struct {
	Entry
	queue      uint8
	age        uint8
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
	byAge  [ages]list // ascending by revision
	turn   uint8
	loose  int // entries that are not in byAge
	lowest uint64
}

// Post adds a change that the router saw. For an entry that is there already, what is known of it is merged:
// the oldest unsent revision stays; a deletion over an unsent spec turns into
// [SpecFirst]; [Overrule] stays.
func (m *Mailbox) Post(k Key, revision uint64, f Flags) {
	i, has := m.byKey[k]
	if !has {
		m.insertBy(posts, k, revision, f)
		return
	}
	s := &m.slots[i]
	f |= s.Flags & sticky
	if f&Deletion != 0 && s.Flags&Deletion == 0 {
		f |= SpecFirst
	}
	m.setFlags(i, f&^Resync)
}

// Answer adds a record that a resync request asks for. revision is the one of
// the record's last change. An entry that is there already stays as it is, but
// for [SpecFirst] and [Overrule], which it may gain.
func (m *Mailbox) Answer(k Key, revision uint64, f Flags) {
	if i, has := m.byKey[k]; has {
		m.slots[i].Flags |= f & sticky
		return
	}
	m.insertBy(answered, k, revision, f|Resync)
}

// insertBy adds an entry, and to the list by age if it comes in its order.
func (m *Mailbox) insertBy(age uint8, k Key, revision uint64, f Flags) {
	i := m.insert(k, revision, f)
	if tail := m.byAge[age].tail; tail != none && m.slots[tail].Revision > revision {
		m.addLoose(i, revision)
		return
	}
	m.appendAge(age, i)
}

// Return puts an entry back that Next took out and that was not delivered. What
// was posted of the record since then stays, and is merged.
func (m *Mailbox) Return(e Entry) {
	if i, has := m.byKey[e.Key]; has {
		s := &m.slots[i]
		s.Flags |= e.Flags & sticky
		if e.Revision < s.Revision {
			m.loosen(i, e.Revision)
		}
		return
	}
	i := m.insert(e.Key, e.Revision, e.Flags)
	m.addLoose(i, e.Revision)
}

// loosen gives an entry an older revision, for which it loses its place in the
// order of ages.
func (m *Mailbox) loosen(i int32, revision uint64) {
	s := &m.slots[i]
	s.Revision = revision
	if s.age != loose {
		m.removeAge(i)
		m.addLoose(i, revision)
	} else if revision < m.lowest {
		m.lowest = revision
	}
}

func (m *Mailbox) addLoose(i int32, revision uint64) {
	m.slots[i].age = loose
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
// entries are pending that did not come in the order of their revisions, as
// those that a list lacks, when it may stay at the lowest one of these. false:
// the mailbox is empty.
func (m *Mailbox) Oldest() (uint64, bool) {
	if len(m.byKey) == 0 {
		return 0, false
	}
	oldest := uint64(math.MaxUint64)
	if m.loose > 0 {
		oldest = m.lowest
	}
	for _, l := range m.byAge {
		if l.head != none {
			oldest = min(oldest, m.slots[l.head].Revision)
		}
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
		byAge: [ages]list{nothing, nothing},
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

func (m *Mailbox) appendAge(age uint8, i int32) {
	s, l := &m.slots[i], &m.byAge[age]
	s.age, s.older, s.younger = age, l.tail, none
	if l.tail == none {
		l.head = i
	} else {
		m.slots[l.tail].younger = i
	}
	l.tail = i
}

func (m *Mailbox) removeAge(i int32) {
	s := &m.slots[i]
	l := &m.byAge[s.age]
	if s.older == none {
		l.head = s.younger
	} else {
		m.slots[s.older].younger = s.younger
	}
	if s.younger == none {
		l.tail = s.older
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
	if s.age == loose {
		m.loose--
	} else {
		m.removeAge(i)
	}
	delete(m.byKey, s.Key)
	if len(m.byKey) == 0 && len(m.slots) > shrinkAbove {
		*m = Mailbox{turn: m.turn}
		return
	}
	*s = slot{next: m.free}
	m.free = i
}
