package pebble

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/internal/broker/store/value"
	"github.com/hawser-io/hawser/pkg/codec"
)

// view is the state after one commit, on disk. The engine shows a batch to readers before it is synced; a
// snapshot taken after the sync avoids that. Readers share a view; the last unref closes it.
type view struct {
	snapshot *engine.Snapshot
	failure  *failure
	holders  atomic.Int64 // number of references: the store and its readers
}

func newView(db *engine.DB, f *failure) *view {
	v := &view{snapshot: db.NewSnapshot(), failure: f}
	v.holders.Store(1)
	return v
}

func (v *view) unref() {
	if v == nil || v.holders.Add(-1) > 0 {
		return
	}
	// The engine waits here for a running change of the manifest.
	if err := v.failure.attempt(v.snapshot.Close); err != nil {
		v.failure.set(err)
	}
}

// read calls look and then f with the current view. It makes the store read-only if f returns an unreadable
// error.
func (s *Store) read(ctx context.Context, look func(), f func(v *view) error) error {
	leave, err := s.calls.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	v := s.present(look)
	defer v.unref()
	if err = f(v); err != nil && (errors.As(err, new(unreadable)) || errors.As(err, new(*store.DamageError))) {
		s.failure.set(err)
	}
	return err
}

// unreadable is the error about a value that the disk cannot read, or that is damaged.
type unreadable struct{ error }

func (u unreadable) Unwrap() error { return u.error }

// unreadableAt wraps an error about the value at a key. It returns nil if err is nil.
func unreadableAt(key []byte, err error) error {
	if err == nil {
		return nil
	}
	if engine.IsCorruptionError(err) {
		err = value.Damage(key, err.Error())
	}
	return unreadable{fmt.Errorf("store: read %s: %w", value.PrintableKey(key), err)}
}

// get returns the body of a value in memory of its own. ok is false if there is none.
func get(r engine.Reader, key []byte) (body []byte, ok bool, err error) {
	v, closer, err := r.Get(key)
	if errors.Is(err, engine.ErrNotFound) {
		return nil, false, nil
	}
	if err == nil {
		body, err = value.Unseal(key, v)
		body = bytes.Clone(body)
		err = errors.Join(err, closer.Close())
	}
	return body, err == nil, unreadableAt(key, err)
}

// getMeta returns nil if there is no record.
func getMeta(r engine.Reader, k store.Key) (*store.Meta, error) {
	return metaAt(k, func(key []byte) ([]byte, bool, error) { return get(r, key) })
}

func metaAt(k store.Key, get func(key []byte) (body []byte, ok bool, err error)) (*store.Meta, error) {
	key := value.Key(value.Meta, k)
	body, ok, err := get(key)
	if err != nil || !ok {
		return nil, err
	}
	return value.DecodeMeta(k, key, body)
}

// finder is [get] for many keys of one kind. It reuses one iterator, which is several times faster, and fastest
// if the keys are in order.
type finder struct {
	r    engine.Reader
	kind byte
	it   *engine.Iterator // nil before the first call of get
}

// get returns the body of a value; it is valid until the next call.
func (f *finder) get(key []byte) (body []byte, ok bool, err error) {
	if f.it == nil {
		if f.it, err = f.r.NewIter(within([]byte{f.kind})); err != nil {
			return nil, false, unreadableAt(key, err)
		}
	}
	if !f.it.SeekGE(key) || !bytes.Equal(f.it.Key(), key) {
		return nil, false, unreadableAt(key, f.it.Error())
	}
	body, err = bodyAt(f.it)
	return body, err == nil, err
}

func (f *finder) meta(k store.Key) (*store.Meta, error) { return metaAt(k, f.get) }

// close must be called before its reader is closed.
func (f *finder) close() error {
	if f.it == nil {
		return nil
	}
	return unreadableAt([]byte{f.kind}, f.it.Close())
}

// bodyAt returns the body of the value at the position of an iterator.
func bodyAt(it *engine.Iterator) ([]byte, error) {
	v, err := it.ValueAndErr()
	if err == nil {
		v, err = value.Unseal(it.Key(), v)
	}
	return v, unreadableAt(it.Key(), err)
}

// within returns the range of the keys that start with lead.
func within(lead []byte) *engine.IterOptions {
	return &engine.IterOptions{LowerBound: lead, UpperBound: after(lead)}
}

// each calls f for each value in a range, in key order. Key and body are valid during the call only. Errors of
// f are returned unchanged.
func each(ctx context.Context, r engine.Reader, in *engine.IterOptions, f func(key, body []byte) error) (err error) {
	return eachStored(ctx, r, in, func(v value.Stored) error {
		body, err := value.Unseal(v.Key, v.Value)
		if err != nil {
			return unreadableAt(v.Key, err)
		}
		return f(v.Key, body)
	})
}

// eachStored is each with the values as they are stored.
func eachStored(ctx context.Context, r engine.Reader, in *engine.IterOptions, f func(value.Stored) error) (err error) {
	it, err := r.NewIter(in)
	if err != nil {
		return unreadableAt(in.LowerBound, err)
	}
	defer func() { err = cmp.Or(err, unreadableAt(in.LowerBound, it.Close())) }()
	for it.First(); it.Valid(); it.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return unreadableAt(it.Key(), err)
		}
		if err := f(value.Stored{Key: it.Key(), Value: v}); err != nil {
			return err
		}
	}
	return cmp.Or(unreadableAt(in.LowerBound, it.Error()), ctx.Err())
}

// Meta implements [store.Store].
func (s *Store) Meta(ctx context.Context, k store.Key) (store.Meta, error) {
	var m *store.Meta
	err := s.read(ctx, func() { m, _ = s.metas.get(k) }, func(v *view) (err error) {
		if m == nil {
			m, err = getMeta(v.snapshot, k)
		}
		if err == nil && m == nil {
			err = store.ErrNotFound
		}
		return err
	})
	if err != nil {
		return store.Meta{}, err
	}
	return *m, nil
}

// Get implements [store.Store]. It reads recent writes from memory.
func (s *Store) Get(ctx context.Context, k store.Key) (r store.Record, err error) {
	var m *store.Meta
	look := func() {
		m, _ = s.metas.get(k)
		r.Spec, _ = s.events.get(memindex.RecordPart{Key: k, Part: store.SpecPart})
		r.Status, _ = s.events.get(memindex.RecordPart{Key: k, Part: store.StatusPart})
	}
	err = s.read(ctx, look, func(v *view) error {
		if m == nil {
			m, err = getMeta(v.snapshot, k)
		}
		switch {
		case err != nil:
			return err
		case m == nil:
			return store.ErrNotFound
		}
		r.Meta = *m
		return errors.Join(v.payload(value.Spec, m, &r.Spec), v.payload(value.Status, m, &r.Status))
	})
	if err != nil {
		return store.Record{}, err
	}
	return r, nil
}

// payload reads a payload of m, unless it is cached or there is none.
func (v *view) payload(kind byte, m *store.Meta, event *[]byte) error {
	is := payloadOf(kind, m)
	if *event != nil || is == never {
		return nil
	}
	key := value.Key(kind, m.Key)
	body, ok, err := get(v.snapshot, key)
	if err == nil && !ok && is == always {
		err = value.Damage(key, "it is missing, but its record is there")
	}
	*event = body
	return err
}

// Scan implements [store.Store].
func (s *Store) Scan(ctx context.Context, scope store.Scope, f func(store.Meta) error) error {
	dt := scope.DataType
	return s.read(ctx, func() {}, func(v *view) error {
		if scope.Owner != "" && scope.Cluster == "" {
			return v.scanOwner(ctx, scope, f)
		}
		lead := prefix(value.Meta, dt.Group, dt.Version, dt.Resource)
		if scope.Cluster != "" {
			lead = prefix(value.Meta, dt.Group, dt.Version, dt.Resource, scope.Cluster)
		}
		return v.scan(ctx, within(lead), scope.Owner, f)
	})
}

// ScanAfter implements [store.Store].
func (s *Store) ScanAfter(ctx context.Context, scope store.Scope, id string, f func(store.Meta) error) error {
	k := store.Key{DataType: scope.DataType, Cluster: scope.Cluster, ResourceID: id}
	in := within(prefix(value.Meta, k.DataType.Group, k.DataType.Version, k.DataType.Resource, k.Cluster))
	in.LowerBound = append(value.Key(value.Meta, k), 0) // no id has a zero byte
	return s.read(ctx, func() {}, func(v *view) error { return v.scan(ctx, in, scope.Owner, f) })
}

// scan calls f for the records of an owner in a range; owner "" selects all.
func (v *view) scan(ctx context.Context, in *engine.IterOptions, owner string, f func(store.Meta) error) error {
	return each(ctx, v.snapshot, in, func(key, body []byte) error {
		m, err := value.ParseMeta(key, body)
		if err != nil || owner != "" && m.Owner != owner {
			return err
		}
		return f(*m)
	})
}

// scanOwner calls f for the records of one owner on all clusters.
func (v *view) scanOwner(ctx context.Context, scope store.Scope, f func(store.Meta) error) (err error) {
	dt := scope.DataType
	records := finder{r: v.snapshot, kind: value.Meta}
	defer func() { err = cmp.Or(err, records.close()) }()
	return each(ctx, v.snapshot, within(prefix(keyOwner, scope.Owner, dt.Group, dt.Version, dt.Resource)), func(key, _ []byte) error {
		k, err := parseOwnerKey(key)
		if err != nil {
			return err
		}
		m, err := records.meta(k)
		if err != nil {
			return err
		}
		if m == nil || m.Owner != scope.Owner {
			return value.Damage(key, "the index has an owner that the record has not")
		}
		return f(*m)
	})
}

// The changes in a scope have no index on disk, because each commit would have to write it. The tally in memory
// has their revisions, and the change feed leads from each revision to its record.

// Changes implements [store.Store]. A reader near the head is served from memory. A reader that is behind reads
// the feed on disk until it is near the head.
func (s *Store) Changes(ctx context.Context, after uint64, limit int) (out []store.Change, err error) {
	limit = max(limit, 1)
	var first, compacted uint64
	var wait <-chan struct{} // closed by the next commit
	look := func() {
		first, compacted, wait = s.ring.First, s.compacted, s.commits
		out = s.ring.ChangesFrom(max(after+1, first), limit)
	}
	for {
		err := s.read(ctx, look, func(v *view) error {
			switch {
			case after != 0 && after < compacted:
				return store.ErrCompacted
			case after+1 >= first:
				return nil
			}
			earlier, err := v.replay(ctx, after, first, limit)
			out = append(earlier, out...)
			return err
		})
		if err != nil {
			return nil, err
		}
		if len(out) > 0 {
			return out[:min(limit, len(out))], nil
		}
		if err := s.calls.Wait(ctx, wait); err != nil {
			return nil, err
		}
	}
}

var errLimit = errors.New("limit reached")

// replay reads the changes between two revisions, both excluded, from disk.
func (v *view) replay(ctx context.Context, after, before uint64, limit int) ([]store.Change, error) {
	var out []store.Change
	for _, kind := range []byte{value.Revision, value.Removal} {
		of, err := v.entries(ctx, &engine.IterOptions{LowerBound: value.NumberKey(kind, after+1), UpperBound: value.NumberKey(kind, before)}, limit)
		if err != nil {
			return nil, err
		}
		out = append(out, of...)
	}
	slices.SortFunc(out, func(a, b store.Change) int { return cmp.Compare(a.Revision, b.Revision) })
	return out[:min(limit, len(out))], nil
}

// entries reads the first entries of the feed in a range, at most limit.
func (v *view) entries(ctx context.Context, in *engine.IterOptions, limit int) (out []store.Change, err error) {
	err = each(ctx, v.snapshot, in, func(key, body []byte) error {
		c, err := value.DecodeChange(key, body)
		if err == nil && c.Part == store.BookmarkPart && !c.Gone {
			c, err = v.bookmarkAt(c)
		}
		if err != nil {
			return err
		}
		if out = append(out, c); len(out) == limit {
			return errLimit
		}
		return nil
	})
	if err != nil && !errors.Is(err, errLimit) {
		return nil, err
	}
	return out, nil
}

// bookmarkAt adds the value to the entry of a bookmark.
func (v *view) bookmarkAt(c store.Change) (store.Change, error) {
	key := value.BookmarkKey(c.Key.ResourceID)
	body, ok, err := get(v.snapshot, key)
	if err != nil {
		return c, err
	}
	if !ok {
		return c, value.Damage(key, fmt.Sprintf("it is missing, but the change feed has it at revision %d", c.Revision))
	}
	b, err := value.DecodeBookmark(key, body)
	if err == nil && b.Revision != c.Revision {
		err = value.Damage(key, fmt.Sprintf("it has revision %d, and %d in the change feed", b.Revision, c.Revision))
	}
	c.Value = b.Value
	return c, err
}

// Since implements [store.Store].
func (s *Store) Since(ctx context.Context, scope store.Scope, part store.Part, after uint64, f func(store.Meta) error) error {
	if err := store.CheckSince(scope, part); err != nil {
		return err
	}
	return s.eachAt(ctx, part, func() []uint64 { return s.state.Tally.Since(scope, part, after) }, func(m store.Meta) error {
		if scope.Cluster != "" && m.Cluster != scope.Cluster || scope.Owner != "" && m.Owner != scope.Owner {
			return nil
		}
		return f(m)
	})
}

// Tombstones implements [store.Store].
func (s *Store) Tombstones(ctx context.Context, dt codec.DataType, cluster string, f func(store.Meta) error) error {
	return s.eachAt(ctx, store.SpecPart, func() []uint64 { return s.state.Tally.Tombstones(dt, cluster) }, f)
}

// ConfirmedTombstones implements [store.Store].
func (s *Store) ConfirmedTombstones(ctx context.Context, dt codec.DataType, owner string, upTo uint64, limit int) ([]store.Key, error) {
	var keys []store.Key
	confirmedTombstones := func() []uint64 { return s.state.Tally.ConfirmedTombstones(dt, owner, upTo, max(limit, 1)) }
	err := s.eachAt(ctx, store.StatusPart, confirmedTombstones, func(m store.Meta) error {
		keys = append(keys, m.Key)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return keys, nil
}

// eachAt calls f for the records whose given part has one of these revisions.
func (s *Store) eachAt(ctx context.Context, part store.Part, collect func() []uint64, f func(store.Meta) error) error {
	var revisions []uint64
	return s.read(ctx, func() { revisions = collect() }, func(v *view) (err error) {
		feed, records := finder{r: v.snapshot, kind: value.Revision}, finder{r: v.snapshot, kind: value.Meta}
		defer func() { err = cmp.Or(err, feed.close(), records.close()) }()
		for _, revision := range revisions {
			if err := ctx.Err(); err != nil {
				return err
			}
			m, err := recordAt(&feed, &records, revision, part)
			if err == nil {
				err = f(*m)
			}
			if err != nil {
				return err
			}
		}
		return ctx.Err()
	})
}

// recordAt returns the record whose given part has this revision. The revision must be in the feed.
func recordAt(feed, records *finder, revision uint64, part store.Part) (*store.Meta, error) {
	key := value.NumberKey(value.Revision, revision)
	body, ok, err := feed.get(key)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, value.Damage(key, "it is missing, but there is a record with this revision")
	}
	c, err := value.DecodeChange(key, body)
	if err != nil {
		return nil, err
	}
	m, err := records.meta(c.Key)
	if err != nil {
		return nil, err
	}
	spec, status := store.Entries(m)
	if c.Part != part || part == store.SpecPart && spec != revision || part == store.StatusPart && status != revision {
		return nil, value.Damage(key, fmt.Sprintf("it refers to %s, which has the revisions %d and %d", value.PrintableKey(value.Key(value.Meta, c.Key)), spec, status))
	}
	return m, nil
}
