package broker_test

import (
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

func TestBroker_SpecToAgentStatusToSource(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent := w.subscribe(w.agent("c1"))
		other := w.subscribe(w.agent("c2"))
		source := w.subscribe(w.source("src"))
		foreign := w.subscribe(w.source("other"))

		if o := w.put(source.peer, work{version: 1}.event()); o != codec.OutcomeAccepted {
			t.Errorf("outcome %q", o)
		}
		agent.expect("spec create_request w1 v1")
		w.put(agent.peer, w.event(report{version: 1}))
		source.expect("status update_request w1 v1")

		w.put(source.peer, work{version: 2, action: codec.UpdateRequest}.event())
		agent.expect("spec update_request w1 v2")

		w.put(source.peer, work{version: 3, deleting: true}.event())
		agent.expect("spec delete_request w1 v3 deleting")
		if o := w.put(agent.peer, w.event(report{version: 3, deleted: true})); o != codec.OutcomeConfirmed {
			t.Errorf("outcome of the confirmation: %q", o)
		}
		last := source.expect("status update_request w1 v3")
		if deleted, err := codec.ReportsDeleted(last[0].Data); err != nil || !deleted {
			t.Errorf("last status: %v, %v", deleted, err)
		}
		agent.expect()
		other.expect()
		foreign.expect()
	})
}

// TestBroker_ClientsGetNegotiatedFeatures checks that only Hawser clients get Hawser attributes.
func TestBroker_ClientsGetNegotiatedFeatures(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		ocm := w.open(w.agent("c1"), nil)
		ours := w.open(w.agent("c1"), hawser)
		if a := ocm.accepted; a.SubscriptionID == "" || !reflect.DeepEqual(a, transport.Accepted{SubscriptionID: a.SubscriptionID}) {
			t.Errorf("an OCM agent got %+v", a)
		}
		if a := ours.accepted; a.Protocol != transport.Protocol || a.Resync != "list" || a.MaxEventBytes != broker.DefaultMaxEventBytes || a.StoreID != w.Store.Head().StoreID || a.StoreID == "" || a.SubscriptionID == ocm.accepted.SubscriptionID {
			t.Errorf("a Hawser agent got %+v", a)
		}
		w.put(w.source("src"), work{version: 1, extensions: map[string]any{codec.ExtSupersedes: nil}}.event())
		e := ocm.expect("spec create_request w1 v1")[0]
		if e.Revision != 0 || e.HasTag {
			t.Errorf("an OCM agent got revision %d, tag %v", e.Revision, e.HasTag)
		}
		e = ours.expect("spec create_request w1 v1")[0]
		if e.Revision == 0 || e.Tag != codec.TagOf(false, 1, e.RawMetadata, e.Data) {
			t.Errorf("a Hawser agent got revision %d, tag %v", e.Revision, e.Tag)
		}
	})
}

// TestBroker_RegisteredBeforeTheHeader checks that an event that is published just after the header was sent is
// delivered (C40).
func TestBroker_RegisteredBeforeTheHeader(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		agent := w.open(w.agent("c1"), func(_ *transport.RawSubscription, s *tap) {
			s.onAccept = func() {
				w.put(source, work{version: 1}.event())
				pass(time.Millisecond) // the event is routed in this time
			}
		})
		pass(time.Second)
		agent.expect("spec create_request w1 v1")
	})
}

func TestBroker_DeliversByClusterAndType(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		one, two := w.subscribe(w.agent("c1")), w.subscribe(w.agent("c1"))
		other := w.subscribe(w.agent("c2"))
		w.put(w.source("src"), work{version: 1}.event())
		one.expect("spec create_request w1 v1")
		two.expect("spec create_request w1 v1")
		other.expect()
	})
}

// TestBroker_SlowReaderGetsTheLatestOnly checks that the delivery queue of a stuck stream keeps only the last
// state of each work. Other streams are not affected (I2, I5, I6).
func TestBroker_SlowReaderGetsTheLatestOnly(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		release := make(chan struct{})
		stuck := w.open(w.agent("c1"), func(_ *transport.RawSubscription, s *tap) { s.hold = func() { <-release } })
		w.request(stuck)
		sameCluster := w.subscribe(w.agent("c1"))
		other := w.subscribe(w.agent("c2"))
		source := w.subscribe(w.source("src"))
		w.put(source.peer, work{id: "first", version: 1}.event())
		sameCluster.expect("spec create_request first v1")
		for v := range int32(50) {
			w.put(source.peer, work{version: v + 1}.event())
			w.put(source.peer, work{id: "x", cluster: "c2", version: v + 1}.event())
			synctest.Wait()
		}
		w.put(source.peer, work{version: 51, deleting: true}.event())
		if got := len(other.take()); got != 50 {
			t.Errorf("another cluster got %d of 50 events", got)
		}
		if got := len(sameCluster.take()); got != 51 {
			t.Errorf("another agent of the cluster got %d of 51 events", got)
		}
		w.put(other.peer, w.event(report{cluster: "c2", id: "x", version: 50}))
		source.expect("status update_request x v50")
		close(release)
		// The last spec comes before the deletion that replaced it in the delivery queue.
		stuck.expect("spec create_request first v1", "spec create_request w1 v50", "spec delete_request w1 v51 deleting")
	})
}

func TestBroker_DeletionForHawserAgentsCarriesTheData(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		const orphan = `{"manifests":[],"deleteOption":{"propagationPolicy":"Orphan"}}`
		source := w.source("src")
		release := make(chan struct{})
		slow := func(_ *transport.RawSubscription, s *tap) { s.hold = func() { <-release } }
		ocm := w.open(w.agent("c1"), slow)
		w.request(ocm)
		ours := w.open(w.agent("c1"), func(raw *transport.RawSubscription, s *tap) { hawser(raw, s); slow(raw, s) })
		w.put(source, work{id: "first", version: 1}.event()) // both streams are stuck in the delivery of this work
		synctest.Wait()
		w.put(source, work{version: 1}.event())
		synctest.Wait()
		w.put(source, work{version: 2, deleting: true, data: orphan}.event())
		synctest.Wait()
		close(release)
		got := ocm.expect("spec create_request first v1", "spec update_request w1 v2", "spec delete_request w1 v2 deleting")
		if string(got[1].Data) != orphan || got[1].Deleting {
			t.Errorf("spec before the deletion: %s", got[1].Data)
		}
		got = ours.expect("spec create_request first v1", "spec delete_request w1 v2 deleting")
		if string(got[1].Data) != orphan {
			t.Errorf("deletion with data %s", got[1].Data)
		}
	})
}

// TestBroker_DeletionOfAChangedSpec checks that an OCM agent gets the last spec before a deletion with a
// changed spec. The agent ignores the spec of a deletion.
func TestBroker_DeletionOfAChangedSpec(t *testing.T) {
	const orphan = `{"manifests":[],"deleteOption":{"propagationPolicy":"Orphan"}}`
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		ocm := w.subscribe(w.agent("c1"))
		ours := w.open(w.agent("c1"), hawser)
		w.put(source, work{version: 1}.event())
		w.put(source, work{id: "w2", version: 1}.event())
		ocm.take()
		ours.take()
		w.put(source, work{version: 2, deleting: true, data: orphan}.event())
		got := ocm.expect("spec update_request w1 v2", "spec delete_request w1 v2 deleting")
		if string(got[0].Data) != orphan {
			t.Errorf("spec before the deletion: %s", got[0].Data)
		}
		ours.expect("spec delete_request w1 v2 deleting")
		w.put(source, work{id: "w2", version: 1, deleting: true}.event()) // brings no spec: the agent has the last one
		ocm.expect("spec delete_request w2 v1 deleting")
		w.put(source, work{id: "w3", version: 4, deleting: true, data: orphan}.event()) // the agent does not have the spec
		ocm.expect("spec update_request w3 v4", "spec delete_request w3 v4 deleting")
		w.put(ocm.peer, w.event(report{id: "w3", version: 4, deleted: true}))
		pass(time.Minute)
		w.put(source, work{id: "w3", version: 5, deleting: true, data: orphan}.event()) // the deletion changed after it was sent
		ocm.expect("spec delete_request w3 v5 deleting")
	})
}

// TestBroker_NoDeletionBeforeTheList checks that the list of an OCM agent decides whether it needs the last
// spec before the deletion. It gets both once, in this order.
func TestBroker_NoDeletionBeforeTheList(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		w.put(source, work{version: 1}.event())
		w.put(source, work{version: 2}.event()) // the agent is disconnected
		ocm := w.open(w.agent("c1"), nil)
		w.put(source, work{version: 2, deleting: true}.event())
		ocm.expect()
		w.request(ocm, codec.ResourceVersion{ResourceID: "w1", ResourceVersion: 1})
		ocm.expect("status resync_request  v0", "spec resync_response w1 v2", "spec resync_response w1 v2 deleting")
	})
}

// TestBroker_FormerOwnerGetsNothing checks that a status that waits for a slow source goes only to the owner of
// the work at the time of sending (I8).
func TestBroker_FormerOwnerGetsNothing(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		gate := make(chan struct{})
		former := w.open(w.source("src"), func(_ *transport.RawSubscription, s *tap) { s.hold = func() { <-gate } })
		next := w.subscribe(w.source("next"))
		for _, id := range []string{"first", "w1"} {
			w.put(former.peer, work{id: id, version: 1}.event())
			w.put(w.agent("c1"), w.event(report{id: id, version: 1}))
			synctest.Wait() // the stream is stuck in the first status
		}
		key := store.Key{DataType: codec.ManifestBundles, Cluster: "c1", ResourceID: "w1"}
		if _, err := w.Store.Commit(w.Context(), []store.Op{{Kind: store.Transfer, Key: key, Owner: "next", At: time.Now()}}); err != nil {
			t.Fatal(err)
		}
		got := next.expect("status update_request w1 v1")
		if got[0].OriginalSource != "next" {
			t.Errorf("the new owner got a status of %q", got[0].OriginalSource)
		}
		close(gate)
		former.expect("status update_request first v1")
	})
}

// TestBroker_DroppedRecordsLeaveTheDeliveryQueue checks that dropped records leave the delivery queue.
func TestBroker_DroppedRecordsLeaveTheDeliveryQueue(t *testing.T) {
	registry := prometheus.NewRegistry()
	inWorld(t, broker.Config{Registry: registry}, func(w *world) {
		gate := make(chan struct{})
		agent := w.open(w.agent("c1"), func(_ *transport.RawSubscription, s *tap) { s.hold = func() { <-gate } })
		for _, id := range []string{"first", "w1"} {
			w.put(w.source("src"), work{id: id, version: 1}.event())
			synctest.Wait()
		}
		if n := value(t, registry, "hawser_broker_delivery_queue_records"); n != 1 {
			t.Errorf("%v records wait, want 1", n)
		}
		w.put(w.source("src"), releaseOf(t, "src", "c1"))
		synctest.Wait()
		if n := value(t, registry, "hawser_broker_delivery_queue_records"); n != 0 {
			t.Errorf("%v records wait after the release", n)
		}
		close(gate)
		agent.expect("spec create_request first v1")
	})
}
