package pebble

import (
	"context"
	"errors"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// Changes implements [store.Store]. A reader near the head is served from
// memory; one that is behind reads the index of revisions until it is near.
func (s *Store) Changes(ctx context.Context, after uint64, limit int) ([]store.Change, error) {
	limit = max(limit, 1)
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
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
	leave, err := s.enter()
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	s.mu.RLock()
	first := s.ring.first
	tail := s.ring.from(max(after+1, first), limit)
	v := s.view
	v.holders.Add(1)
	wait = s.commits
	s.mu.RUnlock()
	defer v.release()
	if after+1 >= first {
		return tail, wait, nil
	}
	out, err = s.replay(ctx, v, after, first, limit)
	if err != nil {
		return nil, nil, err
	}
	out = append(out, tail...)
	return out[:min(limit, len(out))], wait, nil
}

var errLimit = errors.New("limit reached")

// replay reads the changes between two revisions, both excluded, from disk.
func (s *Store) replay(ctx context.Context, v *view, after, before uint64, limit int) ([]store.Change, error) {
	var out []store.Change
	sp := span{numberKey(keyRevision, after+1), numberKey(keyRevision, before)}
	err := eachFrom(ctx, v.snapshot, s.failure, sp, func(key, body []byte) error {
		revision, err := parseNumberKey(key)
		if err != nil {
			return s.failure.broken(key, err)
		}
		c, err := decodeChange(revision, body)
		if err != nil {
			return s.failure.broken(key, damage(key, err.Error()))
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
