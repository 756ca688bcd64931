package mem

import (
	"cmp"
	"context"
	"slices"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Scan implements [store.Store].
func (s *Store) Scan(ctx context.Context, scope store.Scope, f func(store.Meta) error) error {
	return s.report(ctx, func() []*store.Meta { return s.data.scan(scope) }, f)
}

// ScanAfter implements [store.Store].
func (s *Store) ScanAfter(ctx context.Context, scope store.Scope, id string, f func(store.Meta) error) error {
	return s.report(ctx, func() []*store.Meta {
		return slices.DeleteFunc(s.data.scan(scope), func(m *store.Meta) bool { return m.ResourceID <= id })
	}, f)
}

// report calls f for each result of collect. These metas are never modified.
func (s *Store) report(ctx context.Context, collect func() []*store.Meta, f func(store.Meta) error) error {
	metas, err := s.snapshot(collect)
	if err != nil {
		return err
	}
	defer s.scans.Done()
	for _, m := range metas {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := f(*m); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// snapshot calls collect with the lock held. When the caller is done it must call scans.Done.
func (s *Store) snapshot(collect func() []*store.Meta) ([]*store.Meta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, store.ErrClosed
	}
	s.scans.Add(1)
	return collect(), nil
}

// scan returns the metas in scope, in key order.
func (d *data) scan(scope store.Scope) []*store.Meta {
	clusters := []string{scope.Cluster}
	if scope.Cluster == "" {
		clusters = clusters[:0]
		for p := range d.clusters {
			if p.DataType == scope.DataType {
				clusters = append(clusters, p.Cluster)
			}
		}
		slices.Sort(clusters)
	}
	var out []*store.Meta
	for _, c := range clusters {
		p := d.clusters[memindex.ClusterKey{DataType: scope.DataType, Cluster: c}]
		if p == nil {
			continue
		}
		from := len(out)
		for _, r := range p.records {
			if scope.Owner == "" || r.meta.Owner == scope.Owner {
				out = append(out, r.meta)
			}
		}
		slices.SortFunc(out[from:], func(a, b *store.Meta) int { return cmp.Compare(a.ResourceID, b.ResourceID) })
	}
	return out
}

// at returns the metas in scope of the records whose given part changed at these revisions.
func (d *data) at(revisions []uint64, scope store.Scope) []*store.Meta {
	var out []*store.Meta
	for _, r := range revisions {
		m := d.record(d.feed[r].Key).meta
		if (scope.Cluster == "" || m.Cluster == scope.Cluster) && (scope.Owner == "" || m.Owner == scope.Owner) {
			out = append(out, m)
		}
	}
	return out
}

// Since implements [store.Store].
func (s *Store) Since(ctx context.Context, scope store.Scope, part store.Part, after uint64, f func(store.Meta) error) error {
	if err := store.CheckSince(scope, part); err != nil {
		return err
	}
	return s.report(ctx, func() []*store.Meta { return s.data.at(s.data.state.Tally.Since(scope, part, after), scope) }, f)
}

// Tombstones implements [store.Store].
func (s *Store) Tombstones(ctx context.Context, dt codec.DataType, cluster string, f func(store.Meta) error) error {
	return s.report(ctx, func() []*store.Meta { return s.data.at(s.data.state.Tally.Tombstones(dt, cluster), store.Scope{}) }, f)
}

// ConfirmedTombstones implements [store.Store].
func (s *Store) ConfirmedTombstones(ctx context.Context, dt codec.DataType, owner string, upTo uint64, limit int) ([]store.Key, error) {
	var keys []store.Key
	err := s.report(ctx, func() []*store.Meta {
		return s.data.at(s.data.state.Tally.ConfirmedTombstones(dt, owner, upTo, max(limit, 1)), store.Scope{})
	}, func(m store.Meta) error {
		keys = append(keys, m.Key)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return keys, nil
}
