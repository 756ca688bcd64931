package consistency

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	workfake "open-cluster-management.io/api/client/work/clientset/versioned/fake"
	workv1 "open-cluster-management.io/api/work/v1"
)

// world is a hub and one cluster, without Hawser. The method deliver replaces Hawser.
type world struct {
	*Works
	hub, spoke *workfake.Clientset
	kube       *kubefake.Clientset
}

func newWorld() world {
	newWorks := workfake.NewSimpleClientset //nolint:staticcheck // OCM generates no other
	w := world{hub: newWorks(), spoke: newWorks(), kube: kubefake.NewClientset()}
	w.Works = &Works{
		Hub: w.hub, Clusters: map[string]Cluster{key.Cluster: {Kube: w.kube, Work: w.spoke}},
		Namespace: "ns", History: NewHistory(time.Now),
	}
	return w
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// work returns the work on the hub.
func (w world) onHub(t *testing.T) *workv1.ManifestWork {
	t.Helper()
	return must[*workv1.ManifestWork](t)(w.hub.WorkV1().ManifestWorks(key.Cluster).Get(t.Context(), key.Name, metav1.GetOptions{}))
}

func (w world) onCluster(t *testing.T) *corev1.ConfigMap {
	t.Helper()
	return must[*corev1.ConfigMap](t)(w.kube.CoreV1().ConfigMaps(w.Namespace).Get(t.Context(), key.Name, metav1.GetOptions{}))
}

func (w world) setOnHub(t *testing.T, change func(*workv1.ManifestWork)) {
	t.Helper()
	o := w.onHub(t)
	change(o)
	must[*workv1.ManifestWork](t)(w.hub.WorkV1().ManifestWorks(key.Cluster).Update(t.Context(), o, metav1.UpdateOptions{}))
}

func (w world) setOnCluster(t *testing.T, change func(*corev1.ConfigMap)) {
	t.Helper()
	o := w.onCluster(t)
	change(o)
	must[*corev1.ConfigMap](t)(w.kube.CoreV1().ConfigMaps(w.Namespace).Update(t.Context(), o, metav1.UpdateOptions{}))
}

// deliver applies counter 1 and reports it, as it should be.
func (w world) deliver(t *testing.T) {
	t.Helper()
	o := configMap("uid", "1")
	o.Data[FixedField] = FixedValue
	must[*corev1.ConfigMap](t)(w.kube.CoreV1().ConfigMaps(w.Namespace).Create(t.Context(), o, metav1.CreateOptions{}))
	applied := &workv1.AppliedManifestWork{ObjectMeta: metav1.ObjectMeta{Name: "hash-work"}, Spec: workv1.AppliedManifestWorkSpec{ManifestWorkName: key.Name}}
	must[*workv1.AppliedManifestWork](t)(w.spoke.WorkV1().AppliedManifestWorks().Create(t.Context(), applied, metav1.CreateOptions{}))
	w.History.RecordObject(key, "uid", 1)
	w.setOnHub(t, func(o *workv1.ManifestWork) {
		o.Generation = 7
		conditions := []metav1.Condition{
			{Type: workv1.WorkApplied, Status: metav1.ConditionTrue, ObservedGeneration: 7},
			{Type: workv1.WorkAvailable, Status: metav1.ConditionTrue, ObservedGeneration: 7},
		}
		o.Status.Conditions = append(slices.Clone(conditions), metav1.Condition{Type: "Delivered", Status: metav1.ConditionTrue, ObservedGeneration: 7})
		o.Status.ResourceStatus.Manifests = []workv1.ManifestCondition{{ResourceMeta: workv1.ManifestResourceMeta{Name: key.Name}, Conditions: conditions}}
	})
}

func TestWorks_Settled(t *testing.T) {
	now := metav1.Now()
	for name, tc := range map[string]struct {
		spoil func(*testing.T, world)
		want  string
	}{
		"as it should be": {func(*testing.T, world) {}, ""},
		"not on the hub": {func(t *testing.T, w world) {
			if err := w.hub.WorkV1().ManifestWorks(key.Cluster).Delete(t.Context(), key.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}, "not on the hub"},
		"being deleted": {func(t *testing.T, w world) {
			w.setOnHub(t, func(o *workv1.ManifestWork) { o.DeletionTimestamp = &now })
		}, "being deleted"},
		"another counter on the hub": {func(_ *testing.T, w world) { write(w.History) }, "the hub has 1, want 2"},
		"another counter on the cluster": {func(t *testing.T, w world) {
			w.setOnCluster(t, func(o *corev1.ConfigMap) { o.Data[counterField] = "0" })
		}, "the cluster has 0, want 1"},
		"drift": {func(t *testing.T, w world) {
			w.setOnCluster(t, func(o *corev1.ConfigMap) { o.Data[FixedField] = "spoiled" })
		}, "spoiled"},
		"no object": {func(t *testing.T, w world) {
			if err := w.kube.CoreV1().ConfigMaps(w.Namespace).Delete(t.Context(), key.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}, "not on the cluster"},
		"no AppliedManifestWork": {func(t *testing.T, w world) {
			if err := w.spoke.WorkV1().AppliedManifestWorks().Delete(t.Context(), "hash-work", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}, "no AppliedManifestWork"},
		"an unseen event": {func(_ *testing.T, w world) {
			deleteWork(w.History)
			gone(w.History)
			w.History.entries[key].deleted = false
		}, "the watch saw 1 last"},
		"status of an older generation": {func(t *testing.T, w world) {
			w.setOnHub(t, func(o *workv1.ManifestWork) { o.Generation++ })
		}, "the status of generation 8"},
		"not available": {func(t *testing.T, w world) {
			w.setOnHub(t, func(o *workv1.ManifestWork) { o.Status.Conditions[1].Status = metav1.ConditionFalse })
		}, "Available=False"},
		"a manifest not available": {func(t *testing.T, w world) {
			w.setOnHub(t, func(o *workv1.ManifestWork) {
				o.Status.ResourceStatus.Manifests[0].Conditions = o.Status.ResourceStatus.Manifests[0].Conditions[:1]
			})
		}, "the status of generation 7"},
		"a complaint of hub-source": {func(t *testing.T, w world) {
			w.setOnHub(t, func(o *workv1.ManifestWork) {
				o.Status.Conditions[2].Status = metav1.ConditionFalse
			})
		}, "Delivered=False"},
		"hub-source does not report that the cluster has answered": {func(t *testing.T, w world) {
			w.setOnHub(t, func(o *workv1.ManifestWork) { o.Status.Conditions = o.Status.Conditions[:2] })
		}, "the status of generation 7"},
		"deleted, and everything is still there": {func(_ *testing.T, w world) { deleteWork(w.History) }, "the work is still on the hub"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			if err := w.Create(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			w.deliver(t)
			tc.spoil(t, w)
			err := w.Converged(t.Context())
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestWorks_SettledAfterADeletion(t *testing.T) {
	w := newWorld()
	if err := errors.Join(w.Create(t.Context(), key), w.Delete(t.Context(), key)); err != nil {
		t.Fatal(err)
	}
	if err := w.Converged(t.Context()); err != nil {
		t.Errorf("nothing is there: %v", err)
	}
	w.History.RecordObject(key, "uid", 1)
	if err := w.Converged(t.Context()); err == nil || !strings.Contains(err.Error(), "has not seen it go") {
		t.Errorf("got %v, want that the watch has not seen it go", err)
	}
	gone(w.History)
	applied := &workv1.AppliedManifestWork{ObjectMeta: metav1.ObjectMeta{Name: "hash-work"}, Spec: workv1.AppliedManifestWorkSpec{ManifestWorkName: key.Name}}
	must[*workv1.AppliedManifestWork](t)(w.spoke.WorkV1().AppliedManifestWorks().Create(t.Context(), applied, metav1.CreateOptions{}))
	if err := w.Converged(t.Context()); err == nil || !strings.Contains(err.Error(), "AppliedManifestWork is still on the cluster") {
		t.Errorf("got %v, want the AppliedManifestWork", err)
	}
}

// failing makes the first calls of a kind fail.
func (w world) failing(verb string, times int, err error) {
	w.hub.PrependReactor(verb, "manifestworks", func(clienttesting.Action) (bool, runtime.Object, error) {
		times--
		return times >= 0, nil, err
	})
}

func TestWorks_QueryUntilTheHubAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		away := errors.New("connection refused")
		w.failing("create", 3, away)
		w.failing("patch", 3, away)
		w.failing("delete", 3, away)
		if err := errors.Join(w.Create(t.Context(), key), w.Update(t.Context(), key)); err != nil {
			t.Fatal(err)
		}
		if n := counterOf(w.onHub(t)); n != 2 {
			t.Errorf("the hub has %d, want 2", n)
		}
		if accepted, _ := w.History.Progress(); accepted != 2 {
			t.Errorf("%d accepted, want 2", accepted)
		}
		if err := w.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	})
}

func TestWorks_GiveUpWhenQueryingIsUseless(t *testing.T) {
	w := newWorld()
	if err := w.Update(t.Context(), key); !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want that there is no such work", err)
	}
	w.failing("create", 1, apierrors.NewForbidden(schema.GroupResource{Resource: "manifestworks"}, key.Name, errors.New("no")))
	if err := w.Create(t.Context(), key); !apierrors.IsForbidden(err) {
		t.Errorf("got %v, want that it is forbidden", err)
	}
	if accepted, _ := w.History.Progress(); accepted != 0 {
		t.Errorf("%d accepted, want none", accepted)
	}
}

// TestWorks_CreateAgain: a create whose answer was lost is not repeated. A create that meets the previous work
// waits until that work is gone.
func TestWorks_CreateAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		must[*workv1.ManifestWork](t)(w.hub.WorkV1().ManifestWorks(key.Cluster).Create(t.Context(), w.work(key, 1), metav1.CreateOptions{}))
		if err := w.Create(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		created := make(chan error, 1)
		go func() { created <- w.Create(t.Context(), key) }()
		time.AfterFunc(time.Minute, func() {
			if err := w.hub.WorkV1().ManifestWorks(key.Cluster).Delete(t.Context(), key.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		if err := <-created; err != nil {
			t.Fatal(err)
		}
		if n := counterOf(w.onHub(t)); n != 2 {
			t.Errorf("the hub has %d, want 2", n)
		}
	})
}

func TestEach_FirstErrorEndsAll(t *testing.T) {
	keys := make([]Key, 100)
	wrong := errors.New("wrong")
	if err := Each(t.Context(), keys, func(context.Context, Key) error { return wrong }); !errors.Is(err, wrong) {
		t.Errorf("got %v", err)
	}
	if err := Each(t.Context(), keys, func(context.Context, Key) error { return nil }); err != nil {
		t.Errorf("got %v", err)
	}
}
