package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// TestRecreatedWhileAgentIsAway: the agent is stopped. A work loses its finalizer, so it leaves the hub, and it
// is created again under its name. The objects that are also in the new work stay. The other objects are
// deleted.
func TestRecreatedWhileAgentIsAway(t *testing.T) {
	f := &shared
	const name = "recreated"
	ns := f.NamespaceOn(t, cluster1)
	f.JoinAs(t, name)
	stop := f.RunAgent(t, cluster1, name, "--hub-identity="+name)
	w := f.Deliver(t, harness.NewWork(t, name, "web", harness.ConfigMapYAML(ns, "kept", "1"), harness.ConfigMapYAML(ns, "dropped", "1")))
	before, err := f.ConfigMap(t.Context(), cluster1, ns, "kept")
	if err != nil {
		t.Fatal(err)
	}
	keys := f.PKI()
	shows := func(what, want string) {
		t.Helper()
		harness.Eventually(t, func(ctx context.Context) error {
			out, err := childproc.Run(ctx, filepath.Join(f.Root, "bin", "hawser"), "get", what, "--broker", f.BrokerAddr(),
				"--ca", keys.CACert(), "--cert", keys.Cert(pki.Operator, "operator"), "--key", keys.Key(pki.Operator, "operator"))
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(out)) {
				if strings.HasPrefix(line, name+" ") && strings.Contains(line, want) {
					return nil
				}
			}
			return fmt.Errorf("no line of %s contains %q:\n%s", name, want, out)
		})
	}
	shows("clusters", "InSync") // the agent has the work on its disk
	stop()

	works := f.HubAPI.Work.WorkV1().ManifestWorks(name)
	patch, body := harness.MergePatch(map[string]any{"metadata": map[string]any{"finalizers": nil}})
	f.DeleteWork(t, name, w.Name)
	if _, err := works.Patch(t.Context(), w.Name, patch, body, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, func(ctx context.Context) error {
		_, err := f.Get(ctx, name, w.Name)
		return harness.Absent(err, "ManifestWork "+w.Name)
	})
	recreated := f.Create(t, harness.NewWork(t, name, "web", harness.ConfigMapYAML(ns, "kept", "2")))
	shows("works", "a new work of this name waits until this one is gone")

	f.RunAgent(t, cluster1, name, "--hub-identity="+name)
	f.Ready(t, recreated)
	f.HasValue(t, cluster1, ns, "kept", "2")
	f.NoConfigMap(t, cluster1, ns, "dropped")
	after, err := f.ConfigMap(t.Context(), cluster1, ns, "kept")
	if err != nil {
		t.Fatal(err)
	}
	if after.UID != before.UID {
		t.Errorf("the object is another one: uid %s, before %s", after.UID, before.UID)
	}

	// The new work can be deleted like any other.
	f.DeleteWork(t, name, recreated.Name)
	f.NoConfigMap(t, cluster1, ns, "kept")
	harness.Eventually(t, func(ctx context.Context) error {
		_, err := f.Get(ctx, name, recreated.Name)
		return harness.Absent(err, "ManifestWork "+recreated.Name)
	})
}
