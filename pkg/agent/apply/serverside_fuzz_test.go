package apply

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

// FuzzServerSideApply: any manifest with any ignored fields is applied or refused. An applied one is not
// written again, whether it was created or existed, by this agent or by one before a restart.
func FuzzServerSideApply(f *testing.F) {
	for _, seed := range []struct{ manifest, expression string }{
		{simpleConfigMap, `/data/k`},
		{deployment, `.spec.replicas`},
		{`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","namespace":"default","ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u"}],"finalizers":["a/b","a/b"]},
			"spec":{"template":{"spec":{"containers":[{"name":"a","env":[{"name":"x"},{"name":"x"}]},{"image":"b"},null,1]}}}}`, `.spec.template.spec.containers[]?.env`},
		{`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default","annotations":null,"creationTimestamp":null,"managedFields":[{}]},"data":{},"list":[],"null":null}`, `.metadata`},
		{`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default"},"list":[{"a":1,"b":[1,2.5,"x",true]}]}`, `.list[*].b`},
	} {
		f.Add([]byte(seed.manifest), seed.expression)
	}
	f.Fuzz(func(t *testing.T, raw []byte, expression string) {
		if len(raw) > 4096 {
			return
		}
		for _, c := range []workv1.IgnoreFieldsCondition{workv1.IgnoreFieldsConditionOnSpokePresent, workv1.IgnoreFieldsConditionOnSpokeChange} {
			for _, notation := range []string{"path", "pointer", "jq"} {
				ignore := in(notation, expression)
				ignore.Condition = c
				applyThrice(t, raw, ignore)
			}
		}
	})
}

func applyThrice(t *testing.T, raw []byte, ignore workv1.IgnoreField) {
	b := &bench{t: t, f: clustertest.New()}
	a := b.applier()
	load := func() Manifest {
		s := workv1.ManifestWorkSpec{Workload: workv1.ManifestsTemplate{Manifests: []workv1.Manifest{{RawExtension: runtime.RawExtension{Raw: raw}}}}}
		m := Load(t.Context(), b.f, s)[0]
		m.Config.Strategy = workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeServerSideApply, ServerSideApply: &workv1.ServerSideApplyConfig{Force: true, IgnoreFields: []workv1.IgnoreField{ignore}}}
		return m
	}
	round := func(k KnownState) Result { return a.Apply(t.Context(), a.Plan(t.Context(), load(), owner, k), owner) }
	first := round(KnownState{})
	if first.Err != nil {
		return
	}
	for name, k := range map[string]KnownState{"remembered": first.Known, "restarted": round(KnownState{}).Known} {
		b.f.TakeCalls()
		again := round(k)
		if again.Err != nil {
			t.Fatalf("%s: applied, then refused: %v", name, again.Err)
		}
		if calls := b.f.TakeCalls(); slices.ContainsFunc(calls, clustertest.Call.Write) {
			t.Fatalf("%s: applied twice, written twice: %v", name, calls)
		}
	}
}
