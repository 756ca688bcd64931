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

// Signature identifies the state of an object as far as the agent has to do
// with it: two states with one signature need no look at the object.
type Signature string

const (
	// Absent is the signature of an object that does not exist.
	Absent Signature = ""
	// Unknown stands for a state that nobody expects: whatever the object turns
	// out to be is news.
	Unknown Signature = "?"
)

// ObservedObject is an object as it was seen: its signature by content, and the exact
// one.
type ObservedObject struct{ Content, Exact Signature }

// StateOf computes both signatures from an object's metadata.
func StateOf(gvr schema.GroupVersionResource, m metav1.Object) ObservedObject {
	return ObservedObject{Content: SignatureOf(gvr, m), Exact: ExactOf(m)}
}

// Is reports whether an object in this state is as somebody expects who was
// told either of its signatures.
func (s ObservedObject) Is(expected Signature) bool {
	return expected == s.Content || expected == s.Exact
}

// ExactOf computes the signature that changes with everything, the status too.
// It is for objects whose status somebody wants to know.
func ExactOf(m metav1.Object) Signature {
	return Signature(string(m.GetUID()) + " " + m.GetResourceVersion())
}

// SignatureOf computes the signature by content. Where the generation counts every change that is not metadata or status, it takes the
// place of the resource version, so that a status that changes all the time
// costs nothing.
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
	// Maps and references of text always marshal; a hash never fails.
	_ = json.NewEncoder(w).Encode(v)
}

// countsGenerations names the groups whose kinds raise metadata.generation with
// every change of content: workloads, and custom resources, which have a group
// of their own domain. AppliedManifestWorks keep what matters in their status.
func countsGenerations(group string) bool {
	switch group {
	case "apps", "batch":
		return true
	case workv1.GroupName:
		return false
	}
	return strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io")
}
