// Package workmetrics counts works by their conditions, and measures the latency of their versions. It keeps
// only a few bytes per work, and the owner of the work stores these.
package workmetrics

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

// Conditions are the condition types that are counted.
var Conditions = [...]string{workv1.WorkApplied, workv1.WorkAvailable}

// ConditionState is the state of one condition of a work. The zero value means that the work is not counted.
type ConditionState uint8

// The states.
const (
	// Missing: the work does not have the condition.
	Missing ConditionState = iota + 1
	// Outdated: the condition is about an earlier generation.
	Outdated
	// True, False and Unknown are the status of the condition for the present generation.
	True
	False
	Unknown
	// Deleting: the work is being deleted, with any condition.
	Deleting

	numStates
)

// States lists all states.
var States = [...]ConditionState{Missing, Outdated, True, False, Unknown, Deleting}

// String returns the name of a state in metrics.
func (s ConditionState) String() string {
	return [numStates]string{"", "missing", "outdated", "true", "false", "unknown", "deleting"}[s]
}

// ConditionStates are the states of the conditions of one work. The zero value means that the work is not
// counted.
type ConditionStates [len(Conditions)]ConditionState

// Of returns the states of a work.
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

// Counts is the number of works by condition and state.
type Counts [len(Conditions)][numStates]int

// Move counts a work with the states is instead of *was, and sets *was.
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
