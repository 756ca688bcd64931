package drift

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"
)

// Signature identifies the state of an object as far as the agent depends on it: equal signatures need no read
// of the object.
type Signature string

const (
	// Absent is the signature of an object that does not exist.
	Absent Signature = ""
	// Unknown is never expected: any state of the object is a change.
	Unknown Signature = "?"
)

// ObservedObject is the state of an object as seen: its signature by content, and the exact one.
type ObservedObject struct{ Content, Exact Signature }

// StateOf computes both signatures from an object's metadata.
func StateOf(gvr schema.GroupVersionResource, m metav1.Object) ObservedObject {
	return ObservedObject{Content: SignatureOf(gvr, m), Exact: ExactOf(m)}
}

// Is reports whether the object is in the expected state. expected may be either of its signatures.
func (s ObservedObject) Is(expected Signature) bool {
	return expected == s.Content || expected == s.Exact
}

// ExactOf computes the signature that changes with every change, including the status. It is for objects whose
// status matters.
func ExactOf(m metav1.Object) Signature {
	return Signature(string(m.GetUID()) + " " + m.GetResourceVersion())
}

// SignatureOf computes the signature by content. If the generation changes with everything except metadata and
// status, it replaces the resourceVersion. Frequent changes of the status then cause no reads.
func SignatureOf(gvr schema.GroupVersionResource, m metav1.Object) Signature {
	if !countsGenerations(gvr.Group) || m.GetGeneration() == 0 {
		return ExactOf(m)
	}
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%s %d %t ", m.GetUID(), m.GetGeneration(), m.GetDeletionTimestamp() != nil)
	writeJSON(h, m.GetLabels())
	writeJSON(h, m.GetAnnotations())
	writeJSON(h, m.GetOwnerReferences())
	return Signature(h.Sum(nil)[:16])
}

func writeJSON(w io.Writer, v any) {
	// Maps and references of texts always marshal; a hash never fails.
	_ = json.NewEncoder(w).Encode(v)
}

// countsGenerations reports whether the kinds of a group increase metadata.generation with every change of
// content: workloads, and custom resources in groups with a domain. AppliedManifestWorks are excluded: their
// relevant content is in the status.
func countsGenerations(group string) bool {
	switch group {
	case "apps", "batch":
		return true
	case workv1.GroupName:
		return false
	}
	return strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io")
}
