package pebble

import (
	"context"
	"fmt"
	"math"
	"sync"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/internal/broker/store/value"
	"github.com/hawser-io/hawser/pkg/codec"
)

// memIndex is the part of a store that needs no disk reads.
type memIndex struct {
	state     memindex.State
	behind    map[store.Key]string // queued id → id of its tombstone
	removals  []uint64             // revisions of the stored removals, ascending
	compacted uint64               // revision of the last removal that was dropped

	// Used while loading:
	headFound       bool
	lastIncarnation uint64 // number of the newest incarnation
}

func newState() memIndex {
	return memIndex{state: memindex.NewState(), behind: make(map[store.Key]string)}
}

// loaded lists the kinds of values from which a memIndex is loaded. These kinds sort before all others.
var loaded = [...]byte{keyFormerBookmark, keyFormerCluster, value.Incarnation, value.Bookmark, keyHead, keyStoreID, value.Meta}

// load adds one value of the kinds in loaded. The caller passes values in key order. A record is only decoded:
// the caller checks it before it calls addRecord.
func (s *memIndex) load(key, body []byte) (m *store.Meta, err error) {
	switch kind, alone := key[0], len(key) == 1; {
	case kind == value.Bookmark:
		var b store.Bookmark
		if b, err = value.DecodeBookmark(key, body); err == nil {
			s.state.Bookmarks.Set(string(key[1:]), &b)
		}
	case kind == keyFormerBookmark:
		s.state.Bookmarks.Set(string(key[1:]), &store.Bookmark{Value: append([]byte{}, body...)})
	case kind == keyFormerCluster:
		var dt codec.DataType
		var cluster string
		if dt, cluster, err = parseFormerClusterKey(key); err == nil {
			s.state.Bookmarks.Set(store.BindingName(dt, cluster), &store.Bookmark{Value: append([]byte{}, body...)})
		}
	case kind == value.Incarnation:
		return nil, s.loadIncarnation(key, body)
	case kind == keyHead && alone:
		var n uint64
		if n, err = decodeNumber(key, body); err == nil {
			s.state.At.Revision, s.headFound = n, true
		}
	case kind == keyStoreID && alone:
		s.state.At.StoreID = string(body)
	case kind == value.Meta:
		return value.ParseMeta(key, body)
	default:
		err = value.Damage(key, "no release wrote such a key")
	}
	return nil, err
}

func (s *memIndex) loadIncarnation(key, body []byte) error {
	number, err := value.ParseNumberKey(key)
	if err != nil {
		return err
	}
	t, err := value.DecodeIncarnation(key, body)
	if err == nil {
		s.state.Incarnations = append(s.state.Incarnations, t)
		s.lastIncarnation = number
	}
	return err
}

// addRecord adds a record.
func (s *memIndex) addRecord(m *store.Meta) {
	s.state.Load(m)
	if id := store.QueuedID(m); id != "" {
		s.behind[m.Key.Beside(id)] = m.ResourceID
	}
}

// highest returns the highest possible revision.
func (s *memIndex) highest() uint64 {
	if !s.headFound {
		return math.MaxUint64 - 1
	}
	return s.state.At.Revision
}

// aboveHead returns the problem if a revision of a record is above the head, otherwise "".
func (s *memIndex) aboveHead(m *store.Meta) string {
	if max(m.SpecRevision, m.StatusRevision) <= s.highest() {
		return ""
	}
	return fmt.Sprintf("its revisions %d and %d are above the head %d", m.SpecRevision, m.StatusRevision, s.state.At.Revision)
}

// newIncarnation begins an incarnation.
func (s *memIndex) newIncarnation(epoch string, t memindex.Incarnation) {
	s.state.At.StoreID = epoch
	s.state.Begin(t)
}

// memory is the in-memory state for readers. All its parts belong to one commit, the last durable one.
type memory struct {
	// mu guards the fields below. It is never held during a disk read or write. A goroutine that holds the commit
	// lock of the store may read without mu.
	mu sync.RWMutex
	memIndex
	memindex.Memory
	passed  uint64 // revision up to which no reader needs a removal
	ring    *memindex.Ring
	metas   recent[store.Key, *store.Meta]
	events  recent[memindex.RecordPart, []byte]
	view    *view
	commits chan struct{} // closed and replaced by each commit
}

// publish makes a durable commit visible. apply applies it to the memory; v is the disk after it.
func (m *memory) publish(v *view, apply func()) {
	m.mu.Lock()
	before := m.view
	m.view = v
	head := m.state.At.Revision
	apply()
	if m.state.At.Revision != head {
		close(m.commits)
		m.commits = make(chan struct{})
	}
	m.mu.Unlock()
	before.unref()
}

// present returns the view of the last commit, which the caller must unref. look is called with mu held, so it
// reads the state of the same commit.
func (m *memory) present(look func()) *view {
	m.mu.RLock()
	defer m.mu.RUnlock()
	look()
	m.view.holders.Add(1)
	return m.view
}

// Passed implements [store.Store]. A later commit drops the removals.
func (m *memory) Passed(revision uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.passed = max(m.passed, revision)
}

// Reach implements [store.Store]. Only this process has the store open, and each commit ends with its memory.
func (*memory) Reach(ctx context.Context) error { return ctx.Err() }

// Replicas implements [store.Store]. An incarnation is one opening.
func (m *memory) Replicas(context.Context) ([]string, error) {
	return []string{m.Head().Incarnation}, nil
}

// Limits of each half of the two recents of a store.
const (
	recentMetas = 4096 // a meta needs about 500 bytes
	recentBytes = 1 << 20
	// keyBytes is the overhead of an event, in bytes.
	keyBytes = 256
)

// recent caches the last writes. Many publishes are about a record that was just written, because a status
// follows its spec. Many reads are for a subscriber that waits for the write. With the cache, both need no disk
// lookup. The cache has two halves. When the young half is full, it becomes the old one, and the entries of the
// former old half are dropped. Values are shared and not modified.
type recent[K comparable, V any] struct {
	limit      int         // of each half
	size       func(V) int // cost of a value
	young, old map[K]V
	used       int // cost of young
}

func newRecent[K comparable, V any](limit int, size func(V) int) recent[K, V] {
	return recent[K, V]{limit: limit, size: size, young: make(map[K]V), old: make(map[K]V)}
}

func newMetas() recent[store.Key, *store.Meta] {
	return newRecent[store.Key](recentMetas, func(*store.Meta) int { return 1 })
}

// newEvents returns a cache of payloads.
func newEvents() recent[memindex.RecordPart, []byte] {
	return newRecent[memindex.RecordPart](recentBytes, func(event []byte) int { return len(event) + keyBytes })
}

// get returns the current value. ok is false if it is not cached; then it may or may not exist.
func (r *recent[K, V]) get(k K) (v V, ok bool) {
	if v, ok = r.young[k]; !ok {
		v, ok = r.old[k]
	}
	return v, ok
}

// put adds a committed value.
func (r *recent[K, V]) put(k K, v V) {
	size := r.size(v)
	if size > r.limit/4 { // a few such values would evict all others
		r.remove(k)
		return
	}
	if was, has := r.young[k]; has {
		r.used -= r.size(was)
	}
	if r.used+size > r.limit {
		r.young, r.old, r.used = r.old, r.young, 0
		clear(r.young)
	}
	r.young[k] = v
	r.used += size
}

// remove drops a removed value.
func (r *recent[K, V]) remove(k K) {
	if was, has := r.young[k]; has {
		r.used -= r.size(was)
	}
	delete(r.young, k)
	delete(r.old, k)
}
