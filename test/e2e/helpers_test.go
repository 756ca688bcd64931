package e2e

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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	workv1 "open-cluster-management.io/api/work/v1"
	"sigs.k8s.io/yaml"
)

// within is how long anything on a busy machine may take to converge.
const within = 45 * time.Second

// eventually waits until check returns nil.
func eventually(t *testing.T, check func(ctx context.Context) error) {
	t.Helper()
	eventuallyWithin(t, within, check)
}

func eventuallyWithin(t *testing.T, within time.Duration, check func(ctx context.Context) error) {
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

// stays checks that a condition holds for a while, long enough for a wrong step
// to show.
func stays(t *testing.T, check func(ctx context.Context) error) {
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

// absent takes the error of a GET and wants "not found".
func absent(err error, what string) error {
	switch {
	case err == nil:
		return errors.New(what + " is still there")
	case apierrors.IsNotFound(err):
		return nil
	}
	return err
}

// newWork makes a work of YAML manifests.
func newWork(t *testing.T, cluster, name string, manifests ...string) *workv1.ManifestWork {
	t.Helper()
	w := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{Namespace: cluster, Name: name}}
	for _, m := range manifests {
		w.Spec.Workload.Manifests = append(w.Spec.Workload.Manifests, manifest(t, m))
	}
	return w
}

func manifest(t *testing.T, text string) workv1.Manifest {
	t.Helper()
	b, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return workv1.Manifest{RawExtension: runtime.RawExtension{Raw: b}}
}

// create creates the work and removes it when the test ends.
func (f *Fleet) create(t *testing.T, w *workv1.ManifestWork) *workv1.ManifestWork {
	t.Helper()
	got, err := f.hub.work.WorkV1().ManifestWorks(w.Namespace).Create(t.Context(), w, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := f.hub.work.WorkV1().ManifestWorks(w.Namespace).Delete(context.Background(), w.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("clean up %s: %v", w.Name, err)
		}
	})
	return got
}

// update changes the work, again when somebody else did in between.
func (f *Fleet) update(t *testing.T, cluster, name string, change func(*workv1.ManifestWork)) *workv1.ManifestWork {
	t.Helper()
	var got *workv1.ManifestWork
	eventually(t, func(ctx context.Context) error {
		w, err := f.hub.work.WorkV1().ManifestWorks(cluster).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(w)
		got, err = f.hub.work.WorkV1().ManifestWorks(cluster).Update(ctx, w, metav1.UpdateOptions{})
		return err
	})
	return got
}

func (f *Fleet) get(ctx context.Context, cluster, name string) (*workv1.ManifestWork, error) {
	return f.hub.work.WorkV1().ManifestWorks(cluster).Get(ctx, name, metav1.GetOptions{})
}

func (f *Fleet) deleteWork(t *testing.T, cluster, name string) {
	t.Helper()
	if err := f.hub.work.WorkV1().ManifestWorks(cluster).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// gone waits until the work has left the hub and its AppliedManifestWork the
// cluster.
func (f *Fleet) gone(t *testing.T, cluster, name string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		_, err := f.get(ctx, cluster, name)
		if err := absent(err, "ManifestWork "+name); err != nil {
			return err
		}
		_, err = f.applied(ctx, cluster, name)
		return absent(err, "AppliedManifestWork of "+name)
	})
}

// appliedName is the name the protocol prescribes: the hash of the hub's
// identity, which is the broker's URL where nothing else is configured.
func (f *Fleet) appliedName(work string) string {
	sum := sha256.Sum256([]byte(f.BrokerAddr()))
	return hex.EncodeToString(sum[:]) + "-" + work
}

func (f *Fleet) applied(ctx context.Context, cluster, work string) (*workv1.AppliedManifestWork, error) {
	return f.clusters[cluster].work.WorkV1().AppliedManifestWorks().Get(ctx, f.appliedName(work), metav1.GetOptions{})
}

// ready waits until both conditions of the work are True for its generation.
func (f *Fleet) ready(t *testing.T, w *workv1.ManifestWork) *workv1.ManifestWork {
	t.Helper()
	return f.conditionsAre(t, w, map[string]metav1.ConditionStatus{workv1.WorkApplied: metav1.ConditionTrue, workv1.WorkAvailable: metav1.ConditionTrue})
}

func (f *Fleet) conditionsAre(t *testing.T, w *workv1.ManifestWork, want map[string]metav1.ConditionStatus) *workv1.ManifestWork {
	t.Helper()
	var got *workv1.ManifestWork
	eventually(t, func(ctx context.Context) (err error) {
		if got, err = f.get(ctx, w.Namespace, w.Name); err != nil {
			return err
		}
		for typ, status := range want {
			c := meta.FindStatusCondition(got.Status.Conditions, typ)
			if c == nil || c.Status != status || c.ObservedGeneration < w.Generation {
				return fmt.Errorf("%s: want %s=%s for generation %d, status is %s", w.Name, typ, status, w.Generation, statusText(got))
			}
		}
		return nil
	})
	return got
}

func statusText(w *workv1.ManifestWork) string {
	b, err := json.Marshal(w.Status)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// manifestCondition waits for a condition of one manifest.
func (f *Fleet) manifestCondition(t *testing.T, w *workv1.ManifestWork, ordinal int, typ string, want func(metav1.Condition) bool) metav1.Condition {
	t.Helper()
	var got metav1.Condition
	eventually(t, func(ctx context.Context) error {
		live, err := f.get(ctx, w.Namespace, w.Name)
		if err != nil {
			return err
		}
		if len(live.Status.ResourceStatus.Manifests) <= ordinal {
			return fmt.Errorf("no status of manifest %d: %s", ordinal, statusText(live))
		}
		c := meta.FindStatusCondition(live.Status.ResourceStatus.Manifests[ordinal].Conditions, typ)
		if c == nil || !want(*c) {
			return fmt.Errorf("manifest %d has %v: %s", ordinal, c, statusText(live))
		}
		got = *c
		return nil
	})
	return got
}

// namespaceOn makes a namespace on a managed cluster for one test.
func (f *Fleet) namespaceOn(t *testing.T, cluster string) string {
	t.Helper()
	name := strings.Trim(strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name())), "-")
	if len(name) > 50 {
		name = name[len(name)-50:]
	}
	name = strings.Trim(name, "-")
	api := f.clusters[cluster].kube.CoreV1().Namespaces()
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

func (f *Fleet) configMap(ctx context.Context, cluster, namespace, name string) (*corev1.ConfigMap, error) {
	return f.clusters[cluster].kube.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
}

func configMapYAML(namespace, name, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: %s}\ndata: {key: %q}\n", name, namespace, value)
}

// hasValue checks the one value of a ConfigMap made by configMapYAML.
func (f *Fleet) hasValue(t *testing.T, cluster, namespace, name, value string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		cm, err := f.configMap(ctx, cluster, namespace, name)
		if err != nil {
			return err
		}
		if cm.Data["key"] != value {
			return fmt.Errorf("%s/%s has %q, want %q", namespace, name, cm.Data["key"], value)
		}
		return nil
	})
}

func (f *Fleet) noConfigMap(t *testing.T, cluster, namespace, name string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		_, err := f.configMap(ctx, cluster, namespace, name)
		return absent(err, "ConfigMap "+name)
	})
}

func mergePatch(v any) (types.PatchType, []byte) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // test data
	}
	return types.MergePatchType, b
}
