package manifestwork

import (
	"context"
	"errors"
	"testing"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

func TestCreateOnly_InEveryState(t *testing.T) {
	t.Parallel()
	inEveryState(t, workv1.UpdateStrategyTypeCreateOnly, outcome{made: true, owned: true, value: "theirs"})
}

func TestCreateOnly_ChangedManifestDoesNotReachTheObject(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := f.Deliver(t, byStrategy(harness.NewWork(t, cluster, "create-only", harness.ConfigMapYAML(ns, "one", "first")), workv1.UpdateStrategyTypeCreateOnly, "configmaps", ns))
	f.HasValue(t, cluster, ns, "one", "first")
	before := configMap(t, ns, "one")

	w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests[0] = harness.Manifest(t, harness.ConfigMapYAML(ns, "one", "second"))
	})
	f.Ready(t, w)
	harness.Consistently(t, func(ctx context.Context) error {
		cm, err := f.ConfigMap(ctx, cluster, ns, "one")
		if err == nil && cm.ResourceVersion != before.ResourceVersion {
			err = errors.New("the object was written")
		}
		return err
	})
	if err := f.API[cluster].Kube.CoreV1().ConfigMaps(ns).Delete(t.Context(), "one", deleteNow); err != nil {
		t.Fatal(err)
	}
	f.HasValue(t, cluster, ns, "one", "second") // created again from the present manifest
}
