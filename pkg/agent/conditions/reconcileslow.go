package conditions

import (
	"slices"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

// TypeReconcileSlow is the condition of a work whose reconciliation takes too long. It exists only while the
// problem lasts.
const TypeReconcileSlow = "ReconcileSlow"

// ReasonReconcileTakesLong is the reason of ReconcileSlow if the reconciliation itself takes long.
const ReasonReconcileTakesLong = "ReconcileTakesLong"

// ReasonRemovalBlocked is the reason of ReconcileSlow if objects that left the work are not removed.
const ReasonRemovalBlocked = "RemovalBlocked"

// WithReconcileSlow returns the status with the condition that the agent has been reconciling the work since the
// given time. waits is the request that it waits for, "" if there is none. The rest is unchanged; status is not
// modified.
func WithReconcileSlow(status workv1.ManifestWorkStatus, generation int64, since time.Time, waits string) workv1.ManifestWorkStatus {
	message := "The agent has been reconciling this work since " + since.UTC().Format(time.RFC3339) + ". Other works do not wait for it."
	if waits != "" {
		message += " It waits for the cluster to answer: " + waits
	}
	return reconcileSlow(status, generation, since, ReasonReconcileTakesLong, cut(message))
}

// WithRemovalBlocked returns the status with the condition that objects have had to be removed since the given
// time; why is what blocks that. The rest is unchanged; status is not modified.
func WithRemovalBlocked(status workv1.ManifestWorkStatus, generation int64, since time.Time, why string) workv1.ManifestWorkStatus {
	return reconcileSlow(status, generation, since, ReasonRemovalBlocked, cutMiddle(maxSummary, why))
}

func reconcileSlow(status workv1.ManifestWorkStatus, generation int64, since time.Time, reason, message string) workv1.ManifestWorkStatus {
	status.Conditions = slices.Clone(status.Conditions)
	apimeta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: TypeReconcileSlow, Status: metav1.ConditionTrue, Reason: reason, Message: message,
		ObservedGeneration: generation, LastTransitionTime: stamp(since),
	})
	return status
}
