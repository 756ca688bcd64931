package apply

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

var owner = Owner{Name: "hash-web", UID: "11111111-0000-0000-0000-000000000000"}

// bench applies manifests to a fake cluster, one after the other.
type bench struct {
	t     *testing.T
	f     *clustertest.Fake
	waits []time.Duration
	spec  workv1.ManifestWorkSpec // options for every manifest
}

func newBench(t *testing.T) *bench { return &bench{t: t, f: clustertest.New()} }

func (b *bench) applier() Applier {
	return Applier{Objects: b.f, Wait: func(_ context.Context, d time.Duration) error { b.waits = append(b.waits, d); return nil }}
}

func (b *bench) load(manifest string) Manifest {
	s := b.spec
	s.Workload = work(manifest).Workload
	return Load(b.t.Context(), b.f, s)[0]
}

func (b *bench) applyKnowing(manifest string, k KnownState) Result {
	a := b.applier()
	return a.Apply(b.t.Context(), a.Plan(b.t.Context(), b.load(manifest), owner, k), owner)
}

func (b *bench) apply(manifest string) Result { return b.applyKnowing(manifest, KnownState{}) }

func (b *bench) must(want Action, r Result) *unstructured.Unstructured {
	b.t.Helper()
	if r.Err != nil || r.Action != want || r.Presence != conditions.Present {
		b.t.Fatalf("got %s %v (%v), want %s", r.Action, r.Presence, r.Err, want)
	}
	return b.f.Look(r.Ref)
}

func object(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON([]byte(manifest)); err != nil {
		t.Fatal(err)
	}
	return o
}

// fields returns the given top-level fields as JSON, for comparison.
func fields(o *unstructured.Unstructured, names ...string) string {
	m := map[string]any{}
	for _, n := range names {
		if v, ok := o.Object[n]; ok {
			m[n] = v
		}
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func TestApplier_CreateIsCleanAndOwned(t *testing.T) {
	b := newBench(t)
	o := b.must(Create, b.apply(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default",
		"uid":"77777777-0000-0000-0000-000000000000","resourceVersion":"5","finalizers":["example.com/f"],
		"labels":{"keep":"1","drop-":""},"annotations":{"drop-":""},
		"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u"}]},"data":{"k":"v"}}`))
	want := []metav1.OwnerReference{{APIVersion: "work.open-cluster-management.io/v1", Kind: "AppliedManifestWork", Name: owner.Name, UID: owner.UID}}
	if d := cmp.Diff(want, o.GetOwnerReferences()); d != "" {
		t.Errorf("owners (-want +got)\n%s", d)
	}
	if d := cmp.Diff(map[string]string{"keep": "1"}, o.GetLabels()); d != "" {
		t.Errorf("labels (-want +got)\n%s", d)
	}
	if o.GetAnnotations() != nil || !slices.Equal(o.GetFinalizers(), []string{"example.com/f"}) || o.GetUID() == "77777777-0000-0000-0000-000000000000" {
		t.Errorf("got %v", o.Object["metadata"])
	}
}

func TestApplier_MetadataIsMerged(t *testing.T) {
	for _, kind := range []string{
		`"apiVersion":"v1","kind":"ConfigMap"`,      // a kind with a rule
		`"apiVersion":"batch/v1","kind":"Job"`,      // replaced as a whole
		`"apiVersion":"v1","kind":"ServiceAccount"`, // only its metadata is written
	} {
		t.Run(kind, func(t *testing.T) {
			b := newBench(t)
			live := object(t, `{`+kind+`,"metadata":{"name":"a","namespace":"default","finalizers":["example.com/theirs"],
				"labels":{"theirs":"1","ours":"old","gone":"x"},"annotations":{"theirs":"1","gone":"x"},
				"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u","controller":true},
					{"apiVersion":"work.open-cluster-management.io/v1alpha1","kind":"AppliedManifestWork","name":"hash-web","uid":"stale"},
					{"apiVersion":"work.open-cluster-management.io/v1","kind":"AppliedManifestWork","name":"hash-other","uid":"o"}]}}`)
			b.f.Put(live)
			manifest := `{` + kind + `,"metadata":{"name":"a","namespace":"default","finalizers":["example.com/ours"],
				"labels":{"ours":"new","gone-":"","never-":""},"annotations":{"ours":"new","gone-":""}}}`
			r := b.apply(manifest)
			o := b.must(Update, r)
			controller := true
			want := []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u", Controller: &controller},
				owner.Reference(),
				{APIVersion: "work.open-cluster-management.io/v1", Kind: "AppliedManifestWork", Name: "hash-other", UID: "o"},
			}
			if d := cmp.Diff(want, o.GetOwnerReferences()); d != "" {
				t.Errorf("owners (-want +got)\n%s", d)
			}
			if d := cmp.Diff(map[string]string{"theirs": "1", "ours": "new"}, o.GetLabels()); d != "" {
				t.Errorf("labels (-want +got)\n%s", d)
			}
			if d := cmp.Diff(map[string]string{"theirs": "1", "ours": "new"}, o.GetAnnotations()); d != "" {
				t.Errorf("annotations (-want +got)\n%s", d)
			}
			if !slices.Equal(o.GetFinalizers(), []string{"example.com/theirs"}) {
				t.Errorf("finalizers %v", o.GetFinalizers())
			}
			b.must(Unchanged, b.applyKnowing(manifest, r.Known))
		})
	}
}

func TestApplier_OrphansAreNotOwned(t *testing.T) {
	b := newBench(t)
	b.must(Create, b.apply(simpleConfigMap))
	b.spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
	if o := b.must(Update, b.apply(simpleConfigMap)); o.GetOwnerReferences() != nil {
		t.Errorf("the reference stayed: %v", o.GetOwnerReferences())
	}
	b.must(Unchanged, b.apply(simpleConfigMap))
	other := strings.ReplaceAll(simpleConfigMap, `"a"`, `"b"`)
	if o := b.must(Create, b.apply(other)); o.GetOwnerReferences() != nil {
		t.Errorf("an orphan was created with an owner: %v", o.GetOwnerReferences())
	}
	b.spec.DeleteOption = nil
	if o := b.must(Update, b.apply(other)); len(o.GetOwnerReferences()) != 1 {
		t.Errorf("the reference did not come back")
	}
}

// Update for each kind with a rule: the live object, the manifest, and the resulting fields.
func TestApplier_Rules(t *testing.T) {
	const (
		cm  = `"apiVersion":"v1","kind":"ConfigMap"`
		sec = `"apiVersion":"v1","kind":"Secret"`
		cr  = `"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole"`
		rb  = `"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding"`
		svc = `"apiVersion":"v1","kind":"Service"`
	)
	for name, c := range map[string]ruleCase{
		"namespace: only metadata": {
			kind: `"apiVersion":"v1","kind":"Namespace"`, live: `,"spec":{"finalizers":["kubernetes"]}`, manifest: `,"spec":{"finalizers":["x"]}`,
			action: Unchanged, show: []string{"spec"}, want: `{"spec":{"finalizers":["kubernetes"]}}`,
		},
		"pod: only metadata": {
			kind: `"apiVersion":"v1","kind":"Pod"`, live: `,"spec":{"restartPolicy":"Never"}`, manifest: `,"spec":{"restartPolicy":"Always"}`,
			action: Unchanged, show: []string{"spec"}, want: `{"spec":{"restartPolicy":"Never"}}`,
		},
		"service account: only metadata": {
			kind: `"apiVersion":"v1","kind":"ServiceAccount"`, live: `,"secrets":[{"name":"a"}]`, manifest: `,"imagePullSecrets":[{"name":"p"}]`,
			action: Unchanged, show: []string{"secrets", "imagePullSecrets"}, want: `{"secrets":[{"name":"a"}]}`,
		},
		"config map: data is exact": {
			kind: cm, live: `,"data":{"a":"1","b":"2"},"binaryData":{"x":""}`, manifest: `,"data":{"a":"2"}`,
			action: Update, show: []string{"data", "binaryData"}, want: `{"data":{"a":"2"}}`,
		},
		"config map: an empty text is a value": {
			kind: cm, live: `,"binaryData":{}`, manifest: `,"binaryData":{"x":""}`,
			action: Update, show: []string{"binaryData"}, want: `{"binaryData":{"x":""}}`,
		},
		"config map: absent and empty are the same": {
			kind: cm, live: ``, manifest: `,"data":{},"binaryData":null`,
			action: Unchanged, show: []string{"data", "binaryData"}, want: `{}`,
		},
		"config map: made immutable later": {
			kind: cm, live: `,"data":{"a":"1"}`, manifest: `,"data":{"a":"1"},"immutable":true`,
			action: Update, show: []string{"data", "immutable"}, want: `{"data":{"a":"1"},"immutable":true}`,
		},
		"config map: what others made immutable": {
			kind: cm, live: `,"data":{"a":"1"},"immutable":true`, manifest: `,"data":{"a":"1"}`,
			action: Unchanged, show: []string{"data", "immutable"}, want: `{"data":{"a":"1"},"immutable":true}`,
		},
		"secret: made immutable later": {
			kind: sec, live: `,"type":"Opaque","data":{"a":"MQ=="}`, manifest: `,"stringData":{"a":"1"},"immutable":true`,
			action: Update, show: []string{"data", "immutable"}, want: `{"data":{"a":"MQ=="},"immutable":true}`,
		},
		"config map: an injected bundle stays": {
			kind: cm, meta: `,"labels":{"config.openshift.io/inject-trusted-cabundle":"true"}`,
			live: `,"data":{"ca-bundle.crt":"injected","a":"1"}`, manifest: `,"data":{"ca-bundle.crt":"","a":"2"}`,
			action: Update, show: []string{"data"}, want: `{"data":{"a":"2","ca-bundle.crt":"injected"}}`,
		},
		"config map: an injected service bundle is no difference": {
			kind: cm, meta: `,"annotations":{"service.beta.openshift.io/inject-cabundle":"true"}`,
			live: `,"data":{"service-ca.crt":"injected","a":"1"}`, manifest: `,"data":{"a":"1"}`,
			action: Unchanged, show: []string{"data"}, want: `{"data":{"a":"1","service-ca.crt":"injected"}}`,
		},
		"secret: text is folded into data, data is exact": {
			kind: sec, live: `,"type":"Opaque","data":{"a":"MQ==","b":"Mg=="}`, manifest: `,"data":{"a":"MQ=="},"stringData":{"c":"3","a":"1"}`,
			action: Update, show: []string{"data", "stringData", "type"}, want: `{"data":{"a":"MQ==","c":"Mw=="},"type":"Opaque"}`,
		},
		"secret: equal after folding": {
			kind: sec, live: `,"type":"Opaque","data":{"a":"MQ=="}`, manifest: `,"stringData":{"a":"1"}`,
			action: Unchanged, show: []string{"data", "stringData"}, want: `{"data":{"a":"MQ=="}}`,
		},
		"secret: other tokens of a service account stay": {
			kind: sec, live: `,"type":"kubernetes.io/service-account-token","data":{"token":"dA==","a":"MQ=="}`,
			manifest: `,"type":"kubernetes.io/service-account-token","data":{"a":"Mg=="}`,
			action:   Update, show: []string{"data"}, want: `{"data":{"a":"Mg==","token":"dA=="}}`,
		},
		"secret: another type is another secret": {
			kind: sec, live: `,"type":"example.com/t","data":{"a":"MQ=="}`, manifest: `,"data":{"a":"MQ=="}`,
			action: Recreate, show: []string{"data", "type"}, want: `{"data":{"a":"MQ=="},"type":"Opaque"}`,
		},
		"secret: frozen, so created again": {
			kind: sec, live: `,"type":"Opaque","immutable":true,"data":{"a":"MQ=="}`, manifest: `,"immutable":true,"data":{"a":"Mg=="}`,
			action: Recreate, show: []string{"data", "immutable"}, want: `{"data":{"a":"Mg=="},"immutable":true}`,
		},
		"cluster role: rules": {
			kind: cr, live: `,"rules":[{"verbs":["get"],"apiGroups":[""],"resources":["pods"]}]`, manifest: `,"rules":[{"verbs":["get"],"apiGroups":[""],"resources":["secrets"]}]`,
			action: Update, show: []string{"rules"}, want: `{"rules":[{"apiGroups":[""],"resources":["secrets"],"verbs":["get"]}]}`,
		},
		"cluster role: empty lists are no difference": {
			kind: cr, live: `,"rules":[{"verbs":["get"],"apiGroups":[""],"resources":["pods"]}]`,
			manifest: `,"rules":[{"verbs":["get"],"apiGroups":[""],"resources":["pods"],"resourceNames":[]}],"aggregationRule":null`,
			action:   Unchanged, show: []string{"aggregationRule"}, want: `{}`,
		},
		"cluster role: aggregated rules belong to the control plane": {
			kind: cr, live: `,"rules":[{"verbs":["get"]}],"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"a":"1"}}]}`,
			manifest: `,"rules":[],"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"a":"2"}}]}`,
			action:   Update, show: []string{"rules", "aggregationRule"},
			want: `{"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"a":"2"}}]},"rules":[{"verbs":["get"]}]}`,
		},
		"cluster role: aggregation ends": {
			kind: cr, live: `,"rules":[{"verbs":["get"]}],"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"a":"1"}}]}`, manifest: `,"rules":[{"verbs":["list"]}]`,
			action: Update, show: []string{"rules", "aggregationRule"}, want: `{"rules":[{"verbs":["list"]}]}`,
		},
		"role: rules": {
			kind: `"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role"`, live: `,"rules":[{"verbs":["get"]}]`, manifest: ``,
			action: Update, show: []string{"rules"}, want: `{}`,
		},
		"role binding: API groups are filled in": {
			kind:     rb,
			live:     `,"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"r"},"subjects":[{"kind":"User","name":"u","apiGroup":"rbac.authorization.k8s.io"},{"kind":"Group","name":"g","apiGroup":"rbac.authorization.k8s.io"},{"kind":"ServiceAccount","name":"s","namespace":"n"}]`,
			manifest: `,"roleRef":{"kind":"Role","name":"r"},"subjects":[{"kind":"User","name":"u"},{"kind":"Group","name":"g"},{"kind":"ServiceAccount","name":"s","namespace":"n","apiGroup":""}]`,
			action:   Unchanged, show: []string{"kind"}, want: `{"kind":"RoleBinding"}`,
		},
		"cluster role binding: subjects": {
			kind:     `"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding"`,
			live:     `,"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"r"}`,
			manifest: `,"roleRef":{"kind":"ClusterRole","name":"r"},"subjects":[{"kind":"User","name":"u"}]`,
			action:   Update, show: []string{"subjects"}, want: `{"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"u"}]}`,
		},
		"service: what others did to the spec stays": {
			kind: svc, meta: `,"annotations":{"operator.openshift.io/spec-hash":"` + portOnlyHash + `"}`,
			live: `,"spec":{"type":"ClusterIP","selector":{"a":"b"},"ports":[{"port":81}],"externalTrafficPolicy":"x"}`, manifest: `,"spec":{"ports":[{"port":80}],"selector":{"a":"b"}}`,
			action: Unchanged, show: []string{"spec"}, want: `{"spec":{"externalTrafficPolicy":"x","ports":[{"port":81}],"selector":{"a":"b"},"type":"ClusterIP"}}`,
		},
		"service: another selector brings the whole spec": {
			kind: svc, meta: `,"annotations":{"operator.openshift.io/spec-hash":"` + portOnlyHash + `"}`,
			live: `,"spec":{"type":"ClusterIP","selector":{"a":"c"},"ports":[{"port":81}]}`, manifest: `,"spec":{"ports":[{"port":80}],"selector":{"a":"b"}}`,
			action: Update, show: []string{"spec"}, want: `{"spec":{"ports":[{"port":80}],"selector":{"a":"b"},"type":"ClusterIP"}}`,
		},
		"service: another type brings the whole spec": {
			kind: svc, meta: `,"annotations":{"operator.openshift.io/spec-hash":"` + portOnlyHash + `"}`,
			live: `,"spec":{"type":"NodePort","selector":{"a":"b"},"ports":[{"port":81}]}`, manifest: `,"spec":{"ports":[{"port":80}],"selector":{"a":"b"}}`,
			action: Update, show: []string{"spec"}, want: `{"spec":{"ports":[{"port":80}],"selector":{"a":"b"},"type":"ClusterIP"}}`,
		},
		"service: another manifest brings the whole spec": {
			kind: svc, live: `,"spec":{"type":"ClusterIP","selector":{"a":"b"},"ports":[{"port":81}]}`, manifest: `,"spec":{"ports":[{"port":80}],"selector":{"a":"b"}}`,
			action: Update, show: []string{"spec"}, want: `{"spec":{"ports":[{"port":80}],"selector":{"a":"b"},"type":"ClusterIP"}}`,
		},
	} {
		t.Run(name, c.check)
	}
}

// portOnlyHash is the SHA-256 of {"ports":[{"port":80,"targetPort":0}],"selector":{"a":"b"}}:
// the spec above in the order and form of the API types.
const portOnlyHash = "0477b22b63b2b50fb76f844bc2f8d9c6a38bd5fe8e60ce68064d95479f4adab1"

func TestApplier_SecretWithContradictingText(t *testing.T) {
	b := newBench(t)
	r := b.apply(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","namespace":"default"},"data":{"a":"MQ=="},"stringData":{"a":"2"}}`)
	if r.Err == nil || r.Err.Error() != `Secret.stringData["a"] conflicts with Secret.data["a"]` || !Permanent(r.Err) || r.Presence != conditions.Absent {
		t.Fatalf("got %v, %v", r.Err, r.Presence)
	}
}

const deployment = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","namespace":"default"},"spec":{"template":{"x":"1"}}}`

func TestApplier_WholeObjectIsWrittenOnlyOnDrift(t *testing.T) {
	b := newBench(t)
	r := b.apply(deployment)
	b.must(Create, r)
	ref := r.Ref
	quiet := func(what string) {
		t.Helper()
		b.f.TakeCalls()
		r = b.applyKnowing(deployment, r.Known)
		b.must(Unchanged, r)
		if calls := b.f.TakeCalls(); slices.ContainsFunc(calls, clustertest.Call.Write) {
			t.Fatalf("%s: wrote %v", what, calls)
		}
	}
	quiet("after a create")
	b.f.Edit(ref, func(o *unstructured.Unstructured) {
		o.SetAnnotations(map[string]string{"deployment.kubernetes.io/revision": "1"})
	})
	quiet("after an annotation of others")

	b.f.Edit(ref, func(o *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(o.Object, int64(5), "spec", "replicas")
	})
	r = b.applyKnowing(deployment, r.Known)
	o := b.must(Update, r)
	if n, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); n != 1 {
		t.Fatalf("got %d replicas, want the default again", n)
	}
	if o.GetAnnotations()["deployment.kubernetes.io/revision"] != "1" {
		t.Fatal("an annotation of others was lost")
	}
	quiet("after an update")

	changed := strings.Replace(deployment, `"x":"1"`, `"x":"2"`, 1)
	r = b.applyKnowing(changed, r.Known)
	b.must(Update, r)
	r = b.applyKnowing(changed, r.Known)
	b.must(Unchanged, r)

	// A restarted agent has no state and writes once; the server finds no difference.
	before := b.f.Look(ref).GetResourceVersion()
	r = b.applyKnowing(changed, KnownState{})
	b.must(Update, r)
	if b.f.Look(ref).GetResourceVersion() != before {
		t.Fatal("the object was changed")
	}
}

func TestApplier_WholeObjectDropsFieldsMissingInManifest(t *testing.T) {
	b := newBench(t)
	b.f.Put(object(t, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","namespace":"default"},"spec":{"template":{"x":"1"},"paused":true,"replicas":7}}`))
	o := b.must(Update, b.apply(deployment))
	if got, want := fields(o, "spec"), `{"spec":{"replicas":1,"template":{"x":"1"}}}`; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
}

func TestApplier_RefusalOfTheServerIsTheError(t *testing.T) {
	b := newBench(t)
	job := `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"a","namespace":"default"},"spec":{"template":{"x":"1"}}}`
	b.must(Create, b.apply(job))
	r := b.apply(strings.Replace(job, `"x":"1"`, `"x":"2"`, 1))
	if r.Err == nil || !apierrors.IsInvalid(r.Err) || Permanent(r.Err) || r.Presence != conditions.Present || r.Live == nil || r.Known.UID != "" {
		t.Fatalf("got %v, %v, known %v", r.Err, r.Presence, r.Known)
	}
	missing := b.apply(strings.Replace(job, `"default"`, `"none"`, 1))
	if !apierrors.IsNotFound(missing.Err) || missing.Presence != conditions.Absent {
		t.Fatalf("got %v, %v; want the namespace not found and the object absent", missing.Err, missing.Presence)
	}
}

func TestApplier_RefusedManifestStillReportsPresence(t *testing.T) {
	b := newBench(t)
	b.spec.Executor = &workv1.ManifestWorkExecutor{}
	if r := b.apply(simpleConfigMap); r.Action != Reject || r.Presence != conditions.Absent || r.Err == nil {
		t.Fatalf("got %+v", r)
	}
	b.f.Put(object(t, simpleConfigMap))
	b.f.TakeCalls()
	r := b.apply(simpleConfigMap)
	if r.Action != Reject || r.Presence != conditions.Present || r.Live == nil || r.Err == nil {
		t.Fatalf("got %+v", r)
	}
	if calls := b.f.TakeCalls(); slices.ContainsFunc(calls, clustertest.Call.Write) {
		t.Fatalf("wrote %v", calls)
	}
}

func TestApplier_UnreadableObject(t *testing.T) {
	b := newBench(t)
	forbidden := apierrors.NewForbidden(corev1ConfigMaps, "a", errors.New("no rule"))
	b.f.Refuse = func(c clustertest.Call) error {
		if c.Verb == "get" {
			return forbidden
		}
		return nil
	}
	r := b.apply(simpleConfigMap)
	if !errors.Is(r.Err, forbidden) || !errors.Is(r.ReadErr, forbidden) || r.Presence != conditions.Unreadable || r.Action != Reject {
		t.Fatalf("got %+v", r)
	}
}

var corev1ConfigMaps = clustertest.New().Ref("v1", "ConfigMap", "", "").GroupResource()

func TestApplier_MeetsAnotherWriter(t *testing.T) {
	const want = `{"data":{"a":"1"}}`
	manifest := strings.Replace(simpleConfigMap, `}}`, `},"data":{"a":"1"}}`, 1)
	for name, c := range map[string]struct {
		exists bool
		// interfere is called before each of the first n writes
		interfere func(*clustertest.Fake, kubeclient.Ref)
		n         int
		action    Action
		waits     []time.Duration
		err       func(error) bool
	}{
		"changed meanwhile": {
			exists: true, n: 2, action: Update, waits: []time.Duration{10 * time.Millisecond, 50 * time.Millisecond},
			interfere: func(f *clustertest.Fake, r kubeclient.Ref) {
				f.Edit(r, func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"n": o.GetResourceVersion()}) })
			},
		},
		"changed for ever": {
			exists: true, n: 99, action: Update, err: apierrors.IsConflict,
			waits: []time.Duration{10 * time.Millisecond, 50 * time.Millisecond, 250 * time.Millisecond},
			interfere: func(f *clustertest.Fake, r kubeclient.Ref) {
				f.Edit(r, func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"n": o.GetResourceVersion()}) })
			},
		},
		"created by another client": {
			n: 1, action: Update, waits: []time.Duration{10 * time.Millisecond},
			interfere: func(f *clustertest.Fake, r kubeclient.Ref) {
				f.Put(clustertest.Object("v1", "ConfigMap", r.Namespace, r.Name))
			},
		},
		"removed by another client": {
			exists: true, n: 1, action: Create, waits: []time.Duration{10 * time.Millisecond},
			interfere: func(f *clustertest.Fake, r kubeclient.Ref) { f.Remove(r) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			m := b.load(manifest)
			if c.exists {
				b.f.Put(object(t, simpleConfigMap))
			}
			i := &interfering{Fake: b.f, before: func() {
				if c.n > 0 {
					c.n--
					c.interfere(b.f, m.Ref)
				}
			}}
			a := b.applier()
			a.Objects = i
			r := a.Apply(t.Context(), a.Plan(t.Context(), m, owner, KnownState{}), owner)
			if d := cmp.Diff(c.waits, b.waits); d != "" {
				t.Errorf("waits (-want +got)\n%s", d)
			}
			if c.err != nil {
				if !c.err(r.Err) {
					t.Fatalf("got %v", r.Err)
				}
				return
			}
			if got := fields(b.must(c.action, r), "data"); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

// interfering calls before ahead of each write, to act as another client.
type interfering struct {
	*clustertest.Fake
	before func()
}

func (i *interfering) Create(ctx context.Context, r schema.GroupVersionResource, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	i.before()
	return i.Fake.Create(ctx, r, o)
}

func (i *interfering) Update(ctx context.Context, r schema.GroupVersionResource, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	i.before()
	return i.Fake.Update(ctx, r, o)
}

// A manifest whose object probably does not exist is planned without a read. The result equals that with a
// read.
func TestApplier_Suppose(t *testing.T) {
	manifest := strings.Replace(simpleConfigMap, `}}`, `},"data":{"a":"1"}}`, 1)
	refused := apierrors.NewForbidden(corev1ConfigMaps, "a", errors.New("no rule"))
	for name, c := range map[string]struct {
		exists   bool
		strategy workv1.UpdateStrategyType
		refuse   func(clustertest.Call) error
		calls    []string
		action   Action
		presence conditions.Presence
		fails    bool
	}{
		"there is none":           {calls: []string{"create"}, action: Create, presence: conditions.Present},
		"there is one":            {exists: true, calls: []string{"create", "get", "update"}, action: Update, presence: conditions.Present},
		"there is one, make once": {exists: true, strategy: workv1.UpdateStrategyTypeCreateOnly, calls: []string{"create", "get", "patch"}, action: Update, presence: conditions.Present},
		"only to be read":         {strategy: workv1.UpdateStrategyTypeReadOnly, calls: []string{"get"}, action: Unchanged, presence: conditions.Absent},
		"may not be made": {
			refuse: func(c clustertest.Call) error {
				if c.Verb == "create" {
					return refused
				}
				return nil
			}, calls: []string{"create", "get"}, action: Create, presence: conditions.Absent, fails: true,
		},
		"may only be changed": {
			exists: true,
			refuse: func(c clustertest.Call) error {
				if c.Verb == "create" {
					return refused
				}
				return nil
			}, calls: []string{"create", "get", "update"}, action: Update, presence: conditions.Present,
		},
		"nothing is allowed": {
			refuse: func(clustertest.Call) error { return refused },
			calls:  []string{"create", "get"}, action: Reject, presence: conditions.Unreadable, fails: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			if c.strategy != "" {
				b.spec.ManifestConfigs = []workv1.ManifestConfigOption{{
					ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Name: "*", Namespace: "*"}, UpdateStrategy: &workv1.UpdateStrategy{Type: c.strategy},
				}}
			}
			m := b.load(manifest)
			if c.exists {
				b.f.Put(object(t, simpleConfigMap))
			}
			b.f.TakeCalls()
			b.f.Refuse = c.refuse
			a := b.applier()
			r := a.Apply(t.Context(), a.Suppose(t.Context(), m, owner), owner)
			var calls []string
			for _, call := range b.f.TakeCalls() {
				calls = append(calls, call.Verb)
			}
			if d := cmp.Diff(c.calls, calls); d != "" {
				t.Errorf("calls (-want +got)\n%s", d)
			}
			if r.Action != c.action || r.Presence != c.presence || (r.Err != nil) != c.fails || len(b.waits) != 0 {
				t.Errorf("got %s %v (%v), waited %v", r.Action, r.Presence, r.Err, b.waits)
			}
		})
	}
}

func TestApplier_LostAnswerLeavesPresenceUnknown(t *testing.T) {
	b := newBench(t)
	b.f.Refuse = func(c clustertest.Call) error {
		if c.Verb == "create" {
			return errors.New("connection reset")
		}
		return nil
	}
	if r := b.apply(simpleConfigMap); r.Presence != conditions.Unreadable || r.ReadErr == nil || r.Err == nil {
		t.Fatalf("got %+v", r)
	}
}

func TestKnownState_IsAboutOneManifestAndOneOwner(t *testing.T) {
	b := newBench(t)
	k := b.apply(simpleConfigMap).Known
	m := b.load(simpleConfigMap)
	if !k.Matches(m, owner) {
		t.Fatal("the same manifest is not recognised")
	}
	recreated := owner
	recreated.UID = "22222222-0000-0000-0000-000000000000"
	b.spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
	if k.Matches(m, recreated) || k.Matches(b.load(simpleConfigMap), owner) || k.Matches(b.load(deployment), owner) || (KnownState{}).Matches(m, owner) {
		t.Fatal("another owner, ownership or manifest is taken for the same")
	}
}
