package executor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// Writer makes writes that an account could make itself. The cluster first dry-runs each write as the account;
// its refusal is the answer.
//
// The dry run must be of the same write. Without a precondition:
//
// Scenario:
//
//	t1: the account may label the ClusterRole in its present form.
//	t2: another client adds rules that the account does not have.
//	t3: the label aggregates those rules into a role of the account.
//
// Result: a write of an existing object has its resourceVersion or uid, and a creation never changes an
// existing object.
type Writer struct {
	// Objects makes the writes.
	kubeclient.Objects
	Cluster kubeclient.DryRunner
	Account Account
	// Kept: permissions are kept, so only writes that grant rights are dry-run.
	Kept bool
}

// Create implements kubeclient.Objects.
func (w Writer) Create(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	return w.write(ctx, kubeclient.Create, refOf(gvr, obj), func(ctx context.Context, to kubeclient.Objects) (*unstructured.Unstructured, error) {
		return to.Create(ctx, gvr, obj)
	})
}

// Update implements kubeclient.Objects.
func (w Writer) Update(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	return w.write(ctx, kubeclient.Update, refOf(gvr, obj), func(ctx context.Context, to kubeclient.Objects) (*unstructured.Unstructured, error) {
		return to.Update(ctx, gvr, obj)
	})
}

// Patch implements kubeclient.Objects.
func (w Writer) Patch(ctx context.Context, ref kubeclient.Ref, patch []byte, subresource string) (*unstructured.Unstructured, error) {
	return w.write(ctx, kubeclient.Patch, ref, func(ctx context.Context, to kubeclient.Objects) (*unstructured.Unstructured, error) {
		return to.Patch(ctx, ref, patch, subresource)
	})
}

// ServerSideApply implements kubeclient.Objects.
func (w Writer) ServerSideApply(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured, by kubeclient.FieldManager) (*unstructured.Unstructured, error) {
	return w.write(ctx, kubeclient.Patch, refOf(gvr, obj), func(ctx context.Context, to kubeclient.Objects) (*unstructured.Unstructured, error) {
		return to.ServerSideApply(ctx, gvr, obj, by)
	})
}

// Delete implements kubeclient.Objects.
func (w Writer) Delete(ctx context.Context, ref kubeclient.Ref, uid types.UID) error {
	_, err := w.write(ctx, kubeclient.Delete, ref, func(ctx context.Context, to kubeclient.Objects) (*unstructured.Unstructured, error) {
		return nil, to.Delete(ctx, ref, uid)
	})
	return err
}

func refOf(gvr schema.GroupVersionResource, o *unstructured.Unstructured) kubeclient.Ref {
	return kubeclient.Ref{GroupVersionResource: gvr, Namespace: o.GetNamespace(), Name: o.GetName()}
}

func (w Writer) write(ctx context.Context, verb string, ref kubeclient.Ref, do func(context.Context, kubeclient.Objects) (*unstructured.Unstructured, error)) (*unstructured.Unstructured, error) {
	if bearsWriter(ref.GroupResource()) {
		return nil, &DeniedError{Ref: ref}
	}
	// A kept permission does not cover a deletion that the work did not request, as in the replacement of an
	// object.
	strict := givesRights(ref.GroupResource()) || verb == kubeclient.Delete
	if strict || !w.Kept {
		once := kubeclient.WithWarnings(ctx, new(kubeclient.Warnings)) // the write itself has the same warnings
		if _, err := do(once, w.Cluster.As(w.Account.User())); err != nil {
			if err = judge(err, verb, ref, strict); err != nil {
				return nil, err
			}
		}
	}
	return do(ctx, w.Objects)
}

// judge converts the result of a dry run to the error of the write; nil if the write may be made.
func judge(err error, verb string, ref kubeclient.Ref, strict bool) error {
	rule, missing := kubeclient.MissingRule(err)
	switch impersonates := func(v string) bool { return strings.HasPrefix(v, "impersonate") }; {
	case missing && slices.ContainsFunc(rule.Verbs, impersonates), noDryRun(err):
		if strict {
			return fmt.Errorf("check whether the executor has the rights that the object grants: %w", err)
		}
		return nil // the reviews allow it
	case missing && !slices.Contains(rule.Verbs, "escalate"):
		return &DeniedError{Ref: ref, Verbs: []string{verb}}
	case missing, strict && apierrors.IsForbidden(err):
		return &DeniedError{Ref: ref}
	}
	return err
}

// noDryRun reports whether a webhook supports no dry runs.
func noDryRun(err error) bool {
	return apierrors.IsBadRequest(err) && strings.Contains(err.Error(), "does not support dry run")
}

// givesRights reports whether a server checks more than the verb, namely the rights of the writer. These kinds
// are roles and bindings, including those of OpenShift. Others are policies whose parameters the writer must be
// able to read, and bundles that a signer must attest.
func givesRights(gr schema.GroupResource) bool {
	switch gr.Group {
	case rbacv1.GroupName, "authorization.openshift.io":
		return true
	case "admissionregistration.k8s.io":
		return strings.Contains(gr.Resource, "admissionpolic")
	case certificatesv1.GroupName:
		return gr.Resource == "clustertrustbundles"
	}
	return false
}

// bearsWriter reports whether the server stores the user of a write in the object, and others rely on it. The
// stored user would be the agent with all its rights.
func bearsWriter(gr schema.GroupResource) bool {
	return gr == schema.GroupResource{Group: certificatesv1.GroupName, Resource: "certificatesigningrequests"}
}
