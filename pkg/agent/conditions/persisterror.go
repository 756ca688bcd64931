package conditions

import (
	"slices"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

// TypePersistFailed is the condition of a work whose entry in the agent's state directory is outdated. It
// exists only while the problem lasts.
const TypePersistFailed = "PersistFailed"

// PersistError is why the entry of a work is outdated.
type PersistError struct {
	// Reason is one of journal.ReasonFull and journal.ReasonFailed.
	Reason string
	Err    error
	Since  time.Time
}

const formatPersistFailed = "The present spec is applied, but the agent could not store it: %v. If the agent restarts while it is disconnected, it does not know this spec."

// WithPersistFailed returns the status with the condition about a PersistError. The rest is unchanged; status is
// not modified.
func WithPersistFailed(status workv1.ManifestWorkStatus, generation int64, l PersistError) workv1.ManifestWorkStatus {
	status.Conditions = slices.Clone(status.Conditions)
	apimeta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: TypePersistFailed, Status: metav1.ConditionTrue, Reason: l.Reason, Message: format(formatPersistFailed, l.Err),
		ObservedGeneration: generation, LastTransitionTime: stamp(l.Since),
	})
	return status
}
