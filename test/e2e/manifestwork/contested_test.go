package manifestwork

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

// isContested waits until the condition Contested and an Event report an object that is changed after each
// repair. Both messages start with begin, and the condition contains also.
func isContested(t *testing.T, w *workv1.ManifestWork, begin, also string) {
	t.Helper()
	f := shared
	harness.Eventually(t, func(ctx context.Context) error {
		got, err := f.Get(ctx, w.Namespace, w.Name)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(got.Status.Conditions, "Contested")
		if c == nil || c.Status != metav1.ConditionTrue || !strings.HasPrefix(c.Message, begin) || !strings.Contains(c.Message, also) {
			return fmt.Errorf("Contested of work %s is %v, Applied is %t", w.Name, c, meta.IsStatusConditionTrue(got.Status.Conditions, workv1.WorkApplied))
		}
		events, err := f.HubAPI.Kube.CoreV1().Events(w.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + w.Name + ",reason=ChangedAfterEachRepair"})
		if err != nil {
			return err
		}
		if len(events.Items) == 0 || !strings.HasPrefix(events.Items[0].Message, begin) {
			return fmt.Errorf("the Events of work %s: %v", w.Name, events.Items)
		}
		return nil
	})
}

// TestContested_ByAnotherManager: another manager changes an object after each repair. The work, the manifest
// and an Event name the object, the field and the manager. Applied stays as it is.
func TestContested_ByAnotherManager(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := f.Deliver(t, harness.NewWork(t, cluster, "contested", harness.ConfigMapYAML(ns, "one", "x")))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	fought := make(chan error, 1)
	go func() { fought <- setAgain(ctx, ns, "one", "otherwise") }()
	isContested(t, w, "ConfigMap "+ns+"/one: .data.key is changed by tuner after each repair", "Stop the other writer")
	f.ManifestCondition(t, w, 0, "Contested", func(c metav1.Condition) bool {
		return c.Reason == "ChangedAfterEachRepair" && strings.HasPrefix(c.Message, ".data.key is changed by tuner")
	})
	f.Ready(t, w)
	stop()
	if err := <-fought; err != nil {
		t.Error(err)
	}
}

// setAgain sets a ConfigMap to a value whenever it differs, until ctx ends.
func setAgain(ctx context.Context, ns, name, value string) error {
	configMaps := shared.API[cluster].Kube.CoreV1().ConfigMaps(ns)
	typ, patch := harness.MergePatch(map[string]any{"data": map[string]any{"key": value}})
	seen, err := configMaps.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return err
	}
	defer seen.Stop()
	for range seen.ResultChan() { // ends with ctx
		o, err := configMaps.Get(ctx, name, metav1.GetOptions{})
		if err == nil && o.Data["key"] != value {
			_, err = configMaps.Patch(ctx, name, typ, patch, metav1.PatchOptions{FieldManager: "tuner"})
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// TestContested_ByAnotherWork: two works with different contents for one object name each other.
func TestContested_ByAnotherWork(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	a := f.Create(t, harness.NewWork(t, cluster, "contested-a", harness.ConfigMapYAML(ns, "one", "a")))
	b := f.Create(t, harness.NewWork(t, cluster, "contested-b", harness.ConfigMapYAML(ns, "one", "b")))
	for w, other := range map[*workv1.ManifestWork]*workv1.ManifestWork{a: b, b: a} {
		isContested(t, w, "ConfigMap "+ns+"/one: .data.key is changed by ManifestWork "+other.Name+", which has the same object", "Take the object out of all works but one")
	}
	f.DeleteWork(t, cluster, b.Name)
	f.WaitDeleted(t, cluster, b.Name)
}
