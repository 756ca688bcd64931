package storetest

import (
	"context"
	"fmt"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Bind binds a cluster uid to a cluster name, as a broker does for an agent that subscribes.
func Bind(ctx context.Context, s store.Committer, dt codec.DataType, cluster, uid string) error {
	return commitBinding(ctx, s, store.Op{Kind: store.BindCluster, Key: store.Key{DataType: dt, Cluster: cluster}, UID: uid})
}

// Unbind removes the binding of a cluster name.
func Unbind(ctx context.Context, s store.Committer, dt codec.DataType, cluster string) error {
	return commitBinding(ctx, s, store.Op{Kind: store.UnbindCluster, Key: store.Key{DataType: dt, Cluster: cluster}})
}

func commitBinding(ctx context.Context, s store.Committer, op store.Op) error {
	outcomes, err := s.Commit(ctx, []store.Op{op})
	if err != nil {
		return err
	}
	if r := outcomes[0].Result; r != store.Accepted && r != store.Unchanged && r != store.Ignored {
		return fmt.Errorf("bind %s: result %d %s", op.Key.Cluster, r, outcomes[0].Detail)
	}
	return nil
}
