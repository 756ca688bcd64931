// Package transporttest holds the contract of package transport as tests. [Run] checks each promise of its
// comments against an implementation. The broker's end is a fake whose answers each test scripts, so that a
// failure is the implementation's.
package transporttest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Fixture is one implementation, connected to its server.
type Fixture struct {
	Dialer transport.Dialer
	// Peer is the peer that the server must see; only Role and Name are checked.
	Peer transport.Peer
	// GivesUpAlone: the server does not learn that the caller of a Publish gave up, except by the end of the
	// connection. The protocol has no message for it.
	GivesUpAlone bool
	// Cut fails the open connections as a broken network does. Dialing again succeeds, at the latest after Cut has
	// returned.
	Cut func()
}

// Run tests the implementation that newFixture puts in front of a server. Each test gets its own fixture and
// closes its connections.
func Run(t *testing.T, newFixture func(t *testing.T, s transport.Server) Fixture) {
	t.Helper()
	for _, tc := range []struct {
		name string
		test func(*bench)
	}{
		{"Publish/accepted only when the server accepted", publishWaits},
		{"Publish/event arrives as it is", publishKeepsEvent},
		{"Publish/server sees who and on which connection", publishReachesPeer},
		{"Publish/receipt", publishReceipt},
		{"Publish/error arrives typed and without its cause", publishError},
		{"Publish/calls run side by side", publishConcurrently},
		{"Publish/caller gives up", publishCancelled},
		{"Publish/caller's deadline", publishDeadline},
		{"Publish/event that cannot be encoded", publishInvalid},
		{"Subscribe/request arrives as it is", subscribeRequest},
		{"Subscribe/ready once, before the first event", subscribeReady},
		{"Subscribe/ready only when accepted", subscribeNotReady},
		{"Subscribe/events in order, one at a time", subscribeSerial},
		{"Subscribe/heartbeats are consumed", subscribeHeartbeats},
		{"Subscribe/handler's error ends it", subscribeHandlerFails},
		{"Subscribe/caller's context ends it", subscribeCancelled},
		{"Subscribe/server's error arrives typed", subscribeError},
		{"Subscribe/server's end without error", subscribeEnds},
		{"Subscribe/filter names one client", subscribeFilter},
		{"Subscribe/slow handler holds back the server", subscribeBackPressure},
		{"Subscribe/slow handler does not hold back publishing", publishWhileHandling},
		{"Subscribe/publishing while the answer is delivered", publishAnsweredOnStream},
		{"Subscribe/two on one connection", subscribeTwice},
		{"Conn/close ends running calls", closeEndsCalls},
		{"Conn/cut ends running calls and stays failed", cutEndsCalls},
		{"Dial/caller gave up", dialCancelled},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &scripted{
				publish: func(context.Context, transport.Peer, []byte, string) (transport.Receipt, error) {
					return transport.Receipt{}, nil
				},
				subscribe: func(ctx context.Context, _ transport.Peer, _ transport.RawSubscription, out transport.Stream) error {
					if err := out.Accept(transport.Accepted{SubscriptionID: "s"}); err != nil {
						return err
					}
					<-ctx.Done()
					return ctx.Err()
				},
			}
			tc.test(&bench{T: t, server: s, fixture: newFixture(t, s)})
		})
	}
}

// patience bounds each wait of the suite; no check needs a second.
const patience = 20 * time.Second

// bench is the environment of a test.
type bench struct {
	*testing.T
	server  *scripted
	fixture Fixture
}

// scripted is a server whose answers the test scripts.
type scripted struct {
	publish   func(context.Context, transport.Peer, []byte, string) (transport.Receipt, error)
	subscribe func(context.Context, transport.Peer, transport.RawSubscription, transport.Stream) error
}

func (s *scripted) Publish(ctx context.Context, p transport.Peer, e []byte, subscriptionID string) (transport.Receipt, error) {
	return s.publish(ctx, p, e, subscriptionID)
}

func (s *scripted) Subscribe(ctx context.Context, p transport.Peer, r transport.RawSubscription, out transport.Stream) error {
	return s.subscribe(ctx, p, r, out)
}

// dial opens a connection that the test closes at its end.
func (b *bench) dial() transport.Conn {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	c, err := b.fixture.Dialer.Dial(ctx)
	if err != nil {
		b.Fatalf("dial: %v", err)
	}
	b.Cleanup(func() {
		if err := c.Close(); err != nil {
			b.Errorf("close: %v", err)
		}
	})
	return c
}

// subscription is a running Subscribe.
type subscription struct {
	b     *bench
	ready chan transport.Accepted
	ended chan error
}

func (b *bench) subscribe(ctx context.Context, c transport.Conn, h transport.Handler) *subscription {
	s := &subscription{b: b, ready: make(chan transport.Accepted, 8), ended: make(chan error, 1)}
	go func() { // the test receives from ended, or closes the connection at its end
		s.ended <- c.Subscribe(ctx, agentSubscription(), func(a transport.Accepted) { s.ready <- a }, h)
	}()
	return s
}

func (s *subscription) awaitReady() {
	s.b.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-s.ready:
	case err := <-s.ended:
		s.b.Fatalf("the subscription ended before it was ready: %v", err)
	case <-timer.C:
		s.b.Fatalf("ready: not within %v", patience)
	}
}

func (s *subscription) awaitEnd() error {
	s.b.Helper()
	err := await(s.b, s.ended, "end of the subscription")
	if err == nil {
		s.b.Error("a subscription must end with an error")
	}
	return err
}

func agentSubscription() transport.Subscription {
	return transport.Subscription{Filter: transport.Filter{Cluster: "cluster1", DataType: codec.ManifestBundles}}
}

// await receives from ch, or fails the test.
func await[T any](b *bench, ch <-chan T, what string) T {
	b.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case v := <-ch:
		return v
	case <-timer.C:
		b.Fatalf("%s: not within %v", what, patience)
	}
	panic("unreachable")
}

// wantCode checks that err is a *transport.Error with that code.
func (b *bench) wantCode(err error, code transport.Code) {
	b.Helper()
	var e *transport.Error
	if !errors.As(err, &e) {
		b.Fatalf("got %v (%T), want a *transport.Error with code %v", err, err, code)
	}
	if e.Code != code {
		b.Fatalf("got %v, want code %v", e, code)
	}
}

// newReport returns an event of an agent: a status whose id is "event-<n>".
func newReport(n int, data []byte) codec.Event {
	e := newEvent(n, data)
	e.SetSource("agent1")
	e.SetType(codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Status, Action: codec.UpdateRequest}.String())
	e.SetExtension(codec.ExtOriginalSource, "source1")
	// Each of another work, because an implementation may serialize the events of one work.
	e.SetExtension(codec.ExtResourceID, fmt.Sprintf("6e0c5be5-7a4b-4c1c-8f0e-%012d", n))
	return e
}

// newEvent returns an event for an agent: a spec whose id is "event-<n>".
func newEvent(n int, data []byte) codec.Event {
	e := event.New()
	e.SetID(fmt.Sprintf("event-%d", n))
	e.SetSource("source1")
	e.SetType(codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: codec.CreateRequest}.String())
	e.SetTime(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC))
	e.SetExtension(codec.ExtClusterName, "cluster1")
	e.SetExtension(codec.ExtResourceID, "6e0c5be5-7a4b-4c1c-8f0e-0a1b2c3d4e5f")
	e.SetExtension(codec.ExtResourceVersion, int32(n))
	e.SetExtension(codec.ExtOriginalSource, "")
	if data != nil {
		e.SetDataContentType(event.ApplicationJSON)
		e.DataEncoded = data
	}
	return e
}

// wire returns the bytes of an event.
func (b *bench) wire(e codec.Event) []byte {
	b.Helper()
	p, err := codec.Marshal(e)
	if err != nil {
		b.Fatalf("marshal: %v", err)
	}
	return p
}

func acceptAll(context.Context, codec.Event) error { return nil }
