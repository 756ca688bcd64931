package broker_test

import (
	"context"
	"fmt"
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

// withhold sends a sync report that withholds the deletion of works. It returns the works as they are named in
// an approval.
func (s *tap) withhold(cluster string, ids ...string) (works []*hawserv1.WithheldDeletion) {
	s.w.Helper()
	c := codec.ClusterSyncReport{Cluster: cluster, Reason: "the hub lacks them"}
	for _, id := range ids {
		r, err := s.w.Store.Get(s.w.Context(), store.Key{DataType: codec.ManifestBundles, Cluster: cluster, ResourceID: id})
		if err != nil {
			s.w.Fatal(err)
		}
		c.Withheld = append(c.Withheld, codec.WithheldDeletion{ResourceID: id, Name: r.Name, Revision: r.SpecRevision})
		works = append(works, &hawserv1.WithheldDeletion{ResourceId: id, Name: r.Name, Revision: r.SpecRevision})
	}
	s.mustCompare(codec.SyncReport{Clusters: []codec.ClusterSyncReport{c}})
	return works
}

// TestApprove_DeletesWithheldWork checks that an approval deletes the withheld works on behalf of the source,
// and no others.
func TestApprove_DeletesWithheldWork(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent, source := w.open(w.agent("c1"), hawser), w.open(w.source("src"), hawser)
		w.request(agent)
		const many = 600
		var ids []string
		for i := range many {
			ids = append(ids, fmt.Sprintf("w%03d", i))
			w.put(source.peer, work{id: ids[i], version: 3}.event())
		}
		w.put(source.peer, work{id: "other", version: 3}.event())
		pass(time.Second)
		agent.take()
		withheld := source.withhold("c1", ids...)
		approve := func(source, cluster string, works ...*hawserv1.WithheldDeletion) error {
			_, err := w.Approve(admincall.By(w.Context(), olga), &hawserv1.ApproveRequest{Source: source, Cluster: cluster, Works: works})
			return err
		}
		other := &hawserv1.WithheldDeletion{ResourceId: "other", Revision: withheld[0].GetRevision()}
		later := &hawserv1.WithheldDeletion{ResourceId: ids[0], Revision: withheld[0].GetRevision() + 1}
		w.wantCode(approve("src", "c1"), transport.CodeInvalid)
		w.wantCode(approve("src", "c1", withheld[1], other), transport.CodeConflict)
		w.wantCode(approve("src", "c1", withheld[1], later), transport.CodeConflict)
		w.wantCode(approve("foreign", "c1", withheld[1]), transport.CodeConflict)
		w.wantCode(approve("src", "c2", withheld[1]), transport.CodeConflict)
		agent.expect()
		agent.checkpoints()

		// A work that its source changes is no longer withheld.
		w.put(source.peer, work{id: ids[0], version: 4, action: codec.UpdateRequest}.event())
		agent.expect("spec update_request " + ids[0] + " v4")
		w.wantCode(approve("src", "c1", withheld[0]), transport.CodeConflict)

		if err := approve("src", "c1", withheld[1:300]...); err != nil {
			t.Fatal(err)
		}
		if got := agent.take(); len(got) != 299 || !got[0].Deleting || got[0].Version != 3 || got[0].Source != "src" {
			t.Errorf("%d deletions, the first is %+v", len(got), got[0])
		}
		if got := agent.sources(); len(got) != 0 {
			t.Errorf("%q has compared although something is withheld", got)
		}
		if err := approve("src", "c1", withheld[300:]...); err != nil {
			t.Fatal(err)
		}
		if got := len(agent.take()); got != many-300 {
			t.Errorf("%d deletions", got)
		}
		if diff := cmp.Diff([]string{"src"}, agent.sources()); diff != "" {
			t.Errorf("all is decided: %s", diff)
		}
		w.wantCode(approve("src", "c1", withheld[300:]...), transport.CodeConflict)
		// The source gets the Deleted status as for any deletion.
		w.put(agent.peer, w.event(report{id: ids[1], version: 3, deleted: true}))
		synctest.Wait()
		if e := source.take(); len(e) != 1 || e[0].ResourceID != ids[1] {
			t.Errorf("the source got %+v", shown(e))
		}
	})
}

// hooked is a store that calls during once, before a commit.
type hooked struct {
	store.Store
	during func()
}

func (s *hooked) Commit(ctx context.Context, ops []store.Op) ([]store.Outcome, error) {
	if during := s.during; during != nil {
		s.during = nil
		during()
	}
	return s.Store.Commit(ctx, ops)
}

// Scenario:
//
//	t1: an operator approves the last withheld deletion of a source on a cluster.
//	t2: during its commit the source releases the cluster.
//	t3: the commit ends.
//
// Result: the source is not synced for the cluster, so the agent does not evict the works that stay there.
func TestApprove_SyncsNoClusterReleasedMeanwhile(t *testing.T) {
	s := &hooked{}
	inWrapped(t, broker.Config{}, func(of store.Store) store.Store { s.Store = of; return s }, func(w *world) {
		agent, source := w.open(w.agent("c1"), hawser), w.open(w.source("src"), hawser)
		w.request(agent)
		w.put(source.peer, work{id: "w", version: 3}.event())
		withheld := source.withhold("c1", "w")
		pass(time.Second)
		agent.take()
		agent.checkpoints()
		released := make(chan error, 1)
		s.during = func() {
			go func() {
				_, err := w.Publish(w.Context(), source.peer, releaseOf(w.T, "src", "c1"), source.accepted.SubscriptionID)
				released <- err
			}()
			synctest.Wait()
		}
		if _, err := w.Approve(admincall.By(w.Context(), olga), &hawserv1.ApproveRequest{Source: "src", Cluster: "c1", Works: withheld}); err != nil {
			t.Error(err)
		}
		if err := <-released; err != nil {
			t.Error(err)
		}
		if got := agent.sources(); len(got) != 0 {
			t.Errorf("%q has compared a cluster that it released", got)
		}
	})
}
