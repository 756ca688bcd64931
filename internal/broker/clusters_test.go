package broker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/testkit/admincall"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// of opens the subscription of an agent of c1 whose cluster has a uid.
func (w *world) of(uid string) *tap {
	w.Helper()
	return w.open(w.agent("c1"), func(raw *transport.RawSubscription, _ *tap) {
		raw.Hello = transport.Hello{Protocol: transport.Protocol, ClusterUID: uid}
	})
}

func (w *world) runs(what string, s *tap) {
	w.Helper()
	synctest.Wait()
	select {
	case err := <-s.ended:
		w.Errorf("%s was ended: %v", what, err)
	default:
	}
}

func (w *world) forgetCluster() {
	w.Helper()
	if _, err := w.UnbindCluster(admincall.By(w.Context(), olga), &hawserv1.UnbindClusterRequest{Cluster: "c1"}); err != nil {
		w.Fatal(err)
	}
}

// TestUnbindCluster_LetsTheRefusedOneIn checks that only the quarantined cluster gets the name, even if the
// agent of the previous cluster still runs and reconnects first.
func TestUnbindCluster_LetsTheRefusedOneIn(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		w.put(w.source("src"), work{version: 1}.event())
		old := w.of("uid-1")
		w.wantCode(<-w.of("uid-2").ended, transport.CodeDenied)
		w.runs("the agent that is known", old)

		w.forgetCluster()
		w.wantCode(<-old.ended, transport.CodeDenied)
		w.wantCode(<-w.of("uid-1").ended, transport.CodeDenied)
		w.runs("the agent that was let in", w.of("uid-2"))
		if uid, _ := w.Store.Subscribed(codec.ManifestBundles, "c1"); uid != "uid-2" {
			t.Errorf("the name is %q's", uid)
		}
	})
}

// TestUnbindCluster_WithoutQuarantinedCluster checks that the first cluster that connects gets the name. An
// agent that was rejected long ago and does not reconnect does not reserve the name.
func TestUnbindCluster_WithoutQuarantinedCluster(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		old := w.of("uid-1")
		w.wantCode(<-w.of("uid-2").ended, transport.CodeDenied)
		pass(2 * time.Hour)
		w.forgetCluster()
		w.runs("the agent of the cluster before, as long as no other comes", old)
		w.runs("the first that comes", w.of("uid-3"))
		w.wantCode(<-old.ended, transport.CodeDenied)
		w.wantCode(<-w.of("uid-2").ended, transport.CodeDenied)
	})
}

// TestUnbindCluster_IgnoresReplacedCluster checks that reports of the replaced cluster are ignored, because
// they are about objects of another cluster.
func TestUnbindCluster_IgnoresReplacedCluster(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		src := w.source("src")
		w.put(src, work{version: 1}.event())
		owner := w.subscribe(src)
		old := w.of("uid-1")
		send := func(s *tap, r report) error {
			_, err := w.Publish(w.Context(), s.peer, w.event(r), s.accepted.SubscriptionID)
			synctest.Wait()
			return err
		}
		if err := send(old, report{version: 1}); err != nil {
			t.Fatal(err)
		}
		owner.expect("status update_request w1 v1")
		w.put(src, work{version: 1, deleting: true}.event())
		w.wantCode(<-w.of("uid-2").ended, transport.CodeDenied)
		w.forgetCluster()

		w.wantCode(send(old, report{version: 1, deleted: true}), transport.CodeUnavailable)
		owner.expect()
		now := w.of("uid-2")
		w.request(now)
		now.expect("spec resync_response w1 v1 deleting")
		if err := send(now, report{version: 1, deleted: true}); err != nil {
			t.Fatal(err)
		}
		owner.expect("status update_request w1 v1")
	})
}
