package postgres

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/internal/taskgroup"
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

// recent are live records at the position of the memory, with nothing queued behind them, that are not queued
// themselves.
type recent map[store.Key]*store.Meta

// maxRecent bounds recent, to about 8 MB with typical names.
const maxRecent = 16_384

// get returns the record, if it and the op are all that a decision needs.
func (r recent) get(op *store.Op) *store.Meta {
	m := r[op.Key]
	if m == nil || op.Kind == store.PutSpec && op.SpecName() != m.Name || op.Kind > store.PutStatus {
		return nil
	}
	return m
}

// forget forgets records that were written.
func (r recent) forget(writes []store.Write) {
	for i := range writes {
		delete(r, writes[i].Key)
		if id := store.QueuedID(writes[i].New); id != "" {
			delete(r, writes[i].Key.Beside(id))
		}
	}
}

// note notes the records that the ops of a transaction are about.
func (r recent) note(t *transaction, ops []store.Op) {
	if len(r) > maxRecent {
		clear(r)
	}
	for i := range ops {
		k := ops[i].Key
		if m := t.metas[k]; isOfRecord(&ops[i]) && m != nil && m.State == store.Live && m.Queued == nil && t.behind[k] == "" {
			r[k] = m
		}
	}
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
	// own is the row that this replica wrote last, or writes now. applied: the memory has it.
	own     position
	applied bool
	// alone is the number of the last rows, in succession, that this replica wrote and got the answer for. recent has
	// records that their ops were about.
	alone  int
	recent recent
}

func newMemory(i memIndex) *memory {
	m := &memory{memIndex: i, commits: make(chan struct{}), recent: recent{}}
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
	m.recent.forget(e.writes)
	if p == m.own {
		m.applied = true
	} else {
		m.notAlone()
	}
	m.wake()
}

// notAlone forgets the records, because another replica may have written them.
func (m *memory) notAlone() {
	m.alone = 0
	clear(m.recent)
}

// writes notes that this replica begins to write a row.
func (m *memory) writes(p position) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.own, m.applied = p, false
}

// answerWithin is the time for which a notification of an own row waits. It often arrives just before the answer to the
// commit, on another connection.
const answerWithin = 2 * time.Millisecond

// gets reports whether the memory has a row of the log, or gets it within a moment from the commit of this replica that
// writes it.
func (m *memory) gets(ctx context.Context, number uint64) bool {
	m.mu.RLock()
	has, writes, moved := number <= m.position.number, number == m.own.number, m.commits
	m.mu.RUnlock()
	return has || writes && taskgroup.WaitFor(ctx, moved, answerWithin) && number <= m.at().number
}

// has reports whether the memory has applied a row that this replica wrote.
func (m *memory) has(own position) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.own == own && m.applied
}

// wrote applies the row of a transaction with these ops, unless the follower has applied it already.
func (m *memory) wrote(p position, t *transaction, ops []store.Op) {
	m.applyNext(p, t.head, &t.entries)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.position == p {
		m.alone++
		m.recent.note(t, ops)
	}
}

// replace replaces the memory by a snapshot.
func (m *memory) replace(n memIndex) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.memIndex = n
	m.notAlone()
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
