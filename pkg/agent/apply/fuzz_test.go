package apply

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/cluster/clustertest"
)

// Whatever a manifest is, it is applied or refused; and what was applied is not
// written again.
func FuzzApply(f *testing.F) {
	for _, seed := range []string{
		plainConfigMap, deployment, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default","labels":{"x-":""}},"data":{"k":1}}`,
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","namespace":"default"},"type":"kubernetes.io/service-account-token","data":{"k":"!"},"stringData":{"k":"v"}}`,
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","namespace":"default"},"spec":{"ports":[{"port":"x"}],"selector":{"a":"b"}}}`,
		`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"a","namespace":"default"},"roleRef":{"kind":"Role"},"subjects":[1,null,{"kind":"User"}]}`,
		`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"a"},"rules":[[],{}],"aggregationRule":{"x":[""]}}`,
		`{"apiVersion":"v1","kind":"List","items":[]}`, `{"apiVersion":"v1","kind":"Pod","metadata":[]}`, `[]`, `{}`, ``, `{"apiVersion":1,"kind":2}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		b := &bench{t: t, f: clustertest.New()}
		a := b.applier()
		load := func() Manifest {
			s := workv1.ManifestWorkSpec{Workload: workv1.ManifestsTemplate{Manifests: []workv1.Manifest{{RawExtension: runtime.RawExtension{Raw: raw}}}}}
			return Load(t.Context(), b.f, s)[0]
		}
		first := a.Apply(t.Context(), a.Plan(t.Context(), load(), owner, Known{}), owner)
		if first.Err != nil {
			return
		}
		b.f.TakeCalls()
		second := a.Apply(t.Context(), a.Plan(t.Context(), load(), owner, first.Known), owner)
		if second.Err != nil {
			t.Fatalf("applied, then refused: %v", second.Err)
		}
		for _, c := range b.f.TakeCalls() {
			if c.Write() {
				t.Fatalf("applied twice, written twice: %v", c)
			}
		}
	})
}
