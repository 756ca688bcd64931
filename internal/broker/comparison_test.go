package broker_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/internal/testkit/admincall"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

func (s *tap) syncReport(c codec.SyncReport) error {
	e, err := codec.NewSyncReport(s.params(), c)
	return s.send(marshal(s.w, e, err))
}

func (s *tap) mustCompare(c codec.SyncReport) {
	s.w.Helper()
	if err := s.syncReport(c); err != nil {
		s.w.Fatalf("compared: %v", err)
	}
	synctest.Wait()
}

func clusters(names ...string) codec.SyncReport {
	c := codec.SyncReport{}
	for _, n := range names {
		c.Clusters = append(c.Clusters, codec.ClusterSyncReport{Cluster: n})
	}
	return c
}

// sources returns the synced sources in the checkpoints that arrived.
func (s *tap) sources() []string {
	s.w.Helper()
	pass(time.Second)
	var last []string
	for _, c := range s.checkpoints() {
		last = append([]string{}, c.SyncedSources...)
	}
	return last
}

// TestSyncReport_IsSentToAgentsOfCluster checks that agents get the synced sources when they change, and only
// then.
func TestSyncReport_IsSentToAgentsOfCluster(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		one, two := w.open(w.agent("c1"), hawser), w.open(w.agent("c2"), hawser)
		w.request(one)
		w.request(two)
		a, b := w.open(w.source("a"), hawser), w.open(w.source("b"), hawser)
		withheld := func(on *tap, id string) codec.SyncReport {
			w.put(on.peer, work{source: on.peer.Name, id: id, version: 1}.event())
			r, err := w.Store.Get(w.Context(), store.Key{DataType: codec.ManifestBundles, Cluster: "c1", ResourceID: id})
			if err != nil {
				t.Fatal(err)
			}
			pass(time.Second)
			one.take()
			one.checkpoints()
			return codec.SyncReport{Clusters: []codec.ClusterSyncReport{{
				Cluster: "c1", Reason: "why", Withheld: []codec.WithheldDeletion{{ResourceID: id, Revision: r.SpecRevision}},
			}}}
		}
		expect := func(what string, first, second []string) {
			t.Helper()
			if diff := cmp.Diff(first, one.sources()); diff != "" {
				t.Errorf("%s, c1: %s", what, diff)
			}
			if diff := cmp.Diff(second, two.sources()); diff != "" {
				t.Errorf("%s, c2: %s", what, diff)
			}
		}
		nothing, none := []string(nil), []string{}
		expect("at first", none, none)
		b.mustCompare(clusters("c1", "unknown"))
		expect("b has c1", []string{"b"}, nothing)
		b.mustCompare(clusters("c1"))
		expect("b has it again", nothing, nothing)
		all := clusters("c1")
		all.AllClusters = true
		a.mustCompare(all)
		expect("a has all", []string{"a", "b"}, []string{"a"})
		a.mustCompare(codec.SyncReport{AllClusters: true})
		expect("a has all again", nothing, nothing)
		a.mustCompare(withheld(a, "w"))
		expect("a withholds", []string{"b"}, nothing)
		a.mustCompare(codec.SyncReport{AllClusters: true})
		expect("on this connection it does", nothing, nothing)
		w.put(b.peer, releaseOf(t, "b", "c1"))
		expect("b releases", none, nothing)
		again := w.open(w.source("a"), hawser)
		again.mustCompare(codec.SyncReport{AllClusters: true})
		expect("a does not withhold any more", []string{"a"}, nothing)
		w.put(a.peer, releaseOf(t, "a", "c2"))
		expect("a releases", nothing, none)
		late := w.open(w.agent("c1"), hawser)
		w.request(late)
		if diff := cmp.Diff([]string{"a"}, late.sources()); diff != "" {
			t.Errorf("a later subscription: %s", diff)
		}
	})
}

func TestSyncReport_RemembersTheHub(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.open(w.source("src"), hawser)
		p := codec.HubPosition{UID: "hub-uid", ResourceVersion: "4711"}
		source.mustCompare(codec.SyncReport{Position: &p})
		source.mustCompare(codec.SyncReport{})
		again := w.open(w.source("src"), hawser)
		inv := again.page(codec.InventoryRequest{})
		if inv.LastPosition == nil || *inv.LastPosition != p {
			t.Errorf("position %+v", inv.LastPosition)
		}
		if inv := again.page(codec.InventoryRequest{PageToken: "1/c/"}); inv.LastPosition != nil {
			t.Errorf("a later page has it too: %+v", inv.LastPosition)
		}
		if inv := w.open(w.source("src2"), hawser).page(codec.InventoryRequest{}); inv.LastPosition != nil {
			t.Errorf("another source has it: %+v", inv.LastPosition)
		}
	})
}

func TestSyncReport_Refuses(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.open(w.source("src"), hawser)
		w.wantCode(source.syncReport(clusters("a\x00b")), transport.CodeInvalid)
		w.wantCode(source.syncReport(clusters(strings.Repeat("x", 2000))), transport.CodeInvalid)
		w.wantCode(source.syncReport(clusters("c1", "c2", "c1")), transport.CodeInvalid)
		many := func(from, n int) (c codec.SyncReport) {
			for i := range n {
				c.Clusters = append(c.Clusters, codec.ClusterSyncReport{Cluster: fmt.Sprint("c", from+i)})
			}
			return c
		}
		source.mustCompare(many(0, 40_000))
		source.mustCompare(many(0, 40_000)) // nothing new
		w.wantCode(source.syncReport(many(40_000, 40_000)), transport.CodeInvalid)
		source.mustCompare(codec.SyncReport{AllClusters: true})
		source.mustCompare(many(40_000, 40_000))
	})
}

// TestAhead_WaitsForTheSourceThenForced checks I2 after a restored store: works for which the agent is
// ahead stay unchanged until the source has synced.
func TestAhead_WaitsForTheSourceThenForced(t *testing.T) {
	before := func(w *world) {
		w.subscribe(w.agent("c1")).cancel() // an agent has subscribed once
		for _, id := range []string{"live", "deleted", "catches-up", "repeated"} {
			w.put(w.source("src"), work{id: id, version: 5}.event())
		}
		w.put(w.source("src"), work{id: "deleted", version: 5, deleting: true}.event())
		w.put(w.source("ocm"), work{source: "ocm", id: "foreign", version: 5}.event())
	}
	inRestored(t, before, func(w *world) {
		source := w.open(w.source("src"), hawser)
		newer := []codec.ResourceVersion{held("live", 7), held("deleted", 7), held("catches-up", 7), held("repeated", 7), held("foreign", 7)}
		ocm, ours := w.open(w.agent("c1"), nil), w.open(w.agent("c1"), hawser)
		for _, agent := range []*tap{ocm, ours} {
			w.request(agent, newer...)
			agent.expect("status resync_request  v0")
		}
		if c := ours.checkpoint(); !c.ListAnswered || len(c.Orphans) != 0 {
			t.Errorf("checkpoint %+v", c)
		}
		w.put(source.peer, work{id: "catches-up", version: 8, action: codec.UpdateRequest}.event())
		w.put(source.peer, work{id: "repeated", version: 7, action: codec.UpdateRequest}.event()) // the version that the store had before
		for _, agent := range []*tap{ocm, ours} {
			agent.expect("spec update_request catches-up v8", "spec update_request repeated v7")
		}
		source.mustCompare(clusters("c1"))
		// An OCM agent first gets the spec as version 0, which it always accepts. Then it gets the real version, so
		// that its status names a generation.
		ocm.expectAny("spec resync_response live v0", "spec resync_response live v5", "spec resync_response deleted v5 deleting")
		ours.expectAny("spec resync_response live v0", "spec resync_response deleted v7 deleting")
		source.mustCompare(clusters("c1"))
		ocm.expect()
		// The agent confirms the version that it got.
		if o := w.put(ocm.peer, w.event(report{id: "deleted", version: 7, deleted: true})); o != codec.OutcomeConfirmed {
			t.Errorf("the deletion is %q", o)
		}
		ours.cancel()
		// From now on the delivery does not wait for the source, even if the agent is ahead.
		late := w.open(w.agent("c1"), nil)
		w.request(late, newer...)
		late.expectAny("spec resync_response live v0", "spec resync_response live v5", "spec resync_response deleted v5 deleting", "spec resync_response catches-up v8", "status resync_request  v0")
	})
}

// TestAhead_ForcesSpecPublishedAfterList:
//
// Scenario:
//
//	t1: the store is lost, and the source went back to version 5 of a work.
//	t2: the agent lists version 7. The store has no record, so the work is an orphan.
//	t3: the source compares, and publishes version 5.
//
// Result: the delivery is forced. No later list would show the work, and the agent would reject version 5 as
// stale.
func TestAhead_ForcesSpecPublishedAfterList(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.open(w.source("src"), hawser)
		ocm, ours := w.open(w.agent("c1"), nil), w.open(w.agent("c1"), hawser)
		for _, agent := range []*tap{ocm, ours} {
			w.request(agent, held("before", 7), held("after", 7), held("deleted", 7), held("newer", 7))
		}
		pass(time.Second)
		w.put(source.peer, work{id: "before", version: 5}.event())
		w.put(source.peer, work{id: "newer", version: 8}.event())
		for _, agent := range []*tap{ocm, ours} {
			agent.expect("spec create_request before v5", "spec create_request newer v8")
		}
		source.mustCompare(clusters("c1"))
		ocm.expect("spec resync_response before v0", "spec resync_response before v5")
		ours.expect("spec resync_response before v0")
		w.put(source.peer, work{id: "after", version: 5}.event())
		w.put(source.peer, work{id: "deleted", version: 5, deleting: true}.event())
		ocm.expectAny("spec resync_response after v0", "spec resync_response after v5", "spec resync_response deleted v5 deleting")
		ours.expectAny("spec resync_response after v0", "spec resync_response deleted v7 deleting")
	})
}

// TestAhead_FreshDeletionsAreSent checks that new deletions are sent, even if the agent lists a newer version
// (C29). Such a deletion is newer than every state that the store may have lost.
func TestAhead_FreshDeletionsAreSent(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		w.subscribe(w.agent("c1")).cancel() // an agent has subscribed once
		w.put(w.source("src"), work{version: 5}.event())
		w.put(w.source("src"), work{version: 5, deleting: true}.event())
		ocm, ours := w.open(w.agent("c1"), nil), w.open(w.agent("c1"), hawser)
		w.request(ocm, held("w1", 7))
		ocm.expectAny("spec resync_response w1 v5 deleting", "status resync_request  v0")
		w.request(ours, held("w1", 7))
		ours.expectAny("spec resync_response w1 v7 deleting", "status resync_request  v0")
	})
}

// inRestored runs before with a broker. Then it runs after with another broker over a reopened copy of the
// store.
func inRestored(t *testing.T, before, after func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ids := testkit.NewIDs("store")
		first := mem.Open(mem.Options{NewID: ids})
		serve := func(s *mem.Store, test func(w *world)) {
			w := &world{T: t, Broker: testkit.StartBroker(t, testkit.Options{Broker: broker.Config{Store: s, NewID: testkit.NewIDs("id")}})}
			test(w)
			w.Stop()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		serve(first, before)
		serve(mem.Open(mem.Options{NewID: ids, From: first.Backup()}), after)
	})
}

// TestOrphans_AreNamedInCheckpoints checks that orphans are in the checkpoints of the subscription that listed
// them, until they have a record.
func TestOrphans_AreNamedInCheckpoints(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		w.put(source, work{id: "known", version: 1}.event())
		agent, other := w.open(w.agent("c1"), hawser), w.open(w.agent("c1"), hawser)
		w.request(agent, held("o2", 1), held("known", 1), held("o1", 1))
		w.request(other)
		orphans := func(s *tap) []string {
			t.Helper()
			pass(time.Second)
			list := s.checkpoints()
			if len(list) == 0 {
				return nil
			}
			return append([]string{}, list[len(list)-1].Orphans...)
		}
		if diff := cmp.Diff([]string{"o1", "o2"}, orphans(agent)); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{}, orphans(other)); diff != "" {
			t.Errorf("an agent that did not list them: %s", diff)
		}
		w.put(source, work{id: "o1", version: 3}.event())
		if diff := cmp.Diff([]string{"o2"}, orphans(agent)); diff != "" {
			t.Errorf("explained: %s", diff)
		}
		w.request(agent, held("known", 1))
		if diff := cmp.Diff([]string{}, orphans(agent)); diff != "" {
			t.Errorf("listed no more: %s", diff)
		}
		// The checkpoint cannot repeat this many ids, so the digest differs.
		var many []codec.ResourceVersion
		for i := range 40_000 {
			many = append(many, held(fmt.Sprintf("28e8bfbf-1292-522f-999a-%012d", i), 1))
		}
		w.request(agent, many...)
		if n := len(orphans(agent)); n < 20_000 || n > 30_000 {
			t.Errorf("%d orphans are named", n)
		}
		// Not every event repeats the ids.
		for i := range 20 {
			w.put(source, work{id: "known", version: int32(i + 2)}.event())
			pass(200 * time.Millisecond)
		}
		if n := len(agent.checkpoints()); n > 2 {
			t.Errorf("%d checkpoints of 1 MiB in 4 s", n)
		}
	})
}

// TestRelease_IsSeenByTheAgent checks that after a release the digest differs and the source is not synced, so
// nothing is evicted.
func TestRelease_IsSeenByTheAgent(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent, source := w.open(w.agent("c1"), hawser), w.open(w.source("src"), hawser)
		w.request(agent)
		w.put(source.peer, work{version: 1}.event())
		source.mustCompare(clusters("c1"))
		pass(time.Second)
		list := agent.checkpoints()
		if c := list[len(list)-1]; c.Digest.Count != 1 || len(c.SyncedSources) != 1 {
			t.Fatalf("before: %+v", c)
		}
		w.put(source.peer, releaseOf(t, "src", "c1"))
		pass(2 * time.Second)
		list = agent.checkpoints()
		for _, c := range list {
			if len(c.SyncedSources) != 0 {
				t.Errorf("%+v", c)
			}
		}
		if c := list[len(list)-1]; c.Digest == nil || c.Digest.Count != 0 {
			t.Errorf("after: %+v", c)
		}
	})
}

// TestUnbindCluster_EndsSyncReports checks that works of an unbound cluster are not evicted, because they still
// exist at their source.
func TestUnbindCluster_EndsSyncReports(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent, source := w.open(w.agent("c1"), hawser), w.open(w.source("src"), hawser)
		w.request(agent)
		w.put(source.peer, work{version: 1}.event())
		source.mustCompare(clusters("c1"))
		if diff := cmp.Diff([]string{"src"}, agent.sources()); diff != "" {
			t.Error(diff)
		}
		if _, err := w.UnbindCluster(admincall.By(w.Context(), olga), &hawserv1.UnbindClusterRequest{Cluster: "c1", Works: true}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{}, agent.sources()); diff != "" {
			t.Error(diff)
		}
	})
}

// slowPositions is a store that writes sync reports with a hub position only after it has received from hold.
type slowPositions struct {
	store.Store
	hold chan struct{}
}

func (s slowPositions) Commit(ctx context.Context, ops []store.Op) ([]store.Outcome, error) {
	if slices.ContainsFunc(ops, func(op store.Op) bool { return strings.HasPrefix(op.Name, "hub/") }) {
		<-s.hold
	}
	return s.Store.Commit(ctx, ops)
}

// TestSyncReport_DoesNotOutlastARelease:
//
// Scenario:
//
//	t1: a source reports that it is synced for a cluster; the broker begins to write that.
//	t2: the source releases the cluster, and its records are dropped.
//	t3: the write of t1 ends.
//
// Result: the report is discarded. Otherwise the agent would evict the works.
func TestSyncReport_DoesNotOutlastARelease(t *testing.T) {
	for name, reported := range map[string]codec.SyncReport{
		"by name": clusters("c1"),
		"all":     {AllClusters: true},
	} {
		t.Run(name, func(t *testing.T) {
			slow := slowPositions{hold: make(chan struct{})}
			inWrapped(t, broker.Config{}, func(s store.Store) store.Store {
				slow.Store, slow.hold = s, make(chan struct{}) // a channel must be made in the bubble that uses it
				return slow
			}, func(w *world) {
				agent, source := w.open(w.agent("c1"), hawser), w.open(w.source("src"), hawser)
				w.request(agent)
				w.put(source.peer, work{version: 1}.event())
				reported.Position = &codec.HubPosition{UID: "hub", ResourceVersion: "1"}
				done := make(chan error, 1)
				go func() { done <- source.syncReport(reported) }() // the result is received below
				synctest.Wait()
				w.put(source.peer, releaseOf(t, "src", "c1"))
				slow.hold <- struct{}{}
				if e := w.refused(<-done, transport.CodeUnavailable); !transport.Retryable(e) || e.Delay <= 0 {
					t.Errorf("%+v", e)
				}
				if diff := cmp.Diff([]string{}, agent.sources()); diff != "" {
					t.Error(diff)
				}
				reported.Position = nil
				source.mustCompare(reported) // the report of the present state
				if diff := cmp.Diff([]string{"src"}, agent.sources()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// goneSoon is a context that has an error from the second call of Err on.
type goneSoon struct {
	context.Context
	looked *int
}

func (c goneSoon) Err() error {
	if *c.looked++; *c.looked > 1 {
		return context.Canceled
	}
	return nil
}

// TestSyncReport_OfEndedSubscriptionIsRejected checks that a sync report is rejected if its subscription ends,
// even during the call. The next event of the source may be a release.
func TestSyncReport_OfEndedSubscriptionIsRejected(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent, source := w.open(w.agent("c1"), hawser), w.open(w.source("src"), hawser)
		w.request(agent)
		e, err := codec.NewSyncReport(source.params(), clusters("c1"))
		_, err = w.Publish(goneSoon{w.Context(), new(int)}, source.peer, marshal(w, e, err), source.accepted.SubscriptionID)
		if e := w.refused(err, transport.CodeUnavailable); !transport.Retryable(e) {
			t.Errorf("%+v", e)
		}
		pass(time.Second)
		if diff := cmp.Diff([]string{}, agent.sources()); diff != "" {
			t.Error(diff)
		}
	})
}
