package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

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
	err := w.store().Scan(context.Background(), store.Scope{DataType: codec.ManifestBundles}, func(m store.Meta) error {
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

// noQuota is noted when the quota ends after a script.
const noQuota = "> there is no quota any more"

// checkSynced ends the quota if works wait for a sync of the hub, and checks that they wait no longer.
func (w *world) checkSynced(order *rand.Rand) {
	waits := func(c string) bool { return len(w.oracle.waitForSync(c)) > 0 }
	if w.broken != nil || w.broker.quota == nil || !slices.ContainsFunc(clusters, waits) {
		return
	}
	w.note(noQuota)
	w.broker.quota = nil
	w.settleAll(order)
	w.check()
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

// TestSeeds_OverQuotaDelaysRollback plays a hub that goes back, and then a broker that loses its store while only
// one work fits into the quota. If that work is on a cluster with another one, the cluster keeps its later version
// until there is no quota any more.
func TestSeeds_OverQuotaDelaysRollback(t *testing.T) {
	list := []op{
		{"hub create", 428937603, 1800228518}, {"hub create", 2337607166, 1178168378}, {"hub create", 1130303531, 4255660645}, {"hub create", 116629983, 3437903939},
		{"settle", 0, 0}, {"hub burst", 952204611, 2542776149}, {"settle", 0, 0},
		{"quota", 1, 0}, {"hub goes back", 10, 0}, {"lose broker's store", 0, 0},
	}
	waited := 0
	for seed := range uint64(30) {
		r := brokered.play(t, seed, list)
		if r.broken != nil {
			t.Errorf("seed %d breaks %s\nthe operations:\n%s", seed, r.broken, printList(list, r))
		}
		if slices.ContainsFunc(r.lines, func(line string) bool { return strings.Contains(line, noQuota) }) {
			waited++
		}
	}
	if waited == 0 {
		t.Error("no work waits for capacity, so the test checks nothing")
	}
}
