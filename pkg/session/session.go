// Package session keeps one subscription alive: dial, subscribe, resume or
// resync, deliver, and, when the connection ends, back off and begin again. It
// is the only reconnect loop in Hawser, and the entry for programs that publish
// works themselves.
//
// A program that owns works implements [Handler], runs a session and publishes
// with it:
//
//	s := session.New(session.Config{Dialer: dialer, Filter: filter, Party: party})
//	go func() { done <- s.Run(ctx) }()
//	receipt, err := s.Publish(ctx, event)
//
// Nothing is queued here. Publish fails at once while there is no connection,
// and what was published before a connection broke may or may not have been
// accepted: the party learns from [Handler.Subscribed] that there is a new
// connection, and publishes again what it has no acceptance for. That is safe,
// for a broker answers a repeated event with OK.
//
// Where [transport.Accepted] says Plain, nobody keeps anything between the parties: an
// accepted event may be lost, and is to be published again until the agent answered. A work
// that is created again under the id of one that was deleted, as where ids follow from names,
// is to be held back until the agent has reported that one as Deleted: nobody else would keep
// the two apart.
//
// A session never gives up. What the broker says about an error decides how
// long it waits (see [Backoff]); a refusal makes it wait longest, for somebody
// has to change something first, and shows in the log, in [Session.Err] and in
// the metrics.
//
// The decisions are made by [Machine], which has no clock, goroutine or socket
// in it; Session is the shell that performs them.
package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Handler is what a session serves: an agent or a source. Its methods are called
// one at a time, in this order on each connection:
//
//	Hello, [ Subscribed, Handle* ], Disconnected
//
// that is, every Hello is followed by exactly one Disconnected, also when the
// broker refused the subscription and when Run ends. Handle may publish with
// the session.
type Handler interface {
	// Hello returns what to say at this subscribe.
	Hello() transport.Hello
	// Subscribed is called after the broker accepted, before the first event
	// of this connection is handled. It returns the events to publish at once
	// (a spec resync request of an agent, status resync requests of a source),
	// which the session publishes in this order side by side with delivery, so
	// that the answer of the first cannot block the second. If one of them is
	// not accepted the connection ends with that error, so that the resync is
	// asked for again on the next. An error ends the connection too.
	Subscribed(ctx context.Context, a transport.Accepted) ([]codec.Event, error)
	// Handle takes one event; nil means accepted (see transport.Handler). An
	// error ends the connection, and the session starts again after a back-off:
	// an event that is merely bad must be reported and accepted.
	Handle(ctx context.Context, e codec.Event) error
	// Disconnected is called when the connection ended, with the reason, never
	// nil. A party whose cursor the broker refused (transport.NextResync) drops
	// it here, so that the next Hello goes without.
	Disconnected(err error)
}

// Backoff says how long a session waits before it connects again. Zero values
// mean the defaults; all durations are positive.
type Backoff struct {
	// Min and Max bound the wait after a lost connection: a random time between
	// 0 and a ceiling that begins at Min (500 ms) and doubles up to Max (30 s).
	// A delay that the broker asks for is waited in addition.
	Min, Max time.Duration
	// Refused is the wait after an error that calls for a person, such as a
	// denied identity or a wrong address (5 min); half of it is random.
	Refused time.Duration
	// Stable is how long a connection must have lived for the ceiling to begin
	// at Min again (1 min). A connection that delivered an event and was then
	// lost does the same.
	Stable time.Duration
	// MaxDelay bounds the delay that a broker may ask for (10 min).
	MaxDelay time.Duration
}

// withDefaults fills in the zero values, or says which one is wrong.
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

// Config is a session.
type Config struct {
	// Dialer, Filter and Party are required; a Machine needs no Dialer.
	Dialer  transport.Dialer
	Filter  transport.Filter
	Handler Handler

	Backoff Backoff
	// Changed may get a value when something has changed by which the next attempt may end
	// otherwise, as a certificate on disk: then the session does not wait any longer, and what
	// failed before counts no more. A connection that stands is left alone. May be nil.
	Changed <-chan struct{}
	// Rand returns numbers in [0, 1) for the jitter. nil means the random
	// source of the process.
	Rand func() float64
	// Log hears when the connection comes and goes. nil means slog.Default().
	Log *slog.Logger
	// Metrics may be nil.
	Metrics *Metrics
}

// withDefaults fills in what is left out, or says what is missing.
func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Handler == nil:
		return c, errors.New("session: no party")
	case (c.Filter.Source == "") == (c.Filter.Cluster == ""):
		return c, errors.New("session: the filter must name either a source or a cluster")
	case c.Filter.DataType == codec.DataType{}:
		return c, errors.New("session: the filter names no data type")
	}
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	var err error
	c.Backoff, err = c.Backoff.withDefaults()
	return c, err
}
