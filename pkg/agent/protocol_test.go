package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
)

// The cases are those of the conformance list of the OCM protocol that concern
// agents.

var ocmAccepted = transport.Accepted{SubscriptionID: "s"}

// ocmEvent returns a spec event without the attributes of Hawser brokers.
func (r *rig) ocmEvent(w *workv1.ManifestWork, action codec.Action, change func(*codec.Event)) codec.Event {
	e, err := manifestwork.EncodeSpec(w, manifestwork.SpecParams{ID: "x", Now: r.now, Source: "hub", Action: action})
	if err != nil {
		r.t.Fatal(err)
	}
	if change != nil {
		change(&e)
	}
	return e
}

func (r *rig) handle(e codec.Event) {
	r.core.Handle(r.t.Context(), e)
	r.settle(time.Second)
}

func TestC11_EventWithoutResourceVersionIsDropped(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, configMap("a", "1"))
	r.apply(w)
	without := func(e *codec.Event) { e.SetExtension(codec.ExtResourceVersion, nil) }
	r.handle(r.event(hubWork("w-1", "web", 2, configMap("b", "1")), codec.UpdateRequest, without))
	r.handle(r.event(w, codec.DeleteRequest, without))
	if r.configMap("a") == nil || r.configMap("b") != nil || r.core.Counts().Live != 1 {
		t.Fatal("an event without a version was applied")
	}
}

func TestC12_SpecForAnotherClusterIsIgnored(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"cluster2", ""} {
		r.handle(r.event(hubWork("w-1", "web", 1, configMap("a", "1")), codec.CreateRequest, func(e *codec.Event) { e.SetExtension(codec.ExtClusterName, name) }))
	}
	if r.configMap("a") != nil || r.core.Counts() != (Counts{}) {
		t.Fatal("a work of another cluster was taken")
	}
}

// An OCM agent silently drops such events. The Hawser agent records the version, keeps what was applied before,
// and reports the error.
func TestC13_UnusableWork_IsReported(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	for generation, c := range map[int64]struct {
		why       string
		manifests []string
	}{
		2: {"a work needs at least one manifest", nil},
		3: {"too large: the manifests are ", []string{configMap("a", strings.Repeat("x", manifestwork.MaxManifestsSize))}},
		4: {"manifest 0 has metadata.generateName", []string{`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"a-","namespace":"default"}}`}},
	} {
		r.apply(hubWork("w-1", "web", generation, c.manifests...))
		got := condition(r.statuses["w-1"].Status.Conditions, "Applied")
		if got.Status != "False" || !strings.HasPrefix(got.Message, c.why) || got.ObservedGeneration != generation || r.statuses["w-1"].Version != generation {
			t.Errorf("generation %d: got %+v", generation, got)
		}
		if rec := r.record("web"); rec.Annotations[appliedwork.AnnotationVersion] != "1" {
			t.Errorf("the record has version %s", rec.Annotations[appliedwork.AnnotationVersion])
		}
		if got := r.statuses["w-1"].Status.ResourceStatus.Manifests[0].Conditions; condition(got, "Applied").ObservedGeneration != 1 {
			t.Errorf("the conditions are not of generation 1: %+v", got)
		}
		if r.configMap("a") == nil {
			t.Fatalf("generation %d: the applied object was deleted", generation)
		}
	}
	r.f.Remove(r.ref("ConfigMap", "a"))
	r.settle(time.Second)
	if r.configMap("a") == nil {
		t.Error("the applied object is not repaired")
	}
	r.apply(hubWork("w-1", "web", 5, configMap("a", "2")))
	r.expectStatus("w-1", workApplied, workAvailable)

	r.apply(hubWork("w-2", "never", 1))
	r.expectStatus("w-2", "Applied=False/AppliedManifestWorkFailed: a work needs at least one manifest")
	r.requests()
	r.settle(30 * time.Minute)
	r.expectRequests()
}

func TestC14_VersionsFromAnOCMBroker(t *testing.T) {
	r := newRig(t)
	r.subscribe(ocmAccepted)
	deliver := func(version int64, value string) {
		r.handle(r.ocmEvent(hubWork("w-1", "web", version, configMap("a", value)), codec.UpdateRequest, nil))
	}
	expect := func(value string) {
		t.Helper()
		if got := r.configMap("a").Object["data"].(map[string]any)["k"]; got != value {
			t.Fatalf("got %v, want %s", got, value)
		}
	}
	deliver(5, "five")
	deliver(4, "four")
	expect("five")
	deliver(5, "other five")
	expect("other five")
	deliver(0, "unversioned")
	expect("unversioned")
	if r.record("web").Finalizers[0] != workv1.AppliedManifestWorkFinalizer {
		t.Error("the finalizer was removed")
	}
}

func TestC15_KnownWorkUnderAnotherName(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "a", 1, configMap("shared", "1"), configMap("only-a", "1")))
	uid := r.configMap("shared").GetUID()
	r.apply(hubWork("w-1", "b", 2, configMap("shared", "1"), configMap("only-b", "1")))
	r.settle(10 * time.Second)
	if r.record("a") != nil || r.record("b") == nil || r.configMap("only-a") != nil || r.configMap("only-b") == nil {
		t.Fatalf("records %v and %v", r.record("a"), r.record("b"))
	}
	if o := r.configMap("shared"); o == nil || o.GetUID() != uid || len(o.GetOwnerReferences()) != 1 {
		t.Fatalf("what both names have is to stay as it is: %v", o)
	}
	if len(r.core.states) != 1 {
		t.Errorf("%d keys are remembered", len(r.core.states))
	}
}

func TestC16_EventWithoutMetadata(t *testing.T) {
	r := newRig(t)
	r.handle(r.event(hubWork("w-1", "web", 1, configMap("a", "1")), codec.CreateRequest, func(e *codec.Event) { e.SetExtension(codec.ExtMetadata, "") }))
	if r.record("w-1") == nil {
		t.Fatal("the work is to be named after its id")
	}
	r.expectStatus("w-1", workApplied, workAvailable)
}

func TestC17_C18_DeletedReport(t *testing.T) {
	r := newRig(t)
	r.subscribe(ocmAccepted)
	w := hubWork("w-9", "gone", 3)
	r.refuse = func(codec.Event) error { return errAway }
	r.core.Handle(t.Context(), r.ocmEvent(w, codec.DeleteRequest, nil))
	r.due["x"] = r.now.Add(time.Hour)
	for range 3 { // refused three times
		key := r.core.keyOf("gone")
		delete(r.due, key)
		r.reconcile(key)
		r.publish("w-9")
		if !r.sends["w-9"] {
			t.Fatal("a report that was not accepted is given up")
		}
	}
	r.refuse = nil
	r.settle(time.Second)
	r.expectStatus("w-9", workDeleted)
	if s := r.statuses["w-9"]; s.Action != codec.UpdateRequest || s.Version != 3 || r.core.Counts() != (Counts{}) {
		t.Fatalf("got %+v", s)
	}
}

// The broker repeats a deletion, for example at a resync, while the report of its completion is in flight.
func TestC18_DeletionRepeatedWhileItsEndIsReported(t *testing.T) {
	r := newRig(t)
	r.subscribe(ocmAccepted)
	deletion := r.ocmEvent(hubWork("w-9", "gone", 3), codec.DeleteRequest, nil)
	r.core.Handle(t.Context(), deletion)
	r.reconcile(r.core.keyOf("gone"))
	l, ok := r.core.NextReport("w-9")
	if !ok || !l.Deleted {
		t.Fatalf("got %+v, %t, want the report of its end", l, ok)
	}
	r.core.Handle(t.Context(), deletion)
	if !r.core.ReportDone(l, transport.Receipt{}, nil) {
		t.Fatal("the repeated deletion is not answered")
	}
	r.publish("w-9")
	r.expectStatus("w-9", workDeleted)
	r.settle(time.Second)
	if len(r.sent) != 1 || r.core.Counts() != (Counts{}) {
		t.Fatalf("%d more reports, and the core has %+v", len(r.sent), r.core.Counts())
	}
}

func TestC19_StatusEvent(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	r.apply(hubWork("w-1", "web", 2, configMap("a", "2")))
	if len(r.sent) != 2 {
		t.Fatalf("%d statuses", len(r.sent))
	}
	newer, err := codec.CompareSequence(r.sent[0].SequenceID, r.sent[1].SequenceID)
	if err != nil || !newer {
		t.Fatalf("sequence ids %s, %s: %v", r.sent[0].SequenceID, r.sent[1].SequenceID, err)
	}
	for i, s := range r.sent {
		hash, err := manifestwork.StatusHash(s.Status)
		if err != nil || s.Hash != hash || s.Version != int64(i+1) || s.OriginalSource != "hub" || s.Action != codec.UpdateRequest {
			t.Errorf("got %+v, %v", s, err)
		}
	}
}

func (r *rig) requestStatuses(cluster string, hashes ...codec.StatusHash) []received {
	r.t.Helper()
	e, err := codec.NewStatusResyncRequest(codec.ResyncParams{ID: "q", Time: r.now, Source: "hub", Cluster: cluster, DataType: codec.ManifestBundles}, hashes)
	if err != nil {
		r.t.Fatal(err)
	}
	before := len(r.sent)
	r.handle(e)
	return r.sent[before:]
}

func answered(list []received) (ids []string) {
	for _, s := range list {
		ids = append(ids, s.ResourceID+" "+string(s.Action))
	}
	return ids
}

func TestC23_C24_C25_StatusResync(t *testing.T) {
	r := newRig(t)
	for _, id := range []string{"1", "2", "3"} {
		r.apply(hubWork(id, "n"+id, 1, configMap("c"+id, "1")))
	}
	for _, c := range []struct {
		cluster string
		hashes  []codec.StatusHash
		want    []string
	}{
		{testCluster, nil, []string{"1 resync_response", "2 resync_response", "3 resync_response"}},
		{"", nil, []string{"1 resync_response", "2 resync_response", "3 resync_response"}},
		{"another", []codec.StatusHash{{ResourceID: "1", StatusHash: r.statuses["1"].Hash}, {ResourceID: "2", StatusHash: "x"}}, []string{"2 resync_response"}},
	} {
		if d := cmp.Diff(c.want, answered(r.requestStatuses(c.cluster, c.hashes...))); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
	}
	// A spec resync request is not for agents.
	request := codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: codec.ResyncRequest}.String()
	r.handle(r.event(hubWork("x", "x", 1, configMap("x", "1")), codec.UpdateRequest, func(e *codec.Event) { e.SetType(request) }))
	if r.core.Counts().Live != 3 {
		t.Error("a request was taken for a spec")
	}
}

func TestC26_ListOfHeldWorks(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-2", "b", 7, configMap("b", "1")))
	r.apply(hubWork("w-1", "a", 3, configMap("a", "1")))
	r.apply(hubWork("w-3", "c", 1)) // rejected; the version still counts as received
	got := r.subscribe(accepted)
	want := []codec.ResourceVersion{
		{ResourceID: "w-1", ResourceVersion: 3, Tag: r.core.set.Get("w-1").Tag.String()},
		{ResourceID: "w-2", ResourceVersion: 7, Tag: r.core.set.Get("w-2").Tag.String()},
		{ResourceID: "w-3", ResourceVersion: 1, Tag: r.core.set.Get("w-3").Tag.String()},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("(-want +got)\n%s", d)
	}
}

func TestCore_OCMBrokerForeignSourcesChangeNothing(t *testing.T) {
	r := newRig(t)
	r.subscribe(ocmAccepted)
	w := hubWork("w-1", "web", 1, configMap("a", "1"))
	r.handle(r.ocmEvent(w, codec.CreateRequest, nil))
	foreign := func(e *codec.Event) { e.SetSource("source") }
	r.handle(r.ocmEvent(w, codec.DeleteRequest, foreign))
	r.handle(r.ocmEvent(hubWork("w-1", "web", 2, configMap("b", "1")), codec.UpdateRequest, foreign))
	if r.configMap("a") == nil || r.configMap("b") != nil {
		t.Fatal("a source that does not own the work changed it")
	}
	r.handle(r.ocmEvent(w, codec.DeleteRequest, nil))
	r.settle(time.Second)
	if r.configMap("a") != nil || !r.statuses["w-1"].Deleted {
		t.Fatal("the owner's deletion did not count")
	}
}

// A broker that lost its store sends its works again, and receives the status.
func TestCore_RepeatedSpecIsAnsweredWithTheStatus(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, configMap("a", "1"))
	r.apply(w)
	before := len(r.sent)
	r.requests()
	r.apply(w)
	if len(r.sent) != before+1 || r.sent[before].Hash != r.sent[before-1].Hash {
		t.Fatalf("%d statuses", len(r.sent))
	}
	r.expectRequests()
}

// Scenario:
//
//	t1: version 1 of a work is applied and reported.
//	t2: version 2 is received, and not applied yet.
//	t3: version 2 arrives again, because a client does not have the answer.
//
// Result: nothing is sent, because the present status is of version 1.
func TestCore_RepeatedSpecIsNotAnsweredWithTheStatusOfAnEarlierOne(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	before := len(r.sent)
	second := hubWork("w-1", "web", 2, configMap("a", "2"))
	for range 2 {
		r.deliver(second)
		if len(r.sends) > 0 {
			r.publish("w-1")
		}
	}
	if got := r.sent[before:]; len(got) != 0 {
		t.Fatalf("sent %+v to a client that knows version 2", got)
	}
	r.settle(time.Second)
	if got := r.sent[before:]; len(got) != 1 || got[0].Version != 2 {
		t.Errorf("sent %+v, want the status of version 2", got)
	}
}

// A work whose record was dropped came back with other labels: the broker has no status of it, and nothing on
// the cluster changes.
func TestCore_EverySpecIsAnswered(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, configMap("a", "1"))
	r.apply(w)
	before := len(r.sent)
	w.Labels = map[string]string{"tier": "front"}
	r.apply(w)
	if len(r.sent) != before+1 || r.sent[before].Hash != r.sent[before-1].Hash {
		t.Fatalf("%d statuses", len(r.sent)-before)
	}
}

func TestCore_WorkRecreated(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 5, configMap("a", "1"))
	r.apply(w)
	old := r.record("web").UID

	t.Run("under another id, the deletion unseen", func(t *testing.T) {
		uid := r.configMap("a").GetUID()
		r.apply(hubWork("w-2", "web", 1, configMap("a", "1"), configMap("b", "1")))
		if r.configMap("a").GetUID() != uid || r.record("web").UID != old || r.record("web").Annotations[appliedwork.AnnotationWorkID] != "w-2" {
			t.Fatal("the objects are to stay with the name")
		}
		r.delete(w) // the deletion of the first work arrives late
		if r.configMap("a") == nil || !r.statuses["w-1"].Deleted {
			t.Fatal("a late deletion took the objects of the new work")
		}
		r.expectStatus("w-2", workApplied, workAvailable)
	})
	t.Run("under the same id, while it is being deleted", func(t *testing.T) {
		second := hubWork("w-2", "web", 1, configMap("a", "1"), configMap("b", "1"))
		r.deliverDeletion(second)
		r.reconcile(r.core.keyOf("web")) // the objects are being deleted
		again := hubWork("w-2", "web", 1, configMap("a", "again"))
		r.apply(again)
		r.settle(10 * time.Second)
		if a := r.configMap("a"); a == nil || a.Object["data"].(map[string]any)["k"] != "again" || r.configMap("b") != nil {
			t.Fatalf("got %v", r.configMap("a"))
		}
		if s := r.statuses["w-2"]; s.Deleted || slices.ContainsFunc(show(s.Status.Conditions), func(c string) bool { return c == workDeleting }) {
			t.Fatalf("got %q", show(s.Status.Conditions))
		}
		r.expectListed("web", "configmaps default/a")
	})
	t.Run("under the same id, after the end was reported", func(t *testing.T) {
		live := hubWork("w-2", "web", 1, configMap("a", "again"))
		r.core.Disconnected(errAway)
		r.delete(live)
		r.apply(hubWork("w-2", "web", 1, configMap("a", "again")))
		r.subscribe(accepted)
		r.settle(time.Second)
		if r.configMap("a") == nil {
			t.Fatal("the new work is not there")
		}
		r.expectStatus("w-2", workApplied, workAvailable)
	})
}

func TestCore_StatusOfAnOutdatedSpecIsNotSent(t *testing.T) {
	r := newRig(t)
	r.deliver(hubWork("w-1", "web", 1, configMap("a", "1")))
	r.f.Refuse = nil
	reconciliation := r.core.begin(r.core.keyOf("web"))
	r.deliver(hubWork("w-1", "web", 2, configMap("a", "2"))) // arrives while the reconciliation runs
	if _, err := reconciliation.applyWork(t.Context(), reconciliation.view.Live); err != nil {
		t.Fatal(err)
	}
	r.settle(time.Second)
	if len(r.sent) != 1 || r.sent[0].Version != 2 {
		t.Fatalf("got %d statuses, the first of version %d", len(r.sent), r.sent[0].Version)
	}
}

func TestCore_IgnoresEventsForOtherReceivers(t *testing.T) {
	r := newRig(t)
	for _, typ := range []string{
		codec.TypeCheckpoint, "a.b", "cluster.open-cluster-management.io.v1.managedclusters.spec.create_request",
		codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Status, Action: codec.UpdateRequest}.String(),
	} {
		r.handle(r.event(hubWork("w-1", "web", 1, configMap("a", "1")), codec.CreateRequest, func(e *codec.Event) { e.SetType(typ) }))
	}
	e, err := codec.NewStatusResyncRequest(codec.ResyncParams{ID: "q", Time: r.now, Source: "hub", DataType: codec.ManifestBundles}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.SetData("application/json", []byte(`[]`)); err != nil {
		t.Fatal(err)
	}
	r.handle(e)
	if r.configMap("a") != nil || r.core.Counts() != (Counts{}) || len(r.sent) != 0 {
		t.Fatal("something came of it")
	}
}
