package apply

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	admission "github.com/hawser-io/hawser/internal/refusal"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// Refusal is the cause of a refused write that is valid in itself.
type Refusal struct {
	// Namespace is the missing or terminating namespace; "" for another cause. Missing: the namespace does not
	// exist.
	Namespace string
	Missing   bool
}

// Refused returns the cause of a refused write. ok is false if the write is invalid, or was not refused.
func Refused(err error) (f Refusal, ok bool) {
	var r *rejection
	if !errors.As(err, &r) || r.refusal == nil {
		return f, false
	}
	return *r.refusal, true
}

// refusalOf returns the cause of a refusal that lasts until another object on the cluster changes: a namespace,
// a quota, a policy. ok is false for other errors. A missing right of the agent is not included, see
// [kubeclient.MissingRule].
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
		return f, false // the object is gone and will be created again
	}
	if d := status.Status().Details; d != nil && d.Group == "" && d.Kind == "namespaces" {
		f = Refusal{Namespace: d.Name, Missing: true}
	}
	return f, true
}

// denied reports whether a policy or a webhook denied the write. These choose the status code: that of a
// ValidatingAdmissionPolicy is 422 by default.
func denied(err error) bool {
	_, ok := admission.Of(err)
	return ok
}
