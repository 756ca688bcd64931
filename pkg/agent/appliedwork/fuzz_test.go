package appliedwork

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// FuzzRecord: any AppliedManifestWork is either unreadable, or the data about its work is complete and its list
// can be sorted.
func FuzzRecord(f *testing.F) {
	for _, seed := range []string{
		`{"apiVersion":"work.open-cluster-management.io/v1","kind":"AppliedManifestWork","metadata":{"name":"hash-web","uid":"u","finalizers":["x"],` +
			`"annotations":{"hawser.dev/source":"hub","hawser.dev/work-id":"w-1","hawser.dev/applied-version":"3","hawser.dev/applied-tag":"t","hawser.dev/completed":"w-1 abc=1700000000 x=y = =1"}},` +
			`"spec":{"hubHash":"hash","agentID":"a","manifestWorkName":"web"},` +
			`"status":{"appliedResources":[{"version":"v1","resource":"configmaps","name":"a","namespace":"default","uid":"1"},{"resource":"configmaps","name":"a"}]}}`,
		`{"apiVersion":"work.open-cluster-management.io/v1","kind":"AppliedManifestWork","metadata":{"name":"x","deletionTimestamp":"2026-01-02T03:04:05Z"},"status":{"appliedResources":null}}`,
		`{"apiVersion":"v1","kind":"x","metadata":{"annotations":{"hawser.dev/applied-version":"3.5","hawser.dev/work-id":"w"}},"status":[]}`,
		`{"apiVersion":"v1","kind":"x","metadata":{"finalizers":[1]},"spec":{"agentID":2}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		o := &unstructured.Unstructured{}
		if o.UnmarshalJSON(raw) != nil {
			return
		}
		r, err := recordOf(o, nil)
		if err != nil {
			return
		}
		if origin, ok := r.Origin(); ok && (origin.WorkID == "" || origin.WorkID != r.WorkID() || origin.annotations()[AnnotationWorkID] != origin.WorkID) {
			t.Errorf("%s stands for %+v", raw, origin)
		}
		if r.Owner().Name != r.Metadata().GetName() {
			t.Errorf("%s owns as %+v", raw, r.Owner())
		}
		for id, at := range r.Completed(r.WorkID()) {
			if at.Unix() <= 0 {
				t.Errorf("%s: %q is complete since %v", raw, id, at)
			}
		}
		sorted := Sort(r.Entries())
		if again := Sort(slices.Clone(sorted)); !cmp.Equal(sorted, again) || len(sorted) > len(r.Entries()) {
			t.Errorf("%+v sorted again is %+v", sorted, again)
		}
	})
}
