package kubeclient

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// Verbs of a Write.
const (
	Create = "create"
	Update = "update"
	Patch  = "patch"
	Delete = "delete"
)

// Write is a write for a dry run.
type Write struct {
	Verb string
	Ref  Ref
	// Object is the object to create. Body is the patch, of Subresource if that is not empty. An update writes the
	// present object.
	Object      *unstructured.Unstructured
	Body        []byte
	Subresource string
}

// DryRunOwn implements OwnDryRunner.
func (k *Kube) DryRunOwn(ctx context.Context, w Write) error {
	objects, dry := k.at(w.Ref.GroupVersionResource, w.Ref.Namespace), []string{metav1.DryRunAll}
	var err error
	switch w.Verb {
	case Create:
		_, err = objects.Create(ctx, w.Object, metav1.CreateOptions{DryRun: dry})
	case Update:
		var o *unstructured.Unstructured
		if o, err = objects.Get(ctx, w.Ref.Name, metav1.GetOptions{}); err == nil {
			_, err = objects.Update(ctx, o, metav1.UpdateOptions{DryRun: dry})
		}
	case Patch:
		var sub []string
		if w.Subresource != "" {
			sub = []string{w.Subresource}
		}
		_, err = objects.Patch(ctx, w.Ref.Name, types.MergePatchType, w.Body, metav1.PatchOptions{DryRun: dry}, sub...)
	case Delete:
		err = objects.Delete(ctx, w.Ref.Name, metav1.DeleteOptions{DryRun: dry})
	}
	return k.served(ctx, w.Ref.GroupVersionResource, err)
}
