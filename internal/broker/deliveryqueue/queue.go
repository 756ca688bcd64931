// Package deliveryqueue orders the records of a subscription. A [Queue] is the set of records that are still to
// be sent. A [Progress] decides when a checkpoint is sent.
//
// A queue holds keys, not events. A subscriber that is slow or stuck needs a few bytes per work and delays no
// other subscriber. When it reads again, it gets the latest state of each record once. The package is pure. The
// broker gives each queue to exactly one stream and guards it.
package deliveryqueue

import (
	"math"

	"github.com/hawser-io/hawser/internal/fair"
)

// Key names a record within the data type of a subscription.
type Key struct {
	Cluster, ResourceID string
}

// Flags are how an entry is delivered.
type Flags uint8

// Delivery flags.
const (
	// Deletion: the record was a tombstone when it was posted. Deletions wait in a list of their own.
	Deletion Flags = 1 << iota
	// Resync: the entry answers a resync request. Such entries also wait in a list of their own, so that a fresh
	// change does not wait behind a long answer.
	Resync
	// SpecFirst: the subscriber may never have seen the last spec of this tombstone, which defines which objects
	// are deleted.
	SpecFirst
	// Force: the subscriber holds a newer version, but the record has the right state.
	Force
)

// sticky are the flags that an entry keeps when it is posted again.
const sticky = SpecFirst | Force

// Entry is one record that is still to be sent.
type Entry struct {
	Key
	// Revision is the oldest unsent revision of this record.
	Revision uint64
	Flags    Flags
}

// The three lists of a clusterQueue, in round-robin order.
const (
	fresh uint8 = iota
	deletions
	answers
	numQueues
)

// none ends a list of slots.
const none = -1

// slot is an entry and its position in a list.
type slot struct {
	Entry
	queue      uint8
	prev, next int32
}

type list struct{ head, tail int32 }

// clusterQueue has the entries of one cluster, or of all.
type clusterQueue struct {
	queue [numQueues]list
	next  uint8
	size  int
}

var nothing = [numQueues]list{{none, none}, {none, none}, {none, none}}

// Queue is the set of records that are still to be sent on one subscription. It contains a record at most once,
// and a record that is posted again keeps its position. So a fast source or a slow reader never makes it larger
// than the number of works, and every record is sent in the end. Next serves three lists in round-robin order:
// fresh changes, deletions, and answers to resync requests.
//
// A [Shared] queue has such lists per cluster and schedules the clusters fairly. A cluster whose records change
// all the time, or are large, delays another cluster by one entry at most.
//
// The zero value is an empty queue for one cluster. All methods except Oldest take constant time (amortised).
// Next of a shared queue takes logarithmic time in the number of clusters. A Queue is for one goroutine at a
// time.
type Queue struct {
	slots []slot
	free  int32 // list of unused slots, linked by next; valid when slots != nil
	byKey map[Key]int32
	only  clusterQueue // not used by a shared queue
	// clusters has the non-empty cluster queues of a shared queue. scheduler chooses the next one.
	shared    bool
	clusters  map[string]*clusterQueue
	scheduler fair.Scheduler[string]
}

// Shared returns an empty queue that schedules clusters fairly.
func Shared() Queue { return Queue{shared: true} }

// visitCost is the minimum cost of an entry, in bytes.
const visitCost = 1 << 10

// Charge records the size of an entry that Next returned for a cluster, in bytes.
func (m *Queue) Charge(cluster string, bytes int) {
	if m.shared {
		m.scheduler.Charge(cluster, bytes)
	}
}

// queueOf returns the queue of a cluster, nil if it is empty and the queue is shared.
func (m *Queue) queueOf(cluster string) *clusterQueue {
	if m.shared {
		return m.clusters[cluster]
	}
	return &m.only
}

// open is queueOf for a new entry: it creates the queue if needed.
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

// closeQueue removes the queue of a cluster if it is empty.
func (m *Queue) closeQueue(cluster string, l *clusterQueue) {
	if m.shared && l.size == 0 {
		delete(m.clusters, cluster)
		m.scheduler.Leave(cluster)
	}
}

// Post adds a change from the router. If the record is in the queue, the entries are merged. The entry keeps
// the oldest unsent revision and [Force]. A deletion that replaces an unsent spec gets [SpecFirst].
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

// Answer adds a record that answers a resync request. revision is that of its last change. An existing entry
// only gains [SpecFirst] and [Force].
func (m *Queue) Answer(k Key, revision uint64, f Flags) {
	if i, has := m.byKey[k]; has {
		m.slots[i].Flags |= f & sticky
		return
	}
	m.insert(k, revision, f|Resync)
}

// Return puts back an entry that Next returned and that was not delivered. If the record was posted since, the
// entries are merged.
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

// Next removes and returns the next entry.
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
		l.next = (l.next + 1) % numQueues
	}
	i := l.queue[l.next].head
	l.next = (l.next + 1) % numQueues
	e := m.slots[i].Entry
	m.remove(i)
	return e, true
}

// Remove removes a record if it is in the queue.
func (m *Queue) Remove(k Key) {
	if i, has := m.byKey[k]; has {
		m.remove(i)
	}
}

// Len returns the number of records in the queue.
func (m *Queue) Len() int { return len(m.byKey) }

// Oldest returns the oldest unsent revision in the queue: everything below it was sent. It visits all records,
// so call it rarely. ok is false if the queue is empty.
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

// reset makes an empty queue whose lists are linked by slot numbers.
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

// shrinkAbove is the number of slots above which an empty queue frees its memory: thousands of queues are empty
// most of the time.
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
