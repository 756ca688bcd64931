package install

import (
	"testing"
	"testing/fstest"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/deploy"
)

var images = Images{Registry: "registry.example.com/hawser", Version: "dev"}

// Every base is rendered; test/e2e compares all of it with what kustomize renders.
func TestRender_BasesOfDeploy(t *testing.T) {
	for base, program := range map[string]string{"broker": "hawser-broker", "hub-source": "hawser-hub-source", "agent": "hawser-agent"} {
		objects, err := render(deploy.Files, base, images)
		if err != nil {
			t.Fatal(err)
		}
		found := false
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

// What kustomize would do and this package does not is refused, not left out.
func TestRender_UnknownFieldsAreErrors(t *testing.T) {
	files := fstest.MapFS{"base/kustomization.yaml": {Data: []byte("resources: []\nnamePrefix: a-\n")}}
	if o, err := render(files, "base", images); err == nil {
		t.Errorf("rendered %v", o)
	}
}
