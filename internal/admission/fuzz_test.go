package admission

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// FuzzReview: any request of a client is refused, or answered by a review of the same UID. No agent finds an
// admitted work invalid.
func FuzzReview(f *testing.F) {
	review := func(req *admissionv1.AdmissionRequest) []byte {
		return marshal(f, &admissionv1.AdmissionReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: req,
		})
	}
	simple := workOf(configMap)
	f.Add(review(request(f, simple, nil)))
	f.Add(review(request(f, with(simple, executedBy("apps", "deployer")), simple)))
	f.Add(review(request(f, with(simple, withTTL(0)), workOf())))
	f.Add(review(request(f, workOf(configMap, configMap), nil)))
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"CREATE","object":{"spec":{"workload":{"manifests":[null]}}}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := Decode(body)
		if err != nil {
			if req != nil {
				t.Fatalf("a request together with %v", err)
			}
			return
		}
		r := Rules{ManifestLimit: 2000, CheckNilExecutor: true}
		a := r.Check(req)
		v := Response{Warnings: a.Warnings}
		if a.Problem != "" {
			v = Refused(a.Problem, a.Warnings)
			if a.Executor != nil {
				t.Fatal("refused, and a question all the same")
			}
		}
		if a.Executor != nil && (a.Executor.Review().Spec.ResourceAttributes.Namespace != req.Namespace || a.Executor.Denial() == "") {
			t.Fatalf("the question %+v is about another namespace", a.Executor.Review())
		}
		b, err := Encode(req.UID, v)
		if err != nil {
			t.Fatal(err)
		}
		o, err := runtime.Decode(serializer, b)
		if err != nil {
			t.Fatal(err)
		}
		if got := o.(*admissionv1.AdmissionReview).Response; got.UID != req.UID || got.Allowed != (a.Problem == "") {
			t.Fatalf("answered %+v to %s, problem %q", got, req.UID, a.Problem)
		}
		if a.Problem == "" && req.Operation == admissionv1.Create && req.SubResource == "" {
			checkDeliverable(t, req.Object.Raw)
		}
	})
}

// checkDeliverable publishes a work as hub-source does, and reads it as an agent does.
func checkDeliverable(t *testing.T, raw []byte) {
	t.Helper()
	var work workv1.ManifestWork
	if err := json.Unmarshal(raw, &work); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(bytes.ToLower(raw), []byte("generatename")) {
		return // agents accept any spelling of generateName; the hub's API accepts only one
	}
	work.ObjectMeta = metav1.ObjectMeta{Namespace: "cluster1", Name: "w", UID: "u", Generation: 1}
	e, err := manifestwork.EncodeSpec(&work, manifestwork.SpecParams{ID: "1", Now: time.Unix(1700000000, 0), Source: "hub", Action: codec.CreateRequest})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := manifestwork.DecodeSpec(e); err != nil {
		t.Fatalf("admitted, and agents reject the work: %v", err)
	}
}
