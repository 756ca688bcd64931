package sim

import (
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/hubsource/core"
)

// In this file the oracle judges the works on a hub.

// statusOnHub judges a status that was written to the hub.
func (o *oracle) statusOnHub(work *workv1.ManifestWork) {
	id, hash := string(work.UID), statusHash(work.Status)
	if d := meta.FindStatusCondition(work.Status.Conditions, core.ConditionDelivered); d != nil && d.Status == metav1.ConditionTrue && d.ObservedGeneration > o.answered[id] {
		o.w.fail("I4", "the hub shows generation %d of work %s as delivered, its cluster has answered for %d", d.ObservedGeneration, id, o.answered[id])
	}
	if hash == statusHash(workv1.ManifestWorkStatus{}) && len(work.Status.ResourceStatus.Manifests) == 0 {
		return // only Delivered
	}
	o.appliedOnHub(work)
	all := o.reports[id]
	for i := o.shown[id]; i < len(all); i++ {
		if all[i] == hash {
			o.shown[id] = i
			return
		}
	}
	if slices.Contains(all, hash) {
		o.w.fail("I2", "the hub shows a status of work %s that is older than its previous status", id)
		return
	}
	o.w.fail("I4", "the hub shows a status of work %s that no agent reported", id)
}

// appliedOnHub judges that the hub shows the present generation of a work as applied. Then its cluster, or the
// one that had the name before, must have made the objects. If a restored hub uses a generation again, a report
// may be about the earlier one.
func (o *oracle) appliedOnHub(work *workv1.ManifestWork) {
	c := meta.FindStatusCondition(work.Status.Conditions, workv1.WorkApplied)
	if c == nil || c.Status != metav1.ConditionTrue || c.ObservedGeneration != work.Generation || work.DeletionTimestamp != nil {
		return
	}
	if epoch, has := o.w.hub.generations[generation{work.UID, work.Generation}]; has && epoch != o.w.hub.epoch {
		return
	}
	for _, data := range objectsOf(work.Spec.Workload.Manifests) {
		made := func(t *truth) bool { return t.made[data["work"]+" "+data["version"]] }
		if data["work"] != "" && !made(o.clusters[work.Namespace]) && !slices.ContainsFunc(o.former, made) {
			o.w.fail("I4", "the hub shows generation %d of work %s as applied, and no cluster made version %s of %s", work.Generation, work.UID, data["version"], data["work"])
			return
		}
	}
}

// endOnHub judges that a work left the hub: no object of it may be left on its cluster. Exceptions:
//
//   - After a loss of the broker's store, works whose first status was still in flight are unknown. It is also
//     unknown which of two clusters had the name.
//   - If another work took over the name, the objects belong to that work, which prunes what it lacks. A
//     restored hub may have the former work again.
//   - A restored store may have a work again of which no object was left, until its source has compared.
func (o *oracle) endOnHub(work *workv1.ManifestWork) {
	o.ended[string(work.UID)] = true
	if o.forwarded[string(work.UID)] {
		return
	}
	if o.forgot && (o.confirmed[string(work.UID)] || len(work.Status.ResourceStatus.Manifests) == 0 || o.overtaken(work) || o.usurped[work.Namespace]) {
		return
	}
	for name, object := range o.clusters[work.Namespace].objects {
		if root(object.data["work"]) == string(work.UID) && !o.mayStay[string(work.UID)] {
			o.w.fail("I4", "work %s left the hub, and its object %s is still on cluster %s", work.UID, name, work.Namespace)
		}
	}
}

// unmanned tracks the works of a cluster for which no agent ever subscribed. No cluster holds them, so each
// deletion ends. The exception is a work that may have reached an agent unnoticed. It had the finalizer before
// the source met a broker with an unknown store, and another store may have delivered it.
type unmanned struct{ started, elsewhere map[string]bool }

// begun records that a work got the finalizer. before: the request is from another epoch of the core.
func (u *unmanned) begun(work *workv1.ManifestWork, before bool) {
	u.started[string(work.UID)] = true
	u.elsewhere[string(work.UID)] = u.elsewhere[string(work.UID)] || before
}

// storeUnknown records that the source met a broker with an unknown store.
func (u *unmanned) storeUnknown() { maps.Copy(u.elsewhere, u.started) }

// lostAnswer records that hub-source did not get the answer to its write of the finalizer. The finalizer is
// known to be its own if the work had none when this leader read the hub position.
func (u *unmanned) lostAnswer(work *workv1.ManifestWork, located int) {
	if rv, err := strconv.Atoi(work.ResourceVersion); located == 0 || err != nil || rv <= located {
		u.elsewhere[string(work.UID)] = true
	}
}

// mayWait reports whether the deletion of a work may wait for an agent that never connects.
func (u *unmanned) mayWait(clusterName, id string) bool {
	return clusterName == agentlessCluster && u.elsewhere[id]
}

// overtaken reports whether, after a loss of the broker's store, the other source was first to publish a work
// of that name. That work replaces the one on the cluster. The owner of the replaced work is then unknown.
func (o *oracle) overtaken(work *workv1.ManifestWork) bool {
	s := o.w.shop.works[keyOf(work)]
	if s == nil {
		return false
	}
	// A deletion alone replaces nothing, unless the cluster had reported the work.
	r := o.record(work.Namespace, string(s.o.UID))
	return r != nil && (r.State != store.Tombstone || r.Sequence != "")
}
