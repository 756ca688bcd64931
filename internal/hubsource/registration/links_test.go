package registration

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mem"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// loadBalancer dials the replicas of a broker in turn.
type loadBalancer struct {
	mu       sync.Mutex
	replicas []*mem.Dialer
	next     int
}

// Dial implements transport.Dialer.
func (l *loadBalancer) Dial(ctx context.Context) (transport.Conn, error) {
	l.mu.Lock()
	d := l.replicas[l.next%len(l.replicas)]
	l.next++
	l.mu.Unlock()
	return d.Dial(ctx)
}

// newReplicas puts replicas of the broker behind one address.
func newReplicas(b *bench, c *Config, ids ...string) (brokers []*fakeBroker, dialers []*mem.Dialer) {
	for range ids {
		brokers = append(brokers, newFakeBroker(b))
		dialers = append(dialers, mem.New(brokers[len(brokers)-1], transport.Peer{Role: "source", Name: "hub1"}))
	}
	report(brokers, ids...)
	c.Dialer = &loadBalancer{replicas: dialers}
	return brokers, dialers
}

// report reports to the source at each broker the ids of all.
func report(brokers []*fakeBroker, ids ...string) {
	for i, b := range brokers {
		b.report(slices.Concat(ids[i:], ids[:i])...)
	}
}

// wantServed checks that a broker has all objects, and that it gets the answer to a request.
func (b *bench) wantServed(broker *fakeBroker, clusters ...string) {
	b.Helper()
	var want []string
	for _, c := range clusters {
		want = append(want, "v1 leases "+c+"/"+ocm.LeaseName, "v1 managedclusters "+c+"/"+c)
	}
	slices.Sort(want)
	listed, subscriptions, keys, _ := broker.now()
	if got := broker.names(); !listed || keys != subscriptions || !slices.Equal(got, want) {
		b.Errorf("listed %v, %d subscriptions, keys sent %d times, objects %q, want %q", listed, subscriptions, keys, got, want)
	}
	again := byBootstrap(parsed(b, createdCluster, cluster1, obj{"metadata": obj{"name": cluster1}}))
	answer := broker.send(&hawserv1.RegistrationRequest{Request: &hawserv1.RegistrationRequest_AgentRequest{AgentRequest: again}})
	if _, refused := b.answered(answer); refused != "AlreadyExists" {
		b.Errorf("request at a replica: %q", refused)
	}
}

// links returns how many links the server has, and how many of them are subscribed.
func (b *bench) links() (all, subscribed int) {
	b.server.eachLink(func(l *link) {
		all++
		if l.on != "" {
			subscribed++
		}
	})
	return all, subscribed
}

// The server serves each replica of the broker. A replica that ends, or that is new, changes the number of sessions.
// Until the others have noticed the end, the server searches for it, and the clusters at the others join meanwhile.
func TestServer_EachReplica(t *testing.T) {
	var (
		brokers []*fakeBroker
		dialers []*mem.Dialer
	)
	inBubble(t, func(b *bench, c *Config) {
		b.joined(cluster1)
		brokers, dialers = newReplicas(b, c, "a", "b", "c")
	}, func(b *bench) {
		b.wait(time.Minute)
		for _, broker := range brokers {
			b.wantServed(broker, cluster1)
		}
		b.joined("cluster2")
		b.wait(time.Second)
		for _, broker := range brokers {
			b.wantServed(broker, cluster1, "cluster2")
		}
		if now, _ := b.server.Connected(); !now {
			t.Error("not connected with three replicas")
		}

		dialers[1].Cut()
		b.wait(time.Minute)
		if all, subscribed := b.links(); all != 3 || subscribed != 2 || b.server.healthy() != nil {
			t.Errorf("a replica is away: %d links, %d subscribed, %v", all, subscribed, b.server.healthy())
		}
		if now, _ := b.server.Connected(); now {
			t.Error("renewals of a replica that is away would count as missed")
		}
		b.wantServed(brokers[0], cluster1, "cluster2")
		report([]*fakeBroker{brokers[0], brokers[2]}, "a", "c")
		b.wait(time.Second)
		if all, subscribed := b.links(); all != 2 || subscribed != 2 {
			t.Errorf("a replica is gone: %d links, %d subscribed", all, subscribed)
		}

		dialers[1].Restore()
		b.joined("cluster3")
		report(brokers, "a", "new", "c")
		b.wait(time.Minute)
		for _, broker := range brokers {
			b.wantServed(broker, cluster1, "cluster2", "cluster3")
		}
		if _, subscriptions, _, _ := brokers[0].now(); subscriptions > 2 {
			t.Errorf("%d subscriptions at a replica that has not changed", subscriptions)
		}
	})
}
