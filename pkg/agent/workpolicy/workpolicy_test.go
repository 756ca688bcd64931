package workpolicy_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/workpolicy"
)

func id(text string) workv1.ResourceIdentifier {
	p := strings.Split(text, "/")
	return workv1.ResourceIdentifier{Group: p[0], Resource: p[1], Namespace: p[2], Name: p[3]}
}

func TestGuard_KnowsAgentsByTheirNames(t *testing.T) {
	g := &workpolicy.Guard{Agent: workpolicy.Agent{Namespace: "hawser", Account: types.NamespacedName{Namespace: "hawser", Name: "prefixed-agent"}}}
	for object, want := range map[string]bool{
		"coordination.k8s.io/leases/hawser/hawser-agent-0123456789abcdef": true,
		"/serviceaccounts/hawser/hawser-agent":                            true,
		"/serviceaccounts/hawser/prefixed-agent":                          true,
		"/serviceaccounts/other/prefixed-agent":                           false,
		"/secrets/hawser/prefixed-agent":                                  false,
		"/secrets/anywhere/hawser-agent":                                  true,
		"/configmaps/anywhere/hawser-agent-identities":                    true,
		"/configmaps/hawser/other":                                        false,
		"/configmaps/hawser/hawser-agents":                                false,
		"/namespaces//hawser":                                             true,
		"project.openshift.io/projects//hawser":                           true,
		"/namespaces//hawser2":                                            false,
		"example.com/namespaces//hawser":                                  false,
		"rbac.authorization.k8s.io/clusterroles//hawser-agent-execution":  true,
		"authorization.openshift.io/rolebindings/hawser/hawser-agent":     true,
		"apps/deployments/hawser/hawser-broker":                           false,
		"apiextensions.k8s.io/customresourcedefinitions//appliedmanifestworks.work.open-cluster-management.io": true,
		"apiextensions.k8s.io/customresourcedefinitions//manifestworks.work.open-cluster-management.io":        false,
		"apiregistration.k8s.io/apiservices//v1.":                                                              true,
		"apiregistration.k8s.io/apiservices//v1.coordination.k8s.io":                                           true,
		"apiregistration.k8s.io/apiservices//v1.work.open-cluster-management.io":                               true,
		"apiregistration.k8s.io/apiservices//v1beta1.metrics.k8s.io":                                           false,
		"work.open-cluster-management.io/appliedmanifestworks//any":                                            true,
		"work.open-cluster-management.io/manifestworks/cluster1/any":                                           false,
	} {
		err := g.Manifest(id(object), nil)
		if refused := workpolicy.Refused(err); (refused != nil) != want || refused != nil && !refused.IsAgentObject() {
			t.Errorf("%s: got %v", object, err)
		}
		// No rule can allow the object.
		open := &workpolicy.Guard{Agent: g.Agent, Hub: "hub1"}
		open.Follow(workpolicy.Rules{Allow: []workpolicy.Rule{{Resources: []string{"*"}}}})
		if err := open.Manifest(id(object), nil); (err != nil) != want {
			t.Errorf("%s where everything is allowed: got %v", object, err)
		}
	}
	var noSubscriber *workpolicy.Guard
	if err := errors.Join(noSubscriber.Manifest(id("/secrets/a/hawser-agent"), nil), noSubscriber.Object(t.Context(), id("/namespaces//a"), nil)); err != nil {
		t.Errorf("no guard: %v", err)
	}
}

// objects answers each read with err, or with an empty object.
type objects struct {
	err       error
	requested []string
}

func (o *objects) Get(_ context.Context, ref kubeclient.Ref) (*unstructured.Unstructured, error) {
	o.requested = append(o.requested, ref.String())
	return &unstructured.Unstructured{}, o.err
}

func TestGuard_RecognizesAgentsByTheirObjects(t *testing.T) {
	simple := &unstructured.Unstructured{Object: map[string]any{}}
	labelled := simple.DeepCopy()
	labelled.SetLabels(map[string]string{workpolicy.Label: ""})
	former := simple.DeepCopy()
	former.SetLabels(map[string]string{"hawser.io/agent": "true"})
	maps := schema.GroupResource{Resource: "configmaps"}
	for name, c := range map[string]struct {
		object  string
		live    *unstructured.Unstructured
		err     error // of reading the ConfigMap of agents
		refused bool
		want    string
	}{
		"simple":                     {"apps/deployments/a/b", simple, nil, false, ""},
		"labelled":                   {"apps/deployments/a/b", labelled, nil, true, "agents on this cluster need"},
		"labelled by a former agent": {"apps/deployments/a/b", former, nil, true, "agents on this cluster need"},
		"a namespace with an agent":  {"/namespaces//a", simple, nil, true, "agents on this cluster need"},
		"OpenShift's name for it":    {"project.openshift.io/projects//a", simple, nil, true, "agents on this cluster need"},
		"one without":                {"/namespaces//a", simple, apierrors.NewNotFound(maps, "x"), false, ""},
		"one that may not be read":   {"/namespaces//a", simple, apierrors.NewForbidden(maps, "x", errors.New("no")), false, ""},
		"no answer":                  {"/namespaces//a", simple, apierrors.NewServiceUnavailable("away"), false, "check whether an agent runs in the namespace: away"},
	} {
		there := &objects{err: c.err}
		err := (&workpolicy.Guard{Objects: there}).Object(t.Context(), id(c.object), c.live)
		if (workpolicy.Refused(err) != nil) != c.refused || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", name, err)
		}
		for _, requested := range there.requested {
			if requested != "configmaps a/hawser-agent-identities" {
				t.Errorf("%s: the review is for %s", name, requested)
			}
		}
	}
}

const policy = `
hubs:
  hub1:
    allow:
    - apiGroups: ["", apps]
      namespaces: ["shop-*"]
    - resources: [clusterroles]
      namespaces: [""]
    deny:
    - resources: [secrets]
  hub2: {}
  "*":
    deny:
    - namespaces: [kube-*, default]
`

func TestPolicy_DescribesAllowedObjects(t *testing.T) {
	p, err := workpolicy.ParsePolicy([]byte(policy))
	if err != nil {
		t.Fatal(err)
	}
	for hub, objects := range map[string]map[string]bool{
		"hub1": {
			"apps/deployments/shop-a/b": true, "/configmaps/shop-/b": true, "/configmaps/shop/b": false, "batch/jobs/shop-a/b": false,
			"/secrets/shop-a/b": false, "/namespaces//shop-a": true, "/namespaces//other": false,
			"rbac.authorization.k8s.io/clusterroles//x": true, "rbac.authorization.k8s.io/roles/shop-a/x": false,
		},
		"hub2": {"/secrets/kube-system/b": true},
		"hub3": {"/configmaps/kube-system/b": false, "/namespaces//kube-public": false, "/configmaps/default/b": false, "/configmaps/a/b": true, "/nodes//a": true},
	} {
		rules, err := p.For(hub)
		if err != nil {
			t.Fatal(err)
		}
		g := &workpolicy.Guard{Hub: hub}
		g.Follow(rules)
		for object, want := range objects {
			err := g.Manifest(id(object), nil)
			if (err == nil) != want || err != nil && (workpolicy.Refused(err).IsAgentObject() || !strings.Contains(err.Error(), `hub "`+hub+`"`)) {
				t.Errorf("%s, %s: got %v", hub, object, err)
			}
		}
	}
	if _, err := (workpolicy.Policy{Hubs: map[string]workpolicy.Rules{"hub1": {}}}).For("hub2"); err == nil || !strings.Contains(err.Error(), `no rules for hub "hub2"`) {
		t.Errorf("a hub that is not named: %v", err)
	}
}

func TestParsePolicy_ErrorNamesField(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "the file has no value",
		"hub: {}":                             "line 1: hub: unknown field; the known ones are hubs",
		"hubs:\n  a:\n":                       "hubs.a has no value",
		"hubs: {a: {allow: []}}":              "hubs.a.allow is an empty list",
		"hubs: {a: {allow: }}":                "hubs.a.allow has no value",
		"hubs: {a: {}, a: {}}":                `already set`,
		"hubs: {a: {allow: [{}]}}":            "hubs.a.allow[0]: it names nothing",
		"hubs: {a: {deny: [{kinds: [Pod]}]}}": "kinds: unknown field; the known ones are apiGroups, namespaces, resources",
		"hubs: {a: {deny: [{resources: [Pod]}]}}":              `hubs.a.deny[0]: "Pod" is no resource`,
		"hubs: {a: {deny: [{resources: [deployments.apps]}]}}": `"deployments.apps" is no resource`,
		"hubs: {a: {deny: [{apiGroups: [apps/v1]}]}}":          `"apps/v1" is no API group`,
		"hubs: {a: {deny: [{namespaces: [A]}]}}":               `"A" is no namespace`,
		"hubs: {a: {deny: [{resources: []}]}}":                 "hubs.a.deny[0].resources is an empty list",
	} {
		if _, err := workpolicy.ParsePolicy([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// Any file is parsed or rejected, and a parsed policy has the same meaning after it is encoded again.
func FuzzParsePolicy(f *testing.F) {
	f.Add([]byte(policy), "", "secrets", "shop-a", "b")
	f.Add([]byte("hubs: {hub1: {allow: [{namespaces: ['a*b*c']}]}}"), "apps", "deployments", "axbxc", "n")
	f.Fuzz(func(t *testing.T, text []byte, group, resource, namespace, name string) {
		p, err := workpolicy.ParsePolicy(text)
		if err != nil {
			return
		}
		object := workv1.ResourceIdentifier{Group: group, Resource: resource, Namespace: namespace, Name: name}
		for hub := range p.Hubs {
			rules, err := p.For(hub)
			if err != nil {
				t.Fatal(err)
			}
			g, own := &workpolicy.Guard{Hub: hub}, &workpolicy.Guard{Hub: hub}
			g.Follow(rules)
			if own.Manifest(object, nil) != nil && g.Manifest(object, nil) == nil {
				t.Fatalf("%+v allows %v", rules, object)
			}
			if d := cmp.Diff(rules, p.Hubs[hub]); d != "" {
				t.Fatal(d)
			}
		}
	})
}
