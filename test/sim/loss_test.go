package sim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// This file relaxes the expectations of the oracle when the needed information is lost permanently.

// backInTime records that a source, or the broker, has an older state of the works whose ids begin with prefix.
// Older versions of their objects may come back.
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

// sourceForgets records that a new core of hub-source starts without the events that the previous one received.
// After the broker's store went back, no other copy of them exists. A status in flight may have reached the
// hub, and an older one may follow it.
func (o *oracle) sourceForgets() {
	if o.forgot {
		o.showOlder("hub-")
	}
}

// older records that a hub that had a work went back in time. Older versions of the work may come back, from
// any event in flight.
func (o *oracle) older(w *workv1.ManifestWork) {
	t := o.clusters[w.Namespace]
	t.timeless[string(w.UID)] = true
	for epoch := range o.w.hub.epoch {
		t.timeless[fmt.Sprintf("%s#%d", w.UID, epoch+1)] = true
	}
}

// backOnHub records that a restored hub has a work again, in its state at the time of the backup.
func (o *oracle) backOnHub(w *workv1.ManifestWork) {
	id := string(w.UID)
	deleting := w.DeletionTimestamp != nil
	o.gone[id], o.dead[id], o.ended[id], o.confirmed[id] = deleting, deleting, false, false
	o.mustStay[id] = deleting && orphans(w.Spec.DeleteOption)
	o.older(w)
}

// missingOnHub records that a restored hub lacks a work that it had.
func (o *oracle) missingOnHub(w *workv1.ManifestWork) {
	o.torn(w)
}

// left records that a work left the hub. If its cluster was served at that time, an eviction may begin. The
// eviction may continue when the cluster is no longer served.
func (o *oracle) left(w *workv1.ManifestWork) {
	if o.w.source.selected[w.Namespace] {
		o.evictable[string(w.UID)] = true
	} else {
		o.unknown(w.Namespace, string(w.UID))
	}
}

// servedAgain records that a cluster is served again.
func (o *oracle) servedAgain(clusterName string) {
	for id := range o.clusters[clusterName].wanted {
		o.evictable[id] = o.w.hub.byID(id) == nil
	}
}

// missingEverywhere reports whether a hub lost a work that a cluster has, and the broker has no record of it.
// The broker lost its store, or the cluster was released. An OCM agent keeps such a work. A Hawser agent keeps
// it while any work of the cluster is refused: until then the hub is not synced.
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

// evictsNothing reports whether the state directory of a cluster's agent is full. The agent may then lose what
// it holds, so it evicts nothing until that is over (docs/operations/README.md). Everything else continues.
func (o *oracle) evictsNothing(clusterName string) bool {
	return slices.ContainsFunc(o.w.agents, func(a *agentNode) bool { return a.name == clusterName && a.dir != nil && a.dir.full })
}

// sharedLeft reports whether a shared object may exist although no live work has it. A work with
// the Orphan option leaves it, and a work that is not evicted yet.
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

// withoutAgain reports whether a work went back in time to a version without an object. That version is not sent
// to an agent whose state directory went back as far.
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

// waitsForSync reports whether a cluster may keep a later version of a hub's work than the hub has. The hub went
// back, and the broker lost its store, so its record does not show that the older spec replaces that version.
// The cluster gets the older spec when the hub is synced, which a refused work on the cluster delays.
func (o *oracle) waitsForSync(clusterName, id string) bool {
	if !o.forgot || o.w.hub.epoch == 0 || !o.refused(clusterName) {
		return false
	}
	r := o.record(clusterName, id)
	return r != nil && r.Owner == hubName && r.State == store.Live && !r.SpecSupersedes && o.w.versionOn(clusterName, r) > r.Version
}

// waitForSync returns the works on a cluster that wait for a sync.
func (o *oracle) waitForSync(clusterName string) map[string]bool {
	ids := map[string]bool{}
	for _, w := range o.w.hub.works {
		if id := string(w.UID); w.Namespace == clusterName && o.waitsForSync(clusterName, id) {
			ids[id] = true
		}
	}
	return ids
}

// versionOn returns the version of a record's work that a cluster has, 0 if it has none.
func (w *world) versionOn(clusterName string, r *store.Record) int64 {
	if clusterName == w.ocmAgent.name {
		if held := w.ocmAgent.works[r.ResourceID]; held != nil {
			return held.version
		}
		return 0
	}
	applied := w.fakes[clusterName].Look(appliedwork.Ref(appliedwork.Name(hubHash, r.Name)))
	if applied == nil || applied.GetAnnotations()[appliedwork.AnnotationWorkID] != r.ResourceID {
		return 0
	}
	version, err := strconv.ParseInt(applied.GetAnnotations()[appliedwork.AnnotationVersion], 10, 64)
	if err != nil {
		panic(err)
	}
	return version
}

// refused reports whether the hub has an undelivered work on a cluster.
func (o *oracle) refused(clusterName string) bool {
	for _, w := range o.w.hub.works {
		if w.Namespace == clusterName && !isDelivered(w) {
			return true
		}
	}
	return false
}

// torn records that a work left the hub without the finalizer: the finalizer was removed, or the hub was
// restored. The broker never receives the events of this work that it had not received by then.
func (o *oracle) torn(w *workv1.ManifestWork) {
	id := string(w.UID)
	o.missing[id] = true
	if o.w.stateless != nil { // its deletion may be withheld, and only an operator ends that
		o.keeps[w.Namespace], o.clusters[w.Namespace].sharedMayStay = true, true
	}
	o.left(w)
	o.mustStay[id] = o.mustStay[id] && o.orphansThere(store.Key{DataType: codec.ManifestBundles, Cluster: w.Namespace, ResourceID: id})
}

// overtook records that the deletion of a work has no higher version than the spec that an OCM agent holds from
// before a hub restore. Such an agent uses only the version of a deletion. The broker cannot send it the last
// spec first: the agent may have the deletion already, or the store was lost.
func (o *oracle) overtook(id string) { o.mustStay[id] = false }

// forgetOrphans drops expectations about works that became Orphan. After a loss of the store, or a release of
// the cluster, only an agent that received that spec knows of it. The agent forgets it with its process. If the
// older store has the earlier spec, the release leaves the work to the agent, which evicts it.
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

// broughtBack records that the broker's store is lost. An older store may have returned long-deleted works to
// the OCM agent. After the loss no component knows of their deletion.
func (o *oracle) broughtBack() {
	for id, w := range o.clusters[o.w.ocmAgent.name].wanted {
		if w.live && strings.HasPrefix(id, "hub-") && o.w.hub.byID(id) == nil {
			o.missing[id] = true
			o.unknown(o.w.ocmAgent.name, root(w.epoch))
		}
	}
}

// unknown records the deletion of a work that only its cluster still knows. A release ends what source and
// broker know of the works of a cluster. OCM agents keep such a work until an operator cleans up. Hawser agents
// evict it when the cluster is served again.
func (o *oracle) unknown(clusterName, epoch string) {
	if clusterName == o.w.ocmAgent.name || o.refused(clusterName) {
		o.mayStay[epoch] = true
		o.clusters[clusterName].sharedMayStay = true
	}
}

// deletedAfterLoss records a deletion in a store that went back. The last spec in that store decides about the
// objects. It may be older than the spec of the cluster.
func (o *oracle) deletedAfterLoss(op *store.Op, after *store.Meta) {
	if !o.forgot || op.Kind != store.PutSpec || after == nil || after.State == store.Live {
		return
	}
	orphan := o.orphansThere(op.Key)
	switch {
	case after.State == store.Tombstone && len(op.Event) > 0:
	case after.State == store.Tombstone && orphan:
		// It was Orphan in the copy of the store, and is no longer: its objects stay.
		if w := o.clusters[op.Key.Cluster].wanted[op.Key.ResourceID]; w != nil {
			o.mayStay[root(w.epoch)] = true
			o.clusters[op.Key.Cluster].sharedMayStay = true
		}
	default:
		// Either no known cluster has the work. Or the store went back to a spec from before the work was Orphan, and
		// the source has no spec any more. So the fate of the objects is unknown.
		for epoch := range o.mustStay {
			if epoch == op.Key.ResourceID || strings.HasPrefix(epoch, op.Key.ResourceID+"#") {
				o.mustStay[epoch] = false
			}
		}
	}
}
