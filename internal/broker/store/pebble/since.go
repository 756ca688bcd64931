package pebble

import (
	"bytes"
	"context"
	"fmt"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// What changed in a scope is found without an index of its own on disk, which
// every commit would have to write: the tally in memory has the revisions, and
// the change feed leads from each to its record.

// Since implements [store.Store].
func (s *Store) Since(ctx context.Context, scope store.Scope, part store.Part, after uint64, f func(store.Meta) error) error {
	if err := store.CheckSince(scope, part); err != nil {
		return err
	}
	return s.eachAt(ctx, part, func() []uint64 { return s.tally.Since(scope, part, after) }, func(m store.Meta) error {
		if scope.Cluster != "" && m.Cluster != scope.Cluster || scope.Owner != "" && m.Owner != scope.Owner {
			return nil
		}
		return f(m)
	})
}

// Tombstones implements [store.Store].
func (s *Store) Tombstones(ctx context.Context, dt codec.DataType, cluster string, f func(store.Meta) error) error {
	return s.eachAt(ctx, store.SpecPart, func() []uint64 { return s.tally.Tombstones(dt, cluster) }, f)
}

// Graves implements [store.Store].
func (s *Store) Graves(ctx context.Context, dt codec.DataType, owner string, upTo uint64, limit int) ([]store.Key, error) {
	var keys []store.Key
	graves := func() []uint64 { return s.tally.Graves(dt, owner, upTo, max(limit, 1)) }
	err := s.eachAt(ctx, store.StatusPart, graves, func(m store.Meta) error {
		keys = append(keys, m.Key)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return keys, nil
}

// eachAt calls f for the records of which the given half has these revisions.
// collect is called with mu held, so that both are of one commit.
func (s *Store) eachAt(ctx context.Context, part store.Part, collect func() []uint64, f func(store.Meta) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	leave, err := s.enter()
	if err != nil {
		return err
	}
	defer leave()
	s.mu.RLock()
	revisions := collect()
	v := s.view
	v.holders.Add(1)
	s.mu.RUnlock()
	defer v.release()
	if len(revisions) == 0 {
		return nil
	}
	feed, err := s.openFeed(v)
	if err != nil {
		return err
	}
	err = feed.each(ctx, part, revisions, f)
	if cerr := feed.it.Close(); cerr != nil && err == nil {
		err = s.failure.broken([]byte{keyRevision}, cerr)
	}
	return err
}

// feedReader looks revisions up in the feed of a view.
type feedReader struct {
	s  *Store
	v  *view
	it *engine.Iterator
}

func (s *Store) openFeed(v *view) (*feedReader, error) {
	lead := []byte{keyRevision}
	it, err := v.snapshot.NewIter(&engine.IterOptions{LowerBound: lead, UpperBound: after(lead)})
	if err != nil {
		return nil, s.failure.broken(lead, err)
	}
	return &feedReader{s, v, it}, nil
}

func (r *feedReader) each(ctx context.Context, part store.Part, revisions []uint64, f func(store.Meta) error) error {
	for _, revision := range revisions {
		if err := ctx.Err(); err != nil {
			return err
		}
		m, err := r.record(revision, part)
		if err != nil {
			return err
		}
		if err := f(*m); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// record returns the record of which one half has a revision. That it is in the
// feed is known.
func (r *feedReader) record(revision uint64, part store.Part) (*store.Meta, error) {
	key := numberKey(keyRevision, revision)
	c, err := r.change(key, revision)
	if err != nil {
		return nil, r.s.failure.broken(key, err)
	}
	m, err := getMeta(r.v.snapshot, r.s.failure, c.Key)
	if err != nil {
		return nil, err
	}
	spec, status := store.Entries(m)
	if c.Part != part || part == store.SpecPart && spec != revision || part == store.StatusPart && status != revision {
		return nil, r.s.failure.broken(key, damage(key, fmt.Sprintf("it leads to %s, which has the revisions %d and %d", printable(recordKey(keyMeta, c.Key)), spec, status)))
	}
	return m, nil
}

func (r *feedReader) change(key []byte, revision uint64) (store.Change, error) {
	if !r.it.SeekGE(key) || !bytes.Equal(r.it.Key(), key) {
		if err := r.it.Error(); err != nil {
			return store.Change{}, err
		}
		return store.Change{}, damage(key, "it is missing, but there is a record with this revision")
	}
	v, err := r.it.ValueAndErr()
	if err != nil {
		return store.Change{}, err
	}
	body, err := unseal(key, v)
	if err != nil {
		return store.Change{}, err
	}
	c, err := decodeChange(revision, body)
	if err != nil {
		return store.Change{}, damage(key, err.Error())
	}
	return c, nil
}
