package clustertest

import (
	"maps"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

var (
	one     = kubeclient.FieldManager{Name: "work-agent"}
	another = kubeclient.FieldManager{Name: "work-agent-b"}
)

func (s suite) config(name string, data map[string]any) *unstructured.Unstructured {
	return Object("v1", "ConfigMap", s.ns, name, "data", data)
}

func (s suite) mustApply(t *testing.T, gvr schema.GroupVersionResource, o *unstructured.Unstructured, by kubeclient.FieldManager) *unstructured.Unstructured {
	t.Helper()
	got, err := s.c.ServerSideApply(t.Context(), gvr, o, by)
	if err != nil {
		t.Fatalf("apply %s by %s: %v", o.GetName(), by.Name, err)
	}
	return got
}

func wantData(t *testing.T, o *unstructured.Unstructured, want map[string]string) {
	t.Helper()
	if got, _, _ := unstructured.NestedStringMap(o.Object, "data"); !maps.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", o.GetName(), got, want)
	}
}

// serverSideApply checks field ownership.
func (s suite) serverSideApply(t *testing.T) {
	apply := func(by kubeclient.FieldManager, data map[string]any) *unstructured.Unstructured {
		t.Helper()
		return s.mustApply(t, configMaps, s.config("applied", data), by)
	}
	first := apply(one, map[string]any{"a": "1", "b": "1"})
	if e := first.GetManagedFields(); len(e) != 1 || e[0].Manager != one.Name || e[0].Operation != metav1.ManagedFieldsOperationApply || e[0].FieldsV1 == nil {
		t.Fatalf("managed fields: got %v", e)
	}
	if again := apply(one, map[string]any{"a": "1", "b": "1"}); again.GetResourceVersion() != first.GetResourceVersion() {
		t.Error("an apply without a difference must not write")
	}
	wantData(t, apply(one, map[string]any{"a": "2"}), map[string]string{"a": "2"})
	wantData(t, apply(another, map[string]any{"c": "1"}), map[string]string{"a": "2", "c": "1"})
	wantData(t, apply(one, map[string]any{"a": "3"}), map[string]string{"a": "3", "c": "1"})

	_, err := s.c.ServerSideApply(t.Context(), configMaps, s.config("applied", map[string]any{"a": "4", "c": "1"}), another)
	want(t, "a field conflict", kubeclient.IsFieldConflict, err)
	if text := `Apply failed with 1 conflict: conflict with "work-agent": .data.a`; err.Error() != text {
		t.Errorf("got %q, want %q", err, text)
	}
	wantData(t, s.mustGet(t, s.ref(configMaps, "applied")), map[string]string{"a": "3", "c": "1"})
	forced := another
	forced.Force = true
	wantData(t, apply(forced, map[string]any{"a": "4", "c": "1"}), map[string]string{"a": "4", "c": "1"})
	_, err = s.c.ServerSideApply(t.Context(), configMaps, s.config("applied", map[string]any{"a": "3"}), one)
	want(t, "a field conflict", kubeclient.IsFieldConflict, err)
	wantData(t, apply(one, map[string]any{"d": "1"}), map[string]string{"a": "4", "c": "1", "d": "1"})

	ref := s.ref(configMaps, "applied")
	if _, err := s.c.Patch(t.Context(), ref, []byte(`{"data":{"d":null}}`), ""); err != nil {
		t.Fatal(err)
	}
	wantData(t, apply(one, map[string]any{"d": "1"}), map[string]string{"a": "4", "c": "1", "d": "1"})
	if _, err := s.c.Patch(t.Context(), ref, []byte(`{"data":{"d":"2"}}`), ""); err != nil {
		t.Fatal(err)
	}
	_, err = s.c.ServerSideApply(t.Context(), configMaps, s.config("applied", map[string]any{"d": "1"}), one)
	want(t, "a field conflict with a writer of the same name", kubeclient.IsFieldConflict, err)
}

// applyConditions checks preconditions of an apply.
func (s suite) applyConditions(t *testing.T) {
	first := s.mustApply(t, configMaps, s.config("expected", map[string]any{"a": "1"}), one)
	second := s.mustApply(t, configMaps, s.config("expected", map[string]any{"a": "2"}), one)
	body := s.config("expected", map[string]any{"a": "3"})
	body.SetUID(first.GetUID())
	body.SetResourceVersion(first.GetResourceVersion())
	conflict := func(err error) bool { return apierrors.IsConflict(err) && !kubeclient.IsFieldConflict(err) }
	_, err := s.c.ServerSideApply(t.Context(), configMaps, body, one)
	want(t, "Conflict for an old resource version", conflict, err)
	body.SetResourceVersion(second.GetResourceVersion())
	wantData(t, s.mustApply(t, configMaps, body, one), map[string]string{"a": "3"})

	if err := s.c.Delete(t.Context(), s.ref(configMaps, "expected"), first.GetUID()); err != nil {
		t.Fatal(err)
	}
	_, err = s.c.ServerSideApply(t.Context(), configMaps, body, one)
	want(t, "Conflict for an object that is gone", conflict, err)
	body.SetResourceVersion("")
	_, err = s.c.ServerSideApply(t.Context(), configMaps, body, one)
	want(t, "Conflict for an object that is gone", conflict, err)
	body.SetUID("")
	s.mustApply(t, configMaps, body, one)

	fresh := s.config("fresh", map[string]any{"a": "1"})
	fresh.SetResourceVersion(kubeclient.NoVersion)
	s.mustApply(t, configMaps, fresh, one)
	_, err = s.c.ServerSideApply(t.Context(), configMaps, fresh, one)
	want(t, "Conflict for an object that there is", conflict, err)

	elsewhere := Object("v1", "ConfigMap", s.ns+"-none", "expected")
	_, err = s.c.ServerSideApply(t.Context(), configMaps, elsewhere, one)
	want(t, "NotFound", apierrors.IsNotFound, err)
	none := schema.GroupVersionResource{Group: "none.example.com", Version: "v1", Resource: "nothings"}
	_, err = s.c.ServerSideApply(t.Context(), none, Object("none.example.com/v1", "Nothing", s.ns, "n"), one)
	want(t, "NotServedError", isNotServed, err)
}

// applyLists checks lists that are merged by a key, and fields that were never applied.
func (s suite) applyLists(t *testing.T) {
	env := func(pairs ...string) *unstructured.Unstructured {
		o := s.deployment("lists")
		var list []any
		for i := 0; i < len(pairs); i += 2 {
			list = append(list, map[string]any{"name": pairs[i], "value": pairs[i+1]})
		}
		template := o.Object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
		template["containers"].([]any)[0].(map[string]any)["env"] = list
		return o
	}
	values := func(o *unstructured.Unstructured) string {
		containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
		var texts []string
		for _, e := range containers[0].(map[string]any)["env"].([]any) {
			texts = append(texts, e.(map[string]any)["name"].(string)+"="+e.(map[string]any)["value"].(string))
		}
		slices.Sort(texts)
		return strings.Join(texts, " ")
	}
	o := s.mustApply(t, deployments, env("A", "1", "B", "1"), one)
	if n, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); n != 1 || values(o) != "A=1 B=1" {
		t.Fatalf("got %d replicas and %s", n, values(o))
	}
	other := env("C", "1")
	if err := unstructured.SetNestedField(other.Object, int64(3), "spec", "replicas"); err != nil {
		t.Fatal(err)
	}
	if o = s.mustApply(t, deployments, other, another); values(o) != "A=1 B=1 C=1" || o.GetGeneration() != 2 {
		t.Errorf("got %s in generation %d", values(o), o.GetGeneration())
	}
	o = s.mustApply(t, deployments, env("A", "2"), one)
	if n, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); n != 3 || values(o) != "A=2 C=1" || o.GetGeneration() != 3 {
		t.Errorf("got %d replicas and %s in generation %d", n, values(o), o.GetGeneration())
	}
}
