package executor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// RetryAfter is the wait before the next check after a denial.
const RetryAfter = time.Minute

// Cluster is the interface that a Checker needs; a kubeclient.Client implements it.
type Cluster interface {
	// Create creates obj. Here these are only reviews, which are answered and not stored.
	Create(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) (*unstructured.Unstructured, error)
}

// Object is an object that is about to be applied.
type Object struct {
	Ref kubeclient.Ref
	// Owned: the object is deleted when its work is.
	Owned bool
	// Applied: the object is written by a server-side apply, which has the object's name even if it creates it. Any
	// other creation is authorized without a name.
	Applied bool
}

// DeniedError means that the account may not apply an object.
type DeniedError struct {
	Ref kubeclient.Ref
	// Verbs are the denied verbs. None: the write would grant rights that the account does not have.
	Verbs []string
}

// Error returns the text of OCM's agent, which OCM users know.
func (e *DeniedError) Error() string {
	why := ""
	if len(e.Verbs) == 0 {
		why = ", error: permission escalation"
	}
	return fmt.Sprintf("not allowed to apply the resource %s %s, %s %s%s, will try again in %s",
		e.Ref.Group, e.Ref.Resource, e.Ref.Namespace, e.Ref.Name, why, RetryAfter)
}

// Checker checks permissions on a cluster. It may be used concurrently.
type Checker struct{ Cluster Cluster }

// verbs returns the verbs to check. They do not depend on the next action, so that the rights of a work do not
// depend on existing objects.
func verbs(o Object) []string {
	v := []string{"create", "update", "patch", "get"}
	if o.Owned {
		v = append(v, "delete")
	}
	return v
}

// MayApply checks whether the account may write an object. The error is a *DeniedError, or the error of the
// check. byRoles: the permission comes from roles, so it lasts until a role or a binding changes.
func (c Checker) MayApply(ctx context.Context, a Account, o Object) (byRoles bool, err error) {
	request := verbs(o)
	answers := make([]answer, len(request))
	var requesting sync.WaitGroup
	for i, verb := range request {
		ref := o.Ref
		if verb == kubeclient.Create && !o.Applied {
			ref.Name = ""
		}
		requesting.Go(func() { answers[i] = c.review(ctx, a, verb, ref) })
	}
	requesting.Wait()
	denied := &DeniedError{Ref: o.Ref}
	var errs []error
	for i, got := range answers {
		switch {
		case got.err != nil:
			errs = append(errs, got.err)
		case !got.allowed:
			denied.Verbs = append(denied.Verbs, request[i])
		}
	}
	switch {
	case len(denied.Verbs) > 0:
		return false, denied
	case len(errs) > 0:
		return false, fmt.Errorf("check the rights of the executor: %w", errs[0]) // the others have the same cause
	}
	return !slices.ContainsFunc(answers, func(got answer) bool { return !got.byRoles }), nil
}

// answer is the answer to one review.
type answer struct {
	allowed, byRoles bool
	err              error
}

// rolesReason is the prefix of the reasons of the RBAC authorizer.
const rolesReason = "RBAC: "

var reviews = authorizationv1.SchemeGroupVersion.WithResource("subjectaccessreviews")

func (c Checker) review(ctx context.Context, a Account, verb string, ref kubeclient.Ref) answer {
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
