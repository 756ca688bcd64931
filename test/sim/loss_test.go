package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// Here is what the oracle asks less for, because what would be needed is lost for
// good.

// backInTime hears that a source, or the broker, has an older state of the works
// whose ids begin so: of what they were made for so far, older versions may come
// back.
func (o *oracle) backInTime(prefix string) {
	for _, t := range slices.AppendSeq(slices.Clone(o.former), maps.Values(o.clusters)) {
		for key := range t.highest {
			if _, epoch, _ := strings.Cut(key, " "); strings.HasPrefix(epoch, prefix) {
				t.timeless[epoch] = true
			}
		}
		for key := range t.seen {
			if generation, _, _ := strings.Cut(key, " "); strings.HasPrefix(generation, prefix) {
				t.timeless[generation] = true
			}
		}
	}
	o.showOlder(prefix)
}

func (o *oracle) showOlder(prefix string) {
	for id := range o.shown {
		if strings.HasPrefix(id, prefix) {
			o.shown[id] = 0
		}
	}
}

// sourceForgets hears that a core of the hub source begins without what the one before had
// heard. Once the broker's store went back nobody else knows that: a status that was under
// way then may have come to the hub, and an older one may follow it.
func (o *oracle) sourceForgets() {
	if o.forgot {
		o.showOlder("hub-")
	}
}

// older hears that a hub went back in time and of a work that it had before: of
// that, older versions may come back, whatever of it is still under way.
func (o *oracle) older(w *workv1.ManifestWork) {
	t := o.clusters[w.Namespace]
	t.timeless[string(w.UID)] = true
	for epoch := range o.w.hub.epoch {
		t.timeless[fmt.Sprintf("%s#%d", w.UID, epoch+1)] = true
	}
}

// backOnHub hears that a hub was restored and has a work again as it was.
func (o *oracle) backOnHub(w *workv1.ManifestWork) {
	id := string(w.UID)
	deleting := w.DeletionTimestamp != nil
	o.gone[id], o.dead[id], o.ended[id], o.confirmed[id] = deleting, deleting, false, false
	o.mustStay[id] = deleting && orphans(w.Spec.DeleteOption)
	o.older(w)
}

// missingOnHub hears that a hub was restored and lacks a work that it had.
func (o *oracle) missingOnHub(w *workv1.ManifestWork) {
	o.torn(w)
}

// left hears that a work left the hub. Where its cluster was served then, an eviction may
// begin, and go on when it no longer is.
func (o *oracle) left(w *workv1.ManifestWork) {
	if o.w.source.selected[w.Namespace] {
		o.evictable[string(w.UID)] = true
	} else {
		o.unknown(w.Namespace, string(w.UID))
	}
}

// servedAgain hears that a cluster is served again.
func (o *oracle) servedAgain(clusterName string) {
	for id := range o.clusters[clusterName].wanted {
		o.evictable[id] = o.w.hub.byID(id) == nil
	}
}

// missingEverywhere reports whether a hub lost a work that a cluster has, and the
// broker has no record of it either, because it lost its store or the cluster was
// released. A stock agent keeps it, and ours as long as a work of the cluster is
// refused: until then the hub does not count as compared.
func (o *oracle) missingEverywhere(clusterName, id string) bool {
	if !o.isHeldNowhere(clusterName, id) {
		return false
	}
	o.unknown(clusterName, id)
	return o.w.stateless != nil || clusterName == o.w.ocmAgent.name || o.refused(clusterName) || o.evictsNothing(clusterName)
}

func (o *oracle) isHeldNowhere(clusterName, id string) bool {
	return o.missing[id] && o.record(clusterName, id) == nil
}

// evictsNothing reports whether the state directory of a cluster's agent is full.
// What the agent holds may not outlive it then, so until that is over it evicts
// nothing (docs/operations.md); everything else it does all the same.
func (o *oracle) evictsNothing(clusterName string) bool {
	return slices.ContainsFunc(o.w.agents, func(a *agentNode) bool { return a.name == clusterName && a.dir != nil && a.dir.full })
}

// sharedLeft reports whether an object of several works may be there although no
// live work has it: of a work that was Orphan, or that is not evicted yet.
func (o *oracle) sharedLeft(clusterName string) bool {
	t := o.clusters[clusterName]
	if t.sharedMayStay || !o.evictsNothing(clusterName) {
		return t.sharedMayStay
	}
	for id := range t.wanted {
		if o.isHeldNowhere(clusterName, id) {
			return true
		}
	}
	return false
}

// withoutAgain reports whether a work went back in time and is without an object
// since. That is not sent to an agent whose state directory went back as far.
func (o *oracle) withoutAgain(where string, t *truth, id, object string) bool {
	r := o.record(where, id)
	if !t.timeless[t.wanted[id].epoch] || r == nil || r.State != store.Live {
		return false
	}
	e, err := codec.Unmarshal(r.Spec)
	if err != nil {
		panic(err)
	}
	spec, err := manifestwork.DecodeSpec(e)
	if err != nil {
		panic(err)
	}
	return objectsOf(spec.Work.Spec.Workload.Manifests)[object] == nil
}

// refused reports whether the hub has a work on a cluster that is not delivered.
func (o *oracle) refused(clusterName string) bool {
	for _, w := range o.w.hub.works {
		if w.Namespace == clusterName && !isDelivered(w) {
			return true
		}
	}
	return false
}

// torn hears that a work left the hub without a finalizer, somebody took it off, or
// the hub was restored. What the broker was not told of it by then it never hears.
func (o *oracle) torn(w *workv1.ManifestWork) {
	id := string(w.UID)
	o.missing[id] = true
	if o.w.stateless != nil { // it may be withheld, and only a person ends that
		o.keeps[w.Namespace], o.clusters[w.Namespace].sharedMayStay = true, true
	}
	o.left(w)
	o.mustStay[id] = o.mustStay[id] && o.orphansThere(store.Key{DataType: codec.ManifestBundles, Cluster: w.Namespace, ResourceID: id})
}

// overtook hears that a restored hub gave a deletion no higher version than that of a spec
// that a stock agent has from before. Such an agent takes nothing from a deletion but its
// version, and the broker cannot tell it the last spec first: it may have the deletion
// already, or the broker's store was lost.
func (o *oracle) overtook(id string) { o.mustStay[id] = false }

// forgetOrphans: that a work which left its hub became Orphan, only an agent that
// received it so knows after a loss of the broker's store, or the release of its
// cluster, and may forget it with its process. Where the older store has the work as
// it was before that, the release leaves it to the agent, which evicts it.
func (o *oracle) forgetOrphans() {
	for id := range o.mustStay {
		if !o.missing[id] && !o.dropped[id] {
			continue
		}
		known := false
		for _, t := range o.clusters {
			w := t.wanted[id]
			known = known || w != nil && w.orphan
		}
		o.mustStay[id] = o.mustStay[id] && (known || !o.forgot && !o.dropped[id])
	}
}

// broughtBack hears that the broker's store is lost. What an older store had brought back to
// the stock agent, and the hub has deleted for long, nobody knows then.
func (o *oracle) broughtBack() {
	for id, w := range o.clusters[o.w.ocmAgent.name].wanted {
		if w.live && strings.HasPrefix(id, "hub-") && o.w.hub.byID(id) == nil {
			o.missing[id] = true
			o.unknown(o.w.ocmAgent.name, root(w.epoch))
		}
	}
}

// unknown hears that a work is deleted of which nobody but its cluster knows any
// more. A release is the end of what source and broker know of the works of a
// cluster: stock agents keep such a work until somebody cleans up; ours evict it
// when the cluster is served again.
func (o *oracle) unknown(clusterName, epoch string) {
	if clusterName == o.w.ocmAgent.name || o.refused(clusterName) {
		o.mayStay[epoch] = true
		o.clusters[clusterName].sharedMayStay = true
	}
}

// deletedAfterLoss hears that a deletion is in a store that went back. What is to become of
// the objects says the last spec in the store, which may be older than that of the cluster.
func (o *oracle) deletedAfterLoss(op *store.Op, after *store.Meta) {
	if !o.forgot || op.Kind != store.PutSpec || after == nil || after.State == store.Live {
		return
	}
	orphan := o.orphansThere(op.Key)
	switch {
	case after.State == store.Tombstone && len(op.Event) > 0:
	case after.State == store.Tombstone && orphan:
		// It was Orphan when the store was copied, and is not since: its objects stay.
		if w := o.clusters[op.Key.Cluster].wanted[op.Key.ResourceID]; w != nil {
			o.mayStay[root(w.epoch)] = true
			o.clusters[op.Key.Cluster].sharedMayStay = true
		}
	default:
		// As far as anybody knows no cluster has the work, or the spec that the store
		// went back to is from before it was Orphan, and its source has none any more:
		// so nobody knows what is to become of its objects.
		for epoch := range o.mustStay {
			if epoch == op.Key.ResourceID || strings.HasPrefix(epoch, op.Key.ResourceID+"#") {
				o.mustStay[epoch] = false
			}
		}
	}
}
