package manifestwork

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/pkg/codec"
)

// overTheWire returns the event as its receiver gets it.
func overTheWire(tb testing.TB, e codec.Event) codec.Event {
	tb.Helper()
	e, err := codec.Unmarshal(marshal(tb, e))
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func TestDecodeSpec_ReadsEncodedSpec(t *testing.T) {
	in := testWork()
	s, err := DecodeSpec(overTheWire(t, encodeSpecT(t, in, params(codec.UpdateRequest))))
	if err != nil {
		t.Fatal(err)
	}
	want := testWork()
	want.TypeMeta = metav1.TypeMeta{APIVersion: "work.open-cluster-management.io/v1", Kind: "ManifestWork"}
	want.ResourceVersion, want.ManagedFields = "", nil
	want.CreationTimestamp = metav1.NewTime(testTime.Truncate(time.Second))
	delete(want.Annotations, annotationLastApplied)
	if d := cmp.Diff(want, s.Work); d != "" {
		t.Errorf("work (-want +got):\n%s", d)
	}
	if s.ResourceID != testUID || s.Name != "w1" || s.Cluster != "cluster1" || s.Generation != 3 || s.Version != 3 ||
		s.Source != "src1" || s.Action != codec.UpdateRequest || s.Deleting || !s.HasData || s.Revision != 0 {
		t.Errorf("spec %+v", s)
	}
}

func TestDecodeSpec_Deletion(t *testing.T) {
	for _, withData := range []bool{false, true} {
		p := params(codec.DeleteRequest)
		p.DeletionWithData = withData
		s, err := DecodeSpec(overTheWire(t, encodeSpecT(t, deletingWork(), p)))
		if err != nil {
			t.Fatal(err)
		}
		if !s.Deleting || !s.DeletedAt.Equal(testTime.Add(time.Hour)) || s.Work.DeletionTimestamp == nil || s.HasData != withData {
			t.Errorf("with data %v: %+v", withData, s)
		}
		if d := cmp.Diff([]string{workv1.ManifestWorkFinalizer}, s.Work.Finalizers); d != "" {
			t.Errorf("finalizers (-want +got):\n%s", d)
		}
		if got := s.Work.Spec.DeleteOption != nil; got != withData {
			t.Errorf("with data %v: delete options known: %v", withData, got)
		}
	}
}

// minimal is the smallest spec event that an agent accepts.
func minimal() codec.Event {
	e := event.New()
	e.SetID("e1")
	e.SetSource("src1")
	e.SetType("io.open-cluster-management.works.v1alpha1.manifestbundles.spec.create_request")
	e.SetExtension(codec.ExtResourceID, "u1")
	e.SetExtension(codec.ExtClusterName, "cluster1")
	e.SetExtension(codec.ExtResourceVersion, int32(1))
	e.SetDataContentType("application/json")
	e.DataEncoded = []byte(`{"manifests":[{"kind":"ConfigMap"}]}`)
	return e
}

func TestC10_VersionInTextForm(t *testing.T) {
	for _, text := range []string{"7", "7.9"} {
		e := minimal()
		e.SetExtension(codec.ExtResourceVersion, text)
		s, err := DecodeSpec(e)
		if err != nil || s.Version != 7 || s.Work.Generation != 7 {
			t.Errorf("%q: %+v, %v", text, s, err)
		}
	}
}

func TestDecodeSpec_WithoutMetadata(t *testing.T) {
	for _, metadata := range []any{nil, "", "{}"} {
		e := minimal()
		e.SetExtension(codec.ExtMetadata, metadata)
		s, err := DecodeSpec(e)
		if err != nil {
			t.Fatal(err)
		}
		if s.Name != "u1" || s.Work.Name != "u1" || s.Work.Namespace != "cluster1" || s.Work.UID != "u1" {
			t.Errorf("metadata %v: %+v", metadata, s.Work.ObjectMeta)
		}
	}
}

// The attributes were authorized, the metadata was not. The metadata may not change the cluster or the work's
// name, nor delete a live work.
func TestDecodeSpec_AttributesWinOverMetadata(t *testing.T) {
	e := minimal()
	e.SetExtension(codec.ExtMetadata, `{"name":"w1","namespace":"other","uid":"other","generation":9,"resourceVersion":"5","deletionTimestamp":"2026-01-02T03:04:05Z","generateName":"w-"}`)
	s, err := DecodeSpec(e)
	if err != nil {
		t.Fatal(err)
	}
	m := s.Work.ObjectMeta
	if m.Namespace != "cluster1" || m.UID != "u1" || m.Generation != 1 || m.ResourceVersion != "" || m.DeletionTimestamp != nil || m.Name != "w1" {
		t.Errorf("got %+v", m)
	}
}

func TestDecodeSpec_LogTracing(t *testing.T) {
	e := minimal()
	e.SetExtension(codec.ExtLogTracing, `{"logging.open-cluster-management.io/a":"1","other":"2"}`)
	s, err := DecodeSpec(e)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]string{"logging.open-cluster-management.io/a": "1"}, s.Work.Annotations); d != "" {
		t.Errorf("annotations (-want +got):\n%s", d)
	}
	e.SetExtension(codec.ExtLogTracing, `no JSON`)
	if s, err = DecodeSpec(e); err != nil || s.Work.Annotations != nil {
		t.Errorf("a broken log context holds the work up: %v, %v", s, err)
	}
}

func TestDecodeSpec_HawserAttributes(t *testing.T) {
	e := minimal()
	s, err := DecodeSpec(e)
	if err != nil {
		t.Fatal(err)
	}
	if want := codec.TagOf(false, 1, "", e.Data()); s.Tag != want {
		t.Errorf("tag %s, want that of the event, %s", s.Tag, want)
	}
	tag := codec.TagOf(false, 2, "x", nil)
	e.SetExtension(codec.ExtTag, tag.String())
	e.SetExtension(codec.ExtRevision, "42")
	if s, err = DecodeSpec(e); err != nil || s.Tag != tag || s.Revision != 42 {
		t.Errorf("got %+v, %v", s, err)
	}
}

func TestDecodeSpec_TagMatchesBroker(t *testing.T) {
	for _, w := range []*workv1.ManifestWork{testWork(), deletingWork()} {
		p := params(codec.UpdateRequest)
		p.DeletionWithData = true
		e := encodeSpecT(t, w, p)
		env, incoming, err := codec.Ingest(marshal(t, e))
		if err != nil {
			t.Fatal(err)
		}
		n, err := incoming.Normalized()
		if err != nil {
			t.Fatal(err)
		}
		stored, err := codec.Unmarshal(n)
		if err != nil {
			t.Fatal(err)
		}
		s, err := DecodeSpec(stored)
		if err != nil {
			t.Fatal(err)
		}
		if want := codec.TagOf(env.Deleting, env.Version, env.RawMetadata, env.Data); s.Tag != want {
			t.Errorf("the agent computes %s, the broker %s", s.Tag, want)
		}
	}
}

func TestDecodeSpec_RejectsUnidentifiedSpec(t *testing.T) {
	for _, c := range []struct {
		attribute string
		change    func(*codec.Event)
	}{
		{"type", func(e *codec.Event) { e.SetType("a.b") }},
		{"type", func(e *codec.Event) { e.SetType("g.v1.r.spec.create_request") }},
		{"type", func(e *codec.Event) { e.SetType(codec.ManifestBundles.String() + ".status.update_request") }},
		{codec.ExtResourceID, func(e *codec.Event) { e.SetExtension(codec.ExtResourceID, nil) }},
		{codec.ExtResourceID, func(e *codec.Event) { e.SetExtension(codec.ExtResourceID, "") }},
		{codec.ExtClusterName, func(e *codec.Event) { e.SetExtension(codec.ExtClusterName, "") }},
		{codec.ExtResourceVersion, func(e *codec.Event) { e.SetExtension(codec.ExtResourceVersion, nil) }},
		{codec.ExtResourceVersion, func(e *codec.Event) { e.SetExtension(codec.ExtResourceVersion, int32(-1)) }},
		{codec.ExtResourceVersion, func(e *codec.Event) {
			e.SetExtension(codec.ExtResourceVersion, nil)
			e.SetExtension(codec.ExtDeletionTimestamp, testTime)
		}},
		{codec.ExtDeletionTimestamp, func(e *codec.Event) { e.SetExtension(codec.ExtDeletionTimestamp, "now") }},
		{codec.ExtMetadata, func(e *codec.Event) { e.SetExtension(codec.ExtMetadata, int32(1)) }},
		{codec.ExtLogTracing, func(e *codec.Event) { e.SetExtension(codec.ExtLogTracing, int32(1)) }},
		{codec.ExtTag, func(e *codec.Event) { e.SetExtension(codec.ExtTag, "x") }},
		{codec.ExtRevision, func(e *codec.Event) { e.SetExtension(codec.ExtRevision, "x") }},
	} {
		e := minimal()
		c.change(&e)
		s, err := DecodeSpec(e)
		var a *codec.AttributeError
		if s != nil || !errors.As(err, &a) || a.Attribute != c.attribute {
			t.Errorf("%s: %+v, %v", c.attribute, s, err)
		}
	}
}

func TestDecodeSpec_IdentifiesInvalidWorks(t *testing.T) {
	big := `{"manifests":[{"data":"` + strings.Repeat("x", MaxManifestsSize) + `"}]}`
	for _, c := range []struct {
		name, data, problem string
	}{
		{"no data", "", "no data"},
		{"broken", "{", "JSON object"},
		{"other JSON", "[]", "JSON object"},
		{"wrong member", `{"manifests":{}}`, "JSON object"},
		{"wrong option", `{"manifests":[{}],"deleteOption":5}`, "JSON object"},
		{"no manifests", `{"manifests":[]}`, "at least one"},
		{"null manifests", `{"manifests":null}`, "at least one"},
		{"nothing", `{}`, "at least one"},
		{"too large", big, "limit of 512000"},
		{"generateName", `{"manifests":[{},{"metadata":{"generateName":"a-"}}]}`, "manifest 1 has metadata.generateName"},
	} {
		e := minimal()
		e.DataEncoded = []byte(c.data)
		s, err := DecodeSpec(e)
		var invalid *InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(invalid.Problem, c.problem) {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if invalid.ResourceID != "u1" || invalid.Name != "u1" || invalid.Cluster != "cluster1" || invalid.Version != 1 || s == nil || s.Work == nil || s.ResourceID != "u1" {
			t.Errorf("%s: %+v, %+v", c.name, invalid, s)
		}
		if len(err.Error()) > 300 {
			t.Errorf("%s: the error quotes the payload", c.name)
		}
	}

	e := minimal()
	e.SetDataContentType("text/plain")
	var invalid *InvalidError
	if _, err := DecodeSpec(e); !errors.As(err, &invalid) || !strings.Contains(invalid.Problem, "application/json") {
		t.Errorf("text: %v", err)
	}
	e = minimal()
	e.SetExtension(codec.ExtMetadata, `{"labels":5}`)
	if s, err := DecodeSpec(e); !errors.As(err, &invalid) || !strings.Contains(invalid.Problem, "ObjectMeta") || s == nil || !s.HasData {
		t.Errorf("metadata: %+v, %v", s, err)
	}
}

// TestDecodeSpec_UnreadableMetadataIsNotSentBack: the source can read a status with the problem of its work.
func TestDecodeSpec_UnreadableMetadataIsNotSentBack(t *testing.T) {
	e := minimal()
	const metadata = `{"name":"w","labels":{"a":1}}`
	e.SetExtension(codec.ExtMetadata, metadata)
	s, err := DecodeSpec(e)
	var invalid *InvalidError
	if !errors.As(err, &invalid) {
		t.Fatalf("%+v, %v", s, err)
	}
	if s.Tag != codec.TagOf(false, 1, metadata, e.Data()) {
		t.Error("the tag is not the one of the published work")
	}
	r, err := DecodeStatus(encodeStatusT(t, s.Ref, fullStatus(), statusParams()))
	if err != nil || r.ResourceID != "u1" || r.Version != 1 || r.Cluster != "cluster1" {
		t.Errorf("the report about it: %+v, %v", r, err)
	}
}

func TestDecodeSpec_AtTheSizeLimit(t *testing.T) {
	e := minimal()
	frame := `{"data":""}`
	e.DataEncoded = fmt.Appendf(nil, `{"manifests":[{"data":"%s"}]}`, strings.Repeat("x", MaxManifestsSize-len(frame)))
	if _, err := DecodeSpec(e); err != nil {
		t.Error(err)
	}
}

// An invalid manifest does not block the other manifests.
func TestDecodeSpec_LeavesBadManifestsToTheirConditions(t *testing.T) {
	e := minimal()
	e.DataEncoded = []byte(`{"manifests":[5,"text",null,[],{"metadata":"generateName"},{"kind":"ConfigMap","metadata":{"name":"ok","annotations":{"generateName":"no"}}}]}`)
	s, err := DecodeSpec(e)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range s.Work.Spec.Workload.Manifests {
		got = append(got, string(m.Raw))
	}
	want := []string{`5`, `"text"`, ``, `[]`, `{"metadata":"generateName"}`, `{"kind":"ConfigMap","metadata":{"name":"ok","annotations":{"generateName":"no"}}}`}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("manifests (-want +got):\n%s", d)
	}
}

// Invalid data does not prevent a deletion. The agent learns that the delete options are unknown.
func TestDecodeSpec_DeletionWithBadData(t *testing.T) {
	e := minimal()
	e.SetExtension(codec.ExtDeletionTimestamp, testTime)
	e.DataEncoded = []byte(`{"deleteOption":5}`)
	s, err := DecodeSpec(e)
	var invalid *InvalidError
	if !errors.As(err, &invalid) || s == nil || !s.Deleting || s.HasData {
		t.Errorf("%+v, %v", s, err)
	}
	e.DataEncoded = []byte(`{"manifests":[],"deleteOption":{"propagationPolicy":"Orphan"}}`)
	s, err = DecodeSpec(e)
	if err != nil || !s.HasData || s.Work.Spec.DeleteOption.PropagationPolicy != workv1.DeletePropagationPolicyTypeOrphan {
		t.Errorf("%+v, %v", s, err)
	}
}

func drawWork(t *rapid.T) *workv1.ManifestWork {
	text := rapid.StringMatching(`[a-z0-9]{1,8}`)
	w := &workv1.ManifestWork{
		TypeMeta: metav1.TypeMeta{APIVersion: workv1.GroupVersion.String(), Kind: "ManifestWork"},
		ObjectMeta: metav1.ObjectMeta{
			Name: text.Draw(t, "name"), Namespace: text.Draw(t, "cluster"), UID: testUID,
			Generation: rapid.Int64Range(1, 1<<40).Draw(t, "generation"),
		},
	}
	if labels := rapid.MapOfN(text, rapid.String(), 0, 3).Draw(t, "labels"); len(labels) > 0 {
		w.Labels = labels
	}
	for range rapid.IntRange(1, 4).Draw(t, "manifests") {
		w.Spec.Workload.Manifests = append(w.Spec.Workload.Manifests,
			manifest(fmt.Sprintf(`{"kind":%q,"metadata":{"name":%q}}`, text.Draw(t, "kind"), text.Draw(t, "object"))))
	}
	if rapid.Bool().Draw(t, "delete option") {
		ttl := rapid.Int64().Draw(t, "ttl")
		w.Spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeForeground, TTLSecondsAfterFinished: &ttl}
	}
	for range rapid.IntRange(0, 2).Draw(t, "configs") {
		w.Spec.ManifestConfigs = append(w.Spec.ManifestConfigs, workv1.ManifestConfigOption{
			ResourceIdentifier: workv1.ResourceIdentifier{Resource: text.Draw(t, "resource"), Name: text.Draw(t, "resource name")},
			FeedbackRules:      []workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: []workv1.JsonPath{{Name: "n", Path: rapid.String().Draw(t, "path")}}}},
		})
	}
	return w
}

func TestSpec_RoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawWork(t)
		e, err := EncodeSpec(want, params(codec.ResyncResponse))
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
		s, err := DecodeSpec(e)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, s.Work); d != "" {
			t.Fatalf("work (-want +got):\n%s", d)
		}
		again, err := EncodeSpec(s.Work, params(codec.ResyncResponse))
		if err != nil {
			t.Fatal(err)
		}
		b2, err := codec.Marshal(again)
		if err != nil || string(b) != string(b2) {
			t.Fatalf("the same work gives other bytes: %v", err)
		}
	})
}
