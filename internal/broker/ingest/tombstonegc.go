package ingest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// collectTombstones is the maximum number of confirmed tombstones that one sweep removes; the next sweep
// continues.
const collectTombstones = 16 << 10

// itself is the identity of the broker for its own writes.
var itself = identity.Identity{Role: identity.Operator, Name: "broker"}

// tombstoneGC removes confirmed tombstones in the background, so that no call and no stream waits for it. It
// removes those that their sources have acknowledged, one batch per source in turn. In each sweep it also
// removes those whose retention time is over.
type tombstoneGC struct {
	cfg     *settings.Config
	commits *committer
	metrics *metrics

	mu     sync.Mutex
	upTo   map[store.Scope]uint64 // by owner
	scopes []store.Scope          // keys of upTo, the next one first
	wake   taskgroup.Bell
}

// seen records that a source has acknowledged the statuses of its works up to a revision.
func (g *tombstoneGC) seen(owner store.Scope, revision uint64) {
	g.mu.Lock()
	if _, waits := g.upTo[owner]; !waits {
		g.scopes = append(g.scopes, owner)
	}
	g.upTo[owner] = max(g.upTo[owner], revision)
	g.mu.Unlock()
	g.wake.Ring()
}

// pop returns the next source and its acknowledged revision.
func (g *tombstoneGC) pop() (owner store.Scope, revision uint64, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.scopes) == 0 {
		return owner, 0, false
	}
	owner = g.scopes[0]
	g.scopes = g.scopes[1:]
	revision = g.upTo[owner]
	delete(g.upTo, owner)
	return owner, revision, true
}

// run removes confirmed tombstones until ctx ends.
func (g *tombstoneGC) run(ctx context.Context) error {
	sweep, last := time.NewTicker(g.cfg.TombstoneGC), g.cfg.Now().Round(0)
	defer sweep.Stop()
	for ctx.Err() == nil {
		select {
		case <-sweep.C:
			// Scenario:
			//   t1: a machine resumes with a clock that is a year ahead.
			//   t2: a sweep begins.
			//   t3: the clock is corrected.
			// Without this, the sweep would remove all confirmed tombstones. So per sweep the clock advances by at most one
			// interval.
			now := g.cfg.Now().Round(0)
			err := g.collect(ctx, now.Add(-g.cfg.Retention-max(0, now.Sub(last)-g.cfg.TombstoneGC)))
			if last = now; err != nil && ctx.Err() == nil && transport.CodeOf(err) != transport.CodeOverloaded {
				g.cfg.Log.Error("removing old confirmed tombstones failed; the next collection retries", "error", err)
			}
		case <-g.wake:
		case <-ctx.Done():
		}
		for !g.removeSeen(ctx) {
			taskgroup.Sleep(ctx, request.RetryAfter)
		}
	}
	return nil
}

// removeSeen removes the confirmed tombstones that sources have acknowledged. It returns false if some are left
// for a retry.
func (g *tombstoneGC) removeSeen(ctx context.Context) bool {
	for ctx.Err() == nil {
		owner, revision, ok := g.pop()
		if !ok {
			return true
		}
		more, err := g.removeBatch(ctx, owner, revision)
		if more {
			g.seen(owner, revision)
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		// A later ack of the source, or a sweep, removes the tombstones.
		if transport.CodeOf(err) != transport.CodeOverloaded {
			g.cfg.Log.Error("removing acknowledged confirmed tombstones failed; the next ack or collection retries", "source", owner.Owner, "error", err)
		}
		return false
	}
	return true
}

// removeBatch removes a batch of confirmed tombstones that a source has acknowledged. more is true if some are
// left, or if the error is temporary.
func (g *tombstoneGC) removeBatch(ctx context.Context, owner store.Scope, revision uint64) (more bool, err error) {
	keys, err := g.cfg.Store.ConfirmedTombstones(ctx, owner.DataType, owner.Owner, revision, partOps)
	if err != nil || len(keys) == 0 {
		return false, err
	}
	ops := make([]store.Op, 0, len(keys))
	for _, k := range keys {
		ops = append(ops, store.Op{Kind: store.CollectTombstone, Key: k, Owner: owner.Owner, IfRevision: revision, At: g.cfg.Now()})
	}
	outcomes, err := g.commits.commit(ctx, identity.Identity{Role: identity.Source, Name: owner.Owner}, nil, ops...)
	if err != nil {
		return transport.CodeOf(err) == transport.CodeOverloaded, err
	}
	removed := 0
	for _, v := range outcomes {
		if v.Result == store.Accepted {
			removed++
		}
	}
	g.metrics.collected.WithLabelValues(collectedByAck).Add(float64(removed))
	return len(keys) == partOps && removed > 0, nil
}

var errEnough = errors.New("enough for one sweep")

// collect removes the confirmed tombstones from before a time. If the broker is overloaded, the next sweep
// tries again.
func (g *tombstoneGC) collect(ctx context.Context, before time.Time) error {
	count := 0
	var ops []store.Op
	for _, d := range codec.DataTypes() {
		err := g.cfg.Store.Scan(ctx, store.Scope{DataType: d}, func(m store.Meta) error {
			if m.State != store.ConfirmedTombstone {
				return nil
			}
			count++
			if m.ConfirmedAt.Before(before) {
				// A later confirmed tombstone under the same key has a later status revision.
				ops = append(ops, store.Op{Kind: store.CollectTombstone, Key: m.Key, Owner: m.Owner, IfRevision: m.StatusRevision, At: g.cfg.Now()})
			}
			if len(ops) >= collectTombstones {
				return errEnough
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			return err
		}
	}
	if len(ops) > 0 {
		outcomes, err := g.commits.commit(ctx, itself, nil, ops...)
		g.metrics.collected.WithLabelValues(collectedByAge).Add(float64(len(outcomes)))
		if err != nil {
			return err
		}
	}
	g.metrics.confirmedTombstones.Set(float64(count - len(ops)))
	return nil
}
