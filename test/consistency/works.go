package consistency

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	workclient "open-cluster-management.io/api/client/work/clientset/versioned"
	workv1 "open-cluster-management.io/api/work/v1"
)

// Label is on every work and on every watched object.
const Label = "hawser.test/consistency"

// Cluster holds an administrator's clients of a managed cluster.
type Cluster struct {
	Kube kubernetes.Interface
	Work workclient.Interface
}

// Works writes works on the hub, one ConfigMap each. It repeats a request without an answer until ctx ends, so
// an outage of the hub only delays it. Two goroutines must not write the same work at the same time.
type Works struct {
	Hub      workclient.Interface
	Clusters map[string]Cluster
	// Namespace is the namespace of the objects, on every cluster.
	Namespace string
	History   *History
}

// Create creates a work. If an earlier one is still being deleted, it waits for its end.
func (w *Works) Create(ctx context.Context, k Key) error {
	n := w.History.Next(k)
	work := w.work(k, n)
	return w.query(ctx, k, n, func(ctx context.Context) (bool, error) {
		_, err := w.Hub.WorkV1().ManifestWorks(k.Cluster).Create(ctx, work, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			return false, err
		}
		old, err := w.Hub.WorkV1().ManifestWorks(k.Cluster).Get(ctx, k.Name, metav1.GetOptions{})
		if err != nil {
			return true, err
		}
		if old.DeletionTimestamp != nil || counterOf(old) != n {
			return true, fmt.Errorf("%s still exists", k)
		}
		return false, nil // an earlier attempt was accepted
	})
}

// Update writes the next counter into a work.
func (w *Works) Update(ctx context.Context, k Key) error {
	n := w.History.Next(k)
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"workload": w.work(k, n).Spec.Workload}})
	if err != nil {
		return err
	}
	return w.query(ctx, k, n, func(ctx context.Context) (bool, error) {
		_, err := w.Hub.WorkV1().ManifestWorks(k.Cluster).Patch(ctx, k.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return false, err
	})
}

// Delete deletes a work. It does not wait for its end.
func (w *Works) Delete(ctx context.Context, k Key) error {
	w.History.Deleting(k)
	return w.query(ctx, k, 0, func(ctx context.Context) (bool, error) {
		err := w.Hub.WorkV1().ManifestWorks(k.Cluster).Delete(ctx, k.Name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil // an earlier attempt was accepted
		}
		return false, err
	})
}

// query repeats a request until it is answered, and records an accepted counter. again reports that the error is
// temporary.
func (w *Works) query(ctx context.Context, k Key, n int64, request func(context.Context) (again bool, err error)) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, retryEvery, true, func(ctx context.Context) (bool, error) {
		again, err := request(ctx)
		if err != nil && !again && final(err) {
			return false, err
		}
		if err != nil && ctx.Err() == nil {
			last = err
		}
		return err == nil, nil
	})
	switch {
	case err == nil && n > 0:
		w.History.Accepted(k, n)
	case err != nil && last != nil:
		return fmt.Errorf("%s: %w (at last: %w)", k, err, last)
	case err != nil:
		return fmt.Errorf("%s: %w", k, err)
	}
	return nil
}

// final reports whether a repeated request would get the same error.
func final(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err)
}

// Each runs f for every key, several at a time, and returns the first error.
func Each(ctx context.Context, keys []Key, f func(context.Context, Key) error) error {
	const workers = 32
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	todo := make(chan Key)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for k := range todo {
				if err := f(ctx, k); err != nil {
					cancel(err)
				}
			}
		})
	}
	for _, k := range keys {
		todo <- k
	}
	close(todo)
	wg.Wait()
	return context.Cause(ctx)
}

// work is a work with one object.
func (w *Works) work(k Key, n int64) *workv1.ManifestWork {
	labels := map[string]string{Label: w.Namespace}
	object, err := json.Marshal(corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: k.Name, Namespace: w.Namespace, Labels: labels},
		Data:       map[string]string{counterField: strconv.FormatInt(n, 10), FixedField: FixedValue},
	})
	if err != nil {
		panic(err) // strings only
	}
	return &workv1.ManifestWork{
		ObjectMeta: metav1.ObjectMeta{Name: k.Name, Namespace: k.Cluster, Labels: labels},
		Spec: workv1.ManifestWorkSpec{
			Workload: workv1.ManifestsTemplate{Manifests: []workv1.Manifest{{RawExtension: runtime.RawExtension{Raw: object}}}},
		},
	}
}

// FixedField of every object's data always has FixedValue. A test may change it to see it repaired.
const FixedField = "fixed"

// FixedValue is the value of FixedField.
const FixedValue = "as it should be"

// counterOf reads the counter of a work of the hub, 0 when there is none.
func counterOf(work *workv1.ManifestWork) int64 {
	if len(work.Spec.Workload.Manifests) != 1 {
		return 0
	}
	var object corev1.ConfigMap
	if err := json.Unmarshal(work.Spec.Workload.Manifests[0].Raw, &object); err != nil {
		return 0
	}
	n, err := strconv.ParseInt(object.Data[counterField], 10, 64)
	if err != nil {
		return 0
	}
	return n
}
