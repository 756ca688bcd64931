package install

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/deploy"
)

var images = Images{Registry: "registry.example.com/hawser", Version: "dev"}

// The package can render every base; test/e2e compares the result with that of kustomize.
func TestRender_BasesOfDeploy(t *testing.T) {
	for base, program := range map[string]string{"broker": "hawser-broker", "broker-registration": "hawser-broker", "hub-source": "hawser-hub-source", "hub-source-registration": "hawser-hub-source", "agent": "hawser-agent", "agent-registration": "hawser-agent", "hub-source-policy": ""} {
		objects, err := render(deploy.Files, []string{base}, images)
		if err != nil {
			t.Fatal(err)
		}
		found := program == ""
		for _, o := range objects {
			if o.GetLabels()["app.kubernetes.io/part-of"] != "hawser" {
				t.Errorf("%s: %s %s has labels %v", base, o.GetKind(), o.GetName(), o.GetLabels())
			}
			if o.GetNamespace() == "" != ofTheCluster(o.GetKind()) {
				t.Errorf("%s: %s %s is in namespace %q", base, o.GetKind(), o.GetName(), o.GetNamespace())
			}
			if o.GetKind() == "Deployment" && o.GetName() == program {
				found = true
				containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
				if err != nil || len(containers) != 1 || containers[0].(map[string]any)["image"] != "registry.example.com/hawser/"+program+":dev" {
					t.Errorf("%s: containers %v, %v", base, containers, err)
				}
			}
		}
		if !found {
			t.Errorf("%s has no Deployment %s", base, program)
		}
	}
}

// Fields that only kustomize supports are an error, and are not ignored.
func TestRender_UnknownFieldsAreErrors(t *testing.T) {
	files := fstest.MapFS{"base/kustomization.yaml": {Data: []byte("resources: []\nnamePrefix: a-\n")}}
	if o, err := render(files, []string{"base"}, images); err == nil {
		t.Errorf("rendered %v", o)
	}
}

// TestRender_Overlay: an overlay replaces files and fields of a base, and the pods use them.
func TestRender_Overlay(t *testing.T) {
	files := fstest.MapFS{
		"base/kustomization.yaml": {Data: []byte("namespace: hawser\nresources: [d.yaml]\nconfigMapGenerator: [{name: c, files: [config.yaml]}]\n")},
		"base/config.yaml":        {Data: []byte("a: 1\n")},
		"base/d.yaml": {Data: []byte(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {template: {spec: {
			containers: [{name: x, image: i, args: [a, b]}], volumes: [{name: v, configMap: {name: c}}]}}}}`)},
		"over/kustomization.yaml": {Data: []byte("resources: [../base]\npatches: [{path: p.yaml}]\nconfigMapGenerator: [{name: c, behavior: replace, files: [config.yaml]}]\n")},
		"over/config.yaml":        {Data: []byte("a: 2\n")},
		"over/p.yaml": {Data: []byte(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {template: {spec: {
			containers: [{name: x, args: [z]}], volumes: [{name: w, emptyDir: {}}]}}}}`)},
		"wrong/kustomization.yaml": {Data: []byte("resources: [../base]\nconfigMapGenerator: [{name: c, files: [config.yaml]}]\n")},
		"wrong/config.yaml":        {Data: []byte("a: 2\n")},
		"none/kustomization.yaml":  {Data: []byte("resources: [../base]\npatches: [{path: p.yaml}]\n")},
		"none/p.yaml":              {Data: []byte(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: other}}`)},
	}
	base, err := render(files, []string{"base"}, images)
	if err != nil {
		t.Fatal(err)
	}
	over, err := render(files, []string{"over"}, images)
	if err != nil {
		t.Fatal(err)
	}
	if len(base) != 2 || len(over) != 2 {
		t.Fatalf("%d and %d objects", len(base), len(over))
	}
	if over[1].GetName() == base[1].GetName() || over[1].GetNamespace() != "hawser" || over[1].Object["data"].(map[string]any)["config.yaml"] != "a: 2\n" {
		t.Errorf("the ConfigMap is %v, that of the base %s", over[1], base[1].GetName())
	}
	text, err := over[0].MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"args":["z"]`, `"image":"i"`, `"emptyDir":{}`, `"name":"` + over[1].GetName() + `"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the Deployment lacks %s: %s", want, text)
		}
	}
	for _, refused := range []string{"wrong", "none"} {
		if o, err := render(files, []string{refused}, images); err == nil {
			t.Errorf("%s: rendered %v", refused, o)
		}
	}
}

// TestRender_Component: a component adds objects, changes those of the base, and removes some.
func TestRender_Component(t *testing.T) {
	files := fstest.MapFS{
		"base/kustomization.yaml": {Data: []byte("namespace: hawser\nresources: [d.yaml, c.yaml]\n")},
		"base/c.yaml":             {Data: []byte("{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: c}}")},
		"base/d.yaml": {Data: []byte(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {template: {spec: {
			containers: [{name: x, image: i}], volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]}}}}`)},
		"more/kustomization.yaml": {Data: []byte("kind: Component\nnamespace: hawser\nlabels: [{pairs: {a: b}}]\nresources: [s.yaml]\npatches: [{path: d.yaml}, {path: c.yaml}]\n")},
		"more/s.yaml":             {Data: []byte("{apiVersion: v1, kind: Secret, metadata: {name: s}}")},
		"more/c.yaml":             {Data: []byte("{$patch: delete, apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: c}}")},
		"more/d.yaml":             {Data: []byte("{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {template: {spec: {volumes: [{name: v, persistentVolumeClaim: null, emptyDir: {}}]}}}}")},
		"over/kustomization.yaml": {Data: []byte("resources: [../base]\ncomponents: [../more]\n")},
	}
	for _, layers := range [][]string{{"base", "more"}, {"over"}} {
		objects, err := render(files, layers, images)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, o := range objects {
			text, err := o.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, strings.TrimSpace(string(text)))
		}
		want := []string{
			`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"labels":{"a":"b"},"name":"d","namespace":"hawser"},"spec":{"template":{"spec":{"containers":[{"image":"i","name":"x"}],"volumes":[{"emptyDir":{},"name":"v"}]}}}}`,
			`{"apiVersion":"v1","kind":"Secret","metadata":{"labels":{"a":"b"},"name":"s","namespace":"hawser"}}`,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", layers, diff)
		}
	}
}
