package session_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/hawser-io/hawser/internal/testkit/syncbuffer"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// broker is a transport.Server. It numbers subscriptions "s1", "s2", ... and accepts all, unless a test sets
// refuse.
type broker struct {
	// refuse returns the error of subscription n, or nil to accept it. serve runs after the acceptance. If a
	// function is nil, subscriptions are accepted, or last until they are cancelled.
	refuse func(n int) error
	serve  func(ctx context.Context, n int, out transport.Stream) error
	// publish handles a published event; nil accepts it.
	publish func(ctx context.Context, event []byte, subscriptionID string) error

	mu        sync.Mutex
	requested []string // cursor of each subscription
	former    []string // former subscription that each one named
	at        []time.Time
	published []string // "<type> for <subscription id>"
}

func (b *broker) Publish(ctx context.Context, _ transport.Peer, event []byte, subscriptionID string) (transport.Receipt, error) {
	e, err := codec.Unmarshal(event)
	if err != nil {
		return transport.Receipt{}, err
	}
	b.mu.Lock()
	b.published = append(b.published, e.ID()+" for "+subscriptionID)
	b.mu.Unlock()
	if b.publish != nil {
		err = b.publish(ctx, event, subscriptionID)
	}
	return transport.Receipt{Outcome: "accepted"}, err
}

func (b *broker) Subscribe(ctx context.Context, _ transport.Peer, r transport.RawSubscription, out transport.Stream) error {
	b.mu.Lock()
	b.requested = append(b.requested, r.Hello.Cursor)
	b.former = append(b.former, r.Hello.Former)
	b.at = append(b.at, time.Now())
	n := len(b.requested)
	b.mu.Unlock()
	if b.refuse != nil {
		if err := b.refuse(n); err != nil {
			return err
		}
	}
	if err := out.Accept(transport.Accepted{SubscriptionID: fmt.Sprintf("s%d", n), Protocol: transport.Protocol, Resync: "list", Transport: transport.MQTT}); err != nil {
		return err
	}
	if b.serve != nil {
		return b.serve(ctx, n, out)
	}
	<-ctx.Done()
	return ctx.Err()
}

// subscriptions returns when each subscription arrived.
func (b *broker) subscriptions() []time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]time.Time(nil), b.at...)
}

func (b *broker) publishes() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.published...)
}

func newEvent(id string) codec.Event {
	e := codec.Event{}
	e.SetSpecVersion("1.0")
	e.SetID(id)
	e.SetSource("agent1")
	e.SetType(codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: codec.ResyncRequest}.String())
	e.SetExtension(codec.ExtClusterName, "cluster1")
	return e
}

func wire(t *testing.T, id string) []byte {
	t.Helper()
	b, err := codec.Marshal(newEvent(id))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// world is a session before a broker, in a synctest bubble.
type world struct {
	t       *testing.T
	broker  *broker
	dialer  *mem.Dialer
	handler *diary
	session *session.Session
	log     *syncbuffer.Buffer
	metrics *prometheus.Registry
	changed chan struct{}
	stop    func() // ends Run and waits for it
}

// simulate runs f in a bubble with a running session. The jitter is always half of its maximum.
func simulate(t *testing.T, b *broker, d *diary, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			t: t, broker: b, handler: d, dialer: mem.New(b, transport.Peer{Role: "agent", Name: "cluster1"}),
			log: &syncbuffer.Buffer{}, metrics: prometheus.NewRegistry(), changed: make(chan struct{}, 1),
		}
		metrics, err := session.NewMetrics(w.metrics)
		if err != nil {
			t.Fatal(err)
		}
		w.session = session.New(session.Config{
			Dialer: w.dialer, Filter: filter, Handler: d, Rand: func() float64 { return 0.5 },
			Log: slog.New(slog.NewTextHandler(w.log, nil)), Metrics: metrics, Changed: w.changed,
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.session.Run(ctx) }() // stop receives from done
		w.stop = sync.OnceFunc(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("run: %v", err)
			}
		})
		synctest.Wait()
		f(w)
		w.stop()
		if w.session.Connected() {
			t.Error("connected after the end")
		}
	})
}

// after waits for d.
func (w *world) after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (w *world) wantConnected(want bool) {
	w.t.Helper()
	if got := w.session.Connected(); got != want || (w.session.Err() == nil) != want {
		w.t.Fatalf("connected: %t, reason: %v; want %t", got, w.session.Err(), want)
	}
}

func (w *world) wantCalls(want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.handler.calls); diff != "" {
		w.t.Errorf("calls of the handler (-want +got):\n%s", diff)
	}
}

func TestSession_ConnectsAgainAfterCut(t *testing.T) {
	simulate(t, &broker{}, &diary{}, func(w *world) {
		w.wantConnected(true)
		w.dialer.Cut()
		synctest.Wait()
		w.wantConnected(false)
		w.after(10 * time.Second) // several dials fail meanwhile
		w.wantConnected(false)
		w.dialer.Restore()
		w.after(15 * time.Second)
		w.wantConnected(true)
		w.stop()
		w.wantCalls("hello", "subscribed s1", "disconnected: unavailable: the network was cut",
			"hello", "subscribed s2", "disconnected: context canceled")
		if former := w.broker.former; !slices.Equal(former, []string{"", "s1"}) {
			t.Errorf("named the former subscriptions %q", former)
		}
	})
}

func TestSession_WaitsBetweenConnections(t *testing.T) {
	b := &broker{serve: func(context.Context, int, transport.Stream) error { return lost }}
	simulate(t, b, &diary{}, func(w *world) {
		w.after(20 * time.Second)
		at := b.subscriptions()
		want := []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}
		var got []time.Duration
		for i := 1; i < len(at); i++ {
			got = append(got, at[i].Sub(at[i-1]))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			w.t.Errorf("waits (-want +got):\n%s", diff)
		}
	})
}

func TestSession_HonoursDelayOfPeer(t *testing.T) {
	b := &broker{refuse: func(n int) error {
		if n == 1 {
			return &transport.Error{Code: transport.CodeOverloaded, Next: transport.NextBackOff, Delay: 42 * time.Second, Message: "draining"}
		}
		return nil
	}}
	simulate(t, b, &diary{}, func(w *world) {
		w.after(42 * time.Second)
		if n := len(b.subscriptions()); n != 1 {
			w.t.Errorf("%d subscriptions before the delay was over", n)
		}
		w.after(time.Second)
		w.wantConnected(true)
	})
}

// TestSession_NeverGivesUp: a rejected session shows the error and retries after the long wait.
func TestSession_NeverGivesUp(t *testing.T) {
	b := &broker{refuse: func(n int) error {
		if n < 3 {
			return &transport.Error{Code: transport.CodeDenied, Next: transport.NextStop, Message: "no role", Hint: "add a mapping"}
		}
		return nil
	}}
	simulate(t, b, &diary{}, func(w *world) {
		w.after(3 * time.Minute)
		w.wantConnected(false)
		if err := w.session.Err(); transport.CodeOf(err) != transport.CodeDenied {
			w.t.Errorf("reason: %v", err)
		}
		if n := len(b.subscriptions()); n != 1 {
			w.t.Errorf("%d subscriptions in three minutes", n)
		}
		if log := w.log.String(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "add a mapping") {
			w.t.Errorf("the log is %s", log)
		}
		w.after(10 * time.Minute)
		w.wantConnected(true)
	})
}

func TestSession_PublishNeedsConnection(t *testing.T) {
	simulate(t, &broker{}, &diary{}, func(w *world) {
		r, err := w.session.Publish(w.t.Context(), newEvent("one"))
		if err != nil || r.Outcome != "accepted" {
			w.t.Errorf("connected: %v, %v", r, err)
		}
		w.dialer.Cut()
		synctest.Wait()
		begun := time.Now()
		_, err = w.session.Publish(w.t.Context(), newEvent("two"))
		var e *transport.Error
		if !errors.As(err, &e) || e.Code != transport.CodeUnavailable || !strings.Contains(err.Error(), "cut") {
			w.t.Errorf("disconnected: %v", err)
		}
		if d := time.Since(begun); d != 0 {
			w.t.Errorf("disconnected: failed after %v", d)
		}
		w.dialer.Restore()
		w.after(time.Minute)
		if _, err := w.session.Publish(w.t.Context(), newEvent("three")); err != nil {
			w.t.Errorf("connected again: %v", err)
		}
		if diff := cmp.Diff([]string{"one for s1", "three for s2"}, w.broker.publishes()); diff != "" {
			w.t.Errorf("publishes (-want +got):\n%s", diff)
		}
	})
}

// A handler that ends its subscription is subscribed again after a back-off. Ending a subscription that is not
// the current one has no effect.
func TestSession_EndsASubscriptionForItsHandler(t *testing.T) {
	simulate(t, &broker{}, &diary{}, func(w *world) {
		w.session.End("s0")
		synctest.Wait()
		if _, err := w.session.PublishOn(w.t.Context(), "s1", newEvent("one")); err != nil {
			w.t.Errorf("another one was ended: %v", err)
		}
		w.session.End("s1")
		synctest.Wait()
		if _, err := w.session.PublishOn(w.t.Context(), "s1", newEvent("two")); transport.CodeOf(err) != transport.CodeUnavailable {
			w.t.Errorf("on a subscription that was ended: %v", err)
		}
		w.after(time.Minute)
		if _, err := w.session.PublishOn(w.t.Context(), "s2", newEvent("three")); err != nil {
			w.t.Errorf("on the next one: %v", err)
		}
		if diff := cmp.Diff([]string{"one for s1", "three for s2"}, w.broker.publishes()); diff != "" {
			w.t.Errorf("publishes (-want +got):\n%s", diff)
		}
	})
}

func TestSession_PublishOnOneSubscriptionOnly(t *testing.T) {
	simulate(t, &broker{}, &diary{}, func(w *world) {
		if _, err := w.session.PublishOn(w.t.Context(), "s1", newEvent("one")); err != nil {
			w.t.Error(err)
		}
		w.dialer.Cut()
		synctest.Wait()
		if _, err := w.session.PublishOn(w.t.Context(), "s1", newEvent("two")); transport.CodeOf(err) != transport.CodeUnavailable {
			w.t.Errorf("disconnected: %v", err)
		}
		w.dialer.Restore()
		w.after(time.Minute)
		if _, err := w.session.PublishOn(w.t.Context(), "s1", newEvent("three")); transport.CodeOf(err) != transport.CodeUnavailable {
			w.t.Errorf("on another subscription: %v", err)
		}
		if diff := cmp.Diff([]string{"one for s1"}, w.broker.publishes()); diff != "" {
			w.t.Errorf("publishes (-want +got):\n%s", diff)
		}
	})
}

// requesting returns a handler that requests a resync at each subscription.
func requesting(ids ...string) *diary {
	return &diary{subscribed: func(context.Context, transport.Accepted) ([]codec.Event, error) {
		var events []codec.Event
		for _, id := range ids {
			events = append(events, newEvent(id))
		}
		return events, nil
	}}
}

func TestSession_RequestsOncePerSubscription(t *testing.T) {
	simulate(t, &broker{}, requesting("spec", "status"), func(w *world) {
		w.after(time.Hour)
		w.dialer.Cut()
		w.dialer.Restore()
		w.after(time.Hour)
		want := []string{"spec for s1", "status for s1", "spec for s2", "status for s2"}
		if diff := cmp.Diff(want, w.broker.publishes()); diff != "" {
			w.t.Errorf("publishes (-want +got):\n%s", diff)
		}
	})
}

// TestSession_RequestsAgainWithoutAnswer: if a resync request is not accepted, the connection ends. The next
// connection requests the resync again.
func TestSession_RequestsAgainWithoutAnswer(t *testing.T) {
	b := &broker{publish: func(_ context.Context, _ []byte, id string) error {
		if id == "s1" {
			return &transport.Error{Code: transport.CodeOverloaded, Delay: 5 * time.Second, Message: "busy"}
		}
		return nil
	}}
	simulate(t, b, requesting("spec", "status"), func(w *world) {
		w.after(time.Minute)
		w.wantConnected(true)
		want := []string{"spec for s1", "spec for s2", "status for s2"}
		if diff := cmp.Diff(want, b.publishes()); diff != "" {
			w.t.Errorf("publishes (-want +got):\n%s", diff)
		}
		if at := b.subscriptions(); at[1].Sub(at[0]) < 5*time.Second {
			w.t.Errorf("the delay was not waited: %v", at)
		}
	})
}

// TestSession_AnswerOfResyncCannotBlock: a broker may send the whole answer before it accepts the request. That
// would block a handler that does not receive at the same time.
func TestSession_AnswerOfResyncCannotBlock(t *testing.T) {
	const answers = 1000
	event := wire(t, "answer")
	var requested, answered chan struct{} // of the current subscription
	b := &broker{
		refuse: func(int) error {
			requested, answered = make(chan struct{}), make(chan struct{})
			return nil
		},
		serve: func(ctx context.Context, _ int, out transport.Stream) error {
			select {
			case <-requested:
			case <-ctx.Done():
				return ctx.Err()
			}
			for range answers {
				if err := out.Send(event); err != nil {
					return err
				}
			}
			close(answered)
			<-ctx.Done()
			return ctx.Err()
		},
		publish: func(ctx context.Context, _ []byte, _ string) error {
			close(requested)
			select {
			case <-answered:
			case <-ctx.Done():
			}
			return ctx.Err()
		},
	}
	handled := 0
	d := requesting("spec")
	d.handle = func(context.Context, codec.Event) error { handled++; return nil }
	simulate(t, b, d, func(w *world) {
		w.wantConnected(true)
		if handled != answers {
			w.t.Errorf("%d of %d answers were handled", handled, answers)
		}
		if n := len(b.publishes()); n != 1 {
			w.t.Errorf("%d publishes", n)
		}
	})
}

func TestSession_HandlerFails(t *testing.T) {
	event := wire(t, "bad")
	b := &broker{serve: func(ctx context.Context, _ int, out transport.Stream) error {
		if err := out.Send(event); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}}
	full := errors.New("disk full")
	simulate(t, b, &diary{handle: func(context.Context, codec.Event) error { return full }}, func(w *world) {
		w.after(10 * time.Second)
		if n := len(b.subscriptions()); n != 6 {
			w.t.Errorf("%d subscriptions in 10 s, want 6: at 0, 1/4, 3/4, 7/4, 15/4 and 31/4 s", n)
		}
		if err := w.session.Err(); !errors.Is(err, full) {
			w.t.Errorf("reason: %v", err)
		}
	})

	d := &diary{subscribed: func(context.Context, transport.Accepted) ([]codec.Event, error) { return nil, full }}
	simulate(t, b, d, func(w *world) {
		w.after(100 * time.Millisecond)
		w.stop()
		w.wantCalls("hello", "subscribed s7", "disconnected: disk full")
	})
}

func TestSession_StopsWhileWaiting(t *testing.T) {
	simulate(t, &broker{refuse: func(int) error { return refused }}, &diary{}, func(w *world) {
		begun := time.Now()
		w.stop()
		if d := time.Since(begun); d != 0 {
			w.t.Errorf("stopped after %v", d)
		}
	})
}

func TestSession_RunRefuses(t *testing.T) {
	ok := session.Config{Dialer: mem.New(&broker{}, transport.Peer{}), Filter: filter, Handler: &diary{}}
	noDialer, noHandler := ok, ok
	noDialer.Dialer, noHandler.Handler = nil, nil
	for want, c := range map[string]session.Config{"no dialer": noDialer, "no handler": noHandler} {
		if err := session.New(c).Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	simulate(t, &broker{}, &diary{}, func(w *world) {
		if err := w.session.Run(w.t.Context()); err == nil || !strings.Contains(err.Error(), "runs already") {
			w.t.Errorf("second run: %v", err)
		}
	})
}

func TestSession_Metrics(t *testing.T) {
	event := wire(t, "e")
	b := &broker{
		refuse: func(n int) error {
			if n == 1 {
				return refused
			}
			return nil
		},
		serve: func(ctx context.Context, n int, out transport.Stream) error {
			if err := out.Send(event); err != nil {
				return err
			}
			if n == 2 {
				<-time.After(time.Second)
				return lost
			}
			<-ctx.Done()
			return ctx.Err()
		},
	}
	simulate(t, b, requesting("spec"), func(w *world) {
		w.after(10 * time.Minute)
		want := map[string]float64{
			"hawser_session_connected mqtt":                1,
			"hawser_session_connects_total accepted":       2,
			"hawser_session_connects_total denied":         1,
			"hawser_session_disconnects_total unavailable": 1,
			"hawser_session_events_total handled":          2,
			"hawser_session_handle_duration_seconds":       2,
			"hawser_session_publish_duration_seconds ok":   2,
		}
		if diff := cmp.Diff(want, gather(w.t, w.metrics)); diff != "" {
			w.t.Errorf("metrics (-want +got):\n%s", diff)
		}
		w.stop()
		got := gather(w.t, w.metrics)
		if got["hawser_session_connected mqtt"] != 0 || got["hawser_session_disconnects_total stopped"] != 1 {
			w.t.Errorf("after the end: %v", got)
		}
		if _, err := session.NewMetrics(w.metrics); err == nil {
			w.t.Error("registering twice succeeds")
		}
	})
}

// TestMetrics_Documented: docs/metrics.md lists each series with its type and labels.
func TestMetrics_Documented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, rest := range map[string]string{
		"connected":                "gauge | `data_type`, `transport` |",
		"connects_total":           "counter | `data_type`, `outcome` |",
		"disconnects_total":        "counter | `data_type`, `code` |",
		"events_total":             "counter | `data_type`, `outcome` |",
		"handle_duration_seconds":  "histogram | `data_type` |",
		"publish_duration_seconds": "histogram | `data_type`, `code` |",
	} {
		if row := "| `hawser_session_" + name + "` | " + rest; !strings.Contains(string(doc), row) {
			t.Errorf("docs/metrics.md has no row that begins with %s", row)
		}
	}
	for code := transport.CodeInternal; code <= transport.CodeDeadline; code++ {
		if !strings.Contains(string(doc), "`"+code.String()+"`") {
			t.Errorf("docs/metrics.md does not name the code %v", code)
		}
	}
}

// gather returns the value or count of each series, by name and label, without the label of the data type.
func gather(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				if l.GetName() != "data_type" {
					name += " " + l.GetValue()
				} else if l.GetValue() != codec.ManifestBundles.String() {
					t.Errorf("%s has data type %q", name, l.GetValue())
				}
			}
			got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return got
}
