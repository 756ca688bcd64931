package executor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/pkg/agent/cluster"
)

// RetryAfter is when to ask again after a denial.
const RetryAfter = time.Minute

// Cluster is what a Checker asks; a cluster.Client is one.
type Cluster interface {
	// Create makes obj, here only reviews, which are answered and not kept.
	Create(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) (*unstructured.Unstructured, error)
	cluster.Rehearser
}

// Object is one that is about to be applied.
type Object struct {
	Ref cluster.Ref
	// Owned: the object is deleted when its work is.
	Owned bool
}

// DeniedError says that the account may not apply an object.
type DeniedError struct {
	Ref cluster.Ref
	// Verbs are those that are denied. None: the object would give rights away
	// that the account does not have.
	Verbs []string
}

// Error has the text that users of OCM know.
func (e *DeniedError) Error() string {
	why := ""
	if len(e.Verbs) == 0 {
		why = ", error: permission escalation"
	}
	return fmt.Sprintf("not allowed to apply the resource %s %s, %s %s%s, will try again in %s",
		e.Ref.Group, e.Ref.Resource, e.Ref.Namespace, e.Ref.Name, why, RetryAfter)
}

// Checker asks a cluster. It may be used concurrently.
type Checker struct{ Cluster Cluster }

// verbs are asked about whatever is going to happen to the object, so that what
// a work may do does not depend on what is on the cluster already.
func verbs(o Object) []string {
	v := []string{"create", "update", "patch", "get"}
	if o.Owned {
		v = append(v, "delete")
	}
	return v
}

// MayApply asks whether the account may write an object. The error is a
// *DeniedError, or about the asking. byRoles says that a permission comes from
// roles, so that it cannot end without a change of one or of a binding.
func (c Checker) MayApply(ctx context.Context, a Account, o Object) (byRoles bool, err error) {
	ask := verbs(o)
	answers := make([]answer, len(ask))
	var asking sync.WaitGroup
	for i, verb := range ask {
		asking.Go(func() { answers[i] = c.review(ctx, a, verb, o.Ref) })
	}
	asking.Wait()
	denied := &DeniedError{Ref: o.Ref}
	var errs []error
	for i, got := range answers {
		switch {
		case got.err != nil:
			errs = append(errs, got.err)
		case !got.allowed:
			denied.Verbs = append(denied.Verbs, ask[i])
		}
	}
	switch {
	case len(denied.Verbs) > 0:
		return false, denied
	case len(errs) > 0:
		return false, fmt.Errorf("ask what the executor may do: %w", errs[0]) // the others say the same
	}
	return !slices.ContainsFunc(answers, func(got answer) bool { return !got.byRoles }), nil
}

// answer is that to one review.
type answer struct {
	allowed, byRoles bool
	err              error
}

// rolesReason begins the reasons of the authorizer that goes by roles.
const rolesReason = "RBAC: "

var reviews = authorizationv1.SchemeGroupVersion.WithResource("subjectaccessreviews")

func (c Checker) review(ctx context.Context, a Account, verb string, ref cluster.Ref) answer {
	r := authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: a.User(), Groups: a.groups(),
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: ref.Group, Version: ref.Version, Resource: ref.Resource, Namespace: ref.Namespace, Name: ref.Name,
		},
	}}
	r.SetGroupVersionKind(authorizationv1.SchemeGroupVersion.WithKind("SubjectAccessReview"))
	body, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&r)
	if err != nil {
		return answer{err: err}
	}
	got, err := c.Cluster.Create(ctx, reviews, &unstructured.Unstructured{Object: body})
	if err != nil {
		return answer{err: err}
	}
	var done authorizationv1.SubjectAccessReview
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(got.Object, &done); err != nil {
		return answer{err: fmt.Errorf("answer to an access review: %w", err)}
	}
	return answer{allowed: done.Status.Allowed, byRoles: strings.HasPrefix(done.Status.Reason, rolesReason)}
}

// GivesRights reports whether objects of a resource give rights away.
func GivesRights(gr schema.GroupResource) bool {
	return gr.Group == rbacv1.GroupName && slices.Contains([]string{"roles", "rolebindings", "clusterroles", "clusterrolebindings"}, gr.Resource)
}

// MayGive finds out whether the account itself has the rights that body, an
// object as it is going to be applied, gives away. The error is a *DeniedError,
// or about the asking.
func (c Checker) MayGive(ctx context.Context, a Account, ref cluster.Ref, body *unstructured.Unstructured) error {
	err := c.Cluster.RehearseCreate(ctx, a.User(), ref.GroupVersionResource, body)
	switch {
	case err == nil, apierrors.IsAlreadyExists(err): // the server looks at rights first
		return nil
	case !apierrors.IsForbidden(err), impersonationRefused(err):
		return fmt.Errorf("find out whether the executor has the rights that the object gives away: %w", err)
	}
	return &DeniedError{Ref: ref}
}

// impersonationRefused reports whether it is the agent that lacks a right.
func impersonationRefused(err error) bool {
	rule, ok := cluster.MissingRule(err)
	return ok && slices.ContainsFunc(rule.Verbs, func(v string) bool { return strings.HasPrefix(v, "impersonate") })
}
