package transport_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mem"
	"github.com/hawser-io/hawser/pkg/transport/transporttest"
)

func TestShare_Contract(t *testing.T) {
	transporttest.Run(t, func(_ *testing.T, s transport.Server) transporttest.Fixture {
		peer := transport.Peer{Role: "agent", Name: "cluster1"}
		d := mem.New(s, peer)
		return transporttest.Fixture{Dialer: apart{transport.Share(d)}, Peer: peer, Cut: func() { d.Cut(); d.Restore() }}
	})
}

// apart opens a new connection for each Dial, because the suite needs two of them.
type apart struct{ *transport.SharedDialer }

func (a apart) Dial(ctx context.Context) (transport.Conn, error) {
	a.Renew()
	return a.SharedDialer.Dial(ctx)
}

// counted counts the dials and the open connections.
type counted struct {
	transport.Dialer
	dials, open int
	refusal     error
}

func (c *counted) Dial(ctx context.Context) (transport.Conn, error) {
	if c.refusal != nil {
		return nil, c.refusal
	}
	conn, err := c.Dialer.Dial(ctx)
	if err != nil {
		return nil, err
	}
	c.dials++
	c.open++
	return &countedConn{conn, c}, nil
}

type countedConn struct {
	transport.Conn
	of *counted
}

func (c *countedConn) Close() error {
	c.of.open--
	return c.Conn.Close()
}

// waiting is a server whose subscriptions last until they are cancelled.
type waiting struct{ subscribed atomic.Int32 }

func (*waiting) Publish(context.Context, transport.Peer, []byte, string) (transport.Receipt, error) {
	return transport.Receipt{}, nil
}

func (w *waiting) Subscribe(ctx context.Context, _ transport.Peer, _ transport.RawSubscription, out transport.Stream) error {
	if err := out.Accept(transport.Accepted{SubscriptionID: "s"}); err != nil {
		return err
	}
	w.subscribed.Add(1)
	<-ctx.Done()
	return transport.GaveUp(ctx, "gone")
}

// TestShare_OneConnectionForAll: several sessions share a connection. When one ends, the others continue; the
// last one closes the connection.
func TestShare_OneConnectionForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &waiting{}
		below := &counted{Dialer: mem.New(s, transport.Peer{})}
		d := transport.Share(below)
		var conns []transport.Conn
		ends := make(chan error, 3)
		for range 3 {
			c, err := d.Dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
			go func() { // ends receives from it
				ends <- c.Subscribe(t.Context(), transport.Subscription{Filter: transport.Filter{Cluster: "c", DataType: codec.Leases}},
					func(transport.Accepted) {}, func(context.Context, codec.Event) error { return nil })
			}()
		}
		synctest.Wait()
		if below.dials != 1 || s.subscribed.Load() != 3 {
			t.Fatalf("%d dials, %d subscriptions, want 1 and 3", below.dials, s.subscribed.Load())
		}
		for i, c := range conns {
			for range 2 { // a second Close has no effect
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
			if err := <-ends; transport.CodeOf(err) != transport.CodeUnavailable {
				t.Errorf("a subscription on a closed connection ended with %v", err)
			}
			synctest.Wait()
			if len(ends) != 0 || below.open == 0 != (i == 2) {
				t.Fatalf("after close %d: %d others ended, %d connections open", i+1, len(ends), below.open)
			}
		}
	})
}

// TestShare_RenewLeavesTheOld: a renewed certificate causes a new connection. Each user of the old connection
// keeps it until it closes it.
func TestShare_RenewLeavesTheOld(t *testing.T) {
	below := &counted{Dialer: mem.New(&waiting{}, transport.Peer{})}
	d := transport.Share(below)
	old, err := d.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d.Renew()
	fresh, err := d.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if below.dials != 2 || below.open != 2 {
		t.Errorf("%d dials and %d open, want 2 and 2", below.dials, below.open)
	}
	if err := old.Close(); err != nil {
		t.Error(err)
	}
	again, err := d.Dial(t.Context())
	if err != nil || below.dials != 2 || below.open != 1 {
		t.Errorf("%v, %d dials and %d open: want the new connection", err, below.dials, below.open)
	}
	for _, c := range []transport.Conn{fresh, again} {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if below.open != 0 {
		t.Errorf("%d connections stay open", below.open)
	}
}

// TestShare_Move: a user of an old connection is moved to the new one at once, with an error after which a
// session dials again. Without a new or an old connection nothing changes.
func TestShare_Move(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below := &counted{Dialer: mem.New(&waiting{}, transport.Peer{})}
		d := transport.Share(below)
		ends := make(chan error, 3)
		subscribe := func() transport.Conn {
			c, err := d.Dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			go func() { // ends receives from it
				ends <- c.Subscribe(t.Context(), transport.Subscription{Filter: transport.Filter{Cluster: "c", DataType: codec.Leases}},
					func(transport.Accepted) {}, func(context.Context, codec.Event) error { return nil })
			}()
			synctest.Wait()
			return c
		}
		move := func() transport.Conn {
			c, err := d.Move(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return c
		}
		old := []transport.Conn{subscribe(), subscribe()}
		if err := move().Close(); err != nil || len(ends) != 0 || below.dials != 1 {
			t.Fatalf("%v, %d ended, %d dials where there is no other connection", err, len(ends), below.dials)
		}
		d.Renew()
		below.refusal = errors.New("not this one")
		if _, err := d.Move(t.Context()); err == nil || len(ends) != 0 {
			t.Fatalf("%v, %d ended, and there is no new connection", err, len(ends))
		}
		below.refusal = nil
		fresh := subscribe()
		held := move()
		if len(ends) != 2 || below.dials != 2 {
			t.Fatalf("%d ended, %d dials", len(ends), below.dials)
		}
		for _, c := range old {
			if err := <-ends; transport.CodeOf(err) != transport.CodeUnavailable || errNext(err) != transport.NextRefreshCredentials {
				t.Errorf("ended with %v", err)
			}
			if _, err := c.Publish(t.Context(), codec.Event{}, ""); errNext(err) != transport.NextRefreshCredentials {
				t.Errorf("published: %v", err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		if below.open != 1 {
			t.Errorf("%d connections are open, want the new one", below.open)
		}
		if err := errors.Join(fresh.Close(), held.Close()); err != nil || below.open != 0 {
			t.Errorf("%v, %d connections stay open", err, below.open)
		}
		if err := <-ends; transport.CodeOf(err) != transport.CodeUnavailable {
			t.Error(err)
		}
	})
}

func errNext(err error) transport.NextStep {
	var e *transport.Error
	if !errors.As(err, &e) {
		return transport.NextUnspecified
	}
	return e.Next
}

// stuck dials until its context ends.
type stuck struct{}

func (stuck) Dial(ctx context.Context) (transport.Conn, error) {
	<-ctx.Done()
	return nil, transport.GaveUp(ctx, "stuck")
}

// TestSharedDialer_WaitersMayGiveUp: a dial that hangs does not hold other callers beyond their context.
func TestSharedDialer_WaitersMayGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := transport.Share(stuck{})
		first, end := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { // done receives from it
			_, err := d.Dial(first)
			done <- err
		}()
		synctest.Wait()
		second, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := d.Dial(second); transport.CodeOf(err) != transport.CodeDeadline {
			t.Errorf("waited behind another dial: %v", err)
		}
		end()
		if err := <-done; transport.CodeOf(err) != transport.CodeUnavailable {
			t.Errorf("the first: %v", err)
		}
	})
}
