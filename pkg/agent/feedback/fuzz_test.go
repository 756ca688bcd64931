package feedback_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/feedback"
)

// FuzzRead: for any path and object there is no panic, each name occurs once, and no value is one that the hub
// rejects.
func FuzzRead(f *testing.F) {
	f.Add(".status.i", []byte(rope))
	f.Add(`.status.t[?(@.t=="B")].v}{range .status.l[*]}{.}{end`, []byte(rope))
	f.Add(".status.l}{range .x}{range .status.l[*]}{.y", []byte(rope))
	f.Add("['status','status'].*..*", []byte(rope))
	f.Fuzz(func(t *testing.T, path string, object []byte) {
		o := &unstructured.Unstructured{}
		if o.UnmarshalJSON(object) != nil {
			return
		}
		rules := []workv1.FeedbackRule{paths(workv1.JsonPath{Name: "a", Path: path}, workv1.JsonPath{Name: "a", Path: path}, workv1.JsonPath{Name: "b", Path: path})}
		for _, raw := range []bool{false, true} {
			values, _ := feedback.Reader{Raw: raw}.Read(o, rules)
			if len(values) > 2 {
				t.Fatalf("%d values of 2 names", len(values))
			}
			for _, v := range values {
				f := v.Value
				if f.JsonRaw != nil && (!raw || len(*f.JsonRaw) > feedback.MaxRawLength) {
					t.Fatalf("raw JSON %q", *f.JsonRaw)
				}
				if (f.Integer != nil) != (f.Type == workv1.Integer) || (f.String != nil) != (f.Type == workv1.String) || (f.Boolean != nil) != (f.Type == workv1.Boolean) || (f.JsonRaw != nil) != (f.Type == workv1.JsonRaw) {
					t.Fatalf("type %s of %+v", f.Type, f)
				}
			}
		}
	})
}
