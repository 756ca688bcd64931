package broker_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/testkit/admincall"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// numbered returns an event with a fencing token.
func numbered(order uint64, event []byte) []byte {
	return codec.AppendAttributes(event, codec.StringAttr(codec.ExtFence, codec.FormatRevision(order)))
}

// sendStale publishes an event that a later event supersedes. It must be rejected.
func (s *tap) sendStale(event []byte) {
	s.w.Helper()
	if e := s.w.refused(s.send(event), transport.CodeUnavailable); e.Attribute != codec.ExtFence || e.Next != transport.NextBackOff || e.Delay <= 0 {
		s.w.Errorf("%+v", e)
	}
}

func (s *tap) mustSend(event []byte) {
	s.w.Helper()
	if err := s.send(event); err != nil {
		s.w.Fatal(err)
	}
}

// sends returns the sync report of a source with a fencing token.
func (s *tap) sends(order uint64, c codec.SyncReport) []byte {
	e, err := codec.NewSyncReport(s.params(), c)
	return numbered(order, marshal(s.w, e, err))
}

func (w *world) ids(cluster string) []string {
	w.Helper()
	ids := []string{}
	err := w.Store.Scan(w.Context(), store.Scope{DataType: codec.ManifestBundles, Cluster: cluster}, func(m store.Meta) error {
		ids = append(ids, m.ResourceID)
		return nil
	})
	if err != nil {
		w.Fatal(err)
	}
	return ids
}

// TestFence_RejectsEventsBeforeRelease:
//
// Scenario:
//
//	t1: a source publishes specs and a sync report of a cluster, and gives up waiting.
//	t2: it releases the cluster, and the broker drops the records.
//	t3: the events of t1 arrive.
//
// Result: they are rejected. Otherwise the agent would evict the works, or a work would stay without an owner.
// A release that arrives after the cluster is served again is rejected, too.
func TestFence_RejectsEventsBeforeRelease(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent, source := w.open(w.agent("c1"), hawser), w.open(w.source("src"), hawser)
		w.request(agent)
		source.mustSend(numbered(1, work{version: 1}.event()))
		source.mustSend(numbered(6, releaseOf(t, "src", "c1")))
		source.sendStale(source.sends(2, clusters("c1")))
		source.sendStale(source.sends(3, codec.SyncReport{AllClusters: true}))
		source.sendStale(numbered(4, work{version: 2}.event()))
		source.sendStale(numbered(5, work{version: 2, deleting: true}.event()))
		source.mustSend(numbered(4, work{cluster: "c2", id: "w2", version: 1}.event())) // cluster c2 was not released
		if diff := cmp.Diff([]string{}, w.ids("c1")); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{}, agent.sources()); diff != "" {
			t.Error(diff)
		}
		// The source serves the cluster again.
		source.mustSend(numbered(7, work{version: 2}.event()))
		source.mustSend(source.sends(8, clusters("c1")))
		if diff := cmp.Diff([]string{"src"}, agent.sources()); diff != "" {
			t.Error(diff)
		}
		source.sendStale(numbered(5, releaseOf(t, "src", "c1")))
		if diff := cmp.Diff([]string{"w1"}, w.ids("c1")); diff != "" {
			t.Error(diff)
		}
		pass(time.Minute)
		if got := agent.checkpoints(); len(got) != 0 {
			t.Errorf("the agent gets %+v", got)
		}
	})
}

// TestRelease_OfAnImpossibleNameIsRefused checks the cluster name of a release, because it is stored.
func TestRelease_OfAnImpossibleNameIsRefused(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.open(w.source("src"), hawser)
		for _, name := range []string{"a\x00b", strings.Repeat("x", 2000)} {
			if e := w.refused(source.send(numbered(1, releaseOf(t, "src", name))), transport.CodeInvalid); e.Attribute != codec.ExtClusterName {
				t.Errorf("%+v", e)
			}
		}
	})
}

// TestFence_RejectsOlderComparison:
//
// Scenario:
//
//	t1: a source reports that it is synced for a cluster, and gives up waiting.
//	t2: it reports that it withholds deletions there.
//	t3: the report of t1 arrives.
//
// Result: it is rejected. Otherwise the broker would drop the withheld deletions, and no operator could approve
// them.
func TestFence_RejectsOlderComparison(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent, source := w.open(w.agent("c1"), hawser), w.open(w.source("src"), hawser)
		w.request(agent)
		source.mustSend(work{version: 1}.event())
		withheld := source.withhold("c1", "w1")
		source.mustSend(source.sends(2, codec.SyncReport{Clusters: []codec.ClusterSyncReport{{
			Cluster: "c1", Reason: "the hub lacks it",
			Withheld: []codec.WithheldDeletion{{ResourceID: "w1", Revision: withheld[0].GetRevision()}},
		}}}))
		source.sendStale(source.sends(1, clusters("c1")))
		source.sendStale(source.sends(2, clusters("c1"))) // the report arrives a second time
		if diff := cmp.Diff([]string{}, agent.sources()); diff != "" {
			t.Error(diff)
		}
		r := &hawserv1.ApproveRequest{Source: "src", Cluster: "c1", Works: withheld}
		if _, err := w.Approve(admincall.By(w.Context(), olga), r); err != nil {
			t.Errorf("it is withheld no more: %v", err)
		}
	})
}

// TestFence_RejectsWhileInProgress checks two concurrent comparisons: when the later one is committed, the earlier one
// is rejected.
func TestFence_RejectsWhileInProgress(t *testing.T) {
	slow := slowPositions{}
	inWrapped(t, broker.Config{}, func(s store.Store) store.Store {
		slow.Store, slow.hold = s, make(chan struct{}) // a channel must be made in the bubble that uses it
		return slow
	}, func(w *world) {
		agent, source := w.open(w.agent("c1"), hawser), w.open(w.source("src"), hawser)
		w.request(agent)
		first := clusters("c1")
		first.Position = &codec.HubPosition{UID: "hub", ResourceVersion: "1"}
		done := make(chan error, 1)
		go func() { done <- source.send(source.sends(1, first)) }() // the result is received below
		synctest.Wait()
		source.mustSend(source.sends(2, clusters("c2")))
		slow.hold <- struct{}{}
		if e := w.refused(<-done, transport.CodeUnavailable); e.Attribute != codec.ExtFence {
			t.Errorf("%+v", e)
		}
		if diff := cmp.Diff([]string{}, agent.sources()); diff != "" {
			t.Error(diff)
		}
	})
}

// TestFence_RejectsOlderRelease checks that an older release is rejected once the later one is answered,
// because the source may then serve the cluster again.
func TestFence_RejectsOlderRelease(t *testing.T) {
	inSlowWorld(t, broker.Config{}, func(w *world, s *slowStore) {
		source := w.open(w.source("src"), hawser)
		send := func(event []byte) <-chan error {
			done := make(chan error, 1)
			go func() { done <- source.send(event) }() // received by the caller
			synctest.Wait()
			return done
		}
		put := send(numbered(1, work{version: 1}.event()))
		s.tokens <- nil
		if err := <-put; err != nil {
			t.Fatal(err)
		}
		first := send(numbered(2, releaseOf(t, "src", "c1")))
		second := send(numbered(3, releaseOf(t, "src", "c1")))
		s.tokens <- nil // for the commit with which the first release takes over
		w.wantCode(<-first, transport.CodeUnavailable)
		s.tokens <- nil // for that of the second one
		s.tokens <- nil // for the commit that drops the records
		if err := <-second; err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{}, w.ids("c1")); diff != "" {
			t.Error(diff)
		}
	})
}

// TestFence_RejectsBeforeReleaseOfLaterSession checks a release in a later session that has not compared.
// Events in flight of the earlier session are then rejected.
func TestFence_RejectsBeforeReleaseOfLaterSession(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent, old := w.open(w.agent("c1"), hawser), w.open(w.source("src"), hawser)
		ocm, other := w.open(w.source("src"), nil), w.open(w.source("other"), hawser)
		w.request(agent)
		old.mustSend(numbered(8, work{version: 1}.event()))
		now := w.open(w.source("src"), hawser)
		now.mustSend(numbered(1, releaseOf(t, "src", "c1")))
		w.wantCode(<-old.ended, transport.CodeUnavailable)
		w.wantCode(old.send(numbered(9, work{version: 2}.event())), transport.CodeUnavailable)
		w.wantCode(old.send(numbered(10, releaseOf(t, "src", "c1"))), transport.CodeUnavailable)
		w.wantCode(old.send(old.sends(11, clusters("c1"))), transport.CodeInvalid) // names no running subscription
		pass(time.Second)
		if diff := cmp.Diff([]string{}, w.ids("c1")); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{}, agent.sources()); diff != "" {
			t.Error(diff)
		}
		for _, s := range []*tap{ocm, other, now} {
			if len(s.ended) != 0 {
				t.Errorf("the session of %s ended: %v", s.peer.Name, <-s.ended)
			}
		}
	})
}

// large returns a spec that fills the share of a source in a commit alone.
func large(id string) work {
	return work{id: id, version: 1, data: fmt.Sprintf(`{"manifests":[],"x":%q}`, strings.Repeat("x", 300<<10))}
}

// TestFence_ReleaseWaitsForQueued checks that a release drops also the works whose specs were queued when it came, in
// several commits.
func TestFence_ReleaseWaitsForQueued(t *testing.T) {
	inSlowWorld(t, broker.Config{}, func(w *world, s *slowStore) {
		source := w.open(w.source("src"), hawser)
		sent, n := make(chan error, 7), uint64(0)
		send := func(event []byte) {
			n++
			event = numbered(n, event)
			go func() { sent <- source.send(event) }() // received below
			synctest.Wait()
		}
		send(work{version: 1}.event())
		s.answer(1) // the subscription has taken over
		for _, id := range []string{"w1", "w2", "w3", "w4", "w5"} {
			send(large(id).event())
		}
		send(releaseOf(t, "src", "c1"))
		s.answer(8)
		for range 7 {
			if err := <-sent; err != nil {
				t.Error(err)
			}
		}
		if diff := cmp.Diff([]string{}, w.ids("c1")); diff != "" {
			t.Error(diff)
		}
	})
}

// TestFence_DeletionAfterFirstSpec checks that the deletion of a work is committed after its spec, although the spec is
// among the first of its subscription, which take over.
func TestFence_DeletionAfterFirstSpec(t *testing.T) {
	inSlowWorld(t, broker.Config{}, func(w *world, s *slowStore) {
		source := w.open(w.source("src"), hawser)
		sent := make(chan error, 5)
		send := func(k work) {
			go func() { sent <- source.send(k.event()) }() // received below
			synctest.Wait()
		}
		for _, id := range []string{"w1", "w2", "w3"} {
			send(large(id))
		}
		send(work{id: "w", version: 1})
		s.answer(1) // with the takeover
		send(work{id: "w", version: 1, deleting: true})
		s.answer(4)
		for range 5 {
			if err := <-sent; err != nil {
				t.Error(err)
			}
		}
		if h := w.Store.ClusterHead(codec.ManifestBundles, "c1"); h.Digest.Count != 3 {
			t.Errorf("%d works, want 3 without the deleted one", h.Digest.Count)
		}
	})
}
