package broker_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

func held(id string, version int64) codec.ResourceVersion {
	return codec.ResourceVersion{ResourceID: id, ResourceVersion: version}
}

// TestResync_SpecsByVersion checks C27, C28 and C29. An orphan is left unchanged (C32, Q5 to Q8).
func TestResync_SpecsByVersion(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		w.subscribe(w.agent("c1")).cancel() // an agent has subscribed once
		for _, k := range []work{
			{id: "older", version: 5}, {id: "same", version: 5}, {id: "newer", version: 5}, {id: "absent", version: 5},
			{id: "unversioned", version: 0}, {id: "gone", version: 5}, {id: "gone-unseen", version: 5}, {id: "gone-behind", version: 5},
			{id: "elsewhere", cluster: "c2", version: 5},
		} {
			w.put(source, k.event())
		}
		for _, id := range []string{"gone", "gone-unseen", "gone-behind"} {
			w.put(source, work{id: id, version: 5, deleting: true}.event())
		}
		agent := w.open(w.agent("c1"), nil)
		agent.expect()
		w.request(agent, held("older", 4), held("same", 5), held("newer", 6), held("unversioned", 9), held("gone", 5),
			held("gone-behind", 4), held("orphan", 3))
		got := agent.expectAny(
			"spec resync_response older v5", "spec resync_response absent v5", "spec resync_response unversioned v0",
			"spec resync_response gone v5 deleting", "spec resync_response gone-unseen v5 deleting",
			"spec resync_response gone-behind v5", "spec resync_response gone-behind v5 deleting",
			"status resync_request  v0",
		)
		var behind []string
		for i, line := range shown(got) {
			if got[i].ResourceID == "gone-behind" {
				behind = append(behind, line)
			}
		}
		if len(behind) != 2 || strings.HasSuffix(behind[0], "deleting") {
			t.Errorf("the last spec does not come before the deletion: %q", behind)
		}
	})
}

// TestResync_TagsDistinguishEqualVersions checks agents that list tags.
func TestResync_TagsDistinguishEqualVersions(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		for _, id := range []string{"equal", "changed"} {
			w.put(source, work{id: id, version: 1}.event())
		}
		agent := w.open(w.agent("c1"), hawser)
		w.request(agent)
		var list []codec.ResourceVersion
		for _, e := range agent.expectAny("spec resync_response equal v1", "spec resync_response changed v1") {
			list = append(list, codec.ResourceVersion{ResourceID: e.ResourceID, ResourceVersion: e.Version, Tag: e.Tag.String()})
		}
		w.put(source, work{id: "changed", version: 1, data: `{"manifests":[],"x":1}`}.event())
		agent.take()
		w.request(agent, list...)
		agent.expectAny("spec resync_response changed v1", "status resync_request  v0")
	})
}

// TestResync_AnswersTheRequester checks which subscriptions get the answer. These are the named one, or those
// of the connection, or all.
func TestResync_AnswersTheRequester(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		w.put(w.source("src"), work{version: 1}.event())
		peer := w.agent("c1")
		first, second := w.open(peer, nil), w.open(peer, nil)
		other := w.open(w.agent("c1"), nil)
		const answer = "spec resync_response w1 v1"

		publish := func(p transport.Peer, id string) {
			if _, err := w.Publish(w.Context(), p, versions("c1"), id); err != nil {
				t.Fatal(err)
			}
		}
		publish(peer, second.accepted.SubscriptionID)
		first.expect()
		second.expect(answer)
		other.expect()

		publish(peer, "")
		first.expect(answer)
		second.expect(answer)
		other.expect()

		publish(w.agent("c1"), "") // on a connection of its own
		first.expect(answer)
		second.expect(answer)
		other.expect(answer)

		// A request with the id of a foreign subscription does not make that subscription resync.
		foreign := w.open(w.agent("c2"), nil)
		publish(peer, foreign.accepted.SubscriptionID)
		foreign.expect()
		first.expect()

		// A list for an ended stream is not used for another stream.
		publish(peer, "an-ended-subscription")
		first.expect()
		second.expect()
		other.expect()
	})
}

// TestResync_ReturnsAtOnce checks that the call returns before its answer is sent, even if the stream is stuck
// (C43, Q1).
func TestResync_ReturnsAtOnce(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		const works = 5000
		data := `{"manifests":["` + strings.Repeat("x", 10<<10) + `"]}`
		for i := range works {
			w.put(source, work{id: fmt.Sprint("w", i), version: 1, data: data}.event())
		}
		window := make(chan struct{}) // the agent reads nothing before its request returned
		agent := w.open(w.agent("c1"), func(_ *transport.RawSubscription, s *tap) { s.hold = func() { <-window } })
		start := time.Now()
		w.request(agent)
		if took := time.Since(start); took != 0 {
			t.Errorf("the request took %v", took)
		}
		synctest.Wait()
		// Other subscriptions continue (C44).
		other := w.subscribe(w.agent("c2"))
		w.put(source, work{cluster: "c2", id: "o", version: 1}.event())
		other.expect("spec create_request o v1")
		close(window)
		ids := map[string]bool{}
		for _, e := range agent.take() {
			ids[e.ResourceID] = true
		}
		if len(ids) != works {
			t.Errorf("%d of %d works arrived", len(ids), works)
		}
	})
}

// TestResync_FreshChangesDoNotWaitBehindTheAnswer checks S13.
func TestResync_FreshChangesDoNotWaitBehindTheAnswer(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		for i := range 100 {
			w.put(source, work{id: fmt.Sprint("w", i), version: 1}.event())
		}
		gate := make(chan struct{})
		agent := w.open(w.agent("c1"), func(_ *transport.RawSubscription, s *tap) { s.hold = func() { <-gate } })
		w.request(agent)
		synctest.Wait() // the stream is stuck in the first work
		w.put(source, work{id: "fresh", version: 1}.event())
		synctest.Wait()
		close(gate)
		at := slices.Index(shown(agent.take()), "spec create_request fresh v1")
		if at < 0 || at > 3 {
			t.Errorf("the fresh work came as number %d", at)
		}
	})
}

// TestResync_TimeoutCountsAsEmptyList checks that a client that sends no list within 30 s after the header gets
// everything.
func TestResync_TimeoutCountsAsEmptyList(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.subscribe(w.source("src"))
		w.put(source.peer, work{version: 1}.event())
		w.put(w.agent("c1"), w.event(report{version: 1}))
		source.take()
		agent, muted := w.open(w.agent("c1"), nil), w.open(w.source("src"), nil)
		start := time.Now()
		pass(29 * time.Second)
		agent.expect()
		muted.expect()
		pass(2 * time.Second)
		agent.expect("spec resync_response w1 v1")
		muted.expect("status resync_response w1 v1")
		if took := agent.times[0].Sub(start); took != 30*time.Second {
			t.Errorf("after %v", took)
		}
	})
}

// TestResync_RequestsStatusesFromAgents checks that the request has the hashes of the listed works, and never
// is an empty list, which would request everything.
func TestResync_RequestsStatusesFromAgents(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		for _, id := range []string{"reported", "unreported", "unlisted"} {
			w.put(source, work{id: id, version: 1}.event())
		}
		w.put(w.agent("c1"), w.event(report{id: "reported", version: 1, hash: "abc"}))
		agent := w.open(w.agent("c1"), nil)
		w.request(agent)
		agent.expectAny("spec resync_response reported v1", "spec resync_response unreported v1", "spec resync_response unlisted v1")
		w.request(agent, held("reported", 1), held("unreported", 1), held("orphan", 1))
		got := agent.expectAny("spec resync_response unlisted v1", "status resync_request  v0")
		for _, e := range got {
			if e.Type.Subresource == codec.Status {
				if l := listed(t, e); len(l) != 2 || l["reported"] != "abc" || l["unreported"] != "" {
					t.Errorf("hashes %v", l)
				}
				if e.Cluster != "c1" || e.Source == "" {
					t.Errorf("envelope %+v", e)
				}
			}
		}
		w.request(agent, held("orphan", 1))
		agent.expectAny("spec resync_response reported v1", "spec resync_response unreported v1", "spec resync_response unlisted v1")
	})
}

// TestResync_RequestsInChunks checks that a request has at most 1000 hashes.
func TestResync_RequestsInChunks(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		var list []codec.ResourceVersion
		for i := range 2500 {
			id := fmt.Sprint("w", i)
			w.put(source, work{id: id, version: 1}.event())
			list = append(list, held(id, 1))
		}
		agent := w.open(w.agent("c1"), nil)
		w.request(agent, list...)
		ids := map[string]bool{}
		for _, e := range agent.expect("status resync_request  v0", "status resync_request  v0", "status resync_request  v0") {
			l := listed(t, e)
			if len(l) > 1000 {
				t.Errorf("%d hashes in one request", len(l))
			}
			for id := range l {
				ids[id] = true
			}
		}
		if len(ids) != 2500 {
			t.Errorf("%d ids requested, want 2500", len(ids))
		}
	})
}

// TestResync_StatusesFromTheStore checks that the broker answers a source's request, and agents never see it
// (S1, S2).
func TestResync_StatusesFromTheStore(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent := w.subscribe(w.agent("c1"))
		source := w.open(w.source("src"), nil)
		bystander := w.subscribe(w.source("src"))
		for _, id := range []string{"equal", "differs", "unlisted", "unreported", "gone"} {
			w.put(source.peer, work{id: id, version: 1}.event())
			if id != "unreported" {
				w.put(agent.peer, w.event(report{id: id, version: 1, hash: "hash-of-" + id}))
			}
		}
		w.put(source.peer, work{id: "gone", version: 1, deleting: true}.event())
		w.put(agent.peer, w.event(report{id: "gone", version: 1, deleted: true, hash: "final"}))
		source.take()
		bystander.take()
		agent.take()
		w.put(source.peer, hashes("src", "",
			codec.StatusHash{ResourceID: "equal", StatusHash: "hash-of-equal"},
			codec.StatusHash{ResourceID: "differs", StatusHash: "old"},
			codec.StatusHash{ResourceID: "unreported"},
			codec.StatusHash{ResourceID: "gone", StatusHash: "final"},
			codec.StatusHash{ResourceID: "unknown", StatusHash: "x"}))
		source.expectAny("status resync_response differs v1", "status resync_response gone v1")
		w.put(source.peer, hashes("src", "")) // requests all statuses
		source.expectAny("status resync_response equal v1", "status resync_response differs v1",
			"status resync_response unlisted v1", "status resync_response gone v1")
		w.put(source.peer, hashes("src", "c2"))
		source.expect()
		bystander.expect()
		agent.expect()
	})
}

// TestResync_RequestBeforeTheSubscription checks that a request before any subscription is no error. The later
// stream sends no list and gets everything.
func TestResync_RequestBeforeTheSubscription(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		w.put(w.source("src"), work{version: 1}.event())
		peer := w.agent("c1")
		w.put(peer, versions("c1"))
		agent := w.open(peer, nil)
		agent.expect()
		pass(31 * time.Second)
		agent.expect("spec resync_response w1 v1")
	})
}

// TestResync_MemoryOfListsIsBounded checks that a client that sends lists faster than they are answered gets a
// retry delay.
func TestResync_MemoryOfListsIsBounded(t *testing.T) {
	inWorld(t, broker.Config{MaxEventBytes: 16 << 10, QueueBytes: 64 << 10}, func(w *world) {
		gate := make(chan struct{})
		source := w.open(w.source("src"), func(_ *transport.RawSubscription, s *tap) { s.hold = func() { <-gate } })
		w.put(source.peer, work{version: 1}.event())
		w.put(w.agent("c1"), w.event(report{version: 1})) // the stream is stuck in this status
		synctest.Wait()
		long := make([]codec.StatusHash, 10)
		for i := range long {
			long[i].ResourceID = fmt.Sprintf("%01000d", i)
		}
		list := hashes("src", "", long...)
		var err error
		n := 0
		for ; err == nil && n < 100; n++ {
			_, err = w.Publish(w.Context(), source.peer, list, "")
		}
		e := w.refused(err, transport.CodeOverloaded)
		if e.Next != transport.NextBackOff || e.Delay <= 0 || n < 3 {
			t.Errorf("request %d: %+v", n, e)
		}
		close(gate)
		synctest.Wait()
		if _, err := w.Publish(w.Context(), source.peer, list, ""); err != nil {
			t.Errorf("after the answers: %v", err)
		}
	})
}

// TestResync_StuckStreamsDoNotKeepOthersFromComparing checks that a stream that cannot send its heartbeat
// before its comparison holds no resource that others need (I6).
func TestResync_StuckStreamsDoNotKeepOthersFromComparing(t *testing.T) {
	inWorld(t, broker.Config{Comparisons: 1}, func(w *world) {
		source := w.source("src")
		gate := make(chan struct{})
		stuck := w.open(w.agent("c1"), func(_ *transport.RawSubscription, s *tap) { s.hold = func() { <-gate } })
		w.put(source, work{version: 1}.event())
		w.put(source, work{cluster: "c2", id: "w2", version: 1}.event())
		synctest.Wait()
		w.request(stuck)
		pass(11 * time.Second)
		gate <- struct{}{} // the next step is a heartbeat, and a comparison waits
		synctest.Wait()
		other := w.open(w.agent("c2"), nil)
		w.request(other)
		other.expect("spec resync_response w2 v1")
		close(gate)
		stuck.expect("spec create_request w1 v1", "spec resync_response w1 v1")
	})
}

// TestResync_KnownWorksAreNoOrphans checks that an id which is queued behind a tombstone is no orphan. A live
// work that an operator force-deleted is no orphan, and the agent gets no deletion (I3).
func TestResync_KnownWorksAreNoOrphans(t *testing.T) {
	registry := prometheus.NewRegistry()
	inWorld(t, broker.Config{Registry: registry}, func(w *world) {
		agent, source := w.subscribe(w.agent("c1")), w.source("src")
		w.put(source, work{version: 1}.event())
		w.put(source, work{version: 2, deleting: true}.event())
		if got := w.put(source, work{id: "waits", name: "name-of-w1", version: 1}.event()); got != codec.OutcomeQueued {
			t.Fatalf("outcome %q", got)
		}
		w.put(source, work{id: "given-up", version: 1}.event())
		key := store.Key{DataType: codec.ManifestBundles, Cluster: "c1", ResourceID: "given-up"}
		if _, err := w.Store.Commit(w.Context(), []store.Op{{Kind: store.Forget, Key: key, At: time.Now()}}); err != nil {
			t.Fatal(err)
		}
		agent.take()
		w.request(agent, held("w1", 2), held("waits", 1), held("given-up", 1))
		agent.expectAny("spec resync_response w1 v2 deleting", "status resync_request  v0")
		if n := value(t, registry, "hawser_broker_orphan_works_total"); n != 0 {
			t.Errorf("%v orphans", n)
		}
	})
}

// TestResync_RepeatsConfirmedDeletion checks an agent whose journal was restored. It lists a work whose deletion
// it had confirmed, and gets the deletion again.
func TestResync_RepeatsConfirmedDeletion(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent, source := w.subscribe(w.agent("c1")), w.source("src")
		w.put(source, work{version: 1}.event())
		w.put(source, work{version: 2, deleting: true}.event())
		w.put(agent.peer, w.event(report{version: 2, deleted: true}))
		agent.take()
		w.request(agent)
		agent.expect()
		w.request(agent, held("w1", 1))
		agent.expect("spec resync_response w1 v2 deleting")
	})
}

// TestResync_DeletedBeforeTheAgentCame checks a work that was deleted after the store was lost and the hub was
// restored. Neither knew that the cluster had the work. The agent lists it after the source has acknowledged
// the deletion, and gets the deletion.
func TestResync_DeletedBeforeTheAgentCame(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.open(w.source("src"), hawser)
		w.put(source.peer, work{version: 1}.event())
		if got := w.put(source.peer, work{version: 2, deleting: true}.event()); got != codec.OutcomeConfirmed {
			t.Fatalf("the deletion is %s", got)
		}
		pass(time.Minute)
		source.mustAck(source.checkpoint())
		pass(time.Second)
		agent := w.subscribe(w.agent("c1"))
		w.request(agent, held("w1", 1))
		agent.expect("spec resync_response w1 v2 deleting")
	})
}

// TestResync_GoneAndItsNameHasAnotherWork checks an OCM agent that lists a deleted work whose name has a new
// work.
//
// Scenario:
//
//	t1: the agent disconnects.
//	t2: the next work of the name is published.
//	t3: the first work is deleted.
//	t4: the agent lists the first work.
//
// Result: the agent gets only the next work, which replaces the first one. The deletion would remove objects of
// the next work. After the next work is deleted, the agent gets both deletions.
func TestResync_GoneAndItsNameHasAnotherWork(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent, source := w.subscribe(w.agent("c1")), w.source("src")
		w.put(source, work{id: "u1", name: "n", version: 1}.event())
		agent.take()
		w.leave(agent)
		w.put(source, work{id: "u2", name: "n", version: 1}.event())
		if got := w.put(source, work{id: "u1", name: "n", version: 2, deleting: true}.event()); got != codec.OutcomeConfirmed {
			t.Fatalf("the deletion is %s", got)
		}
		agent = w.subscribe(w.agent("c1"))
		w.request(agent, held("u1", 1))
		agent.expectAny("spec resync_response u2 v1")
		w.leave(agent)
		w.put(source, work{id: "u2", name: "n", version: 2, deleting: true}.event())
		agent = w.subscribe(w.agent("c1"))
		w.request(agent, held("u1", 1))
		agent.expectAny("spec resync_response u1 v2 deleting", "spec resync_response u2 v2 deleting")
	})
}
