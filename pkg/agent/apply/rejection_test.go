package apply

import (
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

const simpleJob = `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"a","namespace":"default"},"spec":{"template":{"x":"1"}}}`

// A write that the server rejects as invalid is made once for each state of the object, and again when a retry
// is requested.
func TestApplier_RejectionIsRememberedUntilSomethingChanges(t *testing.T) {
	b := newBench(t)
	r := b.apply(simpleJob)
	ref := r.Ref
	other := strings.Replace(simpleJob, `"x":"1"`, `"x":"2"`, 1)
	try := func(what string, k KnownState, wrote bool) Result {
		t.Helper()
		b.f.TakeCalls()
		r := b.applyKnowing(other, k)
		if got := slices.ContainsFunc(b.f.TakeCalls(), clustertest.Call.Write); got != wrote || !Rejected(r.Err) || !apierrors.IsInvalid(r.Err) || Permanent(r.Err) {
			t.Fatalf("%s: wrote: %t, %v", what, got, r.Err)
		}
		if r.Presence != conditions.Present || r.Live == nil || r.Known.Matches(r.Manifest, owner) {
			t.Fatalf("%s: %v, taken for as it should be: %t", what, r.Presence, r.Known.Matches(r.Manifest, owner))
		}
		return r
	}
	r = try("the first time", r.Known, true)
	if want := `Job "a" is invalid: spec.template: Invalid value: field is immutable (this does not pass by itself: correct the manifest or give it another name, or delete the object so that it is created again)`; r.Err.Error() != want {
		t.Errorf("got %q", r.Err)
	}
	r = try("at once again", r.Known, false)
	if _, err := b.f.Patch(t.Context(), ref, []byte(`{"status":{"active":1}}`), "status"); err != nil {
		t.Fatal(err)
	}
	r = try("after a change of the status", r.Known, false)
	r = try("when it is requested", r.Known.Retry(), true)
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
	b.must(Create, b.apply(simpleJob))
	k := b.apply(strings.Replace(simpleJob, `"x":"1"`, `"x":"2"`, 1)).Known
	b.f.TakeCalls()
	r := b.applyKnowing(strings.Replace(simpleJob, `"x":"1"`, `"x":"3"`, 1), k)
	if !Rejected(r.Err) || !slices.ContainsFunc(b.f.TakeCalls(), clustertest.Call.Write) {
		t.Fatalf("another manifest was not tried: %v", r.Err)
	}
	b.must(Update, b.applyKnowing(strings.Replace(simpleJob, `"a"`, `"a","labels":{"l":"1"}`, 1), r.Known))
}

func TestApplier_RejectedCreationReportsAdvice(t *testing.T) {
	b := newBench(t)
	b.f.Refuse = func(c clustertest.Call) error {
		if c.Verb == "create" {
			return apierrors.NewBadRequest("strict decoding error")
		}
		return nil
	}
	r := b.apply(simpleJob)
	if want := "strict decoding error (this does not pass by itself: correct the manifest)"; r.Err == nil || r.Err.Error() != want || r.Presence != conditions.Absent {
		t.Fatalf("got %v, %v", r.Err, r.Presence)
	}
	b.f.TakeCalls()
	if r = b.applyKnowing(simpleJob, r.Known); !Rejected(r.Err) || slices.ContainsFunc(b.f.TakeCalls(), clustertest.Call.Write) {
		t.Fatalf("tried again at once: %v", r.Err)
	}
	b.f.Refuse = nil
	b.must(Create, b.applyKnowing(simpleJob, r.Known.Retry()))
}

func TestApplier_RejectionHintFitsTheStrategy(t *testing.T) {
	b := newBench(t)
	b.f.Put(object(t, simpleJob))
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
	if r := b.apply(simpleJob); r.Err == nil || r.Err.Error() != "denied (this does not pass by itself: correct the manifest, or delete the object so that it is created again)" {
		t.Fatalf("got %v", r.Err)
	}
}

// A field that the schema lacks may arrive with another definition: the hint advises no deletion.
func TestApplier_RejectionHintNamesTheDefinition(t *testing.T) {
	b := newBench(t)
	b.f.Put(object(t, simpleJob))
	b.appliedBy(nil)
	b.f.Refuse = func(c clustertest.Call) error {
		if c.Write() {
			return apierrors.NewBadRequest("failed to create typed patch object (default/a; batch/v1, Kind=Job): .spec.x: field not declared in schema")
		}
		return nil
	}
	want := "(this does not pass by itself: correct the manifest, or the definition of the kind on the cluster: it is tried again when that changes)"
	if r := b.apply(simpleJob); r.Err == nil || !strings.HasSuffix(r.Err.Error(), want) {
		t.Fatalf("got %v", r.Err)
	}
}

// The server's text about fields decides which hint is useful. No strategy changes immutable fields, but
// ServerSideApply leaves fields alone that are not in the manifest.
func TestApplier_RejectionHintHelps(t *testing.T) {
	const (
		correct    = " (this does not pass by itself: correct the manifest"
		otherName  = correct + " or give it another name, or delete the object so that it is created again)"
		anyWay     = correct + ", or delete the object so that it is created again, or use update strategy CreateOnly or ServerSideApply)"
		binding    = `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"a","namespace":"default"},"roleRef":{"kind":"Role","name":"first"},"subjects":[{"kind":"Group","name":"g"}]}`
		everywhere = `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"a"},"roleRef":{"kind":"ClusterRole","name":"first"}}`
		bareJob    = `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"a","namespace":"default"},"spec":{"suspend":true,"template":{"spec":{"containers":[{"name":"main","image":"i","resources":{"limits":{"a.b/c":1}}}]}}}}`
		deployment = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","namespace":"default","labels":{"a.b/c":"1"}},"spec":{"replicas":1}}`
	)
	for name, c := range map[string]struct {
		manifest, from, to string
		fields             []string // that the server rejects; none: those of its own checks
		want               string
	}{
		"the role of a binding":                   {binding, "first", "second", nil, otherName},
		"the role of a binding everywhere":        {everywhere, "first", "second", nil, otherName},
		"the image of a job":                      {bareJob, `"i"`, `"j"`, []string{"spec.selector", "spec.template"}, otherName},
		"one image of a job":                      {bareJob, `"i"`, `"j"`, []string{"spec.template.spec.containers[0].image"}, otherName},
		"a container more":                        {bareJob, `[{`, `[{"name":"x"},{`, []string{"spec.template"}, otherName},
		"a label":                                 {deployment, `"1"`, `"2"`, []string{"metadata.labels[a.b/c]"}, otherName},
		"what the server fills in":                {bareJob, "true", "false", []string{"spec.selector", "spec.template", "spec.template.metadata.labels"}, anyWay},
		"another field than the one that changed": {deployment, `"1"`, `"2"`, []string{"spec.replicas"}, anyWay},
		"fields that do not exist":                {deployment, `"1"`, `"2"`, []string{"", "<nil>", "..", "[", "]", "spec[0]", "spec.replicas.x", "metadata.labels[", "metadata.labels[x].y"}, anyWay},
		"a place that the list has not":           {bareJob, `"i"`, `"j"`, []string{"spec.template.spec.containers[1]", "spec.template.spec.containers[-1]", "spec.template.spec.containers[main]"}, anyWay},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			r := b.apply(c.manifest)
			b.must(Create, r)
			if o := b.f.Look(r.Ref); o.GetKind() == "Job" { // the server completes it
				_ = unstructured.SetNestedField(o.Object, "uid", "spec", "selector", "matchLabels", "controller-uid")
				_ = unstructured.SetNestedField(o.Object, "uid", "spec", "template", "metadata", "labels", "controller-uid")
				b.f.Remove(r.Ref)
				o.SetResourceVersion("")
				b.f.Put(o)
			}
			if c.fields != nil {
				b.f.Refuse = func(call clustertest.Call) error {
					if call.Verb != "update" {
						return nil
					}
					err := apierrors.NewInvalid(schema.GroupKind{Kind: "Thing"}, "a", nil)
					for _, field := range c.fields {
						err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Field: field})
					}
					return err
				}
			}
			r = b.apply(strings.Replace(c.manifest, c.from, c.to, 1))
			if r.Err == nil || !strings.HasSuffix(r.Err.Error(), c.want) {
				t.Errorf("got %v, want ...%s", r.Err, c.want)
			}
		})
	}
}
