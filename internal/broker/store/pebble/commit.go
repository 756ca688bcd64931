package pebble

import (
	"cmp"
	"context"
	"errors"
	"slices"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/internal/broker/store/value"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Commit implements [store.Store].
func (s *Store) Commit(ctx context.Context, ops []store.Op) ([]store.Outcome, error) {
	outcomes := make([]store.Outcome, len(ops))
	err := s.update(ctx, sizeOf(ops), func(b *batch) (apply func(), err error) {
		t := newTransaction(s.db, &s.memory, b, len(ops))
		for i := range ops {
			if outcomes[i], err = t.do(&ops[i]); err != nil {
				s.failure.set(err)
				return nil, err
			}
		}
		if len(t.changes) > 0 {
			b.set([]byte{keyHead}, encodeNumber(t.head))
			t.compact()
		}
		return t.apply, nil
	})
	if err != nil {
		return nil, err
	}
	return outcomes, nil
}

// update writes the batch that f fills; its initial capacity is size bytes. apply is called with mu held once
// the batch is durable. An empty batch is not written.
func (s *Store) update(ctx context.Context, size int, f func(b *batch) (apply func(), err error)) error {
	leave, err := s.calls.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if err := s.space.none(); err != nil {
		return err // do not wait for the call that found the disk full
	}
	s.commit.Lock()
	defer s.commit.Unlock()
	if err := s.failure.refusal(); err != nil {
		return err
	}
	b := &batch{Batch: s.db.NewBatchWithSize(size)}
	apply, err := f(b)
	if err = cmp.Or(err, b.err); err != nil || b.Empty() {
		return errors.Join(err, b.Close())
	}
	err = s.failure.attempt(func() error { return errors.Join(s.db.Apply(b.Batch, engine.Sync), b.Close()) })
	if err != nil {
		s.failure.set(err)
	}
	// The engine may return nil after a fatal error.
	if err := s.failure.refusal(); err != nil {
		return err
	}
	s.publish(newView(s.db, s.failure), apply)
	s.space.written.Store(true)
	return nil
}

// sizeOf estimates the size of the batch for some ops, in bytes.
func sizeOf(ops []store.Op) int {
	const besides = 1 << 10 // keys, meta, indexes
	n := 0
	for i := range ops {
		n += len(ops[i].Event) + besides
	}
	return n
}

// transaction is a commit in progress. It shows the database with the changes of its ops so far. It implements
// [store.Reader].
type transaction struct {
	db     engine.Reader
	memory *memory // of the previous commit
	batch  *batch
	head   uint64
	use    *quota.PendingUsage

	metas  map[store.Key]*store.Meta // nil: removed
	names  map[store.Key]string      // the ResourceID of the key is a name; "": the name is free
	behind map[store.Key]string      // "": no longer queued
	// bookmarks are the changed ones; nil: removed. The map is nil until the first change.
	bookmarks map[string]*store.Bookmark

	writes         []store.Write
	bookmarkWrites []*store.BookmarkWrite
	events         []payload
	changes        []store.Change
	removals       []uint64 // revisions
	dropped        int      // number of the memory's removals that are dropped
}

// payload is a change of one payload of a record.
type payload struct {
	kind  byte
	key   store.Key
	event []byte // nil: removed
}

// newTransaction begins a transaction of ops ops.
func newTransaction(db engine.Reader, m *memory, b *batch, ops int) *transaction {
	return &transaction{
		db: db, memory: m, batch: b, head: m.state.At.Revision, use: m.state.Usage.Pending(),
		metas: make(map[store.Key]*store.Meta), names: make(map[store.Key]string), behind: make(map[store.Key]string),
		writes: make([]store.Write, 0, ops), changes: make([]store.Change, 0, ops), events: make([]payload, 0, ops),
	}
}

// Meta implements [store.Reader].
func (t *transaction) Meta(k store.Key) (*store.Meta, error) {
	if m, ok := t.metas[k]; ok {
		return m, nil
	}
	if m, ok := t.memory.metas.get(k); ok {
		return m, nil
	}
	m, err := getMeta(t.db, k)
	if err == nil {
		t.metas[k] = m
	}
	return m, err
}

// IDByName implements [store.Reader].
func (t *transaction) IDByName(dt codec.DataType, cluster, name string) (string, bool, error) {
	n := store.Key{DataType: dt, Cluster: cluster, ResourceID: name}
	if id, ok := t.names[n]; ok {
		return id, id != "", nil
	}
	body, ok, err := get(t.db, nameKey(dt, cluster, name))
	if err == nil {
		t.names[n] = string(body)
	}
	return string(body), ok, err
}

// BlockingTombstone implements [store.Reader].
func (t *transaction) BlockingTombstone(k store.Key) (string, bool) {
	if id, ok := t.behind[k]; ok {
		return id, id != ""
	}
	// Only commits write the map, and this is the running one.
	id, ok := t.memory.behind[k]
	return id, ok
}

// IsSubscribed implements [store.Reader].
func (t *transaction) IsSubscribed(dt codec.DataType, cluster string) bool {
	if len(t.bookmarks) > 0 {
		if b, changed := t.bookmarks[store.BindingName(dt, cluster)]; changed {
			return b != nil
		}
	}
	return t.memory.state.Bookmarks.IsSubscribed(dt, cluster) // only commits write the map, and this is the running one
}

// Bookmark implements [store.Reader].
func (t *transaction) Bookmark(name string) *store.Bookmark {
	if b, changed := t.bookmarks[name]; changed {
		return b
	}
	return t.memory.state.Bookmarks.Get(name)
}

// do decides one op and adds the decision to the batch.
func (t *transaction) do(op *store.Op) (store.Outcome, error) {
	head := t.memory.state.At
	head.Revision = t.head
	v, err := store.Look(t, head, op)
	if err != nil {
		return store.Outcome{}, err
	}
	d := store.Admit(t.use, op, store.Decide(v, op))
	for c := range d.Uses() {
		t.use.Add(c)
	}
	waited, err := t.waited(d, op.Key)
	if err != nil {
		return store.Outcome{}, err
	}
	for i := range d.Writes {
		t.put(&d.Writes[i], op.Event, waited)
	}
	t.putBookmark(d.Bookmark)
	for i := range d.Changes {
		if c := &d.Changes[i]; c.Gone {
			t.batch.set(value.NumberKey(value.Removal, c.Revision), value.AppendChange(nil, c))
			t.removals = append(t.removals, c.Revision)
		}
	}
	if n := len(d.Changes); n > 0 {
		t.head = d.Changes[n-1].Revision
	}
	t.writes = append(t.writes, d.Writes...)
	t.changes = append(t.changes, d.Changes...)
	return d.Outcome, nil
}

// removalsAtOnce is the number of removals that one commit drops. They are deleted one by one: with a deleted range
// in its memory, the engine looks up each key more slowly.
const removalsAtOnce = 1024

// compact drops the removals that all readers have passed, if there are many.
func (t *transaction) compact() {
	t.memory.mu.RLock()
	passed := t.memory.passed
	t.memory.mu.RUnlock()
	n, _ := slices.BinarySearch(t.memory.removals, passed+1)
	if n < removalsAtOnce {
		return
	}
	t.dropped = removalsAtOnce
	for _, revision := range t.memory.removals[:t.dropped] {
		t.batch.remove(value.NumberKey(value.Removal, revision))
	}
}

// waited returns the event queued behind k if the decision needs it, otherwise nil.
func (t *transaction) waited(d store.Decision, k store.Key) ([]byte, error) {
	if !slices.ContainsFunc(d.Writes, func(w store.Write) bool { return w.Spec == store.FromQueued }) {
		return nil, nil
	}
	for _, p := range slices.Backward(t.events) {
		if p.kind == value.Queued && p.key == k {
			return p.event, nil
		}
	}
	body, _, err := get(t.db, value.Key(value.Queued, k))
	return body, err
}

// putBookmark writes one bookmark with its entry in the feed; w may be nil.
func (t *transaction) putBookmark(w *store.BookmarkWrite) {
	if w == nil {
		return
	}
	if t.bookmarks == nil {
		t.bookmarks = make(map[string]*store.Bookmark)
	}
	t.bookmarks[w.Name] = w.New
	t.bookmarkWrites = append(t.bookmarkWrites, w)
	if w.Old != nil {
		t.batch.remove(value.NumberKey(value.Revision, w.Old.Revision))
	}
	if w.New == nil {
		t.batch.remove(value.BookmarkKey(w.Name))
		return
	}
	t.batch.setBookmark(w.Name, *w.New)
}

// put writes one record with its payloads and index entries.
func (t *transaction) put(w *store.Write, event, waited []byte) {
	t.index(w)
	t.metas[w.Key] = w.New
	b := t.batch
	b.key = value.AppendKey(b.key[:0], value.Meta, w.Key)
	if w.New == nil {
		b.remove(b.key)
		for _, kind := range payloads {
			if payloadOf(kind, w.Old) != never {
				t.payload(kind, w.Key, nil)
			}
		}
		return
	}
	b.body = value.AppendMeta(b.body[:0], w.New)
	b.set(b.key, b.body)
	for i, from := range [len(payloads)]store.Payload{w.Spec, w.Status, w.Queued} {
		switch from {
		case store.Keep:
		case store.Clear:
			t.payload(payloads[i], w.Key, nil)
		case store.FromOp:
			t.payload(payloads[i], w.Key, event)
		case store.FromQueued:
			t.payload(payloads[i], w.Key, waited)
		}
	}
}

func (t *transaction) payload(kind byte, k store.Key, event []byte) {
	t.events = append(t.events, payload{kind, k, event})
	b := t.batch
	if b.key = value.AppendKey(b.key[:0], kind, k); event == nil {
		b.remove(b.key)
	} else {
		b.set(b.key, event)
	}
}

// index writes the difference between the old and the new index entries of a record. Most writes keep the names
// and the owner.
func (t *transaction) index(w *store.Write) {
	var old, now [maxEntries]entry
	before, after := entries(old[:0], w.Old), entries(now[:0], w.New)
	b := t.batch
	for _, e := range before {
		if slices.Contains(after, e) {
			continue
		}
		b.key = e.appendKey(b.key[:0], w.Key)
		b.remove(b.key)
		if e.kind == keyName {
			t.names[w.Key.Beside(e.text)] = ""
		}
	}
	for _, e := range after {
		if slices.Contains(before, e) {
			continue
		}
		b.key, b.body = e.appendKey(b.key[:0], w.Key), e.appendBody(b.body[:0], w.New)
		b.set(b.key, b.body)
		if e.kind == keyName {
			t.names[w.Key.Beside(e.text)] = w.Key.ResourceID
		}
	}
	if id := store.QueuedID(w.Old); id != "" {
		t.behind[w.Key.Beside(id)] = ""
	}
	if id := store.QueuedID(w.New); id != "" {
		t.behind[w.Key.Beside(id)] = w.Key.ResourceID
	}
}

// apply applies the commit to the memory. The caller holds mu.
func (t *transaction) apply() {
	m := t.memory
	m.state.At.Revision = t.head
	t.use.Keep()
	for _, w := range t.writes {
		m.state.Tally.Count(w.Old, w.New)
		if w.New == nil {
			m.metas.remove(w.Key)
		} else {
			m.metas.put(w.Key, w.New)
		}
	}
	for _, p := range t.events {
		h := memindex.RecordPart{Key: p.key, Part: store.SpecPart}
		switch {
		case p.kind == value.Queued:
			continue
		case p.kind == value.Status:
			h.Part = store.StatusPart
		}
		if p.event == nil {
			m.events.remove(h)
		} else {
			m.events.put(h, slices.Clip(p.event))
		}
	}
	for k, id := range t.behind {
		if id == "" {
			delete(m.behind, k)
		} else {
			m.behind[k] = id
		}
	}
	// Append all changes before marking any as obsolete: a later op of the batch may obsolete the change of an
	// earlier one.
	for _, c := range t.changes {
		m.ring.Append(c)
	}
	for _, w := range t.writes {
		m.ring.Forget(w.Old, w.New)
	}
	if t.dropped > 0 {
		m.compacted = m.removals[t.dropped-1]
		m.removals = slices.Clone(m.removals[t.dropped:])
	}
	m.removals = append(m.removals, t.removals...)
	for _, w := range t.bookmarkWrites {
		m.state.Bookmarks.Set(w.Name, w.New)
		if w.Old != nil {
			m.ring.Drop(w.Old.Revision)
		}
	}
}
