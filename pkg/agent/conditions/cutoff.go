package conditions

import (
	"slices"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

// ReasonAgentWritesRejected is the reason of a manifest whose object is as wanted but rejects the agent's own
// writes.
const ReasonAgentWritesRejected = "AgentWritesRejected"

// CutOffError is the error of a manifest with the reason ReasonAgentWritesRejected.
type CutOffError struct{ Err error }

// Error returns the text of the refusal.
func (e *CutOffError) Error() string { return e.Err.Error() }

// Unwrap returns the refusal.
func (e *CutOffError) Unwrap() error { return e.Err }

// WithDeletionBlocked returns the status of a work that is being deleted. why is the reason that blocks the
// deletion, "" if there is none. Other conditions are unchanged; status is not modified.
func WithDeletionBlocked(status workv1.ManifestWorkStatus, why string) workv1.ManifestWorkStatus {
	c := apimeta.FindStatusCondition(status.Conditions, workv1.WorkDeleting)
	if c == nil || c.Status != metav1.ConditionTrue {
		return status
	}
	next := *c
	if next.Reason, next.Message = ReasonWorkDeleting, messageWorkDeleting; why != "" {
		next.Reason, next.Message = ReasonDeletionBlocked, cutMiddle(maxSummary, why)
	}
	status.Conditions = slices.Clone(status.Conditions)
	apimeta.SetStatusCondition(&status.Conditions, next)
	return status
}
