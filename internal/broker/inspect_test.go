package broker_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit/admincall"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

var olga = identity.Identity{Role: identity.Operator, Name: "olga"}

// clusters returns the list of clusters, as an operator gets it.
func (w *world) clusters(name string) (list []*hawserv1.ListClustersResponse) {
	w.Helper()
	err := w.ListClusters(&hawserv1.ListClustersRequest{Cluster: name}, admincall.To(w.Context(), func(c *hawserv1.ListClustersResponse) error {
		list = append(list, c)
		return nil
	}))
	if err != nil {
		w.Fatal(err)
	}
	return list
}

func (w *world) works(r *hawserv1.ListWorksRequest) (list []*hawserv1.ListWorksResponse) {
	w.Helper()
	err := w.ListWorks(r, admincall.To(w.Context(), func(m *hawserv1.ListWorksResponse) error {
		list = append(list, m)
		return nil
	}))
	if err != nil {
		w.Fatal(err)
	}
	return list
}

func (w *world) orphans(cluster string) (list []*hawserv1.ListDiscrepanciesResponse) {
	w.Helper()
	err := w.ListDiscrepancies(&hawserv1.ListDiscrepanciesRequest{Cluster: cluster}, admincall.To(w.Context(), func(o *hawserv1.ListDiscrepanciesResponse) error {
		list = append(list, o)
		return nil
	}))
	if err != nil {
		w.Fatal(err)
	}
	return list
}

func (w *world) differs(what string, want, got any) {
	w.Helper()
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		w.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// TestListWorks_ShowsEveryState checks that the list has live, deleted and confirmed records and queued specs,
// sorted by cluster and id.
func TestListWorks_ShowsEveryState(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		agent := w.subscribe(w.agent("c1"))
		w.put(source, work{id: "w2", name: "a", version: 3}.event())
		w.put(source, work{id: "w1", name: "b", version: 1}.event())
		w.put(source, work{id: "w3", name: "c", version: 1}.event())
		w.put(source, work{cluster: "c0", id: "w4", version: 1}.event())
		w.put(w.source("ci"), work{source: "ci", id: "w5", name: "d", version: 1}.event())
		w.put(agent.peer, w.event(report{id: "w2", version: 2}))
		for _, id := range []string{"w1", "w3"} {
			w.put(source, work{id: id, name: map[string]string{"w1": "b", "w3": "c"}[id], version: 1, deleting: true}.event())
		}
		w.put(source, work{id: "w6", name: "b", version: 1}.event())
		w.put(agent.peer, w.event(report{id: "w3", version: 1, deleted: true}))

		deleted := timestamppb.New(time.Unix(1_700_000_000, 5))
		live, tombstone, confirmed := hawserv1.WorkState_WORK_STATE_LIVE, hawserv1.WorkState_WORK_STATE_DELETING, hawserv1.WorkState_WORK_STATE_DELETED
		want := []*hawserv1.ListWorksResponse{
			{Cluster: "c1", ResourceId: "w1", Name: "b", Source: "src", State: tombstone, Version: 1, DeletedAt: deleted, QueuedResourceId: "w6"},
			{Cluster: "c1", ResourceId: "w2", Name: "a", Source: "src", State: live, Version: 3, Reported: true, ReportedVersion: 2, Health: hawserv1.WorkHealth_WORK_HEALTH_APPLIED},
			{Cluster: "c1", ResourceId: "w3", Name: "c", Source: "src", State: confirmed, Version: 1, Reported: true, ReportedVersion: 1, DeletedAt: deleted},
		}
		got := w.works(&hawserv1.ListWorksRequest{Cluster: "c1", Source: "src"})
		for _, m := range got {
			if m.GetRevision() == 0 {
				t.Errorf("%s has no revision", m.GetResourceId())
			}
			m.Revision = 0
		}
		w.differs("works of src on c1", want, got)
		var all []string
		for _, m := range w.works(&hawserv1.ListWorksRequest{}) {
			all = append(all, m.GetCluster()+"/"+m.GetResourceId())
		}
		w.differs("all works", []string{"c0/w4", "c1/w1", "c1/w2", "c1/w3", "c1/w5"}, all)
	})
}

// TestListClusters_ReportsSyncState goes through the states unverified, in sync, syncing and out of sync, and
// offline without an agent.
func TestListClusters_ReportsSyncState(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		w.put(source, work{id: "w1", version: 1}.event())
		is := func(what string, state hawserv1.ClusterState, sync hawserv1.SyncState, subscriptions uint32) {
			w.Helper()
			list := w.clusters("c1")
			if len(list) != 1 || list[0].GetState() != state || list[0].GetSync() != sync || list[0].GetSubscriptions() != subscriptions {
				t.Errorf("%s: %v", what, list)
			}
		}
		is("never there", hawserv1.ClusterState_CLUSTER_STATE_NEVER_CONNECTED, hawserv1.SyncState_SYNC_STATE_UNSPECIFIED, 0)
		agent := w.open(w.agent("c1"), hawser)
		w.request(agent)
		c := agent.checkpoint()
		is("not acknowledged", hawserv1.ClusterState_CLUSTER_STATE_UNVERIFIED, hawserv1.SyncState_SYNC_STATE_UNSPECIFIED, 1)
		pass(time.Second)
		agent.mustAck(c)
		is("acknowledged", hawserv1.ClusterState_CLUSTER_STATE_IN_SYNC, hawserv1.SyncState_SYNC_STATE_IN_SYNC, 1)
		if got := w.clusters("")[0]; got.GetAckedRevision() != c.Cursor.Revision || got.GetLive() != 1 || got.GetPending() != 0 || !got.GetEverConnected() ||
			got.GetRoundTrip().AsDuration() < time.Second || got.GetLastSeen() != nil {
			t.Errorf("in sync: %v", got)
		}
		w.put(agent.peer, w.event(report{id: "w1", version: 1, failing: true}))
		is("a work fails", hawserv1.ClusterState_CLUSTER_STATE_FAILING, hawserv1.SyncState_SYNC_STATE_IN_SYNC, 1)
		w.put(agent.peer, w.event(report{id: "w1", version: 1}))
		w.put(source, work{id: "w2", version: 1}.event())
		is("changed", hawserv1.ClusterState_CLUSTER_STATE_SYNCING, hawserv1.SyncState_SYNC_STATE_SYNCING, 1)
		pass(time.Second)
		c = agent.checkpoint()
		if err := agent.ack(c.Cursor, &codec.Digest{Count: 7}); err != nil {
			t.Fatal(err)
		}
		is("another digest", hawserv1.ClusterState_CLUSTER_STATE_OUT_OF_SYNC, hawserv1.SyncState_SYNC_STATE_OUT_OF_SYNC, 1)
		agent.cancel()
		w.wantCode(<-agent.ended, transport.CodeUnavailable)
		is("gone", hawserv1.ClusterState_CLUSTER_STATE_DISCONNECTED, hawserv1.SyncState_SYNC_STATE_UNSPECIFIED, 0)
		if list := w.clusters("c1"); list[0].GetLastSeen() == nil || list[0].GetRejectedAt() != nil {
			t.Errorf("it was there until just now: %v", list)
		}
		other := w.open(w.agent("c2"), func(r *transport.RawSubscription, _ *tap) { r.Cluster = "c1" })
		w.wantCode(<-other.ended, transport.CodeDenied)
		is("refused", hawserv1.ClusterState_CLUSTER_STATE_REJECTED, hawserv1.SyncState_SYNC_STATE_UNSPECIFIED, 0)
		if got := w.clusters("c1")[0].GetRejectionReason(); got != "its agent used the certificate of cluster c2: put the certificate of c1 into its Secret" {
			t.Errorf("the message is %q", got)
		}
		if list := w.clusters("nowhere"); len(list) != 0 {
			t.Errorf("an unknown cluster: %v", list)
		}
	})
}

// TestListDiscrepancies_NamesCauses checks that each discrepancy is listed with its cause, until it ends.
func TestListDiscrepancies_NamesCauses(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		w.put(source, work{id: "w1", version: 2}.event())
		revision := w.Store.Head().Revision
		agent := w.open(w.agent("c1"), func(raw *transport.RawSubscription, _ *tap) {
			raw.Hello = transport.Hello{Protocol: transport.Protocol, ClusterUID: "uid-1"}
		})
		w.request(agent, codec.ResourceVersion{ResourceID: "w1", ResourceVersion: 5}, codec.ResourceVersion{ResourceID: "ghost", ResourceVersion: 1})
		agent.take()
		quarantined := w.open(w.agent("c1"), func(raw *transport.RawSubscription, _ *tap) {
			raw.Hello = transport.Hello{Protocol: transport.Protocol, ClusterUID: "uid-2"}
		})
		w.wantCode(<-quarantined.ended, transport.CodeDenied)
		owner := w.open(source, hawser)
		compared, err := codec.NewSyncReport(owner.params(), codec.SyncReport{Clusters: []codec.ClusterSyncReport{{
			Cluster: "c1", Reason: "because", Withheld: []codec.WithheldDeletion{{ResourceID: "w1", Name: "a", Revision: revision}},
		}}})
		if err := owner.send(marshal(t, compared, err)); err != nil {
			t.Fatal(err)
		}
		got := w.orphans("")
		for _, o := range got {
			if o.GetDetail() == "" {
				t.Errorf("%v has no text", o)
			}
			o.Detail = ""
		}
		w.differs("orphans", []*hawserv1.ListDiscrepanciesResponse{
			{Cluster: "c1", Cause: hawserv1.DiscrepancyCause_DISCREPANCY_CAUSE_ORPHAN, ResourceId: "ghost"},
			{Cluster: "c1", Cause: hawserv1.DiscrepancyCause_DISCREPANCY_CAUSE_AHEAD, ResourceId: "w1", Name: "name-of-w1", Source: "src", Revision: revision},
			{Cluster: "c1", Cause: hawserv1.DiscrepancyCause_DISCREPANCY_CAUSE_WITHHELD, ResourceId: "w1", Name: "name-of-w1", Source: "src", Revision: revision},
			{Cluster: "c1", Cause: hawserv1.DiscrepancyCause_DISCREPANCY_CAUSE_QUARANTINED},
		}, got)

		if _, err := w.UnbindCluster(admincall.By(w.Context(), olga), &hawserv1.UnbindClusterRequest{Cluster: "c1"}); err != nil {
			t.Fatal(err)
		}
		w.put(source, work{id: "w1", version: 6}.event())
		w.put(source, work{id: "ghost", version: 1}.event())
		synctest.Wait()
		if left := w.orphans("c1"); slices.ContainsFunc(left, func(o *hawserv1.ListDiscrepanciesResponse) bool {
			return o.GetCause() != hawserv1.DiscrepancyCause_DISCREPANCY_CAUSE_AHEAD
		}) {
			t.Errorf("discrepancies are still listed after their causes ended: %v", left)
		}
	})
}

// TestForceDeleteWork_ReportsToTheSource checks that the source gets the Deleted status of a force-deleted
// work, although the cluster never confirms the deletion.
func TestForceDeleteWork_ReportsToTheSource(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		owner := w.subscribe(source)
		w.subscribe(w.agent("c1"))
		w.put(source, work{id: "w1", version: 1}.event())
		w.put(source, work{id: "w1", version: 1, deleting: true}.event())
		if _, err := w.ForceDeleteWork(admincall.By(w.Context(), olga), &hawserv1.ForceDeleteWorkRequest{Cluster: "c1", ResourceId: "w1"}); err != nil {
			t.Fatal(err)
		}
		events := owner.expect("status update_request w1 v1")
		if len(events) == 1 {
			if deleted, err := codec.ReportsDeleted(events[0].Data); err != nil || !deleted {
				t.Errorf("the source got %s, %v", events[0].Data, err)
			}
		}
		_, err := w.ForceDeleteWork(admincall.By(w.Context(), olga), &hawserv1.ForceDeleteWorkRequest{Cluster: "c1", ResourceId: "none"})
		w.wantCode(err, transport.CodeNotFound)
		_, err = w.ForceDeleteWork(admincall.By(w.Context(), olga), &hawserv1.ForceDeleteWorkRequest{Cluster: "c1"})
		w.wantCode(err, transport.CodeInvalid)
	})
}

// TestUnbindCluster_WithItsWorks checks that every source is notified about its own works.
func TestUnbindCluster_WithItsWorks(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		w.subscribe(w.agent("c1"))
		for _, id := range []string{"w1", "w2", "w3"} {
			w.put(w.source("src"), work{id: id, version: 1}.event())
		}
		w.put(w.source("src"), work{cluster: "c2", id: "w4", version: 1}.event())
		resp, err := w.UnbindCluster(admincall.By(w.Context(), olga), &hawserv1.UnbindClusterRequest{Cluster: "c1", Works: true})
		if err != nil || resp.GetWorks() != 3 {
			t.Fatalf("%v, %v", resp, err)
		}
		for _, m := range w.works(&hawserv1.ListWorksRequest{}) {
			want := hawserv1.WorkState_WORK_STATE_DELETED
			if m.GetCluster() == "c2" {
				want = hawserv1.WorkState_WORK_STATE_LIVE
			}
			if m.GetState() != want {
				t.Errorf("%v", m)
			}
		}
		if _, known := w.Store.Subscribed(codec.ManifestBundles, "c1"); known {
			t.Error("the cluster is still known")
		}
		_, err = w.UnbindCluster(admincall.By(w.Context(), olga), &hawserv1.UnbindClusterRequest{Cluster: "nowhere"})
		w.wantCode(err, transport.CodeNotFound)
	})
}

// TestList_DeletedBeforeAnyAgentCame checks works of a misspelt cluster name that are deleted again. The lists
// do not show them, although their confirmed tombstones stay for an agent that may connect. The same holds for
// works that an operator force-deletes, also in a cluster with other works.
func TestList_DeletedBeforeAnyAgentCame(t *testing.T) {
	registry := prometheus.NewRegistry()
	inWorld(t, broker.Config{Registry: registry}, func(w *world) {
		source := w.open(w.source("src"), hawser)
		for _, id := range []string{"w1", "w2"} {
			w.put(source.peer, work{cluster: "ghost", id: id, version: 1}.event())
			w.put(source.peer, work{id: id, version: 1}.event())
		}
		pass(time.Minute)
		w.differs("clusters counted before", 2.0, value(t, registry, "hawser_broker_clusters state=NeverConnected"))
		w.put(source.peer, work{cluster: "ghost", id: "w1", version: 2, deleting: true}.event())
		w.put(source.peer, work{id: "w1", version: 2, deleting: true}.event())
		if _, err := w.ForceDeleteWork(admincall.By(w.Context(), olga), &hawserv1.ForceDeleteWorkRequest{Cluster: "ghost", ResourceId: "w2"}); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		for _, c := range source.checkpoints() {
			source.mustAck(c)
		}
		pass(time.Second)
		var got []string
		for _, c := range w.clusters("") {
			got = append(got, c.GetCluster())
		}
		for _, m := range w.works(&hawserv1.ListWorksRequest{}) {
			got = append(got, m.GetCluster()+"/"+m.GetResourceId())
		}
		w.differs("clusters and works", []string{"c1", "c1/w2"}, got)
		w.differs("clusters counted", 1.0, value(t, registry, "hawser_broker_clusters state=NeverConnected"))
		if n := w.confirmedTombstones(); n != 3 {
			t.Errorf("%d confirmed tombstones are left for an agent that may connect, want 3", n)
		}
	})
}

// TestAdopt_MovesAWork checks that the new owner may change the work, and the old one may not.
func TestAdopt_MovesAWork(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		w.put(w.source("src"), work{id: "w1", version: 1}.event())
		if _, err := w.TransferWork(admincall.By(w.Context(), olga), &hawserv1.TransferWorkRequest{Cluster: "c1", ResourceId: "w1", Source: "new"}); err != nil {
			t.Fatal(err)
		}
		_, err := w.Publish(w.Context(), w.source("src"), work{id: "w1", version: 2}.event(), "")
		w.wantCode(err, transport.CodeDenied)
		if got := w.put(w.source("new"), work{source: "new", id: "w1", version: 2}.event()); got != codec.OutcomeAccepted {
			t.Errorf("the new owner's spec: %s", got)
		}
		_, err = w.TransferWork(admincall.By(w.Context(), olga), &hawserv1.TransferWorkRequest{Cluster: "c1", ResourceId: "none", Source: "new"})
		w.wantCode(err, transport.CodeNotFound)
	})
}

// TestBackup_NeedsAStoreOnFiles checks that a store in memory has no backup.
func TestBackup_NeedsAStoreOnFiles(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		err := w.Backup(&hawserv1.BackupRequest{}, admincall.To(w.Context(), func(*hawserv1.BackupResponse) error { return nil }))
		w.wantCode(err, transport.CodeInvalid)
	})
}
