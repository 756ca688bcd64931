package conditions

import (
	"fmt"
	"slices"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/kubeerror"
)

// MaxStatus bounds the JSON of a status, in bytes. The hub stores a ManifestWork in one etcd value of at most
// 1.5 MiB. 500 KiB of manifests, 256 KiB of annotations and this status fit.
const MaxStatus = 256 << 10

// TypeStatusTruncated is the condition of a work whose status would exceed [MaxStatus]. It exists, with status
// True, only while parts are left out; its message names them.
const TypeStatusTruncated = "StatusTruncated"

// ReasonStatusTooLarge is the reason of StatusTruncated. ReasonFeedbackLeftOut is the reason of
// StatusFeedbackSynced=False of a manifest whose values are left out.
const (
	ReasonStatusTooLarge  = "StatusTooLarge"
	ReasonFeedbackLeftOut = "StatusFeedbackDropped"
)

// formatTruncated names the omitted parts; the numbers are counts of manifests.
const formatTruncated = "The status would be larger than %d bytes. Of the %d manifests, messages are shortened for %d, feedback values " +
	"are left out for %d, conditions for %d, and %d are not listed. The other conditions of the work are about all of them. Split the work to see all."

const messageValuesLeftOut = "The status of the work would be too large with these values: split the work, or request fewer values"

const (
	longestKept    = 16 << 10 // first limit of messages; the next ones are a quarter of the last
	shortestKept   = 64       // below it messages are left out
	messageReserve = 1 << 10  // for the condition StatusTruncated
)

// bounded is a status that is being truncated.
type bounded struct {
	workv1.ManifestWorkStatus
	last    history
	sizes   []int // of the entries, in bytes of JSON
	over    int   // bytes that still must be removed
	dropped []loss
	gone    int
}

// loss records the omitted parts of a manifest's entry.
type loss struct{ messages, values, conditions bool }

// LimitSize returns status unchanged if its JSON has at most MaxStatus bytes. Otherwise it removes parts, only as
// many as necessary, in this order:
//   - the ends of long messages;
//   - messages of good conditions;
//   - feedback values, the largest first;
//   - all messages;
//   - conditions of good manifests, then conditions of the others;
//   - whole entries.
//
// Within one step it starts with the last manifest. The condition StatusTruncated reports it.
//
// The result is deterministic. last is the previous result: parts that were omitted there too keep their
// transition time. Neither argument is modified.
func LimitSize(last, status workv1.ManifestWorkStatus, generation int64) workv1.ManifestWorkStatus {
	if over := kubeerror.SizeOf(status) - MaxStatus; over > 0 {
		return truncate(last, status, generation, over+messageReserve)
	}
	return status
}

func truncate(last, status workv1.ManifestWorkStatus, generation int64, over int) workv1.ManifestWorkStatus {
	n := len(status.ResourceStatus.Manifests)
	b := &bounded{ManifestWorkStatus: *status.DeepCopy(), last: indexHistory(last.ResourceStatus.Manifests), over: over, sizes: make([]int, n), dropped: make([]loss, n)}
	for i, e := range b.ResourceStatus.Manifests {
		b.sizes[i] = kubeerror.SizeOf(e)
	}
	for limit := longestKept; limit >= shortestKept; limit /= 4 {
		b.shortenOwn(limit)
		b.each(func(e *workv1.ManifestCondition, l *loss) bool {
			return note(&l.messages, shorten(e.Conditions, limit))
		})
	}
	b.each(leaveGood)
	for limit := longestKept; limit >= shortestKept; limit /= 4 {
		b.each(func(e *workv1.ManifestCondition, l *loss) bool { return note(&l.values, b.leaveValues(e, limit)) })
	}
	b.each(func(e *workv1.ManifestCondition, l *loss) bool { return note(&l.values, b.leaveValues(e, 0)) })
	b.each(func(e *workv1.ManifestCondition, l *loss) bool { return note(&l.messages, shorten(e.Conditions, 0)) })
	b.each(func(e *workv1.ManifestCondition, l *loss) bool { return good(e.Conditions) && leaveConditions(e, l) })
	b.each(leaveConditions)
	b.leaveEntries()
	b.setBoundedCondition(last, generation)
	return b.ManifestWorkStatus
}

// each shortens entries, from the last one on, until the status fits.
func (b *bounded) each(smaller func(*workv1.ManifestCondition, *loss) bool) {
	for i := len(b.sizes) - 1; i >= 0 && b.over > 0; i-- {
		e := &b.ResourceStatus.Manifests[i]
		if smaller(e, &b.dropped[i]) {
			size := kubeerror.SizeOf(*e)
			b.over -= b.sizes[i] - size
			b.sizes[i] = size
		}
	}
}

// note sets lost if now is true, and returns now.
func note(lost *bool, now bool) bool {
	*lost = *lost || now
	return now
}

// shortenOwn shortens the conditions of the work as a whole.
func (b *bounded) shortenOwn(limit int) {
	if before := kubeerror.SizeOf(b.Conditions); b.over > 0 && shorten(b.Conditions, max(limit, maxSummary)) {
		b.over -= before - kubeerror.SizeOf(b.Conditions)
	}
}

func shorten(list []metav1.Condition, limit int) (some bool) {
	for i, c := range list {
		if len(c.Message) <= limit {
			continue
		}
		if list[i].Message = ""; limit >= shortestKept {
			list[i].Message = cutTo(limit, c.Message)
		}
		some = true
	}
	return some
}

// leaveValues removes the feedback values of a manifest if they exceed limit bytes.
func (b *bounded) leaveValues(e *workv1.ManifestCondition, limit int) bool {
	if len(e.StatusFeedbacks.Values) == 0 || kubeerror.SizeOf(e.StatusFeedbacks) <= limit {
		return false
	}
	e.StatusFeedbacks.Values = nil
	if c := apimeta.FindStatusCondition(e.Conditions, TypeStatusFeedbackSynced); c != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, ReasonFeedbackLeftOut, messageValuesLeftOut
		if old := b.last.find(e.ResourceMeta); old != nil {
			if was := apimeta.FindStatusCondition(old.Conditions, c.Type); was != nil && was.Reason == c.Reason {
				c.LastTransitionTime = was.LastTransitionTime // a change of omitted values is invisible
			}
		}
	}
	return true
}

// leaveGood removes the messages of good conditions, and the condition that no feedback was requested.
func leaveGood(e *workv1.ManifestCondition, l *loss) bool {
	n, some := len(e.Conditions), false
	e.Conditions = slices.DeleteFunc(e.Conditions, func(c metav1.Condition) bool { return c.Reason == ReasonNoStatusFeedback })
	for i, c := range e.Conditions {
		if c.Status == metav1.ConditionTrue && !fromRule(c) && c.Message != "" {
			e.Conditions[i].Message, some = "", true
		}
	}
	return note(&l.messages, some) || len(e.Conditions) < n
}

func good(list []metav1.Condition) bool {
	return !slices.ContainsFunc(list, func(c metav1.Condition) bool { return c.Status != metav1.ConditionTrue || fromRule(c) })
}

func leaveConditions(e *workv1.ManifestCondition, l *loss) bool {
	some := len(e.Conditions) > 0
	e.Conditions = []metav1.Condition{} // the schema requires a list
	return note(&l.conditions, some)
}

// leaveEntries removes the last entries, and if that is not enough, the work's conditions from rules.
func (b *bounded) leaveEntries() {
	n := len(b.sizes)
	for ; n > 0 && b.over > 0; n-- {
		b.over -= b.sizes[n-1] + 1
	}
	b.gone = len(b.sizes) - n
	b.ResourceStatus.Manifests, b.dropped = b.ResourceStatus.Manifests[:n], b.dropped[:n]
	for i := len(b.Conditions) - 1; i >= 0 && b.over > 0; i-- {
		if fromRule(b.Conditions[i]) {
			b.over -= kubeerror.SizeOf(b.Conditions[i]) + 1
			b.Conditions = slices.Delete(b.Conditions, i, i+1)
		}
	}
}

// setBoundedCondition adds the condition that names the omitted parts. Its transition time is the latest change
// of the status, unless the condition existed before.
func (b *bounded) setBoundedCondition(last workv1.ManifestWorkStatus, generation int64) {
	var messages, values, conditions int
	for _, l := range b.dropped {
		messages, values, conditions = messages+count(l.messages), values+count(l.values), conditions+count(l.conditions)
	}
	c := metav1.Condition{
		Type: TypeStatusTruncated, Status: metav1.ConditionTrue, Reason: ReasonStatusTooLarge, ObservedGeneration: generation,
		Message: fmt.Sprintf(formatTruncated, MaxStatus, len(b.sizes), messages, values, conditions, b.gone),
	}
	if was := apimeta.FindStatusCondition(last.Conditions, c.Type); was != nil {
		c.LastTransitionTime = was.LastTransitionTime
	} else if len(b.Conditions) > 0 {
		c.LastTransitionTime = latest(b.Conditions)
	}
	b.Conditions = append(b.Conditions, c)
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}
