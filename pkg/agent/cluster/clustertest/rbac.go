package clustertest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/pkg/agent/cluster"
)

// The client of a Fake may do everything. What others may do is what the roles
// on the cluster say, as far as the agent asks: rules for resources, held by
// service accounts and their groups. Roles are not aggregated.

const (
	reviewVerb     = "review "
	serviceAccount = "system:serviceaccount"
)

var accessReviews = authorizationv1.SchemeGroupVersion.WithResource("subjectaccessreviews")

// review answers a SubjectAccessReview about an object.
func (f *Fake) review(obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	var r authorizationv1.SubjectAccessReview
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(obj.Object, &r, true); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	a := r.Spec.ResourceAttributes
	if a == nil || r.Spec.User == "" {
		return nil, apierrors.NewBadRequest("the review is not about a user and a resource")
	}
	ref := cluster.Ref{GroupVersionResource: schema.GroupVersionResource{Group: a.Group, Version: a.Version, Resource: a.Resource}, Namespace: a.Namespace, Name: a.Name}
	if err := f.enter(Call{reviewVerb + a.Verb, ref}); err != nil {
		return nil, err
	}
	if r.Status.Allowed = f.may(r.Spec.User, r.Spec.Groups, a.Verb, ref); r.Status.Allowed {
		r.Status.Reason = "RBAC: allowed by a binding"
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&r)
	return &unstructured.Unstructured{Object: content}, err
}

// RehearseCreate implements cluster.Rehearser. As on a real server, a role that
// the user may not give away is refused before it matters whether it exists.
func (f *Fake) RehearseCreate(_ context.Context, user string, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	ref := cluster.Ref{GroupVersionResource: gvr, Namespace: obj.GetNamespace(), Name: obj.GetName()}
	if err := f.enter(Call{"rehearse create", ref}); err != nil {
		return err
	}
	k, err := f.kindOf(ref)
	if err != nil {
		return err
	}
	groups := groupsOf(user)
	if !f.may(user, groups, "create", ref) {
		return apierrors.NewForbidden(ref.GroupResource(), ref.Name, fmt.Errorf("User %q cannot create resource %q in API group %q", user, ref.Resource, ref.Group)) //nolint:staticcheck // as a server says it
	}
	for _, rule := range f.granted(obj) {
		if !f.covers(user, groups, ref.Namespace, rule) {
			return apierrors.NewForbidden(ref.GroupResource(), ref.Name, fmt.Errorf("user %q is attempting to grant RBAC permissions not currently held", user))
		}
	}
	if f.objects[keyOf(ref)] != nil {
		return apierrors.NewAlreadyExists(ref.GroupResource(), ref.Name)
	}
	return f.admit(ref, k, obj)
}

// groupsOf are those that the server gives to a service account.
func groupsOf(user string) []string {
	namespace, _, _ := strings.Cut(strings.TrimPrefix(user, serviceAccount+":"), ":")
	return []string{serviceAccount + "s", serviceAccount + "s:" + namespace, "system:authenticated"}
}

// granted returns the rules that an RBAC object gives to somebody.
func (f *Fake) granted(o *unstructured.Unstructured) []rbacv1.PolicyRule {
	if roleRef, bound, _ := unstructured.NestedStringMap(o.Object, "roleRef"); bound {
		return f.rules(roleRef, o.GetNamespace())
	}
	return rulesOf(o)
}

// covers reports whether the user may do all of what a rule allows.
func (f *Fake) covers(user string, groups []string, namespace string, rule rbacv1.PolicyRule) bool {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, verb := range rule.Verbs {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, name := range names {
					ref := cluster.Ref{GroupVersionResource: schema.GroupVersionResource{Group: group, Resource: resource}, Namespace: namespace, Name: name}
					if !f.may(user, groups, verb, ref) {
						return false
					}
				}
			}
		}
	}
	return true
}

// may reports whether roles allow a user, or one of its groups, to do something.
// f.mu is held.
func (f *Fake) may(user string, groups []string, verb string, ref cluster.Ref) bool {
	for _, o := range f.objects {
		kind := o.GetKind()
		if kind != "ClusterRoleBinding" && (kind != "RoleBinding" || o.GetNamespace() != ref.Namespace) || !binds(o, user, groups) {
			continue
		}
		roleRef, _, _ := unstructured.NestedStringMap(o.Object, "roleRef")
		if slices.ContainsFunc(f.rules(roleRef, o.GetNamespace()), func(r rbacv1.PolicyRule) bool { return allows(r, verb, ref) }) {
			return true
		}
	}
	return false
}

// binds reports whether a binding names a user or one of its groups.
func binds(binding *unstructured.Unstructured, user string, groups []string) bool {
	subjects, _, _ := unstructured.NestedSlice(binding.Object, "subjects")
	return slices.ContainsFunc(subjects, func(s any) bool {
		subject, _ := s.(map[string]any)
		name, _ := subject["name"].(string)
		namespace, _ := subject["namespace"].(string)
		switch subject["kind"] {
		case "ServiceAccount":
			return user == serviceAccount+":"+namespace+":"+name
		case "User":
			return user == name
		case "Group":
			return slices.Contains(groups, name)
		}
		return false
	})
}

// rules returns those of the role that a binding refers to.
func (f *Fake) rules(roleRef map[string]string, namespace string) []rbacv1.PolicyRule {
	k := key{schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterroles"}, "", roleRef["name"]}
	if roleRef["kind"] == "Role" {
		k = key{schema.GroupResource{Group: rbacv1.GroupName, Resource: "roles"}, namespace, roleRef["name"]}
	}
	if o := f.objects[k]; o != nil {
		return rulesOf(o)
	}
	return nil
}

func rulesOf(role *unstructured.Unstructured) []rbacv1.PolicyRule {
	var r rbacv1.ClusterRole
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(role.Object, &r); err != nil {
		return nil // the server would not have taken it
	}
	return r.Rules
}

func allows(r rbacv1.PolicyRule, verb string, ref cluster.Ref) bool {
	has := func(list []string, s string) bool { return slices.Contains(list, s) || slices.Contains(list, "*") }
	return has(r.Verbs, verb) && has(r.APIGroups, ref.Group) && has(r.Resources, ref.Resource) &&
		(len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, ref.Name))
}
