package conditions

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditionrules"
)

// ReasonRulesAggregated is the reason of a work's condition that aggregates the conditions from rules of its
// manifests.
const ReasonRulesAggregated = "ConditionRulesAggregated"

// rulePrefix is the prefix of the reasons of all conditions from rules.
const rulePrefix = "ConditionRule"

const (
	formatAggregated   = "Aggregated from %d manifest conditions"
	messageWasComplete = "Manifest is Complete"
)

func fromRule(c metav1.Condition) bool { return strings.HasPrefix(c.Reason, rulePrefix) }

// setRules sets the conditions of the rule outcomes, and removes those of rules that no longer exist.
func setRules(list *[]metav1.Condition, m Manifest, generation int64, now metav1.Time) {
	keep := m.RuleTypes
	if m.Presence == Present {
		keep = make([]string, 0, len(m.Rules))
		for _, o := range m.Rules {
			keep = append(keep, o.Type)
			c := metav1.Condition{Type: o.Type, Status: o.Status, Reason: o.Reason, Message: cut(o.Message), ObservedGeneration: generation, LastTransitionTime: now}
			if o.Type == workv1.WorkComplete && o.Status == metav1.ConditionTrue && !m.CompleteSince.IsZero() {
				c.LastTransitionTime = stamp(m.CompleteSince) // an existing condition has priority
			}
			apimeta.SetStatusCondition(list, c)
		}
	} else if !m.CompleteSince.IsZero() && apimeta.FindStatusCondition(*list, workv1.WorkComplete) == nil {
		apimeta.SetStatusCondition(list, metav1.Condition{
			Type: workv1.WorkComplete, Status: metav1.ConditionTrue, Reason: workv1.ConditionRuleEvaluated, Message: messageWasComplete,
			ObservedGeneration: generation, LastTransitionTime: stamp(m.CompleteSince),
		})
	}
	*list = slices.DeleteFunc(*list, func(c metav1.Condition) bool { return fromRule(c) && !slices.Contains(keep, c.Type) })
}

// sumUp aggregates the conditions of the manifests for the work: availability, and the outcomes of rules. It
// removes conditions that rules no longer yield. New conditions are ordered by type.
func sumUp(list *[]metav1.Condition, entries []workv1.ManifestCondition, available metav1.Condition, generation int64, now metav1.Time) {
	contributions := map[string][]metav1.Condition{}
	for _, e := range entries {
		for _, c := range e.Conditions {
			if !fromRule(c) {
				continue
			}
			contributions[c.Type] = append(contributions[c.Type], c)
		}
	}
	types := append(slices.Collect(maps.Keys(contributions)), available.Type)
	slices.Sort(types)
	for _, typ := range types {
		if typ == available.Type {
			if available.Status != "" { // otherwise the last one stays
				apimeta.SetStatusCondition(list, available)
			}
			continue
		}
		from := contributions[typ]
		c := metav1.Condition{
			Type: typ, Status: summary(typ, from), Reason: ReasonRulesAggregated, Message: fmt.Sprintf(formatAggregated, len(from)),
			ObservedGeneration: generation, LastTransitionTime: now,
		}
		if len(from) == 1 && from[0].Message != "" {
			c.Message = from[0].Message
		}
		if apimeta.FindStatusCondition(*list, typ) == nil {
			c.LastTransitionTime = latest(from)
		}
		apimeta.SetStatusCondition(list, c)
	}
	*list = slices.DeleteFunc(*list, func(c metav1.Condition) bool { return fromRule(c) && contributions[c.Type] == nil })
}

// latest returns the latest transition time of several conditions: before it, their summary was another one.
func latest(from []metav1.Condition) metav1.Time {
	return slices.MaxFunc(from, func(a, b metav1.Condition) int { return a.LastTransitionTime.Compare(b.LastTransitionTime.Time) }).LastTransitionTime
}

// summary returns the status of a work's condition. A work progresses while one of its manifests does. Other
// conditions hold for the work if they hold for all manifests that have these conditions.
func summary(typ string, from []metav1.Condition) metav1.ConditionStatus {
	has := func(s metav1.ConditionStatus) bool {
		return slices.ContainsFunc(from, func(c metav1.Condition) bool { return c.Status == s })
	}
	first, otherwise := metav1.ConditionFalse, metav1.ConditionTrue
	if typ == workv1.WorkProgressing {
		first, otherwise = metav1.ConditionTrue, metav1.ConditionFalse
	}
	switch {
	case has(first):
		return first
	case has(metav1.ConditionUnknown):
		return metav1.ConditionUnknown
	}
	return otherwise
}

// Completion is the completion according to a status.
type Completion struct {
	// Work: the work as a whole is complete.
	Work    bool
	history history
}

// CompletionOf returns the completion according to a status.
func CompletionOf(s workv1.ManifestWorkStatus) Completion {
	return Completion{Work: complete(s.Conditions), history: indexHistory(s.ResourceStatus.Manifests)}
}

func complete(list []metav1.Condition) bool {
	c := apimeta.FindStatusCondition(list, workv1.WorkComplete)
	return c != nil && c.Status == metav1.ConditionTrue && fromRule(*c)
}

// Since returns when a manifest became complete; the zero time if it is not complete.
func (c Completion) Since(m workv1.ManifestResourceMeta) time.Time {
	if e := c.history.find(m); e != nil && complete(e.Conditions) {
		return apimeta.FindStatusCondition(e.Conditions, workv1.WorkComplete).LastTransitionTime.Time
	}
	return time.Time{}
}

// Completes reports whether rule outcomes mark a manifest as complete.
func Completes(outcomes []conditionrules.Outcome) bool {
	return slices.ContainsFunc(outcomes, func(o conditionrules.Outcome) bool {
		return o.Type == workv1.WorkComplete && o.Status == metav1.ConditionTrue
	})
}
