package clustertest

import (
	"context"
	"fmt"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// others checks the rights of another user: reviews and dry runs.
func (s suite) others(t *testing.T) {
	const able, unable = "able", "unable"
	rbac := rbacv1.SchemeGroupVersion
	roles := rbac.WithResource("roles")
	rule := func(group, resource string, verbs ...any) any {
		return map[string]any{"apiGroups": []any{group}, "resources": []any{resource}, "verbs": verbs}
	}
	role := func(name string, rules ...any) *unstructured.Unstructured {
		return Object(rbac.String(), "Role", s.ns, name, "rules", rules)
	}
	s.mustCreate(t, roles, role("others", rule("", "configmaps", "get", "create"), rule(rbacv1.GroupName, "roles", "create", "update", "patch")))
	s.mustCreate(t, roleBinds, Object(rbac.String(), "RoleBinding", s.ns, "others",
		"roleRef", map[string]any{"apiGroup": rbacv1.GroupName, "kind": "Role", "name": "others"},
		"subjects", []any{map[string]any{"kind": "ServiceAccount", "namespace": s.ns, "name": able}},
	))
	user := func(name string) string { return serviceAccount + ":" + s.ns + ":" + name }
	requested := func(ctx context.Context, name, verb string) (bool, error) {
		got, err := s.c.Create(ctx, accessReviews, Object("authorization.k8s.io/v1", "SubjectAccessReview", "", "", "spec", map[string]any{
			"user": user(name), "groups": []any{serviceAccount + "s"},
			"resourceAttributes": map[string]any{"version": "v1", "resource": "configmaps", "namespace": s.ns, "name": "others", "verb": verb},
		}))
		if err != nil {
			return false, err
		}
		allowed, _, err := unstructured.NestedBool(got.Object, "status", "allowed")
		return allowed, err
	}
	eventually(t, "the binding counts", func(ctx context.Context) error {
		if ok, err := requested(ctx, able, "create"); !ok || err != nil {
			return fmt.Errorf("allowed: %t, %w", ok, err)
		}
		return nil
	})
	for _, c := range []struct{ name, verb string }{{able, "delete"}, {unable, "create"}} {
		if ok, err := requested(t.Context(), c.name, c.verb); ok || err != nil {
			t.Errorf("%s %s: got %t, %v; want no", c.name, c.verb, ok, err)
		}
	}

	as := func(name string) kubeclient.Objects { return s.c.As(user(name)) }
	createAs := func(name string, gvr schema.GroupVersionResource, o *unstructured.Unstructured) error {
		_, err := as(name).Create(t.Context(), gvr, o)
		return err
	}
	object := Object("v1", "ConfigMap", s.ns, "others")
	for range 2 { // a dry run changes nothing, so a second one has the same result
		if err := createAs(able, configMaps, object); err != nil {
			t.Fatalf("got %v, want to be allowed", err)
		}
	}
	_, err := s.c.Get(t.Context(), s.ref(configMaps, "others"))
	want(t, "NotFound after a rehearsal", apierrors.IsNotFound, err)
	want(t, "Forbidden", apierrors.IsForbidden, createAs(unable, configMaps, object))
	s.mustCreate(t, configMaps, object)
	want(t, "AlreadyExists", apierrors.IsAlreadyExists, createAs(able, configMaps, object))

	own, more := role("given", rule("", "configmaps", "get")), role("given", rule("", "configmaps", "delete"))
	if err := createAs(able, roles, own); err != nil {
		t.Errorf("a grant of rights that the user has: got %v", err)
	}
	want(t, "Forbidden for what one does not have", apierrors.IsForbidden, createAs(able, roles, more))
	made := s.mustCreate(t, roles, own)
	want(t, "AlreadyExists for what one has", apierrors.IsAlreadyExists, createAs(able, roles, own))
	want(t, "Forbidden before AlreadyExists", apierrors.IsForbidden, createAs(able, roles, more))
	s.othersChange(t, as(able), made, s.mustCreate(t, roles, role("not-theirs", rule("", "configmaps", "delete"))))
}

// othersChange checks updates of existing roles: the result counts, not the sent part.
func (s suite) othersChange(t *testing.T, able kubeclient.Objects, theirs, foreign *unstructured.Unstructured) {
	roles := rbacv1.SchemeGroupVersion.WithResource("roles")
	labelled := func(o *unstructured.Unstructured) *unstructured.Unstructured {
		o = o.DeepCopy()
		o.SetLabels(map[string]string{"a": "b"})
		return o
	}
	label := func(o *unstructured.Unstructured) *unstructured.Unstructured {
		return labelled(Object(rbacv1.SchemeGroupVersion.String(), "Role", s.ns, o.GetName()))
	}
	at := func(o *unstructured.Unstructured) kubeclient.Ref { return s.ref(roles, o.GetName()) }
	_, err := able.Update(t.Context(), roles, labelled(foreign))
	want(t, "Forbidden for a label on what one does not have", apierrors.IsForbidden, err)
	_, err = able.Patch(t.Context(), at(foreign), []byte(`{"metadata":{"labels":{"a":"b"}}}`), "")
	want(t, "Forbidden for a patch of a label", apierrors.IsForbidden, err)
	_, err = able.ServerSideApply(t.Context(), roles, label(foreign), one)
	want(t, "Forbidden for an apply of a label", apierrors.IsForbidden, err)
	owners := []byte(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"others","uid":"u-1"}]}}`)
	if _, err := able.Patch(t.Context(), at(foreign), owners, ""); err != nil {
		t.Errorf("owners give nothing away: %v", err)
	}
	want(t, "Forbidden for a deletion without the right", apierrors.IsForbidden, able.Delete(t.Context(), at(foreign), foreign.GetUID()))

	_, err = able.Update(t.Context(), roles, labelled(theirs))
	if err == nil {
		_, err = able.ServerSideApply(t.Context(), roles, label(theirs), one)
	}
	if err != nil {
		t.Errorf("a label on a role with rights that the user has: %v", err)
	}
	if after := s.mustGet(t, at(theirs)); after.GetResourceVersion() != theirs.GetResourceVersion() {
		t.Error("a rehearsal wrote something")
	}
}
