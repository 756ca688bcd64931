package conditions

import (
	"slices"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

// TypeReconcileSlow is the condition of a work that the agent cannot bring in line in a
// reasonable time. It is only there while it is True.
const TypeReconcileSlow = "ReconcileSlow"

// ReasonTakesLong is its reason.
const ReasonTakesLong = "ReconcileTakesLong"

// ReasonRemovalWaits is its reason where objects that the work has no more do not go.
const ReasonRemovalWaits = "RemovalBlocked"

// Late returns the status with the condition that the agent works on it since that time;
// waits is the request that it waits for, "" if there is none. Nothing else differs, and status
// is not modified.
func Late(status workv1.ManifestWorkStatus, generation int64, since time.Time, waits string) workv1.ManifestWorkStatus {
	message := "The agent has been bringing this work in line since " + since.UTC().Format(time.RFC3339) + ". Other works do not wait for it."
	if waits != "" {
		message += " It waits for the cluster to answer: " + waits
	}
	return reconcileSlow(status, generation, since, ReasonTakesLong, cut(message))
}

// RemovalWaits returns the status with the condition that objects that have to go do not since that
// time; why says what keeps them. Nothing else differs, and status is not modified.
func RemovalWaits(status workv1.ManifestWorkStatus, generation int64, since time.Time, why string) workv1.ManifestWorkStatus {
	return reconcileSlow(status, generation, since, ReasonRemovalWaits, cutMiddle(maxSummary, why))
}

func reconcileSlow(status workv1.ManifestWorkStatus, generation int64, since time.Time, reason, message string) workv1.ManifestWorkStatus {
	status.Conditions = slices.Clone(status.Conditions)
	apimeta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: TypeReconcileSlow, Status: metav1.ConditionTrue, Reason: reason, Message: message,
		ObservedGeneration: generation, LastTransitionTime: stamp(since),
	})
	return status
}
