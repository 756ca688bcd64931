package clustertest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// The client of a Fake may do everything. Other users have the rights that roles on the cluster grant to service
// accounts and their groups. Only rules for resources are evaluated, and roles are not aggregated.

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
	ref := kubeclient.Ref{GroupVersionResource: schema.GroupVersionResource{Group: a.Group, Version: a.Version, Resource: a.Resource}, Namespace: a.Namespace, Name: a.Name}
	if err := f.enter(Call{reviewVerb + a.Verb, ref}); err != nil {
		return nil, err
	}
	if r.Status.Allowed = f.may(r.Spec.User, r.Spec.Groups, a.Verb, ref); r.Status.Allowed {
		r.Status.Reason = "RBAC: allowed by a binding"
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&r)
	return &unstructured.Unstructured{Object: content}, err
}

// As implements kubeclient.DryRunner.
func (f *Fake) As(user string) kubeclient.Objects { return dryRun{f, user} }

// dryRun executes writes on a copy of the cluster.
type dryRun struct {
	f    *Fake
	user string
}

// Get implements kubeclient.Objects.
func (r dryRun) Get(context.Context, kubeclient.Ref) (*unstructured.Unstructured, error) {
	panic("only writes are gone through")
}

// Create implements kubeclient.Objects.
func (r dryRun) Create(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	return r.write(kubeclient.Create, refOf(gvr, obj), obj, func(on *Fake) (*unstructured.Unstructured, error) { return on.Create(ctx, gvr, obj) })
}

// Update implements kubeclient.Objects.
func (r dryRun) Update(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	return r.write(kubeclient.Update, refOf(gvr, obj), nil, func(on *Fake) (*unstructured.Unstructured, error) { return on.Update(ctx, gvr, obj) })
}

// Patch implements kubeclient.Objects.
func (r dryRun) Patch(ctx context.Context, ref kubeclient.Ref, patch []byte, subresource string) (*unstructured.Unstructured, error) {
	return r.write(kubeclient.Patch, ref, nil, func(on *Fake) (*unstructured.Unstructured, error) {
		return on.Patch(ctx, ref, patch, subresource)
	})
}

// ServerSideApply implements kubeclient.Objects.
func (r dryRun) ServerSideApply(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured, by kubeclient.FieldManager) (*unstructured.Unstructured, error) {
	return r.write(kubeclient.Patch, refOf(gvr, obj), nil, func(on *Fake) (*unstructured.Unstructured, error) {
		return on.ServerSideApply(ctx, gvr, obj, by)
	})
}

// Delete implements kubeclient.Objects.
func (r dryRun) Delete(ctx context.Context, ref kubeclient.Ref, uid types.UID) error {
	_, err := r.write(kubeclient.Delete, ref, nil, func(on *Fake) (*unstructured.Unstructured, error) { return nil, on.Delete(ctx, ref, uid) })
	return err
}

func refOf(gvr schema.GroupVersionResource, o *unstructured.Unstructured) kubeclient.Ref {
	return kubeclient.Ref{GroupVersionResource: gvr, Namespace: o.GetNamespace(), Name: o.GetName()}
}

// write executes one write. As on a real server, a role with rights that the user may not grant is refused
// before the existence of the object is checked. A write of owners and finalizers alone grants nothing.
func (r dryRun) write(verb string, ref kubeclient.Ref, made *unstructured.Unstructured, do func(on *Fake) (*unstructured.Unstructured, error)) (*unstructured.Unstructured, error) {
	f := r.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter(Call{dryRunVerb + verb, ref}); err != nil {
		return nil, err
	}
	old, groups := f.objects[keyOf(ref)], groupsOf(r.user)
	verbs := []string{verb}
	if verb == kubeclient.Patch && old == nil {
		verbs = append(verbs, kubeclient.Create)
	}
	for _, verb := range verbs {
		requested := ref
		if made != nil {
			requested.Name = "" // the path of the request has no name
		}
		if !f.may(r.user, groups, verb, requested) {
			return nil, apierrors.NewForbidden(ref.GroupResource(), ref.Name, fmt.Errorf("User %q cannot %s resource %q in API group %q", r.user, verb, ref.Resource, ref.Group)) //nolint:staticcheck // the text of a real server
		}
	}
	on := &Fake{Now: f.Now, Prune: f.Prune, kinds: maps.Clone(f.kinds), objects: maps.Clone(f.objects), counter: f.counter}
	o, err := do(on)
	given := made
	if given == nil && err == nil && o != nil && !onlyOwners(old, o) {
		given = o
	}
	if given != nil {
		for _, rule := range f.granted(given) {
			if !f.covers(r.user, groups, ref.Namespace, rule) {
				return nil, apierrors.NewForbidden(ref.GroupResource(), ref.Name, fmt.Errorf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held", r.user, groups))
			}
		}
	}
	return o, err
}

// onlyOwners reports whether only owners, finalizers and managedFields differ.
func onlyOwners(old, next *unstructured.Unstructured) bool {
	if old == nil {
		return false
	}
	next = next.DeepCopy()
	next.SetOwnerReferences(old.GetOwnerReferences())
	next.SetFinalizers(old.GetFinalizers())
	next.SetManagedFields(old.GetManagedFields())
	next.SetResourceVersion(old.GetResourceVersion())
	return equality.Semantic.DeepEqual(next.Object, old.Object)
}

// groupsOf returns the groups that the server gives to a service account.
func groupsOf(user string) []string {
	namespace, _, _ := strings.Cut(strings.TrimPrefix(user, serviceAccount+":"), ":")
	return []string{serviceAccount + "s", serviceAccount + "s:" + namespace, "system:authenticated"}
}

// granted returns the rules that an RBAC object grants.
func (f *Fake) granted(o *unstructured.Unstructured) []rbacv1.PolicyRule {
	if roleRef, bound, _ := unstructured.NestedStringMap(o.Object, "roleRef"); bound {
		return f.rules(roleRef, o.GetNamespace())
	}
	return rulesOf(o)
}

// covers reports whether the user has all rights of a rule.
func (f *Fake) covers(user string, groups []string, namespace string, rule rbacv1.PolicyRule) bool {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, verb := range rule.Verbs {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, name := range names {
					ref := kubeclient.Ref{GroupVersionResource: schema.GroupVersionResource{Group: group, Resource: resource}, Namespace: namespace, Name: name}
					if !f.may(user, groups, verb, ref) {
						return false
					}
				}
			}
		}
	}
	return true
}

// may reports whether roles allow an action to a user or one of its groups. f.mu is held.
func (f *Fake) may(user string, groups []string, verb string, ref kubeclient.Ref) bool {
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

// rules returns the rules of the role that a binding refers to.
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
		return nil // the server would have rejected it
	}
	return r.Rules
}

func allows(r rbacv1.PolicyRule, verb string, ref kubeclient.Ref) bool {
	has := func(list []string, s string) bool { return slices.Contains(list, s) || slices.Contains(list, "*") }
	return has(r.Verbs, verb) && has(r.APIGroups, ref.Group) && has(r.Resources, ref.Resource) &&
		(len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, ref.Name))
}
