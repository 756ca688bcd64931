package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// fixture is a core under a clock that the test moves.
type fixture struct {
	t     *testing.T
	core  *Core
	now   time.Time
	wakes []wakeup
	// hurried are the keys that the core has prioritized.
	hurried []slot
	ids     int
	lags    bool // the informer does not show the present state of the hub
}

type wakeup struct {
	queue Queue
	key   Key
	after time.Duration
}

func (f *fixture) Wake(l Queue, k Key, after time.Duration) {
	f.wakes = append(f.wakes, wakeup{l, k, after})
}

func (f *fixture) Prioritize(l Queue, k Key) { f.hurried = append(f.hurried, slot{l, k}) }

func newFixture(t *testing.T, all bool) *fixture {
	f := &fixture{t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	f.core = New(Config{Now: func() time.Time { return f.now }, Jitter: func() float64 { return 0 }, Waker: f, NewID: f.id, All: all})
	return f
}

func (f *fixture) id() string { f.ids++; return fmt.Sprint("id-", f.ids) }

// connect subscribes to a broker without an inventory.
func (f *fixture) connect() {
	f.core.Connected(transport.Accepted{Protocol: transport.Protocol})
	f.refuseInventory()
}

func (f *fixture) refuseInventory() {
	if e, ok := f.core.Next(BrokerQueue, Key{}).(RequestInventory); ok {
		f.done(e, Result{Err: &transport.Error{Code: transport.CodeInvalid}})
	}
}

func (f *fixture) seen(o *workv1.ManifestWork) { f.core.WorkSeen(f.core.Epoch(), o) }
func (f *fixture) deleted(uid types.UID)       { f.core.WorkDeleted(f.core.Epoch(), uid) }
func (f *fixture) missing(uid types.UID)       { f.core.WorkMissing(f.core.Epoch(), uid) }
func (f *fixture) selected(name string)        { f.core.ClusterSelected(f.core.Epoch(), name) }
func (f *fixture) unselected(name string)      { f.core.ClusterUnselected(f.core.Epoch(), name) }

// done passes the result of an effect to the core.
func (f *fixture) done(e Effect, r Result) {
	l, k := slotOf(f.core, e)
	f.core.Done(l, k, r)
}

// beginEpoch expects that the hub epoch ends, and shows the works of the next one.
func (f *fixture) beginEpoch(works ...*workv1.ManifestWork) BeginHubEpoch {
	f.t.Helper()
	s := nextOf[Save](f, HubQueue, Key{})
	if !s.State.suspectsAll() || s.State.Cursor != "" {
		f.t.Fatalf("saves %+v", s.State)
	}
	f.done(s, Result{})
	e := nextOf[BeginHubEpoch](f, HubQueue, Key{})
	for _, w := range works {
		f.seen(w)
	}
	f.done(e, Result{})
	return e
}

// slotOf returns the queue and the key of an effect.
func slotOf(c *Core, e Effect) (Queue, Key) {
	compares := func(k Key) bool { // a cluster's slot runs the effects about works that only the broker has
		u := c.inFlight[slot{BrokerQueue, k}]
		return u.todo != nil && u.Effect == e
	}
	switch e := e.(type) {
	case Publish:
		return BrokerQueue, Key{UID: e.Work.UID}
	case AddFinalizer:
		return BrokerQueue, Key{UID: e.Work.UID}
	case PatchStatus:
		return HubQueue, Key{UID: e.Work.UID}
	case RemoveFinalizer:
		return HubQueue, Key{UID: e.Work.UID}
	case DeleteCompleted:
		return HubQueue, Key{UID: e.Work.UID}
	case Get:
		if k := (Key{Cluster: e.Namespace}); compares(k) {
			return BrokerQueue, k
		}
		return HubQueue, Key{UID: e.UID}
	case List:
		k := Key{Cluster: e.Namespace}
		if compares(k) {
			return BrokerQueue, k
		}
		return HubQueue, k
	case Tag:
		return BrokerQueue, Key{Cluster: e.Works[0].Namespace}
	case Release:
		return BrokerQueue, Key{Cluster: e.Cluster}
	case RequestStatuses:
		return BrokerQueue, Key{Cluster: e.Cluster}
	case Delete:
		return BrokerQueue, Key{Cluster: e.Record.Cluster}
	case ReadHubPosition, Save, BeginHubEpoch:
		return HubQueue, Key{}
	}
	return BrokerQueue, Key{}
}

// next returns the next effect of a queue, which must have the given type.
func next[E Effect](f *fixture, l Queue, uid types.UID) E {
	f.t.Helper()
	e := f.core.Next(l, Key{UID: uid})
	if _, requests := any(*new(E)).(Get); requests && e == nil { // a pending publish or write triggers the query
		f.idle(BrokerQueue, uid)
		for range 2 {
			if e == nil {
				e = f.core.Next(l, Key{UID: uid})
			}
		}
	} else if e == nil && f.sure() {
		e = f.core.Next(l, Key{UID: uid})
	}
	got, ok := e.(E)
	if !ok {
		f.t.Fatalf("next of the %s lane is %T %+v, want %T", l, e, e, got)
	}
	return got
}

// sure answers the queries for works: the hub has all works that the informer shows.
func (f *fixture) sure() (requested bool) {
	for uid, w := range f.core.index.works {
		if f.lags || !w.hub.querying || w.hub.ended != alive || w.hub.object == nil || w.report.pending != nil {
			continue
		}
		if e, ok := f.core.Next(HubQueue, Key{UID: uid}).(Get); ok {
			f.done(e, Result{Work: w.hub.object})
			requested = true
		}
	}
	return requested
}

// idle asserts that a queue has no effect for a work now.
func (f *fixture) idle(l Queue, uid types.UID) {
	f.t.Helper()
	if e := f.core.Next(l, Key{UID: uid}); e != nil {
		f.t.Fatalf("next of the %s lane is %T %+v, want nothing", l, e, e)
	}
}

// deliver publishes the current state of a work and has it accepted.
func (f *fixture) deliver(uid types.UID) Publish {
	f.t.Helper()
	p := next[Publish](f, BrokerQueue, uid)
	f.ids++
	f.done(p, Result{Receipt: transport.Receipt{Outcome: "accepted", Revision: uint64(100 + f.ids)}})
	return p
}

// nextWake returns the shortest delay of a wake in one queue since the last call.
func (f *fixture) nextWake(l Queue) time.Duration {
	shortest := time.Duration(-1)
	for _, w := range f.wakes {
		if w.queue == l && w.after > 0 && (shortest < 0 || w.after < shortest) {
			shortest = w.after
		}
	}
	f.wakes = nil
	return shortest
}

// newWork is a work with its finalizer, as the informer shows it.
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

// fault returns the condition Delivered if it is False, otherwise nil.
func fault(s workv1.ManifestWorkStatus) *metav1.Condition {
	if d := delivered(s); d != nil && d.Status != metav1.ConditionTrue {
		return d
	}
	return nil
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

// eventOf returns the only event of an effect.
func eventOf(e ForBroker, newID func() string, now time.Time) (codec.Event, error) {
	events, err := e.Events(newID, now, "hub")
	if err != nil {
		return codec.Event{}, err
	}
	return events[0], nil
}
