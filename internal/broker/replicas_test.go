package broker_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/internal/testkit/admincall"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// rowTime is the time in which a replica learns of an agent that connects to another one.
const rowTime = 5 * time.Second

// cluster returns what an operator sees of c1 at this broker.
func (w *world) cluster() *hawserv1.ListClustersResponse {
	w.Helper()
	list := w.clusters("c1")
	if len(list) != 1 {
		w.Fatalf("%d clusters", len(list))
	}
	return list[0]
}

// wantState checks the state of c1 at each broker.
func wantState(want hawserv1.ClusterState, brokers ...*world) {
	for i, w := range brokers {
		w.Helper()
		if got := w.cluster().GetState(); got != want {
			w.Errorf("broker %d: %v, want %v", i+1, got, want)
		}
	}
}

// TestReplicas_ShowAgentsOfOthers: each broker shows the agents of all, with the state that the agent has proved.
func TestReplicas_ShowAgentsOfOthers(t *testing.T) {
	inShared(t, broker.Config{}, nil, func(one, other *world) {
		agent := one.open(one.agent("c1"), func(raw *transport.RawSubscription, _ *tap) {
			raw.Hello = transport.Hello{Protocol: transport.Protocol, Version: "v1.2.3"}
		})
		one.request(agent)
		pass(rowTime)
		agent.mustAck(agent.checkpoint())
		pass(2 * refreshTime)
		wantState(hawserv1.ClusterState_CLUSTER_STATE_IN_SYNC, one, other)
		if c := other.cluster(); c.GetSubscriptions() != 1 || c.GetAgentVersion() != "v1.2.3" || !c.GetConnectedAt().AsTime().Equal(one.cluster().GetConnectedAt().AsTime()) {
			t.Errorf("the other broker shows %v", c)
		}

		other.put(other.source("src"), work{id: "u1", version: 1}.event())
		synctest.Wait()
		wantState(hawserv1.ClusterState_CLUSTER_STATE_SYNCING, one, other)
		pass(time.Second)
		agent.receives("u1 v1")
		agent.mustAck(agent.checkpoint())
		pass(2 * refreshTime)
		wantState(hawserv1.ClusterState_CLUSTER_STATE_IN_SYNC, one, other)

		agent.cancel()
		pass(rowTime)
		wantState(hawserv1.ClusterState_CLUSTER_STATE_DISCONNECTED, one, other)
		if c := other.cluster(); c.GetSubscriptions() != 0 || !c.GetLastSeen().AsTime().Equal(one.cluster().GetLastSeen().AsTime()) {
			t.Errorf("the other broker shows %v", c)
		}
	})
}

// refreshTime is the time in which a replica learns of a state of an agent at another one.
const refreshTime = 10 * time.Second

// TestReplicas_LateDisconnect: an agent moves to another broker, and its former broker notices only later. Both show
// it as connected all the time. Its former subscription ends when the new one is known there.
func TestReplicas_LateDisconnect(t *testing.T) {
	inShared(t, broker.Config{}, nil, func(one, other *world) {
		hangs := one.open(one.agent("c1"), hawser)
		pass(rowTime)
		second := one.open(one.agent("c1"), hawser) // another agent of the cluster
		moved := other.open(other.agent("c1"), func(raw *transport.RawSubscription, _ *tap) {
			raw.Hello = transport.Hello{Protocol: transport.Protocol, Version: "v2", Former: hangs.accepted.SubscriptionID}
		})
		pass(rowTime)
		if e := one.refused(<-hangs.ended, transport.CodeUnavailable); e.Attribute != codec.HeaderSubscriptionID {
			t.Errorf("the former subscription ended with %+v", e)
		}
		second.cancel()
		pass(rowTime)
		if len(moved.ended) > 0 {
			t.Errorf("the new subscription ended with %v", <-moved.ended)
		}
		wantState(hawserv1.ClusterState_CLUSTER_STATE_UNVERIFIED, one, other)
		if c := one.cluster(); c.GetSubscriptions() != 1 || c.GetAgentVersion() != "v2" {
			t.Errorf("the former broker shows %v", c)
		}
	})
}

// TestReplicas_FormerHere: the former subscription at the same broker ends at once.
func TestReplicas_FormerHere(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		hangs, of2 := w.open(w.agent("c1"), hawser), w.open(w.agent("c2"), hawser)
		w.open(w.agent("c1"), func(raw *transport.RawSubscription, _ *tap) { raw.Hello.Former = of2.accepted.SubscriptionID })
		w.open(w.agent("c1"), func(raw *transport.RawSubscription, _ *tap) { raw.Hello.Former = hangs.accepted.SubscriptionID })
		w.wantCode(<-hangs.ended, transport.CodeUnavailable)
		if len(of2.ended) > 0 {
			t.Error("an agent has ended the subscription of another cluster")
		}
	})
}

// mortal is a store for which the other replicas are gone when dead is true.
type mortal struct {
	store.Store
	dead *atomic.Bool
}

func (m mortal) Replicas(ctx context.Context) ([]string, error) {
	ids, err := m.Store.Replicas(ctx)
	if m.dead.Load() {
		ids = ids[:1]
	}
	return ids, err
}

// TestReplicas_Dies: the agents of a broker that is gone count as disconnected, until it is back.
func TestReplicas_Dies(t *testing.T) {
	var dead atomic.Bool
	inShared(t, broker.Config{}, func(s store.Store) store.Store { return mortal{s, &dead} }, func(one, other *world) {
		one.open(one.agent("c1"), hawser)
		pass(rowTime)
		wantState(hawserv1.ClusterState_CLUSTER_STATE_UNVERIFIED, one, other)
		dead.Store(true)
		pass(rowTime)
		wantState(hawserv1.ClusterState_CLUSTER_STATE_DISCONNECTED, other)
		dead.Store(false)
		pass(rowTime)
		wantState(hawserv1.ClusterState_CLUSTER_STATE_UNVERIFIED, one, other)
	})
}

// TestReplicas_ShareNothing: a single broker writes no rows, so its agents cost the store nothing.
func TestReplicas_ShareNothing(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent := w.open(w.agent("c1"), hawser)
		w.request(agent)
		pass(rowTime)
		agent.mustAck(agent.checkpoint())
		agent.cancel()
		pass(time.Hour)
		if rows := w.Store.Bookmarks("agent/"); len(rows) > 0 {
			t.Errorf("rows %q", rows)
		}
	})
}

// TestReplicas_Storm: 5,000 agents that connect at the same time cost a few commits.
func TestReplicas_Storm(t *testing.T) {
	const agents = 5000
	var commits atomic.Int64
	inShared(t, broker.Config{}, func(s store.Store) store.Store { return counted{s, &commits} }, func(_, other *world) {
		ctx, cancel := context.WithCancel(other.Context())
		defer cancel()
		pass(rowTime)
		for i := range agents {
			raw := transport.RawSubscription{Cluster: fmt.Sprint("c", i), DataType: codec.ManifestBundles.String()}
			agent := other.agent(raw.Cluster)
			go func() { _ = other.Subscribe(ctx, agent, raw, &tap{w: other}) }() // ends with ctx
		}
		synctest.Wait()
		before := commits.Load()
		pass(2 * rowTime)
		if n := len(other.Store.Bookmarks("agent/")); n != agents {
			t.Errorf("%d rows", n)
		}
		if n := commits.Load() - before; n > 2*int64(rowTime/time.Second) {
			t.Errorf("%d commits", n)
		}
	})
}

// counted is a store that counts its commits.
type counted struct {
	store.Store
	commits *atomic.Int64
}

func (c counted) Commit(ctx context.Context, ops []store.Op) ([]store.Outcome, error) {
	c.commits.Add(1)
	return c.Store.Commit(ctx, ops)
}

// TestReplicas_Registration: a cluster joins through the broker that the source reached last. The broker reports to the source
// which replicas live, and cannot subscribe twice at one of them.
func TestReplicas_Registration(t *testing.T) {
	inShared(t, joining(), nil, func(one, other *world) {
		pass(rowTime)
		first := one.hub()
		first.snapshot(true)
		boot := other.bootstrap("boot")
		early := other.requests(boot, joinOf("c1"))
		other.wantCode(early.ended(), transport.CodeUnavailable)
		ids := first.one().GetReplicas().GetIds()
		if len(ids) != 2 {
			t.Fatalf("replicas %q", ids)
		}
		again := func(raw *transport.RawSubscription, _ *tap) {
			raw.DataType = codec.Registrations.String()
			raw.Hello = transport.Hello{Protocol: transport.Protocol, SubscribedAt: ids[0]}
		}
		if e := one.refused(<-one.open(one.source("hub"), again).ended, transport.CodeUnavailable); e.Next != transport.NextUseAnotherServer {
			t.Errorf("the second subscription: %+v", e)
		}
		if len(first.ended) > 0 {
			t.Errorf("the first subscription ended: %v", <-first.ended)
		}
		second := &hub{from: other.source("hub"), tap: other.open(other.source("hub"), again)}
		if got := second.one().GetReplicas().GetIds(); len(got) != 2 || got[0] != ids[1] || got[1] != ids[0] {
			t.Errorf("replicas %q, then %q", ids, got)
		}
		second.snapshot(true)
		join := other.requests(boot, joinOf("c1"))
		second.must(second.answers(&hawserv1.RegistrationAnswer{Id: second.one().GetId()}))
		if err := join.ended(); err != nil {
			t.Fatal(err)
		}
		for _, h := range []*hub{first, second} {
			h.snapshot(false, clusterOf("c1", 1, true))
		}
		works := other.subscribe(other.agent("c1"))
		one.put(one.source("src"), work{version: 1}.event())
		works.expect("spec create_request w1 v1")
	})
}

// TestReplicas_Balance: a second broker starts. The first one moves agents to it until both have about the same number,
// and accepts new ones all the time. Agents of Open Cluster Management stay.
func TestReplicas_Balance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := mem.Open(mem.Options{NewID: testkit.NewIDs("store")})
		start := func(s store.Store, ids string) *world {
			t.Cleanup(func() { // after the broker has ended
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
			return &world{T: t, Broker: testkit.StartBroker(t, testkit.Options{Broker: broker.Config{Store: s, NewID: testkit.NewIDs(ids)}})}
		}
		one := start(first, "one")
		const agents = 120
		var taps, ocm []*tap
		for i := range agents {
			taps = append(taps, one.open(one.agent(fmt.Sprint("c", i)), func(raw *transport.RawSubscription, _ *tap) {
				raw.Hello = transport.Hello{Protocol: transport.Protocol}
			}))
			ocm = append(ocm, one.open(one.agent(fmt.Sprint("ocm", i)), nil))
		}
		pass(time.Minute)
		if n := one.endedOf(taps); n != 0 {
			t.Errorf("%d agents moved without another replica", n)
		}
		other := start(first.Share(), "other")
		pass(rowTime)
		// 240 agents at two brokers: 120 for each, a quarter more, and 10.
		const moved = 2*agents - (agents + agents/4 + 10)
		if n := one.endedOf(taps); n != moved {
			t.Errorf("%d agents moved, want %d", n, moved)
		}
		if one.endedOf(ocm) != 0 || one.Ready() != nil || other.Ready() != nil {
			t.Error("agents of Open Cluster Management moved, or a broker is not ready")
		}
		late := one.open(one.agent("late"), nil)
		pass(rowTime)
		if one.endedOf([]*tap{late}) != 0 {
			t.Error("a new agent is rejected")
		}
	})
}

// TestReplicas_Listed: each broker shows the works that an agent listed at another one, until the agent has listed again.
func TestReplicas_Listed(t *testing.T) {
	inShared(t, broker.Config{}, nil, func(one, other *world) {
		one.put(one.source("src"), work{version: 1}.event())
		agent := one.open(one.agent("c1"), hawser)
		want := func(want ...string) {
			t.Helper()
			pass(2 * refreshTime)
			for _, w := range []*world{one, other} {
				var got []string
				err := w.ListDiscrepancies(&hawserv1.ListDiscrepanciesRequest{Cluster: "c1"}, admincall.To(w.Context(), func(o *hawserv1.ListDiscrepanciesResponse) error {
					got = append(got, strings.TrimPrefix(o.GetCause().String(), "DISCREPANCY_CAUSE_")+" "+o.GetResourceId())
					return nil
				}))
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("%q, want %q, %v", got, want, err)
				}
			}
		}
		one.request(agent, held("w1", 2), held("gone", 1))
		want("ORPHAN gone", "AHEAD w1")
		agent.cancel()
		moved := other.open(other.agent("c1"), hawser)
		other.request(moved, held("w1", 1), held("gone", 1))
		want("ORPHAN gone")
	})
}

// TestReplicas_Orphans: each broker lists the orphans that an agent reported to another one. Only the broker of the
// agent passes on a decision; another one sends the operator there.
func TestReplicas_Orphans(t *testing.T) {
	inShared(t, broker.Config{}, nil, func(one, other *world) {
		agent := one.open(one.agent("c1"), hawser)
		var reported codec.OrphanReport
		for i := range 30 {
			reported.Records = append(reported.Records, codec.OrphanRecord{UID: fmt.Sprint("u", i), Name: "web", Objects: 3})
		}
		e, err := codec.NewOrphanReport(agent.params(), reported)
		if err := agent.send(marshal(one, e, err)); err != nil {
			t.Fatal(err)
		}
		pass(2 * refreshTime)
		named, details := 0, ""
		err = other.ListDiscrepancies(&hawserv1.ListDiscrepanciesRequest{Cluster: "c1"}, admincall.To(other.Context(), func(o *hawserv1.ListDiscrepanciesResponse) error {
			if o.GetResourceId() != "" {
				named++
			}
			details += o.GetDetail()
			return nil
		}))
		if err != nil || named != 8 || !strings.Contains(details, "and 22 more") {
			t.Errorf("%d orphans, %q, %v", named, details, err)
		}
		decision := &hawserv1.ResolveOrphanRequest{Cluster: "c1", Uid: "u0", Adopt: true}
		_, err = other.ResolveOrphan(admincall.By(other.Context(), olga), decision)
		if e := other.refused(err, transport.CodeUnavailable); e.Next != transport.NextUseAnotherServer {
			t.Errorf("%+v", e)
		}
		if _, err := one.ResolveOrphan(admincall.By(one.Context(), olga), decision); err != nil {
			t.Error(err)
		}
	})
}
