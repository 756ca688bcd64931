package appliedwork

import (
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/apply"
)

var admissionResources = []string{
	"validatingwebhookconfigurations", "mutatingwebhookconfigurations",
	"validatingadmissionpolicies", "validatingadmissionpolicybindings", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings",
}

// Admission reports whether an object configures admission on the cluster. API servers exempt writes of such
// objects from admission, so the agent can always correct or delete them.
func Admission(id workv1.ResourceIdentifier) bool {
	return id.Group == admissionv1.GroupName && slices.Contains(admissionResources, id.Resource)
}

// Unrecorded reports whether a step requires that the list is written first. It does if it may create an object
// that is not in the list, or with another uid: such an object would never be removed. The correction of an
// admission configuration is always allowed: it may be the reason why the list cannot be written.
func Unrecorded(recorded []Entry, s apply.Step) bool {
	e, has := byIdentity(recorded)[s.ID()]
	switch s.Action {
	case apply.Create:
		return !has || e.UID != ""
	case apply.Update:
		return !(has && (e.UID == "" || e.UID == string(s.Live.GetUID()))) && !Admission(s.ID())
	case apply.Recreate:
		return true
	case apply.Unchanged, apply.Reject:
	}
	return false
}
