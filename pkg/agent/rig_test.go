package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
)

const (
	testCluster = "cluster1"
	testAgentID = "agent-id"

	testClusterUID = "uid-of-kube-system"
)

var testHubHash = appliedwork.HubHash("hub.example.com:8090")

// rig drives a Core step by step, on a cluster in memory whose watches are complete, with a broker that stores
// what it receives.
type rig struct {
	t    *testing.T
	f    *clustertest.Fake
	core *Core
	now  time.Time
	*watches

	due          map[string]time.Time // when each key is due
	failures     map[string]int
	lastErr      map[string]error
	sends        map[string]bool
	refuse       func(codec.Event) error // returns the broker's error; nil: it accepts
	outcome      string                  // of accepted events
	syncs        bool                    // NextSync has an event
	syncIn       time.Duration           // the wait until that event is due
	synced       []agentSync             // the events of NextSync that were sent
	orphanReport codec.OrphanReport      // the last report that was sent
	statuses     map[string]manifestwork.StatusReport
	sent         []manifestwork.StatusReport
	revision     uint64
	other        []func() // the next actions of other clients on the cluster

	journal *memoryJournal // nil: none
	files   Journal        // used instead of journal, unless nil
	grace   time.Duration  // the grace period of evictions
	save    time.Time      // when Save is due; zero: never
	log     *slog.Logger
	// configure, if set, changes the configuration of the next agent.
	configure func(*CoreConfig)
}

type (
	ref      = kubeclient.Ref
	received = manifestwork.StatusReport
)

var accepted = transport.Accepted{Protocol: transport.Protocol, Resync: "list"}

func newRig(t *testing.T) *rig {
	r := &rig{
		t: t, grace: time.Hour, f: clustertest.New(), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		due: map[string]time.Time{}, failures: map[string]int{}, lastErr: map[string]error{}, sends: map[string]bool{},
		statuses: map[string]manifestwork.StatusReport{},
	}
	r.f.Now = func() time.Time { return r.now }
	r.watches = &watches{seen: map[kubeclient.Ref]drift.ObservedObject{}, expected: map[string]map[kubeclient.Ref]drift.Signature{}, wake: func(key string) { r.wakeAt(key, r.now.Add(r.core.Drifted(key))) }, core: func() *Core { return r.core }}
	r.f.Changed = r.watches.changed
	r.restart()
	return r
}

// newJournaledRig has an agent whose state directory is in memory.
func newJournaledRig(t *testing.T) *rig {
	r := newRig(t)
	r.journal = &memoryJournal{entries: map[string][]byte{}}
	r.restart()
	return r
}

// restart replaces the agent by one that knows only the journal. The new agent subscribes and lists its works.
func (r *rig) restart() {
	r.t.Helper()
	r.start()
	r.subscribe(accepted)
}

// start is like restart, without a subscription.
func (r *rig) start() {
	r.t.Helper()
	r.save, r.syncs = time.Time{}, false
	clear(r.due)
	clear(r.sends)
	clear(r.expected)
	ids := 0
	c := CoreConfig{
		Cluster: testCluster, ClientID: "cluster1-agent", HubHash: testHubHash, AgentID: testAgentID,
		StatusSyncInterval: 10 * time.Second, EvictionGracePeriod: r.grace,
		Client: r.f, Tracker: r.watches,
		Wait:   func(_ context.Context, d time.Duration) error { r.now = r.now.Add(d); return nil },
		Now:    func() time.Time { return r.now },
		Random: func() float64 { return 0.5 },
		NewID:  func() string { ids++; return fmt.Sprintf("e-%d", ids) },
		Wake:   func(key string, _ bool) { r.wakeAt(key, r.now) },
		Later:  func(key string, after time.Duration) { r.wakeAt(key, r.now.Add(after)) },
		Send:   func(id string) { r.sends[id] = true },
		Sync:   func(after time.Duration) { r.syncs, r.syncIn = r.syncs || after == 0, max(r.syncIn, after) },
		Save: func(after time.Duration) {
			if at := r.now.Add(after); r.save.IsZero() || at.Before(r.save) {
				r.save = at
			}
		},
		Log: r.log,
	}
	if r.journal != nil {
		r.journal.loaded = false
		c.Journal = r.journal
	}
	if r.files != nil {
		c.Journal = r.files
	}
	if r.configure != nil {
		r.configure(&c)
	}
	r.core = NewCore(c)
	for _, ref := range r.f.Refs() { // the watch begins with a list of all objects
		if ref.Resource == appliedwork.Resource.Resource {
			r.watches.discover(ref, r.f.Look(ref))
		}
	}
	if err := r.core.Start(testClusterUID); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) subscribe(a transport.Accepted) []codec.ResourceVersion {
	r.t.Helper()
	events, err := r.core.Subscribed(a)
	if err != nil || len(events) != 1 {
		r.t.Fatalf("subscribed: %v, %v", events, err)
	}
	list, err := codec.DecodeVersions(events[0].Data())
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

func (r *rig) wakeAt(key string, at time.Time) {
	if old, has := r.due[key]; !has || at.Before(old) {
		r.due[key] = at
	}
}

// settle runs until nothing is due for the given time.
func (r *rig) settle(within time.Duration) {
	r.t.Helper()
	end := r.now.Add(within)
	for steps := 0; ; steps++ {
		if steps > 2000 {
			r.t.Fatalf("does not settle: %v", r.lastErr)
		}
		for _, f := range r.other {
			f()
		}
		r.other = nil
		for _, id := range slices.Sorted(maps.Keys(r.sends)) {
			r.publish(id)
		}
		for r.syncs {
			if reported, ok := r.sync(); ok && reported.orphanReport == nil {
				r.synced = append(r.synced, reported)
			}
		}
		if !r.save.IsZero() && !r.save.After(r.now) {
			r.saveNow()
			continue
		}
		key := ""
		for _, k := range slices.Sorted(maps.Keys(r.due)) {
			if key == "" || r.due[k].Before(r.due[key]) {
				key = k
			}
		}
		if !r.save.IsZero() && !r.save.After(end) && (key == "" || r.save.Before(r.due[key])) {
			r.now = r.save
			continue
		}
		if key == "" || r.due[key].After(end) {
			r.now = end
			return
		}
		if r.due[key].After(r.now) {
			r.now = r.due[key]
		}
		delete(r.due, key)
		r.reconcile(key)
	}
}

func (r *rig) reconcile(key string) {
	next, err := r.core.Reconcile(r.t.Context(), key)
	r.lastErr[key] = err
	switch {
	case err != nil:
		r.failures[key]++
		r.wakeAt(key, r.now.Add(firstRetry<<min(r.failures[key], 15)))
	default:
		r.failures[key] = 0
	}
	if next > 0 {
		r.wakeAt(key, r.now.Add(next))
	}
}

func (r *rig) publish(id string) {
	delete(r.sends, id)
	l, ok := r.core.NextReport(id)
	if !ok {
		return
	}
	var err error
	if r.refuse != nil {
		err = r.refuse(l.Event)
	}
	if err == nil {
		s, decodeErr := manifestwork.DecodeStatus(l.Event)
		if decodeErr != nil {
			r.t.Fatal(decodeErr)
		}
		r.statuses[id] = s
		r.sent = append(r.sent, s)
	}
	if r.core.ReportDone(l, transport.Receipt{Outcome: r.outcome}, err) {
		r.sends[id] = true
	}
}

// agentSync is an event of the agent about its subscription.
type agentSync struct {
	ack          *codec.Ack
	list         []codec.ResourceVersion
	orphanReport *codec.OrphanReport
	subscription string
}

// sync sends one event of NextSync; ok is false if there is none.
func (r *rig) sync() (reported agentSync, ok bool) {
	r.t.Helper()
	r.syncs = false
	l, ok := r.core.NextSync()
	if !ok {
		return reported, false
	}
	reported.subscription = l.Subscription
	if a, err := codec.ParseAck(l.Event); err == nil {
		reported.ack = &a
	} else if u, err := codec.ParseOrphanReport(l.Event); err == nil {
		reported.orphanReport = &u
		r.orphanReport = u
	} else if reported.list, err = codec.DecodeVersions(l.Event.Data()); err != nil {
		r.t.Fatal(err)
	}
	var err error
	if r.refuse != nil {
		err = r.refuse(l.Event)
	}
	r.syncs = r.core.SyncDone(l, err)
	return reported, true
}

// saveNow calls Save, if it is due.
func (r *rig) saveNow() {
	r.save = time.Time{}
	if next := r.core.Save(r.t.Context()); next > 0 {
		if at := r.now.Add(next); r.save.IsZero() || at.Before(r.save) {
			r.save = at
		}
	}
}

// watches is a Tracker that notices every change at once, except in denied kinds.
type watches struct {
	seen     map[kubeclient.Ref]drift.ObservedObject
	expected map[string]map[kubeclient.Ref]drift.Signature
	denied   string // the resource that cannot be watched
	own      drift.OwnWrites
	wake     func(key string)
	core     func() *Core
	// requested, if set, is called once: after the next answer of LastSeen about the resource requestedKind.
	requested     func()
	requestedKind string
}

func (w *watches) changed(ref kubeclient.Ref, o *unstructured.Unstructured) {
	var s drift.ObservedObject
	if o != nil {
		s = drift.StateOf(ref.GroupVersionResource, o)
	}
	if ref.Resource == w.denied {
		return
	}
	w.seen[ref] = s
	for _, key := range slices.Sorted(maps.Keys(w.expected)) {
		switch e, tracks := w.expected[key][ref]; {
		case !tracks:
		case s.Is(e):
			w.own.AsExpected(key, ref)
		case w.own.Observe(key, ref, s):
			w.wake(key)
		}
	}
	if ref.Resource != appliedwork.Resource.Resource {
		return
	}
	if o == nil {
		w.core().Vanished(ref.Name)
	} else {
		w.discover(ref, o)
	}
}

// discover reports an AppliedManifestWork that is not tracked.
func (w *watches) discover(ref kubeclient.Ref, o *unstructured.Unstructured) {
	for _, expected := range w.expected {
		if _, tracks := expected[ref]; tracks {
			return
		}
	}
	if w.core().Discovered(o) {
		w.wake(ref.Name)
	}
}

func (w *watches) Begin(key string) { w.own.Begin(key) }

func (w *watches) RecordWrite(key string, ref kubeclient.Ref, s drift.Signature) {
	w.own.RecordWrite(key, ref, s)
}

func (w *watches) End(key string) {
	if w.own.End(key, func(ref kubeclient.Ref) (s drift.TrackingState) {
		s.Expected, s.Tracked = w.expected[key][ref]
		s.Seen, s.Known = w.seen[ref]
		return s
	}) {
		w.wake(key)
	}
}

func (w *watches) Track(key string, expected map[kubeclient.Ref]drift.Signature) {
	for ref, s := range expected { // like package drift for an object that has not changed since it is tracked
		before, tracked := w.expected[key][ref]
		if _, seen := w.seen[ref]; !seen && tracked && s != drift.Unknown && s != before {
			w.seen[ref] = drift.ObservedObject{Content: s, Exact: s}
		}
	}
	w.expected[key] = maps.Clone(expected)
	if len(expected) == 0 {
		delete(w.expected, key)
	}
}

func (w *watches) LastSeen(ref kubeclient.Ref) (drift.ObservedObject, bool) {
	s, ok := w.seen[ref]
	if f := w.requested; f != nil && ref.Resource == w.requestedKind {
		w.requested = nil
		f()
	}
	return s, ok && ref.Resource != w.denied
}

func (w *watches) Unwatched(key string) int {
	for ref := range w.expected[key] {
		if ref.Resource == w.denied {
			n := 0
			for _, expected := range w.expected {
				for ref := range expected {
					if ref.Resource == w.denied {
						n++
					}
				}
			}
			return n
		}
	}
	return 0
}

// hubWork is a ManifestWork on the hub.
func hubWork(id, name string, generation int64, manifests ...string) *workv1.ManifestWork {
	w := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: testCluster, UID: types.UID(id), Generation: generation, Labels: map[string]string{"app": name}}}
	for _, m := range manifests {
		w.Spec.Workload.Manifests = append(w.Spec.Workload.Manifests, workv1.Manifest{RawExtension: runtime.RawExtension{Raw: []byte(m)}})
	}
	return w
}

// event is the event of a Hawser broker for a published work.
func (r *rig) event(w *workv1.ManifestWork, action codec.Action, change func(*codec.Event)) codec.Event {
	r.t.Helper()
	e, err := manifestwork.EncodeSpec(w, manifestwork.SpecParams{ID: "x", Now: r.now, Source: "hub", Action: action, DeletionWithData: true})
	if err != nil {
		r.t.Fatal(err)
	}
	r.revision++
	e.SetExtension(codec.ExtRevision, strconv.FormatUint(r.revision, 10))
	if change != nil {
		change(&e)
	}
	return e
}

func (r *rig) deliver(w *workv1.ManifestWork) {
	r.t.Helper()
	r.core.Handle(r.t.Context(), r.event(w, codec.UpdateRequest, nil))
}

func (r *rig) deliverDeletion(w *workv1.ManifestWork) {
	r.t.Helper()
	r.core.Handle(r.t.Context(), r.event(w, codec.DeleteRequest, nil))
}

// apply delivers a work and settles.
func (r *rig) apply(w *workv1.ManifestWork) {
	r.t.Helper()
	r.deliver(w)
	r.settle(time.Second)
}

func (r *rig) delete(w *workv1.ManifestWork) {
	r.t.Helper()
	r.deliverDeletion(w)
	r.settle(10 * time.Second)
}

func (r *rig) record(name string) *workv1.AppliedManifestWork {
	r.t.Helper()
	o := r.f.Look(appliedwork.Ref(appliedwork.Name(testHubHash, name)))
	if o == nil {
		return nil
	}
	a := &workv1.AppliedManifestWork{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, a); err != nil {
		r.t.Fatal(err)
	}
	return a
}

// listed returns the entries of a record as "resource namespace/name uid?".
func (r *rig) listed(name string) []string {
	r.t.Helper()
	a := r.record(name)
	if a == nil {
		return nil
	}
	var l []string
	for _, e := range a.Status.AppliedResources {
		s := e.Resource + " " + e.Namespace + "/" + e.Name
		if o := r.f.Look(appliedwork.RefOf(e)); e.UID == "" {
			s += " intended"
		} else if o == nil || string(o.GetUID()) != e.UID {
			s += " other"
		}
		l = append(l, s)
	}
	return l
}

func (r *rig) expectListed(name string, want ...string) {
	r.t.Helper()
	if got := r.listed(name); !slices.Equal(got, want) {
		r.t.Fatalf("appliedResources of %s:\n got %q\nwant %q", name, got, want)
	}
}

// expectStatus compares conditions of the last status that the broker has, as "Applied=True/Reason: message".
// With an ordinal, it compares those of a manifest.
func (r *rig) expectStatus(id string, want ...string) {
	r.t.Helper()
	s, has := r.statuses[id]
	if !has {
		r.t.Fatalf("no status of %s", id)
	}
	got := show(s.Status.Conditions)
	for i := range got {
		got[i] = theFirst.ReplaceAllString(got[i], "$1$3$4")
	}
	if !slices.Equal(got, want) {
		r.t.Fatalf("conditions of %s:\n got %q\nwant %q", id, got, want)
	}
}

// theFirst matches the part of a work's condition about its first failed manifest, and the counts. Package
// conditions tests it.
var theFirst = regexp.MustCompile(`^((?:Applied|Available)=[^:]*: ).*; (\d+ of \d+ (manifests failed)|(\d+ of \d+ resources .*))$`)

func (r *rig) expectManifest(id string, ordinal int, want ...string) {
	r.t.Helper()
	m := r.statuses[id].Status.ResourceStatus.Manifests
	if ordinal >= len(m) {
		r.t.Fatalf("%s has %d manifests", id, len(m))
	}
	if got := show(m[ordinal].Conditions); !slices.Equal(got, want) {
		r.t.Fatalf("conditions of manifest %d of %s:\n got %q\nwant %q", ordinal, id, got, want)
	}
}

func show(list []metav1.Condition) []string {
	var got []string
	for _, c := range list {
		got = append(got, fmt.Sprintf("%s=%s/%s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return got
}

const (
	workApplied      = "Applied=True/AppliedManifestWorkComplete: Apply manifest work complete"
	workFailed       = "Applied=False/AppliedManifestWorkFailed: manifests failed"
	workAvailable    = "Available=True/ResourcesAvailable: All resources are available"
	manifestApplied  = "Applied=True/AppliedManifestComplete: Apply manifest complete"
	resourceThere    = "Available=True/ResourceAvailable: Resource is available"
	resourceNotThere = "Available=False/ResourceNotAvailable: Resource is not available"
	noFeedback       = "StatusFeedbackSynced=True/NoStatusFeedbackSynced: "
	workDeleting     = "Deleting=True/WorkDeleting: ManifestWork is being deleted"
	workDeleted      = "Deleted=True/ManifestsDeleted: The manifests are deleted from the cluster cluster1"
)

func (r *rig) configMap(name string) *unstructured.Unstructured {
	return r.f.Look(r.ref("ConfigMap", name))
}

func (r *rig) ref(kind, name string) ref {
	if kind == "Deployment" {
		return r.f.Ref("apps/v1", kind, "default", name)
	}
	return r.f.Ref("v1", kind, "default", name)
}

func configMap(name, value string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":"default"},"data":{"k":%q}}`, name, value)
}

func deployment(name, image string) string {
	return fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":%q,"namespace":"default"},"spec":{"template":{"image":%q}}}`, name, image)
}

// requests returns the calls since the last time, without those of discovery.
func (r *rig) requests() []string {
	var calls []string
	for _, c := range r.f.TakeCalls() {
		if c.Verb != "resolve" {
			calls = append(calls, strings.ReplaceAll(c.String(), testHubHash, "hash"))
		}
	}
	return calls
}

func (r *rig) expectRequests(want ...string) {
	r.t.Helper()
	if got := r.requests(); !slices.Equal(got, want) {
		r.t.Fatalf("requests:\n got %q\nwant %q", got, want)
	}
}

var errAway = &transport.Error{Code: transport.CodeUnavailable, Message: "away"}

var errDenied = errors.New("denied")

func condition(list []metav1.Condition, typ string) *metav1.Condition {
	return apimeta.FindStatusCondition(list, typ)
}
