package core

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
)

func TestCore_PutsFinalizerBeforeFirstEvent(t *testing.T) {
	f := newFixture(t, true)
	f.seen(newWork("w", 1, withoutFinalizer))
	f.idle(BrokerQueue, "uid-w") // there is no session yet
	f.connect()
	e := next[AddFinalizer](f, BrokerQueue, "uid-w")
	f.idle(BrokerQueue, "uid-w") // one effect runs at a time
	f.done(e, Result{Work: newWork("w", 1, version("102"))})
	p := f.deliver("uid-w")
	if p.Action != codec.CreateRequest || !hasFinalizer(p.Work) {
		t.Errorf("published %s with finalizers %v", p.Action, p.Work.Finalizers)
	}
	f.idle(BrokerQueue, "uid-w")
	f.seen(newWork("w", 1, version("102"))) // the informer shows our own write
	f.idle(BrokerQueue, "uid-w")
}

func TestCore_PublishesOnlyChangesForCluster(t *testing.T) {
	label := func(w *workv1.ManifestWork) { w.Labels = map[string]string{"a": "b"} }
	for name, c := range map[string]struct {
		changed *workv1.ManifestWork
		want    codec.Action
	}{
		"generation":  {newWork("w", 2), codec.UpdateRequest},
		"label":       {newWork("w", 1, label, version("102")), codec.UpdateRequest},
		"annotation":  {newWork("w", 1, version("102"), func(w *workv1.ManifestWork) { w.Annotations = map[string]string{"a": "b"} }), codec.UpdateRequest},
		"deletion":    {newWork("w", 2, deleting), codec.DeleteRequest},
		"status only": {newWork("w", 1, version("102"), withStatus(applied(1))), ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, true)
			f.seen(newWork("w", 1))
			f.connect()
			f.deliver("uid-w")
			f.seen(c.changed)
			if c.want == "" {
				f.idle(BrokerQueue, "uid-w")
				return
			}
			if p := f.deliver("uid-w"); p.Action != c.want || p.Work != c.changed {
				t.Errorf("published %s of %+v", p.Action, p.Work)
			}
		})
	}
}

func TestCore_CoalescesWhilePublishing(t *testing.T) {
	f := newFixture(t, true)
	f.seen(newWork("w", 1))
	f.connect()
	p := next[Publish](f, BrokerQueue, "uid-w")
	for g := int64(2); g <= 9; g++ {
		f.seen(newWork("w", g))
		f.idle(BrokerQueue, "uid-w")
	}
	f.done(p, Result{})
	if p := f.deliver("uid-w"); p.Work.Generation != 9 {
		t.Errorf("published generation %d, want the latest", p.Work.Generation)
	}
	f.idle(BrokerQueue, "uid-w")
}

func TestCore_PublishesEverythingAgainOnEachConnection(t *testing.T) {
	f := newFixture(t, true)
	f.seen(newWork("w", 1))
	f.connect()
	p := next[Publish](f, BrokerQueue, "uid-w")
	f.core.Disconnected()
	f.connect()
	f.done(p, Result{}) // the broker accepted it on the previous connection
	if p := f.deliver("uid-w"); p.Action != codec.CreateRequest {
		t.Errorf("published %s", p.Action)
	}
	f.idle(BrokerQueue, "uid-w")
	if keys := f.core.NextInitialSync(10); !slices.Contains(keys, Key{UID: "uid-w", Cluster: "cluster1"}) {
		t.Errorf("swept %v", keys)
	}
}

func TestCore_RetriesWithTheDelayOfTheBroker(t *testing.T) {
	f := newFixture(t, true)
	f.seen(newWork("w", 1))
	f.seen(newWork("v", 1))
	f.connect()
	p := next[Publish](f, BrokerQueue, "uid-w")
	f.wakes = nil
	f.done(p, Result{Err: &transport.Error{Code: transport.CodeOverloaded, Delay: 3 * time.Second}})
	f.idle(BrokerQueue, "uid-w")
	f.idle(BrokerQueue, "uid-v") // the delay applies to all works
	if keys := f.core.NextInitialSync(10); len(keys) != 0 {
		t.Errorf("swept %v while the broker is overloaded", keys)
	}
	if d := f.nextWake(BrokerQueue); d != 3*time.Second {
		t.Errorf("woken after %s, want 3s", d)
	}
	f.seen(newWork("w", 2)) // the change does not end the delay
	f.idle(BrokerQueue, "uid-w")
	f.now = f.now.Add(3 * time.Second)
	if p := f.deliver("uid-w"); p.Work.Generation != 2 {
		t.Errorf("published generation %d", p.Work.Generation)
	}
	f.deliver("uid-v")
}

// TestCore_WaitsWithOneClusterAlone: an answer of the broker about one cluster delays all events for that
// cluster, and no others.
func TestCore_WaitsWithOneClusterAlone(t *testing.T) {
	f := newFixture(t, true)
	f.seen(newWork("w", 1))
	f.seen(newWork("v", 1, deleting))
	f.seen(newWork("other", 1, func(w *workv1.ManifestWork) { w.Namespace = "cluster2" }))
	f.connect()
	p := next[Publish](f, BrokerQueue, "uid-w")
	f.wakes = nil
	f.done(p, Result{Err: &transport.Error{Code: transport.CodeOverloaded, Delay: 3 * time.Second, ClusterOnly: true}})
	if d := f.nextWake(BrokerQueue); d != 3*time.Second {
		t.Errorf("woken after %s, want 3s", d)
	}
	f.idle(BrokerQueue, "uid-w")
	f.idle(BrokerQueue, "uid-v") // the deletion waits too, because there is no space for it
	if n := len(f.core.Stats().Undelivered); n != 0 {
		t.Errorf("%d reasons are shown for what waits for a moment", n)
	}
	f.deliver("uid-other")
	f.now = f.now.Add(3 * time.Second)
	f.deliver("uid-w")
	f.deliver("uid-v")
}

func TestCore_BacksOffFromAFailingBroker(t *testing.T) {
	f := newFixture(t, true)
	f.seen(newWork("w", 1))
	f.connect()
	var last time.Duration
	for range 12 {
		p := next[Publish](f, BrokerQueue, "uid-w")
		f.wakes = nil
		f.done(p, Result{Err: &transport.Error{Code: transport.CodeUnavailable}})
		last = f.nextWake(BrokerQueue)
		f.now = f.now.Add(last)
	}
	if last != longestSpec/2 { // the delay is the longest one without jitter
		t.Errorf("last delay is %s, want %s", last, longestSpec/2)
	}
	p := next[Publish](f, BrokerQueue, "uid-w")
	f.done(p, Result{Err: &transport.Error{Code: transport.CodeUnavailable}})
	f.connect() // a new connection ends the back-off
	f.deliver("uid-w")
}

func TestCore_ShowsWhyAWorkIsNotDelivered(t *testing.T) {
	for _, c := range []struct {
		code    transport.Code
		reason  string
		mention string
		again   bool // the publish is retried without a change
	}{
		{transport.CodeTooLarge, ReasonTooLarge, "split", false},
		{transport.CodeAlreadyExists, ReasonNameConflict, "another name", true},
		{transport.CodeDenied, ReasonRejected, "source id", true},
		{transport.CodeInvalid, ReasonRejected, "when the work changes", false},
	} {
		t.Run(c.code.String(), func(t *testing.T) {
			f := newFixture(t, true)
			w := newWork("w", 1, withStatus(applied(1)))
			f.seen(w)
			f.connect()
			f.done(next[Publish](f, BrokerQueue, "uid-w"), Result{Err: &transport.Error{Code: c.code, Message: "message of the broker", Hint: "do it so"}})
			f.idle(BrokerQueue, "uid-w")

			e := next[PatchStatus](f, HubQueue, "uid-w")
			d := delivered(e.Status)
			if d == nil || d.Status != "False" || d.Reason != c.reason || d.ObservedGeneration != 1 || !d.LastTransitionTime.Time.Equal(f.now) {
				t.Fatalf("Delivered is %+v", d)
			}
			for _, s := range []string{c.mention, "message of the broker", "do it so"} {
				if !strings.Contains(d.Message, s) {
					t.Errorf("message %q does not mention %q", d.Message, s)
				}
			}
			if len(e.Status.Conditions) != 3 || !isDelivered(e.Status.Conditions[2]) {
				t.Errorf("conditions are %+v", e.Status.Conditions)
			}
			if n := f.core.Stats().Undelivered[c.reason]; n != 1 {
				t.Errorf("%d works counted for the reason", n)
			}
			shown := newWork("w", 1, version("102"), withStatus(e.Status))
			f.done(e, Result{Work: shown})
			f.seen(shown)
			f.idle(HubQueue, "uid-w")

			f.now = f.now.Add(refusedDelay)
			if !c.again {
				f.idle(BrokerQueue, "uid-w")
				f.seen(newWork("w", 2, version("103"), withStatus(e.Status)))
			}
			f.deliver("uid-w")
			cleared := next[PatchStatus](f, HubQueue, "uid-w")
			if d := delivered(cleared.Status); len(cleared.Status.Conditions) != 3 || d == nil || d.Status != metav1.ConditionTrue || d.ObservedGeneration != 1 {
				t.Errorf("conditions after delivery are %+v", cleared.Status.Conditions)
			}
			if n := len(f.core.Stats().Undelivered); n != 0 {
				t.Errorf("%d reasons still counted", n)
			}
		})
	}
}

// TestCore_OneWorkOverItsQuotaHoldsNoOtherUp: the work reports it, other works continue, and it is retried
// after the delay that the broker requested. Its deletion is never given up.
func TestCore_OneWorkOverItsQuotaHoldsNoOtherUp(t *testing.T) {
	over := &transport.Error{
		Code: transport.CodeOverloaded, Next: transport.NextBackOff, Delay: time.Minute, Attribute: codec.ExtResourceID,
		Message: "message of the broker", Hint: "do it so",
	}
	f := newFixture(t, true)
	f.seen(newWork("w", 1))
	f.seen(newWork("v", 1))
	f.connect()
	f.done(next[Publish](f, BrokerQueue, "uid-w"), Result{Err: over})
	f.idle(BrokerQueue, "uid-w")
	f.deliver("uid-v")
	e := next[PatchStatus](f, HubQueue, "uid-w")
	if d := delivered(e.Status); d == nil || d.Reason != ReasonQuotaExceeded || !strings.Contains(d.Message, "message of the broker (do it so)") {
		t.Errorf("Delivered is %+v", d)
	}
	f.done(e, Result{Work: newWork("w", 1, version("102"), withStatus(e.Status))})
	f.seen(newWork("w", 1, version("102"), withStatus(e.Status)))
	f.now = f.now.Add(time.Minute)
	f.deliver("uid-w")
	if cleared := next[PatchStatus](f, HubQueue, "uid-w"); fault(cleared.Status) != nil {
		t.Errorf("below the quota the conditions are %+v", cleared.Status.Conditions)
	}

	f.seen(newWork("v", 1, version("104"), deleting))
	f.done(next[Publish](f, BrokerQueue, "uid-v"), Result{Err: over})
	f.idle(BrokerQueue, "uid-v")
	f.seen(newWork("u", 1))
	f.deliver("uid-u") // other works do not wait
	f.now = f.now.Add(time.Minute)
	if p := next[Publish](f, BrokerQueue, "uid-v"); p.Action != codec.DeleteRequest {
		t.Errorf("then it publishes %s", p.Action)
	}
}

// TestCore_ReportsBrokerOutOfSpace: a broker that has no space until an operator makes some names no delay; so
// do brokers from before Full, and OCM brokers. Works report it until the broker accepts them. They do not
// report a queue that is full for a moment.
func TestCore_ReportsBrokerOutOfSpace(t *testing.T) {
	f := newFixture(t, true)
	f.seen(newWork("w", 1))
	f.connect()
	f.done(next[Publish](f, BrokerQueue, "uid-w"), Result{Err: &transport.Error{Code: transport.CodeOverloaded, Delay: time.Second, Message: "busy"}})
	f.idle(HubQueue, "uid-w")
	f.now = f.now.Add(time.Minute)
	f.done(next[Publish](f, BrokerQueue, "uid-w"), Result{Err: &transport.Error{Code: transport.CodeOverloaded, Message: "message of the broker"}})
	e := next[PatchStatus](f, HubQueue, "uid-w")
	if d := delivered(e.Status); d == nil || d.Reason != ReasonQuotaExceeded || !strings.Contains(d.Message, "message of the broker") {
		t.Errorf("Delivered is %+v", d)
	}
	f.done(e, Result{Work: newWork("w", 1, version("102"), withStatus(e.Status))})
	f.seen(newWork("w", 1, version("102"), withStatus(e.Status)))
	f.now = f.now.Add(time.Minute)
	f.deliver("uid-w")
	if cleared := next[PatchStatus](f, HubQueue, "uid-w"); fault(cleared.Status) != nil {
		t.Errorf("below the quota the conditions are %+v", cleared.Status.Conditions)
	}
}

// TestCore_ReportsFullBrokerOnce: a work reports a full disk once, whatever the broker answers in between.
//
// Scenario:
//
//	t1: the disk of the broker is nearly full.
//	t2: it is full, and accepts no deletion either.
//	t3: it is nearly full again.
//	t4: there is space.
func TestCore_ReportsFullBrokerOnce(t *testing.T) {
	low := &transport.Error{Code: transport.CodeOverloaded, Next: transport.NextBackOff, Full: true, Message: "nearly full"}
	none := &transport.Error{Code: transport.CodeOverloaded, Next: transport.NextBackOff, Full: true, Delay: time.Second, Message: "full"}
	for name, order := range map[string][]error{"nearly full first": {low, none, low}, "full at once": {none, none, low}} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, true)
			before := applied(1)
			w := newWork("w", 2, withStatus(answeredAt(f.now, 1, before)))
			f.seen(w)
			f.seen(newWork("gone", 3, deleting, withStatus(before)))
			f.connect()
			for i, err := range order {
				f.done(next[Publish](f, BrokerQueue, w.UID), Result{Err: err})
				if i == 0 {
					e := next[PatchStatus](f, HubQueue, w.UID)
					d := delivered(e.Status)
					if d == nil || d.Status != metav1.ConditionFalse || d.Reason != ReasonBrokerFull || d.ObservedGeneration != 2 || !strings.Contains(d.Message, "disk of the broker") || !strings.Contains(d.Message, "Make room") {
						t.Fatalf("Delivered is %+v", d)
					}
					f.done(e, Result{Work: newWork("w", 2, version("110"), withStatus(e.Status))})
					f.seen(newWork("w", 2, version("110"), withStatus(e.Status)))
				}
				f.idle(HubQueue, w.UID)
				f.now = f.now.Add(time.Minute)
			}
			f.done(next[Publish](f, BrokerQueue, "uid-gone"), Result{Err: none})
			if d := delivered(next[PatchStatus](f, HubQueue, "uid-gone").Status); d == nil || d.Reason != ReasonBrokerFull {
				t.Errorf("of a deletion that waits Delivered is %+v", d)
			}
			if n := f.core.Stats().Undelivered[ReasonBrokerFull]; n != 2 {
				t.Errorf("%d works count", n)
			}
			f.now = f.now.Add(time.Minute)
			f.deliver(w.UID)
			if d := delivered(next[PatchStatus](f, HubQueue, w.UID).Status); d == nil || d.Status != metav1.ConditionTrue || d.ObservedGeneration != 1 {
				t.Errorf("with room Delivered is %+v, want what the cluster has answered for", d)
			}
		})
	}
}

func TestCore_KeepsConditionsReadableForAnyRejection(t *testing.T) {
	f := newFixture(t, true)
	f.seen(newWork("w", 1))
	f.connect()
	f.done(next[Publish](f, BrokerQueue, "uid-w"), Result{Err: &transport.Error{Code: transport.CodeInvalid, Message: strings.Repeat("é", 1<<20)}})
	d := delivered(next[PatchStatus](f, HubQueue, "uid-w").Status)
	if len(d.Message) > longestMessage || !utf8.ValidString(d.Message) || !strings.HasSuffix(d.Message, "é...") {
		t.Errorf("message has %d bytes and ends in %q", len(d.Message), d.Message[len(d.Message)-8:])
	}
}

func TestCore_NeverPublishesAnOversizedWork(t *testing.T) {
	f := newFixture(t, true)
	f.seen(newWork("w", 1, withoutFinalizer, sized(manifestwork.MaxManifestsSize)))
	f.connect()
	f.idle(BrokerQueue, "uid-w") // no finalizer goes out either, so that a deletion waits for no other client
	e := next[PatchStatus](f, HubQueue, "uid-w")
	d := delivered(e.Status)
	if d == nil || d.Reason != ReasonTooLarge || !strings.Contains(d.Message, "512000") || !strings.Contains(d.Message, "512004") {
		t.Fatalf("Delivered is %+v", d)
	}
	f.done(e, Result{Work: newWork("w", 1, withoutFinalizer, sized(manifestwork.MaxManifestsSize), withStatus(e.Status), version("102"))})
	f.idle(HubQueue, "uid-w")
	f.seen(newWork("w", 2, version("103"), withStatus(e.Status), sized(manifestwork.MaxManifestsSize-4)))
	f.deliver("uid-w")
	if e := next[PatchStatus](f, HubQueue, "uid-w"); fault(e.Status) != nil {
		t.Errorf("Delivered stays: %+v", e.Status.Conditions)
	}
}

func TestCore_KeepsDeliveredOfAnEarlierProcessUntilItKnows(t *testing.T) {
	f := newFixture(t, true)
	status := applied(1)
	status.Conditions = withDelivered(status.Conditions, nil, deliveryProblems{spec: &problem{reason: ReasonRejected}}, applied(1).Conditions[0].LastTransitionTime)
	f.seen(newWork("w", 1, withStatus(status)))
	f.idle(HubQueue, "uid-w")
	f.connect()
	f.deliver("uid-w")
	if e := next[PatchStatus](f, HubQueue, "uid-w"); fault(e.Status) != nil {
		t.Errorf("conditions are %+v", e.Status.Conditions)
	}
}

func TestCore_DeletesAnOversizedWorkWithoutItsManifests(t *testing.T) {
	f := newFixture(t, true)
	f.seen(newWork("w", 1))
	f.connect()
	f.deliver("uid-w")
	f.seen(newWork("w", 3, deleting, sized(manifestwork.MaxManifestsSize), func(w *workv1.ManifestWork) {
		w.Spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
	}))
	p := f.deliver("uid-w")
	e, err := eventOf(p, f.id, f.now)
	if err != nil {
		t.Fatal(err)
	}
	if data := string(e.Data()); !strings.Contains(data, "Orphan") || len(data) > 1000 {
		t.Errorf("data is %.200s", data)
	}
}

func TestCore_InsistsOnADeletionTheBrokerCallsStale(t *testing.T) {
	f := newFixture(t, true)
	f.seen(newWork("w", 2, deleting))
	f.connect()
	p := next[Publish](f, BrokerQueue, "uid-w")
	f.done(p, Result{Receipt: transport.Receipt{Outcome: codec.OutcomeStale}})
	f.now = f.now.Add(time.Second)
	p = f.deliver("uid-w")
	if !p.Unversioned {
		t.Fatalf("second deletion is %+v", p)
	}
	e, err := eventOf(p, f.id, f.now)
	if err != nil {
		t.Fatal(err)
	}
	if v := e.Extensions()[codec.ExtResourceVersion]; v != int32(0) {
		t.Errorf("version is %v", v)
	}
}

func TestCore_ShowsASpecTheBrokerCallsStale(t *testing.T) {
	f := newFixture(t, true)
	f.seen(newWork("w", 2))
	f.connect()
	f.done(next[Publish](f, BrokerQueue, "uid-w"), Result{Receipt: transport.Receipt{Outcome: codec.OutcomeStale}})
	f.idle(HubQueue, "uid-w") // the informer may lag behind the write of an earlier leader
	f.now = f.now.Add(time.Second)
	f.done(next[Publish](f, BrokerQueue, "uid-w"), Result{Receipt: transport.Receipt{Outcome: codec.OutcomeStale}})
	f.idle(BrokerQueue, "uid-w")
	if d := delivered(next[PatchStatus](f, HubQueue, "uid-w").Status); d == nil || d.Reason != ReasonVersionConflict {
		t.Errorf("Delivered is %+v", d)
	}
}

func TestCore_DeletesToTheEnd(t *testing.T) {
	f := newFixture(t, true)
	f.seen(newWork("w", 1))
	f.connect()
	f.deliver("uid-w")
	w := newWork("w", 2, deleting)
	f.seen(w)
	f.deliver("uid-w")
	f.idle(HubQueue, "uid-w")

	if v := f.core.Report(&Report{UID: w.UID, Cluster: "cluster1", Name: "w", Version: 2, Sequence: sequence(1), Deleted: true}); v != Taken {
		t.Fatalf("result is %s", v)
	}
	e := next[RemoveFinalizer](f, HubQueue, "uid-w")
	f.done(e, Result{Err: errConflict()})
	f.idle(HubQueue, "uid-w")
	changed := newWork("w", 2, deleting, version("200"))
	f.seen(changed) // the informer shows the change that caused the conflict, so the wait ends
	e = next[RemoveFinalizer](f, HubQueue, "uid-w")
	if e.Work != changed {
		t.Error("the older object is written again")
	}
	f.done(e, Result{Work: newWork("w", 2, deleting, withoutFinalizer, version("201"))})
	f.idle(HubQueue, "uid-w")
	f.deleted("uid-w")
	f.idle(BrokerQueue, "uid-w")
	if s := f.core.Stats(); s.Works != 0 || s.Clusters != 0 {
		t.Errorf("still known: %+v", s)
	}
}

func TestCore_RemovesTheFinalizerWhenNothingEverReachedTheCluster(t *testing.T) {
	for name, r := range map[string]Result{
		"broker confirms at once": {Receipt: transport.Receipt{Outcome: codec.OutcomeConfirmed}},
		"name was never ours":     {Err: &transport.Error{Code: transport.CodeAlreadyExists}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, true)
			f.seen(newWork("w", 2, deleting))
			f.connect()
			f.done(next[Publish](f, BrokerQueue, "uid-w"), r)
			next[RemoveFinalizer](f, HubQueue, "uid-w")
		})
	}
}

func TestCore_DeletesWorkRemovedWithoutFinalizer(t *testing.T) {
	f := newFixture(t, true)
	f.seen(newWork("w", 1))
	f.connect()
	f.deliver("uid-w")
	f.deleted("uid-w")
	f.done(next[Get](f, HubQueue, "uid-w"), Result{Err: errHubDown()})
	f.idle(BrokerQueue, "uid-w")
	f.now = f.now.Add(f.nextWake(HubQueue))
	f.done(next[Get](f, HubQueue, "uid-w"), Result{Err: errNotFound()})
	p := f.deliver("uid-w")
	if p.Action != codec.DeleteRequest || p.Work.DeletionTimestamp == nil || len(p.Work.Spec.Workload.Manifests) != 1 {
		t.Errorf("published %s of %+v", p.Action, p.Work)
	}
	f.idle(BrokerQueue, "uid-w")
	if n := f.core.Stats().Works; n != 0 {
		t.Errorf("%d works still known", n)
	}
}

func TestCore_DeletesAWorkWithoutFinalizer(t *testing.T) {
	f := newFixture(t, true)
	f.seen(newWork("w", 1))
	f.connect()
	f.deliver("uid-w")
	f.core.Disconnected()
	f.seen(newWork("w", 2, deleting, withoutFinalizer))
	f.deleted("uid-w")
	f.done(next[Get](f, HubQueue, "uid-w"), Result{Err: errNotFound()})
	f.connect()
	if p := f.deliver("uid-w"); p.Action != codec.DeleteRequest {
		t.Errorf("published %s", p.Action)
	}
}

func TestCore_TrustsTheHubNotTheInformer(t *testing.T) {
	f := newFixture(t, true)
	f.seen(newWork("w", 1))
	f.connect()
	f.deliver("uid-w")
	f.deleted("uid-w")
	f.done(next[Get](f, HubQueue, "uid-w"), Result{Work: newWork("w", 1, func(o *workv1.ManifestWork) { o.UID = "another" })})
	if p := f.deliver("uid-w"); p.Action != codec.DeleteRequest || p.Work.UID != "uid-w" {
		t.Errorf("published %s of %s", p.Action, p.Work.UID)
	}
}

func TestCore_ForgetsUnpublishedWork(t *testing.T) {
	f := newFixture(t, true)
	f.seen(newWork("w", 1, withoutFinalizer))
	f.deleted("uid-w")
	f.connect()
	f.idle(BrokerQueue, "uid-w")
	if n := f.core.Stats().Works; n != 0 {
		t.Errorf("%d works still known", n)
	}
}

// TestCore_DeletionAfterStoreReplacement: a work published before the broker lost the cursor of this source may
// be on its cluster, whatever the broker knows. A work published later is in its store, or nowhere.
func TestCore_DeletionAfterStoreReplacement(t *testing.T) {
	before, after := newWork("before", 1), newWork("after", 1)
	after.Finalizers = nil
	for name, c := range map[string]struct {
		resync     string
		wantBefore bool
	}{
		"the same store": {codec.ResyncCursor, false},
		"another store":  {codec.ResyncList, true},
	} {
		f := comparingFixture(t, SavedState{Cursor: cursorAt(1).String()}, before)
		f.core.Disconnected()
		f.core.Connected(transport.Accepted{Protocol: transport.Protocol, Resync: c.resync})
		f.seen(after)
		f.core.queries.wrote(f.core.index.works[after.UID], newWork("after", 1, version("250")), 0) // the write adds the finalizer
		for w, want := range map[*workv1.ManifestWork]bool{before: c.wantBefore, after: false} {
			gone := newWork(w.Name, 1, deleting, version("300"))
			f.seen(gone)
			if p := next[Publish](f, BrokerQueue, w.UID); p.RequireConfirmation != want || p.Action != codec.DeleteRequest {
				t.Errorf("%s: the deletion of the work published %s it is %+v", name, w.Name, p)
			}
		}
	}
}

// Scenario:
//
//	t1: the informer shows a work.
//	t2: the work is deleted; the informer lags and still shows it.
//	t3: each write of the work is answered at once: the hub does not have it.
//
// Result: the next attempt waits. Without this: such requests would follow each other until the informer shows
// the deletion.
func TestCore_BacksOffWritesToMissingObject(t *testing.T) {
	f := newFixture(t, true)
	fresh, dying := newWork("fresh", 1, withoutFinalizer), newWork("dying", 2, deleting)
	f.seen(fresh)
	f.seen(dying)
	f.connect()
	f.done(next[AddFinalizer](f, BrokerQueue, fresh.UID), Result{Err: errNotFound()})
	f.idle(BrokerQueue, fresh.UID)
	f.deliver(dying.UID)
	r := report(dying, 1, applied(2))
	r.Deleted = true
	f.core.Report(r)
	f.done(next[RemoveFinalizer](f, HubQueue, dying.UID), Result{Err: errNotFound()})
	f.idle(HubQueue, dying.UID)

	large := newWork("large", 1, sized(manifestwork.MaxManifestsSize+1))
	f.seen(large)
	f.idle(BrokerQueue, large.UID)
	f.done(next[PatchStatus](f, HubQueue, large.UID), Result{Err: errNotFound()})
	f.idle(HubQueue, large.UID)

	f.now = f.now.Add(firstDelay)
	next[AddFinalizer](f, BrokerQueue, fresh.UID) // the informer may lag for long, so the write is tried again
}
