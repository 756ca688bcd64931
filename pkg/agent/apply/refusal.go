package apply

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	admission "github.com/hawser-io/hawser/internal/refusal"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// Refusal says why a write was rejected that is not wrong in itself.
type Refusal struct {
	// Namespace is the name of the one that is missing, or is being deleted; "" if the cause is
	// another one. Missing: there is none of that name.
	Namespace string
	Missing   bool
}

// Refused returns why a write was rejected; ok is false if the write is wrong in itself, or was not
// rejected.
func Refused(err error) (f Refusal, ok bool) {
	var r *rejection
	if !errors.As(err, &r) || r.refusal == nil {
		return f, false
	}
	return *r.refusal, true
}

// refusalOf returns the cause of an answer that stays the same until something else on the
// cluster changes: a namespace, a quota, a policy. ok is false if it is none. A right that the
// agent lacks is not among them, see [kubeclient.MissingRule].
func (r *Result) refusalOf() (f Refusal, ok bool) {
	var status apierrors.APIStatus
	if !errors.As(r.Err, &status) {
		return f, false
	}
	switch _, missing := kubeclient.MissingRule(r.Err); {
	case missing:
		return f, false
	case apierrors.HasStatusCause(r.Err, corev1.NamespaceTerminatingCause):
		return Refusal{Namespace: r.Ref.Namespace}, true
	case apierrors.IsForbidden(r.Err), wrongInItself(r.Err) && denied(r.Err):
		return f, true
	case !apierrors.IsNotFound(r.Err) || r.Live != nil:
		return f, false // the object is gone, and made anew
	}
	if d := status.Status().Details; d != nil && d.Group == "" && d.Kind == "namespaces" {
		f = Refusal{Namespace: d.Name, Missing: true}
	}
	return f, true
}

// denied reports whether a policy or a webhook denied the write. It chooses the code of the answer:
// that of a ValidatingAdmissionPolicy is 422, unless the policy says another one.
func denied(err error) bool {
	_, ok := admission.Of(err)
	return ok
}
