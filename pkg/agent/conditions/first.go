package conditions

import (
	"fmt"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

// maxSummary bounds the message of a work's condition, in bytes: it is shown in one line of a table, and in an
// Event.
const maxSummary = 1 << 10

// setFirst adds to a work's Applied condition why the first failed manifest failed.
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

// setFirstMissing does the same for the Available condition: it uses the first manifest whose own condition has
// the same status.
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

// messageOfFailed returns a work's message about a manifest that is not applied.
func messageOfFailed(m workv1.ManifestResourceMeta, c metav1.Condition, count string) string {
	switch c.Reason {
	case workv1.AppliedManifestSSAIgnoreFieldError:
		return reasonFirst("ignoreFields", m, strings.TrimPrefix(c.Message, fmt.Sprintf(formatIgnoreFieldsFailed, "")), count)
	case ReasonAgentWritesRejected:
		return reasonFirst("rejects the agent", m, strings.TrimPrefix(c.Message, fmt.Sprintf(formatManifestFailed, "")), count)
	}
	text := strings.TrimPrefix(c.Message, fmt.Sprintf(formatManifestFailed, ""))
	return messageOf(m, text, "failed", count)
}

// nameOf returns a readable name of a manifest's object; its index in the spec if it has no name.
func nameOf(m workv1.ManifestResourceMeta) string {
	switch {
	case m.Kind == "" || m.Name == "":
		return fmt.Sprintf("the manifest with ordinal %d", m.Ordinal)
	case m.Namespace == "":
		return m.Kind + " " + m.Name
	}
	return m.Kind + " " + m.Namespace + "/" + m.Name
}
