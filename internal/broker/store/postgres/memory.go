package postgres

import (
	"math"
	"sync"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
)

// position is a row of the log.
type position struct{ number, token uint64 }

// place is a position with the head there.
type place struct {
	position
	head store.Head
}

// memIndex is what a replica keeps in memory: a function of the log up to its place.
type memIndex struct {
	position
	state    memindex.State
	database string // identity of the database of the last incarnation
	numbered uint64 // number of the last incarnation
	ring     *memindex.Ring
}

// begin begins an incarnation.
func (m *memIndex) begin(i incarnation) {
	m.state.Begin(i.Incarnation)
	m.numbered, m.database = i.number, i.database
}

// apply applies the row of the log that follows the position.
func (m *memIndex) apply(p position, head uint64, e *entries) {
	m.position, m.state.At.Revision = p, head
	for _, i := range e.incarnations {
		m.begin(i)
	}
	d := store.Decision{Writes: e.writes}
	for c := range d.Uses() {
		m.state.Usage.Add(c)
	}
	for i := range e.writes {
		m.state.Tally.Count(e.writes[i].Old, e.writes[i].New)
	}
	// Append all changes before marking any as obsolete: a later op of the batch may obsolete the change of an
	// earlier one.
	for i := range e.changes {
		m.change(&e.changes[i])
	}
	for i := range e.writes {
		m.ring.Forget(e.writes[i].Old, e.writes[i].New)
	}
}

// change applies one entry of the feed. The memory has all bookmarks, so it finds the entry that this one replaces.
func (m *memIndex) change(c *store.Change) {
	m.ring.Append(*c)
	if c.Part != store.BookmarkPart {
		return
	}
	if old := m.state.Bookmarks.Get(c.Key.ResourceID); old != nil {
		m.ring.Drop(old.Revision)
	}
	if c.Gone {
		m.state.Bookmarks.Set(c.Key.ResourceID, nil)
		return
	}
	m.state.Bookmarks.Set(c.Key.ResourceID, &store.Bookmark{Value: c.Value, Revision: c.Revision})
}

// memory is the memory of a replica, for concurrent readers.
type memory struct {
	mu sync.RWMutex // guards the fields below; it is never held during I/O
	memIndex
	memindex.Memory
	commits chan struct{} // closed and replaced whenever the position moves
}

func newMemory(i memIndex) *memory {
	m := &memory{memIndex: i, commits: make(chan struct{})}
	m.Memory = memindex.NewMemory(&m.mu, &m.state)
	return m
}

// applyNext applies a row of the log, unless it was applied already.
func (m *memory) applyNext(p position, head uint64, e *entries) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.number != m.position.number+1 {
		return
	}
	m.memIndex.apply(p, head, e)
	m.wake()
}

// replace replaces the memory by a snapshot.
func (m *memory) replace(n memIndex) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.memIndex = n
	m.wake()
}

func (m *memory) wake() {
	close(m.commits)
	m.commits = make(chan struct{})
}

// wakeReaders wakes those that wait for the position to move.
func (m *memory) wakeReaders() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wake()
}

// at returns the place.
func (m *memory) at() place {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return place{m.position, m.state.At}
}

// revisions returns what look returns, with the lock held.
func (m *memory) revisions(look func(*memindex.Summary) []uint64) []int64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return signed(look(m.state.Tally))
}

// signed converts revisions for the database, which has no unsigned numbers.
func signed(revisions []uint64) []int64 {
	out := make([]int64, len(revisions))
	for i, r := range revisions {
		out[i] = signedRevision(r)
	}
	return out
}

func signedRevision(r uint64) int64 { return int64(min(r, math.MaxInt64)) }
