package sim

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/hubsource/core"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
)

// limit sets another quota in the broker, for the hub or for each cluster. The quota applies to later commits,
// and stays when faults end. Works of the shop count for their cluster. The shop itself has no quota: its model
// treats a rejected update as a violation.
func limit(w *world, a, b uint32) string {
	q := &quota.Quota{}
	n := int64(1 + b%5)
	switch a % 4 {
	case 0:
		if w.broker.quota == nil {
			return ""
		}
		w.broker.quota = nil
		return "none"
	case 1:
		q.Source.Works = n
	case 2:
		q.Source.Clusters = 1 + n%2
	case 3:
		q.Cluster.Works = 1 + n%3
	}
	w.broker.quota = q
	return fmt.Sprintf("%+v of the hub, %+v of each cluster", q.Source, q.Cluster)
}

// limited sets the present quota in an op of the hub, at its commit.
func (n *node) limited(op *store.Op) {
	if op.Kind == store.PutSpec && op.Owner == hubName {
		op.Quota = n.quota
	}
}

// isOverQuota reports whether the hub correctly shows the present generation of a work as over quota.
func (w *world) isOverQuota(o *workv1.ManifestWork, d *metav1.Condition) bool {
	return d.Reason == core.ReasonQuotaExceeded && d.ObservedGeneration == o.Generation && w.isFull(o.Namespace)
}

// isFull reports whether the hub may have no other work on a cluster.
func (w *world) isFull(clusterName string) bool {
	if w.broker.quota == nil {
		return false
	}
	var ofHub, ofCluster used
	clusters := map[string]bool{}
	err := w.broker.gate.Scan(context.Background(), store.Scope{DataType: codec.ManifestBundles}, func(m store.Meta) error {
		if m.Owner == hubName {
			ofHub.add(m)
			clusters[m.Cluster] = clusters[m.Cluster] || m.State != store.ConfirmedTombstone
		}
		if m.Cluster == clusterName {
			ofCluster.add(m)
		}
		return nil
	})
	if err != nil {
		panic(err)
	}
	used := int64(0)
	for _, has := range clusters {
		if has {
			used++
		}
	}
	q := w.broker.quota
	return ofHub.fills(q.Source) || ofCluster.fills(q.Cluster) || q.Source.Clusters > 0 && used >= q.Source.Clusters && !clusters[clusterName]
}

// used is the usage of one source or one cluster.
type used struct{ works, records int64 }

func (u *used) add(m store.Meta) {
	u.records++
	if m.State != store.ConfirmedTombstone {
		u.works++
	}
}

func (u *used) fills(l identity.Limits) bool {
	return l.Works > 0 && (u.works >= l.Works || u.records >= quota.RecordsPerWork*l.Works)
}

// isOverQuota reports whether the hub has a work that it shows as over quota. Objects of the work on its
// cluster, from before the broker lost it, stay until there is capacity.
func (o *oracle) isOverQuota(id string) bool {
	w := o.w.hub.byID(id)
	return w != nil && showsOverQuota(w)
}

// sharesOverQuota reports whether there is such a work on a cluster. Shared objects may belong to it.
func (o *oracle) sharesOverQuota(clusterName string) bool {
	for _, w := range o.w.hub.works {
		if w.Namespace == clusterName && showsOverQuota(w) {
			return true
		}
	}
	return false
}

func showsOverQuota(w *workv1.ManifestWork) bool {
	d := meta.FindStatusCondition(w.Status.Conditions, core.ConditionDelivered)
	return d != nil && d.Reason == core.ReasonQuotaExceeded
}
