// Package workmetrics counts works by what their conditions say, and measures how long versions of
// them take. It keeps little: nothing for a work but a few bytes that its owner has.
package workmetrics

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

// Conditions are the condition types that are counted.
var Conditions = [...]string{workv1.WorkApplied, workv1.WorkAvailable}

// ConditionState is that of one condition of a work. The zero ConditionState is that of a work that is not
// counted.
type ConditionState uint8

// The states.
const (
	// Missing: nobody has said anything yet.
	Missing ConditionState = iota + 1
	// Outdated: it is about an earlier generation.
	Outdated
	// True, False and Unknown are what it says of the present generation.
	True
	False
	Unknown
	// Deleting: the work is being deleted, whatever the condition says.
	Deleting

	states
)

// States lists them.
var States = [...]ConditionState{Missing, Outdated, True, False, Unknown, Deleting}

// String is the name of a state as metrics have it.
func (s ConditionState) String() string {
	return [states]string{"", "missing", "outdated", "true", "false", "unknown", "deleting"}[s]
}

// ConditionStates is what the conditions of one work say. The zero ConditionStates is that of a work that is not
// counted.
type ConditionStates [len(Conditions)]ConditionState

// Of returns the class of a work.
func Of(o *workv1.ManifestWork) (c ConditionStates) {
	for i, typ := range Conditions {
		c[i] = stateOf(o, typ)
	}
	return c
}

func stateOf(o *workv1.ManifestWork, typ string) ConditionState {
	cond := meta.FindStatusCondition(o.Status.Conditions, typ)
	switch {
	case o.DeletionTimestamp != nil:
		return Deleting
	case cond == nil:
		return Missing
	case cond.ObservedGeneration < o.Generation:
		return Outdated
	case cond.Status == metav1.ConditionTrue:
		return True
	case cond.Status == metav1.ConditionFalse:
		return False
	}
	return Unknown
}

// Counts are how many works there are of each state of each condition.
type Counts [len(Conditions)][states]int

// Move counts a work as what it is now; was is as what it was counted.
func (n *Counts) Move(was *ConditionStates, is ConditionStates) {
	for i := range Conditions {
		n.add(i, was[i], -1)
		n.add(i, is[i], 1)
	}
	*was = is
}

func (n *Counts) add(i int, s ConditionState, by int) {
	if s != 0 {
		n[i][s] += by
	}
}
