// Package session keeps one subscription alive: dial, subscribe, resume or resync, deliver, back off and
// reconnect. It is the only reconnect loop in Hawser, and the entry point for programs that publish works
// themselves.
//
// A program that owns works implements [Handler], runs a session and publishes with it:
//
//	s := session.New(session.Config{Dialer: dialer, Filter: filter, Handler: handler})
//	go func() { done <- s.Run(ctx) }()
//	receipt, err := s.Publish(ctx, event)
//
// The session does not queue. Without a connection, Publish fails at once. If a connection breaks, the broker
// may or may not have accepted the last events. The program learns of a new connection from
// [Handler.Subscribed], and publishes again all events without an acceptance. That is safe, because a broker
// answers a repeated event with OK.
//
// If [transport.Accepted] has Stateless set, the broker stores nothing. Then two rules apply:
//
//   - An accepted event may be lost. The program publishes it again until the agent has answered.
//   - A work may be created again under the id of a deleted one, for instance if ids follow from names. The
//     program must delay the new work until the agent has reported the old one as Deleted. Otherwise the two are
//     confused.
//
// A session never gives up. The broker's error determines the wait (see [Backoff]). A rejection causes the
// longest wait, because an operator must end it. It is visible in the log, in [Session.Err] and in the metrics.
//
// [Machine] makes the decisions; it has no clock, goroutine or socket. Session performs them.
package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Handler is the user of a session: an agent or a source. Its methods are called one at a time, in this order
// on each connection:
//
//	Hello, [ Subscribed, Handle* ], Disconnected
//
// Exactly one Disconnected follows each Hello, also if the broker rejected the subscription and when Run ends.
// Handle may publish with the session.
type Handler interface {
	// Hello returns the client's part of this subscribe.
	Hello() transport.Hello
	// Subscribed is called after the broker accepted, before the first event of this connection is handled. It
	// returns the events to publish at once: a spec resync request of an agent, or status resync requests of a
	// source. The session publishes them in this order, concurrently with delivery, so that the answer to the first
	// cannot block the second. If a publish fails, the connection ends with that error, and the next connection
	// requests the resync again. An error of Subscribed ends the connection too.
	Subscribed(ctx context.Context, a transport.Accepted) ([]codec.Event, error)
	// Handle processes one event; nil means accepted (see transport.Handler). An error ends the connection, and the
	// session reconnects after a back-off. Therefore report and accept an event that is merely invalid.
	Handle(ctx context.Context, e codec.Event) error
	// Disconnected is called when the connection ended; the reason err is never nil. If the broker rejected the
	// cursor (transport.NextResync), the handler drops it here, so that the next Hello has none.
	Disconnected(err error)
}

// Backoff configures the waits between connections. Zero values mean the defaults; all durations are positive.
type Backoff struct {
	// Min and Max bound the wait after a lost connection. The wait is a random time between 0 and a ceiling that
	// begins at Min (500 ms) and doubles up to Max (30 s). A delay that the broker requests is added. While no
	// process listens at the broker's address, the ceiling is a quarter of the outage.
	Min, Max time.Duration
	// Refused is the wait after an error that needs an operator, such as a denied identity or a wrong address (5
	// min). Half of it is random.
	Refused time.Duration
	// Stable is the lifetime of a connection after which the ceiling begins at Min again (1 min). A connection that
	// delivered an event before it was lost has the same effect.
	Stable time.Duration
	// MaxDelay bounds the delay that a broker may request (10 min).
	MaxDelay time.Duration
}

// withDefaults fills in the zero values, or returns an error that names an invalid one.
func (b Backoff) withDefaults() (Backoff, error) {
	for _, d := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{
		{"min", &b.Min, 500 * time.Millisecond},
		{"max", &b.Max, 30 * time.Second},
		{"refused", &b.Refused, 5 * time.Minute},
		{"stable", &b.Stable, time.Minute},
		{"max delay", &b.MaxDelay, 10 * time.Minute},
	} {
		if *d.value < 0 {
			return b, fmt.Errorf("session: back-off %s is %v: it must be positive, or 0 for %v", d.name, *d.value, d.def)
		}
		if *d.value == 0 {
			*d.value = d.def
		}
	}
	if b.Max < b.Min {
		return b, fmt.Errorf("session: back-off max %v is below min %v", b.Max, b.Min)
	}
	return b, nil
}

// Config configures a session.
type Config struct {
	// Dialer, Filter and Handler are required; a Machine needs no Dialer.
	Dialer  transport.Dialer
	Filter  transport.Filter
	Handler Handler

	Backoff Backoff
	// Changed signals that a cause of failure may be fixed, for instance by a new certificate on disk. The session
	// then resets its failures and dials at once. An existing connection is not touched. May be nil.
	Changed <-chan struct{}
	// Rand returns numbers in [0, 1) for the jitter. nil means the random source of the process.
	Rand func() float64
	// Log receives connects and disconnects. nil means slog.Default().
	Log *slog.Logger
	// Metrics counts the activity of the session; nil counts nothing.
	Metrics *Metrics
}

// withDefaults fills in the zero values, or returns an error that names a missing one.
func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Handler == nil:
		return c, errors.New("session: no handler")
	case (c.Filter.Source == "") == (c.Filter.Cluster == ""):
		return c, errors.New("session: the filter must name either a source or a cluster")
	case c.Filter.DataType == codec.DataType{}:
		return c, errors.New("session: the filter names no data type")
	}
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	c.Log = cmp.Or(c.Log, slog.Default())
	var err error
	c.Backoff, err = c.Backoff.withDefaults()
	return c, err
}
