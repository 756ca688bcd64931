package e2e

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// TestClusterReplaced: another cluster uses a name, with the state directory of the previous agent. It changes
// nothing until an operator accepts it. Then it gets all works, and no object was deleted.
func TestClusterReplaced(t *testing.T) {
	f := &shared
	const name = "replaced"
	ns := f.NamespaceOn(t, cluster1)
	f.NamespaceOn(t, cluster2) // the namespace has the name of the test on each cluster
	f.JoinAs(t, name)
	stop := f.RunAgent(t, cluster1, name, "--hub-identity="+name)
	w := f.Deliver(t, harness.NewWork(t, name, "kept", harness.ConfigMapYAML(ns, "kept", "old")))
	gone := f.Deliver(t, harness.NewWork(t, name, "gone", harness.ConfigMapYAML(ns, "gone", "old")))
	stop()

	stop = f.RunAgent(t, cluster2, name, "--hub-identity="+name)
	operator := f.PKI()
	hawser := func(args ...string) (string, error) {
		args = append(args, "--broker", f.BrokerAddr(), "--ca", operator.CACert(),
			"--cert", operator.Cert(pki.Operator, "operator"), "--key", operator.Key(pki.Operator, "operator"))
		out, err := childproc.Run(t.Context(), filepath.Join(f.Root, "bin", "hawser"), args...)
		return string(out), err
	}
	harness.Eventually(t, func(context.Context) error {
		out, err := hawser("get", "discrepancies", "--cluster", name)
		if err == nil && !strings.Contains(out, "Quarantined") {
			err = errors.New("no quarantined cluster is listed: " + out)
		}
		return err
	})
	f.DeleteWork(t, name, gone.Name)
	w = f.Update(t, name, w.Name, func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests = []workv1.Manifest{harness.Manifest(t, harness.ConfigMapYAML(ns, "kept", "new"))}
	})
	harness.Consistently(t, func(ctx context.Context) error {
		_, err := f.ConfigMap(ctx, cluster2, ns, "kept")
		if err := harness.Absent(err, "what the cluster was not let in for"); err != nil {
			return err
		}
		_, err = f.Get(ctx, name, gone.Name)
		return err // no agent has confirmed its deletion yet
	})

	if _, err := hawser("unbind", "cluster", name); err != nil {
		t.Fatal(err)
	}
	stop() // without a restart the agent would try again only within minutes
	f.RunAgent(t, cluster2, name, "--hub-identity="+name)
	f.Ready(t, w)
	f.HasValue(t, cluster2, ns, "kept", "new")
	f.HasValue(t, cluster1, ns, "kept", "old") // no agent serves that cluster any more
	f.DeleteWork(t, name, w.Name)
	for _, w := range []*workv1.ManifestWork{w, gone} {
		harness.Eventually(t, func(ctx context.Context) error {
			_, err := f.Get(ctx, name, w.Name)
			return harness.Absent(err, "ManifestWork "+w.Name)
		})
	}
	f.NoConfigMap(t, cluster2, ns, "kept")
}
