package session_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mem"
)

// TestSession_BacksOffAlone: a session that has failed for long does not delay another one in the process.
func TestSession_BacksOffAlone(t *testing.T) {
	simulate(t, &broker{refuse: func(int) error { return lost }}, &diary{}, func(w *world) {
		b := &broker{}
		dialer := mem.New(b, transport.Peer{Role: "agent", Name: "cluster1"})
		other := session.New(session.Config{
			Dialer: dialer, Filter: filter, Handler: &diary{}, Rand: func() float64 { return 0.5 }, Log: slog.New(slog.DiscardHandler),
		})
		ctx, cancel := context.WithCancel(w.t.Context())
		done := make(chan error, 1)
		go func() { done <- other.Run(ctx) }() // done is received from below
		w.after(10 * time.Minute)              // the first session reaches its longest wait
		dialer.Cut()
		dialer.Restore()
		w.after(250 * time.Millisecond) // the shortest wait with this jitter
		if n := len(b.subscriptions()); n != 2 || !other.Connected() {
			w.t.Errorf("%d subscriptions, connected: %t", n, other.Connected())
		}
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("run: %v", err)
		}
	})
}

// TestSession_HungPublishDoesNotKeepItFromConnecting: a subscription ends while a publish hangs. The publish
// ends, and the session subscribes again.
func TestSession_HungPublishDoesNotKeepItFromConnecting(t *testing.T) {
	var lose chan struct{} // ends the first subscription
	b := &broker{
		refuse: func(n int) error {
			if n == 1 {
				lose = make(chan struct{})
			}
			return nil
		},
		serve: func(ctx context.Context, n int, _ transport.Stream) error {
			if n == 1 {
				<-lose
				return lost
			}
			<-ctx.Done()
			return ctx.Err()
		},
		publish: func(ctx context.Context, _ []byte, id string) error {
			if id == "s1" {
				<-ctx.Done() // blocks until the call is cancelled
			}
			return ctx.Err()
		},
	}
	simulate(t, b, &diary{}, func(w *world) {
		hung := make(chan error, 1)
		go func() { // hung is received from below
			_, err := w.session.Publish(w.t.Context(), newEvent("hangs"))
			hung <- err
		}()
		synctest.Wait()
		close(lose)
		w.after(time.Second)
		w.wantConnected(true)
		select {
		case err := <-hung:
			if transport.CodeOf(err) != transport.CodeUnavailable {
				w.t.Errorf("the publish that hung: %v", err)
			}
		default:
			w.t.Fatal("the publish hangs still")
		}
		if _, err := w.session.Publish(w.t.Context(), newEvent("next")); err != nil {
			w.t.Errorf("the next publish: %v", err)
		}
	})
}

// TestSession_HungResyncRequestDoesNotStopReceiving: the session reads heartbeats and events while a resync
// request hangs. The request ends with the stream.
func TestSession_HungResyncRequestDoesNotStopReceiving(t *testing.T) {
	event := wire(t, "event")
	var lose chan struct{} // ends the first subscription
	b := &broker{
		refuse: func(n int) error {
			if n == 1 {
				lose = make(chan struct{})
			}
			return nil
		},
		serve: func(ctx context.Context, n int, out transport.Stream) error {
			for range 100 {
				if err := out.Send(event); err != nil {
					return err
				}
			}
			if n == 1 {
				<-lose
				return lost
			}
			<-ctx.Done()
			return ctx.Err()
		},
		publish: func(ctx context.Context, _ []byte, id string) error {
			if id == "s1" {
				<-ctx.Done()
			}
			return ctx.Err()
		},
	}
	handled := 0
	d := requesting("spec")
	d.handle = func(context.Context, codec.Event) error { handled++; return nil }
	simulate(t, b, d, func(w *world) {
		if handled != 100 {
			w.t.Errorf("%d of 100 events were handled beside the request", handled)
		}
		close(lose)
		w.after(time.Second)
		if handled != 200 || len(b.publishes()) != 2 {
			w.t.Errorf("%d events handled, publishes %q", handled, b.publishes())
		}
	})
}
