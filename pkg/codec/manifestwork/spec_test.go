package manifestwork

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/internal/codectest"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

const testUID = "28e8bfbf-1292-522f-999a-20f1a0f81b1e"

var testTime = time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.UTC)

func manifest(raw string) workv1.Manifest {
	return workv1.Manifest{RawExtension: runtime.RawExtension{Raw: []byte(raw)}}
}

// testWork is a work as stored on a hub, with all fields that must not be sent.
func testWork() *workv1.ManifestWork {
	return &workv1.ManifestWork{
		ObjectMeta: metav1.ObjectMeta{
			Name:              "w1",
			Namespace:         "cluster1",
			UID:               testUID,
			ResourceVersion:   "4711",
			Generation:        3,
			CreationTimestamp: metav1.NewTime(testTime),
			Labels:            map[string]string{"app": "nginx"},
			Annotations: map[string]string{
				"note": "a<b",
				"kubectl.kubernetes.io/last-applied-configuration": `{"large":"object"}`,
				"logging.open-cluster-management.io/op-id":         "op1",
			},
			Finalizers:    []string{workv1.ManifestWorkFinalizer},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
		},
		Spec: workv1.ManifestWorkSpec{
			Workload: workv1.ManifestsTemplate{Manifests: []workv1.Manifest{
				manifest(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"cm","namespace":"default"},"data":{"k":"v"}}`),
			}},
			DeleteOption: &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan},
			ManifestConfigs: []workv1.ManifestConfigOption{{
				ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Name: "cm", Namespace: "default"},
				FeedbackRules:      []workv1.FeedbackRule{{Type: workv1.WellKnownStatusType}},
				UpdateStrategy:     &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeServerSideApply, ServerSideApply: &workv1.ServerSideApplyConfig{Force: true}},
			}},
			Executor: &workv1.ManifestWorkExecutor{Subject: workv1.ManifestWorkExecutorSubject{
				Type:           workv1.ExecutorSubjectTypeServiceAccount,
				ServiceAccount: &workv1.ManifestWorkSubjectServiceAccount{Namespace: "ns", Name: "sa"},
			}},
		},
	}
}

func deletingWork() *workv1.ManifestWork {
	w := testWork()
	at := metav1.NewTime(testTime.Add(time.Hour))
	w.DeletionTimestamp = &at
	return w
}

func params(action codec.Action) SpecParams {
	return SpecParams{ID: "e1", Now: testTime, Source: "src1", Action: action}
}

func encodeSpecT(tb testing.TB, w *workv1.ManifestWork, p SpecParams) codec.Event {
	tb.Helper()
	e, err := EncodeSpec(w, p)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func marshal(tb testing.TB, e codec.Event) []byte {
	tb.Helper()
	b, err := codec.Marshal(e)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func TestC1_SpecCreate(t *testing.T) {
	e := encodeSpecT(t, testWork(), params(codec.CreateRequest))
	if e.Type() != "io.open-cluster-management.works.v1alpha1.manifestbundles.spec.create_request" || e.Source() != "src1" || e.DataContentType() != "application/json" {
		t.Errorf("context: %v", e)
	}
	ext := e.Extensions()
	if want := []string{"clustername", "logtracing", "metadata", "originalsource", "resourceid", "resourceversion"}; !slices.Equal(slices.Sorted(maps.Keys(ext)), want) {
		t.Errorf("extensions are %v", slices.Sorted(maps.Keys(ext)))
	}
	if ext["clustername"] != "cluster1" || ext["originalsource"] != "" || ext["resourceid"] != testUID || ext["resourceversion"] != int32(3) {
		t.Errorf("extensions: %v", ext)
	}
	if want := `{"logging.open-cluster-management.io/op-id":"op1"}`; ext["logtracing"] != want {
		t.Errorf("logtracing %v", ext["logtracing"])
	}
	var data map[string]json.RawMessage
	if err := json.Unmarshal(e.Data(), &data); err != nil {
		t.Fatal(err)
	}
	if want := `[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"cm","namespace":"default"},"data":{"k":"v"}}]`; string(data["manifests"]) != want {
		t.Errorf("manifests %s", data["manifests"])
	}
	codectest.Golden(t, "spec_create.txt", marshal(t, e))
}

func TestC1_AWorkWithNothingOptional(t *testing.T) {
	w := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{Name: "w1", Namespace: "cluster1", UID: testUID}}
	e := encodeSpecT(t, w, params(codec.UpdateRequest))
	if string(e.Data()) != `{"manifests":null}` || e.Extensions()["logtracing"] != "{}" || e.Extensions()["resourceversion"] != int32(0) {
		t.Errorf("%v", e)
	}
}

func TestC2_SpecDelete(t *testing.T) {
	e := encodeSpecT(t, deletingWork(), params(codec.DeleteRequest))
	if len(e.Data()) != 0 || e.DataContentType() != "" {
		t.Errorf("a deletion of an OCM source has no data and no content type: %v", e)
	}
	at, ok, err := codec.TimeExtension(e, codec.ExtDeletionTimestamp)
	if err != nil || !ok || !at.Equal(testTime.Add(time.Hour)) {
		t.Errorf("deletiontimestamp %v %v %v", at, ok, err)
	}
	if metadata, _, _ := codec.StringExtension(e, codec.ExtMetadata); !strings.Contains(metadata, `"name":"w1"`) || !strings.Contains(metadata, `"deletionTimestamp":"2026-01-02T04:04:05Z"`) {
		t.Errorf("metadata %s", metadata)
	}
	codectest.Golden(t, "spec_delete.txt", marshal(t, e))

	p := params(codec.DeleteRequest)
	p.DeletionWithData = true
	codectest.Golden(t, "spec_delete_with_data.txt", marshal(t, encodeSpecT(t, deletingWork(), p)))
}

func TestEncodeSpec_DeletesOnTheActionAlone(t *testing.T) {
	w := testWork()
	e := encodeSpecT(t, w, params(codec.DeleteRequest))
	at, ok, err := codec.TimeExtension(e, codec.ExtDeletionTimestamp)
	if err != nil || !ok || !at.Equal(testTime) {
		t.Errorf("deletiontimestamp %v %v %v", at, ok, err)
	}
	if w.DeletionTimestamp != nil {
		t.Error("the work was changed")
	}
}

func TestEncodeSpec_MarksDeletionAfterAReport(t *testing.T) {
	for action, want := range map[codec.Action]string{codec.DeleteRequest: "true", codec.UpdateRequest: ""} {
		p := params(action)
		p.Reported = true
		if got, _, err := codec.StringExtension(encodeSpecT(t, testWork(), p), codec.ExtNeedsConfirm); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", action, got, err, want)
		}
	}
}

func TestC3_SpecOverGRPC(t *testing.T) {
	var p cloudeventsv1.CloudEvent
	if err := proto.Unmarshal(marshal(t, encodeSpecT(t, testWork(), params(codec.CreateRequest))), &p); err != nil {
		t.Fatal(err)
	}
	a := p.GetAttributes()
	if a["contenttype"].GetCeString() != "application/json" {
		t.Errorf("contenttype is %v", a["contenttype"])
	}
	if _, ok := a["ce-resourceversion"].GetAttr().(*cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeInteger); !ok || a["ce-resourceversion"].GetCeInteger() != 3 {
		t.Errorf("ce-resourceversion is %v", a["ce-resourceversion"])
	}
	if !a["ce-time"].GetCeTimestamp().AsTime().Equal(testTime) {
		t.Errorf("ce-time is %v", a["ce-time"])
	}
	if _, ok := a["ce-originalsource"].GetAttr().(*cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeString); !ok {
		t.Errorf("ce-originalsource is %v", a["ce-originalsource"])
	}
	if len(p.GetBinaryData()) == 0 {
		t.Error("no binary_data")
	}
}

func TestEncodeSpec_MetadataStaysSmall(t *testing.T) {
	w := testWork()
	e := encodeSpecT(t, w, params(codec.UpdateRequest))
	metadata, _, err := codec.StringExtension(e, codec.ExtMetadata)
	if err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{"managedFields", "resourceVersion", "last-applied"} {
		if strings.Contains(metadata, gone) {
			t.Errorf("metadata has %s: %s", gone, metadata)
		}
	}
	var m metav1.ObjectMeta
	if err := json.Unmarshal([]byte(metadata), &m); err != nil {
		t.Fatal(err)
	}
	if m.Annotations["note"] != "a<b" || m.Labels["app"] != "nginx" || m.Generation != 3 || len(m.Finalizers) != 1 {
		t.Errorf("metadata lost something: %s", metadata)
	}
	if d := cmp.Diff(testWork(), w); d != "" {
		t.Errorf("the work was changed (-want +got):\n%s", d)
	}
}

func TestEncodeSpec_KeepsLargeGeneration(t *testing.T) {
	w := testWork()
	for generation, want := range map[int64]int32{math.MaxInt32: math.MaxInt32, math.MaxInt32 + 1: 0, 1 << 33: 0} {
		w.Generation = generation
		e := encodeSpecT(t, w, params(codec.UpdateRequest))
		if e.Extensions()["resourceversion"] != want {
			t.Errorf("generation %d goes out as %v", generation, e.Extensions()["resourceversion"])
		}
		env, err := codec.ParseEnvelope(marshal(t, e))
		if err != nil || env.ObjectGen != generation || !env.HasVersion {
			t.Errorf("generation %d: the broker sees %+v, %v", generation, env, err)
		}
		s, err := DecodeSpec(e)
		if err != nil || s.Version != int64(want) || s.Generation != generation || s.Work.Generation != generation {
			t.Errorf("generation %d: the agent sees %+v, %v", generation, s, err)
		}
	}
}

func TestEncodeSpec_Refuses(t *testing.T) {
	for name, change := range map[string]func(*workv1.ManifestWork, *SpecParams){
		"no uid":              func(w *workv1.ManifestWork, _ *SpecParams) { w.UID = "" },
		"no namespace":        func(w *workv1.ManifestWork, _ *SpecParams) { w.Namespace = "" },
		"negative generation": func(w *workv1.ManifestWork, _ *SpecParams) { w.Generation = -1 },
		"no action":           func(_ *workv1.ManifestWork, p *SpecParams) { p.Action = "" },
		"foreign action":      func(_ *workv1.ManifestWork, p *SpecParams) { p.Action = codec.ResyncRequest },
		"no id":               func(_ *workv1.ManifestWork, p *SpecParams) { p.ID = "" },
		"no source":           func(_ *workv1.ManifestWork, p *SpecParams) { p.Source = "" },
		"no time":             func(_ *workv1.ManifestWork, p *SpecParams) { p.Now = time.Time{} },
		"broken manifest": func(w *workv1.ManifestWork, _ *SpecParams) {
			w.Spec.Workload.Manifests[0] = manifest("{")
		},
	} {
		w, p := testWork(), params(codec.CreateRequest)
		change(w, &p)
		if _, err := EncodeSpec(w, p); err == nil || !strings.HasPrefix(err.Error(), "encode spec: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestManifestsSize_CountsLikeTheWebhook(t *testing.T) {
	for size, want := range map[int]int{100: 102, 127: 129, 128: 131, 200: 203, 20000: 20004} {
		w := &workv1.ManifestWork{Spec: workv1.ManifestWorkSpec{Workload: workv1.ManifestsTemplate{
			Manifests: []workv1.Manifest{manifest(strings.Repeat("x", size))},
		}}}
		if got := ManifestsSize(w); got != want {
			t.Errorf("%d bytes count %d, want %d", size, got, want)
		}
	}
	w := testWork()
	w.Spec.Workload.Manifests = []workv1.Manifest{manifest(strings.Repeat("x", 100)), {}, manifest(strings.Repeat("x", 200))}
	if got := ManifestsSize(w); got != 305 {
		t.Errorf("got %d", got)
	}
}
