package manifestwork

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/internal/codectest"
)

const (
	emptyHash = "3a4ba43801251ccdf889a3154674d23a35ab996aacfc00de92e61dbb2f5cf189"
	fullHash  = "274a1650d497532b5f38f6b31781335665740e463816fec4b0f004cf7f607fa0"
)

// fullStatus is the second test vector of the protocol.
func fullStatus() workv1.ManifestWorkStatus {
	return workv1.ManifestWorkStatus{
		Conditions: []metav1.Condition{{
			Type: "Applied", Status: metav1.ConditionTrue, ObservedGeneration: 3,
			LastTransitionTime: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), Reason: "R", Message: "M<>&",
		}},
		ResourceStatus: workv1.ManifestResourceStatus{Manifests: []workv1.ManifestCondition{{
			ResourceMeta: workv1.ManifestResourceMeta{Version: "v1", Kind: "ConfigMap", Resource: "configmaps", Name: "cm", Namespace: "default"},
			Conditions:   []metav1.Condition{},
		}}},
	}
}

func testRef() Ref {
	return Ref{
		ResourceID: testUID, Name: "w1", Cluster: "cluster1", Generation: 3,
		Metadata: `{"name":"w1","namespace":"cluster1","uid":"` + testUID + `","generation":3}`,
	}
}

func statusParams() StatusParams {
	return StatusParams{
		ID: "e1", Now: testTime, Source: "agent1", OriginalSource: "src1",
		Action: codec.UpdateRequest, SequenceID: "2123694259314888705",
	}
}

func encodeStatusT(tb testing.TB, r Ref, s workv1.ManifestWorkStatus, p StatusParams) codec.Event {
	tb.Helper()
	e, err := EncodeStatus(r, s, p)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func TestC5_StatusWithoutConditions(t *testing.T) {
	for _, none := range []workv1.ManifestWorkStatus{
		{},
		{Conditions: []metav1.Condition{}, ResourceStatus: workv1.ManifestResourceStatus{Manifests: []workv1.ManifestCondition{}}},
	} {
		e := encodeStatusT(t, testRef(), none, statusParams())
		if string(e.Data()) != `{"conditions":null}` {
			t.Errorf("payload %s", e.Data())
		}
		if got := e.Extensions()["statushash"]; got != emptyHash {
			t.Errorf("statushash %v", got)
		}
		codectest.Golden(t, "status_empty.txt", marshal(t, e))
	}
}

func TestC6_StatusHash(t *testing.T) {
	text, err := canonicalStatus(fullStatus())
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"conditions":[{"lastTransitionTime":"2026-01-02T03:04:05Z","message":"M\u003c\u003e\u0026","observedGeneration":3,"reason":"R","status":"True","type":"Applied"}],"resourceStatus":{"manifests":[{"conditions":[],"resourceMeta":{"group":"","kind":"ConfigMap","name":"cm","namespace":"default","ordinal":0,"resource":"configmaps","version":"v1"},"statusFeedback":{}}]}}`; string(text) != want {
		t.Errorf("canonical text\n%s, want\n%s", text, want)
	}
	for want, status := range map[string]workv1.ManifestWorkStatus{emptyHash: {}, fullHash: fullStatus()} {
		if got, err := StatusHash(status); err != nil || got != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
}

func TestEncodeStatus_Golden(t *testing.T) {
	e := encodeStatusT(t, testRef(), fullStatus(), statusParams())
	codectest.Golden(t, "status.txt", marshal(t, e))

	p := statusParams()
	p.Deleted = true
	deleted := encodeStatusT(t, testRef(), fullStatus(), p)
	codectest.Golden(t, "status_deleted.txt", marshal(t, deleted))
}

func TestEncodeStatus_Deleted(t *testing.T) {
	in, untouched := fullStatus(), fullStatus()
	in.Conditions = append(in.Conditions, metav1.Condition{Type: "Deleted", Status: metav1.ConditionFalse})
	untouched.Conditions = append(untouched.Conditions, metav1.Condition{Type: "Deleted", Status: metav1.ConditionFalse})
	p := statusParams()
	p.Deleted = true
	e := encodeStatusT(t, testRef(), in, p)
	if d := cmp.Diff(untouched, in); d != "" {
		t.Errorf("the status was changed (-want +got):\n%s", d)
	}
	r, err := DecodeStatus(overTheWire(t, e))
	if err != nil {
		t.Fatal(err)
	}
	want := metav1.Condition{
		Type: "Deleted", Status: metav1.ConditionTrue, Reason: "ManifestsDeleted", Message: "The manifests are deleted from the cluster cluster1",
		LastTransitionTime: metav1.NewTime(testTime.Truncate(time.Second)),
	}
	if !r.Deleted || len(r.Status.Conditions) != 2 {
		t.Fatalf("got %+v", r)
	}
	got := r.Status.Conditions[1]
	if !got.LastTransitionTime.Equal(&want.LastTransitionTime) {
		t.Errorf("time %v", got.LastTransitionTime)
	}
	got.LastTransitionTime = want.LastTransitionTime
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("condition (-want +got):\n%s", d)
	}
	if hash, err := StatusHash(r.Status); err != nil || hash != r.Hash {
		t.Errorf("hash %s of a status with %s, %v", r.Hash, hash, err)
	}
	if deleted, err := codec.ReportsDeleted(e.Data()); err != nil || !deleted {
		t.Errorf("the broker does not see it: %v, %v", deleted, err)
	}
}

func TestEncodeStatus_WithoutMetadataOfTheSource(t *testing.T) {
	ref := testRef()
	ref.Metadata, ref.LogTracing = "", ""
	e := encodeStatusT(t, ref, fullStatus(), statusParams())
	if got, want := e.Extensions()["metadata"], `{"name":"w1","namespace":"cluster1","uid":"`+testUID+`","generation":3}`; got != want {
		t.Errorf("metadata %v", got)
	}
	if got := e.Extensions()["logtracing"]; got != "{}" {
		t.Errorf("logtracing %v", got)
	}
	ref.Metadata, ref.LogTracing = `{"as":"received"}`, `{"too":"is this"}`
	e = encodeStatusT(t, ref, fullStatus(), statusParams())
	if e.Extensions()["metadata"] != ref.Metadata || e.Extensions()["logtracing"] != ref.LogTracing {
		t.Errorf("extensions %v", e.Extensions())
	}
}

func TestEncodeStatus_KeepsLargeGeneration(t *testing.T) {
	w := testWork()
	w.Generation = 1 << 33
	s, err := DecodeSpec(encodeSpecT(t, w, params(codec.UpdateRequest)))
	if err != nil {
		t.Fatal(err)
	}
	e := encodeStatusT(t, s.Ref, fullStatus(), statusParams())
	if e.Extensions()["resourceversion"] != int32(0) {
		t.Errorf("resourceversion %v", e.Extensions()["resourceversion"])
	}
	if r, err := DecodeStatus(e); err != nil || r.Version != 1<<33 {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestEncodeStatus_Refuses(t *testing.T) {
	for name, change := range map[string]func(*Ref, *StatusParams){
		"no resource id":      func(r *Ref, _ *StatusParams) { r.ResourceID = "" },
		"no cluster":          func(r *Ref, _ *StatusParams) { r.Cluster = "" },
		"negative generation": func(r *Ref, _ *StatusParams) { r.Generation = -1 },
		"action of a spec":    func(_ *Ref, p *StatusParams) { p.Action = codec.CreateRequest },
		"no agent":            func(_ *Ref, p *StatusParams) { p.Source = "" },
	} {
		r, p := testRef(), statusParams()
		change(&r, &p)
		if _, err := EncodeStatus(r, fullStatus(), p); err == nil || !strings.HasPrefix(err.Error(), "encode status: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDecodeStatus_ReadsEncodedStatus(t *testing.T) {
	e := encodeStatusT(t, testRef(), fullStatus(), statusParams())
	e.SetExtension(codec.ExtRevision, "42")
	got, err := DecodeStatus(overTheWire(t, e))
	if err != nil {
		t.Fatal(err)
	}
	status := fullStatus()
	for i := range got.Status.Conditions { // the decoded time has another time zone
		got.Status.Conditions[i].LastTransitionTime = metav1.NewTime(got.Status.Conditions[i].LastTransitionTime.UTC())
	}
	want := StatusReport{
		ResourceID: testUID, Name: "w1", Cluster: "cluster1", Version: 3, SequenceID: "2123694259314888705", Hash: fullHash,
		Status: status, AgentID: "agent1", OriginalSource: "src1", Action: codec.UpdateRequest, Revision: 42,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("report (-want +got):\n%s", d)
	}
}

// The decoder accepts the additions of an OCM broker for sources without a cache, and missing optional fields.
func TestDecodeStatus_Tolerates(t *testing.T) {
	e := encodeStatusT(t, testRef(), fullStatus(), statusParams())
	for _, name := range []string{codec.ExtMetadata, codec.ExtSequenceID, codec.ExtStatusHash, codec.ExtOriginalSource, codec.ExtLogTracing} {
		e.SetExtension(name, nil)
	}
	e.DataEncoded = []byte(`{"manifestBundle":{"manifests":[]},"conditions":[{"type":"Deleted","status":"False"}],"unknown":1}`)
	r, err := DecodeStatus(e)
	if err != nil || r.Name != testUID || r.SequenceID != "" || r.Hash != "" || r.Deleted || len(r.Status.Conditions) != 1 {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestDecodeStatus_ErrorNamesField(t *testing.T) {
	for _, c := range []struct {
		attribute string
		change    func(*codec.Event)
	}{
		{"type", func(e *codec.Event) { e.SetType(codec.ManifestBundles.String() + ".spec.update_request") }},
		{codec.ExtResourceID, func(e *codec.Event) { e.SetExtension(codec.ExtResourceID, nil) }},
		{codec.ExtClusterName, func(e *codec.Event) { e.SetExtension(codec.ExtClusterName, nil) }},
		{codec.ExtResourceVersion, func(e *codec.Event) { e.SetExtension(codec.ExtResourceVersion, nil) }},
		{codec.ExtSequenceID, func(e *codec.Event) { e.SetExtension(codec.ExtSequenceID, int32(1)) }},
		{codec.ExtStatusHash, func(e *codec.Event) { e.SetExtension(codec.ExtStatusHash, int32(1)) }},
		{codec.ExtOriginalSource, func(e *codec.Event) { e.SetExtension(codec.ExtOriginalSource, int32(1)) }},
		{codec.ExtMetadata, func(e *codec.Event) { e.SetExtension(codec.ExtMetadata, int32(1)) }},
		{codec.ExtMetadata, func(e *codec.Event) { e.SetExtension(codec.ExtMetadata, "{") }},
		{codec.ExtRevision, func(e *codec.Event) { e.SetExtension(codec.ExtRevision, "x") }},
		{"datacontenttype", func(e *codec.Event) { e.SetDataContentType("text/plain") }},
		{"data", func(e *codec.Event) { e.DataEncoded = nil }},
		{"data", func(e *codec.Event) { e.DataEncoded = []byte("{") }},
		{"data", func(e *codec.Event) { e.DataEncoded = []byte(`{"conditions":{}}`) }},
		{"data", func(e *codec.Event) { e.DataEncoded = []byte(`{"resourceStatus":{"manifests":[]}}`) }},
	} {
		e := encodeStatusT(t, testRef(), fullStatus(), statusParams())
		c.change(&e)
		_, err := DecodeStatus(e)
		var a *codec.AttributeError
		if !errors.As(err, &a) || a.Attribute != c.attribute {
			t.Errorf("%s: %v", c.attribute, err)
		}
	}
}

func drawStatus(t *rapid.T) (s workv1.ManifestWorkStatus) {
	condition := rapid.Custom(func(t *rapid.T) metav1.Condition {
		return metav1.Condition{
			Type: rapid.SampledFrom([]string{"Applied", "Available", "Deleted"}).Draw(t, "type"), Status: "True",
			ObservedGeneration: rapid.Int64Range(0, 3).Draw(t, "generation"),
			LastTransitionTime: metav1.NewTime(time.Unix(rapid.Int64Range(0, 1<<34).Draw(t, "time"), 0).UTC()),
			Reason:             "R", Message: rapid.String().Draw(t, "message"),
		}
	})
	s.Conditions = rapid.SliceOfN(condition, 0, 3).Draw(t, "conditions")
	for i := range rapid.IntRange(0, 3).Draw(t, "manifests") {
		m := workv1.ManifestCondition{ResourceMeta: workv1.ManifestResourceMeta{Ordinal: int32(i), Name: rapid.String().Draw(t, "name")}} // below 3
		if rapid.Bool().Draw(t, "has conditions") {
			m.Conditions = rapid.SliceOfN(condition, 0, 2).Draw(t, "manifest conditions")
		}
		if rapid.Bool().Draw(t, "has feedback") {
			n, text := rapid.Int64().Draw(t, "integer"), rapid.String().Draw(t, "text")
			m.StatusFeedbacks.Values = []workv1.FeedbackValue{
				{Name: "n", Value: workv1.FieldValue{Type: workv1.Integer, Integer: &n}},
				{Name: "t", Value: workv1.FieldValue{Type: workv1.JsonRaw, JsonRaw: &text}},
			}
		}
		s.ResourceStatus.Manifests = append(s.ResourceStatus.Manifests, m)
	}
	return s
}

// The canonical text is the status as JSON with sorted members. The test computes it in another way.
func TestStatusHash_IsSortedJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		status := drawStatus(t)
		got, err := canonicalStatus(status)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(status)
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]any
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.UseNumber()
		if err := dec.Decode(&fields); err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("got\n%s, want\n%s", got, want)
		}
	})
}

// A source that hashes a decoded status gets the hash that the agent sent.
func TestStatus_RoundTripKeepsTheHash(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := statusParams()
		p.Deleted = rapid.Bool().Draw(t, "deleted")
		e, err := EncodeStatus(testRef(), drawStatus(t), p)
		if err != nil {
			t.Fatal(err)
		}
		b, err := codec.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if e, err = codec.Unmarshal(b); err != nil {
			t.Fatal(err)
		}
		r, err := DecodeStatus(e)
		if err != nil {
			t.Fatal(err)
		}
		hash, err := StatusHash(r.Status)
		if err != nil || hash != r.Hash {
			t.Fatalf("%s, sent as %s, %v", hash, r.Hash, err)
		}
		reported, err := codec.ReportsDeleted(e.Data())
		if err != nil || reported != r.Deleted || p.Deleted && !r.Deleted {
			t.Fatalf("deleted: broker %v, source %v, agent %v, %v", reported, r.Deleted, p.Deleted, err)
		}
	})
}
