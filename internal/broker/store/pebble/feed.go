package pebble

import (
	"context"
	"errors"
	"fmt"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// What changed in a scope is found without an index of its own on disk, which
// every commit would have to write: the tally in memory has the revisions, and
// the change feed leads from each to its record.

// Changes implements [store.Store]. A reader near the head is served from
// memory; one that is behind reads the feed on disk until it is near.
func (s *Store) Changes(ctx context.Context, after uint64, limit int) ([]store.Change, error) {
	limit = max(limit, 1)
	for {
		out, wait, err := s.poll(ctx, after, limit)
		if err != nil || len(out) > 0 {
			return out, err
		}
		select {
		case <-wait:
		case <-s.closing:
			return nil, store.ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// poll returns what there is; with nothing, wait is closed when there is more.
func (s *Store) poll(ctx context.Context, after uint64, limit int) (out []store.Change, wait <-chan struct{}, err error) {
	var tail []store.Change
	var first uint64
	look := func() {
		first, wait = s.ring.First, s.commits
		tail = s.ring.From(max(after+1, first), limit)
	}
	err = s.read(ctx, look, func(v *view) (err error) {
		if after+1 < first {
			out, err = v.replay(ctx, after, first, limit)
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if out == nil {
		return tail, wait, nil
	}
	out = append(out, tail...)
	return out[:min(limit, len(out))], wait, nil
}

var errLimit = errors.New("limit reached")

// replay reads the changes between two revisions, both excluded, from disk.
func (v *view) replay(ctx context.Context, after, before uint64, limit int) ([]store.Change, error) {
	var out []store.Change
	in := &engine.IterOptions{LowerBound: numberKey(keyRevision, after+1), UpperBound: numberKey(keyRevision, before)}
	err := each(ctx, v.snapshot, in, func(key, body []byte) error {
		c, err := parseChange(key, body)
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
func (s *Store) eachAt(ctx context.Context, part store.Part, collect func() []uint64, f func(store.Meta) error) error {
	var revisions []uint64
	return s.read(ctx, func() { revisions = collect() }, func(v *view) error {
		feed, records := finder{r: v.snapshot, kind: keyRevision}, finder{r: v.snapshot, kind: keyMeta}
		err := func() error {
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
		}()
		if cerr := errors.Join(feed.close(), records.close()); err == nil {
			err = cerr
		}
		return err
	})
}

// recordAt returns the record of which one half has a revision. That it is in
// the feed is known.
func recordAt(feed, records *finder, revision uint64, part store.Part) (*store.Meta, error) {
	key := numberKey(keyRevision, revision)
	body, ok, err := feed.get(key)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, damage(key, "it is missing, but there is a record with this revision")
	}
	c, err := parseChange(key, body)
	if err != nil {
		return nil, err
	}
	m, err := records.meta(c.Key)
	if err != nil {
		return nil, err
	}
	spec, status := store.Entries(m)
	if c.Part != part || part == store.SpecPart && spec != revision || part == store.StatusPart && status != revision {
		return nil, damage(key, fmt.Sprintf("it leads to %s, which has the revisions %d and %d", printable(recordKey(keyMeta, c.Key)), spec, status))
	}
	return m, nil
}
