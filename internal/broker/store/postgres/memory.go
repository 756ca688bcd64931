package postgres

import (
	"math"
	"sync"

	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/pkg/codec"
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
	place
	database     string // identity of the database of the last incarnation
	incarnations memindex.Incarnations
	numbered     uint64 // number of the last incarnation
	bookmarks    memindex.Bookmarks
	tally        *memindex.Summary
	usage        *quota.Usage
	ring         *memindex.Ring
}

func newMemIndex() memIndex {
	return memIndex{
		bookmarks: memindex.NewBookmarks(), tally: memindex.NewTally(), usage: quota.NewUsage(),
	}
}

// load adds a record of a snapshot.
func (m *memIndex) load(r *store.Meta) {
	m.tally.Load(r)
	m.usage.Add(quota.Change{Source: r.Owner, Cluster: r.Cluster, By: store.UseOf(r)})
}

// begin begins an incarnation.
func (m *memIndex) begin(i incarnation) {
	m.incarnations = m.incarnations.Begin(i.Incarnation)
	m.numbered, m.database = i.number, i.database
	m.head.Incarnation, m.head.FirstRevision = i.ID, i.First
}

// apply applies the row of the log that follows the position.
func (m *memIndex) apply(p position, head uint64, e *entries) {
	m.position, m.head.Revision = p, head
	for _, i := range e.incarnations {
		m.begin(i)
	}
	d := store.Decision{Writes: e.writes}
	for c := range d.Uses() {
		m.usage.Add(c)
	}
	for i := range e.writes {
		m.tally.Count(e.writes[i].Old, e.writes[i].New)
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
	if old := m.bookmarks.Get(c.Key.ResourceID); old != nil {
		m.ring.Drop(old.Revision)
	}
	if c.Gone {
		m.bookmarks.Set(c.Key.ResourceID, nil)
		return
	}
	m.bookmarks.Set(c.Key.ResourceID, &store.Bookmark{Value: c.Value, Revision: c.Revision})
}

// memory is the memory of a replica, for concurrent readers.
type memory struct {
	mu sync.RWMutex // guards the fields below; it is never held during I/O
	memIndex
	commits chan struct{} // closed and replaced whenever the position moves
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
	return m.place
}

// Head implements [store.Store].
func (m *memory) Head() store.Head {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.head
}

// ClusterHead implements [store.Store].
func (m *memory) ClusterHead(dt codec.DataType, cluster string) store.ClusterHead {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.tally.ClusterHead(dt, cluster)
}

// Clusters implements [store.Store].
func (m *memory) Clusters(dt codec.DataType) []string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.bookmarks.Clusters(m.tally, dt)
}

// Digests implements [store.Store].
func (m *memory) Digests(dt codec.DataType, owner string) []codec.ClusterDigest {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.tally.Digests(dt, owner)
}

// Rows implements [store.Store].
func (m *memory) Rows(of quota.Scope, after string, limit int) []quota.Row {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.usage.Rows(of, after, max(limit, 1))
}

// ValidCursor implements [store.Store].
func (m *memory) ValidCursor(c store.Cursor) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.incarnations.Valid(m.head, c)
}

// Subscribed implements [store.Store].
func (m *memory) Subscribed(dt codec.DataType, cluster string) (string, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.bookmarks.Subscribed(dt, cluster)
}

// Bookmark implements [store.Store].
func (m *memory) Bookmark(name string) (store.Bookmark, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.bookmarks.Named(name)
}

// Bookmarks implements [store.Store].
func (m *memory) Bookmarks(prefix string) map[string][]byte {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.bookmarks.WithPrefix(prefix)
}

// revisions returns what look returns, with the lock held.
func (m *memory) revisions(look func(*memindex.Summary) []uint64) []int64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return signed(look(m.tally))
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
