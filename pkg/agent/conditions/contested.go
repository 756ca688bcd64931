package conditions

import (
	"fmt"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TypeContested is the manifest condition about an object that other managers
// keep changing. It is only there while it is True.
const TypeContested = "Contested"

// ReasonFieldsOfOthers means that the object has all that the manifest says, and fields of
// others besides, which are left alone because removing them did not last.
const ReasonFieldsOfOthers = "FieldsOfOtherManagersStay"

const (
	formatFieldsOfOthers = "Fields that the manifest does not have stay on the object, since removing them did not last: %s. " +
		"Put them into the manifest, or use update strategy ServerSideApply, with which several managers share an object"
	// namedFields is how many are named, maxField bounds each in bytes.
	namedFields = 5
	maxField    = 300
)

// ForeignField is a field that the manifest does not have, and which manager set it.
type ForeignField struct{ Path, Manager string }

// setContested says which fields are left to others.
func setContested(list *[]metav1.Condition, generation int64, fields []ForeignField, now metav1.Time) {
	if len(fields) == 0 {
		apimeta.RemoveStatusCondition(list, TypeContested)
		return
	}
	var named []string
	for _, f := range fields[:min(namedFields, len(fields))] {
		named = append(named, cutTo(maxField, f.Path)+" (set by "+cutTo(maxField, f.Manager)+")")
	}
	if more := len(fields) - namedFields; more > 0 {
		named = append(named, fmt.Sprintf("and %d more", more))
	}
	apimeta.SetStatusCondition(list, metav1.Condition{
		Type: TypeContested, Status: metav1.ConditionTrue, Reason: ReasonFieldsOfOthers, Message: format(formatFieldsOfOthers, strings.Join(named, ", ")),
		ObservedGeneration: generation, LastTransitionTime: now,
	})
}
