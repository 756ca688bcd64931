package harness

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	workv1 "open-cluster-management.io/api/work/v1"
	"sigs.k8s.io/yaml"
)

// ConvergeTimeout is the longest time in which a change converges on a busy machine.
const ConvergeTimeout = 45 * time.Second

// Eventually waits until check returns nil.
func Eventually(t *testing.T, check func(ctx context.Context) error) {
	t.Helper()
	EventuallyWithin(t, ConvergeTimeout, check)
}

// EventuallyWithin is Eventually with another bound.
func EventuallyWithin(t *testing.T, within time.Duration, check func(ctx context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, within, true, func(ctx context.Context) (bool, error) {
		err := check(ctx)
		if err != nil && ctx.Err() == nil {
			last = err
		}
		return err == nil, nil
	})
	if err != nil {
		t.Fatalf("not within %s: %v", within, last)
	}
}

// Consistently checks that a condition holds for a while, long enough for an error to show.
func Consistently(t *testing.T, check func(ctx context.Context) error) {
	t.Helper()
	const while = 2 * time.Second
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, while, true, func(ctx context.Context) (bool, error) {
		if err := check(ctx); err != nil && ctx.Err() == nil {
			return false, err
		}
		return false, nil
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("did not stay so for %s: %v", while, err)
	}
}

// Absent returns nil if err, the error of a GET, is "not found".
func Absent(err error, what string) error {
	switch {
	case err == nil:
		return errors.New(what + " is still there")
	case apierrors.IsNotFound(err):
		return nil
	}
	return err
}

// NewWork returns a work with YAML manifests.
func NewWork(t *testing.T, cluster, name string, manifests ...string) *workv1.ManifestWork {
	t.Helper()
	w := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{Namespace: cluster, Name: name}}
	for _, m := range manifests {
		w.Spec.Workload.Manifests = append(w.Spec.Workload.Manifests, Manifest(t, m))
	}
	return w
}

// Manifest returns a manifest from YAML.
func Manifest(t *testing.T, text string) workv1.Manifest {
	t.Helper()
	b, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return workv1.Manifest{RawExtension: runtime.RawExtension{Raw: b}}
}

// Create creates the work and removes it when the test ends.
func (f *Fleet) Create(t *testing.T, w *workv1.ManifestWork) *workv1.ManifestWork {
	t.Helper()
	got, err := f.HubAPI.Work.WorkV1().ManifestWorks(w.Namespace).Create(t.Context(), w, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := f.HubAPI.Work.WorkV1().ManifestWorks(w.Namespace).Delete(context.Background(), w.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("clean up %s: %v", w.Name, err)
		}
	})
	return got
}

// Deliver creates the work and waits for [Fleet.Ready]. The work is removed when the test ends.
func (f *Fleet) Deliver(t *testing.T, w *workv1.ManifestWork) *workv1.ManifestWork {
	t.Helper()
	return f.Ready(t, f.Create(t, w))
}

// Update changes the work, and tries again after a conflict.
func (f *Fleet) Update(t *testing.T, cluster, name string, change func(*workv1.ManifestWork)) *workv1.ManifestWork {
	t.Helper()
	var got *workv1.ManifestWork
	Eventually(t, func(ctx context.Context) error {
		w, err := f.HubAPI.Work.WorkV1().ManifestWorks(cluster).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(w)
		got, err = f.HubAPI.Work.WorkV1().ManifestWorks(cluster).Update(ctx, w, metav1.UpdateOptions{})
		return err
	})
	return got
}

// Get returns the work from the hub.
func (f *Fleet) Get(ctx context.Context, cluster, name string) (*workv1.ManifestWork, error) {
	return f.HubAPI.Work.WorkV1().ManifestWorks(cluster).Get(ctx, name, metav1.GetOptions{})
}

// DeleteWork deletes a work on the hub and does not wait.
func (f *Fleet) DeleteWork(t *testing.T, cluster, name string) {
	t.Helper()
	if err := f.HubAPI.Work.WorkV1().ManifestWorks(cluster).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// WaitDeleted waits until the work has left the hub, and its AppliedManifestWork has left the cluster.
func (f *Fleet) WaitDeleted(t *testing.T, cluster, name string) {
	t.Helper()
	Eventually(t, func(ctx context.Context) error {
		_, err := f.Get(ctx, cluster, name)
		if err := Absent(err, "ManifestWork "+name); err != nil {
			if rec, no := f.Applied(ctx, cluster, name); no == nil {
				err = fmt.Errorf("%w; on the cluster: %s", err, f.remaining(ctx, cluster, rec))
			}
			return err
		}
		_, err = f.Applied(ctx, cluster, name)
		return Absent(err, "AppliedManifestWork of "+name)
	})
}

// remaining lists the objects of a record that still exist, with their finalizers.
func (f *Fleet) remaining(ctx context.Context, cluster string, rec *workv1.AppliedManifestWork) string {
	var left []string
	for _, a := range rec.Status.AppliedResources {
		api := f.API[cluster].Dynamic.Resource(schema.GroupVersionResource{Group: a.Group, Version: a.Version, Resource: a.Resource}).Namespace(a.Namespace)
		o, err := api.Get(ctx, a.Name, metav1.GetOptions{})
		if err != nil {
			left = append(left, fmt.Sprintf("%s %s/%s: %v", a.Resource, a.Namespace, a.Name, err))
			continue
		}
		left = append(left, fmt.Sprintf("%s %s/%s: deleted %v, finalizers %v", a.Resource, a.Namespace, a.Name, o.GetDeletionTimestamp(), o.GetFinalizers()))
	}
	return strings.Join(left, "; ")
}

// Remove deletes a work on the hub and waits for [Fleet.WaitDeleted].
func (f *Fleet) Remove(t *testing.T, cluster, name string) {
	t.Helper()
	f.DeleteWork(t, cluster, name)
	f.WaitDeleted(t, cluster, name)
}

// AppliedName returns the name of the AppliedManifestWork of a work: the hash of the hub identity, "-", and the
// work's name. The default hub identity is the broker's URL.
func (f *Fleet) AppliedName(work string) string {
	sum := sha256.Sum256([]byte(f.BrokerAddr()))
	return hex.EncodeToString(sum[:]) + "-" + work
}

// Applied returns the AppliedManifestWork of a work.
func (f *Fleet) Applied(ctx context.Context, cluster, work string) (*workv1.AppliedManifestWork, error) {
	return f.API[cluster].Work.WorkV1().AppliedManifestWorks().Get(ctx, f.AppliedName(work), metav1.GetOptions{})
}

// Ready waits until both conditions of the work are True for its generation.
func (f *Fleet) Ready(t *testing.T, w *workv1.ManifestWork) *workv1.ManifestWork {
	t.Helper()
	return f.ConditionsAre(t, w, map[string]metav1.ConditionStatus{workv1.WorkApplied: metav1.ConditionTrue, workv1.WorkAvailable: metav1.ConditionTrue})
}

// ConditionsAre waits until the conditions of the work have these statuses for its generation.
func (f *Fleet) ConditionsAre(t *testing.T, w *workv1.ManifestWork, want map[string]metav1.ConditionStatus) *workv1.ManifestWork {
	t.Helper()
	var got *workv1.ManifestWork
	Eventually(t, func(ctx context.Context) (err error) {
		if got, err = f.Get(ctx, w.Namespace, w.Name); err != nil {
			return err
		}
		for typ, status := range want {
			c := meta.FindStatusCondition(got.Status.Conditions, typ)
			if c == nil || c.Status != status || c.ObservedGeneration < w.Generation {
				return fmt.Errorf("%s: want %s=%s for generation %d, status is %s", w.Name, typ, status, w.Generation, StatusText(got))
			}
		}
		return nil
	})
	return got
}

// StatusText returns the status of a work as text, for messages.
func StatusText(w *workv1.ManifestWork) string {
	b, err := json.Marshal(w.Status)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// ManifestCondition waits until a condition of one manifest fulfils want, and returns it.
func (f *Fleet) ManifestCondition(t *testing.T, w *workv1.ManifestWork, ordinal int, typ string, want func(metav1.Condition) bool) metav1.Condition {
	t.Helper()
	var got metav1.Condition
	Eventually(t, func(ctx context.Context) error {
		live, err := f.Get(ctx, w.Namespace, w.Name)
		if err != nil {
			return err
		}
		if len(live.Status.ResourceStatus.Manifests) <= ordinal {
			return fmt.Errorf("no status of manifest %d: %s", ordinal, StatusText(live))
		}
		c := meta.FindStatusCondition(live.Status.ResourceStatus.Manifests[ordinal].Conditions, typ)
		if c == nil || !want(*c) {
			return fmt.Errorf("manifest %d has %v: %s", ordinal, c, StatusText(live))
		}
		got = *c
		return nil
	})
	return got
}

// NamespaceOn creates a namespace on a managed cluster for one test.
func (f *Fleet) NamespaceOn(t *testing.T, cluster string) string {
	t.Helper()
	name := strings.Trim(strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name())), "-")
	if len(name) > 50 {
		name = name[len(name)-50:]
	}
	name = strings.Trim(name, "-")
	api := f.API[cluster].Kube.CoreV1().Namespaces()
	if _, err := api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("clean up namespace %s: %v", name, err)
		}
	})
	return name
}

// ConfigMap reads a ConfigMap of a cluster.
func (f *Fleet) ConfigMap(ctx context.Context, cluster, namespace, name string) (*corev1.ConfigMap, error) {
	return f.API[cluster].Kube.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
}

// ConfigMapYAML returns a ConfigMap with one value, "key".
func ConfigMapYAML(namespace, name, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: %s}\ndata: {key: %q}\n", name, namespace, value)
}

// HasValue checks the one value of a ConfigMap made by ConfigMapYAML.
func (f *Fleet) HasValue(t *testing.T, cluster, namespace, name, value string) {
	t.Helper()
	Eventually(t, func(ctx context.Context) error {
		cm, err := f.ConfigMap(ctx, cluster, namespace, name)
		if err != nil {
			return err
		}
		if cm.Data["key"] != value {
			return fmt.Errorf("%s/%s has %q, want %q", namespace, name, cm.Data["key"], value)
		}
		return nil
	})
}

// NoConfigMap waits until there is no such ConfigMap.
func (f *Fleet) NoConfigMap(t *testing.T, cluster, namespace, name string) {
	t.Helper()
	Eventually(t, func(ctx context.Context) error {
		_, err := f.ConfigMap(ctx, cluster, namespace, name)
		return Absent(err, "ConfigMap "+name)
	})
}

// MergePatch returns the patch type and the body of a Patch call.
func MergePatch(v any) (types.PatchType, []byte) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // test data
	}
	return types.MergePatchType, b
}

// DeploymentYAML returns a Deployment that any node can run.
func DeploymentYAML(namespace, name string, replicas int) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: %[2]s}}
  template:
    metadata: {labels: {app: %[2]s}}
    spec: {containers: [{name: main, image: nginx}]}
`, namespace, name, replicas)
}

// Owners checks the owner references of a ConfigMap, and their form.
func (f *Fleet) Owners(ctx context.Context, cluster, ns, name string, works ...string) error {
	cm, err := f.ConfigMap(ctx, cluster, ns, name)
	if err != nil {
		return err
	}
	var want, got []string
	for _, w := range works {
		want = append(want, f.AppliedName(w))
	}
	for _, o := range cm.OwnerReferences {
		if o.APIVersion != "work.open-cluster-management.io/v1" || o.Kind != "AppliedManifestWork" || o.Controller != nil || o.BlockOwnerDeletion != nil {
			return fmt.Errorf("owner reference %+v", o)
		}
		got = append(got, o.Name)
	}
	if !cmp.Equal(want, got) {
		return fmt.Errorf("owners %v, want %v", got, want)
	}
	return nil
}
