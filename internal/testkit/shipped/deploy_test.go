package shipped

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const root = "../../.."

// bases are the Deployments of deploy/.
var bases = []string{"broker", "hub-source", "agent"}

// read reads one manifest of deploy/, unknown fields being errors.
func read(t *testing.T, into any, path ...string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(append([]string{root, "deploy"}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		t.Fatalf("%s: %v", strings.Join(path, "/"), err)
	}
}

func container(t *testing.T, base string) corev1.Container {
	t.Helper()
	return Deployment(t, root, base).Spec.Template.Spec.Containers[0]
}

// kustomization has the fields that deploy/ uses of one.
type kustomization struct {
	metav1.TypeMeta `json:",inline"`
	Namespace       string
	Labels          []struct{ Pairs map[string]string }
	Resources       []string
	Components      []string
	Images          []struct{ Name, NewName, NewTag string }
	// ConfigMapGenerator makes ConfigMaps of files.
	ConfigMapGenerator []struct {
		Name  string
		Files []string
	}
}

// One file names the images of all programs: one registry, one version.
func TestImages_AreNamedInOnePlace(t *testing.T) {
	var images kustomization
	read(t, &images, "images", "kustomization.yaml")
	registries, tags := map[string]bool{}, map[string]bool{}
	var names []string
	for _, i := range images.Images {
		names = append(names, i.Name)
		registry, found := strings.CutSuffix(i.NewName, "/"+i.Name)
		if !found {
			t.Errorf("%s is pulled as %s: `make push` pushes it under its own name", i.Name, i.NewName)
		}
		registries[registry], tags[i.NewTag] = true, true
	}
	if len(registries) != 1 || len(tags) != 1 {
		t.Errorf("images come from %v, versions %v: want one of each", registries, tags)
	}
	for _, base := range bases {
		if c := container(t, base); c.Image != "hawser-"+base || !slices.Contains(names, c.Image) || len(c.Command) > 0 {
			t.Errorf("deploy/%s runs %v of image %s: want the entry point of hawser-%[1]s, which deploy/images names", base, c.Command, c.Image)
		}
		var k kustomization
		read(t, &k, base, "kustomization.yaml")
		if !slices.Equal(k.Components, []string{"../images"}) {
			t.Errorf("deploy/%s has components %v, want ../images", base, k.Components)
		}
	}
}

// Every file of a base is in its kustomization.yaml, or is known to be for somebody
// who mounts it.
func TestBases_LeaveNothingOut(t *testing.T) {
	mounted := []string{"agent/config.yaml", "agent/policy.yaml"}
	for _, base := range bases {
		var k kustomization
		read(t, &k, base, "kustomization.yaml")
		named := append(slices.Clone(k.Resources), "kustomization.yaml")
		for _, g := range k.ConfigMapGenerator {
			named = append(named, g.Files...)
		}
		entries, err := os.ReadDir(filepath.Join(root, "deploy", base))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !slices.Contains(named, e.Name()) && !slices.Contains(mounted, base+"/"+e.Name()) {
				t.Errorf("deploy/%s/%s is in no list of its kustomization.yaml", base, e.Name())
			}
		}
	}
}
