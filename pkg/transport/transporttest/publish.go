package transporttest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

func publishWaits(b *bench) {
	entered, release := make(chan struct{}), make(chan struct{})
	b.server.publish = func(context.Context, transport.Peer, []byte, string) (transport.Receipt, error) {
		close(entered)
		<-release
		return transport.Receipt{}, nil
	}
	c := b.dial()
	done := make(chan error, 1)
	go func() { // done is received from below
		_, err := c.Publish(b.Context(), newReport(1, nil), "")
		done <- err
	}()
	await(b, entered, "the event at the server")
	select {
	case err := <-done:
		b.Errorf("publish returned %v before the server had accepted", err)
	default:
	}
	close(release)
	if err := await(b, done, "publish"); err != nil {
		b.Errorf("publish: %v", err)
	}
}

func publishKeepsEvent(b *bench) {
	got := make(chan []byte, 1)
	ids := make(chan string, 1)
	b.server.publish = func(_ context.Context, _ transport.Peer, e []byte, subscriptionID string) (transport.Receipt, error) {
		got <- e // the server may keep the bytes
		ids <- subscriptionID
		return transport.Receipt{}, nil
	}
	c := b.dial()
	for n, id := range []string{"", "subscription-7"} {
		want := newReport(n, []byte(`{"conditions":null}`))
		if _, err := c.Publish(b.Context(), want, id); err != nil {
			b.Fatalf("publish: %v", err)
		}
		e, err := codec.Unmarshal(await(b, got, "event"))
		if err != nil {
			b.Fatalf("what arrived is no event: %v", err)
		}
		if diff := cmp.Diff(want.String(), e.String()); diff != "" {
			b.Errorf("event changed on the way (-sent +received):\n%s", diff)
		}
		if got := await(b, ids, "subscription id"); got != id {
			b.Errorf("subscription id %q arrived as %q", id, got)
		}
	}
}

func publishReachesPeer(b *bench) {
	peers := make(chan transport.Peer, 1)
	b.server.publish = func(_ context.Context, p transport.Peer, _ []byte, _ string) (transport.Receipt, error) {
		peers <- p
		return transport.Receipt{}, nil
	}
	subscribed := make(chan transport.Peer, 1)
	accept := b.server.subscribe
	b.server.subscribe = func(ctx context.Context, p transport.Peer, r transport.RawSubscription, out transport.Stream) error {
		subscribed <- p
		return accept(ctx, p, r, out)
	}
	publish := func(c transport.Conn) transport.Peer {
		if _, err := c.Publish(b.Context(), newReport(1, nil), ""); err != nil {
			b.Fatalf("publish: %v", err)
		}
		return await(b, peers, "peer")
	}
	first, second := b.dial(), b.dial()
	one, again, other := publish(first), publish(first), publish(second)
	b.subscribe(b.Context(), first, acceptAll).awaitReady()
	stream := await(b, subscribed, "peer of the subscription")

	if one.Role != b.fixture.Peer.Role || one.Name != b.fixture.Peer.Name {
		b.Errorf("server sees %s/%s, want %s/%s", one.Role, one.Name, b.fixture.Peer.Role, b.fixture.Peer.Name)
	}
	if one.Addr == "" {
		b.Error("server does not learn the peer's address")
	}
	if one.Conn != again.Conn || one.Conn != stream.Conn {
		b.Errorf("calls of one connection carry different connection ids: %d, %d, %d", one.Conn, again.Conn, stream.Conn)
	}
	if one.Conn == other.Conn {
		b.Errorf("two connections carry the same connection id %d", one.Conn)
	}
}

func publishReceipt(b *bench) {
	for _, want := range []transport.Receipt{{}, {Outcome: "stale"}, {Outcome: "accepted", Revision: 1<<64 - 1}, {Revision: 7}} {
		b.server.publish = func(context.Context, transport.Peer, []byte, string) (transport.Receipt, error) {
			return want, nil
		}
		if got, err := b.dial().Publish(b.Context(), newReport(1, nil), ""); err != nil || got != want {
			b.Errorf("got %+v, %v; want %+v", got, err, want)
		}
		b.server.publish = func(context.Context, transport.Peer, []byte, string) (transport.Receipt, error) {
			return transport.Receipt{Revision: want.Revision}, &transport.Error{Code: transport.CodeConflict, Message: "refused"}
		}
		if got, err := b.dial().Publish(b.Context(), newReport(1, nil), ""); transport.CodeOf(err) != transport.CodeConflict || got.Revision != want.Revision {
			b.Errorf("of a refusal: got %+v, %v; want revision %d", got, err, want.Revision)
		}
	}
}

// serverErrors are possible errors of a server, with the errors that the peer must see.
func serverErrors() map[string][2]error {
	full := transport.Error{
		Code: transport.CodeOverloaded, Next: transport.NextBackOff, Delay: 1500 * time.Millisecond,
		Attribute: "resourceid", ClusterOnly: true, Full: true, Message: "too many", Hint: "wait",
	}
	withCause := full
	withCause.Err = errors.New("open /var/lib/secret")
	all := map[string][2]error{
		"all fields": {&withCause, &full},
		"untyped":    {errors.New("open /var/lib/secret"), &transport.Error{Code: transport.CodeInternal, Message: "internal error"}},
	}
	for code := transport.CodeInternal; code <= transport.CodeDeadline; code++ {
		e := &transport.Error{Code: code, Message: "because"}
		all[code.String()] = [2]error{e, e}
	}
	return all
}

func publishError(b *bench) {
	c := b.dial()
	for name, tc := range serverErrors() {
		b.server.publish = func(context.Context, transport.Peer, []byte, string) (transport.Receipt, error) {
			return transport.Receipt{}, tc[0]
		}
		_, err := c.Publish(b.Context(), newReport(1, nil), "")
		if diff := cmp.Diff(tc[1], err); diff != "" {
			b.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func publishConcurrently(b *bench) {
	const calls = 16
	var all sync.WaitGroup
	all.Add(calls)
	b.server.publish = func(ctx context.Context, _ transport.Peer, _ []byte, _ string) (transport.Receipt, error) {
		all.Done()
		all.Wait() // each call waits for all other calls
		return transport.Receipt{}, ctx.Err()
	}
	c := b.dial()
	done := make(chan error, calls)
	for n := range calls {
		go func() { // done is received from below
			_, err := c.Publish(b.Context(), newReport(n, nil), "")
			done <- err
		}()
	}
	for range calls {
		if err := await(b, done, "publish"); err != nil {
			b.Errorf("publish: %v", err)
		}
	}
}

func publishCancelled(b *bench) {
	ctx, cancel := context.WithCancel(b.Context())
	gone := make(chan struct{})
	b.server.publish = func(serverCtx context.Context, _ transport.Peer, _ []byte, _ string) (transport.Receipt, error) {
		cancel()
		<-serverCtx.Done()
		close(gone)
		return transport.Receipt{}, serverCtx.Err()
	}
	c := b.dial()
	_, err := c.Publish(ctx, newReport(1, nil), "")
	b.wantCode(err, transport.CodeUnavailable)
	if !errors.Is(err, context.Canceled) {
		b.Errorf("got %v, want it to wrap context.Canceled", err)
	}
	if b.fixture.GivesUpAlone {
		if err := c.Close(); err != nil {
			b.Errorf("close: %v", err)
		}
	}
	await(b, gone, "end of the server's context")
}

func publishDeadline(b *bench) {
	b.server.publish = func(ctx context.Context, _ transport.Peer, _ []byte, _ string) (transport.Receipt, error) {
		<-ctx.Done()
		return transport.Receipt{}, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(b.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := b.dial().Publish(ctx, newReport(1, nil), "")
	b.wantCode(err, transport.CodeDeadline)
}

func publishInvalid(b *bench) {
	b.server.publish = func(context.Context, transport.Peer, []byte, string) (transport.Receipt, error) {
		b.Error("the event reached the server")
		return transport.Receipt{}, nil
	}
	e := newReport(1, nil)
	e.SetExtension(codec.ExtResourceVersion, int64(1)<<40) // the wire has 32 bits
	_, err := b.dial().Publish(b.Context(), e, "")
	b.wantCode(err, transport.CodeInvalid)
	if typed, ok := errors.AsType[*transport.Error](err); ok && typed.Attribute != codec.ExtResourceVersion {
		b.Errorf("got %v, want it to name the attribute", err)
	}
}
