package manifestwork

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

// TestRecord_HasTheLabelsOfTheWork: the AppliedManifestWork has the labels of the work, also labels that are
// added later.
func TestRecord_HasTheLabelsOfTheWork(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "labels", harness.ConfigMapYAML(ns, "one", "x"))
	w.Labels = map[string]string{"app": "web"}
	w = f.Deliver(t, w)
	hasLabels := func(want map[string]string) {
		t.Helper()
		harness.Eventually(t, func(ctx context.Context) error {
			rec, err := f.Applied(ctx, cluster, w.Name)
			if err != nil {
				return err
			}
			for k, v := range want {
				if rec.Labels[k] != v {
					return fmt.Errorf("labels are %v, want %v", rec.Labels, want)
				}
			}
			return nil
		})
	}
	hasLabels(map[string]string{"app": "web"})
	f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) { w.Labels["app"], w.Labels["tier"] = "shop", "front" })
	hasLabels(map[string]string{"app": "shop", "tier": "front"})
}

// TestHosted_AgentManagesTheClusterOfItsKubeconfig: the agent manages the cluster of its kubeconfig, wherever
// the agent runs. The agents of this fleet are processes outside their clusters.
func TestHosted_AgentManagesTheClusterOfItsKubeconfig(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	path := ""
	for _, a := range f.Program("agent-" + cluster).Args() {
		if p, ok := strings.CutPrefix(a, "--spoke-kubeconfig="); ok {
			path = p
		}
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil || path == "" {
		t.Fatalf("the agent has no kubeconfig (%q): %v", path, err)
	}
	managed, err := f.Clusters[cluster].RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Host != managed.Host {
		t.Fatalf("the agent manages %s, not %s", cfg.Host, managed.Host)
	}
	f.Deliver(t, harness.NewWork(t, cluster, "hosted", harness.ConfigMapYAML(ns, "one", "x")))
	if _, err := f.HubAPI.Kube.CoreV1().ConfigMaps(ns).Get(t.Context(), "one", metav1.GetOptions{}); err == nil {
		t.Error(errors.New("the object is on the hub"))
	}
}

// TestRecord_WithoutWorkAndFinalizerIsRemoved: an orphan AppliedManifestWork whose finalizer was removed is
// evicted like any other, with its objects.
func TestRecord_WithoutWorkAndFinalizerIsRemoved(t *testing.T) {
	t.Parallel()
	f := shared
	const name = "evict-unheld"
	ns := f.NamespaceOn(t, cluster)
	rec := abandoned(t, ns, name, name)
	typ, patch := harness.MergePatch(map[string]any{"metadata": map[string]any{"finalizers": nil}})
	if _, err := f.API[cluster].Work.WorkV1().AppliedManifestWorks().Patch(t.Context(), rec, typ, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	successor(t, name, "1s")
	recordGone(t, rec)
	f.NoConfigMap(t, cluster, ns, name)
}
