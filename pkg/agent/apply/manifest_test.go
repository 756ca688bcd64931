package apply

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

// work is a spec with these manifests.
func work(manifests ...string) workv1.ManifestWorkSpec {
	var s workv1.ManifestWorkSpec
	for _, m := range manifests {
		s.Workload.Manifests = append(s.Workload.Manifests, workv1.Manifest{RawExtension: runtime.RawExtension{Raw: []byte(m)}})
	}
	return s
}

func meta(ordinal int32, group, version, kind, resource, namespace, name string) workv1.ManifestResourceMeta {
	return workv1.ManifestResourceMeta{Ordinal: ordinal, Group: group, Version: version, Kind: kind, Resource: resource, Namespace: namespace, Name: name}
}

func TestLoad_IdentityAndProblems(t *testing.T) {
	type result struct {
		Meta      workv1.ManifestResourceMeta
		Resolved  bool
		Err       string
		Permanent bool
	}
	for name, c := range map[string]struct {
		manifest string
		want     result
	}{
		"namespaced": {
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default"}}`,
			result{Meta: meta(0, "", "v1", "ConfigMap", "configmaps", "default", "a"), Resolved: true},
		},
		"of the cluster, with a namespace all the same": {
			`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"a","namespace":"default"}}`,
			result{Meta: meta(0, "rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", "", "a"), Resolved: true},
		},
		"unknown kind": {
			`{"apiVersion":"example.com/v1","kind":"Rope","metadata":{"name":"a","namespace":"default"}}`,
			result{Meta: meta(0, "example.com", "v1", "Rope", "", "default", "a"), Err: `the server doesn't have a resource type "Rope" in example.com/v1; deliver its CustomResourceDefinition with a work, or correct apiVersion and kind`},
		},
		"not JSON": {
			`{"apiVersion":`, result{Err: `unexpected end of JSON input`, Permanent: true},
		},
		"no kind": {
			`{"apiVersion":"v1","metadata":{"name":"a"}}`, result{Err: `Object 'Kind' is missing in '{"apiVersion":"v1","metadata":{"name":"a"}}'`, Permanent: true},
		},
		"no name": {
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"default","generateName":"x-"}}`,
			result{Meta: meta(0, "", "v1", "ConfigMap", "configmaps", "default", ""), Err: "name is required: set metadata.name in the manifest", Permanent: true},
		},
		"no namespace": {
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`,
			result{
				Meta:      meta(0, "", "v1", "ConfigMap", "configmaps", "", "a"),
				Err:       "an empty namespace may not be set when a resource name is provided: set metadata.namespace in the manifest",
				Permanent: true,
			},
		},
		"name that would leave its path": {
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"..","namespace":"default"}}`,
			result{Meta: meta(0, "", "v1", "ConfigMap", "configmaps", "default", ".."), Err: `".." cannot be a name or namespace: it may not be '..'`, Permanent: true},
		},
		"group that would leave its path": {
			`{"apiVersion":"../v1","kind":"ConfigMap","metadata":{"name":"a"}}`,
			result{Meta: meta(0, "..", "v1", "ConfigMap", "", "", "a"), Err: `apiVersion "../v1" is not <group>/<version>`, Permanent: true},
		},
		"labels that are not text": {
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default","labels":{"n":1}}}`,
			result{
				Meta:      meta(0, "", "v1", "ConfigMap", "", "default", "a"),
				Err:       "metadata.labels must map text to text: .metadata.labels accessor error: contains non-string value in the map under key \"n\": 1 is of the type int64, expected string",
				Permanent: true,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := Load(t.Context(), clustertest.New(), work(c.manifest))[0]
			got := result{Meta: m.Meta, Resolved: m.Resolved, Permanent: Permanent(m.Err)}
			if m.Err != nil {
				got.Err = m.Err.Error()
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Fatalf("(-want +got)\n%s", d)
			}
		})
	}
}

const simpleConfigMap = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default"}}`

func TestLoad_OptionsWithoutSupportAreRefusedNotIgnored(t *testing.T) {
	config := func(name string, s workv1.UpdateStrategyType) workv1.ManifestConfigOption {
		c := workv1.ManifestConfigOption{ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "default", Name: name}}
		if s != "" {
			c.UpdateStrategy = &workv1.UpdateStrategy{Type: s}
		}
		return c
	}
	for name, c := range map[string]struct {
		change func(*workv1.ManifestWorkSpec)
		want   string
	}{
		"executor": {
			func(s *workv1.ManifestWorkSpec) { s.Executor = &workv1.ManifestWorkExecutor{} },
			"only support ServiceAccount type for the executor",
		},
		"unknown delete option": {
			func(s *workv1.ManifestWorkSpec) {
				s.DeleteOption = &workv1.DeleteOption{PropagationPolicy: "orphan"}
			},
			`spec.deleteOption.propagationPolicy "orphan" is not known: use Foreground, Orphan or SelectivelyOrphan`,
		},
		"unknown strategy": {
			func(s *workv1.ManifestWorkSpec) {
				s.ManifestConfigs = []workv1.ManifestConfigOption{config("a", "Replace")}
			},
			`update strategy "Replace" is not known: the object is left as it is; use Update, CreateOnly, ReadOnly or ServerSideApply`,
		},
		"unknown strategy, by pattern": {
			func(s *workv1.ManifestWorkSpec) {
				s.ManifestConfigs = []workv1.ManifestConfigOption{config("*", "readonly")}
			},
			`update strategy "readonly" is not known: the object is left as it is; use Update, CreateOnly, ReadOnly or ServerSideApply`,
		},
		"the first match with a value is used": {
			func(s *workv1.ManifestWorkSpec) {
				s.ManifestConfigs = []workv1.ManifestConfigOption{config("b", "x"), config("a*", ""), config("*", "Update"), config("a", "x")}
			},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := work(simpleConfigMap)
			c.change(&s)
			m := Load(t.Context(), clustertest.New(), s)[0]
			switch {
			case c.want == "" && m.Err != nil, c.want != "" && (m.Err == nil || m.Err.Error() != c.want || !Permanent(m.Err)):
				t.Fatalf("got %v, want %q", m.Err, c.want)
			case !m.Resolved:
				t.Fatal("the object is identified nevertheless, so that its presence can be reported")
			}
		})
	}
}

func TestLoad_UsesFirstMatchingFeedbackRule(t *testing.T) {
	s := work(simpleConfigMap, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b","namespace":"default"}}`)
	s.ManifestConfigs = []workv1.ManifestConfigOption{{
		ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "def*", Name: "a"},
		FeedbackRules:      []workv1.FeedbackRule{{Type: workv1.WellKnownStatusType}},
	}}
	if m := Load(t.Context(), clustertest.New(), s); len(m[0].Config.Feedback) == 0 || len(m[1].Config.Feedback) > 0 {
		t.Fatalf("got %v and %v, want feedback for the first only", m[0].Config.Feedback, m[1].Config.Feedback)
	}
}

func TestIsOwned(t *testing.T) {
	id := workv1.ResourceIdentifier{Group: "apps", Resource: "deployments", Namespace: "default", Name: "a"}
	selective := func(rules ...workv1.ResourceIdentifier) *workv1.DeleteOption {
		o := &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeSelectivelyOrphan, SelectivelyOrphan: &workv1.SelectivelyOrphan{}}
		for _, r := range rules {
			o.SelectivelyOrphan.OrphaningRules = append(o.SelectivelyOrphan.OrphaningRules, workv1.OrphaningRule(r))
		}
		return o
	}
	other := id
	other.Name = "*"
	for name, c := range map[string]struct {
		o    *workv1.DeleteOption
		want bool
	}{
		"absent":                   {nil, true},
		"foreground":               {&workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeForeground}, true},
		"orphan":                   {&workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}, false},
		"selective, matched":       {selective(other, id), false},
		"selective, no wildcards":  {selective(other), true},
		"selective, without rules": {selective(), true},
		"selective, nothing at all": {
			&workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeSelectivelyOrphan}, true,
		},
	} {
		if got := IsOwned(c.o, id); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestWildcard(t *testing.T) {
	for _, c := range []struct {
		pattern, s string
		want       bool
	}{
		{"", "", true},
		{"", "a", false},
		{"a", "a", true},
		{"a", "ab", false},
		{"*", "", true},
		{"*", "anything", true},
		{"a*", "abc", true},
		{"a*", "ba", false},
		{"*c", "abc", true},
		{"a*c", "ac", true},
		{"a*c", "a", false},
		{"ab*ba", "aba", false},
		{"a*b*c", "a-b-b-c", true},
		{"a*b*c", "a-c-b", false},
		{"**", "x", true},
		{"a?c", "abc", false},
		{"[a]", "a", false},
	} {
		if got := kubeclient.Matches(c.pattern, c.s); got != c.want {
			t.Errorf("%q on %q: got %v, want %v", c.pattern, c.s, got, c.want)
		}
	}
}

func TestOrder(t *testing.T) {
	s := work(
		`{"apiVersion":"example.com/v1","kind":"Rope","metadata":{"name":"other"}}`,
		`not json`,
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"workload","namespace":"n"}}`,
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"service","namespace":"n"}}`,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"config","namespace":"n"}}`,
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"secret","namespace":"n"}}`,
		`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"account","namespace":"n"}}`,
		`{"apiVersion":"example.com/v1","kind":"Service","metadata":{"name":"custom-service","namespace":"n"}}`,
		`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"role","namespace":"n"}}`,
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"namespace"}}`,
		`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration","metadata":{"name":"webhook"}}`,
		`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"definition"}}`,
	)
	manifests := Load(t.Context(), clustertest.New(), s)
	var got []string
	for _, i := range Order(manifests) {
		got = append(got, manifests[i].Meta.Name)
	}
	want := []string{"namespace", "definition", "role", "account", "config", "secret", "service", "custom-service", "workload", "webhook", "other", ""}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("(-want +got)\n%s", d)
	}
}
