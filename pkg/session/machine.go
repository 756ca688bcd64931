package session

import (
	"context"
	"errors"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Wait is how long a session waits before it dials again.
type Wait struct {
	For time.Duration
	// Advice is what For follows from, never transport.NextUnspecified.
	Advice transport.NextStep
}

// Machine is a session without clock, goroutine and network: it is told what
// happened, calls its party, and answers with what to do next. [Session] drives
// it with real connections, a simulator with its own, both like this, for ever:
//
//	dial                    Dialed says what to subscribe to; Ended if that failed
//	subscribe               Accepted says what to publish, side by side with delivery
//	receive, again and again  Received
//	the connection is over  Ended says how long to wait
//
// It is not safe for concurrent use.
type Machine struct {
	filter  transport.Filter
	handler Handler
	backoff Backoff
	rand    func() float64

	// failures is how often the ceiling has doubled since the last good
	// connection; urged is whether it was tried at once since then.
	failures int
	urged    bool

	sessionBegun bool // Hello was called and Disconnected was not
	accepted     bool
	handled      bool // an event was accepted on this connection
	since        time.Time
}

// NewMachine returns the machine of a session, or an error that names what is
// wrong in c. Dialer, Log and Metrics are not used.
func NewMachine(c Config) (*Machine, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Machine{filter: c.Filter, handler: c.Handler, backoff: c.Backoff, rand: c.Rand}, nil
}

// Dialed says that there is a connection, and returns what to subscribe to.
func (m *Machine) Dialed() transport.Subscription {
	m.sessionBegun, m.accepted, m.handled = true, false, false
	return transport.Subscription{Filter: m.filter, Hello: m.handler.Hello()}
}

// Accepted says that the broker accepted the subscription. It returns the
// events to publish now, in this order, with the id of the subscription. If one
// of them fails, or Accepted does, the connection is to be ended with that
// error.
func (m *Machine) Accepted(ctx context.Context, now time.Time, a transport.Accepted) ([]codec.Event, error) {
	m.accepted, m.since = true, now
	events, err := m.handler.Subscribed(ctx, a)
	if err != nil {
		return nil, &handlerError{err}
	}
	return events, nil
}

// Received hands an event to the party. If it fails, the connection is to be
// ended with that error.
func (m *Machine) Received(ctx context.Context, e codec.Event) error {
	if err := m.handler.Handle(ctx, e); err != nil {
		return &handlerError{err}
	}
	m.handled = true
	return nil
}

// Ended says that a dial failed or that the connection is over, and why.
func (m *Machine) Ended(now time.Time, err error) Wait {
	if m.sessionBegun {
		m.sessionBegun = false
		m.handler.Disconnected(cause(err))
	}
	if m.accepted {
		m.accepted = false
		// Delivery alone is no proof of health: an event that the party cannot
		// take, or that never fits, is delivered again after each reconnect.
		lost := isLoss(err) && m.handled
		if lost || now.Sub(m.since) >= m.backoff.Stable {
			m.failures, m.urged = 0, false
		}
	}
	return m.wait(err)
}

// Changed says that something has changed by which the next attempt may end otherwise. What
// failed before counts no more, and nobody has to wait any longer.
func (m *Machine) Changed() { m.failures, m.urged = 0, false }

// wait is the one place that turns the reason of an end into a delay.
func (m *Machine) wait(err error) Wait {
	advice, delay := adviceOf(err)
	switch advice {
	case transport.NextRefreshCredentials, transport.NextResync:
		// New credentials are read at the next dial, and the party starts over
		// at the next Hello. If that did not help once, it takes time.
		if !m.urged {
			m.urged = true
			return Wait{Advice: advice}
		}
		return Wait{For: m.grow(), Advice: advice}
	case transport.NextStop:
		half := m.backoff.Refused / 2
		return Wait{For: half + m.jitter(half), Advice: advice}
	case transport.NextBackOff, transport.NextUnspecified:
	}
	return Wait{For: min(max(delay, 0), m.backoff.MaxDelay) + m.grow(), Advice: transport.NextBackOff}
}

// grow returns a random time below the ceiling, and raises that.
func (m *Machine) grow() time.Duration {
	ceiling := m.backoff.Min
	for range m.failures {
		if ceiling >= m.backoff.Max/2 {
			ceiling = m.backoff.Max
			break
		}
		ceiling *= 2
	}
	m.failures++
	return m.jitter(ceiling)
}

func (m *Machine) jitter(d time.Duration) time.Duration {
	return time.Duration(m.rand() * float64(d))
}

// adviceOf returns what to do about err, never NextUnspecified, and the delay
// the broker asked for. The broker's own advice wins over the code.
func adviceOf(err error) (transport.NextStep, time.Duration) {
	var e *transport.Error
	switch {
	case errors.As(err, new(*handlerError)), !errors.As(err, &e):
		return transport.NextBackOff, 0
	case e.Next != transport.NextUnspecified:
		return e.Next, e.Delay
	}
	switch e.Code {
	case transport.CodeUnauthenticated:
		return transport.NextRefreshCredentials, 0
	case transport.CodeInvalid, transport.CodeDenied, transport.CodeNotFound, transport.CodeAlreadyExists,
		transport.CodeConflict, transport.CodeTooLarge:
		return transport.NextStop, 0
	case transport.CodeInternal, transport.CodeOverloaded, transport.CodeUnavailable, transport.CodeDeadline:
	}
	return transport.NextBackOff, e.Delay
}

// isLoss reports whether a connection just broke, through no event's fault.
func isLoss(err error) bool {
	return !errors.As(err, new(*handlerError)) && transport.CodeOf(err) == transport.CodeUnavailable
}

// handlerError is an error of the party itself. It keeps an error that the party
// got from a call of its own from being taken for the connection's.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }
func (e *handlerError) Unwrap() error { return e.err }

// cause is err as the party knows it.
func cause(err error) error {
	if own, ok := errors.AsType[*handlerError](err); ok {
		return own.err
	}
	return err
}
