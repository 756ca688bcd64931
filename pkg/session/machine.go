package session

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// RedialDelay is the delay before a session dials again.
type RedialDelay struct {
	For time.Duration
	// Advice is the reason for For; never transport.NextUnspecified.
	Advice transport.NextStep
}

// Machine is a session without clock, goroutine and network. The driver reports each event; the machine calls
// its handler and returns the next action. [Session] drives it with real connections, a simulator with its own.
// Both repeat these steps:
//
//	dial                      then Dialed returns the subscription, or Ended if the dial failed
//	subscribe                 then Accepted returns the events to publish, concurrently with delivery
//	receive, repeatedly       then Received
//	the connection ends       then Ended returns the wait
//
// It is not safe for concurrent use.
type Machine struct {
	filter  transport.Filter
	handler Handler
	backoff Backoff
	rand    func() float64

	// failures counts the doublings of the ceiling since the last good connection. urged: an immediate retry was
	// made since then.
	failures int
	urged    bool
	// outage is when the last accepted subscription ended, or the first dial failed; zero while one is accepted.
	outage time.Time

	// former is the id of the last accepted subscription.
	former       string
	sessionBegun bool // Hello was called and Disconnected was not
	accepted     bool
	handled      bool // an event was accepted on this connection
	since        time.Time
}

// NewMachine returns the machine of a session, or an error that names the invalid field of c. Dialer, Log and
// Metrics are not used.
func NewMachine(c Config) (*Machine, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Machine{filter: c.Filter, handler: c.Handler, backoff: c.Backoff, rand: c.Rand}, nil
}

// Dialed records that a connection exists, and returns the subscription to request.
func (m *Machine) Dialed() transport.Subscription {
	m.sessionBegun, m.accepted, m.handled = true, false, false
	s := transport.Subscription{Filter: m.filter, Hello: m.handler.Hello()}
	s.Hello.Former = m.former
	return s
}

// Accepted records that the broker accepted the subscription. It returns the events to publish now, in order,
// with the id of the subscription. If Accepted or one of the publishes fails, the caller must end the
// connection with that error.
func (m *Machine) Accepted(ctx context.Context, now time.Time, a transport.Accepted) ([]codec.Event, error) {
	m.accepted, m.since, m.outage, m.former = true, now, time.Time{}, a.SubscriptionID
	events, err := m.handler.Subscribed(ctx, a)
	if err != nil {
		return nil, &handlerError{err}
	}
	return events, nil
}

// Received passes an event to the handler. If it fails, the caller must end the connection with that error.
func (m *Machine) Received(ctx context.Context, e codec.Event) error {
	if err := m.handler.Handle(ctx, e); err != nil {
		return &handlerError{err}
	}
	m.handled = true
	return nil
}

// Ended records that a dial failed or the connection ended; err is the reason. It returns the wait before the
// next dial.
func (m *Machine) Ended(now time.Time, err error) RedialDelay {
	if m.sessionBegun {
		m.sessionBegun = false
		m.handler.Disconnected(cause(err))
	}
	if m.accepted {
		m.accepted = false
		// Delivery alone does not prove health. An event that the handler rejects, or that never fits, is delivered
		// again after each reconnect.
		lost := isLoss(err) && m.handled
		if lost || now.Sub(m.since) >= m.backoff.Stable {
			m.failures, m.urged = 0, false
		}
	}
	if m.outage.IsZero() {
		m.outage = now
	}
	return m.wait(now, err)
}

// Changed records that a cause of failure may be fixed. It resets the failures, so that the next attempt is
// made at once.
func (m *Machine) Changed() { m.failures, m.urged = 0, false }

// wait is the only function that turns the reason of an end into a delay.
func (m *Machine) wait(now time.Time, err error) RedialDelay {
	advice, delay := adviceOf(err)
	if errors.Is(err, syscall.ECONNREFUSED) {
		// No process listens, so a dial costs the broker nothing. A long wait would outlast a short restart.
		ceiling := now.Sub(m.outage) / outageShare
		return RedialDelay{For: m.jitter(min(max(ceiling, m.backoff.Min), m.backoff.Max)), Advice: transport.NextBackOff}
	}
	switch advice {
	case transport.NextRefreshCredentials, transport.NextResync:
		// The next dial reads new credentials, and the handler starts over at the next Hello. A second attempt within
		// the same failure backs off.
		if !m.urged {
			m.urged = true
			return RedialDelay{Advice: advice}
		}
		return RedialDelay{For: m.grow(), Advice: advice}
	case transport.NextStop:
		half := m.backoff.Refused / 2
		return RedialDelay{For: half + m.jitter(half), Advice: advice}
	case transport.NextBackOff, transport.NextUseAnotherServer, transport.NextUnspecified:
	}
	return RedialDelay{For: min(max(delay, 0), m.backoff.MaxDelay) + m.grow(), Advice: transport.NextBackOff}
}

// outageShare is the share of an outage by which a session prolongs it at most: a quarter.
const outageShare = 4

// grow returns a random time below the ceiling, and raises the ceiling.
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

// adviceOf returns the next step for err, never NextUnspecified, and the delay that the broker requested. The
// broker's own advice takes precedence over the code.
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

// isLoss reports whether the connection broke without an error about an event.
func isLoss(err error) bool {
	return !errors.As(err, new(*handlerError)) && transport.CodeOf(err) == transport.CodeUnavailable
}

// handlerError wraps an error of the handler itself. Without it, an error that the handler got from a call of
// its own could be confused with the connection's.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }
func (e *handlerError) Unwrap() error { return e.err }

// cause returns err in the form that the handler gets.
func cause(err error) error {
	if own, ok := errors.AsType[*handlerError](err); ok {
		return own.err
	}
	return err
}
