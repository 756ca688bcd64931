package registration

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mem"
)

// agent is an agent of a cluster at a real broker.
type agent struct {
	*bench
	conn    transport.Conn
	cluster string

	mu   sync.Mutex
	seen map[string]string // data of the last event by data type
}

// agent connects an agent, and subscribes it to these types.
func (b *bench) agent(server transport.Server, p transport.Peer, cluster string, types ...codec.DataType) *agent {
	b.Helper()
	conn, err := mem.New(server, p).Dial(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	a := &agent{bench: b, conn: conn, cluster: cluster, seen: map[string]string{}}
	for _, d := range types {
		ready := make(chan struct{})
		go func() { // ends with the connection
			s := transport.Subscription{Filter: transport.Filter{Cluster: cluster, DataType: d}}
			err := conn.Subscribe(context.Background(), s, func(transport.Accepted) { close(ready) }, func(_ context.Context, e codec.Event) error {
				a.mu.Lock()
				defer a.mu.Unlock()
				a.seen[d.Resource] = string(e.Data())
				return nil
			})
			if transport.CodeOf(err) != transport.CodeUnavailable {
				b.Errorf("stream of %s: %v", d, err)
			}
		}()
		<-ready
	}
	return a
}

func (a *agent) sees(resource string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen[resource]
}

// publish publishes an object, and returns the reason of the refusal.
func (a *agent) publish(what codec.EventType, o obj) string {
	a.Helper()
	m := parsed(a, what, a.cluster, o)
	e, err := codec.Unmarshal(m.GetEvent())
	if err != nil {
		a.Fatal(err)
	}
	meta, _ := o["metadata"].(obj)
	if uid, ok := meta["uid"].(string); ok {
		e.SetExtension(codec.ExtResourceID, uid)
	}
	_, err = a.conn.Publish(a.Context(), e, "")
	if err == nil {
		return ""
	}
	var refused *transport.Error
	if errors.As(err, &refused) {
		if known, ok := codec.ParseAPIError(refused.Message); ok {
			return known.Reason
		}
	}
	return err.Error()
}

// A cluster joins through a real broker. It requests, an operator accepts it, it renews its Lease, gets a
// token, and is refused when acceptance is withdrawn. It never sees the hub itself.
func TestServer_ThroughABroker(t *testing.T) {
	var there *testkit.Broker
	inBubble(t, func(b *bench, c *Config) {
		there = testkit.StartBroker(b, testkit.Options{Broker: broker.Config{Registration: "hub1"}})
		c.Dialer = there.Dialer(identity.Identity{Role: identity.Source, Name: "hub1"})
		b.hub.put("serviceaccounts", cluster1, "a-agent", obj{"metadata": obj{"labels": obj{tokenLabel: "true"}}})
	}, func(b *bench) {
		newcomer := b.agent(there.Broker, transport.Peer{
			Role: string(identity.Bootstrap), Name: bootstrapUser, User: bootstrapUser, Groups: []string{"g"},
		}, cluster1, codec.ManagedClusters, codec.SigningRequests)
		if refused := newcomer.publish(createdCluster, obj{"metadata": obj{"name": cluster1}, "spec": obj{"hubAcceptsClient": true}}); refused != "" {
			t.Fatal(refused)
		}
		if refused := newcomer.publish(createdCSR, csrOf(requestPEM(t, nil), nil)); refused != "" {
			t.Fatal(refused)
		}
		b.wait(time.Second)
		if got := newcomer.sees("managedclusters"); !strings.Contains(got, `"hubAcceptsClient":false`) {
			t.Errorf("it sees %s", got)
		}
		if got := newcomer.sees("certificatesigningrequests"); !strings.Contains(got, bootstrapUser) {
			t.Errorf("it sees %s", got)
		}
		b.hub.change(hubCSRs, "", "cluster1-abcde", func(o obj) { o["status"] = obj{"certificate": "Q0VSVA=="} })
		b.wait(time.Second)
		if got := newcomer.sees("certificatesigningrequests"); !strings.Contains(got, "Q0VSVA==") {
			t.Errorf("its certificate does not come: %s", got)
		}

		member := b.agent(there.Broker, transport.Peer{
			Role: string(identity.Agent), Name: cluster1, User: agentOf1, Groups: []string{groupOf1},
		}, cluster1, codec.ManagedClusters, codec.Leases, codec.TokenRequests)
		event := obj{"metadata": obj{"namespace": cluster1, "name": "e"}}
		if refused := member.publish(createdEvent, event); refused != "Forbidden" {
			t.Errorf("before acceptance: %q", refused)
		}
		b.joined(cluster1)
		b.wait(time.Second)
		if refused := member.publish(createdEvent, event); refused != "" {
			t.Errorf("after acceptance: %q", refused)
		}
		lease := obj{"metadata": obj{"namespace": cluster1, "name": ocm.LeaseName}, "spec": obj{"renewTime": "2000-01-01T00:00:00.000000Z"}}
		if refused := member.publish(updatedLease, lease); refused != "" {
			t.Errorf("renewal: %q", refused)
		}
		b.wait(time.Minute)
		if at := b.renewTime(cluster1); time.Since(at) > 2*time.Minute {
			t.Errorf("renewed at %s", at)
		}
		token := obj{"metadata": obj{"namespace": cluster1, "name": "a-agent", "uid": "mine"}}
		if refused := member.publish(createdToken, token); refused != "" {
			t.Errorf("a token: %q", refused)
		}
		b.wait(time.Second)
		if got := member.sees("tokenrequests"); !strings.Contains(got, `"token":"token of cluster1/a-agent"`) {
			t.Errorf("its token: %s", got)
		}

		b.hub.change(hubClusters, "", cluster1, func(o obj) { o["spec"].(obj)["hubAcceptsClient"] = false })
		b.wait(time.Second)
		if refused := member.publish(createdCSR, csrOf(requestPEM(t, nil), nil)); refused != "Forbidden" {
			t.Errorf("a renewal after acceptance was withdrawn: %q", refused)
		}
		b.hub.setDown(true)
		if refused := newcomer.publish(createdCSR, csrOf(requestPEM(t, nil), nil)); refused != "ServiceUnavailable" {
			t.Errorf("a hub that is away: %q", refused)
		}
		for _, a := range []*agent{newcomer, member} {
			if err := a.conn.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
