package kubeclient

import (
	"context"
	"errors"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// FieldManager is in whose name fields are applied.
type FieldManager struct {
	// Name is what metadata.managedFields shows; never empty.
	Name string
	// Force takes over the fields that others manage with other values; without
	// it they are a field conflict.
	Force bool
}

// IsFieldConflict reports whether a server-side apply was refused because
// somebody else manages a field and wants another value there. Any other
// conflict is about the resourceVersion or the uid that was asked for, and goes
// away with the next reading; this one stays until one of the two lets go.
func IsFieldConflict(err error) bool {
	if !apierrors.IsConflict(err) || !errors.As(err, new(apierrors.APIStatus)) {
		return false
	}
	_, is := apierrors.StatusCause(err, metav1.CauseTypeFieldManagerConflict)
	return is
}

// ServerSideApply implements Objects.
func (k *Kube) ServerSideApply(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured, by FieldManager) (*unstructured.Unstructured, error) {
	o, err := k.at(gvr, obj.GetNamespace()).Apply(k.by(ctx), obj.GetName(), obj, metav1.ApplyOptions{DryRun: k.dryRun, FieldManager: by.Name, Force: by.Force})
	return o, k.served(ctx, gvr, misfit(err))
}

// misfit turns an answer to an object that does not fit into the schema of its kind, as with a field
// that the schema does not have, into what it is: the server answers it as if it had failed itself.
func misfit(err error) error {
	var s apierrors.APIStatus
	if apierrors.IsInternalError(err) && errors.As(err, &s) && strings.Contains(s.Status().Message, misfitText) {
		return apierrors.NewBadRequest(s.Status().Message)
	}
	return err
}

const misfitText = "failed to create typed patch object"

// IsMisfit reports whether the server refused an object because the schema of its kind has no place
// for it.
func IsMisfit(err error) bool {
	return apierrors.IsBadRequest(err) && strings.Contains(err.Error(), misfitText)
}
