package kubeclient

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWithoutDumps(t *testing.T) {
	long := `{"matchLabels":{"app":"` + strings.Repeat("x", 200) + `"}}`
	for text, want := range map[string]string{
		`Job.batch "j" is invalid: spec.template: Invalid value: core.PodTemplateSpec{ObjectMeta:v1.ObjectMeta{Name:"", CreationTimestamp:time.Date(1, time.January, 1, 0, 0, 0, 0, time.UTC), Labels:map[string]string{"a":"}: no\"}"}, OwnerReferences:[]v1.OwnerReference(nil)}, Spec:core.PodSpec{TerminationGracePeriodSeconds:(*int64)(0xc00a), Volumes:[]core.Volume{}}}: field is immutable`: `Job.batch "j" is invalid: spec.template: field is immutable`,
		`[spec.selector: Invalid value: v1.LabelSelector{MatchLabels:map[string]string{"a":"b"}}: field is immutable, spec.x: Invalid value: &v1.LabelSelector{}: must not be empty]`:                                                                                                                                                                                                                `[spec.selector: field is immutable, spec.x: must not be empty]`,
		`a: Invalid value: map[string]string{"k":"v"}: no`:                              `a: no`,
		`a: Invalid value: map[core.ResourceName]resource.Quantity{"cpu":{i:{}}}: no`:   `a: no`,
		`a: Invalid value: []string{"k", "v"}: no`:                                      `a: no`,
		`a: Invalid value: [2]int{1, 2}: no`:                                            `a: no`,
		`a: Invalid value: []interface {}{"k"}: no`:                                     `a: no`,
		`a: Invalid value: map[string]interface {}{"k":"v"}: no`:                        `a: no`,
		`a: Invalid value: (*int32)(0xc000123): no`:                                     `a: no`,
		`a: Invalid value: intstr.IntOrString{Type:0, IntVal:1, StrVal:""}: no`:         `a: no`,
		`spec.selector: Invalid value: ` + long + `: field is immutable`:                `spec.selector: field is immutable`,
		`spec.selector: Invalid value: {"matchLabels":{"app":"b"}}: field is immutable`: "",
		`spec.replicas: Invalid value: -1: must be greater than or equal to 0`:          "",
		`metadata.name: Invalid value: "core.X{}": a name`:                              "",
		`a: Invalid value: "object": no such key`:                                       "",
		`a: Invalid value: true: no`:                                                    "",
		`a: Invalid value: 10Gi: no`:                                                    "",
		`a: Invalid value: core.X{`:                                                     "",
		`a: Invalid value: core.X{"`:                                                    "",
		`a: Invalid value: core.X{}`:                                                    "",
		`a: Invalid value: core.X{}}: no`:                                               `a: Invalid value: core.X{}}: no`,
		"spec: Forbidden: spec is immutable for bound claims\n@@ -6,7 +6,7 @@\n \"Resources\": {\n  \"Limits\": null,\n- \"a\": 1\n+ \"a\": 2\n": "spec: Forbidden: spec is immutable for bound claims",
		"[spec: Forbidden: no\n@@ -6,7 +6,7 @@\n a\n-b\n, x: Required value]":                                                                    "[spec: Forbidden: no\n, x: Required value]",
		`a: Invalid value: `:            "",
		`the manifest has core.X{}: no`: "",
	} {
		if want == "" {
			want = text
		}
		if got := withoutDumps(text); got != want {
			t.Errorf("%s\n got %s\nwant %s", text, got, want)
		}
	}
}

// FuzzWithoutDumps: no text causes a panic, one without a dump is unchanged, and nothing is added to a text.
func FuzzWithoutDumps(f *testing.F) {
	for _, s := range []string{`a: Invalid value: core.X{A:"}", B:[]int{1}}: no`, `a: Invalid value: {"a":1}: no`, `a: Invalid value: "x": no`, `Invalid value: Invalid value: &{: `} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := withoutDumps(text)
		if !strings.ContainsAny(text, "{(") && !strings.Contains(text, invalidValue+"[") && got != text {
			t.Errorf("%q became %q", text, got)
		}
		rest := text
		for _, r := range []byte(got) {
			i := strings.IndexByte(rest, r)
			if i < 0 {
				t.Fatalf("%q became %q", text, got)
			}
			rest = rest[i+1:]
		}
		if before, _, _ := strings.Cut(text, invalidValue); !strings.Contains(text, diffBegins) && !strings.HasPrefix(got, before) {
			t.Errorf("%q became %q", text, got)
		}
	})
}

// The properties of an error besides its text stay, and an error without a dump is returned unchanged.
func TestReadable(t *testing.T) {
	const dump = `spec: Invalid value: core.X{A:"b"}: field is immutable`
	answer := &apierrors.StatusError{ErrStatus: metav1.Status{
		Code: 422, Reason: metav1.StatusReasonInvalid, Message: `Job "j" is invalid: ` + dump,
		Details: &metav1.StatusDetails{Name: "j", Causes: []metav1.StatusCause{{Type: metav1.CauseTypeFieldValueInvalid, Field: "spec", Message: `Invalid value: core.X{A:"b"}: field is immutable`}}},
	}}
	got := readable(fmt.Errorf("write: %w", answer))
	var s apierrors.APIStatus
	if !errors.As(got, &s) || got.Error() != `Job "j" is invalid: spec: field is immutable` || !apierrors.IsInvalid(got) || s.Status().Details.Name != "j" ||
		s.Status().Details.Causes[0] != (metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Field: "spec", Message: "field is immutable"}) {
		t.Errorf("got %+v", got)
	}
	if !strings.Contains(answer.Error(), dump) || !strings.Contains(answer.ErrStatus.Details.Causes[0].Message, "core.X") {
		t.Errorf("the answer was modified: %+v", answer)
	}
	for _, same := range []error{nil, errors.New(dump), apierrors.NewBadRequest("a: Invalid value: 1: no")} {
		if got := readable(same); !errors.Is(got, same) {
			t.Errorf("%v became %v", same, got)
		}
	}
}
