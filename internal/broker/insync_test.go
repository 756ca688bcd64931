package broker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/testkit/admincall"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

func (w *world) wantCluster(what, name string, state hawserv1.ClusterState, pending uint64) {
	w.Helper()
	synctest.Wait()
	for _, c := range w.clusters(name) {
		if c.GetState() != state || c.GetPending() != pending {
			w.Errorf("%s: %s is %v with %d pending, want %v with %d", what, name, c.GetState(), c.GetPending(), state, pending)
		}
	}
}

// TestListClusters_InSyncAfterADeletion:
//
// Scenario:
//
//	t1: an agent gets a deletion and a checkpoint, and acknowledges it.
//	t2: it confirms the deletion, which takes longer.
//
// Result: the cluster is in sync, although no further event is sent or acknowledged.
func TestListClusters_InSyncAfterADeletion(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		w.put(source, work{id: "w1", version: 1}.event())
		agent := w.open(w.agent("c1"), hawser)
		w.request(agent)
		agent.expect("spec resync_response w1 v1")
		agent.mustAck(agent.checkpoint())
		w.put(agent.peer, w.event(report{id: "w1", version: 1}))
		w.wantCluster("it has the work", "c1", hawserv1.ClusterState_CLUSTER_STATE_IN_SYNC, 0)

		w.put(source, work{id: "w1", version: 1, deleting: true}.event())
		pass(time.Minute)
		agent.expect("spec delete_request w1 v1 deleting")
		agent.mustAck(agent.checkpoint())
		w.put(agent.peer, w.event(report{id: "w1", version: 1, deleted: true}))
		w.wantCluster("it has confirmed", "c1", hawserv1.ClusterState_CLUSTER_STATE_IN_SYNC, 0)
		pass(time.Minute)
		if got := agent.checkpoints(); len(got) != 0 {
			t.Errorf("%+v although the agent has nothing else than before", got)
		}
	})
}

// TestListClusters_DiffersAfterForget checks an agent that holds a work that an operator has force-deleted. The
// source of the work never compares.
func TestListClusters_DiffersAfterForget(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		w.put(w.source("src"), work{id: "w1", version: 1}.event())
		agent := w.open(w.agent("c1"), hawser)
		w.request(agent)
		first := agent.checkpoint()
		agent.mustAck(first)
		pass(time.Minute)
		if _, err := w.ForceDeleteWork(admincall.By(w.Context(), olga), &hawserv1.ForceDeleteWorkRequest{Cluster: "c1", ResourceId: "w1"}); err != nil {
			t.Fatal(err)
		}
		w.wantCluster("not sent yet", "c1", hawserv1.ClusterState_CLUSTER_STATE_SYNCING, 0)
		if err := agent.ack(agent.checkpoint().Cursor, first.Digest); err != nil {
			t.Fatal(err)
		}
		w.wantCluster("it has the work", "c1", hawserv1.ClusterState_CLUSTER_STATE_OUT_OF_SYNC, 0)
	})
}

// TestListClusters_PendingOfDisconnectedCluster checks the pending works of a disconnected cluster: specs that
// it has not reported on, and deletions that it has not confirmed.
func TestListClusters_PendingOfDisconnectedCluster(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		for _, id := range []string{"w1", "w2", "w3"} {
			w.put(source, work{id: id, version: 1}.event())
		}
		const offline, never = hawserv1.ClusterState_CLUSTER_STATE_DISCONNECTED, hawserv1.ClusterState_CLUSTER_STATE_NEVER_CONNECTED
		w.wantCluster("no agent has come", "c1", never, 3)
		for what, begin := range map[string]func(*transport.RawSubscription, *tap){"an OCM agent": nil, "one of ours": hawser} {
			agent := w.open(w.agent("c1"), begin)
			w.request(agent)
			for _, id := range []string{"w1", "w2", "w3"} {
				w.put(agent.peer, w.event(report{id: id, version: 1}))
			}
			agent.cancel()
			w.wantCluster(what+" is gone that has everything", "c1", offline, 0)
		}
		w.put(source, work{id: "w1", version: 2}.event())
		w.put(source, work{id: "w2", version: 1, deleting: true}.event())
		w.put(source, work{id: "w4", version: 1}.event())
		w.wantCluster("one is changed, one deleted, one new", "c1", offline, 3)
	})
}
