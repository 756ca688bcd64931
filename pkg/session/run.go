package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Session is a subscription that is kept alive while Run runs. Its methods may
// be called concurrently.
type Session struct {
	config  Config
	metrics *labelled
	running atomic.Bool
	// current is the accepted connection, nil while there is none.
	current atomic.Pointer[connection]

	mu   sync.Mutex
	last error // why there is no connection
}

// connection is an accepted one.
type connection struct {
	transport.Conn
	subscription string
	end          context.CancelCauseFunc
}

// New returns a session that does nothing yet.
func New(c Config) *Session {
	return &Session{config: c, metrics: c.Metrics.of(c.Filter.DataType), last: errors.New("not connected yet")}
}

// Run keeps the subscription alive until ctx ends, and then returns nil, as every
// Run of Hawser does that was asked to stop. An error is one of the configuration,
// returned at once and naming what is wrong. When Run returns, nothing of the session
// runs any more.
func (s *Session) Run(ctx context.Context) error {
	c, err := s.config.withDefaults()
	if err != nil {
		return err
	}
	if c.Dialer == nil {
		return errors.New("session: no dialer")
	}
	machine, err := NewMachine(c)
	if err != nil {
		return err
	}
	if !s.running.CompareAndSwap(false, true) {
		return errors.New("session: Run runs already")
	}
	defer s.running.Store(false)
	r := &runner{Session: s, machine: machine, dialer: c.Dialer, log: c.Log.With("data_type", c.Filter.DataType.String())}
	r.changed = c.Changed
	r.forgetChange() // what there was before the first attempt is known to it
	for {
		wait := r.connect(ctx)
		if !r.sleep(ctx, wait) {
			return nil
		}
	}
}

// Publish sends e over the current connection, naming its subscription. It
// fails at once with CodeUnavailable when there is none; it neither queues nor
// retries. The error is a *transport.Error.
func (s *Session) Publish(ctx context.Context, e codec.Event) (transport.Receipt, error) {
	return s.publish(ctx, s.current.Load(), e)
}

// PublishOn publishes like Publish, but only while the subscription with this id
// is the current one; once it is not, that is CodeUnavailable. Events about a
// subscription itself, such as acks, mean nothing to another one.
func (s *Session) PublishOn(ctx context.Context, subscriptionID string, e codec.Event) (transport.Receipt, error) {
	c := s.current.Load()
	if c != nil && c.subscription != subscriptionID {
		return transport.Receipt{}, &transport.Error{Code: transport.CodeUnavailable, Message: "the subscription is over"}
	}
	return s.publish(ctx, c, e)
}

func (s *Session) publish(ctx context.Context, c *connection, e codec.Event) (receipt transport.Receipt, err error) {
	if c == nil {
		return receipt, &transport.Error{
			Code: transport.CodeUnavailable, Message: "there is no connection to the broker", Err: s.Err(),
		}
	}
	begun := time.Now()
	receipt, err = c.Publish(ctx, e, c.subscription)
	s.metrics.published(time.Since(begun), err)
	return receipt, err
}

// End ends the subscription with this id, if it is the current one, as if its
// connection had broken: the broker takes nothing any more that was published on it,
// and the session subscribes again after a back-off.
func (s *Session) End(subscriptionID string) {
	if c := s.current.Load(); c != nil && c.subscription == subscriptionID {
		c.end(&transport.Error{Code: transport.CodeUnavailable, Message: "the subscription was ended by its own party"})
	}
}

// Connected reports whether there is an accepted subscription now.
func (s *Session) Connected() bool { return s.current.Load() != nil }

// Err says why there is no connection; nil while there is one. It serves as a
// readiness check.
func (s *Session) Err() error {
	if s.Connected() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// disconnected makes Publish fail, and Err return why.
func (s *Session) disconnected(err error) {
	s.mu.Lock()
	s.last = err
	s.mu.Unlock()
	s.current.Store(nil)
}

// sleep waits, but not longer than until something changes, and returns false when ctx has ended.
func (r *runner) sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.changed:
		r.log.InfoContext(ctx, "something has changed on which the connection depends, trying it at once")
		r.machine.Changed()
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// forgetChange forgets a change that nobody waited for.
func (r *runner) forgetChange() {
	select {
	case <-r.changed:
	default:
	}
}

// runner is one Run.
type runner struct {
	*Session
	machine *Machine
	dialer  transport.Dialer
	log     *slog.Logger
	changed <-chan struct{}
}

// connect is one connection, from the dial to its end. It returns how long to
// wait for the next.
func (r *runner) connect(ctx context.Context) time.Duration {
	var accepted *transport.Accepted
	err := r.serve(ctx, &accepted)
	if ctx.Err() != nil {
		// Whatever broke then broke because of it.
		err = ctx.Err()
	}
	r.disconnected(err)
	wait := r.machine.Ended(time.Now(), err)
	r.metrics.ended(accepted, err)
	if accepted != nil && wait.Advice == transport.NextBackOff {
		// Otherwise: t1 the certificates of a thousand agents are renewed while they are connected,
		// t2, much later, the broker is restarted, therefore all of them come at the same moment.
		r.forgetChange()
	}
	switch {
	case ctx.Err() != nil:
		r.log.InfoContext(ctx, "session stopped")
	case wait.Advice == transport.NextStop:
		r.log.ErrorContext(ctx, "the broker refuses this session until something is changed",
			"accepted", accepted != nil, "error", err, "retry_in", wait.For)
	default:
		r.log.WarnContext(ctx, "no connection to the broker", "accepted", accepted != nil, "error", err, "retry_in", wait.For)
	}
	return wait.For
}

// serve dials and subscribes, and returns why that is over.
func (r *runner) serve(ctx context.Context, accepted **transport.Accepted) (err error) {
	conn, err := r.dialer.Dial(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := conn.Close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("close the connection: %w", closeErr))
		}
	}()
	connCtx, end := context.WithCancelCause(ctx)
	var requests sync.WaitGroup
	defer requests.Wait()
	defer end(nil)

	ready := func(a transport.Accepted) {
		*accepted = &a
		r.metrics.accepted(a.Transport)
		r.log.InfoContext(ctx, "subscribed", "transport", a.Transport, "subscription", a.SubscriptionID, "protocol", a.Protocol, "resync", a.Resync)
		c := &connection{Conn: conn, subscription: a.SubscriptionID, end: end}
		// First, so that whoever the party wakes up can publish.
		r.current.Store(c)
		events, err := r.machine.Accepted(connCtx, time.Now(), a)
		if err != nil {
			end(err)
			return
		}
		requests.Go(func() {
			if err := r.publishAll(connCtx, c, events); err != nil {
				end(err)
			}
		})
	}
	handle := func(ctx context.Context, e codec.Event) error {
		if connCtx.Err() != nil {
			return context.Cause(connCtx) // the transport has not noticed yet
		}
		begun := time.Now()
		err := r.machine.Received(ctx, e)
		r.metrics.handled(time.Since(begun), err)
		return err
	}
	err = conn.Subscribe(connCtx, r.machine.Dialed(), ready, handle)
	if reason := context.Cause(connCtx); reason != nil {
		err = reason // we ended it ourselves
	}
	r.disconnected(err)
	return err
}

// publishAll publishes what the party has to say at the start of a connection.
func (r *runner) publishAll(ctx context.Context, c *connection, events []codec.Event) error {
	for _, e := range events {
		if _, err := r.publish(ctx, c, e); err != nil {
			return fmt.Errorf("publish %s: %w", e.Type(), err)
		}
	}
	return nil
}
