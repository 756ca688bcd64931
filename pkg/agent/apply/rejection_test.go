package apply

import (
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/cluster/clustertest"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
)

const plainJob = `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"a","namespace":"default"},"spec":{"template":{"x":"1"}}}`

// A write that the server finds wrong in itself is made once for each state of
// the object, and once more when it is asked for.
func TestApplier_RejectionIsRememberedUntilSomethingChanges(t *testing.T) {
	b := newBench(t)
	r := b.apply(plainJob)
	ref := r.Ref
	other := strings.Replace(plainJob, `"x":"1"`, `"x":"2"`, 1)
	try := func(what string, k Known, wrote bool) Result {
		t.Helper()
		b.f.TakeCalls()
		r := b.applyKnowing(other, k)
		if got := slices.ContainsFunc(b.f.TakeCalls(), clustertest.Call.Write); got != wrote || !Rejected(r.Err) || !apierrors.IsInvalid(r.Err) || Permanent(r.Err) {
			t.Fatalf("%s: wrote: %t, %v", what, got, r.Err)
		}
		if r.Presence != conditions.Present || r.Live == nil || r.Known.Same(r.Manifest, owner) {
			t.Fatalf("%s: %v, taken for as it should be: %t", what, r.Presence, r.Known.Same(r.Manifest, owner))
		}
		return r
	}
	r = try("the first time", r.Known, true)
	if want := `Job "a" is invalid: spec.template: Invalid value: field is immutable (this does not pass by itself: correct the manifest, or delete the object so that it is made anew, or use update strategy CreateOnly or ServerSideApply)`; r.Err.Error() != want {
		t.Errorf("got %q", r.Err)
	}
	r = try("at once again", r.Known, false)
	if _, err := b.f.Patch(t.Context(), ref, []byte(`{"status":{"active":1}}`), "status"); err != nil {
		t.Fatal(err)
	}
	r = try("after a change of the status", r.Known, false)
	r = try("when it is asked for", r.Known.Retry(), true)
	b.f.Edit(ref, func(o *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(o.Object, int64(2), "spec", "parallelism")
	})
	r = try("after a change", r.Known, true)
	k := r.Known
	r = try("then again", k, false)
	b.f.Remove(ref)
	b.must(Create, b.applyKnowing(other, r.Known))
}

func TestApplier_RejectionIsAboutOneManifest(t *testing.T) {
	b := newBench(t)
	b.must(Create, b.apply(plainJob))
	k := b.apply(strings.Replace(plainJob, `"x":"1"`, `"x":"2"`, 1)).Known
	b.f.TakeCalls()
	r := b.applyKnowing(strings.Replace(plainJob, `"x":"1"`, `"x":"3"`, 1), k)
	if !Rejected(r.Err) || !slices.ContainsFunc(b.f.TakeCalls(), clustertest.Call.Write) {
		t.Fatalf("another manifest was not tried: %v", r.Err)
	}
	b.must(Update, b.applyKnowing(strings.Replace(plainJob, `"a"`, `"a","labels":{"l":"1"}`, 1), r.Known))
}

func TestApplier_RejectedCreationSaysWhatHelps(t *testing.T) {
	b := newBench(t)
	b.f.Refuse = func(c clustertest.Call) error {
		if c.Verb == "create" {
			return apierrors.NewBadRequest("strict decoding error")
		}
		return nil
	}
	r := b.apply(plainJob)
	if want := "strict decoding error (this does not pass by itself: correct the manifest)"; r.Err == nil || r.Err.Error() != want || r.Presence != conditions.Absent {
		t.Fatalf("got %v, %v", r.Err, r.Presence)
	}
	b.f.TakeCalls()
	if r = b.applyKnowing(plainJob, r.Known); !Rejected(r.Err) || slices.ContainsFunc(b.f.TakeCalls(), clustertest.Call.Write) {
		t.Fatalf("tried again at once: %v", r.Err)
	}
	b.f.Refuse = nil
	b.must(Create, b.applyKnowing(plainJob, r.Known.Retry()))
}

func TestApplier_RejectionHintFitsTheStrategy(t *testing.T) {
	b := newBench(t)
	b.f.Put(object(t, plainJob))
	b.spec.ManifestConfigs = []workv1.ManifestConfigOption{{
		ResourceIdentifier: workv1.ResourceIdentifier{Group: "batch", Resource: "jobs", Namespace: "default", Name: "a"},
		UpdateStrategy:     &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeCreateOnly},
	}}
	b.f.Refuse = func(c clustertest.Call) error {
		if c.Write() {
			return apierrors.NewBadRequest("denied")
		}
		return nil
	}
	if r := b.apply(plainJob); r.Err == nil || r.Err.Error() != "denied (this does not pass by itself: correct the manifest, or delete the object so that it is made anew)" {
		t.Fatalf("got %v", r.Err)
	}
}
