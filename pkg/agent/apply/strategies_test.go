package apply

import (
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

// sample is one kind: fields of a manifest, other fields, and the action of Update for this difference.
type sample struct {
	manifest, other string
	action          Action
}

// samples has a sample for every rule, and for some kinds without a rule.
var samples = map[string]sample{
	"v1 Namespace":      {``, ``, Unchanged},
	"v1 Pod":            {`"spec":{"restartPolicy":"Never"}`, `"spec":{"restartPolicy":"Always"}`, Unchanged},
	"v1 ServiceAccount": {`"secrets":[{"name":"a"}]`, ``, Unchanged},
	"v1 ConfigMap":      {`"data":{"a":"1"}`, `"data":{"a":"2"}`, Update},
	"v1 Secret":         {`"stringData":{"a":"1"}`, `"data":{"a":"Mg=="}`, Update},
	"v1 Service":        {`"spec":{"selector":{"a":"1"},"ports":[{"port":80}]}`, `"spec":{"selector":{"a":"2"},"ports":[{"port":80}]}`, Update},

	"rbac.authorization.k8s.io/v1 Role":               {`"rules":[{"verbs":["get"]}]`, `"rules":[{"verbs":["list"]}]`, Update},
	"rbac.authorization.k8s.io/v1 ClusterRole":        {`"rules":[{"verbs":["get"]}]`, `"rules":[{"verbs":["list"]}]`, Update},
	"rbac.authorization.k8s.io/v1 RoleBinding":        {`"roleRef":{"kind":"Role","name":"r"},"subjects":[{"kind":"Group","name":"g"}]`, `"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"r"}`, Update},
	"rbac.authorization.k8s.io/v1 ClusterRoleBinding": {`"roleRef":{"kind":"ClusterRole","name":"r"},"subjects":[{"kind":"User","name":"u"}]`, `"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"r"}`, Update},

	"networking.k8s.io/v1 NetworkPolicy": {`"spec":{"podSelector":{},"ingress":[{"ports":[{"port":80}]}]}`, `"spec":{"podSelector":{}}`, Update},
	"policy/v1 PodDisruptionBudget":      {`"spec":{"minAvailable":1}`, `"spec":{"minAvailable":2}`, Update},

	"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy":             {`"spec":{"validations":[{"expression":"true"}]}`, `"spec":{"validations":[{"expression":"false"}]}`, Update},
	"admissionregistration.k8s.io/v1beta1 ValidatingAdmissionPolicy":        {`"spec":{"validations":[{"expression":"true"}]}`, `"spec":{"validations":[{"expression":"false"}]}`, Update},
	"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding":      {`"spec":{"policyName":"p","matchResources":{}}`, `"spec":{"policyName":"q"}`, Update},
	"admissionregistration.k8s.io/v1beta1 ValidatingAdmissionPolicyBinding": {`"spec":{"policyName":"p","matchResources":{}}`, `"spec":{"policyName":"q"}`, Update},
	"admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration":        {`"webhooks":[{"name":"a.b.c","clientConfig":{"url":"https://x"}}]`, `"webhooks":[{"name":"a.b.c","clientConfig":{"url":"https://y","caBundle":"Y2E="}}]`, Update},
	"admissionregistration.k8s.io/v1 MutatingWebhookConfiguration":          {`"webhooks":[{"name":"a.b.c","clientConfig":{"url":"https://x"}}]`, ``, Update},

	"apiextensions.k8s.io/v1 CustomResourceDefinition": {
		`"spec":{"group":"example.com","scope":"Cluster","names":{"kind":"Knot","plural":"knots"},"versions":[{"name":"v1","served":true,"storage":true}]}`,
		`"spec":{"group":"example.com","scope":"Cluster","names":{"kind":"Knot","plural":"knots","shortNames":["k"]},"versions":[{"name":"v1","served":true,"storage":true}]}`, Update,
	},
	"storage.k8s.io/v1 StorageClass": {`"provisioner":"p"`, `"provisioner":"q","reclaimPolicy":"Retain"`, Recreate},
	"storage.k8s.io/v1 CSIDriver":    {`"spec":{}`, `"spec":{"attachRequired":false}`, Recreate},

	"snapshot.storage.k8s.io/v1 VolumeSnapshotClass": {`"driver":"d"`, `"driver":"e"`, Update},
	"monitoring.coreos.com/v1 ServiceMonitor":        {`"spec":{"selector":{}}`, `"spec":{}`, Update},
	"monitoring.coreos.com/v1 PrometheusRule":        {`"spec":{"groups":[]}`, `"spec":{"groups":[{}]}`, Update},
	"monitoring.coreos.com/v1 Prometheus":            {`"spec":{"replicas":1}`, `"spec":{"replicas":2}`, Update},
	"monitoring.coreos.com/v1 Alertmanager":          {`"spec":{"replicas":1}`, `"spec":{"replicas":2}`, Update},

	"apps/v1 Deployment":  {`"spec":{"template":{"x":"1"}}`, `"spec":{"template":{"x":"2"},"replicas":3}`, Update},
	"batch/v1 Job":        {`"spec":{"template":{"x":"1"},"parallelism":1}`, `"spec":{"template":{"x":"1"},"parallelism":2}`, Update},
	"example.com/v1 Rope": {`"spec":{"length":1}`, `"spec":{"length":2}`, Update},
	"migration.k8s.io/v1alpha1 StorageVersionMigration": {`"spec":{"resource":{"group":"a"}}`, `"spec":{"resource":{"group":"b"}}`, Update},
}

func TestSamples_EveryRuleHasOne(t *testing.T) {
	for gvk := range rules {
		if _, has := samples[gvk.GroupVersion().String()+" "+gvk.Kind]; !has {
			t.Errorf("%s has a rule and no sample", gvk)
		}
	}
}

// theirs is the owner reference of another work.
const theirs = `"ownerReferences":[{"apiVersion":"work.open-cluster-management.io/v1","kind":"AppliedManifestWork","name":"hash-other","uid":"99999999-0000-0000-0000-000000000000"}]`

// stage is a cluster with one kind in one state, and a work that wants it.
type stage struct {
	*bench
	apiVersion, kind string
	strategy         workv1.UpdateStrategyType
	sample           sample
	// special: the kind has a rule, so a difference is found without remembered state.
	special bool
}

func newStage(t *testing.T, name string, strategy workv1.UpdateStrategyType) *stage {
	s := &stage{bench: newBench(t), strategy: strategy, sample: samples[name]}
	define(s.f)
	s.apiVersion, s.kind, _ = strings.Cut(name, " ")
	_, s.special = rules[schema.FromAPIVersionAndKind(s.apiVersion, s.kind)]
	m := s.load(s.manifest(s.sample.manifest, ""))
	s.spec.ManifestConfigs = []workv1.ManifestConfigOption{{
		ResourceIdentifier: workv1.ResourceIdentifier{Group: m.Meta.Group, Resource: m.Meta.Resource, Namespace: m.Meta.Namespace, Name: "*"},
		UpdateStrategy:     &workv1.UpdateStrategy{Type: strategy},
	}}
	return s
}

func (s *stage) manifest(fields, meta string) string {
	if fields != "" {
		fields = "," + fields
	}
	if meta != "" {
		meta = "," + meta
	}
	return `{"apiVersion":"` + s.apiVersion + `","kind":"` + s.kind + `","metadata":{"name":"knots.example.com","namespace":"default"` + meta + `}` + fields + `}`
}

// put creates the object as another client.
func (s *stage) put(fields, meta string) *unstructured.Unstructured {
	o := object(s.t, s.manifest(fields, meta))
	o.SetNamespace(s.load(s.manifest(fields, meta)).Meta.Namespace)
	return s.f.Put(o)
}

func (s *stage) applied(k KnownState) (Result, *unstructured.Unstructured) {
	s.t.Helper()
	s.f.TakeCalls()
	r := s.applyKnowing(s.manifest(s.sample.manifest, ""), k)
	if r.Err != nil {
		s.t.Fatalf("got %s, %v", r.Action, r.Err)
	}
	wrote := slices.ContainsFunc(s.f.TakeCalls(), clustertest.Call.Write)
	if wrote != (r.Action != Unchanged) || wrote && s.strategy == workv1.UpdateStrategyTypeReadOnly {
		s.t.Fatalf("%s: wrote: %t", r.Action, wrote)
	}
	return r, s.f.Look(r.Ref)
}

// still expects that another round changes nothing. It also tries without remembered state where this is
// possible.
func (s *stage) still(r Result) {
	s.t.Helper()
	memories := []KnownState{r.Known}
	if s.special || s.strategy != workv1.UpdateStrategyTypeUpdate {
		memories = append(memories, KnownState{})
	}
	for _, k := range memories {
		if again, _ := s.applied(k); again.Action != Unchanged {
			s.t.Errorf("another round: %s", again.Action)
		}
	}
}

func eachStage(t *testing.T, run func(t *testing.T, s *stage)) {
	for name := range samples {
		for _, strategy := range []workv1.UpdateStrategyType{workv1.UpdateStrategyTypeUpdate, workv1.UpdateStrategyTypeCreateOnly, workv1.UpdateStrategyTypeReadOnly} {
			t.Run(name+" "+string(strategy), func(t *testing.T) { run(t, newStage(t, name, strategy)) })
		}
	}
}

func owners(o *unstructured.Unstructured) (names []string) {
	for _, r := range o.GetOwnerReferences() {
		names = append(names, r.Name)
	}
	return names
}

func TestStrategies_Absent(t *testing.T) {
	eachStage(t, func(t *testing.T, s *stage) {
		r, o := s.applied(KnownState{})
		if s.strategy == workv1.UpdateStrategyTypeReadOnly {
			if r.Action != Unchanged || r.Presence != conditions.Absent || o != nil || r.UID() != "" || r.Known != (KnownState{}) {
				t.Fatalf("got %s, %v, %v", r.Action, r.Presence, o)
			}
			return
		}
		if r.Action != Create || r.Presence != conditions.Present || !slices.Equal(owners(o), []string{owner.Name}) {
			t.Fatalf("got %s, %v, owners %v", r.Action, r.Presence, owners(o))
		}
		s.still(r)
	})
}

func TestStrategies_PresentAndEqual(t *testing.T) {
	eachStage(t, func(t *testing.T, s *stage) {
		before := s.put(s.sample.manifest, "")
		r, o := s.applied(KnownState{})
		want := []string{owner.Name}
		if s.strategy == workv1.UpdateStrategyTypeReadOnly || s.kind == "VolumeSnapshotClass" && s.strategy == workv1.UpdateStrategyTypeUpdate {
			want = nil
		}
		if r.Presence != conditions.Present || r.UID() != before.GetUID() || !slices.Equal(owners(o), want) {
			t.Fatalf("got %v, uid %s of %s, owners %v", r.Presence, r.UID(), before.GetUID(), owners(o))
		}
		if before, after := digest(before), digest(o); before != after && s.kind != "Secret" {
			t.Errorf("the content changed: %v", o.Object)
		}
		s.still(r)
	})
}

func TestStrategies_PresentAndDifferent(t *testing.T) {
	eachStage(t, func(t *testing.T, s *stage) {
		before := s.put(s.sample.other, "")
		r, o := s.applied(KnownState{})
		if s.strategy != workv1.UpdateStrategyTypeUpdate || s.sample.action == Unchanged {
			if r.Action == Recreate || digest(before) != digest(o) {
				t.Fatalf("%s: the content changed: %v", r.Action, o.Object)
			}
			s.still(r)
			return
		}
		if r.Action != s.sample.action || digest(before) == digest(o) || (r.UID() == before.GetUID()) == (r.Action == Recreate) {
			t.Fatalf("got %s, %v", r.Action, o.Object)
		}
		s.still(r)
	})
}

func TestStrategies_OwnedByAnotherWork(t *testing.T) {
	eachStage(t, func(t *testing.T, s *stage) {
		s.put(s.sample.other, theirs)
		r, o := s.applied(KnownState{})
		want := []string{"hash-other", owner.Name}
		if s.strategy == workv1.UpdateStrategyTypeReadOnly || s.kind == "VolumeSnapshotClass" && s.strategy == workv1.UpdateStrategyTypeUpdate {
			want = want[:1]
		}
		if got := owners(o); !slices.Equal(got, want) {
			t.Fatalf("got owners %v, want %v", got, want)
		}
		s.still(r)
	})
}

func TestStrategies_Terminating(t *testing.T) {
	eachStage(t, func(t *testing.T, s *stage) {
		before := s.put(s.sample.other, `"finalizers":["example.com/hold"]`)
		ref := s.load(s.manifest(s.sample.manifest, "")).Ref
		s.f.Remove(ref)
		r := s.applyKnowing(s.manifest(s.sample.manifest, ""), KnownState{})
		if s.sample.action == Recreate && s.strategy == workv1.UpdateStrategyTypeUpdate {
			if r.Err == nil || r.Err.Error() != "the object is being deleted; it is created again when it is gone" || Permanent(r.Err) || r.Action != Reject {
				t.Fatalf("got %s, %v", r.Action, r.Err)
			}
		} else if r.Err != nil {
			t.Fatalf("got %s, %v", r.Action, r.Err)
		}
		o := s.f.Look(ref)
		if r.Presence != conditions.Present || o.GetUID() != before.GetUID() || o.GetDeletionTimestamp() == nil || !slices.Equal(o.GetFinalizers(), before.GetFinalizers()) {
			t.Fatalf("got %v, %v", r.Presence, o.Object["metadata"])
		}
		s.f.Edit(ref, func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
		if r, _ := s.applied(r.Known); (r.Action == Create) == (s.strategy == workv1.UpdateStrategyTypeReadOnly) {
			t.Fatalf("once it is deleted: %s", r.Action)
		}
	})
}

func TestStrategies_OrphansDropTheReference(t *testing.T) {
	eachStage(t, func(t *testing.T, s *stage) {
		s.put(s.sample.manifest, strings.TrimPrefix(ownedByWork, ","))
		s.orphan()
		r, o := s.applied(KnownState{})
		if s.strategy == workv1.UpdateStrategyTypeReadOnly {
			if len(owners(o)) != 1 {
				t.Fatal("an object that is only read lost its owner")
			}
		} else if len(owners(o)) != 0 {
			t.Fatalf("owners %v", owners(o))
		}
		s.still(r)
		s.f.Remove(r.Ref)
		if r, o := s.applied(KnownState{}); r.Action == Create && o.GetOwnerReferences() != nil {
			t.Fatalf("an orphan was made with an owner: %v", o.GetOwnerReferences())
		}
	})
}

// For any labels, annotations, owners and finalizers of an object and a manifest, those set by others stay. The
// work's reference is present exactly if it should be, and another round changes nothing.
func TestStrategies_KeepFieldsOfOthers(t *testing.T) {
	names := slices.Sorted(maps.Keys(samples))
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.SampledFrom(names).Draw(rt, "kind")
		strategy := rapid.SampledFrom([]workv1.UpdateStrategyType{workv1.UpdateStrategyTypeUpdate, workv1.UpdateStrategyTypeCreateOnly, workv1.UpdateStrategyTypeReadOnly}).Draw(rt, "strategy")
		s := newStage(t, name, strategy)
		keys := rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.SampledFrom([]string{"", "1", "2"}), 0, 3)
		wants := rapid.MapOfN(rapid.SampledFrom([]string{"a", "a-", "b", "b-", "c-"}), rapid.SampledFrom([]string{"", "1", "2"}), 0, 3)
		live, want := object(t, s.manifest(s.sample.other, "")), object(t, s.manifest(s.sample.manifest, ""))
		live.SetNamespace(s.load(s.manifest("", "")).Meta.Namespace)
		live.SetLabels(keys.Draw(rt, "labels"))
		live.SetAnnotations(keys.Draw(rt, "annotations"))
		others := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"x", "y"}), 0, 2, rapid.ID).Draw(rt, "owners")
		refs := []metav1.OwnerReference{}
		for _, o := range others {
			refs = append(refs, Owner{Name: o, UID: types.UID(o)}.Reference())
		}
		if rapid.Bool().Draw(rt, "ours") {
			refs = append(refs, owner.Reference())
		}
		live.SetOwnerReferences(refs)
		if s.sample.action != Recreate {
			live.SetFinalizers(rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"example.com/f", "example.com/g"}), 0, 2, rapid.ID).Draw(rt, "finalizers"))
		}
		want.SetLabels(wants.Draw(rt, "wanted labels"))
		want.SetAnnotations(wants.Draw(rt, "wanted annotations"))
		want.SetFinalizers([]string{"example.com/ours"})
		if orphan := rapid.Bool().Draw(rt, "orphan"); orphan {
			s.orphan()
		}
		before := s.f.Put(live)
		manifest, err := want.MarshalJSON()
		if err != nil {
			rt.Fatal(err)
		}
		r := s.applyKnowing(string(manifest), KnownState{})
		if r.Err != nil {
			rt.Fatal(r.Err)
		}
		s.keptBy(rt, before, want, s.f.Look(r.Ref))
		again := s.applyKnowing(string(manifest), r.Known)
		if again.Err != nil || again.Action != Unchanged {
			rt.Fatalf("another round: %s, %v", again.Action, again.Err)
		}
	})
}

// keptBy compares the metadata after the steps with the expected metadata.
func (s *stage) keptBy(t *rapid.T, before, want, after *unstructured.Unstructured) {
	bare := s.kind == "VolumeSnapshotClass" && s.strategy == workv1.UpdateStrategyTypeUpdate
	for what, get := range map[string]func(*unstructured.Unstructured) map[string]string{"labels": (*unstructured.Unstructured).GetLabels, "annotations": (*unstructured.Unstructured).GetAnnotations} {
		expected := maps.Clone(get(before))
		if expected == nil {
			expected = map[string]string{}
		}
		if s.strategy == workv1.UpdateStrategyTypeUpdate && !bare {
			for k := range get(want) {
				delete(expected, strings.TrimSuffix(k, "-"))
			}
			maps.Copy(expected, dropRemovals(get(want)))
		}
		got := maps.Clone(get(after))
		delete(got, specHashAnno)
		if !maps.Equal(expected, got) {
			t.Fatalf("%s are %v, want %v", what, got, expected)
		}
	}
	had := slices.ContainsFunc(before.GetOwnerReferences(), owner.is)
	has := s.load(s.manifest(s.sample.manifest, "")).Owned
	if s.strategy == workv1.UpdateStrategyTypeReadOnly {
		has = had
	} else if bare {
		has = has && had
	}
	var expected []string
	for _, name := range owners(before) {
		if name != owner.Name || has {
			expected = append(expected, name)
		}
	}
	if has && !had {
		expected = append(expected, owner.Name)
	}
	if got := owners(after); !slices.Equal(got, expected) {
		t.Fatalf("owners are %q, want %q", got, expected)
	}
	if got := after.GetFinalizers(); s.sample.action != Recreate && !slices.Equal(got, before.GetFinalizers()) {
		t.Fatalf("finalizers are %q, want %q", got, before.GetFinalizers())
	}
}
