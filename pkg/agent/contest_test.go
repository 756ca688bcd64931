package agent

import (
	"strings"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

// contested returns the Contested conditions of a work and of its first manifest.
func (r *rig) contested(id string) (work, manifest *metav1.Condition) {
	s := r.statuses[id].Status
	return apimeta.FindStatusCondition(s.Conditions, conditions.TypeContested), apimeta.FindStatusCondition(s.ResourceStatus.Manifests[0].Conditions, conditions.TypeContested)
}

// fight calls do whenever the object is as the work wants it, like a competing controller.
func (r *rig) fight(kind string, as func(o *unstructured.Unstructured) bool, do func()) (stop func()) {
	changed, target := r.f.Changed, r.ref(kind, "web")
	r.f.Changed = func(ref ref, o *unstructured.Unstructured) {
		changed(ref, o)
		if ref == target && o != nil && as(o) {
			r.other = append(r.other, do)
		}
	}
	do()
	return func() { r.f.Changed, r.other = changed, nil }
}

// scale makes another manager the owner of the replicas.
func (r *rig) scale() {
	web := clustertest.Object("apps/v1", "Deployment", "default", "web", "spec", map[string]any{"replicas": int64(1)})
	if err := r.f.Apply(web, kubeclient.FieldManager{Name: "theirs", Force: true}); err != nil {
		r.t.Fatal(err)
	}
}

func hasReplicas(o *unstructured.Unstructured) bool {
	return o.Object["spec"].(map[string]any)["replicas"] == int64(2)
}

const scaled = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"default"},"spec":{"replicas":2}}`

func TestCore_ReportsObjectChangedAfterEachRepair(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, scaled)
	r.apply(w)
	stop := r.fight("Deployment", hasReplicas, func() { r.scale() })
	r.settle(3 * time.Hour)
	work, manifest := r.contested("w-1")
	const begin = ".spec.replicas is changed by before-first-apply, theirs after each repair: the object is repaired once a minute only"
	if manifest == nil || manifest.Reason != conditions.ReasonChangedAfterRepair || !strings.HasPrefix(manifest.Message, begin) {
		t.Errorf("the manifest has the condition %v", manifest)
	}
	if work == nil || work.Status != metav1.ConditionTrue || !strings.HasPrefix(work.Message, "Deployment default/web: "+begin) || work.ObservedGeneration != 1 {
		t.Errorf("the work has the condition %v", work)
	}
	r.wantApplied(metav1.ConditionTrue, "Apply manifest complete")
	if n := r.core.Counts().Contested; n != 1 {
		t.Errorf("%d objects count as contested", n)
	}
	r.settle(20 * time.Minute)
	reported := len(r.sent)
	if r.settle(time.Hour); len(r.sent) != reported {
		t.Errorf("%d statuses in an hour in which nothing was new", len(r.sent)-reported)
	}

	w.Generation++
	w.Labels["another"] = "label"
	r.apply(w)
	r.settle(10 * time.Minute)
	if work, _ := r.contested("w-1"); work == nil || work.ObservedGeneration != 2 {
		t.Errorf("the next generation has the condition %v", work)
	}
	stop()
	r.settle(15 * time.Minute)
	work, manifest = r.contested("w-1")
	if n := r.core.Counts().Contested; work != nil || manifest != nil || n != 0 {
		t.Errorf("after the end: %v, %v, %d", work, manifest, n)
	}
}

// A change every two minutes is repaired at once each time: the repair budget suffices.
func TestCore_OccasionalChangeIsNotContested(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, scaled))
	for range 60 {
		r.scale()
		r.settle(2 * time.Minute)
		if work, _ := r.contested("w-1"); work != nil || !hasReplicas(r.f.Look(r.ref("Deployment", "web"))) {
			t.Fatalf("got %v", work)
		}
	}
}

func TestCore_ReportsObjectContestedByTwoWorks(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "one", 1, configMap("web", "1")))
	r.deliver(hubWork("w-2", "two", 1, configMap("web", "2")))
	r.settle(time.Hour)
	for id, other := range map[string]string{"w-1": "two", "w-2": "one"} {
		work, _ := r.contested(id)
		want := "ConfigMap default/web: .data.k is changed by ManifestWork " + other + ", which has the same object, after each repair"
		if work == nil || !strings.HasPrefix(work.Message, want) || !strings.Contains(work.Message, "Take the object out of all works but one") {
			t.Errorf("%s has the condition %v", id, work)
		}
	}
	if n := r.core.Counts().Contested; n != 2 {
		t.Errorf("%d objects count as contested", n)
	}
	r.delete(hubWork("w-2", "two", 2, configMap("web", "2")))
	r.settle(20 * time.Minute)
	if work, _ := r.contested("w-1"); work != nil || r.core.Counts().Contested != 0 {
		t.Errorf("with one work: %v", work)
	}
}

func TestCore_ReportsObjectDeletedAfterEachRepair(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("web", "1")))
	r.fight("ConfigMap", func(*unstructured.Unstructured) bool { return true }, func() { r.f.Remove(r.ref("ConfigMap", "web")) })
	r.settle(time.Hour)
	if work, _ := r.contested("w-1"); work == nil || !strings.HasPrefix(work.Message, "ConfigMap default/web: the object is deleted after each repair") {
		t.Errorf("got %v", work)
	}
}
