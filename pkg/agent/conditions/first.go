package conditions

import (
	"fmt"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

// maxSummary bounds in bytes what a work's condition says: it is for one line of a table, and for
// an Event.
const maxSummary = 1 << 10

// setFirst says in a work's condition about applying it why the first manifest failed.
func setFirst(c *metav1.Condition, entries []workv1.ManifestCondition) {
	failed := 0
	var first *workv1.ManifestCondition
	for i, e := range entries {
		if !apimeta.IsStatusConditionFalse(e.Conditions, workv1.ManifestApplied) {
			continue
		}
		if failed++; first == nil {
			first = &entries[i]
		}
	}
	if first != nil {
		a := apimeta.FindStatusCondition(first.Conditions, workv1.ManifestApplied)
		c.Message = messageOfFailed(first.ResourceMeta, *a, fmt.Sprintf(formatManifestsFailed, failed, len(entries)))
	}
}

// setFirstMissing does the same for the condition about availability: the first manifest whose
// own condition has the status of the work's.
func setFirstMissing(c *metav1.Condition, entries []workv1.ManifestCondition) {
	for _, e := range entries {
		a := apimeta.FindStatusCondition(e.Conditions, workv1.ManifestAvailable)
		if a == nil || a.Status == metav1.ConditionTrue || a.Status != c.Status {
			continue
		}
		failed := apimeta.FindStatusCondition(e.Conditions, workv1.ManifestApplied)
		switch {
		case failed != nil && failed.Status == metav1.ConditionFalse:
			c.Message = messageOfFailed(e.ResourceMeta, *failed, c.Message)
		case a.Reason == ReasonResourceNotAvailable:
			c.Message = reasonFirst("not found", e.ResourceMeta, "", c.Message)
		default:
			text := strings.TrimPrefix(a.Message, fmt.Sprintf(formatFetchingFailed, ""))
			c.Message = messageOf(e.ResourceMeta, text, "unknown", c.Message)
		}
		return
	}
}

// messageOfFailed is what a work says of a manifest that is not applied.
func messageOfFailed(m workv1.ManifestResourceMeta, c metav1.Condition, count string) string {
	switch c.Reason {
	case workv1.AppliedManifestSSAIgnoreFieldError:
		return reasonFirst("ignoreFields", m, strings.TrimPrefix(c.Message, fmt.Sprintf(formatIgnoreFieldsFailed, "")), count)
	case ReasonAgentWritesRefused:
		return reasonFirst("refuses the agent", m, strings.TrimPrefix(c.Message, fmt.Sprintf(formatManifestFailed, "")), count)
	}
	text := strings.TrimPrefix(c.Message, fmt.Sprintf(formatManifestFailed, ""))
	return messageOf(m, text, "failed", count)
}

// nameOf is what people call the object of a manifest; its place in the spec where it has no name.
func nameOf(m workv1.ManifestResourceMeta) string {
	switch {
	case m.Kind == "" || m.Name == "":
		return fmt.Sprintf("the manifest with ordinal %d", m.Ordinal)
	case m.Namespace == "":
		return m.Kind + " " + m.Name
	}
	return m.Kind + " " + m.Namespace + "/" + m.Name
}
