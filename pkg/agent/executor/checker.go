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

// RetryAfter is when to ask again after a denial.
const RetryAfter = time.Minute

// Cluster is what a Checker asks; a kubeclient.Client is one.
type Cluster interface {
	// Create makes obj, here only reviews, which are answered and not kept.
	Create(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) (*unstructured.Unstructured, error)
}

// Object is one that is about to be applied.
type Object struct {
	Ref kubeclient.Ref
	// Owned: the object is deleted when its work is.
	Owned bool
	// Applied: the server is sent an apply, which has the name of the object also
	// where it makes it. Any other creation has no name when its rights are looked at.
	Applied bool
}

// DeniedError says that the account may not apply an object.
type DeniedError struct {
	Ref kubeclient.Ref
	// Verbs are those that are denied. None: the write would give rights away
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
