package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/hubsource"
	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// TestHubRestored: the hub comes back from a backup. The clusters follow its older versions, and works that it
// has again. Works that it lacks stay until an operator decides.
func TestHubRestored(t *testing.T) {
	f := &shared
	l := f.outage(t)
	ns := f.NamespaceOn(t, cluster1)
	work := func(name, value string) *workv1.ManifestWork {
		return harness.NewWork(t, cluster1, "restored-"+name, harness.ConfigMapYAML(ns, name, value))
	}
	older, back := f.Deliver(t, work("older", "1")), f.Deliver(t, work("back", "1"))
	backup := filepath.Join(t.TempDir(), "backup")
	f.onHubDisk(t, func(data string) error { return os.CopyFS(backup, os.DirFS(data)) })

	f.Ready(t, f.Update(t, cluster1, older.Name, func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests = []workv1.Manifest{harness.Manifest(t, harness.ConfigMapYAML(ns, "older", "2"))}
	}))
	f.HasValue(t, cluster1, ns, "older", "2")
	f.Remove(t, cluster1, back.Name)
	f.Deliver(t, work("lost", "1"))

	f.onHubDisk(t, func(data string) error {
		emptyDir(t, data)
		return os.CopyFS(data, os.DirFS(backup))
	})
	for _, w := range []*workv1.ManifestWork{older, back} {
		live, err := f.Get(t.Context(), cluster1, w.Name)
		if err != nil {
			t.Fatal(err)
		}
		f.Ready(t, live)
	}
	f.HasValue(t, cluster1, ns, "older", "1")
	f.HasValue(t, cluster1, ns, "back", "1")
	l.settled(t)
	harness.Consistently(t, func(ctx context.Context) error {
		_, err := f.ConfigMap(ctx, cluster1, ns, "lost")
		return err
	})

	f.decide(t)
	f.NoConfigMap(t, cluster1, ns, "lost")
	l.settled(t)
}

// onHubDisk changes the data of the hub while hub and hub-source are stopped, as the documentation advises.
func (f *Fleet) onHubDisk(t *testing.T, do func(data string) error) {
	t.Helper()
	f.startLater(t, fleet.HubSource)
	t.Cleanup(func() { // other scenarios need the hub
		if err := f.StartControlPlane(hub); err != nil {
			t.Errorf("start the hub again: %v", err)
		}
	})
	if err := f.Program(fleet.HubSource).Stop(); err != nil {
		t.Fatal(err)
	}
	if err := f.StopControlPlane(hub); err != nil {
		t.Fatal(err)
	}
	if err := do(filepath.Join(filepath.Dir(f.LogDir()), hub, "etcd")); err != nil {
		t.Fatal(err)
	}
	if err := f.StartControlPlane(hub); err != nil {
		t.Fatal(err)
	}
	f.start(t, fleet.HubSource)
}

// decide approves the withheld deletions on cluster1.
func (f *Fleet) decide(t *testing.T) {
	t.Helper()
	if !f.stateless {
		operator := f.PKI()
		harness.Eventually(t, func(ctx context.Context) error {
			return f.tryHawser(ctx, "approve", "--source", fleet.SourceID, "--cluster", cluster1, "--all", "--broker", f.BrokerAddr(),
				"--ca", operator.CACert(), "--cert", operator.Cert(pki.Operator, "operator"), "--key", operator.Key(pki.Operator, "operator"))
		})
		return
	}
	if err := f.Program(fleet.HubSource).Stop(); err != nil {
		t.Fatal(err)
	}
	states := f.HubAPI.Kube.CoreV1().ConfigMaps("hawser")
	state, err := states.Get(t.Context(), hubsource.StateName(fleet.SourceID), metav1.GetOptions{})
	if err != nil || state.Data["withheld"] == "" {
		t.Fatalf("hub-source keeps %v, and nothing withheld: %v", state.Data, err)
	}
	delete(state.Data, "withheld")
	if _, err := states.Update(t.Context(), state, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.start(t, fleet.HubSource)
}
