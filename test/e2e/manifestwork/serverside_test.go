package manifestwork

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

// onServer sets the strategy ServerSideApply with these options for all objects of a work.
func onServer(w *workv1.ManifestWork, c *workv1.ServerSideApplyConfig) *workv1.ManifestWork {
	w.Spec.ManifestConfigs = nil
	for _, r := range []workv1.ResourceIdentifier{{Resource: "configmaps"}, {Group: "apps", Resource: "deployments"}, {Group: "batch", Resource: "jobs"}} {
		r.Namespace, r.Name = "*", "*"
		w.Spec.ManifestConfigs = append(w.Spec.ManifestConfigs, workv1.ManifestConfigOption{
			ResourceIdentifier: r,
			UpdateStrategy:     &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeServerSideApply, ServerSideApply: c},
		})
	}
	return w
}

// dataYAML returns a ConfigMap. data is a YAML mapping.
func dataYAML(ns, name, data string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: %s}\ndata: %s\n", name, ns, data)
}

// setManifest changes the first manifest of a work.
func setManifest(t *testing.T, w *workv1.ManifestWork, text string) *workv1.ManifestWork {
	t.Helper()
	return shared.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) { w.Spec.Workload.Manifests[0] = harness.Manifest(t, text) })
}

// applyAs applies a ConfigMap as another field manager. data is a YAML mapping.
func applyAs(t *testing.T, manager, ns, name, data string) {
	t.Helper()
	_, err := shared.API[cluster].Kube.CoreV1().ConfigMaps(ns).Patch(t.Context(), name, types.ApplyPatchType, []byte(dataYAML(ns, name, data)), metav1.PatchOptions{FieldManager: manager})
	if err != nil {
		t.Fatal(err)
	}
}

// edit changes a ConfigMap as another field manager.
func edit(t *testing.T, ns, name string, data map[string]any) {
	t.Helper()
	typ, patch := harness.MergePatch(map[string]any{"data": data})
	_, err := shared.API[cluster].Kube.CoreV1().ConfigMaps(ns).Patch(t.Context(), name, typ, patch, metav1.PatchOptions{FieldManager: "other-manager"})
	if err != nil {
		t.Fatal(err)
	}
}

func hasData(ctx context.Context, ns, name string, want map[string]string) error {
	cm, err := shared.ConfigMap(ctx, cluster, ns, name)
	if err != nil {
		return err
	}
	if !maps.Equal(cm.Data, want) {
		return fmt.Errorf("%s has %v, want %v", name, cm.Data, want)
	}
	return nil
}

func becomes(t *testing.T, ns, name string, want map[string]string) {
	t.Helper()
	harness.Eventually(t, func(ctx context.Context) error { return hasData(ctx, ns, name, want) })
}

func stays(t *testing.T, ns, name string, want map[string]string) {
	t.Helper()
	harness.Consistently(t, func(ctx context.Context) error { return hasData(ctx, ns, name, want) })
}

func managers(o metav1.Object) (list []string) {
	for _, e := range o.GetManagedFields() {
		list = append(list, e.Manager+"/"+string(e.Operation))
	}
	slices.Sort(list)
	return list
}

func TestServerSideApply_AppliesAndUpdates(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := f.Deliver(t, onServer(harness.NewWork(t, cluster, "ssa-update", dataYAML(ns, "a", "{k: '1', l: '1'}"), strings.Replace(harness.DeploymentYAML(ns, "d", 1), "    metadata: {labels", "    metadata: {creationTimestamp: null, labels", 1)), nil))
	cm := configMap(t, ns, "a")
	if got := managers(cm); !slices.Equal(got, []string{"work-agent/Apply", "work-agent/Update"}) {
		t.Errorf("managers: got %v", got)
	}
	if err := f.Owners(t.Context(), cluster, ns, "a", w.Name); err != nil {
		t.Error(err)
	}
	w = setManifest(t, w, dataYAML(ns, "a", "{k: '2'}"))
	f.Ready(t, w)
	becomes(t, ns, "a", map[string]string{"k": "2"})

	// The object is not written again, and fields of other managers stay.
	edit(t, ns, "a", map[string]any{"theirs": "1"})
	version := configMap(t, ns, "a").ResourceVersion
	harness.Consistently(t, func(ctx context.Context) error {
		cm, err := f.ConfigMap(ctx, cluster, ns, "a")
		if err == nil && cm.ResourceVersion != version {
			err = errors.New("the object was written without a difference")
		}
		return err
	})
	edit(t, ns, "a", map[string]any{"k": nil}) // no field manager owns it: no conflict
	becomes(t, ns, "a", map[string]string{"k": "2", "theirs": "1"})
}

// unable waits for a conflict over the value "key" of a ConfigMap.
func unable(t *testing.T, w *workv1.ManifestWork, manager string) {
	t.Helper()
	want := fmt.Sprintf(`Failed to apply manifest: Apply failed with 1 conflict: conflict with %q: .data.key`, manager)
	shared.ManifestCondition(t, w, 0, workv1.ManifestApplied, func(c metav1.Condition) bool {
		return c.Status == metav1.ConditionFalse && c.Reason == "AppliedManifestFailed" && c.Message == want && c.ObservedGeneration == w.Generation
	})
	shared.ConditionsAre(t, w, map[string]metav1.ConditionStatus{workv1.WorkApplied: metav1.ConditionFalse, workv1.WorkAvailable: metav1.ConditionTrue})
}

// soon is the longest time until the agent detects the end of a conflict.
const soon = 30 * time.Second

func appliedSoon(t *testing.T, w *workv1.ManifestWork) {
	t.Helper()
	began := time.Now()
	shared.Ready(t, w)
	if took := time.Since(began); took > soon {
		t.Errorf("it took %v to notice that the conflict is over", took)
	}
}

func TestServerSideApply_ConflictEndsWithTheManifest(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	applyAs(t, "theirs", ns, "a", "{key: theirs}")
	w := f.Create(t, onServer(harness.NewWork(t, cluster, "ssa-conflict", harness.ConfigMapYAML(ns, "a", "ours")), nil))
	unable(t, w, "theirs")
	stays(t, ns, "a", map[string]string{"key": "theirs"})
	w = setManifest(t, w, dataYAML(ns, "a", "{other: ours}"))
	appliedSoon(t, w)
	becomes(t, ns, "a", map[string]string{"key": "theirs", "other": "ours"})
}

func TestServerSideApply_ConflictEndsWhenTheOtherLetsGo(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	applyAs(t, "theirs", ns, "a", "{key: theirs}")
	w := f.Create(t, onServer(harness.NewWork(t, cluster, "ssa-let-go", harness.ConfigMapYAML(ns, "a", "ours")), nil))
	unable(t, w, "theirs")
	applyAs(t, "theirs", ns, "a", "{rest: theirs}")
	appliedSoon(t, w)
	becomes(t, ns, "a", map[string]string{"key": "ours", "rest": "theirs"})
}

func TestServerSideApply_ForceTakesOver(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	applyAs(t, "theirs", ns, "a", "{key: theirs}")
	f.Deliver(t, onServer(harness.NewWork(t, cluster, "ssa-force", harness.ConfigMapYAML(ns, "a", "ours")), &workv1.ServerSideApplyConfig{Force: true}))
	becomes(t, ns, "a", map[string]string{"key": "ours"})
	edit(t, ns, "a", map[string]any{"key": "x"})
	becomes(t, ns, "a", map[string]string{"key": "ours"})
}

func TestServerSideApply_WorksShareAnObject(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	first := f.Create(t, onServer(harness.NewWork(t, cluster, "ssa-share-1", dataYAML(ns, "a", "{one: '1'}")), nil))
	second := f.Create(t, onServer(harness.NewWork(t, cluster, "ssa-share-2", dataYAML(ns, "a", "{two: '1'}")), &workv1.ServerSideApplyConfig{FieldManager: "work-agent-second"}))
	f.Ready(t, first)
	f.Ready(t, second)
	becomes(t, ns, "a", map[string]string{"one": "1", "two": "1"})
	if got := managers(configMap(t, ns, "a")); !slices.Contains(got, "work-agent/Apply") || !slices.Contains(got, "work-agent-second/Apply") {
		t.Errorf("managers: got %v", got)
	}
	first = setManifest(t, first, dataYAML(ns, "a", "{three: '1'}"))
	f.Ready(t, first)
	becomes(t, ns, "a", map[string]string{"two": "1", "three": "1"})
	second = setManifest(t, second, dataYAML(ns, "a", "{three: '2'}"))
	shared.ManifestCondition(t, second, 0, workv1.ManifestApplied, func(c metav1.Condition) bool {
		return c.Message == `Failed to apply manifest: Apply failed with 1 conflict: conflict with "work-agent": .data.three`
	})
	f.Remove(t, cluster, first.Name)
	if err := exist(t.Context(), ns, "a"); err != nil {
		t.Error(err)
	}
}

func TestServerSideApply_OwnerFollowsTheDeleteOption(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := harness.NewWork(t, cluster, "ssa-owner", harness.ConfigMapYAML(ns, "one", "x"), harness.ConfigMapYAML(ns, "two", "x"))
	w.Spec.DeleteOption = orphaning(ns, "one")
	w = f.Deliver(t, onServer(w, nil))
	owned := func(one, two bool) {
		t.Helper()
		harness.Eventually(t, func(ctx context.Context) error {
			for name, is := range map[string]bool{"one": one, "two": two} {
				var works []string
				if is {
					works = []string{w.Name}
				}
				if err := f.Owners(ctx, cluster, ns, name, works...); err != nil {
					return err
				}
			}
			return nil
		})
	}
	option := func(o *workv1.DeleteOption) {
		t.Helper()
		f.Ready(t, f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) { w.Spec.DeleteOption = o }))
	}
	owned(false, true)
	option(nil)
	owned(true, true)
	option(&workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan})
	owned(false, false)
	option(orphaning(ns, "one"))
	owned(false, true)
	f.Remove(t, cluster, w.Name)
	f.NoConfigMap(t, cluster, ns, "two")
	if err := exist(t.Context(), ns, "one"); err != nil {
		t.Error(err)
	}
}

func TestServerSideApply_OverAnyExistingObject(t *testing.T) {
	t.Parallel()
	for _, state := range []struct {
		name   string
		before func(t *testing.T, ns string)
		after  map[string]string
		owners []string
	}{
		{"absent", func(*testing.T, string) {}, map[string]string{"key": "ours"}, nil},
		{"equal", func(t *testing.T, ns string) { put(t, ns, "ours") }, map[string]string{"key": "ours"}, nil},
		{"different", func(t *testing.T, ns string) { put(t, ns, "theirs") }, map[string]string{"key": "ours"}, nil},
		{"another-work", func(t *testing.T, ns string) {
			shared.Deliver(t, onServer(harness.NewWork(t, cluster, "ssa-state-owner", dataYAML(ns, "a", "{theirs: x}")), &workv1.ServerSideApplyConfig{FieldManager: "work-agent-owner"}))
		}, map[string]string{"key": "ours", "theirs": "x"}, []string{"ssa-state-owner"}},
	} {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			ns := shared.NamespaceOn(t, cluster)
			state.before(t, ns)
			w := shared.Deliver(t, onServer(harness.NewWork(t, cluster, "ssa-state-"+state.name, harness.ConfigMapYAML(ns, "a", "ours")), &workv1.ServerSideApplyConfig{Force: true}))
			becomes(t, ns, "a", state.after)
			if err := shared.Owners(t.Context(), cluster, ns, "a", append(state.owners, w.Name)...); err != nil {
				t.Error(err)
			}
			if got := managers(configMap(t, ns, "a")); !slices.Contains(got, "work-agent/Apply") {
				t.Errorf("managers: got %v", got)
			}
		})
	}
	t.Run("terminating", func(t *testing.T) {
		t.Parallel()
		ns := shared.NamespaceOn(t, cluster)
		api := shared.API[cluster].Kube.CoreV1().ConfigMaps(ns)
		held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Finalizers: []string{hold}}, Data: map[string]string{"theirs": "x"}}
		held, err := api.Create(t.Context(), held, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := api.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		shared.Deliver(t, onServer(harness.NewWork(t, cluster, "ssa-state-terminating", harness.ConfigMapYAML(ns, "a", "ours")), nil))
		becomes(t, ns, "a", map[string]string{"key": "ours", "theirs": "x"})
		typ, patch := harness.MergePatch(map[string]any{"metadata": map[string]any{"finalizers": nil}})
		if _, err := api.Patch(t.Context(), "a", typ, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		becomes(t, ns, "a", map[string]string{"key": "ours"}) // created again
		if configMap(t, ns, "a").UID == held.UID {
			t.Error("it is the same object")
		}
	})
}

// put creates the ConfigMap "a" as another client.
func put(t *testing.T, ns, value string) {
	t.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"key": value}}
	if _, err := shared.API[cluster].Kube.CoreV1().ConfigMaps(ns).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestServerSideApply_AfterUpdate: fields that Update wrote do not conflict with the agent itself. They are
// removed when the manifest drops them.
func TestServerSideApply_AfterUpdate(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := f.Deliver(t, harness.NewWork(t, cluster, "ssa-after-update", dataYAML(ns, "a", "{k: '1', l: '1'}"), envYAML(ns, 2, "nginx", "x")))
	w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests[0] = harness.Manifest(t, dataYAML(ns, "a", "{k: '2', l: '1'}"))
		w.Spec.Workload.Manifests[1] = harness.Manifest(t, envYAML(ns, 3, "nginx:2", "x"))
		onServer(w, nil)
	})
	f.Ready(t, w)
	becomes(t, ns, "a", map[string]string{"k": "2", "l": "1"})
	harness.Eventually(t, func(ctx context.Context) error {
		return deploymentIs(ctx, ns, "3 nginx:2 FIRST=1 MODE=x LAST=1")
	})
	w = setManifest(t, w, dataYAML(ns, "a", "{k: '2'}"))
	f.Ready(t, w)
	becomes(t, ns, "a", map[string]string{"k": "2"})
	if err := f.Owners(t.Context(), cluster, ns, "a", w.Name); err != nil {
		t.Error(err)
	}
}

// TestServerSideApply_JobWithoutSelector: a Job without a selector cannot be updated, but it can be applied.
func TestServerSideApply_JobWithoutSelector(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	job := func(parallelism int) string {
		return fmt.Sprintf(`{apiVersion: batch/v1, kind: Job, metadata: {name: j, namespace: %s}, spec: {suspend: true, parallelism: %d,
  template: {spec: {restartPolicy: Never, containers: [{name: c, image: busybox}]}}}}`, ns, parallelism)
	}
	w := f.Deliver(t, onServer(harness.NewWork(t, cluster, "ssa-job", job(1)), nil))
	w = setManifest(t, w, job(2))
	f.Ready(t, w)
	harness.Eventually(t, func(ctx context.Context) error {
		j, err := shared.API[cluster].Kube.BatchV1().Jobs(ns).Get(ctx, "j", metav1.GetOptions{})
		if err == nil && (*j.Spec.Parallelism != 2 || j.Spec.Selector == nil || len(j.Spec.Template.Labels) == 0) {
			err = fmt.Errorf("got %+v", batchv1.JobSpec{Parallelism: j.Spec.Parallelism, Selector: j.Spec.Selector})
		}
		return err
	})
}

// ignoring returns options with one entry of ignoreFields.
func ignoring(c workv1.IgnoreFieldsCondition, f workv1.IgnoreField) *workv1.ServerSideApplyConfig {
	f.Condition = c
	return &workv1.ServerSideApplyConfig{Force: true, IgnoreFields: []workv1.IgnoreField{f}}
}

func TestIgnoreFields_OnSpokeChange(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	options := ignoring(workv1.IgnoreFieldsConditionOnSpokeChange, workv1.IgnoreField{JSONPaths: []string{".data.l"}})
	w := f.Deliver(t, onServer(harness.NewWork(t, cluster, "ignore-change", dataYAML(ns, "a", "{k: '1', l: '1'}")), options))
	edit(t, ns, "a", map[string]any{"l": "theirs"})
	stays(t, ns, "a", map[string]string{"k": "1", "l": "theirs"})
	edit(t, ns, "a", map[string]any{"k": "x"}) // all other fields are repaired
	becomes(t, ns, "a", map[string]string{"k": "1", "l": "theirs"})
	w = setManifest(t, w, dataYAML(ns, "a", "{k: '2', l: '1'}"))
	f.Ready(t, w)
	becomes(t, ns, "a", map[string]string{"k": "2", "l": "1"})
}

func TestIgnoreFields_OnSpokePresent(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	options := ignoring(workv1.IgnoreFieldsConditionOnSpokePresent, workv1.IgnoreField{JSONPaths: []string{".data.l"}})
	w := f.Deliver(t, onServer(harness.NewWork(t, cluster, "ignore-present", dataYAML(ns, "a", "{k: '1', l: '1'}")), options))
	becomes(t, ns, "a", map[string]string{"k": "1", "l": "1"})
	w = setManifest(t, w, dataYAML(ns, "a", "{k: '1', l: '2'}"))
	f.Ready(t, w)
	stays(t, ns, "a", map[string]string{"k": "1", "l": "1"})
	w = setManifest(t, w, dataYAML(ns, "a", "{k: '2', l: '2'}"))
	f.Ready(t, w)
	becomes(t, ns, "a", map[string]string{"k": "2", "l": "1"})
	edit(t, ns, "a", map[string]any{"l": "theirs"})
	edit(t, ns, "a", map[string]any{"k": "x"})
	becomes(t, ns, "a", map[string]string{"k": "2", "l": "theirs"})
}

func TestIgnoreFields_ByJSONPointer(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	options := ignoring(workv1.IgnoreFieldsConditionOnSpokePresent, workv1.IgnoreField{JSONPointers: []string{"/data/a~0b"}})
	w := f.Deliver(t, onServer(harness.NewWork(t, cluster, "ignore-pointer", dataYAML(ns, "a", "{k: '1'}")), options))
	options = ignoring(workv1.IgnoreFieldsConditionOnSpokePresent, workv1.IgnoreField{JSONPointers: []string{"/data/l", "/metadata/labels/example.com~1l"}})
	w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) { onServer(w, options) })
	f.Ready(t, w)
	edit(t, ns, "a", map[string]any{"l": "theirs"})
	w = setManifest(t, w, dataYAML(ns, "a", "{k: '2', l: '1'}"))
	f.Ready(t, w)
	becomes(t, ns, "a", map[string]string{"k": "2", "l": "theirs"})
}

// envYAML returns a Deployment whose container has three variables.
func envYAML(ns string, replicas int, image, mode string) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: d, namespace: %s}
spec:
  replicas: %d
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec:
      containers:
      - name: main
        image: %s
        env: [{name: FIRST, value: "1"}, {name: MODE, value: %q}, {name: LAST, value: "1"}]
      - {name: side, image: busybox}
`, ns, replicas, image, mode)
}

// deploymentIs checks replicas, the image of the first container and its
// variables.
func deploymentIs(ctx context.Context, ns, want string) error {
	d, err := shared.API[cluster].Kube.AppsV1().Deployments(ns).Get(ctx, "d", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if got := deploymentText(d); got != want {
		return fmt.Errorf("got %q, want %q", got, want)
	}
	return nil
}

func deploymentText(d *appsv1.Deployment) string {
	c := d.Spec.Template.Spec.Containers[0]
	text := fmt.Sprintf("%d %s", *d.Spec.Replicas, c.Image)
	for _, e := range c.Env {
		text += " " + e.Name + "=" + e.Value
	}
	return text
}

// editDeployment changes the Deployment "d" as another field manager.
func editDeployment(t *testing.T, ns string, change func(*appsv1.Deployment)) {
	t.Helper()
	api := shared.API[cluster].Kube.AppsV1().Deployments(ns)
	harness.Eventually(t, func(ctx context.Context) error {
		d, err := api.Get(ctx, "d", metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(d)
		_, err = api.Update(ctx, d, metav1.UpdateOptions{FieldManager: "other-manager"})
		return err
	})
}

func TestIgnoreFields_ByJQ(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	options := ignoring(workv1.IgnoreFieldsConditionOnSpokePresent, workv1.IgnoreField{JQPathExpressions: []string{`.spec.template.spec.containers[] | select(.name == "main") | .env[] | select(.name == "MODE")`}})
	w := f.Deliver(t, onServer(harness.NewWork(t, cluster, "ignore-jq", envYAML(ns, 1, "nginx", "x")), options))
	is := func(want string) {
		t.Helper()
		harness.Eventually(t, func(ctx context.Context) error { return deploymentIs(ctx, ns, want) })
	}
	is("1 nginx FIRST=1 MODE=x LAST=1")
	w = setManifest(t, w, envYAML(ns, 1, "nginx:2", "y"))
	f.Ready(t, w)
	is("1 nginx:2 FIRST=1 MODE=x LAST=1")
	editDeployment(t, ns, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Env[1].Value = "theirs" })
	harness.Consistently(t, func(ctx context.Context) error {
		return deploymentIs(ctx, ns, "1 nginx:2 FIRST=1 MODE=theirs LAST=1")
	})
	editDeployment(t, ns, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Env[2].Value = "theirs" })
	is("1 nginx:2 FIRST=1 MODE=theirs LAST=1")
	w = setManifest(t, w, envYAML(ns, 1, "nginx:3", "z"))
	f.Ready(t, w)
	is("1 nginx:3 FIRST=1 MODE=theirs LAST=1")
}

// TestIgnoreFields_ReplicasAreScaled: the client that scales owns the replicas; the work owns the rest.
func TestIgnoreFields_ReplicasAreScaled(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	options := ignoring(workv1.IgnoreFieldsConditionOnSpokePresent, workv1.IgnoreField{JSONPaths: []string{".spec.replicas"}})
	w := f.Deliver(t, onServer(harness.NewWork(t, cluster, "ignore-replicas", envYAML(ns, 1, "nginx", "x")), options))
	api := f.API[cluster].Kube.AppsV1().Deployments(ns)
	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: ns}, Spec: autoscalingv1.ScaleSpec{Replicas: 3}}
	if _, err := api.UpdateScale(t.Context(), "d", scale, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Consistently(t, func(ctx context.Context) error {
		return deploymentIs(ctx, ns, "3 nginx FIRST=1 MODE=x LAST=1")
	})
	editDeployment(t, ns, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "theirs" })
	harness.Eventually(t, func(ctx context.Context) error {
		return deploymentIs(ctx, ns, "3 nginx FIRST=1 MODE=x LAST=1")
	})
	w = setManifest(t, w, envYAML(ns, 2, "nginx:2", "x"))
	f.Ready(t, w)
	harness.Eventually(t, func(ctx context.Context) error {
		return deploymentIs(ctx, ns, "3 nginx:2 FIRST=1 MODE=x LAST=1")
	})
}

func TestIgnoreFields_ErrorsAreReported(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fields workv1.IgnoreField
		want   string
	}{
		"jq":      {workv1.IgnoreField{JQPathExpressions: []string{".data["}}, `Failed to process ignoreFields: JQ expression error in '.data[': unexpected EOF`},
		"pointer": {workv1.IgnoreField{JSONPointers: []string{"data/k"}}, `Failed to process ignoreFields: JSON Pointer error in 'data/k': it must begin with "/"`},
		"path":    {workv1.IgnoreField{JSONPaths: []string{".data["}}, `Failed to process ignoreFields: JSON path error in '.data[': unterminated array`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := shared.NamespaceOn(t, cluster)
			w := shared.Create(t, onServer(harness.NewWork(t, cluster, "ignore-error-"+name, dataYAML(ns, "a", "{k: '1'}")), ignoring(workv1.IgnoreFieldsConditionOnSpokePresent, c.fields)))
			shared.ManifestCondition(t, w, 0, workv1.ManifestApplied, func(got metav1.Condition) bool {
				return got.Status == metav1.ConditionFalse && got.Reason == "AppliedManifestSSAIgnoreFieldError" && got.Message == c.want
			})
			shared.ConditionsAre(t, w, map[string]metav1.ConditionStatus{workv1.WorkApplied: metav1.ConditionFalse})
			shared.NoConfigMap(t, cluster, ns, "a")
		})
	}
}
