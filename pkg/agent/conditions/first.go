package conditions

import (
	"fmt"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

// maxSummary bounds in bytes what a work's condition says: it is for one line of a table.
const maxSummary = 1 << 10

const (
	formatFirstApplied   = messageWorkApplyFailed + ": %d of %d manifests failed, the first is %s: %s"
	formatFirstAvailable = "%s, the first is %s"
)

// sayFirst adds to the message of a work's condition about applying it which manifest is the
// first that failed, and why. What was there stays the beginning: tools compare it.
func sayFirst(c *metav1.Condition, entries []workv1.ManifestCondition) {
	failed, text := 0, ""
	var first *workv1.ManifestCondition
	for i, e := range entries {
		a := apimeta.FindStatusCondition(e.Conditions, workv1.ManifestApplied)
		if a == nil || a.Status != metav1.ConditionFalse {
			continue
		}
		if failed++; first == nil {
			first, text = &entries[i], whyNotApplied(*a)
		}
	}
	if first != nil {
		c.Message = cutTo(maxSummary, fmt.Sprintf(formatFirstApplied, failed, len(entries), nameOf(first.ResourceMeta), text))
	}
}

// sayFirstMissing does the same for the condition about availability: the first manifest whose
// own condition has the status of the work's.
func sayFirstMissing(c *metav1.Condition, entries []workv1.ManifestCondition) {
	for _, e := range entries {
		a := apimeta.FindStatusCondition(e.Conditions, workv1.ManifestAvailable)
		if a == nil || a.Status == metav1.ConditionTrue || a.Status != c.Status {
			continue
		}
		message := fmt.Sprintf(formatFirstAvailable, c.Message, nameOf(e.ResourceMeta))
		if failed := apimeta.FindStatusCondition(e.Conditions, workv1.ManifestApplied); failed != nil && failed.Status == metav1.ConditionFalse {
			message += ": " + whyNotApplied(*failed)
		} else if a.Message != messageResourceNotAvailable {
			message += ": " + a.Message
		}
		c.Message = cutTo(maxSummary, message)
		return
	}
}

func whyNotApplied(c metav1.Condition) string {
	return strings.TrimPrefix(c.Message, fmt.Sprintf(formatManifestFailed, ""))
}

// nameOf is what people call the object of a manifest; its place in the spec where it has no name.
func nameOf(m workv1.ManifestResourceMeta) string {
	switch {
	case m.Kind == "" || m.Name == "":
		return fmt.Sprintf("the one with ordinal %d", m.Ordinal)
	case m.Namespace == "":
		return m.Kind + " " + m.Name
	}
	return m.Kind + " " + m.Namespace + "/" + m.Name
}
