package clustertest

import (
	"context"
	"fmt"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// others is about the rights of somebody else: reviews, and creations that are
// only gone through.
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
	s.mustCreate(t, roles, role("others", rule("", "configmaps", "get", "create"), rule(rbacv1.GroupName, "roles", "create")))
	s.mustCreate(t, roleBinds, Object(rbac.String(), "RoleBinding", s.ns, "others",
		"roleRef", map[string]any{"apiGroup": rbacv1.GroupName, "kind": "Role", "name": "others"},
		"subjects", []any{map[string]any{"kind": "ServiceAccount", "namespace": s.ns, "name": able}},
	))
	user := func(name string) string { return serviceAccount + ":" + s.ns + ":" + name }
	asked := func(ctx context.Context, name, verb string) (bool, error) {
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
		if ok, err := asked(ctx, able, "create"); !ok || err != nil {
			return fmt.Errorf("allowed: %t, %w", ok, err)
		}
		return nil
	})
	for _, c := range []struct{ name, verb string }{{able, "delete"}, {unable, "create"}} {
		if ok, err := asked(t.Context(), c.name, c.verb); ok || err != nil {
			t.Errorf("%s %s: got %t, %v; want no", c.name, c.verb, ok, err)
		}
	}

	object := Object("v1", "ConfigMap", s.ns, "others")
	for range 2 { // the first leaves nothing behind
		if err := s.c.RehearseCreate(t.Context(), user(able), configMaps, object); err != nil {
			t.Fatalf("got %v, want to be allowed", err)
		}
	}
	_, err := s.c.Get(t.Context(), s.ref(configMaps, "others"))
	want(t, "NotFound after a rehearsal", apierrors.IsNotFound, err)
	want(t, "Forbidden", apierrors.IsForbidden, s.c.RehearseCreate(t.Context(), user(unable), configMaps, object))
	s.mustCreate(t, configMaps, object)
	want(t, "AlreadyExists", apierrors.IsAlreadyExists, s.c.RehearseCreate(t.Context(), user(able), configMaps, object))

	own, more := role("given", rule("", "configmaps", "get")), role("given", rule("", "configmaps", "delete"))
	if err := s.c.RehearseCreate(t.Context(), user(able), roles, own); err != nil {
		t.Errorf("give away what one has: got %v", err)
	}
	want(t, "Forbidden for what one does not have", apierrors.IsForbidden, s.c.RehearseCreate(t.Context(), user(able), roles, more))
	s.mustCreate(t, roles, own)
	want(t, "AlreadyExists for what one has", apierrors.IsAlreadyExists, s.c.RehearseCreate(t.Context(), user(able), roles, own))
	want(t, "Forbidden before AlreadyExists", apierrors.IsForbidden, s.c.RehearseCreate(t.Context(), user(able), roles, more))
}
