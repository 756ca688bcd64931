package broker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/internal/testkit/admincall"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// inShared runs test with two brokers over one store. wrap changes the store of the second one; nil changes nothing.
func inShared(t *testing.T, cfg broker.Config, wrap func(store.Store) store.Store, test func(one, other *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		first := mem.Open(mem.Options{NewID: testkit.NewIDs("store")})
		second := store.Store(first.Share())
		t.Cleanup(func() { // after the brokers have ended
			if err := first.Close(); err != nil {
				t.Error(err)
			}
			if err := second.Close(); err != nil {
				t.Error(err)
			}
		})
		if wrap != nil {
			second = wrap(second)
		}
		start := func(s store.Store, ids string) *world {
			c := cfg
			c.Store, c.NewID = s, testkit.NewIDs(ids)
			return &world{T: t, Broker: testkit.StartBroker(t, testkit.Options{Broker: c})}
		}
		test(start(first, "one"), start(second, "other"))
	})
}

// TestShared_Delivers: a work that a source publishes at one broker reaches an agent at another one, and the status
// comes back.
func TestShared_Delivers(t *testing.T) {
	inShared(t, broker.Config{}, nil, func(one, other *world) {
		source, agent := one.subscribe(one.source("src")), other.subscribe(other.agent("c1"))
		one.put(source.peer, work{version: 1}.event())
		agent.expect("spec create_request w1 v1")
		other.put(agent.peer, other.event(report{version: 1}))
		source.expect("status update_request w1 v1")
	})
}

// TestShared_Denies: a denial at one broker is in force at another one.
func TestShared_Denies(t *testing.T) {
	inShared(t, broker.Config{}, nil, func(one, other *world) {
		if _, err := one.Deny(admincall.By(one.Context(), olga), &hawserv1.DenyRequest{Subject: "agent/c1"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, denied := other.Denials().Of(identity.Identity{Role: identity.Agent, Name: "c1"}, ""); !denied {
			t.Error("the other broker accepts the agent")
		}
	})
}

// TestShared_Acceptance: a broker without a connection to the source that serves registration gets from the
// store which clusters are accepted.
func TestShared_Acceptance(t *testing.T) {
	inShared(t, joining(), nil, func(one, other *world) {
		h := one.hub()
		h.snapshot(true, clusterOf("c1", 1, true))
		works := other.subscribe(other.agent("c1"))
		other.put(other.source("src"), work{version: 1}.event())
		works.expect("spec create_request w1 v1")
		h.snapshot(false, clusterOf("c1", 2, false))
		other.wantCode(<-works.ended, transport.CodeDenied)
		other.wantCode(<-other.open(other.agent("c1"), nil).ended, transport.CodeDenied)
	})
}

// TestShared_Binding: an operator unbinds a cluster name at a broker that has not rejected the agent of the new
// cluster. The new cluster gets the name, and the agents of the replaced one lose their subscriptions.
func TestShared_Binding(t *testing.T) {
	inShared(t, broker.Config{}, nil, func(one, other *world) {
		former := other.hello("c1", "uid-1", codec.Cursor{})
		one.wantCode(<-one.hello("c1", "uid-2", codec.Cursor{}).ended, transport.CodeDenied)
		synctest.Wait()
		if _, err := other.UnbindCluster(admincall.By(other.Context(), olga), &hawserv1.UnbindClusterRequest{Cluster: "c1"}); err != nil {
			t.Fatal(err)
		}
		other.wantCode(<-former.ended, transport.CodeDenied)
		next := one.hello("c1", "uid-2", codec.Cursor{})
		select {
		case err := <-next.ended:
			t.Errorf("the quarantined cluster: %v", err)
		default:
		}
		other.wantCode(<-other.hello("c1", "uid-1", codec.Cursor{}).ended, transport.CodeDenied)
	})
}

// lagging is a store whose changes arrive only when hold is closed, or has a value.
type lagging struct {
	store.Store
	hold chan struct{}
}

func (l lagging) Changes(ctx context.Context, after uint64, limit int) ([]store.Change, error) {
	if c, err := l.Store.Changes(ctx, after, limit); err != nil {
		return c, err
	}
	select {
	case v, more := <-l.hold:
		if more {
			l.hold <- v
		}
		return l.Store.Changes(ctx, after, limit)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestShared_SubscriptionWaits: a broker that has not followed the store yet accepts a subscription only when it has
// reached the head.
func TestShared_SubscriptionWaits(t *testing.T) {
	var hold chan struct{}
	lag := func(s store.Store) store.Store {
		hold = make(chan struct{}) // in the bubble that uses it
		return lagging{s, hold}
	}
	inShared(t, joining(), lag, func(one, other *world) {
		one.hub().snapshot(true, clusterOf("c1", 1, true))
		early := other.open(other.agent("c1"), hawser)
		if early.accepted.SubscriptionID != "" || len(early.ended) > 0 {
			t.Errorf("a broker that lags answers with %+v", early.accepted)
		}
		close(hold)
		synctest.Wait()
		if early.accepted.SubscriptionID == "" {
			t.Errorf("not accepted at the head: %v", <-early.ended)
		}
	})
}

// TestShared_LastSpecFirst:
//
// Scenario:
//
//	t1: an OCM agent is subscribed at a broker. A source publishes a spec at another broker, and deletes the work.
//	t2: the broker of the agent reads the changes.
//
// Result: the agent is sent the last spec before the deletion. The spec defines which objects stay.
func TestShared_LastSpecFirst(t *testing.T) {
	var hold chan struct{}
	lag := func(s store.Store) store.Store {
		hold = make(chan struct{}, 1) // in the bubble that uses it
		hold <- struct{}{}
		return lagging{s, hold}
	}
	inShared(t, broker.Config{}, lag, func(one, other *world) {
		agent, source := other.subscribe(other.agent("c1")), one.source("src")
		one.put(source, work{version: 1}.event())
		agent.expect("spec create_request w1 v1")
		<-hold
		one.put(source, work{version: 2}.event())
		one.put(source, work{version: 2, deleting: true}.event())
		agent.expect()
		close(hold)
		synctest.Wait()
		agent.expect("spec create_request w1 v2", "spec delete_request w1 v2 deleting")
	})
}

// TestShared_FenceOfASource:
//
// Scenario:
//
//	t1: a source publishes at one broker.
//	t2: it subscribes at another broker, and compares. The first broker does not follow the store yet.
//	t3: what the former subscription published arrives at the first broker.
//
// Result: it is rejected, and so is a comparison and a release. The former subscription ends when its broker follows.
// A release takes over too.
func TestShared_FenceOfASource(t *testing.T) {
	var hold chan struct{}
	lag := func(s store.Store) store.Store {
		hold = make(chan struct{}) // in the bubble that uses it
		return lagging{s, hold}
	}
	inShared(t, broker.Config{}, lag, func(other, one *world) {
		former := one.open(one.source("src"), hawser)
		former.mustSend(work{version: 1}.event())
		now := other.open(other.source("src"), hawser)
		if err := now.request("r", codec.InventoryRequest{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for what, err := range map[string]error{
			"spec":       former.send(work{version: 2}.event()),
			"deletion":   former.send(work{version: 2, deleting: true}.event()),
			"release":    former.send(releaseOf(t, "src", "c1")),
			"comparison": former.request("r", codec.InventoryRequest{}),
		} {
			if e := one.refused(err, transport.CodeUnavailable); e.Attribute != codec.HeaderSubscriptionID {
				t.Errorf("%s: %+v", what, e)
			}
		}
		close(hold)
		one.wantCode(<-former.ended, transport.CodeUnavailable)
		now.mustSend(work{version: 2}.event())
		last := one.open(one.source("src"), hawser)
		last.mustSend(releaseOf(t, "src", "c2"))
		other.wantCode(<-now.ended, transport.CodeUnavailable)
		last.mustSend(work{version: 3}.event())
	})
}

// TestShared_LatePublish:
//
// Scenario:
//
//	t1: a source publishes a spec at a broker that cannot commit, and its connection breaks.
//	t2: the source subscribes at another broker, and publishes the spec and its deletion. No agent has it, so the
//	    deletion needs no confirmation.
//	t3: the first broker can commit again.
//
// Result: the spec is rejected, and the work stays deleted.
func TestShared_LatePublish(t *testing.T) {
	var slow *slowStore
	cut := func(s store.Store) store.Store {
		slow = &slowStore{Store: s, tokens: make(chan error)}
		return slow
	}
	inShared(t, broker.Config{}, cut, func(one, other *world) {
		former := other.open(other.source("src"), hawser)
		late := make(chan error, 1)
		go func() { late <- former.send(work{version: 1}.event()) }() // the result is received below
		synctest.Wait()
		now := one.open(one.source("src"), hawser)
		now.mustSend(work{version: 1}.event())
		now.mustSend(work{version: 1, deleting: true}.event())
		slow.tokens <- nil
		other.wantCode(<-late, transport.CodeUnavailable)
		r, err := one.Store.Get(one.Context(), store.Key{DataType: codec.ManifestBundles, Cluster: "c1", ResourceID: "w1"})
		if err != nil || r.State != store.ConfirmedTombstone {
			t.Errorf("%+v, %v: want the confirmed tombstone", r.Meta, err)
		}
	})
}

// TestShared_Moves: a broker ends, and its agent continues at another one by its cursor: it gets what changed and
// nothing else. What its former subscription publishes is rejected at both brokers.
func TestShared_Moves(t *testing.T) {
	inShared(t, broker.Config{}, nil, func(one, other *world) {
		agent, c := one.settled()
		one.MoveClients(one.Context(), time.Second)
		if n := one.endedOf([]*tap{agent}); n != 1 {
			t.Error("the agent has not moved")
		}
		other.put(other.source("src"), work{id: "u2", version: 1}.event())
		moved := other.open(other.agent("c1"), from(c))
		if moved.accepted.Resync != codec.ResyncCursor {
			t.Errorf("resync %q", moved.accepted.Resync)
		}
		pass(time.Second)
		moved.receives("u2 v1")
		if c := moved.checkpoint(); c.Digest.Count != 2 {
			t.Errorf("checkpoint %+v", c)
		}
		late := one.event(report{id: "u1", version: 5})
		for _, w := range []*world{one, other} {
			_, err := w.Publish(w.Context(), agent.peer, late, agent.accepted.SubscriptionID)
			w.wantCode(err, transport.CodeUnavailable)
		}
		if err := moved.send(late); err != nil {
			t.Errorf("the running subscription: %v", err)
		}
	})
}
