package conditions

import (
	"fmt"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

// TypeContested is the condition of an object that other managers or other works keep changing. It exists only
// while it is True. A manifest has it for both reasons, a work only while one of its objects is changed after
// each repair.
const TypeContested = "Contested"

const (
	// ReasonFieldsOfOthers means that the object has all values of the manifest, and also fields of others. These
	// are left alone because they came back after each removal.
	ReasonFieldsOfOthers = "FieldsOfOtherManagersStay"
	// ReasonChangedAfterRepair means that the object is changed after each repair. It is repaired less often, and
	// differs from the manifest most of the time.
	ReasonChangedAfterRepair = "ChangedAfterEachRepair"
)

const (
	formatFieldsOfOthers = "Fields that the manifest does not have stay on the object, since removing them did not last: %s. " +
		"Put them into the manifest, or use update strategy ServerSideApply, with which several managers share an object"
	formatChanged = "%s after each repair: the object is repaired once a minute only, and is not as the manifest says most of the time. "
	adviceWorks   = "Take the object out of all works but one"
	adviceOthers  = "Stop the other writer, or have the work leave the field alone: update strategy ServerSideApply with ignoreFields"
	adviceMissing = "Stop the client that deletes it: the audit log of the cluster shows it"
	// namedFields bounds the number of named fields, maxField the bytes of each.
	namedFields = 5
	maxField    = 300
)

// ForeignField is a field that is not in the manifest, and the manager that set it.
type ForeignField struct{ Path, Manager string }

// Contest describes how an object is changed after each repair. Unknown parts are empty.
type Contest struct {
	// Missing: the object is deleted.
	Missing bool
	// Path is a changed field. Manager owns it; several are joined by commas.
	Path, Manager string
	// Works are other works that have the same object.
	Works []string
}

// message describes the contest, why it lasts, and the next step.
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

// setContested sets the condition for an object that is changed after each repair, or that has fields of
// others.
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

// addContested sets the work's condition about objects that are changed after each repair.
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
