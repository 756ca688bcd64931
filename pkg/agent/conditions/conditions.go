package conditions

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditionrules"
)

// TypeStatusFeedbackSynced is the manifest condition about feedback values.
const TypeStatusFeedbackSynced = "StatusFeedbackSynced"

// Reasons that the API package does not define.
const (
	ReasonResourceAvailable      = "ResourceAvailable"
	ReasonResourceNotAvailable   = "ResourceNotAvailable"
	ReasonFetchingResourceFailed = "FetchingResourceFailed"
	ReasonIncompleteResourceMeta = "IncompleteResourceMeta"
	ReasonNoStatusFeedback       = "NoStatusFeedbackSynced"
	ReasonStatusFeedbackSynced   = "StatusFeedbackSynced"
	ReasonStatusFeedbackFailed   = "StatusFeedbackSyncFailed"

	ReasonWorkApplied            = "AppliedManifestWorkComplete"
	ReasonWorkApplyFailed        = "AppliedManifestWorkFailed"
	ReasonResourcesAvailable     = "ResourcesAvailable"
	ReasonResourcesNotAvailable  = "ResourcesNotAvailable"
	ReasonResourcesStatusUnknown = "ResourcesStatusUnknown"
	ReasonWorkDeleting           = "WorkDeleting"
	// ReasonDeletionBlocked replaces ReasonWorkDeleting while something blocks the removal of the objects. The
	// message names it.
	ReasonDeletionBlocked = "WorkDeletionBlocked"
)

// Tools compare these texts literally. The message of a work about a failure is not one of them: it begins with
// the reason, see reasonFirst.
const (
	messageNoResourceKnown       = "cannot get any available resource " // the trailing blank is part of it
	messageIncompleteMeta        = "Resource meta is incomplete"
	messageWorkDeleting          = "ManifestWork is being deleted"
	messageManifestApplied       = "Apply manifest complete"
	messageWorkApplied           = "Apply manifest work complete"
	messageAllResourcesAvailable = "All resources are available"
	messageResourceAvailable     = "Resource is available"
	messageResourceNotAvailable  = "Resource is not available"
	formatManifestFailed         = "Failed to apply manifest: %v"
	formatIgnoreFieldsFailed     = "Failed to process ignoreFields: %v"
	formatManifestIncomplete     = messageManifestApplied + ", but the cluster did not keep %s, and gave no reason: a webhook may remove it, or a feature of the cluster may be off"
	formatFetchingFailed         = "Failed to fetch resource: %v"
	formatFeedbackFailed         = "Sync status feedback failed with error %s"
	formatResourcesNotAvailable  = "%d of %d resources are not available"
	formatResourcesStatusUnknown = "%d of %d resources have unknown status"
	formatManifestsFailed        = "%d of %d manifests failed"
)

// maxMessage is the API's limit of a condition message, in characters. It is compared with bytes, which are
// never fewer.
const (
	maxMessage = 32 << 10
	truncated  = "… (truncated)"
)

// Presence is the presence of a manifest's object on the cluster.
type Presence int

// The kinds of presence.
const (
	// Unreadable: the object could not be read; Manifest.ReadErr is the reason.
	Unreadable Presence = iota
	// Present: the object exists.
	Present
	// Absent: the cluster answered that the object does not exist.
	Absent
	// Unidentified: the manifest does not identify its object, or the cluster does not know its kind.
	Unidentified
)

// Manifest is the result of a reconciliation for one manifest.
type Manifest struct {
	// Meta identifies the manifest; Ordinal is the index in the spec.
	Meta workv1.ManifestResourceMeta
	// ApplyErr is nil if the object is as the manifest wants it.
	ApplyErr error
	// Missing are fields of the manifest that the object lacks although the cluster accepted them without a
	// warning. This is no error: another program on the cluster removes them.
	Missing  []string
	Presence Presence
	// ReadErr is set when Presence is Unreadable.
	ReadErr error
	// ApplySkipped: the manifest was intentionally not applied in this reconciliation, because the work is complete
	// or another writer keeps undoing it. The condition about applying it stays.
	ApplySkipped bool
	// Unsent: a write or read of the object was not sent, because earlier requests are slow. The condition about
	// applying it stays. The conditions about the object also stay, unless it was read.
	Unsent bool
	// Others are fields of other managers that are left alone.
	Others []ForeignField
	// Contest, if not nil, describes an object that is changed after each repair.
	Contest *Contest

	// Feedback: the work requests values of the object. Values are the values found, FeedbackErrs the reasons for
	// missing ones. They are valid only if Presence is Present.
	Feedback     bool
	Values       []workv1.FeedbackValue
	FeedbackErrs []error

	// Rules are the conditions that the manifest's rules yield for the object; they are valid only if Presence is
	// Present. RuleTypes are the types that they may yield; conditions of other types are removed.
	Rules     []conditionrules.Outcome
	RuleTypes []string
	// CompleteSince is when an earlier process found the manifest complete; zero if none did. It is used for a
	// manifest without a history.
	CompleteSince time.Time
}

// IgnoreFieldsError means that a manifest was not applied because its ignored fields could not be determined.
// It has its own reason.
type IgnoreFieldsError struct{ Err error }

// Error returns the text of the expression's error.
func (e *IgnoreFieldsError) Error() string { return e.Err.Error() }

// Unwrap returns the error of an expression.
func (e *IgnoreFieldsError) Unwrap() error { return e.Err }

// Next returns the status after a reconciliation. prev is not modified. generation is that of the reconciled
// spec. manifests are in spec order. now is truncated to whole seconds.
func Next(prev workv1.ManifestWorkStatus, generation int64, manifests []Manifest, now time.Time) workv1.ManifestWorkStatus {
	next := workv1.ManifestWorkStatus{Conditions: slices.Clone(prev.Conditions)}
	apimeta.RemoveStatusCondition(&next.Conditions, workv1.WorkDeleting) // a live work is not being deleted
	old := indexHistory(prev.ResourceStatus.Manifests)
	entries := make([]workv1.ManifestCondition, 0, len(manifests))
	held, unsent, failed := true, false, false
	for _, m := range manifests {
		before := old.find(m.Meta)
		unsent, m.ApplySkipped = unsent || m.Unsent, m.ApplySkipped || m.Unsent
		if held = held && m.ApplySkipped; m.ApplySkipped && before == nil {
			continue // the manifest was never applied and is skipped now, so it has no status
		}
		entries = append(entries, nextManifest(before, generation, m, stamp(now)))
		failed = failed || !m.ApplySkipped && m.ApplyErr != nil
	}
	next.ResourceStatus.Manifests = entries
	if len(manifests) > 0 && !held && (failed || !unsent) {
		apimeta.SetStatusCondition(&next.Conditions, workApplied(entries, generation, stamp(now)))
	}
	addContested(&next.Conditions, entries, generation, stamp(now))
	available := workAvailable(entries, generation, stamp(now))
	setFirstMissing(&available, entries)
	if unsent && available.Status != metav1.ConditionFalse { // not all objects are known
		available = metav1.Condition{Type: available.Type}
	}
	sumUp(&next.Conditions, entries, available, generation, stamp(now))
	return next
}

// Deleting returns the status of a work whose objects are being removed. Conditions about applying them stay.
// manifests has the present state of the objects. If manifests is empty, the objects were not read: their
// conditions stay, and so does the text about what blocks the removal.
func Deleting(prev workv1.ManifestWorkStatus, generation int64, manifests []Manifest, now time.Time) workv1.ManifestWorkStatus {
	next := *prev.DeepCopy()
	if len(manifests) > 0 {
		old := indexHistory(prev.ResourceStatus.Manifests)
		entries := make([]workv1.ManifestCondition, 0, len(manifests))
		for _, m := range manifests {
			m.ApplySkipped = true
			entries = append(entries, nextManifest(old.find(m.Meta), generation, m, stamp(now)))
		}
		next.ResourceStatus.Manifests = entries
		sumUp(&next.Conditions, entries, workAvailable(entries, generation, stamp(now)), generation, stamp(now)) // an absent object is as wanted here
	}
	c := metav1.Condition{
		Type: workv1.WorkDeleting, Status: metav1.ConditionTrue, Reason: ReasonWorkDeleting, Message: messageWorkDeleting,
		ObservedGeneration: generation, LastTransitionTime: stamp(now),
	}
	if was := apimeta.FindStatusCondition(prev.Conditions, c.Type); was != nil && len(manifests) == 0 {
		c.Reason, c.Message = was.Reason, was.Message
	}
	apimeta.SetStatusCondition(&next.Conditions, c)
	return next
}

// Rejected returns the status of a work whose latest spec is unusable; problem is the reason. The previously
// applied objects stay, and so do their entries.
func Rejected(prev workv1.ManifestWorkStatus, generation int64, problem string, now time.Time) workv1.ManifestWorkStatus {
	next := *prev.DeepCopy()
	apimeta.SetStatusCondition(&next.Conditions, metav1.Condition{
		Type: workv1.WorkApplied, Status: metav1.ConditionFalse, Reason: ReasonWorkApplyFailed, Message: cut(Reasoned(problem)),
		ObservedGeneration: generation, LastTransitionTime: stamp(now),
	})
	return next
}

func stamp(now time.Time) metav1.Time { return metav1.NewTime(now.Truncate(time.Second)) }

// nextManifest computes the next entry of a manifest. The order of the steps is the order of new conditions in
// the list.
func nextManifest(old *workv1.ManifestCondition, generation int64, m Manifest, now metav1.Time) workv1.ManifestCondition {
	next := workv1.ManifestCondition{ResourceMeta: m.Meta}
	if old != nil {
		next.Conditions = slices.Clone(old.Conditions)
		next.StatusFeedbacks = *old.StatusFeedbacks.DeepCopy()
	}
	if !m.ApplySkipped {
		setApplied(&next.Conditions, generation, m, now)
		setContested(&next.Conditions, generation, m, now)
	}
	if !m.Unsent || m.Presence == Present || m.Presence == Absent {
		apimeta.SetStatusCondition(&next.Conditions, available(m, now))
	}
	// An object that could not be read keeps its feedback and rule outcomes. The removal of an object that had
	// completed therefore does not undo its completion.
	if m.Presence == Present {
		setFeedback(&next, m, now)
	}
	setRules(&next.Conditions, m, generation, now)
	return next
}

// setApplied updates the condition in its position while the generation is the same. For another generation it
// is removed and appended, so that its transition time is when this generation was applied.
func setApplied(list *[]metav1.Condition, generation int64, m Manifest, now metav1.Time) {
	c := metav1.Condition{
		Type: workv1.ManifestApplied, Status: metav1.ConditionTrue, Reason: workv1.AppliedManifestComplete, Message: messageManifestApplied,
		ObservedGeneration: generation, LastTransitionTime: now,
	}
	if len(m.Missing) > 0 {
		c.Message = format(formatManifestIncomplete, strings.Join(m.Missing, ", "))
	}
	if err := m.ApplyErr; err != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, workv1.AppliedManifestFailed, format(formatManifestFailed, err)
		if ignore := (*IgnoreFieldsError)(nil); errors.As(err, &ignore) {
			c.Reason, c.Message = workv1.AppliedManifestSSAIgnoreFieldError, format(formatIgnoreFieldsFailed, err)
		}
		if cutOff := (*CutOffError)(nil); errors.As(err, &cutOff) {
			c.Reason = ReasonAgentWritesRejected
		}
	}
	if old := apimeta.FindStatusCondition(*list, c.Type); old != nil && old.ObservedGeneration != generation {
		apimeta.RemoveStatusCondition(list, c.Type)
	}
	apimeta.SetStatusCondition(list, c)
}

// available returns a condition without an observed generation: it is about the object, not the spec.
func available(m Manifest, now metav1.Time) metav1.Condition {
	c := metav1.Condition{Type: workv1.ManifestAvailable, LastTransitionTime: now}
	switch m.Presence {
	case Present:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, ReasonResourceAvailable, messageResourceAvailable
	case Absent:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, ReasonResourceNotAvailable, messageResourceNotAvailable
	case Unidentified:
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, ReasonIncompleteResourceMeta, messageIncompleteMeta
	case Unreadable:
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, ReasonFetchingResourceFailed, format(formatFetchingFailed, m.ReadErr)
	}
	return c
}

// setFeedback sets the values. When they change, the condition is replaced, so that its transition time is the
// time of the change.
func setFeedback(e *workv1.ManifestCondition, m Manifest, now metav1.Time) {
	if !slices.EqualFunc(e.StatusFeedbacks.Values, m.Values, func(a, b workv1.FeedbackValue) bool { return apiequality.Semantic.DeepEqual(a, b) }) {
		apimeta.RemoveStatusCondition(&e.Conditions, TypeStatusFeedbackSynced)
	}
	e.StatusFeedbacks.Values = m.Values
	c := metav1.Condition{Type: TypeStatusFeedbackSynced, Status: metav1.ConditionTrue, Reason: ReasonStatusFeedbackSynced, LastTransitionTime: now}
	switch {
	case len(m.FeedbackErrs) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, ReasonStatusFeedbackFailed, format(formatFeedbackFailed, aggregate(m.FeedbackErrs))
	case !m.Feedback:
		c.Reason = ReasonNoStatusFeedback
	}
	apimeta.SetStatusCondition(&e.Conditions, c)
}

// aggregate returns the text of a single error, or a list of different texts.
func aggregate(errs []error) string {
	var texts []string
	for _, err := range errs {
		if !slices.Contains(texts, err.Error()) {
			texts = append(texts, err.Error())
		}
	}
	if len(texts) == 1 {
		return texts[0]
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

func workApplied(entries []workv1.ManifestCondition, generation int64, now metav1.Time) metav1.Condition {
	c := metav1.Condition{
		Type: workv1.WorkApplied, Status: metav1.ConditionTrue, Reason: ReasonWorkApplied, Message: messageWorkApplied,
		ObservedGeneration: generation, LastTransitionTime: now,
	}
	if slices.ContainsFunc(entries, func(e workv1.ManifestCondition) bool {
		return apimeta.IsStatusConditionFalse(e.Conditions, workv1.ManifestApplied)
	}) {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, ReasonWorkApplyFailed, ""
		setFirst(&c, entries)
	}
	return c
}

func workAvailable(entries []workv1.ManifestCondition, generation int64, now metav1.Time) metav1.Condition {
	count := map[metav1.ConditionStatus]int{}
	for _, e := range entries {
		if a := apimeta.FindStatusCondition(e.Conditions, workv1.ManifestAvailable); a != nil {
			count[a.Status]++
		}
	}
	c := metav1.Condition{Type: workv1.WorkAvailable, ObservedGeneration: generation, LastTransitionTime: now}
	switch no, unknown := count[metav1.ConditionFalse], count[metav1.ConditionUnknown]; {
	case no > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, ReasonResourcesNotAvailable, fmt.Sprintf(formatResourcesNotAvailable, no, len(entries))
	case unknown > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, ReasonResourcesStatusUnknown, fmt.Sprintf(formatResourcesStatusUnknown, unknown, len(entries))
	case count[metav1.ConditionTrue] == 0:
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, ReasonResourcesStatusUnknown, messageNoResourceKnown
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, ReasonResourcesAvailable, messageAllResourcesAvailable
	}
	return c
}

// format is Sprintf with that limit.
func format(text string, args ...any) string { return cut(fmt.Sprintf(text, args...)) }

// cut truncates a message to the API's limit, so that the hub does not reject the whole status because of one
// very long error text.
func cut(s string) string { return cutTo(maxMessage, s) }

func cutTo(limit int, s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit-len(truncated)], "") + truncated
}
