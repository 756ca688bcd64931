package apply

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

// ruleCase has a live object, owned by the work, its manifest under Update, and the expected result.
type ruleCase struct {
	kind           string
	meta           string // more metadata of both, such as `,"labels":{}`
	live, manifest string // more fields
	action         Action
	show           []string
	want           string
}

const ownedByWork = `,"ownerReferences":[{"apiVersion":"work.open-cluster-management.io/v1","kind":"AppliedManifestWork","name":"hash-web","uid":"11111111-0000-0000-0000-000000000000"}]`

func (c ruleCase) check(t *testing.T) {
	b := newBench(t)
	define(b.f)
	namespace := ""
	if m := b.load(`{` + c.kind + `,"metadata":{"name":"a","namespace":"default"}}`); m.Meta.Namespace != "" {
		namespace = `,"namespace":"default"`
	}
	b.f.Put(object(t, `{`+c.kind+`,"metadata":{"name":"a"`+namespace+c.meta+ownedByWork+`}`+c.live+`}`))
	manifest := `{` + c.kind + `,"metadata":{"name":"a"` + namespace + c.meta + `}` + c.manifest + `}`
	r := b.apply(manifest)
	o := b.must(c.action, r)
	if got := fields(o, c.show...); got != c.want {
		t.Errorf("got %s\nwant %s", got, c.want)
	}
	b.quiet("the second round", manifest, KnownState{})
}

// quiet applies again and expects that nothing is written.
func (b *bench) quiet(what, manifest string, k KnownState) Result {
	b.t.Helper()
	b.f.TakeCalls()
	r := b.applyKnowing(manifest, k)
	b.must(Unchanged, r)
	if calls := b.f.TakeCalls(); slices.ContainsFunc(calls, clustertest.Call.Write) {
		b.t.Errorf("%s wrote: %v", what, calls)
	}
	return r
}

// orphan sets the delete option Orphan, so that the work owns no object.
func (b *bench) orphan() {
	b.spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
}

// define defines kinds of other projects on the cluster.
func define(f *clustertest.Fake) {
	for _, k := range []struct{ group, version, kind, plural, scope string }{
		{"monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors", "Namespaced"},
		{"monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules", "Namespaced"},
		{"monitoring.coreos.com", "v1", "Prometheus", "prometheuses", "Namespaced"},
		{"monitoring.coreos.com", "v1", "Alertmanager", "alertmanagers", "Namespaced"},
		{"snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass", "volumesnapshotclasses", "Cluster"},
		{"migration.k8s.io", "v1alpha1", "StorageVersionMigration", "storageversionmigrations", "Cluster"},
		{"example.com", "v1", "Rope", "ropes", "Namespaced"},
	} {
		f.Put(clustertest.Object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", k.plural+"."+k.group, "spec", map[string]any{
			"group": k.group, "scope": k.scope, "names": map[string]any{"kind": k.kind, "plural": k.plural},
			"versions": []any{map[string]any{"name": k.version, "served": true, "storage": true}},
		}))
	}
}

const (
	networkPolicy = `"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy"`
	budgetKind    = `"apiVersion":"policy/v1","kind":"PodDisruptionBudget"`
	policyKind    = `"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy"`
	policyBeta    = `"apiVersion":"admissionregistration.k8s.io/v1beta1","kind":"ValidatingAdmissionPolicy"`
	policyBinding = `"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding"`
	validatingCfg = `"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration"`
	mutatingCfg   = `"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingWebhookConfiguration"`
	definition    = `"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition"`
	storageClass  = `"apiVersion":"storage.k8s.io/v1","kind":"StorageClass"`
	csiDriver     = `"apiVersion":"storage.k8s.io/v1","kind":"CSIDriver"`
	snapshotClass = `"apiVersion":"snapshot.storage.k8s.io/v1","kind":"VolumeSnapshotClass"`
	monitor       = `"apiVersion":"monitoring.coreos.com/v1","kind":"ServiceMonitor"`
	migration     = `"apiVersion":"migration.k8s.io/v1alpha1","kind":"StorageVersionMigration"`
)

func TestApplier_RulesOfPolicies(t *testing.T) {
	for name, c := range map[string]ruleCase{
		"network policy: the spec is replaced": {
			kind: networkPolicy, live: `,"spec":{"podSelector":{},"policyTypes":["Ingress"],"ingress":[{}]}`, manifest: `,"spec":{"podSelector":{"matchLabels":{"a":"b"}}}`,
			action: Update, show: []string{"spec"}, want: `{"spec":{"podSelector":{"matchLabels":{"a":"b"}},"policyTypes":["Ingress"]}}`,
		},
		"network policy: no selector and an empty one are not the same": {
			kind: networkPolicy, live: `,"spec":{"podSelector":{},"ingress":[{"from":[{"podSelector":{}}]}]}`,
			manifest: `,"spec":{"podSelector":{},"ingress":[{"from":[{"podSelector":{},"namespaceSelector":{}}]}]}`,
			action:   Update, show: []string{"spec"},
			want: `{"spec":{"ingress":[{"from":[{"namespaceSelector":{},"podSelector":{}}]}],"podSelector":{},"policyTypes":["Ingress"]}}`,
		},
		"network policy: what the server fills in is no difference": {
			kind:     networkPolicy,
			live:     `,"spec":{"podSelector":{},"policyTypes":["Ingress","Egress"],"ingress":[{"ports":[{"port":80,"protocol":"TCP"}]}],"egress":[{"ports":[{"port":"dns","protocol":"TCP"}]}]}`,
			manifest: `,"spec":{"ingress":[{"ports":[{"port":80}],"from":[]}],"egress":[{"ports":[{"port":"dns"}]}]}`,
			action:   Unchanged, show: []string{"kind"}, want: `{"kind":"NetworkPolicy"}`,
		},
		"disruption budget: the spec is replaced": {
			kind: budgetKind, live: `,"spec":{"minAvailable":1,"selector":{"matchLabels":{"a":"b"}}}`, manifest: `,"spec":{"maxUnavailable":"50%","selector":{"matchLabels":{"a":"b"}}}`,
			action: Update, show: []string{"spec"}, want: `{"spec":{"maxUnavailable":"50%","selector":{"matchLabels":{"a":"b"}}}}`,
		},
		"disruption budget: an empty selector is not none": {
			kind: budgetKind, live: `,"spec":{"minAvailable":1}`, manifest: `,"spec":{"minAvailable":1,"selector":{}}`,
			action: Update, show: []string{"spec"}, want: `{"spec":{"minAvailable":1,"selector":{}}}`,
		},
		"a field that the API types do not know counts": {
			kind: budgetKind, live: `,"spec":{"minAvailable":1}`, manifest: `,"spec":{"minAvailable":1,"fromTheFuture":"x"}`,
			action: Update, show: []string{"spec"}, want: `{"spec":{"fromTheFuture":"x","minAvailable":1}}`,
		},
		"admission policy: what the server fills in is no difference": {
			kind:     policyKind,
			live:     `,"spec":{"failurePolicy":"Fail","matchConstraints":{"matchPolicy":"Equivalent","namespaceSelector":{},"objectSelector":{},"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["pods"],"scope":"*"}],"excludeResourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["*"],"resources":["configmaps"],"scope":"*"}]},"validations":[{"expression":"true"}]}`,
			manifest: `,"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["pods"]}],"excludeResourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["*"],"resources":["configmaps"]}]},"validations":[{"expression":"true"}]}`,
			action:   Unchanged, show: []string{"kind"}, want: `{"kind":"ValidatingAdmissionPolicy"}`,
		},
		"admission policy v1beta1: the spec is replaced": {
			kind: policyBeta, live: `,"spec":{"failurePolicy":"Ignore","validations":[{"expression":"true"}]}`, manifest: `,"spec":{"validations":[{"expression":"false"}]}`,
			action: Update, show: []string{"spec"}, want: `{"spec":{"failurePolicy":"Fail","validations":[{"expression":"false"}]}}`,
		},
		"admission policy binding: the spec is replaced": {
			kind:     policyBinding,
			live:     `,"spec":{"policyName":"p","validationActions":["Deny"],"matchResources":{"matchPolicy":"Equivalent","namespaceSelector":{},"objectSelector":{}}}`,
			manifest: `,"spec":{"policyName":"p","validationActions":["Audit"],"matchResources":{"matchPolicy":"Exact"}}`,
			action:   Update, show: []string{"spec"},
			want: `{"spec":{"matchResources":{"matchPolicy":"Exact","namespaceSelector":{},"objectSelector":{}},"policyName":"p","validationActions":["Audit"]}}`,
		},
	} {
		t.Run(name, c.check)
	}
}

func TestApplier_RulesOfWebhooks(t *testing.T) {
	const filledIn = `"failurePolicy":"Fail","matchPolicy":"Equivalent","namespaceSelector":{},"objectSelector":{},"timeoutSeconds":10,"sideEffects":"None","admissionReviewVersions":["v1"]`
	const given = `"sideEffects":"None","admissionReviewVersions":["v1"]`
	for name, c := range map[string]ruleCase{
		"what the server fills in is no difference": {
			kind:     validatingCfg,
			live:     `,"webhooks":[{"name":"a.b.c",` + filledIn + `,"clientConfig":{"service":{"name":"s","namespace":"n","port":443}},"rules":[{"operations":["*"],"apiGroups":["*"],"apiVersions":["*"],"resources":["*"],"scope":"*"}]}]`,
			manifest: `,"webhooks":[{"name":"a.b.c",` + given + `,"clientConfig":{"service":{"name":"s","namespace":"n"}},"rules":[{"operations":["*"],"apiGroups":["*"],"apiVersions":["*"],"resources":["*"]}]}]`,
			action:   Unchanged, show: []string{"kind"}, want: `{"kind":"ValidatingWebhookConfiguration"}`,
		},
		"mutating: what the server fills in is no difference": {
			kind:     mutatingCfg,
			live:     `,"webhooks":[{"name":"a.b.c",` + filledIn + `,"reinvocationPolicy":"Never","clientConfig":{"url":"https://x"}}]`,
			manifest: `,"webhooks":[{"name":"a.b.c",` + given + `,"clientConfig":{"url":"https://x"}}]`,
			action:   Unchanged, show: []string{"kind"}, want: `{"kind":"MutatingWebhookConfiguration"}`,
		},
		"an injected bundle is no difference": {
			kind:     mutatingCfg,
			live:     `,"webhooks":[{"name":"a.b.c",` + filledIn + `,"reinvocationPolicy":"Never","clientConfig":{"url":"https://x","caBundle":"Y2E="}}]`,
			manifest: `,"webhooks":[{"name":"a.b.c",` + given + `,"clientConfig":{"url":"https://x"}}]`,
			action:   Unchanged, show: []string{"kind"}, want: `{"kind":"MutatingWebhookConfiguration"}`,
		},
		"an injected bundle outlives a change": {
			kind:     validatingCfg,
			live:     `,"webhooks":[{"name":"gone","clientConfig":{"url":"https://g","caBundle":"Z29uZQ=="}},{"name":"a.b.c","clientConfig":{"url":"https://x","caBundle":"Y2E="}}]`,
			manifest: `,"webhooks":[{"name":"a.b.c","clientConfig":{"url":"https://y"}},{"name":"new","clientConfig":{"url":"https://n"}}]`,
			action:   Update, show: []string{"webhooks"},
			want: `{"webhooks":[{"clientConfig":{"caBundle":"Y2E=","url":"https://y"},"failurePolicy":"Fail","matchPolicy":"Equivalent","name":"a.b.c","namespaceSelector":{},"objectSelector":{},"timeoutSeconds":10},` +
				`{"clientConfig":{"url":"https://n"},"failurePolicy":"Fail","matchPolicy":"Equivalent","name":"new","namespaceSelector":{},"objectSelector":{},"timeoutSeconds":10}]}`,
		},
		"the manifest's own bundle counts": {
			kind:     validatingCfg,
			live:     `,"webhooks":[{"name":"a.b.c",` + filledIn + `,"clientConfig":{"url":"https://x","caBundle":"Y2E="}}]`,
			manifest: `,"webhooks":[{"name":"a.b.c",` + filledIn + `,"clientConfig":{"url":"https://x","caBundle":"b3du"}}]`,
			action:   Update, show: []string{"webhooks"},
			want: `{"webhooks":[{"admissionReviewVersions":["v1"],"clientConfig":{"caBundle":"b3du","url":"https://x"},"failurePolicy":"Fail","matchPolicy":"Equivalent","name":"a.b.c","namespaceSelector":{},"objectSelector":{},"sideEffects":"None","timeoutSeconds":10}]}`,
		},
	} {
		t.Run(name, c.check)
	}
}

func TestApplier_RulesOfStorage(t *testing.T) {
	for name, c := range map[string]ruleCase{
		"storage class: what the server fills in is no difference": {
			kind: storageClass, live: `,"provisioner":"p","reclaimPolicy":"Delete","volumeBindingMode":"Immediate"`, manifest: `,"provisioner":"p","parameters":{}`,
			action: Unchanged, show: []string{"provisioner"}, want: `{"provisioner":"p"}`,
		},
		"storage class: expansion can be changed": {
			kind: storageClass, live: `,"provisioner":"p","mountOptions":["ro"]`, manifest: `,"provisioner":"p","allowVolumeExpansion":true`,
			action: Update, show: []string{"provisioner", "allowVolumeExpansion", "mountOptions", "reclaimPolicy"}, want: `{"allowVolumeExpansion":true,"provisioner":"p","reclaimPolicy":"Delete"}`,
		},
		"storage class: other parameters are another class": {
			kind: storageClass, live: `,"provisioner":"p","parameters":{"a":"1"}`, manifest: `,"provisioner":"p","parameters":{"a":"2"}`,
			action: Recreate, show: []string{"parameters"}, want: `{"parameters":{"a":"2"}}`,
		},
		"storage class: another reclaim policy is another class": {
			kind: storageClass, live: `,"provisioner":"p","reclaimPolicy":"Retain"`, manifest: `,"provisioner":"p"`,
			action: Recreate, show: []string{"reclaimPolicy"}, want: `{"reclaimPolicy":"Delete"}`,
		},
		"CSI driver: another spec is another driver": {
			kind: csiDriver, live: `,"spec":{"attachRequired":true}`, manifest: `,"spec":{"attachRequired":false}`,
			action: Recreate, show: []string{"spec"},
			want: `{"spec":{"attachRequired":false,"fsGroupPolicy":"ReadWriteOnceWithFSType","podInfoOnMount":false,"requiresRepublish":false,"seLinuxMount":false,"storageCapacity":false,"volumeLifecycleModes":["Persistent"]}}`,
		},
		"CSI driver: the same spec needs only the hash": {
			kind: csiDriver, live: `,"spec":{"attachRequired":true}`, manifest: `,"spec":{}`,
			action: Update, show: []string{"kind"}, want: `{"kind":"CSIDriver"}`,
		},
		"CSI driver: ephemeral volumes need no label": {
			kind: csiDriver, live: `,"spec":{"volumeLifecycleModes":["Persistent"]}`, manifest: `,"spec":{"volumeLifecycleModes":["Ephemeral"]}`,
			action: Recreate, show: []string{"kind"}, want: `{"kind":"CSIDriver"}`,
		},
		"snapshot class: three fields, no metadata": {
			kind: snapshotClass, live: `,"driver":"d","deletionPolicy":"Delete","parameters":{"a":"1"},"other":"kept"`,
			manifest: `,"driver":"e","deletionPolicy":"Retain","other":"ignored"`,
			action:   Update, show: []string{"driver", "deletionPolicy", "parameters", "other"}, want: `{"deletionPolicy":"Retain","driver":"e","other":"kept"}`,
		},
		"migration: replaced like everything else": {
			kind: migration, live: `,"spec":{"resource":{"group":"a"}}`, manifest: `,"spec":{"resource":{"group":"b"}}`,
			action: Update, show: []string{"spec"}, want: `{"spec":{"resource":{"group":"b"}}}`,
		},
	} {
		t.Run(name, c.check)
	}
}

func TestApplier_RulesOfDefinitionsAndMonitoring(t *testing.T) {
	const versions = `"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"n":{"type":"integer","default":3,"minimum":1}}}}}]`
	for name, c := range map[string]ruleCase{
		"definition: defaults of the server and empty fields are no difference": {
			kind:     definition,
			live:     `,"spec":{"group":"example.com","scope":"Namespaced","names":{"kind":"Knot","plural":"knots","singular":"knot","listKind":"KnotList"},"conversion":{"strategy":"None"},` + versions + `}`,
			manifest: `,"spec":{"group":"example.com","scope":"Namespaced","preserveUnknownFields":false,"names":{"kind":"Knot","plural":"knots","shortNames":[]},` + versions + `}`,
			action:   Unchanged, show: []string{"kind"}, want: `{"kind":"CustomResourceDefinition"}`,
		},
		"definition: port of a conversion webhook": {
			kind:     definition,
			live:     `,"spec":{"group":"example.com","scope":"Cluster","names":{"kind":"Knot","plural":"knots"},"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"service":{"name":"s","namespace":"n","port":443}}}},` + versions + `}`,
			manifest: `,"spec":{"group":"example.com","scope":"Cluster","names":{"kind":"Knot","plural":"knots"},"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"service":{"name":"s","namespace":"n"}}}},` + versions + `}`,
			action:   Unchanged, show: []string{"kind"}, want: `{"kind":"CustomResourceDefinition"}`,
		},
		"definition: the spec is replaced": {
			kind:     definition,
			live:     `,"spec":{"group":"example.com","scope":"Cluster","names":{"kind":"Knot","plural":"knots"},` + versions + `}`,
			manifest: `,"spec":{"group":"example.com","scope":"Cluster","names":{"kind":"Knot","plural":"knots","shortNames":["kn"]},"versions":[{"name":"v1","served":true,"storage":true}]}`,
			action:   Update, show: []string{"spec"},
			want: `{"spec":{"conversion":{"strategy":"None"},"group":"example.com","names":{"kind":"Knot","listKind":"KnotList","plural":"knots","shortNames":["kn"],"singular":"knot"},"scope":"Cluster","versions":[{"name":"v1","served":true,"storage":true}]}}`,
		},
		"monitor: the spec is replaced, the rest stays": {
			kind: monitor, live: `,"spec":{"selector":{},"endpoints":[]},"extra":"kept"`, manifest: `,"spec":{"selector":{"matchLabels":{"a":"b"}}}`,
			action: Update, show: []string{"spec", "extra"}, want: `{"extra":"kept","spec":{"selector":{"matchLabels":{"a":"b"}}}}`,
		},
		"monitor: no selector and an empty one are not the same": {
			kind: monitor, live: `,"spec":{"selector":{}}`, manifest: `,"spec":{}`,
			action: Update, show: []string{"spec"}, want: `{"spec":{}}`,
		},
	} {
		t.Run(name, c.check)
	}
}

func TestApplier_DefaultStorageClassIsTheClustersDecision(t *testing.T) {
	const key = "storageclass.kubernetes.io/is-default-class"
	for name, meta := range map[string]string{
		"another value": `,"annotations":{"` + key + `":"true"}`, "a removal": `,"annotations":{"` + key + `-":""}`, "nothing": ``,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.f.Put(object(t, `{`+storageClass+`,"metadata":{"name":"a","labels":{"theirs":"1"},"annotations":{"`+key+`":"false"}`+ownedByWork+`},"provisioner":"p"}`))
			same := `{` + storageClass + `,"metadata":{"name":"a"` + meta + `},"provisioner":"p"}`
			b.quiet("an unchanged class", same, KnownState{})
			o := b.must(Recreate, b.apply(strings.Replace(same, `"provisioner":"p"`, `"provisioner":"q"`, 1)))
			if o.GetAnnotations()[key] != "false" || o.GetLabels()["theirs"] != "1" || len(o.GetOwnerReferences()) != 1 {
				t.Errorf("created again, the class has lost fields: %v", o.Object["metadata"])
			}
		})
	}
}

func TestApplier_CSIDriverKeepsFieldsOfOthers(t *testing.T) {
	b := newBench(t)
	manifest := `{` + csiDriver + `,"metadata":{"name":"a"},"spec":{"attachRequired":false}}`
	r := b.apply(manifest)
	o := b.must(Create, r)
	// SHA-256 of {"attachRequired":false}
	if got, want := o.GetAnnotations()["operator.openshift.io/spec-hash"], "55a4a74e715dbce672e15e3d6c17e46df5f93c496f669a1d6ffd90a60ee03ba7"; got != want {
		t.Errorf("got hash %q, want %q", got, want)
	}
	b.f.Edit(r.Ref, func(o *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(o.Object, true, "spec", "podInfoOnMount")
	})
	b.quiet("the spec changed by others", manifest, KnownState{})
	if o := b.must(Recreate, b.apply(strings.Replace(manifest, "false", "true", 1))); o.GetUID() == r.UID() {
		t.Error("another spec did not lead to another object")
	}
}

func TestApplier_SnapshotClassIsNotClaimed(t *testing.T) {
	b := newBench(t)
	define(b.f)
	live := b.f.Put(object(t, `{`+snapshotClass+`,"metadata":{"name":"a","labels":{"x":"theirs"}},"driver":"d","deletionPolicy":"Delete"}`))
	manifest := `{` + snapshotClass + `,"metadata":{"name":"a","labels":{"x":"ours"},"annotations":{"y":"z"}},"driver":"d","deletionPolicy":"Delete"}`
	if o := b.f.Look(b.quiet("an equal class", manifest, KnownState{}).Ref); o.GetResourceVersion() != live.GetResourceVersion() {
		t.Errorf("changed: %v", o.Object["metadata"])
	}
	b.f.Remove(b.load(manifest).Ref)
	if o := b.must(Create, b.apply(manifest)); len(o.GetOwnerReferences()) != 1 || o.GetLabels()["x"] != "ours" {
		t.Errorf("made without label or owner: %v", o.Object["metadata"])
	}
	b.orphan()
	if o := b.must(Update, b.apply(manifest)); len(o.GetOwnerReferences()) != 0 {
		t.Errorf("not let go: %v", o.Object["metadata"])
	}
}
