package pebble

import (
	"context"
	"fmt"

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
	seek := newSeeker(v.snapshot, s.failure)
	err = s.eachRecord(ctx, seek, part, revisions, f)
	if cerr := seek.close(); err == nil {
		err = cerr
	}
	return err
}

func (s *Store) eachRecord(ctx context.Context, seek *seeker, part store.Part, revisions []uint64, f func(store.Meta) error) error {
	for _, revision := range revisions {
		if err := ctx.Err(); err != nil {
			return err
		}
		m, err := s.recordAt(seek, revision, part)
		if err != nil {
			return err
		}
		if err := f(*m); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// recordAt returns the record of which one half has a revision. That it is in
// the feed is known.
func (s *Store) recordAt(seek *seeker, revision uint64, part store.Part) (*store.Meta, error) {
	key := numberKey(keyRevision, revision)
	body, ok, err := seek.get(key)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, s.failure.broken(key, damage(key, "it is missing, but there is a record with this revision"))
	}
	c, err := decodeChange(revision, body)
	if err != nil {
		return nil, s.failure.broken(key, damage(key, err.Error()))
	}
	m, err := seek.meta(c.Key)
	if err != nil {
		return nil, err
	}
	spec, status := store.Entries(m)
	if c.Part != part || part == store.SpecPart && spec != revision || part == store.StatusPart && status != revision {
		return nil, s.failure.broken(key, damage(key, fmt.Sprintf("it leads to %s, which has the revisions %d and %d", printable(recordKey(keyMeta, c.Key)), spec, status)))
	}
	return m, nil
}
