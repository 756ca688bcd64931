package hubsource

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/transport"
)

// fixture is a core under a clock that stands still until it is moved.
type fixture struct {
	t     *testing.T
	core  *Core
	now   time.Time
	wakes []wakeup
	lags  bool // what the informer shows is not what the hub has
}

type wakeup struct {
	lane  Lane
	key   Key
	after time.Duration
}

func (f *fixture) Wake(l Lane, k Key, after time.Duration) {
	f.wakes = append(f.wakes, wakeup{l, k, after})
}

func newFixture(t *testing.T, all bool) *fixture {
	f := &fixture{t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	f.core = NewCore(CoreConfig{Now: func() time.Time { return f.now }, Jitter: func() float64 { return 0 }, Waker: f, All: all})
	return f
}

func (f *fixture) connect() { f.core.Connected(transport.Accepted{Protocol: 1}) }

// next returns the next effect of a lane, which must have the given type.
func next[E Effect](f *fixture, l Lane, uid types.UID) E {
	f.t.Helper()
	e := f.core.Next(l, Key{UID: uid})
	if e == nil && f.sure() {
		e = f.core.Next(l, Key{UID: uid})
	}
	got, ok := e.(E)
	if !ok {
		f.t.Fatalf("next of the %s lane is %T %+v, want %T", l, e, e, got)
	}
	return got
}

// sure answers those who ask which works there are: all that the informer shows.
func (f *fixture) sure() (asked bool) {
	for _, cl := range f.core.clusters {
		if e := f.core.nextAlive(cl); e != nil && !f.lags {
			alive := Alive{}
			for uid, w := range cl.works {
				alive[uid] = w.seen != nil && w.seen.DeletionTimestamp == nil
			}
			f.core.Done(e, Result{Alive: alive})
			asked = true
		}
	}
	return asked
}

// idle asserts that a lane has nothing to do now.
func (f *fixture) idle(l Lane, uid types.UID) {
	f.t.Helper()
	if e := f.core.Next(l, Key{UID: uid}); e != nil {
		f.t.Fatalf("next of the %s lane is %T %+v, want nothing", l, e, e)
	}
}

// deliver publishes the current state of a work and has it accepted.
func (f *fixture) deliver(uid types.UID) Publish {
	f.t.Helper()
	p := next[Publish](f, SpecLane, uid)
	f.core.Done(p, Result{Receipt: transport.Receipt{Outcome: "accepted"}})
	return p
}

// nextWake is the shortest delay asked for since the last call, for one lane.
func (f *fixture) nextWake(l Lane) time.Duration {
	shortest := time.Duration(-1)
	for _, w := range f.wakes {
		if w.lane == l && w.after > 0 && (shortest < 0 || w.after < shortest) {
			shortest = w.after
		}
	}
	f.wakes = nil
	return shortest
}

// newWork is a work as the informer has it, with the finalizer on.
func newWork(name string, generation int64, change ...func(*workv1.ManifestWork)) *workv1.ManifestWork {
	w := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{
		Namespace: "cluster1", Name: name, UID: types.UID("uid-" + name), Generation: generation,
		ResourceVersion: fmt.Sprint(100 + generation), Finalizers: []string{workv1.ManifestWorkFinalizer},
	}}
	w.Spec.Workload.Manifests = []workv1.Manifest{{RawExtension: runtime.RawExtension{
		Raw: []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default"}}`)}}}
	for _, c := range change {
		c(w)
	}
	return w
}

func withoutFinalizer(w *workv1.ManifestWork) { w.Finalizers = nil }

func version(rv string) func(*workv1.ManifestWork) {
	return func(w *workv1.ManifestWork) { w.ResourceVersion = rv }
}

func deleting(w *workv1.ManifestWork) {
	w.DeletionTimestamp = &metav1.Time{Time: time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)}
}

func sized(manifestBytes int) func(*workv1.ManifestWork) {
	return func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests = []workv1.Manifest{{RawExtension: runtime.RawExtension{Raw: make([]byte, manifestBytes)}}}
	}
}

func withStatus(s workv1.ManifestWorkStatus) func(*workv1.ManifestWork) {
	return func(w *workv1.ManifestWork) { w.Status = s }
}

// applied is the status of an agent that applied a generation.
func applied(generation int64) workv1.ManifestWorkStatus {
	return workv1.ManifestWorkStatus{Conditions: []metav1.Condition{
		{Type: "Available", Status: metav1.ConditionTrue, Reason: "ResourcesAvailable", ObservedGeneration: generation, LastTransitionTime: metav1.Unix(7, 0)},
		{Type: "Applied", Status: metav1.ConditionTrue, Reason: "AppliedManifestWorkComplete", ObservedGeneration: generation, LastTransitionTime: metav1.Unix(7, 0)},
	}}
}

// sequence is a valid sequence id; a higher n is newer.
func sequence(n int) string { return fmt.Sprint(int64(n)<<22 | 1<<12) }

func report(w *workv1.ManifestWork, n int, s workv1.ManifestWorkStatus) *Report {
	return &Report{UID: w.UID, Cluster: w.Namespace, Name: w.Name, Version: w.Generation, Sequence: sequence(n), Hash: fmt.Sprint("hash-", n), Status: s}
}

func delivered(s workv1.ManifestWorkStatus) *metav1.Condition {
	if i := slices.IndexFunc(s.Conditions, isDelivered); i >= 0 {
		return &s.Conditions[i]
	}
	return nil
}

var worksResource = schema.GroupResource{Group: workv1.GroupName, Resource: "manifestworks"}

func errConflict() error { return apierrors.NewConflict(worksResource, "w", nil) }
func errNotFound() error { return apierrors.NewNotFound(worksResource, "w") }
func errHubDown() error  { return apierrors.NewServiceUnavailable("hub is down") }
func errInvalid() error {
	return apierrors.NewInvalid(schema.GroupKind{Group: workv1.GroupName, Kind: "ManifestWork"}, "w", nil)
}

func TestTrim_KeepsWhatIsNotNoise(t *testing.T) {
	w := newWork("w", 1, func(w *workv1.ManifestWork) {
		w.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
		w.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "a": "b"}
	})
	Trim(w)
	if w.ManagedFields != nil || len(w.Annotations) != 1 || w.Annotations["a"] != "b" {
		t.Errorf("trimmed to %v and %v", w.ManagedFields, w.Annotations)
	}
}
