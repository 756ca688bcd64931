// Package deliveryqueue decides in which order a subscription is sent what: a [Queue] is the set
// of records that it still has to be sent, and a [Progress] says when it is told how far it is.
//
// A mailbox holds keys, not events: a subscriber that is slow, stuck or away
// costs a few bytes per work and delays nobody, and when it reads again it gets
// the latest state of each record once. The package is pure; the broker gives
// every mailbox to exactly one stream and guards it.
package deliveryqueue

import (
	"math"

	"github.com/hawser-io/hawser/internal/fair"
)

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
	// Force: the subscriber holds a newer version, and the record is the
	// truth all the same.
	Force
)

// sticky are the flags that an entry keeps whatever else is posted of it.
const sticky = SpecFirst | Force

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

// slot is an entry and its place in a queue.
type slot struct {
	Entry
	queue      uint8
	prev, next int32
}

type list struct{ head, tail int32 }

// clusterQueue is what there is of one cluster, or of all.
type clusterQueue struct {
	queue [queues]list
	next  uint8
	size  int
}

var nothing = [queues]list{{none, none}, {none, none}, {none, none}}

// Queue is the set of records one subscription still has to be sent. A record
// is in it at most once, and one that is posted again keeps its place, so that
// neither a fast source nor a slow reader makes it grow beyond the number of
// works, and no work waits for ever. Three queues (fresh changes, deletions,
// answers to resync requests) take turns.
//
// A mailbox that is [Shared] has such queues for each cluster, and the clusters take turns: a
// cluster whose records change all the time, or are large, delays those of another one by a turn.
//
// The zero value is empty and ready, for one cluster. Every method but Oldest takes constant time
// (amortised), Next of a shared one the logarithm of the number of clusters. A Queue is for
// one goroutine at a time.
type Queue struct {
	slots []slot
	free  int32 // list of unused slots, linked by next; valid when slots != nil
	byKey map[Key]int32
	only  clusterQueue // unless it is shared
	// clusters are the lines of a shared one that are not empty; turns says whose turn it is.
	shared    bool
	clusters  map[string]*clusterQueue
	scheduler fair.Scheduler[string]
}

// Shared returns an empty mailbox in which clusters take turns.
func Shared() Queue { return Queue{shared: true} }

// visitCost is what an entry costs whatever its size, in bytes.
const visitCost = 1 << 10

// Charge says how many bytes an entry of a cluster had that Next returned.
func (m *Queue) Charge(cluster string, bytes int) {
	if m.shared {
		m.scheduler.Charge(cluster, bytes)
	}
}

// queueOf is where the entries of a cluster stand.
func (m *Queue) queueOf(cluster string) *clusterQueue {
	if m.shared {
		return m.clusters[cluster]
	}
	return &m.only
}

// open is queueOf for an entry that comes.
func (m *Queue) open(cluster string) *clusterQueue {
	l := m.queueOf(cluster)
	if l == nil {
		l = &clusterQueue{queue: nothing}
		if m.clusters == nil {
			m.clusters = map[string]*clusterQueue{}
		}
		m.clusters[cluster] = l
		m.scheduler.Join(cluster)
	}
	return l
}

// closeQueue forgets the line of a cluster if it is empty.
func (m *Queue) closeQueue(cluster string, l *clusterQueue) {
	if m.shared && l.size == 0 {
		delete(m.clusters, cluster)
		m.scheduler.Leave(cluster)
	}
}

// Post adds a change that the router saw. For an entry that is there already, what is known of it is merged:
// the oldest unsent revision stays; a deletion over an unsent spec turns into
// [SpecFirst]; [Force] stays.
func (m *Queue) Post(k Key, revision uint64, f Flags) {
	i, has := m.byKey[k]
	if !has {
		m.insert(k, revision, f)
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
// for [SpecFirst] and [Force], which it may gain.
func (m *Queue) Answer(k Key, revision uint64, f Flags) {
	if i, has := m.byKey[k]; has {
		m.slots[i].Flags |= f & sticky
		return
	}
	m.insert(k, revision, f|Resync)
}

// Return puts an entry back that Next took out and that was not delivered. What
// was posted of the record since then stays, and is merged.
func (m *Queue) Return(e Entry) {
	i, has := m.byKey[e.Key]
	if !has {
		m.insert(e.Key, e.Revision, e.Flags)
		return
	}
	s := &m.slots[i]
	s.Flags |= e.Flags & sticky
	s.Revision = min(s.Revision, e.Revision)
}

// Next takes the next entry out. Queues that hold something take turns.
func (m *Queue) Next() (Entry, bool) {
	if len(m.byKey) == 0 {
		return Entry{}, false
	}
	l := &m.only
	if m.shared {
		cluster, _ := m.scheduler.Next(visitCost)
		l = m.clusters[cluster]
	}
	for l.queue[l.next].head == none {
		l.next = (l.next + 1) % queues
	}
	i := l.queue[l.next].head
	l.next = (l.next + 1) % queues
	e := m.slots[i].Entry
	m.remove(i)
	return e, true
}

// Remove takes a record out; it is no error when it is not there.
func (m *Queue) Remove(k Key) {
	if i, has := m.byKey[k]; has {
		m.remove(i)
	}
}

// Len returns the number of records in the mailbox.
func (m *Queue) Len() int { return len(m.byKey) }

// Oldest returns the oldest unsent revision of any record in the mailbox:
// everything below it was sent. It looks at every record, for whoever asks now and
// then. false: the mailbox is empty.
func (m *Queue) Oldest() (uint64, bool) {
	oldest := uint64(math.MaxUint64)
	for _, i := range m.byKey {
		oldest = min(oldest, m.slots[i].Revision)
	}
	return oldest, len(m.byKey) > 0
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

func (m *Queue) insert(k Key, revision uint64, f Flags) {
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
	m.slots[i].Entry = Entry{Key: k, Revision: revision, Flags: f}
	m.byKey[k] = i
	m.enqueue(i, queueOf(f))
}

// reset makes an empty mailbox whose lists are linked by slot numbers.
func (m *Queue) reset() {
	*m = Queue{slots: m.slots[:0], free: none, byKey: map[Key]int32{}, only: clusterQueue{queue: nothing, next: m.only.next}, shared: m.shared}
}

func (m *Queue) setFlags(i int32, f Flags) {
	m.slots[i].Flags = f
	if q := queueOf(f); q != m.slots[i].queue {
		m.dequeue(i)
		m.enqueue(i, q)
	}
}

func (m *Queue) enqueue(i int32, q uint8) {
	s := &m.slots[i]
	line := m.open(s.Cluster)
	line.size++
	l := &line.queue[q]
	s.queue, s.prev, s.next = q, l.tail, none
	if l.tail == none {
		l.head = i
	} else {
		m.slots[l.tail].next = i
	}
	l.tail = i
}

func (m *Queue) dequeue(i int32) {
	s := &m.slots[i]
	line := m.queueOf(s.Cluster)
	line.size--
	l := &line.queue[s.queue]
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

// shrinkAbove is the number of slots above which an empty mailbox gives its
// memory back: thousands of mailboxes are empty most of the time.
const shrinkAbove = 4

func (m *Queue) remove(i int32) {
	m.dequeue(i)
	cluster := m.slots[i].Cluster
	m.closeQueue(cluster, m.queueOf(cluster))
	delete(m.byKey, m.slots[i].Key)
	if len(m.byKey) == 0 && len(m.slots) > shrinkAbove {
		*m = Queue{only: clusterQueue{next: m.only.next}, shared: m.shared}
		return
	}
	m.slots[i] = slot{next: m.free}
	m.free = i
}
