package sim

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/hubsource/core"
	"github.com/hawser-io/hawser/internal/workmetrics"
	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/codec"
)

// check compares hub, broker and clusters after settle. It checks I1, I3 and I4, and that nothing is pending.
func (w *world) check() {
	if w.broken != nil {
		return
	}
	if w.stateless == nil {
		w.checkRecords()
	}
	for _, c := range clusters {
		w.checkCluster(c, "I1")
	}
	w.checkCursor()
	w.checkHub()
	w.checkShop()
	w.checkRest()
	w.checkReplaced()
}

// live returns the works that the sources have, by record.
func (w *world) live() map[store.Key]*workv1.ManifestWork {
	want := map[store.Key]*workv1.ManifestWork{}
	add := func(o *workv1.ManifestWork) {
		want[store.Key{DataType: codec.ManifestBundles, Cluster: o.Namespace, ResourceID: string(o.UID)}] = o
	}
	for _, o := range w.hub.works {
		if w.source.selected[o.Namespace] && o.DeletionTimestamp == nil && (isDelivered(o) || reportsNoAgent(o)) {
			add(o)
		}
	}
	for _, s := range w.shop.works {
		if s.o.DeletionTimestamp == nil {
			add(s.o)
		}
	}
	return want
}

// checkRecords checks that the broker holds exactly the latest version of each work.
func (w *world) checkRecords() {
	want := w.live()
	err := w.store().Scan(context.Background(), store.Scope{DataType: codec.ManifestBundles}, func(m store.Meta) error {
		o := want[m.Key]
		delete(want, m.Key)
		switch {
		case m.State == store.ConfirmedTombstone:
		case m.State == store.Tombstone && w.oracle.mayWait(m.Cluster, m.ResourceID):
			if m.Queued != nil {
				delete(want, store.Key{DataType: m.DataType, Cluster: m.Cluster, ResourceID: m.Queued.ResourceID})
			}
			return nil
		case m.State == store.Tombstone:
			w.fail("I1", "the deletion of work %s is not confirmed", m.ResourceID)
		case o == nil:
			w.fail("I1", "the broker holds work %s, which its source does not have", m.ResourceID)
		case m.Version != o.Generation || !sameLabels(w, m.Key, o):
			w.fail("I1", "the broker holds version %d of work %s, its source %d with labels %v", m.Version, m.ResourceID, o.Generation, o.Labels)
		}
		if m.Queued != nil {
			w.fail("I1", "work %s waits for ever", m.Queued.ResourceID)
		}
		return nil
	})
	if err != nil {
		panic(err)
	}
	for k := range want {
		w.fail("I1", "the broker does not have work %s of cluster %s", k.ResourceID, k.Cluster)
	}
}

// reportsNoAgent reports whether the hub correctly shows that no agent ever connected for the cluster of a
// work.
func reportsNoAgent(o *workv1.ManifestWork) bool {
	d := meta.FindStatusCondition(o.Status.Conditions, core.ConditionDelivered)
	return o.Namespace == agentlessCluster && d != nil && d.Reason == core.ReasonAgentNeverConnected && d.ObservedGeneration == o.Generation
}

func sameLabels(w *world, k store.Key, o *workv1.ManifestWork) bool {
	r := w.oracle.record(k.Cluster, k.ResourceID)
	env, err := codec.ParseEnvelope(r.Spec)
	return err == nil && strings.Contains(env.RawMetadata, `"l":"`+o.Labels["l"]+`"`)
}

// checkCluster checks that a cluster holds exactly the objects of its works. A difference breaks
// the given invariant. If the hub does not serve the cluster, the objects of the hub's works are not checked.
func (w *world) checkCluster(name, invariant string) {
	want, waits := map[string]map[string]string{"bystander": {"mine": "yes"}}, w.oracle.waitForSync(name)
	for k, o := range w.live() {
		if k.Cluster == name && !waits[k.ResourceID] {
			maps.Copy(want, objectsOf(o.Spec.Workload.Manifests))
		}
	}
	got := map[string]map[string]string{}
	for _, ref := range w.fakes[name].Refs() {
		if ref.Resource != "configmaps" {
			continue
		}
		data := map[string]string{}
		raw, _ := w.fakes[name].Look(ref).Object["data"].(map[string]any)
		for k, v := range raw {
			data[k], _ = v.(string)
		}
		released := !w.source.selected[name] && (strings.HasPrefix(ref.Name, "hub-") || strings.HasPrefix(ref.Name, "shared-"))
		waiting := waits[root(data["work"])] || data["shared"] != "" && len(waits) > 0
		left := waiting || w.oracle.mayStay[root(data["work"])] || w.oracle.isOverQuota(root(data["work"])) || w.oracle.missingEverywhere(name, root(data["work"])) || data["shared"] != "" && (w.oracle.sharedLeft(name) || w.oracle.sharesOverQuota(name))
		if !released && !left || want[ref.Name] != nil {
			got[ref.Name] = data
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.fail(invariant, "objects on %s (-want +got):\n%s", name, diff)
	}
	for _, a := range w.agents {
		if a.name != name {
			continue
		}
		for k, o := range w.live() {
			if k.Cluster == name && w.stateless != nil {
				w.checkTag(a, o)
			} else if k.Cluster == name && !waits[k.ResourceID] {
				w.checkApplied(a, k, invariant)
			}
		}
	}
}

// checkApplied checks that the AppliedManifestWork records the present spec.
func (w *world) checkApplied(a *agentNode, k store.Key, invariant string) {
	r := w.oracle.record(k.Cluster, k.ResourceID)
	if r == nil {
		return // checkRecords reports it
	}
	applied := a.cluster.Look(appliedwork.Ref(appliedwork.Name(hubHash, r.Name)))
	if applied == nil {
		w.fail(invariant, "cluster %s has no AppliedManifestWork of %s", a.name, r.Name)
		return
	}
	notes := applied.GetAnnotations()
	if notes[appliedwork.AnnotationTag] != r.Tag.String() || notes[appliedwork.AnnotationWorkID] != r.ResourceID {
		w.fail(invariant, "cluster %s records %v of %s, the broker has tag %s of %s", a.name, notes, r.Name, r.Tag, r.ResourceID)
	}
}

// checkHub checks that the hub shows the last status of the cluster, about the present version, and that
// deleted works are gone.
func (w *world) checkHub() {
	for _, key := range w.hub.keys() {
		o := w.hub.works[key]
		if !w.source.selected[o.Namespace] {
			continue
		}
		if o.DeletionTimestamp != nil {
			if !w.oracle.mayWait(o.Namespace, string(o.UID)) {
				w.fail("I1", "work %s %s is still being deleted", key, o.UID)
			}
			continue
		}
		if reportsNoAgent(o) || w.oracle.waitsForSync(o.Namespace, string(o.UID)) {
			continue
		}
		d := meta.FindStatusCondition(o.Status.Conditions, core.ConditionDelivered)
		if d != nil && d.Status != metav1.ConditionTrue {
			r := w.shop.works[key]
			if w.isOverQuota(o, d) || w.reportsRefused(o, d) {
				continue
			}
			if d.Reason != core.ReasonNameConflict || d.ObservedGeneration != o.Generation || r == nil || o.Namespace != clusters[0] {
				w.fail("I1", "the hub shows of work %s (generation %d) %+v", key, o.Generation, d)
			}
			continue
		}
		w.checkStatus(key, o, o.Status, string(o.UID))
		if d == nil || d.ObservedGeneration != o.Generation {
			w.fail("I4", "the cluster has answered for generation %d of work %s, and Delivered is %+v", o.Generation, key, d)
		}
	}
}

func (w *world) checkShop() {
	for _, key := range w.shop.keys() {
		s := w.shop.works[key]
		if s.o.DeletionTimestamp != nil {
			w.fail("I1", "work %s of the shop is still being deleted", key)
			continue
		}
		w.checkStatus(key, s.o, s.status, string(s.o.UID))
	}
}

func (w *world) checkStatus(key string, o *workv1.ManifestWork, status workv1.ManifestWorkStatus, id string) {
	applied := meta.FindStatusCondition(status.Conditions, workv1.WorkApplied)
	if applied == nil || applied.Status != metav1.ConditionTrue || applied.ObservedGeneration != o.Generation {
		w.fail("I4", "work %s is at generation %d and applied, its source shows %+v", key, o.Generation, applied)
		return
	}
	all := w.oracle.reports[id]
	if len(all) == 0 || all[len(all)-1] != statusHash(status) {
		w.fail("I4", "the source of work %s does not show the latest report of the cluster", key)
	}
	if o.Namespace != w.ocmAgent.name && len(status.ResourceStatus.Manifests) != len(o.Spec.Workload.Manifests) {
		w.fail("I4", "work %s has %d manifests, its status is about %d", key, len(o.Spec.Workload.Manifests), len(status.ResourceStatus.Manifests))
	}
}

// checkRest checks that nothing is pending. One exception: an agent may have loaded a deletion from its state
// directory. That deletion stays until it is sent again. If the cluster was released, this happens when the
// cluster is served again.
func (w *world) checkRest() {
	if n := w.unsent(); n != 0 {
		w.fail("I5", "%v records are left in delivery queues", n)
	}
	if len(w.calls) != 0 {
		w.fail("I1", "%d publishes are never answered", len(w.calls))
	}
	s, counted := w.source.core.Stats(), workmetrics.Counts{}
	for _, o := range w.hub.works {
		var class workmetrics.ConditionStates
		counted.Move(&class, workmetrics.Of(o))
	}
	if s.Pending != 0 || s.InitialSync != 0 || s.Works != len(w.hub.works) || s.Census != counted {
		w.fail("I5", "the hub source keeps %+v for %d works: %v", s, len(w.hub.works), counted)
	}
	for _, a := range w.agents {
		live := 0
		for k := range w.live() {
			if k.Cluster == a.name {
				live++
			}
		}
		n := a.core.Counts()
		if n.ReportsDue != 0 || n.Deleting != 0 && w.source.selected[a.name] && !w.oracle.keeps[a.name] || n.Unusable != 0 || n.Live-n.Unconfirmed != live && !w.oracle.keeps[a.name] && !w.oracle.released[a.name] && !w.oracle.refused(a.name) {
			w.fail("I5", "the agent of %s keeps %+v for %d works", a.name, n, live)
		}
	}
	if w.stateless != nil {
		w.checkOCM()
		return
	}
	if live := slices.Collect(maps.Keys(w.ocmAgent.works)); !w.oracle.released[w.ocmAgent.name] {
		for _, id := range live {
			if w.oracle.record(w.ocmAgent.name, id) == nil && !w.oracle.missingEverywhere(w.ocmAgent.name, id) && !w.oracle.isOverQuota(id) {
				w.fail("I1", "the OCM agent still has work %s", id)
			}
		}
	}
}
