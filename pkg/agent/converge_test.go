package agent

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
	"github.com/hawser-io/hawser/pkg/codec"
)

// hub is the state of a source and of its broker.
type hub struct {
	works map[string]*workv1.ManifestWork // by name; live or being deleted
	gone  map[string]bool                 // names being deleted
	next  int
}

// After any sequence of events, the cluster has exactly the objects of the live works, and the statuses show that.
func TestCore_Converges(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newRig(t)
		h := &hub{works: map[string]*workv1.ManifestWork{}, gone: map[string]bool{}}
		steps := rapid.IntRange(1, 40).Draw(rt, "steps")
		for range steps {
			step(rt, r, h)
		}
		r.f.Refuse = nil
		r.refuse = nil
		for _, o := range []string{"a", "b", "c", "d"} { // remove the finalizers that "hold" added
			r.f.Edit(r.ref("ConfigMap", o), func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
		}
		resume(r, h)
		r.settle(3 * time.Hour)
		check(rt, r, h)
	})
}

func step(rt *rapid.T, r *rig, h *hub) {
	name := rapid.SampledFrom([]string{"one", "two", "three"}).Draw(rt, "work")
	object := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "object")
	switch op := rapid.SampledFrom([]string{"change", "change", "delete", "edit", "remove", "hold", "fail", "restart", "offline", "wait"}).Draw(rt, "op"); op {
	case "change":
		if h.gone[name] {
			return // the name is free only after the deletion is confirmed
		}
		w := h.works[name]
		if w == nil {
			h.next++
			w = hubWork(fmt.Sprintf("id-%d", h.next), name, 0)
			h.works[name] = w
		}
		w.Generation++
		w.Spec.Workload.Manifests = nil
		for _, o := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 1, 3, rapid.ID).Draw(rt, "objects") {
			w.Spec.Workload.Manifests = append(w.Spec.Workload.Manifests, hubWork("", "", 0, configMap(o, "v")).Spec.Workload.Manifests...)
		}
		r.deliver(w)
	case "delete":
		if w := h.works[name]; w != nil && !h.gone[name] {
			h.gone[name] = true
			r.deliverDeletion(w)
		}
	case "edit":
		r.f.Edit(r.ref("ConfigMap", object), func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"k": "theirs"} })
	case "remove":
		r.f.Remove(r.ref("ConfigMap", object))
	case "hold":
		r.f.Edit(r.ref("ConfigMap", object), func(o *unstructured.Unstructured) { o.SetFinalizers([]string{"example.com/hold"}) })
	case "fail": // some of the next requests fail
		skip, n := rapid.IntRange(0, 6).Draw(rt, "after"), rapid.IntRange(1, 6).Draw(rt, "failures")
		r.f.Refuse = func(clustertest.Call) error {
			if skip--; skip < 0 && n > 0 {
				n--
				return errDenied
			}
			return nil
		}
	case "restart":
		r.restart()
		resume(r, h)
	case "offline":
		r.core.Disconnected(errAway)
	case "wait":
		r.settle(time.Duration(rapid.IntRange(0, 2000).Draw(rt, "ms")) * time.Millisecond)
	}
	h.confirm(r)
}

// confirm removes the works that the agent reported as deleted.
func (h *hub) confirm(r *rig) {
	for name := range h.gone {
		if r.statuses[string(h.works[name].UID)].Deleted {
			delete(h.works, name)
			delete(h.gone, name)
		}
	}
}

// resume begins a new connection: the broker sends what the agent does not have.
func resume(r *rig, h *hub) {
	held := map[string]codec.ResourceVersion{}
	for _, v := range r.subscribe(accepted) {
		held[v.ResourceID] = v
	}
	for name, w := range h.works {
		if h.gone[name] {
			r.deliverDeletion(w)
		} else if held[string(w.UID)].ResourceVersion != w.Generation {
			r.deliver(w)
		}
	}
}

func check(rt *rapid.T, r *rig, h *hub) {
	h.confirm(r)
	if len(h.gone) > 0 {
		rt.Fatalf("deletions that never ended: %v; %v", h.gone, r.lastErr)
	}
	owners := map[string]int{}
	for name, w := range h.works {
		s := r.statuses[string(w.UID)]
		applied, available := condition(s.Status.Conditions, "Applied"), condition(s.Status.Conditions, "Available")
		if applied == nil || applied.Status != "True" || applied.ObservedGeneration != w.Generation || available.Status != "True" || s.Deleted {
			rt.Fatalf("work %s at generation %d: the hub got %q; %v", name, w.Generation, show(s.Status.Conditions), r.lastErr)
		}
		var want []string
		for _, m := range w.Spec.Workload.Manifests {
			o := &unstructured.Unstructured{}
			if err := o.UnmarshalJSON(m.Raw); err != nil {
				rt.Fatal(err)
			}
			owners[o.GetName()]++
			want = append(want, "configmaps default/"+o.GetName())
		}
		if got := r.listed(name); len(got) != len(want) {
			rt.Fatalf("work %s lists %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"one", "two", "three"} {
		if h.works[name] == nil && r.f.Look(appliedwork.Ref(appliedwork.Name(testHubHash, name))) != nil {
			rt.Fatalf("the record of %s is left", name)
		}
	}
	r.f.CollectGarbage()
	for _, name := range []string{"a", "b", "c", "d"} {
		o := r.configMap(name)
		switch {
		case owners[name] == 0 && o != nil:
			rt.Fatalf("%s is left: %v", name, o.Object)
		case owners[name] > 0 && (o == nil || o.Object["data"].(map[string]any)["k"] != "v" || len(o.GetOwnerReferences()) != owners[name]):
			rt.Fatalf("%s is wanted by %d works: %v", name, owners[name], o)
		}
	}
}
