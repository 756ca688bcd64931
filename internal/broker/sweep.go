package broker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// sweepGraves bounds one sweep: what is left over is for the next one.
const sweepGraves = 16 << 10

// itself is the broker as a publisher.
var itself = identity.Identity{Role: identity.Operator, Name: "broker"}

// runSweeper removes, from time to time, graves whose sources have had long
// enough to see them.
func (b *Broker) runSweeper(ctx context.Context) error {
	t := time.NewTicker(b.cfg.Sweep)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if err := b.sweep(ctx); err != nil && ctx.Err() == nil {
			b.log.Error("removing old graves failed, the next sweep tries again", "error", err)
		}
	}
}

var errEnough = errors.New("enough for one sweep")

// sweep removes the graves that are older than the retention.
func (b *Broker) sweep(ctx context.Context) error {
	before := b.cfg.Now().Add(-b.cfg.Retention)
	graves := 0
	var ops []store.Op
	for _, d := range codec.DataTypes() {
		err := b.store.Scan(ctx, store.Scope{DataType: d}, func(m store.Meta) error {
			if m.State != store.Grave {
				return nil
			}
			graves++
			if m.Buried.Before(before) {
				// A later grave under the same key has a later status revision.
				ops = append(ops, store.Op{Kind: store.Acked, Key: m.Key, Owner: m.Owner, IfRevision: m.StatusRevision, At: b.cfg.Now()})
			}
			if len(ops) >= sweepGraves {
				return errEnough
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			return err
		}
	}
	for batch := range slices.Chunk(ops, jobOps) {
		_, err := b.commits.commit(ctx, itself, batch...)
		if transport.CodeOf(err) == transport.CodeOverloaded {
			return nil // there is more important work; the next sweep tries again
		}
		if err != nil {
			return err
		}
		b.metrics.graveRemoved.Add(float64(len(batch)))
		graves -= len(batch)
	}
	b.metrics.graves.Set(float64(graves))
	return nil
}
