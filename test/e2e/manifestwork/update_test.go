package manifestwork

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

func TestUpdate_InEveryState(t *testing.T) {
	t.Parallel()
	inEveryState(t, workv1.UpdateStrategyTypeUpdate, outcome{made: true, owned: true, value: "ours"})
}

// TestUpdate_IgnoresDefaultedFields: fields that the server fills in are no difference. The generation of an
// object grows only when the manifest changes.
func TestUpdate_IgnoresDefaultedFields(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := f.Deliver(t, harness.NewWork(t, cluster, "update-rest", harness.DeploymentYAML(ns, "web", 0)))
	rests := func(generation int64) {
		t.Helper()
		touch(t, w)
		harness.Consistently(t, func(ctx context.Context) error {
			d, err := f.API[cluster].Kube.AppsV1().Deployments(ns).Get(ctx, "web", metav1.GetOptions{})
			if err == nil && d.Generation != generation {
				err = fmt.Errorf("generation is %d, want %d", d.Generation, generation)
			}
			return err
		})
	}
	rests(1)
	w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests[0] = harness.Manifest(t, strings.Replace(harness.DeploymentYAML(ns, "web", 0), "image: nginx", "image: nginx:1", 1))
	})
	f.Ready(t, w)
	rests(2)
}

// TestUpdate_JobWithoutSelectorReportsWhy: a Job gets its selector from the server, so a manifest without one
// cannot replace it. The condition gives the reason and the next step. Once the Job is deleted, it is created
// from the present manifest.
func TestUpdate_JobWithoutSelectorReportsWhy(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	job := func(parallelism int) string {
		return fmt.Sprintf("apiVersion: batch/v1\nkind: Job\nmetadata: {name: job, namespace: %s}\nspec: {parallelism: %d, suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: main, image: busybox}]}}}\n", ns, parallelism)
	}
	w := f.Deliver(t, harness.NewWork(t, cluster, "job", job(1), harness.ConfigMapYAML(ns, "one", "x")))
	w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests[0] = harness.Manifest(t, job(2))
		w.Spec.Workload.Manifests[1] = harness.Manifest(t, harness.ConfigMapYAML(ns, "one", "y"))
	})
	f.ConditionsAre(t, w, map[string]metav1.ConditionStatus{workv1.WorkApplied: metav1.ConditionFalse, workv1.WorkAvailable: metav1.ConditionTrue})
	c := f.ManifestCondition(t, w, 0, workv1.ManifestApplied, func(c metav1.Condition) bool { return c.Status == metav1.ConditionFalse })
	if c.Reason != "AppliedManifestFailed" || !strings.HasPrefix(c.Message, `Failed to apply manifest: Job.batch "job" is invalid: `) || !strings.Contains(c.Message, "field is immutable") ||
		!strings.HasSuffix(c.Message, "(this does not pass by itself: correct the manifest, or delete the object so that it is created again, or use update strategy CreateOnly or ServerSideApply)") {
		t.Errorf("got %s: %s", c.Reason, c.Message)
	}
	f.HasValue(t, cluster, ns, "one", "y") // other objects are applied

	background := metav1.DeletePropagationBackground
	if err := f.API[cluster].Kube.BatchV1().Jobs(ns).Delete(t.Context(), "job", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		t.Fatal(err)
	}
	f.Ready(t, w)
	got, err := f.API[cluster].Kube.BatchV1().Jobs(ns).Get(t.Context(), "job", metav1.GetOptions{})
	if err != nil || *got.Spec.Parallelism != 2 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestUpdate_RoleRefCannotChange(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	binding := func(role string) string {
		return fmt.Sprintf("apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: b, namespace: %s}\nroleRef: {kind: Role, name: %s}\nsubjects: [{kind: Group, name: g}]\n", ns, role)
	}
	w := f.Deliver(t, harness.NewWork(t, cluster, "role-ref", binding("first")))
	w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) { w.Spec.Workload.Manifests[0] = harness.Manifest(t, binding("second")) })
	got := f.ConditionsAre(t, w, map[string]metav1.ConditionStatus{workv1.WorkApplied: metav1.ConditionFalse, workv1.WorkAvailable: metav1.ConditionTrue})
	for _, typ := range []string{workv1.WorkApplied, workv1.WorkAvailable} {
		if c := meta.FindStatusCondition(got.Status.Conditions, typ); c.ObservedGeneration != w.Generation {
			t.Errorf("%s is about generation %d, not %d", typ, c.ObservedGeneration, w.Generation)
		}
	}
	f.ManifestCondition(t, w, 0, workv1.ManifestApplied, func(c metav1.Condition) bool {
		return c.Status == metav1.ConditionFalse && c.ObservedGeneration == w.Generation && strings.Contains(c.Message, "cannot change roleRef") &&
			strings.HasSuffix(c.Message, " (this does not pass by itself: correct the manifest or give it another name, or delete the object so that it is created again)")
	})
	f.ManifestCondition(t, w, 0, workv1.ManifestAvailable, func(c metav1.Condition) bool { return c.Status == metav1.ConditionTrue })
}

func TestUpdate_ClusterRoleWithANamespace(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := f.Deliver(t, harness.NewWork(t, cluster, "namespaced-role",
		fmt.Sprintf("apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: %s, namespace: %[1]s}\nrules: [{verbs: [get], apiGroups: [\"\"], resources: [pods]}]\n", ns)))
	if m := w.Status.ResourceStatus.Manifests[0].ResourceMeta; m.Namespace != "" || m.Name != ns {
		t.Errorf("reported as %+v", m)
	}
	if _, err := f.API[cluster].Kube.RbacV1().ClusterRoles().Get(t.Context(), ns, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// TestUpdate_MixedKindsAndTheirOrder: conditions and their times follow an object, whatever its position in the
// list.
func TestUpdate_MixedKindsAndTheirOrder(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	first := f.Deliver(t, harness.NewWork(t, cluster, "mixed",
		"apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: sa, namespace: "+ns+"}\n",
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: role, namespace: "+ns+"}\nrules: [{verbs: [get], apiGroups: [\"\"], resources: [pods]}]\n",
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: binding, namespace: "+ns+"}\nroleRef: {kind: Role, name: role}\nsubjects: [{kind: ServiceAccount, name: sa, namespace: "+ns+"}]\n",
		harness.DeploymentYAML(ns, "web", 0)))
	lists(t, first.Name, "sa", "web", "binding", "role")
	since := availableSince(first)

	waitASecond(t)
	w := f.Update(t, cluster, first.Name, func(w *workv1.ManifestWork) {
		m := w.Spec.Workload.Manifests
		w.Spec.Workload.Manifests = []workv1.Manifest{m[3], m[0], harness.Manifest(t, harness.ConfigMapYAML(ns, "new", "x")), m[2]}
	})
	second := f.Ready(t, w)
	var order []string
	for i, m := range second.Status.ResourceStatus.Manifests {
		order = append(order, m.ResourceMeta.Name)
		if int(m.ResourceMeta.Ordinal) != i {
			t.Errorf("manifest %d has the ordinal %d", i, m.ResourceMeta.Ordinal)
		}
	}
	if want := []string{"web", "sa", "new", "binding"}; !slices.Equal(order, want) {
		t.Fatalf("got %q, want %q", order, want)
	}
	for name, at := range availableSince(second) {
		if old, had := since[name]; had != at.Equal(&old) {
			t.Errorf("%s is available since %s, was since %s", name, at, old)
		}
	}
	lists(t, w.Name, "new", "sa", "web", "binding")
}

func availableSince(w *workv1.ManifestWork) map[string]metav1.Time {
	since := map[string]metav1.Time{}
	for _, m := range w.Status.ResourceStatus.Manifests {
		since[m.ResourceMeta.Name] = meta.FindStatusCondition(m.Conditions, workv1.ManifestAvailable).LastTransitionTime
	}
	return since
}

// waitASecond waits until the transition times of conditions differ, which are in whole seconds.
func waitASecond(t *testing.T) {
	t.Helper()
	harness.Consistently(t, func(context.Context) error { return nil })
}

func TestUpdate_GenerationsAndTimesOfConditions(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	before := f.Deliver(t, harness.NewWork(t, cluster, "times", harness.ConfigMapYAML(ns, "one", "x")))
	times := func(w *workv1.ManifestWork) (workTime, applied, available metav1.Time) {
		m := w.Status.ResourceStatus.Manifests[0].Conditions
		return meta.FindStatusCondition(w.Status.Conditions, workv1.WorkApplied).LastTransitionTime,
			meta.FindStatusCondition(m, workv1.ManifestApplied).LastTransitionTime, meta.FindStatusCondition(m, workv1.ManifestAvailable).LastTransitionTime
	}
	work1, applied1, available1 := times(before)
	waitASecond(t)
	w := f.Update(t, cluster, before.Name, func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests[0] = harness.Manifest(t, harness.ConfigMapYAML(ns, "one", "y"))
	})
	after := f.Ready(t, w)
	work2, applied2, available2 := times(after)
	if !work2.Equal(&work1) || !available2.Equal(&available1) || !applied1.Before(&applied2) {
		t.Errorf("work %s, %s; applied %s, %s; available %s, %s", work1, work2, applied1, applied2, available1, available2)
	}
	for _, c := range after.Status.Conditions {
		if c.ObservedGeneration != w.Generation {
			t.Errorf("%s is about generation %d, not %d", c.Type, c.ObservedGeneration, w.Generation)
		}
	}
	if c := meta.FindStatusCondition(after.Status.ResourceStatus.Manifests[0].Conditions, workv1.ManifestApplied); c.ObservedGeneration != w.Generation {
		t.Errorf("the manifest is about generation %d, not %d", c.ObservedGeneration, w.Generation)
	}

	// An edit of the object is repaired, and no condition changes.
	waitASecond(t)
	cm := configMap(t, ns, "one")
	cm.Data["key"] = "drift"
	if _, err := f.API[cluster].Kube.CoreV1().ConfigMaps(ns).Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.HasValue(t, cluster, ns, "one", "y")
	touch(t, w)
	repaired, err := f.Get(t.Context(), cluster, w.Name)
	if err != nil {
		t.Fatal(err)
	}
	work3, applied3, available3 := times(repaired)
	if !work3.Equal(&work2) || !applied3.Equal(&applied2) || !available3.Equal(&available2) {
		t.Errorf("work %s, %s; applied %s, %s; available %s, %s", work2, work3, applied2, applied3, available2, available3)
	}
}

func TestUpdate_StorageClassIsRecreatedOnlyForAChange(t *testing.T) {
	t.Parallel()
	f := shared
	const isDefault = "storageclass.kubernetes.io/is-default-class"
	class := func(parameter string) string {
		return "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: slow, annotations: {" + isDefault + ": \"true\"}}\nprovisioner: example.com/p\nparameters: {speed: " + parameter + "}\n"
	}
	grantAgent(t, "storage.k8s.io")
	api := f.API[cluster].Kube.StorageV1().StorageClasses()
	w := f.Deliver(t, harness.NewWork(t, cluster, "storage-class", class("low")))
	typ, patch := harness.MergePatch(map[string]any{"metadata": map[string]any{"annotations": map[string]any{isDefault: "false"}}})
	before, err := api.Patch(t.Context(), "slow", typ, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	touch(t, w)
	harness.Consistently(t, func(ctx context.Context) error {
		c, err := api.Get(ctx, "slow", metav1.GetOptions{})
		if err == nil && (c.UID != before.UID || c.ResourceVersion != before.ResourceVersion) {
			err = errors.New("the class was written")
		}
		return err
	})
	w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) { w.Spec.Workload.Manifests[0] = harness.Manifest(t, class("high")) })
	f.Ready(t, w)
	after, err := api.Get(t.Context(), "slow", metav1.GetOptions{})
	if err != nil || after.UID == before.UID || after.Parameters["speed"] != "high" || after.Annotations[isDefault] != "false" {
		t.Errorf("got %v, %v", after, err)
	}
	f.Remove(t, cluster, w.Name)
}
