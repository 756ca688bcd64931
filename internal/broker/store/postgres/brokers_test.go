package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store/postgres"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/internal/testkit/admincall"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// TestBrokers_ClientMoves: two brokers share a database, and one of them ends. Its agent continues at the other one by
// its cursor, and gets what changed only. An event that names its former subscription is rejected.
func TestBrokers_ClientMoves(t *testing.T) {
	t.Parallel()
	_, _, stores := replicas(t, 2)
	var brokers []*testkit.Broker
	for _, s := range stores {
		brokers = append(brokers, testkit.StartBroker(t, testkit.Options{Broker: broker.Config{Store: s}}))
	}
	one, other := brokers[0], brokers[1]
	publishWork(t, other, "work-1")
	agent := subscribe(t, one, transport.Hello{})
	agent.list()
	cursor := agent.until(1, "work-1")

	one.MoveClients(t.Context(), time.Second)
	if e := (*transport.Error)(nil); !errors.As(<-agent.ended, &e) || e.Next != transport.NextUseAnotherServer {
		t.Errorf("the subscription ended with %+v", e)
	}
	moved := subscribe(t, other, transport.Hello{Cursor: cursor.String()})
	if moved.accepted.Resync != codec.ResyncCursor {
		t.Errorf("resync %q", moved.accepted.Resync)
	}
	publishWork(t, other, "work-2")
	moved.until(2, "work-2")
	late := event(t, "agent", codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Status, Action: codec.UpdateRequest}, map[string]any{
		codec.ExtResourceID: "work-1", codec.ExtResourceVersion: int32(1), codec.ExtSequenceID: "4198400",
	}, []byte(`{"conditions":[{"type":"Applied","status":"True"}]}`))
	for _, c := range []*client{agent, moved} {
		if _, err := c.conn.Publish(t.Context(), late, agent.accepted.SubscriptionID); transport.CodeOf(err) != transport.CodeUnavailable {
			t.Errorf("an event of the former subscription: %v", err)
		}
	}
	if _, err := moved.conn.Publish(t.Context(), late, moved.accepted.SubscriptionID); err != nil {
		t.Errorf("an event of the running subscription: %v", err)
	}
}

// TestBrokers_ShowAgents: an agent is connected to one of two brokers, and the other one shows it. It subscribes again
// at the other one, while its former subscription still runs: that one ends, and both show the new one.
func TestBrokers_ShowAgents(t *testing.T) {
	t.Parallel()
	_, _, stores := replicas(t, 2)
	var brokers []*testkit.Broker
	for _, s := range stores {
		brokers = append(brokers, testkit.StartBroker(t, testkit.Options{Broker: broker.Config{Store: s}}))
	}
	hangs := subscribe(t, brokers[0], transport.Hello{Version: "first"})
	shows(t, brokers[1], "first")
	subscribe(t, brokers[1], transport.Hello{Version: "second", Former: hangs.accepted.SubscriptionID})
	if err := <-hangs.ended; transport.CodeOf(err) != transport.CodeUnavailable {
		t.Errorf("the former subscription ended with %v", err)
	}
	shows(t, brokers[0], "second")
}

// shows waits until a broker shows one connected agent, of a release.
func shows(t *testing.T, b *testkit.Broker, release string) {
	t.Helper()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		var got *hawserv1.ListClustersResponse
		err := b.ListClusters(&hawserv1.ListClustersRequest{Cluster: "cluster-1"}, admincall.To(t.Context(), func(c *hawserv1.ListClustersResponse) error {
			got = c
			return nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		if got.GetSubscriptions() == 1 && got.GetAgentVersion() == release {
			return
		}
		select {
		case <-again.C:
		case <-t.Context().Done():
			t.Fatalf("shown is %v", got)
		}
	}
}

// TestBrokers_Registration: a broker reports to the source that serves registration which brokers live. The broker at
// which it is subscribed rejects it, and the other one accepts it.
func TestBrokers_Registration(t *testing.T) {
	t.Parallel()
	_, _, stores := replicas(t, 2)
	var conns []transport.Conn
	for _, s := range stores {
		b := testkit.StartBroker(t, testkit.Options{Broker: broker.Config{Store: s, Registration: "hub"}})
		conns = append(conns, dial(t, b, identity.Identity{Role: identity.Source, Name: "hub"}))
	}
	done := errors.New("done")
	ids := []string{""}
	subscribe := func(at int) error {
		s := transport.Subscription{
			Filter: transport.Filter{Source: "hub", DataType: codec.Registrations},
			Hello:  transport.Hello{Protocol: transport.Protocol, SubscribedAt: ids[0]},
		}
		return conns[at].Subscribe(t.Context(), s, func(transport.Accepted) {}, func(_ context.Context, e codec.Event) error {
			r, err := codec.ParseRegistrationRequest(e)
			if err != nil {
				return err
			}
			ids = r.GetReplicas().GetIds()
			return done
		})
	}
	if err := subscribe(0); !errors.Is(err, done) || len(ids) != 2 || ids[0] == ids[1] {
		t.Fatalf("replicas %q, %v", ids, err)
	}
	if e := (*transport.Error)(nil); !errors.As(subscribe(0), &e) || e.Next != transport.NextUseAnotherServer {
		t.Errorf("a second subscription: %v", e)
	}
	first := slices.Clone(ids)
	if err := subscribe(1); !errors.Is(err, done) || len(ids) != 2 || ids[0] != first[1] || ids[1] != first[0] {
		t.Errorf("replicas %q at the other one, %v", ids, err)
	}
}

// TestBrokers_SyncReport: a source reports at one broker. An agent at another one, and at one that starts later, lists a
// work that the source does not have, and is notified that the source is synced. So it evicts the work. After a release it
// keeps its works.
func TestBrokers_SyncReport(t *testing.T) {
	t.Parallel()
	server, database, stores := replicas(t, 2)
	start := func(s *postgres.Store) *testkit.Broker {
		return testkit.StartBroker(t, testkit.Options{Broker: broker.Config{Store: s}})
	}
	one, other := start(stores[0]), start(stores[1])
	publishWork(t, one, "work-1")
	source := subscribeAs(t, one, identity.Identity{Role: identity.Source, Name: "hub"}, transport.Filter{Source: "hub", DataType: codec.ManifestBundles}, transport.Hello{})
	p := codec.SyncParams{ID: "1", Source: "hub", Time: time.Unix(1_700_000_000, 0)}
	source.publish(codec.NewSyncReport(p, codec.SyncReport{AllClusters: true}))
	late := start(open(t, postgres.Options{URL: server.URL(database)}))
	for name, b := range map[string]*testkit.Broker{"another broker": other, "one that starts": late} {
		agent := subscribe(t, b, transport.Hello{})
		agent.list("work-1", "gone")
		if k := agent.checkpoint(); !slices.Equal(k.SyncedSources, []string{"hub"}) || !slices.Equal(k.Orphans, []string{"gone"}) {
			t.Errorf("%s: synced %q, orphans %q", name, k.SyncedSources, k.Orphans)
		}
	}
	source.publish(codec.NewRelease("2", p.Time, "hub", "cluster-1"))
	agent := subscribe(t, other, transport.Hello{})
	agent.list("work-1")
	if k := agent.checkpoint(); len(k.SyncedSources) > 0 || !slices.Equal(k.Orphans, []string{"work-1"}) {
		t.Errorf("released: synced %q, orphans %q", k.SyncedSources, k.Orphans)
	}
}

// publish publishes an event on the subscription.
func (c *client) publish(e codec.Event, err error) {
	c.t.Helper()
	if err == nil {
		_, err = c.conn.Publish(c.t.Context(), e, c.accepted.SubscriptionID)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// list sends a list of works in version 1.
func (c *client) list(works ...string) {
	c.t.Helper()
	var held []codec.ResourceVersion
	for _, id := range works {
		held = append(held, codec.ResourceVersion{ResourceID: id, ResourceVersion: 1})
	}
	versions, err := codec.EncodeVersions(held)
	if err != nil {
		c.t.Fatal(err)
	}
	c.publish(event(c.t, "agent", codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: codec.ResyncRequest}, nil, versions), nil)
}

// checkpoint waits for the checkpoint that answers a list.
func (c *client) checkpoint() codec.Checkpoint {
	c.t.Helper()
	for {
		select {
		case e := <-c.events:
			if e.Type() != codec.TypeCheckpoint {
				continue
			}
			k, err := codec.ParseCheckpoint(e)
			if err != nil {
				c.t.Fatal(err)
			}
			if k.ListAnswered && k.Digest != nil {
				return k
			}
		case err := <-c.ended:
			c.t.Fatalf("the subscription ended: %v", err)
		}
	}
}

// client has a subscription, mostly of the agent of cluster-1.
type client struct {
	t        *testing.T
	conn     transport.Conn
	accepted transport.Accepted
	events   chan codec.Event
	ended    chan error
}

func subscribe(t *testing.T, b *testkit.Broker, hello transport.Hello) *client {
	t.Helper()
	return subscribeAs(t, b, identity.Identity{Role: identity.Agent, Name: "cluster-1"}, transport.Filter{Cluster: "cluster-1", DataType: codec.ManifestBundles}, hello)
}

func subscribeAs(t *testing.T, b *testkit.Broker, id identity.Identity, to transport.Filter, hello transport.Hello) *client {
	t.Helper()
	hello.Protocol = transport.Protocol
	c := &client{t: t, conn: dial(t, b, id), events: make(chan codec.Event, 100), ended: make(chan error, 1)}
	ready := make(chan transport.Accepted, 1)
	s := transport.Subscription{Filter: to, Hello: hello}
	go func() { // ends with the test
		c.ended <- c.conn.Subscribe(t.Context(), s, func(a transport.Accepted) { ready <- a }, func(_ context.Context, e codec.Event) error {
			c.events <- e
			return nil
		})
	}()
	select {
	case c.accepted = <-ready:
	case err := <-c.ended:
		t.Fatalf("subscribe: %v", err)
	}
	return c
}

// until receives events until the checkpoint with a digest of n works, and returns its cursor. The works before it
// must be those.
func (c *client) until(n uint64, works ...string) codec.Cursor {
	c.t.Helper()
	var got []string
	for {
		select {
		case e := <-c.events:
			if e.Type() != codec.TypeCheckpoint {
				id, _ := e.Extensions()[codec.ExtResourceID].(string)
				got = append(got, id)
				continue
			}
			k, err := codec.ParseCheckpoint(e)
			if err != nil {
				c.t.Fatal(err)
			}
			if k.Digest == nil || k.Digest.Count != n {
				continue
			}
			slices.Sort(got)
			if got = slices.Compact(got); !slices.Equal(got, works) { // one from the store, one from the feed
				c.t.Errorf("got %q, want %q", got, works)
			}
			return k.Cursor
		case err := <-c.ended:
			c.t.Fatalf("the subscription ended: %v", err)
		}
	}
}

func dial(t *testing.T, b *testkit.Broker, id identity.Identity) transport.Conn {
	t.Helper()
	conn, err := b.Dialer(id).Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// publishWork publishes a work of cluster-1.
func publishWork(t *testing.T, b *testkit.Broker, id string) {
	t.Helper()
	kind := codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: codec.CreateRequest}
	e := event(t, "hub", kind, map[string]any{
		codec.ExtResourceID: id, codec.ExtResourceVersion: int32(1), codec.ExtMetadata: fmt.Sprintf(`{"name":%q,"namespace":"cluster-1"}`, id),
	}, []byte(`{"manifests":[]}`))
	if _, err := dial(t, b, identity.Identity{Role: identity.Source, Name: "hub"}).Publish(t.Context(), e, ""); err != nil {
		t.Fatal(err)
	}
}

func event(t *testing.T, source string, kind codec.EventType, extensions map[string]any, data []byte) codec.Event {
	t.Helper()
	e, err := codec.Builder{
		ID: "e", Time: time.Unix(1_700_000_000, 0), Source: source, Type: kind.String(), Cluster: "cluster-1",
		Extensions: extensions, ContentType: codec.ContentTypeJSON, Data: data,
	}.Event()
	if err != nil {
		t.Fatal(err)
	}
	return e
}
