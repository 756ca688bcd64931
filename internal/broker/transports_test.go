package broker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mqtt"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/topic"
)

// client is a Hawser client on a real connection. All its calls have the deadline of the test.
type client struct {
	t      *testing.T
	conn   transport.Conn
	cancel context.CancelFunc
	ctx    context.Context
	accept transport.Accepted
	events chan codec.Event
	ended  chan error
}

func join(t *testing.T, d transport.Dialer, f transport.Filter, cursor string) *client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	conn, err := d.Dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p := &client{t: t, conn: conn, cancel: cancel, ctx: ctx, events: make(chan codec.Event, 100), ended: make(chan error, 1)}
	ready := make(chan transport.Accepted, 1)
	f.DataType = codec.ManifestBundles
	go func() { // leave waits for its end
		sub := transport.Subscription{Filter: f, Hello: transport.Hello{Protocol: transport.Protocol, Cursor: cursor}}
		p.ended <- conn.Subscribe(ctx, sub, func(a transport.Accepted) { ready <- a }, func(_ context.Context, e codec.Event) error {
			p.events <- e
			return nil
		})
	}()
	select {
	case p.accept = <-ready:
	case err := <-p.ended:
		t.Fatalf("subscribe: %v", err)
	}
	return p
}

func (p *client) leave() {
	p.cancel()
	if err := <-p.ended; !errors.Is(err, context.Canceled) && transport.CodeOf(err) != transport.CodeUnavailable {
		p.t.Errorf("the stream ended with %v", err)
	}
	if err := p.conn.Close(); err != nil {
		p.t.Error(err)
	}
}

// next returns the next event of a type.
func (p *client) next(kind string) codec.Event {
	p.t.Helper()
	select {
	case e := <-p.events:
		if e.Type() != kind {
			p.t.Fatalf("got %s, want %s", e.Type(), kind)
		}
		return e
	case <-p.ctx.Done():
		p.t.Fatalf("waited in vain for %s", kind)
		return codec.Event{}
	}
}

func (p *client) checkpoint() codec.Checkpoint {
	p.t.Helper()
	c, err := codec.ParseCheckpoint(p.next(codec.TypeCheckpoint))
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// worksUntil returns the ids of the works before the first checkpoint that is as wanted, and that checkpoint.
// Other checkpoints may arrive before it, and a work may arrive twice: from the store and from the router.
//
// Scenario:
//
//	t1: three works are committed.
//	t2: the router has passed on one of them.
//	t3: the agent reconnects and gets a checkpoint.
//	t4: the router passes on the other two.
//	t5: the agent gets another checkpoint.
//
// Result: the first checkpoint does not cover all works.
func (p *client) worksUntil(wanted func(codec.Checkpoint) bool) (map[string]bool, codec.Checkpoint) {
	p.t.Helper()
	works := map[string]bool{}
	var last codec.Checkpoint
	for {
		select {
		case e := <-p.events:
			if e.Type() == codec.TypeCheckpoint {
				c, err := codec.ParseCheckpoint(e)
				if err != nil {
					p.t.Fatal(err)
				}
				if wanted(c) {
					return works, c
				}
				last = c
				continue
			}
			id, _, err := codec.StringExtension(e, codec.ExtResourceID)
			if err != nil {
				p.t.Fatal(err)
			}
			works[id] = true
		case <-p.ctx.Done():
			p.t.Fatalf("waited in vain for a checkpoint, the last was %+v", last)
		}
	}
}

func (p *client) publish(e codec.Event, err error) {
	p.t.Helper()
	if err == nil {
		_, err = p.conn.Publish(p.ctx, e, p.accept.SubscriptionID)
	}
	if err != nil {
		p.t.Fatalf("publish %s: %v", e.Type(), err)
	}
}

// TestSync_OverEveryTransport checks cursor, checkpoint, ack, inventory and comparison as the clients see them.
func TestSync_OverEveryTransport(t *testing.T) {
	agent := identity.Identity{Role: identity.Agent, Name: "c1"}
	source := identity.Identity{Role: identity.Source, Name: "src"}
	for name, dialer := range map[string]func(*testkit.Broker, identity.Identity) transport.Dialer{
		"mem":  func(b *testkit.Broker, id identity.Identity) transport.Dialer { return b.Dialer(id) },
		"grpc": func(b *testkit.Broker, id identity.Identity) transport.Dialer { return b.PortDialer(id) },
		"mqtt": func(b *testkit.Broker, id identity.Identity) transport.Dialer { return mqttDialer(t, b, id) },
	} {
		t.Run(name, func(t *testing.T) {
			b := testkit.StartBroker(t, testkit.Options{
				Port: name != "mem", Known: []identity.Identity{source},
				Broker: broker.Config{Checkpoint: time.Millisecond},
			})
			s := join(t, dialer(b, source), transport.Filter{Source: "src"}, "")
			a := join(t, dialer(b, agent), transport.Filter{Cluster: "c1"}, "")
			now := time.Now()
			params := codec.ResyncParams{ID: "list", Time: now, Source: "agent", Cluster: "c1", DataType: codec.ManifestBundles}
			a.publish(codec.NewSpecResyncRequest(params, nil))
			first := a.checkpoint()
			if a.accept.Resync != codec.ResyncList || !first.ListAnswered || first.Digest == nil || first.Digest.Count != 0 {
				t.Errorf("%+v, checkpoint %+v", a.accept, first)
			}
			a.publish(codec.NewAck(codec.SyncParams{ID: "ack", Time: now, Source: "agent", Cluster: "c1"}, codec.Ack{Cursor: first.Cursor, Digest: first.Digest}))
			a.leave()

			for i := range 3 {
				s.publish(codec.Unmarshal(work{id: fmt.Sprint("w", i), version: 1}.event()))
			}
			a = join(t, dialer(b, agent), transport.Filter{Cluster: "c1"}, first.Cursor.String())
			if a.accept.Resync != codec.ResyncCursor {
				t.Errorf("%+v", a.accept)
			}
			works, second := a.worksUntil(func(c codec.Checkpoint) bool { return c.Digest != nil && c.Digest.Count == 3 })
			if len(works) != 3 || second.Cursor.Revision <= first.Cursor.Revision {
				t.Errorf("%d works, checkpoint %+v", len(works), second)
			}

			own := codec.SyncParams{ID: "digests", Time: now, Source: "src", Owner: "src"}
			s.publish(codec.NewInventoryRequest(own, codec.InventoryRequest{}))
			page, err := codec.ParseInventory(s.next(codec.TypeInventory))
			if err != nil {
				t.Fatal(err)
			}
			want := []codec.ClusterDigest{{Cluster: "c1", Digest: *second.Digest}}
			if diff := cmp.Diff(want, page.Clusters); diff != "" || page.RequestID != "digests" {
				t.Errorf("%s in answer to %q", diff, page.RequestID)
			}
			s.publish(codec.NewSyncReport(own, codec.SyncReport{AllClusters: true}))
			a.worksUntil(func(c codec.Checkpoint) bool { return slices.Equal(c.SyncedSources, []string{"src"}) })
			a.leave()
			s.publish(codec.NewRelease("release", now, "src", "c1"))
			s.leave()
		})
	}
}

// mqttDialer returns a dialer of id to the port, over MQTT.
func mqttDialer(t *testing.T, b *testkit.Broker, id identity.Identity) transport.Dialer {
	t.Helper()
	ca, cert, key := b.CA.Write(t.TempDir(), id)
	config, err := identity.Files{CA: ca, Cert: cert, Key: key}.TLS(func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	d, err := mqtt.NewDialer(mqtt.Options{
		Broker: b.Addr, TLS: config, ClientID: id.Name, Log: slog.New(slog.DiscardHandler),
		Topics: topic.Set{SourceEvents: "sources/src/clusters/+/sourceevents", AgentEvents: "sources/src/clusters/+/agentevents"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}
