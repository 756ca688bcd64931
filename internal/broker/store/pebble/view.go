package pebble

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// view is the state after one commit, as it is on disk: Pebble shows a batch to
// readers before it is synced, a snapshot taken after the sync does not. Readers
// share it; the last one to let go retires it.
type view struct {
	snapshot *engine.Snapshot
	retired  *retired
	holders  atomic.Int64 // the store and its readers
}

func (v *view) release() {
	if v.holders.Add(-1) == 0 {
		v.retired.add(v.snapshot)
	}
}

// retired are snapshots that nobody reads any more. To close one takes a lock
// of the engine that a goroutine stopped by the guard may hold, so no reader
// does it, but the next write.
type retired struct {
	mu   sync.Mutex
	list []*engine.Snapshot
}

func (r *retired) add(s *engine.Snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, s)
}

func (r *retired) close() error {
	r.mu.Lock()
	list := r.list
	r.list = nil
	r.mu.Unlock()
	var errs []error
	for _, s := range list {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

func (s *Store) newView() *view {
	v := &view{snapshot: s.db.NewSnapshot(), retired: &s.retired}
	v.holders.Store(1)
	return v
}

// get returns the body of a value in memory of its own; ok is false when there
// is none. It turns the store read-only when the value cannot be read.
func get(r engine.Reader, f *failure, key []byte) (body []byte, ok bool, err error) {
	v, closer, err := r.Get(key)
	if errors.Is(err, engine.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, f.broken(key, err)
	}
	body, err = unseal(key, v)
	body = bytes.Clone(body)
	if cerr := closer.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, false, f.broken(key, err)
	}
	return body, true, nil
}

// getMeta returns nil when there is no record.
func getMeta(r engine.Reader, f *failure, k store.Key) (*store.Meta, error) {
	key := recordKey(keyMeta, k)
	body, ok, err := get(r, f, key)
	if err != nil || !ok {
		return nil, err
	}
	m, err := decodeMeta(k, body)
	if err != nil {
		return nil, f.broken(key, damage(key, err.Error()))
	}
	return m, nil
}

// Get implements [store.Store]. What was written last is not looked up on disk.
func (s *Store) Get(ctx context.Context, k store.Key) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	leave, err := s.enter()
	if err != nil {
		return store.Record{}, err
	}
	defer leave()
	s.mu.RLock()
	v := s.view
	v.holders.Add(1)
	m, _ := s.metas.get(k)
	spec, _ := s.events.get(half{k, store.SpecPart})
	status, _ := s.events.get(half{k, store.StatusPart})
	s.mu.RUnlock()
	defer v.release()
	if m == nil {
		if m, err = getMeta(v.snapshot, s.failure, k); err != nil {
			return store.Record{}, err
		}
	}
	if m == nil {
		return store.Record{}, store.ErrNotFound
	}
	r := store.Record{Meta: *m, Spec: spec, Status: status}
	if r.Spec == nil && m.State != store.Grave {
		if r.Spec, err = s.payload(v, recordKey(keySpec, k), m.State == store.Live); err != nil {
			return store.Record{}, err
		}
	}
	if r.Status == nil && m.StatusRevision != 0 {
		if r.Status, err = s.payload(v, recordKey(keyStatus, k), m.State != store.Grave); err != nil {
			return store.Record{}, err
		}
	}
	return r, nil
}

// payload reads one half of a record, nil when there is none.
func (s *Store) payload(v *view, key []byte, required bool) ([]byte, error) {
	body, ok, err := get(v.snapshot, s.failure, key)
	switch {
	case err != nil:
		return nil, err
	case !ok && required:
		return nil, s.failure.broken(key, damage(key, "it is missing, but its record is there"))
	default:
		return body, nil
	}
}

// Scan implements [store.Store].
func (s *Store) Scan(ctx context.Context, scope store.Scope, f func(store.Meta) error) error {
	v, done, err := s.read()
	if err != nil {
		return err
	}
	defer done()
	dt := scope.DataType
	if scope.Owner != "" && scope.Cluster == "" {
		return each(ctx, v.snapshot, s.failure, prefix(keyOwner, scope.Owner, dt.Group, dt.Version, dt.Resource), func(key, _ []byte) error {
			return s.owned(v, key, f)
		})
	}
	lead := prefix(keyMeta, dt.Group, dt.Version, dt.Resource)
	if scope.Cluster != "" {
		lead = prefix(keyMeta, dt.Group, dt.Version, dt.Resource, scope.Cluster)
	}
	return each(ctx, v.snapshot, s.failure, lead, func(key, body []byte) error {
		m, err := s.parseMeta(key, body)
		if err != nil || scope.Owner != "" && m.Owner != scope.Owner {
			return err
		}
		return f(*m)
	})
}

// owned calls f for the record of one entry of the owner index.
func (s *Store) owned(v *view, key []byte, f func(store.Meta) error) error {
	k, err := parseOwnerKey(key)
	if err != nil {
		return s.failure.broken(key, err)
	}
	m, err := getMeta(v.snapshot, s.failure, k)
	if err != nil {
		return err
	}
	if m == nil || string(ownerKey(m.Owner, k)) != string(key) {
		return s.failure.broken(key, damage(key, "the index has an owner that the record has not"))
	}
	return f(*m)
}

func (s *Store) parseMeta(key, body []byte) (*store.Meta, error) {
	k, err := parseRecordKey(key)
	if err != nil {
		return nil, s.failure.broken(key, err)
	}
	m, err := decodeMeta(k, body)
	if err != nil {
		return nil, s.failure.broken(key, damage(key, err.Error()))
	}
	return m, nil
}

// each calls f for every value whose key starts with lead, in key order. Key
// and body are valid during the call only. The errors of f are returned as they
// are; those of reading turn the store read-only.
func each(ctx context.Context, r engine.Reader, fail *failure, lead []byte, f func(key, body []byte) error) error {
	return eachFrom(ctx, r, fail, span{lead, after(lead)}, f)
}

// span is a range of storage keys, the upper bound excluded.
type span struct{ from, to []byte }

func eachFrom(ctx context.Context, r engine.Reader, fail *failure, sp span, f func(key, body []byte) error) (err error) {
	it, err := r.NewIter(&engine.IterOptions{LowerBound: sp.from, UpperBound: sp.to})
	if err != nil {
		return fail.broken(sp.from, err)
	}
	defer func() {
		if cerr := it.Close(); cerr != nil && err == nil {
			err = fail.broken(sp.from, cerr)
		}
	}()
	for it.First(); it.Valid(); it.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return fail.broken(it.Key(), err)
		}
		body, err := unseal(it.Key(), v)
		if err != nil {
			return fail.broken(it.Key(), err)
		}
		if err := f(it.Key(), body); err != nil {
			return err
		}
	}
	if err := it.Error(); err != nil {
		return fail.broken(sp.from, err)
	}
	return ctx.Err()
}

// place is what is known of one cluster and data type, besides its records.
type place struct {
	subscribed bool
	uid        string
}

// where is a cluster and a data type.
type where struct {
	dt      codec.DataType
	cluster string
}
