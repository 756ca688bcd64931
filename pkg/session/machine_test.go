package session_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
)

var filter = transport.Filter{Cluster: "cluster1", DataType: codec.ManifestBundles}

// diary is a handler that records its calls and returns what the test configured.
type diary struct {
	calls      []string
	subscribed func(ctx context.Context, a transport.Accepted) ([]codec.Event, error)
	handle     func(ctx context.Context, e codec.Event) error

	disconnected func(err error)
}

func (d *diary) Hello() transport.Hello {
	d.calls = append(d.calls, "hello")
	return transport.Hello{Protocol: transport.Protocol, Cursor: fmt.Sprint(len(d.calls))}
}

func (d *diary) Subscribed(ctx context.Context, a transport.Accepted) ([]codec.Event, error) {
	d.calls = append(d.calls, "subscribed "+a.SubscriptionID)
	if d.subscribed == nil {
		return nil, nil
	}
	return d.subscribed(ctx, a)
}

func (d *diary) Handle(ctx context.Context, e codec.Event) error {
	d.calls = append(d.calls, "handle "+e.ID())
	if d.handle == nil {
		return nil
	}
	return d.handle(ctx, e)
}

func (d *diary) Disconnected(err error) {
	d.calls = append(d.calls, "disconnected: "+err.Error())
	if d.disconnected != nil {
		d.disconnected(err)
	}
}

// newMachine returns a machine whose jitter is always r.
func newMachine(t *testing.T, p session.Handler, r float64) *session.Machine {
	t.Helper()
	m, err := session.NewMachine(session.Config{Filter: filter, Handler: p, Rand: func() float64 { return r }})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

var (
	start   = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	lost    = &transport.Error{Code: transport.CodeUnavailable, Message: "lost"}
	event1  = codec.Event{}
	refused = &transport.Error{Code: transport.CodeDenied, Message: "not yours"}
)

func waits(m *session.Machine, n int, err error) (ds []time.Duration) {
	for range n {
		ds = append(ds, m.Ended(start, err).For)
	}
	return ds
}

// connect runs a connection of the given lifetime that delivers the given number of events. It returns the wait after it.
func connect(t *testing.T, m *session.Machine, lived time.Duration, events int, err error) time.Duration {
	t.Helper()
	m.Dialed()
	if _, err := m.Accepted(t.Context(), start, transport.Accepted{SubscriptionID: "s"}); err != nil {
		t.Fatal(err)
	}
	for range events {
		if failure := m.Received(t.Context(), event1); failure != nil {
			err = failure
		}
	}
	return m.Ended(start.Add(lived), err).For
}

func TestMachine_BackoffGrowsToItsMaximum(t *testing.T) {
	s := time.Second
	want := []time.Duration{s / 4, s / 2, s, 2 * s, 4 * s, 8 * s, 15 * s, 15 * s}
	if diff := cmp.Diff(want, waits(newMachine(t, &diary{}, 0.5), len(want), lost)); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
	for _, d := range waits(newMachine(t, &diary{}, 0), 5, lost) {
		if d != 0 {
			t.Errorf("full jitter may wait 0, got %v", d)
		}
	}
}

// TestMachine_BackoffFollowsTheOutage checks the wait while no process listens: at most a quarter of the outage.
// So a session is back soon after a short restart, and waits at most Max after a long one.
func TestMachine_BackoffFollowsTheOutage(t *testing.T) {
	m := newMachine(t, &diary{}, 1)
	down := &transport.Error{Code: transport.CodeUnavailable, Message: "down", Err: syscall.ECONNREFUSED}
	m.Dialed()
	if _, err := m.Accepted(t.Context(), start, transport.Accepted{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ after, want time.Duration }{
		{0, 500 * time.Millisecond}, {2 * time.Second, 500 * time.Millisecond}, {8 * time.Second, 2 * time.Second}, {time.Minute, 15 * time.Second}, {time.Hour, 30 * time.Second},
	} {
		if got := m.Ended(start.Add(c.after), down).For; got != c.want {
			t.Errorf("%v after the loss: %v, want %v", c.after, got, c.want)
		}
	}
	m.Dialed()
	if _, err := m.Accepted(t.Context(), start.Add(2*time.Hour), transport.Accepted{}); err != nil {
		t.Fatal(err)
	}
	if got := m.Ended(start.Add(3*time.Hour), down).For; got != 500*time.Millisecond {
		t.Errorf("the next outage begins with %v", got)
	}
}

func TestMachine_BackoffResets(t *testing.T) {
	const first = 250 * time.Millisecond
	broken := errors.New("disk full")
	for name, tc := range map[string]struct {
		lived  time.Duration
		events int
		end    error
		handle error
		reset  bool
	}{
		"stable":                      {lived: time.Minute, end: lost, reset: true},
		"stable, refused then":        {lived: time.Minute, end: &transport.Error{Code: transport.CodeInternal}, reset: true},
		"brief and idle":              {lived: 59 * time.Second, end: lost},
		"brief with events":           {lived: time.Second, events: 3, end: lost, reset: true},
		"event that never fits":       {lived: time.Second, events: 3, end: &transport.Error{Code: transport.CodeInternal}},
		"handler fails at the event":  {lived: time.Second, events: 1, handle: broken},
		"handler fails, connectivity": {lived: time.Second, events: 1, handle: lost},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, &diary{handle: func(context.Context, codec.Event) error { return tc.handle }}, 0.5)
			waits(m, 4, lost)
			got := connect(t, m, tc.lived, tc.events, tc.end)
			if (got == first) != tc.reset {
				t.Errorf("waits %v after the connection", got)
			}
		})
	}
}

func TestMachine_FollowsAdvice(t *testing.T) {
	const s = time.Second
	e := func(c transport.Code, n transport.NextStep, d time.Duration) *transport.Error {
		return &transport.Error{Code: c, Next: n, Delay: d, Message: "x"}
	}
	backOff := []time.Duration{s / 4, s / 2}
	atOnce := []time.Duration{0, s / 4}
	person := []time.Duration{225 * s, 225 * s}
	for name, tc := range map[string]struct {
		err    error
		advice transport.NextStep
		want   []time.Duration
	}{
		"unavailable":      {e(transport.CodeUnavailable, 0, 0), transport.NextBackOff, backOff},
		"deadline":         {e(transport.CodeDeadline, 0, 0), transport.NextBackOff, backOff},
		"internal":         {e(transport.CodeInternal, 0, 0), transport.NextBackOff, backOff},
		"untyped":          {errors.New("x"), transport.NextBackOff, backOff},
		"overloaded":       {e(transport.CodeOverloaded, 0, 0), transport.NextBackOff, backOff},
		"delay":            {e(transport.CodeOverloaded, 0, 7*s), transport.NextBackOff, []time.Duration{7*s + s/4, 7*s + s/2}},
		"delay and advice": {e(transport.CodeUnavailable, transport.NextBackOff, 7*s), transport.NextBackOff, []time.Duration{7*s + s/4, 7*s + s/2}},
		"delay of a year":  {e(transport.CodeOverloaded, transport.NextBackOff, 365*24*time.Hour), transport.NextBackOff, []time.Duration{600*s + s/4, 600*s + s/2}},
		"unauthenticated":  {e(transport.CodeUnauthenticated, 0, 0), transport.NextRefreshCredentials, atOnce},
		"refresh":          {e(transport.CodeDenied, transport.NextRefreshCredentials, 0), transport.NextRefreshCredentials, atOnce},
		"resync":           {e(transport.CodeConflict, transport.NextResync, 0), transport.NextResync, atOnce},
		"denied":           {e(transport.CodeDenied, 0, 0), transport.NextStop, person},
		"invalid":          {e(transport.CodeInvalid, 0, 0), transport.NextStop, person},
		"not found":        {e(transport.CodeNotFound, 0, 0), transport.NextStop, person},
		"already exists":   {e(transport.CodeAlreadyExists, 0, 0), transport.NextStop, person},
		"conflict":         {e(transport.CodeConflict, 0, 0), transport.NextStop, person},
		"too large":        {fmt.Errorf("publish: %w", e(transport.CodeTooLarge, 0, 0)), transport.NextStop, person},
		"another server":   {e(transport.CodeUnavailable, transport.NextUseAnotherServer, 0), transport.NextBackOff, backOff},
		"stop":             {e(transport.CodeUnavailable, transport.NextStop, 0), transport.NextStop, person},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, &diary{}, 0.5)
			var got []time.Duration
			for range tc.want {
				w := m.Ended(start, tc.err)
				got = append(got, w.For)
				if w.Advice != tc.advice {
					t.Errorf("got advice %d, want %d", w.Advice, tc.advice)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("waits (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMachine_ConnectsAtOnceOncePerGoodConnection(t *testing.T) {
	expired := &transport.Error{Code: transport.CodeUnauthenticated, Message: "expired"}
	m := newMachine(t, &diary{}, 0.5)
	got := slices.Concat(
		waits(m, 2, expired),
		[]time.Duration{connect(t, m, time.Hour, 0, expired)},
		waits(m, 1, expired))
	want := []time.Duration{0, 250 * time.Millisecond, 0, 250 * time.Millisecond}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
}

// TestMachine_HandlerErrorIsNotTheBrokers: a handler returns the "denied" of its own publish. That does not
// cause the long wait after a denied subscription.
func TestMachine_HandlerErrorIsNotTheBrokers(t *testing.T) {
	d := &diary{
		subscribed: func(context.Context, transport.Accepted) ([]codec.Event, error) { return nil, refused },
		handle:     func(context.Context, codec.Event) error { return refused },
	}
	m := newMachine(t, d, 0.5)
	m.Dialed()
	_, err := m.Accepted(t.Context(), start, transport.Accepted{SubscriptionID: "s"})
	if w := m.Ended(start, err); w.Advice != transport.NextBackOff {
		t.Errorf("subscribed: got advice %d", w.Advice)
	}
	m.Dialed()
	if w := m.Ended(start, m.Received(t.Context(), event1)); w.Advice != transport.NextBackOff {
		t.Errorf("handle: got advice %d", w.Advice)
	}
	want := []string{
		"hello", "subscribed s", "disconnected: denied: not yours",
		"hello", "handle ", "disconnected: denied: not yours",
	}
	if diff := cmp.Diff(want, d.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// TestMachine_Laws: in all cases the handler is called in the promised order, and each wait is between 0 and
// the maximum.
func TestMachine_Laws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		failing := func(what string) error {
			if rapid.IntRange(0, 9).Draw(t, what+" fails") == 0 {
				return errors.New("broken")
			}
			return nil
		}
		d := &diary{
			subscribed: func(context.Context, transport.Accepted) ([]codec.Event, error) { return nil, failing("subscribed") },
			handle:     func(context.Context, codec.Event) error { return failing("handle") },
		}
		m, err := session.NewMachine(session.Config{Filter: filter, Handler: d, Rand: func() float64 {
			return rapid.Float64Range(0, 0.999).Draw(t, "rand")
		}})
		if err != nil {
			t.Fatal(err)
		}
		now := start
		for range rapid.IntRange(1, 20).Draw(t, "connections") {
			failure := error(&transport.Error{
				Code:  transport.Code(rapid.IntRange(0, int(transport.CodeDeadline)+1).Draw(t, "code")),
				Next:  transport.NextStep(rapid.IntRange(0, int(transport.NextStop)+1).Draw(t, "next")),
				Delay: time.Duration(rapid.Int64().Draw(t, "delay")),
			})
			stage := rapid.IntRange(0, 2).Draw(t, "stage")
			if stage > 0 {
				m.Dialed()
			}
			if stage > 1 {
				failure = live(t, m, now, failure)
			}
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "lived")))
			w := m.Ended(now, failure)
			if w.For < 0 || w.For > 10*time.Minute+30*time.Second || w.Advice == transport.NextUnspecified {
				t.Fatalf("after %v: %+v", failure, w)
			}
		}
		checkOrder(t, d.calls)
	})
}

// live is an accepted connection until the handler fails or failure happens.
func live(t *rapid.T, m *session.Machine, now time.Time, failure error) error {
	if _, err := m.Accepted(context.Background(), now, transport.Accepted{SubscriptionID: "s"}); err != nil {
		return err
	}
	for range rapid.IntRange(0, 3).Draw(t, "events") {
		if err := m.Received(context.Background(), event1); err != nil {
			return err
		}
	}
	return failure
}

func checkOrder(t *rapid.T, calls []string) {
	follows := map[string][]string{
		"disconnected:": {"hello"},
		"hello":         {"subscribed", "disconnected:"},
		"subscribed":    {"handle", "disconnected:"},
		"handle":        {"handle", "disconnected:"},
	}
	last := "disconnected:"
	for _, c := range calls {
		word, _, _ := strings.Cut(c, " ")
		if !slices.Contains(follows[last], word) {
			t.Fatalf("%s after %s in %q", word, last, calls)
		}
		last = word
	}
	if last != "disconnected:" {
		t.Fatalf("%s is the last of %q", last, calls)
	}
}

func TestNewMachine_RefusesConfig(t *testing.T) {
	ok := session.Config{Filter: filter, Handler: &diary{}}
	for want, spoil := range map[string]func(*session.Config){
		"no handler":               func(c *session.Config) { c.Handler = nil },
		"either a source or a clu": func(c *session.Config) { c.Filter.Cluster = "" },
		"either a source or a cl":  func(c *session.Config) { c.Filter.Source = "hub1" },
		"no data type":             func(c *session.Config) { c.Filter.DataType = codec.DataType{} },
		"min is -1s":               func(c *session.Config) { c.Backoff.Min = -time.Second },
		"max is -1s":               func(c *session.Config) { c.Backoff.Max = -time.Second },
		"refused is -1s":           func(c *session.Config) { c.Backoff.Refused = -time.Second },
		"stable is -1s":            func(c *session.Config) { c.Backoff.Stable = -time.Second },
		"max delay is -1s":         func(c *session.Config) { c.Backoff.MaxDelay = -time.Second },
		"max 30s is below min 1m":  func(c *session.Config) { c.Backoff.Min = time.Minute },
	} {
		c := ok
		spoil(&c)
		if _, err := session.NewMachine(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error about %q", err, want)
		}
	}
	if _, err := session.NewMachine(ok); err != nil {
		t.Error(err)
	}
}
