package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
)

// ocmAgent is a small model of OCM's work agent. It orders specs by version, and lists its works after each
// subscribe. It forgets a deleted work once its last report was accepted. The applied objects outlive the
// process.
type ocmAgent struct {
	w       *world
	name    string
	cluster *clustertest.Fake
	link    *link

	// confused: the hub went back in time and used a generation again while the agent may have been disconnected.
	// Its list contains only versions. So an operator that restores a hub restarts the OCM agents.
	confused bool

	process  int
	works    map[string]*ocmAgentWork // by id
	busy     map[string]bool          // a report is under way
	sequence codec.Sequencer

	applied map[string]*appliedWork // by work name; on the cluster
}

type ocmAgentWork struct {
	manifestwork.Ref
	source   string
	version  int64
	deleting bool
	spec     *workv1.ManifestWorkSpec // nil of a deletion that came alone
	dirty    bool                     // there is something to do on the cluster
	removed  bool                     // deleting, and nothing is left
	status   *workv1.ManifestWorkStatus
	unsent   bool
	sendAt   time.Time
}

type appliedWork struct {
	id      string
	objects []string
}

func newOCMAgent(w *world, name string) *ocmAgent {
	a := &ocmAgent{w: w, name: name, cluster: w.newCluster(name), applied: map[string]*appliedWork{}}
	a.start()
	a.link = newLink(w, identity.Identity{Role: identity.Agent, Name: name}, a)
	a.link.truth = w.oracle.clusters[name]
	return a
}

func (a *ocmAgent) start() {
	a.process++
	a.works, a.busy, a.sequence = map[string]*ocmAgentWork{}, map[string]bool{}, codec.Sequencer{}
}

func (a *ocmAgent) restart() {
	a.process++
	if a.link.conn != nil {
		a.link.drop(unavailable("the process ended"))
	}
	a.w.pass(startTime)
	a.start()
}

// replace replaces the agent's cluster by an empty one.
func (a *ocmAgent) replace() {
	a.cluster, a.applied = a.w.newCluster(a.name), map[string]*appliedWork{}
	a.restart()
	a.link.truth = a.w.oracle.clusters[a.name]
}

// Hello implements session.Handler. It returns an empty Hello.
func (a *ocmAgent) Hello() transport.Hello { return transport.Hello{} }

// Subscribed implements session.Handler.
func (a *ocmAgent) Subscribed(context.Context, transport.Accepted) ([]codec.Event, error) {
	list := []codec.ResourceVersion{}
	for _, id := range slices.Sorted(maps.Keys(a.works)) {
		list = append(list, codec.ResourceVersion{ResourceID: id, ResourceVersion: a.works[id].version})
	}
	e, err := codec.NewSpecResyncRequest(codec.ResyncParams{
		ID: a.w.newID(), Time: time.Now(), Source: a.name + "-ocm", Cluster: a.name, DataType: codec.ManifestBundles,
	}, list)
	return []codec.Event{e}, err
}

// Disconnected implements session.Handler.
func (a *ocmAgent) Disconnected(error) {}

// Handle implements session.Handler.
func (a *ocmAgent) Handle(_ context.Context, e codec.Event) error {
	t, err := codec.ParseEventType(e.Type())
	switch {
	case err != nil:
		a.w.fail("I8", "%s was sent an event of type %s", a.name, e.Type())
	case t.Subresource == codec.Status:
		a.requested(e)
	default:
		a.take(e)
	}
	return nil
}

// requested answers a status resync request.
func (a *ocmAgent) requested(e codec.Event) {
	hashes, err := codec.DecodeHashes(e.Data())
	if err != nil {
		a.w.fail("I4", "%s got a resync request that it cannot read: %v", a.name, err)
		return
	}
	for _, h := range hashes {
		w := a.works[h.ResourceID]
		if w == nil || w.status == nil {
			continue
		}
		if hash, err := manifestwork.StatusHash(*w.status); err == nil && hash != h.StatusHash {
			w.unsent = true
		}
	}
}

func (a *ocmAgent) take(e codec.Event) {
	spec, err := manifestwork.DecodeSpec(e)
	var invalid *manifestwork.InvalidError
	if err != nil && !errors.As(err, &invalid) {
		a.w.fail("I8", "%s was sent a spec that it cannot read: %v", a.name, err)
		return
	}
	held := a.works[spec.ResourceID]
	switch {
	case held == nil:
		held = &ocmAgentWork{}
		a.works[spec.ResourceID] = held
	case spec.Deleting:
		if a.w.hub.epoch > 0 && !held.deleting && held.version >= spec.Version {
			a.w.oracle.overtook(spec.ResourceID)
		}
		held.deleting, held.dirty, held.version, held.Generation = true, true, spec.Version, spec.Generation
		return
	case spec.Version != 0 && spec.Version < held.version:
		return
	}
	held.Ref, held.source, held.version, held.deleting, held.dirty = spec.Ref, spec.Source, spec.Version, spec.Deleting, true
	held.removed = false
	if spec.HasData {
		held.spec = &spec.Work.Spec
	}
	if !spec.Deleting {
		for id, other := range a.works { // the name has a new work
			if id != spec.ResourceID && other.Name == spec.Name && !other.deleting {
				delete(a.works, id)
			}
		}
	}
}

func (a *ocmAgent) steps(list []step) []step {
	for _, id := range slices.Sorted(maps.Keys(a.works)) {
		w := a.works[id]
		if w.dirty {
			list = append(list, step{a.name, "apply", id, func() { a.apply(id, w) }})
		}
		if w.unsent && a.link.conn != nil && !a.busy[id] && !w.sendAt.After(time.Now()) {
			list = append(list, step{a.name, "report", id, func() { a.report(id, w) }})
		}
	}
	return list
}

func (a *ocmAgent) next() (first time.Time) {
	for id, w := range a.works {
		if w.unsent && a.link.conn != nil && !a.busy[id] && (first.IsZero() || w.sendAt.Before(first)) {
			first = w.sendAt
		}
	}
	return first
}

// apply applies one work to the cluster.
func (a *ocmAgent) apply(id string, w *ocmAgentWork) {
	w.dirty = false
	was := a.applied[w.Name]
	if w.deleting {
		if was != nil && was.id == id {
			if w.spec == nil || !orphans(w.spec.DeleteOption) {
				a.prune(w.Name, nil)
			}
			delete(a.applied, w.Name)
		}
		w.removed, w.unsent = true, true
		if w.status == nil {
			w.status = &workv1.ManifestWorkStatus{}
		}
		return
	}
	if was == nil {
		was = &appliedWork{}
		a.applied[w.Name] = was
	}
	was.id = id
	var names []string
	for _, m := range w.spec.Workload.Manifests {
		o := &unstructured.Unstructured{}
		if err := o.UnmarshalJSON(m.Raw); err != nil {
			panic(err)
		}
		names = append(names, o.GetName())
		o.SetAnnotations(map[string]string{"owners": strings.Join(append(a.othersOf(o.GetName(), w.Name), w.Name), ",")})
		a.cluster.Put(o)
	}
	a.prune(w.Name, names)
	was.objects = names
	w.status = &workv1.ManifestWorkStatus{Conditions: []metav1.Condition{{
		Type: workv1.WorkApplied, Status: metav1.ConditionTrue, Reason: "Complete", Message: fmt.Sprint("objects ", len(names)),
		ObservedGeneration: w.version, LastTransitionTime: metav1.NewTime(time.Now().Truncate(time.Second)),
	}}}
	w.unsent = true
}

// hasBefore reports whether this is the agent's cluster, and the objects under the name still belong to the
// previous work. The agent gets a deletion and the next work of that name in one list. It may carry out the
// deletion first.
func (a *ocmAgent) hasBefore(cluster, name, id string) bool {
	return cluster == a.name && a.applied[name] != nil && a.applied[name].id != id
}

// othersOf returns the names of the other works that have an object.
func (a *ocmAgent) othersOf(object, work string) (others []string) {
	for _, name := range slices.Sorted(maps.Keys(a.applied)) {
		if name != work && slices.Contains(a.applied[name].objects, object) {
			others = append(others, name)
		}
	}
	return others
}

// prune removes the objects of a work that are not among keep.
func (a *ocmAgent) prune(work string, keep []string) {
	for _, name := range a.applied[work].objects {
		if slices.Contains(keep, name) {
			continue
		}
		ref := configMapRef(a.cluster, name)
		if others := a.othersOf(name, work); len(others) > 0 {
			a.cluster.Edit(ref, func(o *unstructured.Unstructured) {
				o.SetAnnotations(map[string]string{"owners": strings.Join(others, ",")})
			})
			continue
		}
		a.cluster.Remove(ref)
	}
}

func (a *ocmAgent) report(id string, w *ocmAgentWork) {
	ref := w.Ref
	if a.w.stateless != nil { // no broker sent it the version before this report
		ref.Generation = w.version
	}
	e, err := manifestwork.EncodeStatus(ref, *w.status, manifestwork.StatusParams{
		ID: a.w.newID(), Now: time.Now(), Source: a.name + "-ocm", OriginalSource: w.source, Action: codec.UpdateRequest,
		SequenceID: a.sequence.Next(time.Now().UnixMilli()), Deleted: w.deleting && w.removed,
	})
	if err != nil {
		panic(err)
	}
	w.unsent = false
	last := w.deleting && w.removed
	process := a.process
	a.busy[id] = true
	a.w.send(a.link, e, "status "+id, func(_ transport.Receipt, err error) {
		if process != a.process {
			return
		}
		delete(a.busy, id)
		switch held := a.works[id]; {
		case held == nil:
		case err != nil:
			held.unsent, held.sendAt = true, time.Now().Add(2*time.Second)
		case last:
			delete(a.works, id)
		}
	})
}

func configMapRef(f *clustertest.Fake, name string) kubeclient.Ref {
	return f.Ref("v1", "ConfigMap", "default", name)
}
