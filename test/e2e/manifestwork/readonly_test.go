package manifestwork

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

var deleteNow = metav1.DeleteOptions{}

func TestReadOnly_InEveryState(t *testing.T) {
	t.Parallel()
	inEveryState(t, workv1.UpdateStrategyTypeReadOnly, outcome{value: "theirs"})
}

// TestReadOnly_ReportsAndLeavesAlone: values of objects with another owner reach the hub. The objects are
// neither written nor deleted, even if the manifest differs.
func TestReadOnly_ReportsAndLeavesAlone(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	s := &scene{ns: ns}
	before := s.theirs(t, "theirs")
	w := byStrategy(harness.NewWork(t, cluster, "read-only", harness.ConfigMapYAML(ns, "one", "ours")), workv1.UpdateStrategyTypeReadOnly, "configmaps", ns)
	w.Spec.ManifestConfigs[0].FeedbackRules = valueOfKey()
	w = f.Deliver(t, w)
	reports(t, w, 0, "theirs")

	cm := configMap(t, ns, "one")
	cm.Data["key"] = "changed"
	if _, err := f.API[cluster].Kube.CoreV1().ConfigMaps(ns).Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	reports(t, w, 0, "changed")
	f.Remove(t, cluster, w.Name)
	harness.Consistently(t, func(ctx context.Context) error { return sameObject(ctx, ns, "one", before.UID) })
}

// TestReadOnly_PatternForAllConfigMaps: one config with a pattern makes every ConfigMap of a work read-only.
func TestReadOnly_PatternForAllConfigMaps(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	names := []string{"a", "b", "c"}
	w := harness.NewWork(t, cluster, "read-only-all", harness.DeploymentYAML(ns, "web", 0))
	versions := map[string]string{}
	for _, name := range names {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"key": "theirs-" + name}}
		cm, err := f.API[cluster].Kube.CoreV1().ConfigMaps(ns).Create(t.Context(), cm, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		versions[name] = cm.ResourceVersion
		w.Spec.Workload.Manifests = append(w.Spec.Workload.Manifests, harness.Manifest(t, harness.ConfigMapYAML(ns, name, "ours")))
	}
	byStrategy(w, workv1.UpdateStrategyTypeReadOnly, "configmaps", ns)
	w.Spec.ManifestConfigs[0].FeedbackRules = valueOfKey()
	w = f.Deliver(t, w)
	for i, name := range names {
		reports(t, w, i+1, "theirs-"+name)
	}
	lists(t, w.Name, append(names, "web")...)
	touch(t, w)
	for _, name := range names {
		if cm := configMap(t, ns, name); cm.ResourceVersion != versions[name] || len(cm.OwnerReferences) > 0 {
			t.Errorf("%s was written: %v", name, cm)
		}
	}
	if _, err := f.API[cluster].Kube.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{}); err != nil {
		t.Errorf("a manifest that the pattern does not match: %v", err)
	}
}

// TestReadOnly_KeepsAppliedObjects: a work that becomes read-only still owns the objects that it
// created.
func TestReadOnly_KeepsAppliedObjects(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := f.Deliver(t, harness.NewWork(t, cluster, "read-only-later", harness.ConfigMapYAML(ns, "one", "x")))
	before := configMap(t, ns, "one")
	w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
		byStrategy(w, workv1.UpdateStrategyTypeReadOnly, "configmaps", ns)
		w.Spec.Workload.Manifests[0] = harness.Manifest(t, harness.ConfigMapYAML(ns, "one", "y"))
	})
	f.Ready(t, w)
	if after := configMap(t, ns, "one"); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("written: %v", after)
	}
	f.Remove(t, cluster, w.Name)
	f.NoConfigMap(t, cluster, ns, "one")
}

// TestConfigs_FirstMatchCounts: the first matching config with a strategy is used.
func TestConfigs_FirstMatchCounts(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "first-match", harness.ConfigMapYAML(ns, "made-once", "x"), harness.ConfigMapYAML(ns, "only-read", "x"))
	w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{{
		ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: ns, Name: "*"},
		FeedbackRules:      valueOfKey(), // without a strategy: the next config decides
	}, {
		ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "*", Name: "made-*"},
		UpdateStrategy:     &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeCreateOnly},
	}}
	byStrategy(w, workv1.UpdateStrategyTypeReadOnly, "configmaps", ns)
	w = f.Create(t, w)
	f.ConditionsAre(t, w, map[string]metav1.ConditionStatus{workv1.WorkApplied: metav1.ConditionTrue, workv1.WorkAvailable: metav1.ConditionFalse})
	reports(t, w, 0, "x")
	lists(t, w.Name, "made-once")
	f.NoConfigMap(t, cluster, ns, "only-read")
}

// valueOfKey returns a rule for the value "key" of a ConfigMap.
func valueOfKey() []workv1.FeedbackRule {
	return []workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: []workv1.JsonPath{{Name: "value", Path: ".data.key"}}}}
}

// reports waits until the hub has that value.
func reports(t *testing.T, w *workv1.ManifestWork, ordinal int, want string) {
	t.Helper()
	harness.Eventually(t, func(ctx context.Context) error {
		live, err := shared.Get(ctx, w.Namespace, w.Name)
		if err != nil {
			return err
		}
		if len(live.Status.ResourceStatus.Manifests) <= ordinal {
			return fmt.Errorf("no status of manifest %d: %s", ordinal, harness.StatusText(live))
		}
		m := live.Status.ResourceStatus.Manifests[ordinal]
		v := m.StatusFeedbacks.Values
		if len(v) != 1 || v[0].Name != "value" || v[0].Value.String == nil || *v[0].Value.String != want || !meta.IsStatusConditionTrue(m.Conditions, "StatusFeedbackSynced") {
			return fmt.Errorf("manifest %d reports %v, want %q: %s", ordinal, v, want, harness.StatusText(live))
		}
		return nil
	})
}
