package pebble

import (
	"context"
	"errors"
	"fmt"
	"slices"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Commit implements [store.Store].
func (s *Store) Commit(ctx context.Context, ops []store.Op) ([]store.Outcome, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	outcomes := make([]store.Outcome, len(ops))
	err := s.update(sizeOf(ops), func(b *engine.Batch) (func(), error) {
		t := s.transaction(b, len(ops))
		for i := range ops {
			o, err := t.do(&ops[i])
			if err != nil {
				s.failure.set(err)
				return nil, err
			}
			outcomes[i] = o
		}
		return t.apply, t.finish()
	})
	if err != nil {
		return nil, err
	}
	return outcomes, nil
}

// sizeOf estimates the batch of some ops, in bytes.
func sizeOf(ops []store.Op) int {
	const besides = 1 << 10 // keys, meta, indexes
	n := 0
	for i := range ops {
		n += len(ops[i].Event) + besides
	}
	return n
}

// write applies and syncs a batch and returns the view of what is durable then.
// It returns when that is done, or when the store fails: the engine may be
// stopped in the middle of it.
func (s *Store) write(b *engine.Batch) (*view, error) {
	type result struct {
		view *view
		err  error
	}
	done := make(chan result, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- result{nil, fmt.Errorf("%w: %v", errFatal, p)}
			}
		}()
		err := errors.Join(s.db.Apply(b, engine.Sync), b.Close(), s.retired.close())
		if err != nil || s.failure.get() != nil { // Apply returns nil after a fatal error too
			done <- result{nil, err}
			return
		}
		done <- result{s.newView(), nil}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			s.failure.set(r.err)
		}
		if r.view != nil {
			return r.view, nil
		}
	case <-s.failure.c:
	}
	return nil, s.failure.readOnly()
}

// publish makes a durable batch visible.
func (s *Store) publish(v *view, apply func()) {
	s.mu.Lock()
	before := s.view
	s.view = v
	head := s.head.Revision
	apply()
	if s.head.Revision != head {
		close(s.commits)
		s.commits = make(chan struct{})
	}
	s.mu.Unlock()
	before.release()
}

// transaction is a commit in the making: the state that its ops left so far,
// over that of the database. It implements [store.Reader].
type transaction struct {
	s     *Store
	batch *engine.Batch
	head  uint64

	metas   map[store.Key]*store.Meta // nil: removed
	names   map[named]string          // "": free
	behind  map[store.Key]string      // "": waits no more
	waiting map[store.Key][]byte      // nil: removed

	writes  []store.Write
	events  []payload
	changes []store.Change
	errs    []error
}

type named struct {
	where
	name string
}

// payload is what became of one half of a record.
type payload struct {
	half
	event []byte // nil: there is none any more
}

// transaction begins one of so many ops.
func (s *Store) transaction(b *engine.Batch, ops int) *transaction {
	return &transaction{
		s: s, batch: b, head: s.Head().Revision,
		metas: make(map[store.Key]*store.Meta), names: make(map[named]string),
		behind: make(map[store.Key]string), waiting: make(map[store.Key][]byte),
		writes: make([]store.Write, 0, ops), changes: make([]store.Change, 0, ops), events: make([]payload, 0, ops),
	}
}

// Meta implements [store.Reader].
func (t *transaction) Meta(k store.Key) (*store.Meta, error) {
	if m, ok := t.metas[k]; ok {
		return m, nil
	}
	if m, ok := t.s.metas.get(k); ok {
		return m, nil
	}
	m, err := getMeta(t.s.db, t.s.failure, k)
	if err == nil {
		t.metas[k] = m
	}
	return m, err
}

// Named implements [store.Reader].
func (t *transaction) Named(dt codec.DataType, cluster, name string) (string, bool, error) {
	n := named{where{dt, cluster}, name}
	if id, ok := t.names[n]; ok {
		return id, id != "", nil
	}
	body, ok, err := get(t.s.db, t.s.failure, nameKey(dt, cluster, name))
	if err == nil {
		t.names[n] = string(body)
	}
	return string(body), ok, err
}

// Behind implements [store.Reader].
func (t *transaction) Behind(k store.Key) (string, bool) {
	if id, ok := t.behind[k]; ok {
		return id, id != ""
	}
	// Only a commit writes the map, and this is the one.
	id, ok := t.s.behind[k]
	return id, ok
}

// Subscribed implements [store.Reader].
func (t *transaction) Subscribed(dt codec.DataType, cluster string) (string, bool) {
	return t.s.Subscribed(dt, cluster)
}

// do decides one op and puts the decision into the batch.
func (t *transaction) do(op *store.Op) (store.Outcome, error) {
	v, err := store.Look(t, t.head, op)
	if err != nil {
		return store.Outcome{}, err
	}
	d := store.Decide(v, op)
	waited, err := t.waited(d, op.Key)
	if err != nil {
		return store.Outcome{}, err
	}
	for i := range d.Writes {
		t.put(&d.Writes[i], op.Event, waited)
	}
	for i := range d.Changes {
		c := &d.Changes[i]
		t.head = c.Revision
		if !c.Gone {
			t.set(numberKey(keyRevision, c.Revision), encodeChange(c))
		}
	}
	t.writes = append(t.writes, d.Writes...)
	t.changes = append(t.changes, d.Changes...)
	return d.Outcome, nil
}

// waited returns the event that waits behind k, when the decision needs it.
func (t *transaction) waited(d store.Decision, k store.Key) ([]byte, error) {
	needed := false
	for _, w := range d.Writes {
		needed = needed || w.Spec == store.FromWaiting
	}
	if !needed {
		return nil, nil
	}
	if event, ok := t.waiting[k]; ok {
		return event, nil
	}
	body, _, err := get(t.s.db, t.s.failure, recordKey(keyWaiting, k))
	return body, err
}

func (t *transaction) set(key, body []byte) {
	t.errs = append(t.errs, set(t.batch, key, body))
}

func (t *transaction) delete(key []byte) {
	t.errs = append(t.errs, t.batch.Delete(key, nil))
}

// put writes one record and what finds it.
func (t *transaction) put(w *store.Write, event, waited []byte) {
	t.index(w)
	t.metas[w.Key] = w.New
	if w.New == nil {
		for _, kind := range []byte{keyMeta, keySpec, keyStatus} {
			t.delete(recordKey(kind, w.Key))
		}
		t.events = append(t.events, payload{half{w.Key, store.SpecPart}, nil}, payload{half{w.Key, store.StatusPart}, nil})
		t.payload(keyWaiting, w.Key, clearIf(w.Old.Waiting != nil), nil, nil)
		return
	}
	t.set(recordKey(keyMeta, w.Key), encodeMeta(w.New))
	t.payload(keySpec, w.Key, w.Spec, event, waited)
	t.payload(keyStatus, w.Key, w.Status, event, waited)
	t.payload(keyWaiting, w.Key, w.Waiting, event, waited)
}

func clearIf(there bool) store.Payload {
	if there {
		return store.Clear
	}
	return store.Keep
}

func (t *transaction) payload(kind byte, k store.Key, p store.Payload, event, waited []byte) {
	var body []byte
	switch p {
	case store.Keep:
		return
	case store.FromOp:
		body = event
	case store.FromWaiting:
		body = waited
	case store.Clear:
	}
	switch kind {
	case keySpec:
		t.events = append(t.events, payload{half{k, store.SpecPart}, body})
	case keyStatus:
		t.events = append(t.events, payload{half{k, store.StatusPart}, body})
	case keyWaiting:
		t.waiting[k] = body
	}
	if body == nil {
		t.delete(recordKey(kind, k))
		return
	}
	t.set(recordKey(kind, k), body)
}

// index keeps names, owners, revisions and what waits in step with a record.
func (t *transaction) index(w *store.Write) {
	at := where{w.Key.DataType, w.Key.Cluster}
	// Most writes keep the names, and then touch no index.
	held, holds := store.Holds(w.Old), store.Holds(w.New)
	for _, n := range held {
		if !slices.Contains(holds, n) {
			t.names[named{at, n}] = ""
			t.delete(nameKey(at.dt, at.cluster, n))
		}
	}
	for _, n := range holds {
		if !slices.Contains(held, n) {
			t.names[named{at, n}] = w.Key.ResourceID
			t.set(nameKey(at.dt, at.cluster, n), []byte(w.Key.ResourceID))
		}
	}
	if w.Old != nil && (w.New == nil || w.New.Owner != w.Old.Owner) {
		t.delete(ownerKey(w.Old.Owner, w.Key))
	}
	if w.New != nil && (w.Old == nil || w.New.Owner != w.Old.Owner) {
		t.set(ownerKey(w.New.Owner, w.Key), nil)
	}
	oldSpec, oldStatus := store.Entries(w.Old)
	spec, status := store.Entries(w.New)
	t.forget(oldSpec, spec)
	t.forget(oldStatus, status)
	moved := func(m *store.Meta, to string) {
		if id := store.WaitsBehind(m); id != "" {
			k := w.Key
			k.ResourceID = id
			t.behind[k] = to
		}
	}
	moved(w.Old, "")
	moved(w.New, w.Key.ResourceID)
}

// forget takes an entry out of the feed when another takes its place. Each was
// written once, but SingleDelete is not for us: a compaction that meets damage
// beside one panics.
func (t *transaction) forget(old, n uint64) {
	if old != 0 && old != n {
		t.delete(numberKey(keyRevision, old))
	}
}

// finish completes the batch.
func (t *transaction) finish() error {
	if len(t.changes) > 0 {
		t.set([]byte{keyHead}, encodeNumber(t.head))
	}
	return errors.Join(t.errs...)
}

// apply carries the commit over into memory; mu is held.
func (t *transaction) apply() {
	s := t.s
	s.head.Revision = t.head
	for _, w := range t.writes {
		s.tally.Count(w.Old, w.New)
		if w.New == nil {
			s.metas.remove(w.Key)
		} else {
			s.metas.put(w.Key, w.New)
		}
	}
	for _, p := range t.events {
		if p.event == nil {
			s.events.remove(p.half)
		} else {
			s.events.put(p.half, slices.Clip(p.event))
		}
	}
	for k, id := range t.behind {
		if id == "" {
			delete(s.behind, k)
		} else {
			s.behind[k] = id
		}
	}
	// In revision order: what a later op of the batch made obsolete must be in
	// the ring before it is marked.
	for _, c := range t.changes {
		s.ring.append(c)
	}
	for _, w := range t.writes {
		s.ring.forget(w.Old, w.New)
	}
}
