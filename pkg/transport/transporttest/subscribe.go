package transporttest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// accept makes the server accept each subscription and then run then.
func (b *bench) accept(then func(ctx context.Context, out transport.Stream) error) {
	b.server.subscribe = func(ctx context.Context, _ transport.Peer, _ transport.RawSubscription, out transport.Stream) error {
		if err := out.Accept(transport.Accepted{SubscriptionID: "s"}); err != nil {
			return err
		}
		return then(ctx, out)
	}
}

func subscribeRequest(b *bench) {
	type call struct {
		peer transport.Peer
		raw  transport.RawSubscription
	}
	calls := make(chan call, 1)
	answer := transport.Accepted{SubscriptionID: "id-1", Protocol: transport.Protocol, Resync: "cursor", StoreID: "epoch-1", MaxEventBytes: 1 << 20}
	b.server.subscribe = func(_ context.Context, p transport.Peer, r transport.RawSubscription, out transport.Stream) error {
		calls <- call{p, r}
		return errors.Join(out.Accept(answer), &transport.Error{Code: transport.CodeNotFound, Message: "done"})
	}
	hello := transport.Hello{Protocol: transport.Protocol, Cursor: "e/t/42", ClusterUID: "uid", Former: "id-0"}
	dataType := codec.ManifestBundles.String()
	for _, tc := range []struct {
		subscription transport.Subscription
		want         transport.RawSubscription
	}{
		{
			transport.Subscription{Filter: transport.Filter{Cluster: "cluster1", DataType: codec.ManifestBundles}, Hello: hello},
			transport.RawSubscription{Cluster: "cluster1", DataType: dataType, Hello: hello},
		},
		{
			transport.Subscription{Filter: transport.Filter{Source: "source1", DataType: codec.ManifestBundles}},
			transport.RawSubscription{Source: "source1", DataType: dataType},
		},
	} {
		var got transport.Accepted
		err := b.dial().Subscribe(b.Context(), tc.subscription, func(a transport.Accepted) { got = a }, acceptAll)
		b.wantCode(err, transport.CodeNotFound)
		seen := await(b, calls, "subscription at the server")
		if diff := cmp.Diff(tc.want, seen.raw); diff != "" {
			b.Errorf("request changed on the way (-sent +received):\n%s", diff)
		}
		if seen.peer.Role != b.fixture.Peer.Role || seen.peer.Name != b.fixture.Peer.Name {
			b.Errorf("server sees %s/%s", seen.peer.Role, seen.peer.Name)
		}
		got.Roots, got.Transport, got.Broker = nil, "", "" // the transport itself sets these
		if diff := cmp.Diff(answer, got); diff != "" {
			b.Errorf("answer changed on the way (-sent +received):\n%s", diff)
		}
	}
}

func subscribeReady(b *bench) {
	b.accept(func(_ context.Context, out transport.Stream) error {
		first, second := b.wire(newEvent(1, nil)), b.wire(newEvent(2, nil))
		// The second event is sent in parts, which form one event.
		return errors.Join(out.Send(first), out.Send(second[:3], nil, second[3:]),
			&transport.Error{Code: transport.CodeNotFound, Message: "done"})
	})
	var calls []string
	err := b.dial().Subscribe(b.Context(), agentSubscription(),
		func(transport.Accepted) { calls = append(calls, "ready") },
		func(_ context.Context, e codec.Event) error { calls = append(calls, e.ID()); return nil })
	b.wantCode(err, transport.CodeNotFound)
	if diff := cmp.Diff([]string{"ready", "event-1", "event-2"}, calls); diff != "" {
		b.Errorf("calls (-want +got):\n%s", diff)
	}
}

func subscribeNotReady(b *bench) {
	b.server.subscribe = func(context.Context, transport.Peer, transport.RawSubscription, transport.Stream) error {
		return &transport.Error{Code: transport.CodeDenied, Next: transport.NextStop, Message: "not your cluster"}
	}
	err := b.dial().Subscribe(b.Context(), agentSubscription(),
		func(transport.Accepted) { b.Error("ready was called") }, acceptAll)
	b.wantCode(err, transport.CodeDenied)
	if e, ok := errors.AsType[*transport.Error](err); ok && (e.Next != transport.NextStop || e.Message != "not your cluster") {
		b.Errorf("got %#v", e)
	}
}

func subscribeSerial(b *bench) {
	const count = 300
	b.accept(func(_ context.Context, out transport.Stream) error {
		for n := range count {
			if err := out.Send(b.wire(newEvent(n, []byte(`{"n":"`+fmt.Sprint(n)+`"}`)))); err != nil {
				return err
			}
		}
		return &transport.Error{Code: transport.CodeNotFound, Message: "done"}
	})
	var running atomic.Int32
	next := 0
	err := b.dial().Subscribe(b.Context(), agentSubscription(), func(transport.Accepted) {},
		func(_ context.Context, e codec.Event) error {
			if running.Add(1) != 1 {
				b.Error("two handlers run at once")
			}
			defer running.Add(-1)
			if want := fmt.Sprintf("event-%d", next); e.ID() != want || string(e.Data()) != `{"n":"`+fmt.Sprint(next)+`"}` {
				b.Errorf("got %s with %s, want %s", e.ID(), e.Data(), want)
			}
			next++
			return nil
		})
	// Events that were sent before the end are delivered before the end.
	b.wantCode(err, transport.CodeNotFound)
	if next != count {
		b.Errorf("%d of %d events were delivered", next, count)
	}
}

func subscribeHeartbeats(b *bench) {
	b.accept(func(_ context.Context, out transport.Stream) error {
		return errors.Join(out.Send(codec.Heartbeat("h1")), out.Send(b.wire(newEvent(1, nil))), out.Send(codec.Heartbeat("h2")),
			&transport.Error{Code: transport.CodeNotFound, Message: "done"})
	})
	var ids []string
	err := b.dial().Subscribe(b.Context(), agentSubscription(), func(transport.Accepted) {},
		func(_ context.Context, e codec.Event) error { ids = append(ids, e.ID()); return nil })
	b.wantCode(err, transport.CodeNotFound)
	if diff := cmp.Diff([]string{"event-1"}, ids); diff != "" {
		b.Errorf("events (-want +got):\n%s", diff)
	}
}

func subscribeHandlerFails(b *bench) {
	gone := make(chan struct{})
	b.accept(func(ctx context.Context, out transport.Stream) error {
		err := errors.Join(out.Send(b.wire(newEvent(1, nil))), out.Send(b.wire(newEvent(2, nil))))
		<-ctx.Done()
		close(gone)
		return err
	})
	failure := errors.New("disk full")
	calls := 0
	err := b.dial().Subscribe(b.Context(), agentSubscription(), func(transport.Accepted) {},
		func(context.Context, codec.Event) error { calls++; return failure })
	if err != failure { //nolint:errorlint // the contract is the very error, not one that wraps it
		b.Errorf("got %v, want the handler's error", err)
	}
	if calls != 1 {
		b.Errorf("handler called %d times", calls)
	}
	await(b, gone, "end of the subscription at the server")
}

func subscribeCancelled(b *bench) {
	gone := make(chan struct{})
	b.server.subscribe = func(ctx context.Context, _ transport.Peer, _ transport.RawSubscription, out transport.Stream) error {
		// Scenario:
		//   t1: the client has the answer and gives up.
		//   t2: the server sees both at once.
		// Result: Accept may return that the peer is gone. This is an end of the subscription too.
		defer close(gone)
		if err := out.Accept(transport.Accepted{SubscriptionID: "s"}); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
	ctx, cancel := context.WithCancel(b.Context())
	s := b.subscribe(ctx, b.dial(), acceptAll)
	s.awaitReady()
	cancel()
	if err := s.awaitEnd(); !errors.Is(err, context.Canceled) {
		b.Errorf("got %v, want context.Canceled", err)
	}
	await(b, gone, "end of the subscription at the server")

	// A context that has already ended makes a difference only for the server.
	b.server.subscribe = func(context.Context, transport.Peer, transport.RawSubscription, transport.Stream) error {
		b.Error("the request reached the server")
		return nil
	}
	err := b.dial().Subscribe(ctx, agentSubscription(), func(transport.Accepted) { b.Error("ready was called") }, acceptAll)
	if !errors.Is(err, context.Canceled) {
		b.Errorf("got %v, want context.Canceled", err)
	}
}

// subscribeError: a transport may end the connection with the subscription.
func subscribeError(b *bench) {
	for name, tc := range serverErrors() {
		b.accept(func(context.Context, transport.Stream) error { return tc[0] })
		err := b.dial().Subscribe(b.Context(), agentSubscription(), func(transport.Accepted) {}, acceptAll)
		if diff := cmp.Diff(tc[1], err); diff != "" {
			b.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func subscribeEnds(b *bench) {
	b.accept(func(context.Context, transport.Stream) error { return nil })
	err := b.dial().Subscribe(b.Context(), agentSubscription(), func(transport.Accepted) {}, acceptAll)
	b.wantCode(err, transport.CodeUnavailable)
}

func subscribeFilter(b *bench) {
	b.server.subscribe = func(context.Context, transport.Peer, transport.RawSubscription, transport.Stream) error {
		b.Error("the request reached the server")
		return nil
	}
	c := b.dial()
	for _, f := range []transport.Filter{
		{DataType: codec.ManifestBundles},
		{DataType: codec.ManifestBundles, Source: "hub1", Cluster: "cluster1"},
	} {
		err := c.Subscribe(b.Context(), transport.Subscription{Filter: f}, func(transport.Accepted) {}, acceptAll)
		b.wantCode(err, transport.CodeInvalid)
	}
}

// subscribeBackPressure: the server's Send blocks while the handler does, so that the number of events in
// between is bounded.
func subscribeBackPressure(b *bench) {
	const count, size = 800, 64 << 10 // half is above the largest window of gRPC
	var sent atomic.Int32
	b.accept(func(_ context.Context, out transport.Stream) error {
		e := b.wire(newEvent(1, make([]byte, size)))
		for range count {
			if err := out.Send(e); err != nil {
				return err
			}
			sent.Add(1)
		}
		return &transport.Error{Code: transport.CodeNotFound, Message: "done"}
	})
	stuck, release := make(chan struct{}), make(chan struct{})
	handled := 0
	s := b.subscribe(b.Context(), b.dial(), func(context.Context, codec.Event) error {
		if handled++; handled == 1 {
			close(stuck)
			<-release
		}
		return nil
	})
	await(b, stuck, "first event")
	// The server has stopped when its count stays the same for some time.
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for last := int32(-1); last != sent.Load(); <-tick.C {
		last = sent.Load()
	}
	if n := sent.Load(); n > count/2 {
		b.Errorf("%d events of %d bytes were taken from the server while the handler was stuck", n, size)
	}
	close(release)
	b.wantCode(s.awaitEnd(), transport.CodeNotFound)
	if handled != count {
		b.Errorf("%d of %d events were delivered", handled, count)
	}
}

func publishWhileHandling(b *bench) {
	b.accept(func(_ context.Context, out transport.Stream) error {
		e := b.wire(newEvent(1, make([]byte, 64<<10)))
		for {
			if err := out.Send(e); err != nil {
				return err
			}
		}
	})
	c := b.dial()
	stuck, release := make(chan struct{}), make(chan struct{})
	handled := 0
	s := b.subscribe(b.Context(), c, func(ctx context.Context, _ codec.Event) error {
		if handled++; handled > 1 {
			return errors.New("enough")
		}
		// Publish within the handler.
		if _, err := c.Publish(ctx, newReport(2, nil), "s"); err != nil {
			b.Errorf("publish from the handler: %v", err)
		}
		close(stuck)
		<-release
		return nil
	})
	await(b, stuck, "first event")
	// Publish while a handler is stuck, with more data than one window.
	for n := range 20 {
		if _, err := c.Publish(b.Context(), newReport(n, make([]byte, 64<<10)), "s"); err != nil {
			b.Fatalf("publish beside the handler: %v", err)
		}
	}
	close(release)
	_ = s.awaitEnd() // only its end matters
}

// publishAnsweredOnStream: a server may answer a resync request on the stream before it answers the Publish.
// That blocks a client that does not receive at the same time.
func publishAnsweredOnStream(b *bench) {
	const answers = 500
	requested, answered, published := make(chan struct{}), make(chan struct{}), make(chan struct{})
	b.accept(func(ctx context.Context, out transport.Stream) error {
		select {
		case <-requested:
		case <-ctx.Done():
			return ctx.Err()
		}
		e := b.wire(newEvent(1, make([]byte, 4<<10)))
		for range answers {
			if err := out.Send(e); err != nil {
				return err
			}
		}
		close(answered)
		select {
		case <-published: // a transport may end the connection with the subscription
		case <-ctx.Done():
		}
		return &transport.Error{Code: transport.CodeNotFound, Message: "done"}
	})
	b.server.publish = func(ctx context.Context, _ transport.Peer, _ []byte, _ string) (transport.Receipt, error) {
		close(requested)
		select {
		case <-answered:
		case <-ctx.Done():
		}
		return transport.Receipt{}, ctx.Err()
	}
	c := b.dial()
	handled := 0
	s := b.subscribe(b.Context(), c, func(context.Context, codec.Event) error { handled++; return nil })
	s.awaitReady()
	if _, err := c.Publish(b.Context(), newReport(1, nil), "s"); err != nil {
		b.Fatalf("publish: %v", err)
	}
	close(published)
	b.wantCode(s.awaitEnd(), transport.CodeNotFound)
	if handled != answers {
		b.Errorf("%d of %d answers were delivered", handled, answers)
	}
}

func subscribeTwice(b *bench) {
	b.accept(func(ctx context.Context, out transport.Stream) error {
		if err := out.Send(b.wire(newEvent(1, nil))); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	})
	c := b.dial()
	got := make(chan string, 2)
	take := func(_ context.Context, e codec.Event) error { got <- e.ID(); return nil }
	ctx, cancel := context.WithCancel(b.Context())
	one, two := b.subscribe(ctx, c, take), b.subscribe(b.Context(), c, take)
	await(b, got, "event of the first subscription")
	await(b, got, "event of the second subscription")
	cancel()
	_ = one.awaitEnd() // subscribeCancelled looks at the error
	if _, err := c.Publish(b.Context(), newReport(1, nil), ""); err != nil {
		b.Errorf("the end of one subscription broke the connection: %v", err)
	}
	select {
	case err := <-two.ended:
		b.Errorf("the end of one subscription ended the other: %v", err)
	default:
	}
}
