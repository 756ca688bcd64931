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

// FieldManager is the manager of applied fields.
type FieldManager struct {
	// Name is the name in metadata.managedFields; never empty.
	Name string
	// Force takes over fields that other managers own with other values. Without it they are field conflicts.
	Force bool
}

// IsFieldConflict reports whether a server-side apply was refused because another manager owns a field and
// wants another value there. Other conflicts are about the expected resourceVersion or uid, and end with the
// next read. A field conflict lasts until one of the managers releases the field.
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

// misfit converts an error about an object that does not match the schema of its kind, such as a field that the
// schema lacks. The server reports it as an internal error.
func misfit(err error) error {
	var s apierrors.APIStatus
	if apierrors.IsInternalError(err) && errors.As(err, &s) && strings.Contains(s.Status().Message, misfitText) {
		return apierrors.NewBadRequest(s.Status().Message)
	}
	return err
}

const misfitText = "failed to create typed patch object"

// IsMisfit reports whether the server rejected an object because it does not match the schema of its kind.
func IsMisfit(err error) bool {
	return apierrors.IsBadRequest(err) && strings.Contains(err.Error(), misfitText)
}
