package manifestwork

import (
	"math"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	workv1 "open-cluster-management.io/api/work/v1"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/pkg/codec"
)

// A source computes the same tag as a broker computes from the received bytes.
func TestSpecTag_IsTheBrokers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.MapOfN(rapid.StringMatching(`[a-z]{1,8}`), rapid.String(), 0, 3)
		work := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{
			Namespace: "c1", Name: rapid.StringMatching(`[a-z]{1,8}`).Draw(t, "name"), UID: "u1", ResourceVersion: "77",
			Generation: rapid.SampledFrom([]int64{1, 2, math.MaxInt32, math.MaxInt32 + 1}).Draw(t, "generation"),
			Labels:     texts.Draw(t, "labels"), Annotations: texts.Draw(t, "annotations"),
			Finalizers:    []string{workv1.ManifestWorkFinalizer},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
		}}
		for range rapid.IntRange(0, 3).Draw(t, "manifests") {
			work.Spec.Workload.Manifests = append(work.Spec.Workload.Manifests, workv1.Manifest{RawExtension: runtime.RawExtension{
				Raw: []byte(`{"kind": "ConfigMap",  "data": {"a": "<&>` + "\u2028" + `"}}`)}})
		}
		if rapid.Bool().Draw(t, "orphan") {
			work.Spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
		}
		e, err := EncodeSpec(work, SpecParams{ID: "e", Now: time.Unix(1e9, 0), Source: "hub", Action: codec.CreateRequest})
		if err != nil {
			t.Fatal(err)
		}
		b, err := codec.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		env, _, err := codec.Ingest(b)
		if err != nil {
			t.Fatal(err)
		}
		got, err := SpecTag(work)
		if want := codec.TagOf(env.Deleting, env.Version, env.RawMetadata, env.Data); err != nil || got != want {
			t.Fatalf("tag is %s, error %v, the broker has %s", got, err, want)
		}
	})
}

func TestSpecTag_ReportsUnencodableWork(t *testing.T) {
	work := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{Namespace: "c1", Name: "w"}}
	work.Spec.Workload.Manifests = []workv1.Manifest{{RawExtension: runtime.RawExtension{Raw: []byte(`{`)}}}
	if _, err := SpecTag(work); err == nil {
		t.Error("no error for a manifest that is no JSON")
	}
}
