package admission

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDecode_RejectsOtherObjects(t *testing.T) {
	for name, tc := range map[string]struct{ body, want string }{
		"nothing":             {"", "AdmissionReview"},
		"no JSON":             {"kind: AdmissionReview", "AdmissionReview"},
		"another version":     {`{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"1"}}`, "admission.k8s.io/v1"},
		"another kind":        {`{"apiVersion":"v1","kind":"ConfigMap"}`, "AdmissionReview"},
		"a kind of the group": {`{"apiVersion":"admission.k8s.io/v1","kind":"ListOptions"}`, "AdmissionReview"},
		"no request":          {`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, "with a request"},
		"no uid":              {`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{}}`, "with a request"},
	} {
		if req, err := Decode([]byte(tc.body)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, %v", name, req, err)
		}
	}
}

func TestEncode_IsReadableByKubeAPIServer(t *testing.T) {
	for name, tc := range map[string]struct {
		v    Response
		want string
	}{
		"admitted": {Response{}, `{"uid":"7","allowed":true}`},
		"admitted with a warning": {Response{Warnings: []string{"careful"}},
			`{"uid":"7","allowed":true,"warnings":["careful"]}`},
		"refused": {Refused("manifests should not be empty", []string{"careful"}),
			`{"uid":"7","allowed":false,"status":{"metadata":{},"status":"Failure","message":"manifests should not be empty","reason":"BadRequest","code":400},"warnings":["careful"]}`},
		"not known": {Unanswered(errors.New("the hub does not answer")),
			`{"uid":"7","allowed":false,"status":{"metadata":{},"status":"Failure","message":"Internal error occurred: the hub does not answer","reason":"InternalError","details":{"causes":[{"message":"the hub does not answer"}]},"code":500}}`},
	} {
		b, err := Encode("7", tc.v)
		if err != nil {
			t.Fatal(err)
		}
		var got, want any
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		text := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":` + tc.want + `}`
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
