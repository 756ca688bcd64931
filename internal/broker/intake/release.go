package intake

import (
	"context"

	"github.com/hawser-io/hawser/internal/broker/call"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Release drops all records of the source on one cluster, without a word to the cluster.
// Repeating it does no harm.
func (i *Intake) Release(ctx context.Context, e *call.Event) (r transport.Receipt, err error) {
	owner, cluster := e.Env.Source, e.Env.Cluster
	if cluster == "" {
		return r, call.Missing(codec.ExtClusterName)
	}
	for _, d := range codec.DataTypes() {
		if err := store.CheckPlace(d, cluster); err != nil {
			return r, call.Invalid(codec.ExtClusterName, "the released cluster has an impossible name", "name it as in its works")
		}
	}
	f, void, err := i.Fences.guard(e)
	if err != nil {
		return r, err
	}
	// First of all what the source said of the cluster before counts no longer, whether it
	// has arrived yet or not: what vanishes from the store is not its word that it does not
	// exist.
	if err := i.beginRelease(e, f); err != nil {
		return r, err
	}
	// What the source published before may still be queued: a publish whose answer it did
	// not wait for would be left behind. Commits of one party keep their order, so an empty
	// one says that it is no longer.
	if _, err := i.commits.commit(ctx, e.From, void); err != nil {
		return r, call.Store(err)
	}
	var ops []store.Op
	for _, d := range codec.DataTypes() {
		err := i.store.Scan(ctx, store.Scope{DataType: d, Cluster: cluster, Owner: owner}, func(m store.Meta) error {
			ops = append(ops, store.Op{Kind: store.Drop, Key: m.Key, Owner: owner, At: i.now()})
			return nil
		})
		if err != nil {
			return r, call.Store(err)
		}
	}
	if len(ops) == 0 {
		r.Outcome = codec.OutcomeIgnored
		return r, nil
	}
	if _, err := i.commits.commit(ctx, e.From, void, ops...); err != nil {
		return r, call.Store(err)
	}
	r.Outcome = codec.OutcomeAccepted
	return r, nil
}

// beginRelease ends the earlier subscriptions of the source, and what it said of the cluster.
func (i *Intake) beginRelease(e *call.Event, f *Fence) error {
	tell := func() {}
	revoke := func() { tell = i.vouchers.Release(e.Env.Source, e.Env.Cluster) }
	if f == nil {
		revoke()
	} else {
		i.Fences.endBefore(f)
		if err := f.release(e.Env.Cluster, e.Env.Order, revoke); err != nil {
			return err
		}
	}
	tell()
	return nil
}
