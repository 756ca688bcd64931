package clustertest

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// Run checks the behavior that the agent relies on. namespace must exist and be empty. The names of
// cluster-scoped objects are derived from it.
func Run(t *testing.T, c kubeclient.Client, namespace string) {
	s := suite{c: c, ns: namespace}
	t.Run("Kinds", s.kinds)
	t.Run("MissingObjectAndMissingResourceDiffer", s.missing)
	t.Run("Create", s.create)
	t.Run("UpdateConditions", s.update)
	t.Run("PatchConditions", s.patch)
	t.Run("GenerationAndStatus", s.generation)
	t.Run("ServerSideApply", s.serverSideApply)
	t.Run("ServerSideApplyConditions", s.applyConditions)
	t.Run("ServerSideApplyLists", s.applyLists)
	t.Run("DeleteConditionsAndFinalizers", s.delete)
	t.Run("Immutable", s.immutable)
	t.Run("CustomResources", s.customResources)
	t.Run("ChangesByOthers", s.others)
	t.Run("OwnWrites", s.own)
}

type suite struct {
	c  kubeclient.Client
	ns string
}

var (
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	secrets     = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	roleBinds   = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"}
	crds        = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

func (s suite) ref(gvr schema.GroupVersionResource, name string) kubeclient.Ref {
	return kubeclient.Ref{GroupVersionResource: gvr, Namespace: s.ns, Name: name}
}

func (s suite) mustCreate(t *testing.T, gvr schema.GroupVersionResource, o *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	got, err := s.c.Create(t.Context(), gvr, o)
	if err != nil {
		t.Fatalf("create %s: %v", o.GetName(), err)
	}
	return got
}

func (s suite) mustGet(t *testing.T, ref kubeclient.Ref) *unstructured.Unstructured {
	t.Helper()
	got, err := s.c.Get(t.Context(), ref)
	if err != nil {
		t.Fatalf("get %s: %v", ref, err)
	}
	return got
}

func want(t *testing.T, what string, is func(error) bool, err error) {
	t.Helper()
	if !is(err) {
		t.Fatalf("got %v (%T), want %s", err, err, what)
	}
}

func isNotServed(err error) bool {
	return errors.As(err, new(*kubeclient.NotServedError))
}

func isNoKind(err error) bool {
	return errors.As(err, new(*kubeclient.NoKindError))
}

func (s suite) kinds(t *testing.T) {
	for _, c := range []struct {
		gvk      schema.GroupVersionKind
		resource string
		inSpace  bool
	}{
		{schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, "configmaps", true},
		{schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, "pods", true},
		{schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, "namespaces", false},
		{schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, "deployments", true},
	} {
		r, err := s.c.Resolve(t.Context(), c.gvk)
		if err != nil || r.Resource != c.resource || r.Namespaced != c.inSpace || r.Kind != c.gvk.Kind {
			t.Errorf("%v: got %+v, %v", c.gvk, r, err)
		}
	}
	for _, gvk := range []schema.GroupVersionKind{
		{Version: "v1", Kind: "Nothing"}, {Group: "none.example.com", Version: "v1", Kind: "Nothing"}, {Group: "apps", Version: "v7", Kind: "Deployment"},
	} {
		_, err := s.c.Resolve(t.Context(), gvk)
		want(t, "NoKindError", isNoKind, err)
		text := `the server doesn't have a resource type "` + gvk.Kind + `" in ` + gvk.GroupVersion().String() + "; "
		if strings.Contains(gvk.Group, ".") { // otherwise no definition can add it
			text += "deliver its CustomResourceDefinition with a work, or "
		}
		if text += "correct apiVersion and kind"; err.Error() != text {
			t.Errorf("got %q, want %q", err, text)
		}
	}
}

func (s suite) missing(t *testing.T) {
	_, err := s.c.Get(t.Context(), s.ref(configMaps, "none"))
	want(t, "NotFound", apierrors.IsNotFound, err)
	err = s.c.Delete(t.Context(), s.ref(configMaps, "none"), "x")
	want(t, "NotFound", apierrors.IsNotFound, err)
	_, err = s.c.Patch(t.Context(), s.ref(configMaps, "none"), []byte(`{}`), "")
	want(t, "NotFound", apierrors.IsNotFound, err)
	for _, gvr := range []schema.GroupVersionResource{{Version: "v1", Resource: "nothings"}, {Group: "none.example.com", Version: "v1", Resource: "nothings"}, {Group: "apps", Version: "v7", Resource: "deployments"}} {
		_, err = s.c.Get(t.Context(), s.ref(gvr, "none"))
		want(t, "NotServedError", isNotServed, err)
		if apierrors.IsNotFound(err) {
			t.Errorf("%v: a resource that is not served must not look like an object that is not found", gvr)
		}
		want(t, "NotServedError", isNotServed, s.c.Delete(t.Context(), s.ref(gvr, "none"), "x"))
	}
	r, err := s.c.Locate(t.Context(), schema.GroupResource{Group: "apps", Resource: "deployments"})
	if err != nil || r.GroupVersionResource != deployments {
		t.Errorf("locate deployments: got %v, %v", r, err)
	}
	_, err = s.c.Locate(t.Context(), schema.GroupResource{Group: "none.example.com", Resource: "nothings"})
	want(t, "NotServedError", isNotServed, err)
}

func (s suite) create(t *testing.T) {
	in := Object("v1", "ConfigMap", s.ns, "create", "data", map[string]any{"k": "v"})
	got := s.mustCreate(t, configMaps, in)
	if got.GetUID() == "" || got.GetResourceVersion() == "" || in.GetUID() != "" {
		t.Errorf("a created object has uid and resource version, the argument stays as it was: %v %v", got.GetUID(), in.GetUID())
	}
	_, err := s.c.Create(t.Context(), configMaps, in)
	want(t, "AlreadyExists", apierrors.IsAlreadyExists, err)
	_, err = s.c.Create(t.Context(), configMaps, Object("v1", "ConfigMap", s.ns+"-none", "create"))
	want(t, "NotFound", apierrors.IsNotFound, err)
	incomplete := Object("v1", "ConfigMap", s.ns, "incomplete")
	incomplete.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "a"}})
	_, err = s.c.Create(t.Context(), configMaps, incomplete)
	want(t, "Invalid", apierrors.IsInvalid, err)
}

func (s suite) update(t *testing.T) {
	first := s.mustCreate(t, configMaps, Object("v1", "ConfigMap", s.ns, "update", "data", map[string]any{"k": "1"}))
	same, err := s.c.Update(t.Context(), configMaps, first)
	if err != nil || same.GetResourceVersion() != first.GetResourceVersion() {
		t.Fatalf("an update without a difference must not write: %v, %v", same.GetResourceVersion(), err)
	}
	second := first.DeepCopy()
	second.Object["data"] = map[string]any{"k": "2"}
	if second, err = s.c.Update(t.Context(), configMaps, second); err != nil || second.GetResourceVersion() == first.GetResourceVersion() {
		t.Fatalf("update: %v, %v", second, err)
	}
	first.Object["data"] = map[string]any{"k": "3"}
	_, err = s.c.Update(t.Context(), configMaps, first)
	want(t, "Conflict for an old resource version", apierrors.IsConflict, err)
	other := second.DeepCopy()
	other.SetResourceVersion("")
	other.SetUID("00000000-0000-0000-0000-000000000000")
	_, err = s.c.Update(t.Context(), configMaps, other)
	want(t, "Conflict for another uid", apierrors.IsConflict, err)
	_, err = s.c.Update(t.Context(), configMaps, Object("v1", "ConfigMap", s.ns, "none"))
	want(t, "NotFound", apierrors.IsNotFound, err)
}

// body returns a merge patch with the preconditions of o.
func body(o *unstructured.Unstructured, top map[string]any) []byte {
	meta := map[string]any{"uid": string(o.GetUID()), "resourceVersion": o.GetResourceVersion()}
	if more, ok := top["metadata"].(map[string]any); ok {
		for k, v := range more {
			meta[k] = v
		}
	}
	all := map[string]any{"metadata": meta}
	for k, v := range top {
		if k != "metadata" {
			all[k] = v
		}
	}
	b, err := json.Marshal(all)
	if err != nil {
		panic(err)
	}
	return b
}

func (s suite) patch(t *testing.T) {
	ref := s.ref(configMaps, "patch")
	first := s.mustCreate(t, configMaps, Object("v1", "ConfigMap", s.ns, "patch", "data", map[string]any{"a": "1", "b": "2"}))
	second, err := s.c.Patch(t.Context(), ref, body(first, map[string]any{"data": map[string]any{"a": nil, "c": "3"}}), "")
	if err != nil {
		t.Fatal(err)
	}
	if got, _, _ := unstructured.NestedStringMap(second.Object, "data"); len(got) != 2 || got["b"] != "2" || got["c"] != "3" {
		t.Errorf("got %v", got)
	}
	_, err = s.c.Patch(t.Context(), ref, body(first, map[string]any{"data": map[string]any{"d": "4"}}), "")
	want(t, "Conflict for an old resource version", apierrors.IsConflict, err)
	second.SetUID("00000000-0000-0000-0000-000000000000")
	_, err = s.c.Patch(t.Context(), ref, body(second, map[string]any{"data": map[string]any{"d": "4"}}), "")
	want(t, "Invalid for another uid in the latest version", apierrors.IsInvalid, err)
}

func (s suite) deployment(name string) *unstructured.Unstructured {
	labels := map[string]any{"app": name}
	return Object("apps/v1", "Deployment", s.ns, name, "spec", map[string]any{
		"selector": map[string]any{"matchLabels": labels},
		"template": map[string]any{
			"metadata": map[string]any{"labels": labels},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "example.com/none:1"}}},
		},
	})
}

func (s suite) generation(t *testing.T) {
	ref := s.ref(deployments, "generation")
	o := s.mustCreate(t, deployments, s.deployment("generation"))
	if n, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); o.GetGeneration() != 1 || n != 1 {
		t.Fatalf("got generation %d and %d replicas, want 1 and the default 1", o.GetGeneration(), n)
	}
	patch := func(top map[string]any, sub string) *unstructured.Unstructured {
		t.Helper()
		b, err := json.Marshal(top)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.c.Patch(t.Context(), ref, b, sub)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if o = patch(map[string]any{"metadata": map[string]any{"labels": map[string]any{"x": "y"}}}, ""); o.GetGeneration() != 1 {
		t.Errorf("a label raised the generation to %d", o.GetGeneration())
	}
	o = patch(map[string]any{"status": map[string]any{"observedGeneration": 1}, "spec": map[string]any{"replicas": 9}}, "status")
	if n, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); o.GetGeneration() != 1 || n != 1 {
		t.Errorf("the status endpoint changed the spec: generation %d, %d replicas", o.GetGeneration(), n)
	}
	if n, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration"); n != 1 {
		t.Errorf("status: got %v", o.Object["status"])
	}
	if o = patch(map[string]any{"spec": map[string]any{"replicas": 2}}, ""); o.GetGeneration() != 2 {
		t.Errorf("got generation %d, want 2", o.GetGeneration())
	}
}

func (s suite) delete(t *testing.T) {
	ref := s.ref(configMaps, "delete")
	in := Object("v1", "ConfigMap", s.ns, "delete")
	in.SetFinalizers([]string{"example.com/hold"})
	o := s.mustCreate(t, configMaps, in)
	want(t, "Conflict for another uid", apierrors.IsConflict, s.c.Delete(t.Context(), ref, "00000000-0000-0000-0000-000000000000"))
	if err := s.c.Delete(t.Context(), ref, o.GetUID()); err != nil {
		t.Fatal(err)
	}
	held := s.mustGet(t, ref)
	if held.GetDeletionTimestamp() == nil || len(held.GetFinalizers()) != 1 {
		t.Fatalf("a finalizer holds the object in deletion: %v %v", held.GetDeletionTimestamp(), held.GetFinalizers())
	}
	if err := s.c.Delete(t.Context(), ref, o.GetUID()); err != nil {
		t.Fatalf("deleting twice: %v", err)
	}
	last, err := s.c.Patch(t.Context(), ref, body(s.mustGet(t, ref), map[string]any{"metadata": map[string]any{"finalizers": nil}}), "")
	if err != nil || len(last.GetFinalizers()) != 0 {
		t.Fatalf("the last answer has no finalizers: %v, %v", last, err)
	}
	_, err = s.c.Get(t.Context(), ref)
	want(t, "NotFound", apierrors.IsNotFound, err)
}

func (s suite) immutable(t *testing.T) {
	secret := s.mustCreate(t, secrets, Object("v1", "Secret", s.ns, "frozen", "data", map[string]any{"k": "dg=="}, "immutable", true))
	if secret.Object["type"] != "Opaque" {
		t.Errorf("got type %v, want the default Opaque", secret.Object["type"])
	}
	secret.Object["data"] = map[string]any{"k": "dw=="}
	_, err := s.c.Update(t.Context(), secrets, secret)
	want(t, "Invalid", apierrors.IsInvalid, err)

	role := map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
	bind := s.mustCreate(t, roleBinds, Object("rbac.authorization.k8s.io/v1", "RoleBinding", s.ns, "frozen", "roleRef", role))
	bind.Object["roleRef"] = map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
	_, err = s.c.Update(t.Context(), roleBinds, bind)
	want(t, "Invalid", apierrors.IsInvalid, err)
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil || len(status.Status().Details.Causes) != 1 || status.Status().Details.Causes[0].Field != "roleRef" {
		t.Errorf("the answer does not name the field: %+v", err)
	}
}

func (s suite) definition(plural, kindName string) *unstructured.Unstructured {
	return Object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", plural+"."+s.ns+".example.com", "spec", map[string]any{
		"group": s.ns + ".example.com", "scope": "Namespaced",
		"names": map[string]any{"plural": plural, "singular": "rope", "kind": kindName, "listKind": kindName + "List"},
		"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{
			"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
		}}},
	})
}

// Custom resources appear and disappear while the client runs.
func (s suite) customResources(t *testing.T) {
	gv := schema.GroupVersion{Group: s.ns + ".example.com", Version: "v1"}
	_, err := s.c.Resolve(t.Context(), gv.WithKind("Rope"))
	want(t, "NoKindError", isNoKind, err)
	def := s.mustCreate(t, crds, s.definition("ropes", "Rope"))

	var r kubeclient.Resource
	eventually(t, "the kind appears", func(ctx context.Context) (err error) {
		r, err = s.c.Resolve(ctx, gv.WithKind("Rope"))
		return err
	})
	if r.Resource != "ropes" || !r.Namespaced {
		t.Fatalf("got %+v", r)
	}
	eventually(t, "a rope can be made", func(ctx context.Context) error {
		_, err := s.c.Create(ctx, r.GroupVersionResource, Object(gv.String(), "Rope", s.ns, "r", "spec", map[string]any{"length": int64(3)}))
		return err
	})
	if got, err := s.c.Locate(t.Context(), r.GroupResource()); err != nil || got != r {
		t.Errorf("locate: got %v, %v", got, err)
	}
	if err := s.c.Delete(t.Context(), kubeclient.Ref{GroupVersionResource: crds, Name: def.GetName()}, def.GetUID()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the resource is not served any more", func(ctx context.Context) error {
		if _, err := s.c.Get(ctx, s.ref(r.GroupVersionResource, "r")); !isNotServed(err) {
			return errors.New("it is still served")
		}
		return nil
	})
	eventually(t, "and is known not to be", func(ctx context.Context) error {
		if _, err := s.c.Resolve(ctx, gv.WithKind("Rope")); !isNoKind(err) {
			return errors.New("it is still known")
		}
		return nil
	})
}

// eventually polls until f succeeds, for as long as a real server needs.
func eventually(t *testing.T, what string, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-tick.C:
		}
	}
}
