package apply

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

// FuzzApply: any manifest is applied or refused, and an applied one is not written again.
func FuzzApply(f *testing.F) {
	for _, seed := range []string{
		simpleConfigMap, deployment, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default","labels":{"x-":""}},"data":{"k":1}}`,
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","namespace":"default"},"type":"kubernetes.io/service-account-token","data":{"k":"!"},"stringData":{"k":"v"}}`,
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","namespace":"default"},"spec":{"ports":[{"port":"x"}],"selector":{"a":"b"}}}`,
		`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"a","namespace":"default"},"roleRef":{"kind":"Role"},"subjects":[1,null,{"kind":"User"}]}`,
		`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"a"},"rules":[[],{}],"aggregationRule":{"x":[""]}}`,
		`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"a","namespace":"default"},"spec":{"ingress":[null,{"ports":[{},1]}],"egress":{}}}`,
		`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"a"},"spec":{"conversion":{"webhook":{"clientConfig":{"service":{}}}},"versions":[{"schema":{"openAPIV3Schema":{"items":[1]}}}]}}`,
		`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingWebhookConfiguration","metadata":{"name":"a"},"webhooks":[null,{"name":1,"clientConfig":{"caBundle":3}},{"rules":[{}]}]}`,
		`{"apiVersion":"storage.k8s.io/v1","kind":"CSIDriver","metadata":{"name":"a","annotations":{"operator.openshift.io/spec-hash-":""}},"spec":{"volumeLifecycleModes":["Ephemeral"]}}`,
		`{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"name":"a"},"parameters":{"a":1},"reclaimPolicy":"x"}`,
		`{"apiVersion":"v1","kind":"List","items":[]}`, `{"apiVersion":"v1","kind":"Pod","metadata":[]}`, `[]`, `{}`, ``, `{"apiVersion":1,"kind":2}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, strategy := range []workv1.UpdateStrategyType{workv1.UpdateStrategyTypeUpdate, workv1.UpdateStrategyTypeCreateOnly, workv1.UpdateStrategyTypeReadOnly} {
			applyTwice(t, raw, strategy)
		}
	})
}

func applyTwice(t *testing.T, raw []byte, strategy workv1.UpdateStrategyType) {
	b := &bench{t: t, f: clustertest.New()}
	a := b.applier()
	load := func() Manifest {
		s := workv1.ManifestWorkSpec{Workload: workv1.ManifestsTemplate{Manifests: []workv1.Manifest{{RawExtension: runtime.RawExtension{Raw: raw}}}}}
		m := Load(t.Context(), b.f, s)[0]
		m.Config.Strategy.Type = strategy
		return m
	}
	first := a.Apply(t.Context(), a.Plan(t.Context(), load(), owner, KnownState{}), owner)
	if strategy == workv1.UpdateStrategyTypeReadOnly && slices.ContainsFunc(b.f.TakeCalls(), clustertest.Call.Write) {
		t.Fatal("read only, and written")
	}
	if first.Err != nil {
		return
	}
	b.f.TakeCalls()
	second := a.Apply(t.Context(), a.Plan(t.Context(), load(), owner, first.Known), owner)
	if second.Err != nil {
		t.Fatalf("%s: applied, then refused: %v", strategy, second.Err)
	}
	if calls := b.f.TakeCalls(); slices.ContainsFunc(calls, clustertest.Call.Write) {
		t.Fatalf("%s: applied twice, written twice: %v", strategy, calls)
	}
}
