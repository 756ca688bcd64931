package conditions

import (
	"fmt"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

// TypeContested is the condition about an object that other managers or other works
// keep changing. It is only there while it is True. A manifest has it for either reason, a work
// only while one of its objects is changed after each repair.
const TypeContested = "Contested"

const (
	// ReasonFieldsOfOthers means that the object has all that the manifest says, and fields of
	// others besides, which are left alone because removing them did not last.
	ReasonFieldsOfOthers = "FieldsOfOtherManagersStay"
	// ReasonChangedAfterRepair means that the object is changed after each repair: it is repaired
	// less often, and is not as the manifest says most of the time.
	ReasonChangedAfterRepair = "ChangedAfterEachRepair"
)

const (
	formatFieldsOfOthers = "Fields that the manifest does not have stay on the object, since removing them did not last: %s. " +
		"Put them into the manifest, or use update strategy ServerSideApply, with which several managers share an object"
	formatChanged = "%s after each repair: the object is repaired once a minute only, and is not as the manifest says most of the time. "
	adviceWorks   = "Take the object out of all works but one"
	adviceOthers  = "Stop the other writer, or have the work leave the field alone: update strategy ServerSideApply with ignoreFields"
	adviceMissing = "Stop what deletes it: the audit log of the cluster says what that is"
	// namedFields is how many are named, maxField bounds each in bytes.
	namedFields = 5
	maxField    = 300
)

// ForeignField is a field that the manifest does not have, and which manager set it.
type ForeignField struct{ Path, Manager string }

// Contest says in what way an object is changed after each repair; what is not known is empty.
type Contest struct {
	// Missing: it is deleted.
	Missing bool
	// Path is a field that is changed, Manager has it, several are joined by commas.
	Path, Manager string
	// Works are other works that have the object too.
	Works []string
}

// message says what happens, why it does not end, and what helps.
func (c Contest) message() string {
	field, by, advice := "the object", "another manager", adviceOthers
	if c.Path != "" {
		field = cutTo(maxField, c.Path)
	}
	if c.Manager != "" {
		by = cutTo(maxField, c.Manager)
	}
	change := field + " is changed by " + by
	works := c.Works
	if more := len(works) - namedFields; more > 0 {
		works = append(works[:namedFields:namedFields], fmt.Sprintf("and %d more", more))
	}
	switch list := strings.Join(works, ", "); {
	case c.Missing:
		change, advice = "the object is deleted", adviceMissing
		if list != "" {
			change += " (" + list + " has it too)"
		}
	case list != "" && c.Manager == "":
		change, advice = field+" is changed by "+list+", which has the same object,", adviceWorks
	case list != "":
		change += " (" + list + " has the same object)"
	}
	return format(formatChanged, change) + advice
}

// setContested says that the object is changed after each repair, or which fields are left to others.
func setContested(list *[]metav1.Condition, generation int64, m Manifest, now metav1.Time) {
	c := metav1.Condition{Type: TypeContested, Status: metav1.ConditionTrue, ObservedGeneration: generation, LastTransitionTime: now}
	switch {
	case m.Contest != nil:
		c.Reason, c.Message = ReasonChangedAfterRepair, m.Contest.message()
	case len(m.Others) > 0:
		c.Reason, c.Message = ReasonFieldsOfOthers, fieldsOfOthers(m.Others)
	default:
		apimeta.RemoveStatusCondition(list, TypeContested)
		return
	}
	apimeta.SetStatusCondition(list, c)
}

func fieldsOfOthers(fields []ForeignField) string {
	var named []string
	for _, f := range fields[:min(namedFields, len(fields))] {
		named = append(named, cutTo(maxField, f.Path)+" (set by "+cutTo(maxField, f.Manager)+")")
	}
	if more := len(fields) - namedFields; more > 0 {
		named = append(named, fmt.Sprintf("and %d more", more))
	}
	return format(formatFieldsOfOthers, strings.Join(named, ", "))
}

// addContested sums up for the work which objects are changed after each repair.
func addContested(list *[]metav1.Condition, entries []workv1.ManifestCondition, generation int64, now metav1.Time) {
	contested, message := 0, ""
	for _, e := range entries {
		c := apimeta.FindStatusCondition(e.Conditions, TypeContested)
		if c == nil || c.Reason != ReasonChangedAfterRepair {
			continue
		}
		if contested++; contested == 1 {
			message = nameOf(e.ResourceMeta) + ": " + c.Message
		}
	}
	if contested == 0 {
		apimeta.RemoveStatusCondition(list, TypeContested)
		return
	}
	if contested > 1 {
		message += fmt.Sprintf("; %d objects are contested", contested)
	}
	apimeta.SetStatusCondition(list, metav1.Condition{
		Type: TypeContested, Status: metav1.ConditionTrue, Reason: ReasonChangedAfterRepair, Message: cutMiddle(maxSummary, message),
		ObservedGeneration: generation, LastTransitionTime: now,
	})
}
