package apply

import (
	"encoding/json"
	"testing"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

// FuzzLoad: for any work, each manifest is loaded, or has its error at its index.
func FuzzLoad(f *testing.F) {
	for _, seed := range []string{
		`{"workload":{"manifests":[` + simpleConfigMap + `,` + deployment + `]}}`,
		`{"workload":{"manifests":[` + simpleConfigMap + `]},"deleteOption":{"propagationPolicy":"SelectivelyOrphan","selectivelyOrphans":{"orphaningRules":[{"resource":"configmaps","namespace":"default","name":"a"}]}}}`,
		`{"workload":{"manifests":[` + simpleConfigMap + `]},"manifestConfigs":[{"resourceIdentifier":{"resource":"configmaps","namespace":"d*t","name":"*"},"updateStrategy":{"type":"ServerSideApply"},"feedbackRules":[{"type":"WellKnownStatus"}]}]}`,
		`{"workload":{"manifests":[null,{},[],1,"x"]},"executor":{},"deleteOption":{"propagationPolicy":"Later"}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var spec workv1.ManifestWorkSpec
		if json.Unmarshal(raw, &spec) != nil {
			return
		}
		manifests := Load(t.Context(), clustertest.New(), spec)
		if len(manifests) != len(spec.Workload.Manifests) {
			t.Fatalf("%d of %d", len(manifests), len(spec.Workload.Manifests))
		}
		for i, m := range manifests {
			switch {
			case int(m.Meta.Ordinal) != i:
				t.Errorf("manifest %d has ordinal %d", i, m.Meta.Ordinal)
			case m.Err == nil && (!m.Resolved || m.Object == nil || m.Ref.Name == "" || m.Ref.Resource == ""):
				t.Errorf("manifest %d is taken, but %+v", i, m.Meta)
			case m.Err == nil && spec.Executor != nil:
				t.Errorf("manifest %d is accepted although the executor is not checked", i)
			}
		}
	})
}
