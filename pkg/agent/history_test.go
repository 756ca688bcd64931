package agent

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// silently changes the cluster without watch events, as a restore of its etcd does.
func (r *rig) silently(change func()) {
	reported := r.f.Changed
	r.f.Changed = func(kubeclient.Ref, *unstructured.Unstructured) {}
	change()
	r.f.Changed = reported
}

// remove removes an object at once, even if it has finalizers.
func (r *rig) remove(ref kubeclient.Ref) {
	r.f.Edit(ref, func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
	r.f.Remove(ref)
}

// TestCore_AnotherHistory: after a restore, states seen by watches and earlier reads are dropped. This includes
// a state whose metadata equals that of the previous one.
func TestCore_AnotherHistory(t *testing.T) {
	for name, restore := range map[string]func(r *rig){
		"an object is older": func(r *rig) {
			r.f.Edit(r.ref("ConfigMap", "a"), func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"k": "old"} })
		},
		"an object is missing": func(r *rig) { r.remove(r.ref("ConfigMap", "b")) },
		"all is missing": func(r *rig) {
			for _, ref := range []kubeclient.Ref{r.ref("ConfigMap", "a"), r.ref("ConfigMap", "b"), appliedwork.Ref(appliedwork.Name(testHubHash, "w"))} {
				r.remove(ref)
			}
		},
	} {
		for _, restarted := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				r := newJournaledRig(t)
				w := hubWork("w-1", "w", 1, configMap("a", "1"), configMap("b", "1"))
				r.apply(w)
				r.silently(func() { restore(r) })
				if restarted {
					r.restart()
					r.deliver(w)
				} else {
					r.core.AnotherHistory()
				}
				r.settle(time.Minute)
				for _, name := range []string{"a", "b"} {
					o := r.f.Look(r.ref("ConfigMap", name))
					if o == nil {
						t.Fatalf("restarted %v: %s is missing", restarted, name)
					}
					if v, _, _ := unstructured.NestedString(o.Object, "data", "k"); v != "1" {
						t.Errorf("restarted %v: %s is %q", restarted, name, v)
					}
				}
				r.expectListed("w", "configmaps default/a", "configmaps default/b")
			})
		}
	}
}

// TestCore_ReadsItsOwnWriteBack: the AppliedManifestWork that was written last reveals another history, unless
// no last write is known.
func TestCore_ReadsItsOwnWriteBack(t *testing.T) {
	r := newRig(t)
	shows := func(when string, want bool) {
		t.Helper()
		reason, err := r.core.ReadBack(t.Context())
		if err != nil || (reason != "") != want {
			t.Errorf("%s: %q, %v", when, reason, err)
		}
	}
	shows("nothing was written", false)
	w := hubWork("w-1", "w", 1, configMap("a", "1"))
	r.apply(w)
	shows("as it was written", false)
	record := appliedwork.Ref(appliedwork.Name(testHubHash, "w"))
	r.f.Edit(record, func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"of": "another"}) })
	shows("changed by another", false)
	r.silently(func() { r.remove(record) })
	shows("missing", true)
	r.core.AnotherHistory()
	shows("known", false)
	r.settle(time.Minute)
	shows("written again", false)
	r.delete(w)
	shows("deleted by the agent", false)
}
