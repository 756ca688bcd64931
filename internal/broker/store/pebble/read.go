package pebble

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/resident"
)

// view is the state after one commit, as it is on disk: the engine shows a batch
// to readers before it is synced, a snapshot taken after the sync does not.
// Readers share it; the last one to let go closes it.
type view struct {
	snapshot *engine.Snapshot
	failure  *failure
	holders  atomic.Int64 // the store and its readers
}

func (s *Store) newView() *view {
	v := &view{snapshot: s.db.NewSnapshot(), failure: s.failure}
	v.holders.Store(1)
	return v
}

func (v *view) unref() {
	if v.holders.Add(-1) > 0 {
		return
	}
	// The engine waits for its change of the manifest, if one is under way.
	if err := v.failure.attempt(v.snapshot.Close); err != nil {
		v.failure.set(err)
	}
}

// enter begins a call; leave ends it.
func (s *Store) enter(ctx context.Context) (leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// TryRLock fails only when Close waits or has finished.
	if !s.calls.TryRLock() {
		return nil, store.ErrClosed
	}
	if s.isClosing() {
		s.calls.RUnlock()
		return nil, store.ErrClosed
	}
	return s.calls.RUnlock, nil
}

// read calls f with the present view. Before, it calls look with mu held: what
// that sees is of the same commit. It turns the store read-only when f returns
// that something cannot be read.
func (s *Store) read(ctx context.Context, look func(), f func(v *view) error) error {
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	s.mu.RLock()
	if look != nil {
		look()
	}
	v := s.view
	v.holders.Add(1)
	s.mu.RUnlock()
	defer v.unref()
	return s.failure.heed(f(v))
}

// unreadable is the error about a value that the disk does not give back, or
// that is not what was written.
type unreadable struct {
	key string // printable
	err error
}

func (u *unreadable) Error() string { return "store: read " + u.key + ": " + u.err.Error() }

func (u *unreadable) Unwrap() error { return u.err }

func unreadableAt(key []byte, err error) error {
	if engine.IsCorruptionError(err) {
		err = &store.DamageError{Key: printable(key), What: err.Error()}
	}
	return &unreadable{key: printable(key), err: err}
}

// heed turns the store read-only when err says that something cannot be read. It
// returns err.
func (f *failure) heed(err error) error {
	if err == nil {
		return nil
	}
	var u *unreadable
	var d *store.DamageError
	if errors.As(err, &u) || errors.As(err, &d) {
		f.set(err)
	}
	return err
}

// get returns the body of a value in memory of its own; ok is false when there
// is none.
func get(r engine.Reader, key []byte) (body []byte, ok bool, err error) {
	v, closer, err := r.Get(key)
	if errors.Is(err, engine.ErrNotFound) {
		return nil, false, nil
	}
	if err == nil {
		body, err = unseal(key, v)
		body = bytes.Clone(body)
		err = errors.Join(err, closer.Close())
	}
	if err != nil {
		return nil, false, unreadableAt(key, err)
	}
	return body, true, nil
}

// getMeta returns nil when there is no record.
func getMeta(r engine.Reader, k store.Key) (*store.Meta, error) {
	return metaAt(k, func(key []byte) ([]byte, bool, error) { return get(r, key) })
}

func metaAt(k store.Key, get func(key []byte) (body []byte, ok bool, err error)) (*store.Meta, error) {
	key := recordKey(keyMeta, k)
	body, ok, err := get(key)
	if err != nil || !ok {
		return nil, err
	}
	return metaOf(k, key, body)
}

// finder is [get] for many keys of one kind: an iterator that is made once finds
// them several times faster, and fastest in key order.
type finder struct {
	r    engine.Reader
	kind byte
	it   *engine.Iterator // nil before the first one
}

// get returns the body of a value; it is valid until the next call.
func (f *finder) get(key []byte) (body []byte, ok bool, err error) {
	if f.it == nil {
		if f.it, err = f.r.NewIter(within([]byte{f.kind})); err != nil {
			return nil, false, unreadableAt(key, err)
		}
	}
	if !f.it.SeekGE(key) || !bytes.Equal(f.it.Key(), key) {
		if err := f.it.Error(); err != nil {
			return nil, false, unreadableAt(key, err)
		}
		return nil, false, nil
	}
	if body, err = bodyAt(f.it); err != nil {
		return nil, false, err
	}
	return body, true, nil
}

func (f *finder) meta(k store.Key) (*store.Meta, error) { return metaAt(k, f.get) }

// close must be called before what is read is closed.
func (f *finder) close() error {
	if f.it == nil {
		return nil
	}
	if err := f.it.Close(); err != nil {
		return unreadableAt([]byte{f.kind}, err)
	}
	return nil
}

// bodyAt returns the body of the value at which an iterator is.
func bodyAt(it *engine.Iterator) ([]byte, error) {
	v, err := it.ValueAndErr()
	if err == nil {
		v, err = unseal(it.Key(), v)
	}
	if err != nil {
		return nil, unreadableAt(it.Key(), err)
	}
	return v, nil
}

// within is the range of the keys that start with lead.
func within(lead []byte) *engine.IterOptions {
	return &engine.IterOptions{LowerBound: lead, UpperBound: after(lead)}
}

// each calls f for every value in a range, in key order. Key and body are valid
// during the call only. The errors of f are returned as they are.
func each(ctx context.Context, r engine.Reader, in *engine.IterOptions, f func(key, body []byte) error) (err error) {
	it, err := r.NewIter(in)
	if err != nil {
		return unreadableAt(in.LowerBound, err)
	}
	defer func() {
		if cerr := it.Close(); cerr != nil && err == nil {
			err = unreadableAt(in.LowerBound, cerr)
		}
	}()
	for it.First(); it.Valid(); it.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		body, err := bodyAt(it)
		if err != nil {
			return err
		}
		if err := f(it.Key(), body); err != nil {
			return err
		}
	}
	if err := it.Error(); err != nil {
		return unreadableAt(in.LowerBound, err)
	}
	return ctx.Err()
}

// Get implements [store.Store]. What was written last is not looked up on disk.
func (s *Store) Get(ctx context.Context, k store.Key) (r store.Record, err error) {
	var m *store.Meta
	look := func() {
		m, _ = s.metas.get(k)
		r.Spec, _ = s.events.get(resident.Half{Key: k, Part: store.SpecPart})
		r.Status, _ = s.events.get(resident.Half{Key: k, Part: store.StatusPart})
	}
	err = s.read(ctx, look, func(v *view) error {
		if m == nil {
			if m, err = getMeta(v.snapshot, k); err != nil {
				return err
			}
		}
		if m == nil {
			return store.ErrNotFound
		}
		r.Meta = *m
		return errors.Join(v.payload(keySpec, m, &r.Spec), v.payload(keyStatus, m, &r.Status))
	})
	if err != nil {
		return store.Record{}, err
	}
	return r, nil
}

// payload reads a payload of m, unless it is known or there is none.
func (v *view) payload(kind byte, m *store.Meta, event *[]byte) error {
	is := payloadOf(kind, m)
	if *event != nil || is == never {
		return nil
	}
	key := recordKey(kind, m.Key)
	body, ok, err := get(v.snapshot, key)
	if err == nil && !ok && is == always {
		err = damage(key, "it is missing, but its record is there")
	}
	*event = body
	return err
}

// Scan implements [store.Store].
func (s *Store) Scan(ctx context.Context, scope store.Scope, f func(store.Meta) error) error {
	dt := scope.DataType
	return s.read(ctx, nil, func(v *view) error {
		if scope.Owner != "" && scope.Cluster == "" {
			return v.scanOwner(ctx, scope, f)
		}
		lead := prefix(keyMeta, dt.Group, dt.Version, dt.Resource)
		if scope.Cluster != "" {
			lead = prefix(keyMeta, dt.Group, dt.Version, dt.Resource, scope.Cluster)
		}
		return each(ctx, v.snapshot, within(lead), func(key, body []byte) error {
			m, err := parseMeta(key, body)
			if err != nil || scope.Owner != "" && m.Owner != scope.Owner {
				return err
			}
			return f(*m)
		})
	})
}

// scanOwner calls f for the records of one owner on all clusters.
func (v *view) scanOwner(ctx context.Context, scope store.Scope, f func(store.Meta) error) error {
	dt := scope.DataType
	records := finder{r: v.snapshot, kind: keyMeta}
	err := each(ctx, v.snapshot, within(prefix(keyOwner, scope.Owner, dt.Group, dt.Version, dt.Resource)), func(key, _ []byte) error {
		k, err := parseOwnerKey(key)
		if err != nil {
			return err
		}
		m, err := records.meta(k)
		if err != nil {
			return err
		}
		if m == nil || m.Owner != scope.Owner {
			return damage(key, "the index has an owner that the record has not")
		}
		return f(*m)
	})
	if cerr := records.close(); err == nil {
		err = cerr
	}
	return err
}
