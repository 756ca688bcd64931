package broker_test

import (
	"sync/atomic"
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

// expectCheckpoint checks the synced sources and the orphan works in the last checkpoint. The agent evicts the orphan
// works of synced sources.
func (s *tap) expectCheckpoint(what string, sources, orphans []string) {
	s.w.Helper()
	pass(2 * time.Second)
	list := s.checkpoints()
	if len(list) == 0 {
		s.w.Fatalf("%s: no checkpoint", what)
	}
	last := list[len(list)-1]
	if diff := cmp.Diff([2][]string{sources, orphans}, [2][]string{append([]string{}, last.SyncedSources...), append([]string{}, last.Orphans...)}); diff != "" {
		s.w.Errorf("%s: %s", what, diff)
	}
}

// TestShared_SyncReport: a source reports at one broker. An agent at another one lists a work that the source does not
// have, and is notified that the source is synced. When the source releases the cluster, it no longer is: the agent keeps
// its works.
func TestShared_SyncReport(t *testing.T) {
	inShared(t, broker.Config{}, nil, func(one, other *world) {
		source := one.open(one.source("src"), hawser)
		one.put(source.peer, work{version: 1}.event())
		early := other.open(other.agent("c1"), hawser)
		other.request(early, held("gone", 1))
		early.expectCheckpoint("before", []string{}, []string{"gone"})
		source.mustCompare(clusters("c1"))
		early.expectCheckpoint("reported", []string{"src"}, []string{"gone"})
		late := other.open(other.agent("c1"), hawser)
		other.request(late, held("w1", 1), held("gone", 1))
		late.expectCheckpoint("a later agent", []string{"src"}, []string{"gone"})
		one.put(source.peer, releaseOf(t, "src", "c1"))
		other.request(late, held("w1", 1))
		late.expectCheckpoint("released", []string{}, []string{"w1"})
		early.expectCheckpoint("released", []string{}, []string{"gone"})
	})
}

// reborn is a store that begins another incarnation while it is open, as PostgreSQL does after a failover.
type reborn struct {
	store.Store
	now atomic.Bool
}

func (r *reborn) Head() store.Head {
	h := r.Store.Head()
	if r.now.Load() {
		h.Incarnation, h.FirstRevision = "another", h.Revision+1
	}
	return h
}

// TestShared_Incarnation: the store begins another incarnation under a running broker. The source subscribes again, and
// is synced after its next report.
func TestShared_Incarnation(t *testing.T) {
	var s *reborn
	inShared(t, broker.Config{}, func(inner store.Store) store.Store { s = &reborn{Store: inner}; return s }, func(_, other *world) {
		source, agent := other.open(other.source("src"), hawser), other.open(other.agent("c1"), hawser)
		other.request(agent, held("gone", 1))
		source.mustCompare(codec.SyncReport{AllClusters: true})
		agent.expectCheckpoint("reported", []string{"src"}, []string{"gone"})
		s.now.Store(true)
		other.request(agent, held("gone", 1))
		agent.expectCheckpoint("another incarnation", []string{}, []string{"gone"})
		pass(time.Minute)
		other.wantCode(<-source.ended, transport.CodeUnavailable)
		if len(agent.ended) > 0 {
			t.Errorf("the agent's subscription ended with %v", <-agent.ended)
		}
		other.open(other.source("src"), hawser).mustCompare(codec.SyncReport{AllClusters: true})
		other.request(agent, held("gone", 1))
		agent.expectCheckpoint("reported again", []string{"src"}, []string{"gone"})
	})
}

// TestShared_Withheld: a source withholds a deletion at one broker, and an operator approves it at another one. The
// work is deleted for the agents of both.
func TestShared_Withheld(t *testing.T) {
	inShared(t, broker.Config{}, nil, func(one, other *world) {
		source := one.open(one.source("src"), hawser)
		one.put(source.peer, work{version: 1}.event())
		here, there := one.open(one.agent("c1"), hawser), other.open(other.agent("c1"), hawser)
		one.request(here)
		other.request(there)
		withheld := source.withhold("c1", "w1")
		source.mustCompare(codec.SyncReport{AllClusters: true})
		here.expectCheckpoint("withheld", []string{}, []string{})
		there.expectCheckpoint("withheld", []string{}, []string{})
		here.take()
		there.take()
		r := &hawserv1.ApproveRequest{Source: "src", Cluster: "c1", Works: withheld}
		if _, err := other.Approve(admincall.By(other.Context(), olga), r); err != nil {
			t.Fatal(err)
		}
		_, err := one.Approve(admincall.By(one.Context(), olga), r)
		one.wantCode(err, transport.CodeConflict)
		here.expect("spec delete_request w1 v1 deleting")
		there.expect("spec delete_request w1 v1 deleting")
		here.expectCheckpoint("approved", []string{"src"}, []string{})
		there.expectCheckpoint("approved", []string{"src"}, []string{})
	})
}

// TestShared_OperatorEndsSync: an operator removes a work at one broker. Its source is no longer synced at another one.
func TestShared_OperatorEndsSync(t *testing.T) {
	inShared(t, broker.Config{}, nil, func(one, other *world) {
		source := one.open(one.source("src"), hawser)
		one.put(source.peer, work{version: 1}.event())
		agent := one.open(one.agent("c1"), hawser)
		one.request(agent, held("w1", 1))
		source.mustCompare(codec.SyncReport{AllClusters: true})
		agent.expectCheckpoint("reported", []string{"src"}, []string{})
		r := &hawserv1.ForceDeleteWorkRequest{Cluster: "c1", ResourceId: "w1"}
		if _, err := other.ForceDeleteWork(admincall.By(other.Context(), olga), r); err != nil {
			t.Fatal(err)
		}
		agent.expectCheckpoint("removed", []string{}, []string{})
	})
}

// TestShared_LateReport: a source continues at another broker while a report of its former session is processed.
//
// Scenario:
//
//	t1: a source reports at one broker; the broker begins to write that.
//	t2: the next session of the source reports at another broker.
//	t3: the write of t1 ends.
//
// Result: nothing of the report of t1 is stored.
func TestShared_LateReport(t *testing.T) {
	slow := slowPositions{}
	wrap := func(s store.Store) store.Store {
		slow.Store, slow.hold = s, make(chan struct{}) // in the bubble that uses it
		return slow
	}
	inShared(t, broker.Config{}, wrap, func(one, other *world) {
		agent, former := one.open(one.agent("c1"), hawser), other.open(other.source("src"), hawser)
		one.request(agent)
		late := clusters("c1")
		late.Position = &codec.HubPosition{UID: "hub", ResourceVersion: "1"}
		done := make(chan error, 1)
		go func() { done <- former.syncReport(late) }() // the result is received below
		synctest.Wait()
		one.open(one.source("src"), hawser).mustCompare(clusters("c2"))
		slow.hold <- struct{}{}
		if e := other.refused(<-done, transport.CodeUnavailable); e.Attribute != codec.ExtFence {
			t.Errorf("%+v", e)
		}
		agent.expectCheckpoint("late", []string{}, []string{})
	})
}
