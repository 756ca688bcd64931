package manifestwork

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/childproc"
)

// TestExamples: every file in docs/examples is applied unchanged and has its effect. All its works become
// Applied and Available, or complete.
func TestExamples(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(shared.Root, "docs", "examples", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			for _, w := range worksOf(t, file) {
				if w.Namespace != cluster {
					t.Fatalf("%s is for %q: examples are for %s", w.Name, w.Namespace, cluster)
				}
			}
			kubectl(t, "apply", "-f", file)
			t.Cleanup(func() { kubectl(t, "delete", "--ignore-not-found", "--wait=false", "-f", file) })
			for _, w := range worksOf(t, file) {
				shared.ConditionsAre(t, w, map[string]metav1.ConditionStatus{workv1.WorkApplied: metav1.ConditionTrue, workv1.WorkAvailable: metav1.ConditionTrue})
			}
		})
	}
}

// worksOf reads the ManifestWorks of a file.
func worksOf(t *testing.T, file string) []*workv1.ManifestWork {
	t.Helper()
	r, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }() // the file was only read
	var works []*workv1.ManifestWork
	d := utilyaml.NewYAMLOrJSONDecoder(r, 4096)
	for {
		w := &workv1.ManifestWork{}
		err := d.Decode(w)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if w.Kind == "ManifestWork" {
			w.Generation = 1
			works = append(works, w)
		}
	}
	if len(works) == 0 {
		t.Fatalf("%s has no ManifestWork", file)
	}
	return works
}

// kubectl runs kubectl on the hub.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := childproc.Run(context.WithoutCancel(t.Context()), shared.Kubectl(), append([]string{"--kubeconfig", shared.Hub.KubeconfigPath}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
