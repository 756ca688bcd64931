package install

import (
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// passing lists the kinds of objects that are deleted when a plan no longer has them, in the order of deletion.
// Plans of all versions have other kinds only for objects that stay. These are definitions, namespaces and
// volumes, which hold users' data, and Secrets, because a deleted key cannot be restored.
var passing = []schema.GroupVersionKind{
	certificateKind,
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingWebhookConfiguration"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicyBinding"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicy"},
	{Group: "apps", Version: "v1", Kind: "Deployment"},
	{Group: "policy", Version: "v1", Kind: "PodDisruptionBudget"},
	{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"},
	{Version: "v1", Kind: "Service"},
	{Version: "v1", Kind: "ConfigMap"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRoleBinding"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "Role"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"},
	{Version: "v1", Kind: "ServiceAccount"},
}

// former returns the objects that an earlier run of the same plan applied and the plan no longer has. They have
// the label of this package and fields of the plan's manager. Hub and agent may be on one cluster, each with
// its own manager.
func (i Installer) former(ctx context.Context, p Plan) ([]*unstructured.Unstructured, error) {
	if !p.whole {
		return nil, nil
	}
	wanted := map[string]bool{}
	for _, o := range slices.Concat(p.Objects, p.Last) {
		wanted[keyOf(o)] = true
	}
	var all []*unstructured.Unstructured
	for _, kind := range passing {
		found, err := i.labelled(ctx, kind)
		if err != nil {
			return nil, err
		}
		for _, o := range found {
			if wanted[keyOf(o)] {
				continue
			}
			have, err := get(ctx, i.Client, o)
			if err != nil {
				return nil, err
			}
			if have != nil && ours(have) && have.GetDeletionTimestamp() == nil && appliedBy(have, p.Manager) {
				all = append(all, have)
			}
		}
	}
	return all, nil
}

// labelled returns the objects of a kind with the label of this package, as metadata only; none if the cluster
// does not have the kind. Namespaced objects are in one of the two namespaces that plans use.
func (i Installer) labelled(ctx context.Context, kind schema.GroupVersionKind) ([]*unstructured.Unstructured, error) {
	r, err := i.Client.Resolve(ctx, kind)
	if errors.As(err, new(*kubeclient.NoKindError)) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	namespaces := []string{""}
	if r.Namespaced {
		namespaces = []string{namespace, ocmNamespace}
	}
	var found []*unstructured.Unstructured
	for _, n := range namespaces {
		list, err := i.List(drift.Scope{GroupVersionResource: r.GroupVersionResource, Namespace: n}).List(ctx, metav1.ListOptions{LabelSelector: managedBy + "=" + managedByUs})
		if err != nil {
			return nil, fmt.Errorf("%s that an earlier installation may have left: %w", r.GroupVersionResource.GroupResource(), err)
		}
		for _, m := range list.Items {
			if m.Labels[managedBy] == managedByUs {
				found = append(found, object(kind.GroupVersion().String(), kind.Kind, m.Namespace, m.Name))
			}
		}
	}
	return found, nil
}

func appliedBy(o *unstructured.Unstructured, manager string) bool {
	return slices.ContainsFunc(o.GetManagedFields(), func(f metav1.ManagedFieldsEntry) bool {
		return f.Manager == manager && f.Operation == metav1.ManagedFieldsOperationApply
	})
}

// prune deletes objects that the plan no longer has.
func (i Installer) prune(ctx context.Context, p Plan) error {
	gone, err := i.former(ctx, p)
	if err != nil {
		return err
	}
	for _, o := range gone {
		if err := i.remove(ctx, o); err != nil {
			return err
		}
		i.Printf("%s deleted: an earlier run made it, and it is not needed any more", nameOf(o))
	}
	return nil
}

func keyOf(o *unstructured.Unstructured) string {
	return o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
}
