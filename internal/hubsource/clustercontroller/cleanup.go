package clustercontroller

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "open-cluster-management.io/api/cluster/v1"
)

// remaining are the objects of a cluster under deletion that are still on the hub.
type remaining struct{ addons, works []object }

// object is one remaining object.
type object struct {
	kind     kind
	name     string
	uid      types.UID
	priority int // of its annotation; lower ones are deleted first
	deleting bool
}

// kind is a kind of object in the namespace of a cluster.
type kind int

const (
	addon kind = iota
	work
)

func (k kind) String() string { return [...]string{"add-ons", "works"}[k] }

// highestPriority is the highest value of the annotation, the lowest is 0.
const highestPriority = 100

// objectOf reads the fields of an object that the deletion needs.
func objectOf(k kind, o *metav1.PartialObjectMetadata) object {
	priority, err := strconv.Atoi(o.Annotations[clusterv1.CleanupPriorityAnnotationKey])
	if err != nil || priority < 0 || priority > highestPriority {
		priority = 0 // an object without a valid annotation is among the first
	}
	return object{k, o.Name, o.UID, priority, o.DeletionTimestamp != nil}
}

// decideEnd decides what is deleted next of a cluster under deletion: the add-ons with the lowest priority.
// Without add-ons it is the works, and at last the finalizers.
func decideEnd(s clusterState) (e effects) {
	set := func(want metav1.Condition) {
		have := meta.FindStatusCondition(s.cluster.Status.Conditions, want.Type)
		if have == nil || have.Status != want.Status || have.Reason != want.Reason || have.Message != want.Message {
			e.conditions = append(e.conditions, want)
		}
	}
	ours := slices.ContainsFunc(s.cluster.Finalizers, func(f string) bool { return f == clusterv1.ManagedClusterFinalizer || f == resourceFinalizer })
	if !ours {
		return e // finalizers of other controllers still hold it
	}
	for _, objects := range [][]object{s.remaining.addons, s.remaining.works} {
		if len(objects) == 0 {
			continue
		}
		lowest := slices.MinFunc(objects, func(a, b object) int { return a.priority - b.priority }).priority
		for _, o := range objects {
			if o.priority == lowest && !o.deleting {
				e.remove = append(e.remove, o)
			}
		}
		set(metav1.Condition{
			Type: clusterv1.ManagedClusterConditionDeleting, Status: metav1.ConditionFalse, Reason: clusterv1.ConditionDeletingReasonResourceRemaining,
			Message: fmt.Sprintf("%d %s of the cluster are still on the hub", len(objects), objects[0].kind),
		})
		// A long deletion, such as works of a cluster that is off, is checked less often.
		e.after = min(max(s.now.Sub(s.cluster.DeletionTimestamp.Time)/10, time.Second), time.Minute)
		return e
	}
	set(metav1.Condition{
		Type: clusterv1.ManagedClusterConditionDeleting, Status: metav1.ConditionTrue, Reason: clusterv1.ConditionDeletingReasonNoResource,
		Message: "Nothing of the cluster is left on the hub",
	})
	e.release = true
	return e
}
