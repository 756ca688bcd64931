package memindex

import (
	"sync"

	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// State is what an engine keeps in memory of its records and bookmarks. It belongs to one head.
type State struct {
	At           store.Head
	Incarnations Incarnations
	Bookmarks    Bookmarks
	Tally        *Summary
	Usage        *quota.Usage
}

// NewState returns the state of an empty store.
func NewState() State {
	return State{Bookmarks: NewBookmarks(), Tally: NewTally(), Usage: quota.NewUsage()}
}

// Load adds a record of a snapshot. Sort the tally after the last one.
func (s *State) Load(m *store.Meta) {
	s.Tally.Load(m)
	s.Usage.Add(quota.Change{Source: m.Owner, Cluster: m.Cluster, By: store.UseOf(m)})
}

// Begin begins an incarnation.
func (s *State) Begin(t Incarnation) {
	s.Incarnations = s.Incarnations.Begin(t)
	s.At.Incarnation, s.At.FirstRevision = t.ID, t.First
}

// Memory lets goroutines read a state while a commit changes it. The methods are those of [store.Replica].
type Memory struct {
	mu *sync.RWMutex
	at *State
}

// NewMemory returns the memory with the state at, which mu guards.
func NewMemory(mu *sync.RWMutex, at *State) Memory { return Memory{mu, at} }

// Head implements [store.Replica].
func (m Memory) Head() store.Head {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.at.At
}

// ClusterHead implements [store.Replica].
func (m Memory) ClusterHead(dt codec.DataType, cluster string) store.ClusterHead {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.at.Tally.ClusterHead(dt, cluster)
}

// Clusters implements [store.Replica].
func (m Memory) Clusters(dt codec.DataType) []string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.at.Bookmarks.Clusters(m.at.Tally, dt)
}

// Digests implements [store.Replica].
func (m Memory) Digests(dt codec.DataType, owner string) []codec.ClusterDigest {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.at.Tally.Digests(dt, owner)
}

// Rows implements [store.Replica].
func (m Memory) Rows(of quota.Scope, after string, limit int) []quota.Row {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.at.Usage.Rows(of, after, max(limit, 1))
}

// ValidCursor implements [store.Replica].
func (m Memory) ValidCursor(c store.Cursor) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.at.Incarnations.Valid(m.at.At, c)
}

// Subscribed implements [store.Replica].
func (m Memory) Subscribed(dt codec.DataType, cluster string) (string, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.at.Bookmarks.Subscribed(dt, cluster)
}

// Bookmark implements [store.Replica].
func (m Memory) Bookmark(name string) (store.Bookmark, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.at.Bookmarks.Named(name)
}

// Bookmarks implements [store.Replica].
func (m Memory) Bookmarks(prefix string) map[string][]byte {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.at.Bookmarks.WithPrefix(prefix)
}
