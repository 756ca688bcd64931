package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/pkg/agent/cluster"
	"github.com/hawser-io/hawser/pkg/agent/cluster/clustertest"
)

func job(name, command string) string {
	return fmt.Sprintf(`{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":%q,"namespace":"default"},"spec":{"template":{"command":%q}}}`, name, command)
}

// writes counts the requests since the last time that are meant to change an
// object of a resource.
func (r *rig) writes(resource string) int {
	n := 0
	for _, c := range r.f.TakeCalls() {
		if c.Write() && c.Ref.Resource == resource {
			n++
		}
	}
	return n
}

const jobRejected = `Applied=False/AppliedManifestFailed: Failed to apply manifest: Job "a" is invalid: spec.template: Invalid value: field is immutable ` +
	`(this does not pass by itself: correct the manifest or give it another name, or delete the object so that it is made anew)`

func TestCore_RejectedWriteIsTriedLessAndLessOften(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, job("a", "x"), configMap("b", "1")))
	r.requests()
	r.apply(hubWork("w-1", "web", 2, job("a", "y"), configMap("b", "2")))
	if n := r.writes("jobs"); n < 3 || n > 6 {
		t.Errorf("%d tries in the first second", n)
	}
	r.expectStatus("w-1", workFailed, workAvailable)
	r.expectManifest("w-1", 0, resourceThere, noFeedback, jobRejected)
	if got, _, _ := unstructured.NestedString(r.configMap("b").Object, "data", "k"); got != "2" {
		t.Errorf("the other object has %q", got)
	}
	r.settle(time.Hour)
	if n := r.writes("jobs"); n < 8 || n > 13 {
		t.Errorf("%d tries in the first hour", n)
	}
	r.settle(24 * time.Hour)
	if n := r.writes("jobs"); n < 20 || n > 50 {
		t.Errorf("%d tries in a day", n)
	}
}

func TestCore_RejectedWriteIsNotRepeatedForTheNeighbour(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, job("a", "x"), configMap("b", "1")))
	r.apply(hubWork("w-1", "web", 2, job("a", "y"), configMap("b", "1")))
	r.settle(time.Hour)
	r.requests()
	for range 10 {
		r.f.Edit(r.ref("ConfigMap", "b"), func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"k": "drift"} })
		r.settle(time.Second)
	}
	calls := r.f.TakeCalls()
	jobs := slices.DeleteFunc(slices.Clone(calls), func(c clustertest.Call) bool { return !c.Write() || c.Ref.Resource != "jobs" })
	maps := slices.DeleteFunc(calls, func(c clustertest.Call) bool { return !c.Write() || c.Ref.Resource != "configmaps" })
	if len(jobs) > 1 || len(maps) != 10 {
		t.Fatalf("the job was tried %d times while its neighbour was repaired %d times", len(jobs), len(maps))
	}
	r.expectManifest("w-1", 0, resourceThere, noFeedback, jobRejected)
}

func TestCore_RejectedWriteIsTriedAtOnceWhenSomethingChanges(t *testing.T) {
	for name, change := range map[string]func(r *rig, ref ref){
		"the object goes": func(r *rig, ref ref) { r.f.Remove(ref) },
		"the work": func(r *rig, _ ref) {
			r.deliver(hubWork("w-1", "web", 3, strings.Replace(job("a", "x"), `"default"`, `"default","labels":{"l":"1"}`, 1)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.apply(hubWork("w-1", "web", 1, job("a", "x")))
			r.apply(hubWork("w-1", "web", 2, job("a", "y")))
			r.settle(time.Hour)
			r.expectStatus("w-1", workFailed, workAvailable)
			change(r, r.f.Ref("batch/v1", "Job", "default", "a"))
			r.settle(time.Second)
			r.expectStatus("w-1", workApplied, workAvailable)
		})
	}
}

// A custom resource that does not fit its definition is tried again as soon as
// the definition changes, also if the change takes a moment to count.
func TestCore_RejectedResourceFollowsItsDefinition(t *testing.T) {
	r := newRig(t)
	definition := r.f.Put(clustertest.Object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "ropes.example.com", "spec", map[string]any{
		"group": "example.com", "scope": "Namespaced", "names": map[string]any{"kind": "Rope", "plural": "ropes"},
		"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true}},
	}))
	var allowed time.Time
	r.f.Refuse = func(c clustertest.Call) error {
		if c.Write() && c.Ref.Resource == "ropes" && (allowed.IsZero() || r.now.Before(allowed)) {
			return apierrors.NewBadRequest("length is too short")
		}
		return nil
	}
	r.apply(hubWork("w-1", "web", 1, `{"apiVersion":"example.com/v1","kind":"Rope","metadata":{"name":"a","namespace":"default"}}`))
	r.settle(2 * time.Hour)
	r.expectManifest("w-1", 0, "Applied=False/AppliedManifestFailed: Failed to apply manifest: length is too short (this does not pass by itself: correct the manifest)", resourceNotThere)
	r.requests()

	allowed = r.now.Add(300 * time.Millisecond)
	r.f.Edit(r.f.Ref("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", definition.GetName()), func(o *unstructured.Unstructured) {
		o.SetLabels(map[string]string{"changed": "1"})
	})
	r.settle(time.Second)
	r.expectStatus("w-1", workApplied, workAvailable)
	if n := r.writes("ropes"); n < 2 || n > 5 {
		t.Errorf("%d tries", n)
	}
}

// A work whose kind nobody knows yet is applied as soon as somebody defines it,
// however long it has waited and although the cluster needs a moment to serve
// it.
func TestCore_UnknownKindIsAppliedOnceItIsDefined(t *testing.T) {
	for name, plural := range map[string]string{"with the usual plural": "ropes", "with another plural": "ropery"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			served := time.Time{}
			r.f.Refuse = func(c clustertest.Call) error {
				if c.Verb == "resolve" && c.Ref.Group == "example.com" && (served.IsZero() || r.now.Before(served)) {
					return &cluster.NoKindError{Kind: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Rope"}}
				}
				return nil
			}
			r.apply(hubWork("w-1", "web", 1, `{"apiVersion":"example.com/v1","kind":"Rope","metadata":{"name":"a","namespace":"default"}}`, configMap("b", "1")))
			r.settle(3 * time.Hour)
			r.expectStatus("w-1", workFailed, "Available=Unknown/ResourcesStatusUnknown: 1 of 2 resources have unknown status")
			r.f.Put(clustertest.Object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", plural+".example.com", "spec", map[string]any{
				"group": "example.com", "scope": "Namespaced", "names": map[string]any{"kind": "Rope", "plural": plural},
				"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true}},
			}))
			served = r.now.Add(700 * time.Millisecond)
			wait := 2 * time.Second
			if plural != "ropes" {
				wait = lastRetry // nothing tells that this is what it waits for
			}
			r.settle(wait)
			r.expectStatus("w-1", workApplied, workAvailable)
		})
	}
}
