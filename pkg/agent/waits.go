package agent

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
)

// Texts for what blocks the deletion of an object, with the next step.
const (
	formatFinalizers = "waits for finalizers: %s: %s; %s"
	formatContent    = "waits for its content: %s: %s; remove the named objects, or check that their controller runs on the cluster"
	formatNode       = "waits for its node: %s: its grace period is over; check that node %q runs, or delete the Pod with --force if the node is gone"
)

// otherFinalizer is the next step for a finalizer that is not one of Kubernetes.
const otherFinalizer = "their controller must remove them: check that it runs on the cluster, or remove them from the object if it is gone for good"

// finalizersOfKubernetes has the next step for each of these finalizers. They must not be removed by hand: each
// protects another object that is left.
var finalizersOfKubernetes = map[string]string{
	"customresourcecleanup.apiextensions.k8s.io": "objects of this kind are left: see the finalizers that keep them",
	"kubernetes.io/pvc-protection":               "Pods use it: delete them",
	"kubernetes.io/pv-protection":                "a PersistentVolumeClaim is bound to it: delete that",
	"foregroundDeletion":                         "objects that belong to it are left: see the finalizers that keep them",
}

// mostFinalizers bounds the named finalizers of an object.
const mostFinalizers = 5

// waitsFor returns what blocks the first remaining object of a deleted work, and how many are left. It returns
// "" until stuckAfter has passed since the deletion. last is the previous status, which has the start of the
// deletion.
func (r *recorder) waitsFor(last workv1.ManifestWorkStatus) string {
	c := apimeta.FindStatusCondition(last.Conditions, workv1.WorkDeleting)
	if c == nil || r.now.Sub(c.LastTransitionTime.Time) < stuckAfter || r.record == nil {
		return ""
	}
	return whatKeeps(r.record.Entries(), r.seen, r.now)
}

// formatLeft appends the number of remaining objects.
const formatLeft = "%s; objects left: %d"

// whatKeeps returns what blocks the first of these objects that shows a reason, and how many are left; "" if
// none does.
func whatKeeps(entries []appliedwork.Entry, seen map[workv1.ResourceIdentifier]*unstructured.Unstructured, now time.Time) string {
	for _, e := range entries {
		if live := seen[e.ResourceIdentifier]; live != nil {
			if why := keeps(live, now); why != "" {
				return fmt.Sprintf(formatLeft, why, len(entries))
			}
		}
	}
	return ""
}

// keeps returns what blocks the deletion of an object, "" if the object does not show it.
func keeps(o *unstructured.Unstructured, now time.Time) string {
	if o.GetDeletionTimestamp() == nil {
		return ""
	}
	name := o.GetKind() + " " + o.GetName()
	if o.GetNamespace() != "" {
		name = o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
	}
	kind := o.GroupVersionKind().GroupKind().String()
	switch finalizers := o.GetFinalizers(); {
	case len(finalizers) > 0:
		list := strings.Join(finalizers[:min(len(finalizers), mostFinalizers)], ", ")
		if more := len(finalizers) - mostFinalizers; more > 0 {
			list += fmt.Sprintf(" and %d more", more)
		}
		advice := otherFinalizer
		for _, f := range finalizers {
			advice = cmp.Or(finalizersOfKubernetes[f], advice)
		}
		return fmt.Sprintf(formatFinalizers, name, list, advice)
	case kind == "Namespace":
		if left := contentOf(o); left != "" {
			return fmt.Sprintf(formatContent, name, left)
		}
	case kind == "Pod" && now.Sub(o.GetDeletionTimestamp().Time) >= stuckAfter:
		node, _, _ := unstructured.NestedString(o.Object, "spec", "nodeName")
		return fmt.Sprintf(formatNode, name, node)
	}
	return ""
}

// contentConditions are the conditions of a Namespace that show what blocks its deletion, the most specific first.
var contentConditions = []string{
	"NamespaceDeletionDiscoveryFailure", "NamespaceDeletionGroupVersionParsingFailure", "NamespaceDeletionContentFailure",
	"NamespaceFinalizersRemaining", "NamespaceContentRemaining",
}

// contentOf returns the message of the Namespace condition that shows what blocks its deletion.
func contentOf(o *unstructured.Unstructured) string {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, typ := range contentConditions {
		for _, c := range list {
			c, _ := c.(map[string]any)
			if message, _ := c["message"].(string); c["type"] == typ && c["status"] == "True" && message != "" {
				return message
			}
		}
	}
	return ""
}
