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

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

func job(name, command string) string {
	return fmt.Sprintf(`{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":%q,"namespace":"default"},"spec":{"template":{"command":%q}}}`, name, command)
}

// writes counts the requests since the last call that try to change an object of a resource.
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
	`(this does not pass by itself: correct the manifest or give it another name, or delete the object so that it is created again)`

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

// A custom resource that does not match its definition is tried again as soon as the definition changes, even
// if the change takes effect later.
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

// A work that changes a definition reads its objects of that kind again once the server uses the new
// definition.
func TestCore_ObjectsOfAChangedDefinitionAreRead(t *testing.T) {
	r := newRig(t)
	define := func(version string) string {
		o := ropeDefinition()
		o.SetLabels(map[string]string{"version": version})
		b, err := o.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	const rope = `{"apiVersion":"example.com/v1","kind":"Rope","metadata":{"name":"a","namespace":"default"}}`
	r.apply(hubWork("w-1", "web", 1, define("1"), rope))
	r.settle(time.Minute)
	r.expectStatus("w-1", workApplied, workAvailable)
	reads := func() int {
		r.f.TakeCalls()
		r.settle(time.Minute)
		return len(slices.DeleteFunc(r.f.TakeCalls(), func(c clustertest.Call) bool { return c.Verb != "get" || c.Ref.Resource != "ropes" }))
	}
	r.apply(hubWork("w-1", "web", 2, define("2"), rope))
	if n := reads(); n != 1 {
		t.Errorf("read %d times after the definition changed", n)
	}
	r.apply(hubWork("w-1", "web", 3, define("2"), rope, configMap("b", "1")))
	if n := reads(); n != 0 {
		t.Errorf("read %d times after something else changed", n)
	}
}

// A work of an unknown kind is applied as soon as the kind is defined, however long it has waited. The cluster
// may need a moment to serve the kind.
func TestCore_UnknownKindIsAppliedOnceItIsDefined(t *testing.T) {
	for name, plural := range map[string]string{"with the usual plural": "ropes", "with another plural": "ropery"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			served := time.Time{}
			r.f.Refuse = func(c clustertest.Call) error {
				if c.Verb == "resolve" && c.Ref.Group == "example.com" && (served.IsZero() || r.now.Before(served)) {
					return &kubeclient.NoKindError{Kind: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Rope"}}
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
				wait = lastRetry // the agent does not know that the work waits for this definition
			}
			r.settle(wait)
			r.expectStatus("w-1", workApplied, workAvailable)
		})
	}
}

// prunes makes the cluster drop spec.f2 of custom resources until the field is defined.
func (r *rig) prunes(reports bool) (known *bool) {
	known = new(bool)
	r.f.Prune = func(o *unstructured.Unstructured) []string {
		spec, _ := o.Object["spec"].(map[string]any)
		if *known || o.GetKind() != "Rope" || spec["f2"] == nil {
			return nil
		}
		delete(spec, "f2")
		if reports {
			return []string{"spec.f2"}
		}
		return nil
	}
	return known
}

const (
	rope        = `{"apiVersion":"example.com/v1","kind":"Rope","metadata":{"name":"a","namespace":"default"},"spec":{"f1":"x","f2":"x"}}`
	ropeDropped = "Applied=False/AppliedManifestFailed: Failed to apply manifest: the cluster does not know spec.f2, and dropped what it does not know; all else was applied " +
		"(correct the manifest, or the definition of the kind on the cluster: it is tried again when that changes, and about every hour)"
	ropeQuiet = "Applied=True/AppliedManifestComplete: Apply manifest complete, but the cluster did not keep spec.f2, and gave no reason: a webhook may remove it, or a feature of the cluster may be off"
)

// A field that the cluster drops stays unapplied, however often it is read, and the cost of retries decreases.
// A new definition, or a restart, causes a retry at once.
func TestCore_DroppedFieldIsTriedLessAndLessOften(t *testing.T) {
	for name, tc := range map[string]struct {
		reports       bool
		reported      string
		second, hours int
	}{
		"the server warns":  {true, ropeDropped, 6, 13},
		"without a warning": {false, ropeQuiet, 3, 9},
	} {
		t.Run(name, func(t *testing.T) {
			r := newJournaledRig(t)
			r.f.Put(ropeDefinition())
			known := r.prunes(tc.reports)
			r.apply(hubWork("w-1", "web", 1, rope, configMap("b", "1")))
			r.settle(time.Second)
			r.expectManifest("w-1", 0, tc.reported, resourceThere, noFeedback)
			if n := r.writes("ropes"); n < 1 || n > tc.second {
				t.Errorf("%d writes in the first second", n)
			}
			r.settle(2 * time.Hour)
			if n := r.writes("ropes"); n < 3 || n > tc.hours+2 {
				t.Errorf("%d writes in two hours", n)
			}
			r.settle(24 * time.Hour)
			if n := r.writes("ropes"); n < 15 || n > 50 {
				t.Errorf("%d writes in a day", n)
			}
			for range 10 { // repairs of the neighbour do not retry the dropped field
				r.f.Edit(r.ref("ConfigMap", "b"), func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"k": "drift"} })
				r.settle(time.Second)
			}
			if n := r.writes("ropes"); n > 1 {
				t.Errorf("%d writes for the neighbour", n)
			}
			r.expectManifest("w-1", 0, tc.reported, resourceThere, noFeedback)
			r.restart()
			r.settle(time.Minute)
			r.expectManifest("w-1", 0, tc.reported, resourceThere, noFeedback)

			*known = true
			r.f.Edit(r.f.Ref("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "ropes.example.com"), func(o *unstructured.Unstructured) {
				o.SetLabels(map[string]string{"changed": "1"})
			})
			r.settle(time.Second)
			r.expectStatus("w-1", workApplied, workAvailable)
			r.expectManifest("w-1", 0, manifestApplied, resourceThere, noFeedback)
			r.writes("ropes")
			r.settle(3 * time.Hour)
			if n := r.writes("ropes"); n != 0 {
				t.Errorf("%d writes of an object that is as it should be", n)
			}
		})
	}
}

// Another program keeps changing an object that lacks a field: the object is not written as often.
func TestCore_LimitsWritesForDroppedField(t *testing.T) {
	r := newRig(t)
	r.f.Put(ropeDefinition())
	r.prunes(true)
	r.apply(hubWork("w-1", "web", 1, rope))
	r.settle(time.Hour)
	r.requests()
	ref := r.f.Ref("example.com/v1", "Rope", "default", "a")
	for i := range 600 {
		r.f.Edit(ref, func(o *unstructured.Unstructured) { o.Object["spec"] = map[string]any{"f1": fmt.Sprint(i)} })
		r.settle(time.Second)
	}
	if n := r.writes("ropes"); n > 60 {
		t.Errorf("%d writes in ten minutes", n)
	}
}

// A definition and its resource get a new field in one work: no status reports the field as lost.
func TestCore_DefinitionAndResourceGetAField(t *testing.T) {
	r := newRig(t)
	known := r.prunes(true)
	prune, tries := r.f.Prune, 0
	r.f.Prune = func(o *unstructured.Unstructured) []string {
		if o.GetKind() == "Rope" {
			tries++
			*known = tries == 3
		}
		return prune(o)
	}
	r.f.Put(ropeDefinition())
	definition := ropeDefinition()
	definition.SetLabels(map[string]string{"changed": "1"})
	b, err := definition.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	r.apply(hubWork("w-1", "web", 1, string(b), rope))
	r.expectStatus("w-1", workApplied, workAvailable)
	if tries != 3 {
		t.Errorf("%d tries", tries)
	}
}
