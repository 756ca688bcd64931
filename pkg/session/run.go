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

// Session keeps a subscription alive while Run runs. Its methods may be called concurrently.
type Session struct {
	config  Config
	metrics *labelled
	running atomic.Bool
	// current is the accepted connection, nil if there is none.
	current atomic.Pointer[connection]

	mu   sync.Mutex
	last error // why there is no connection
}

// connection is an accepted connection.
type connection struct {
	transport.Conn
	subscription string
	end          context.CancelCauseFunc
}

// New returns a session that is not running.
func New(c Config) *Session {
	return &Session{config: c, metrics: c.Metrics.of(c.Filter.DataType), last: errors.New("not connected yet")}
}

// Run keeps the subscription alive until ctx ends, and then returns nil, as each Run of Hawser does when it is
// stopped. It returns an error only for an invalid configuration, at once. When Run returns, all goroutines of
// the session have ended.
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
	r.forgetChange() // the first attempt already uses the current state
	for {
		wait := r.connect(ctx)
		if !r.sleep(ctx, wait) {
			return nil
		}
	}
}

// Publish sends e over the current connection, with the id of its subscription. Without a connection it fails
// at once with CodeUnavailable. It neither queues nor retries. The error is a *transport.Error.
func (s *Session) Publish(ctx context.Context, e codec.Event) (transport.Receipt, error) {
	return s.publish(ctx, s.current.Load(), e)
}

// PublishOn is Publish for one subscription. It fails with CodeUnavailable if the subscription with this id is
// not the current one. Acks and other events about a subscription are valid only on that subscription.
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

// End ends the subscription with this id, if it is the current one, as if its connection had broken. The broker
// then ignores later events of that subscription. The session subscribes again after a back-off.
func (s *Session) End(subscriptionID string) {
	if c := s.current.Load(); c != nil && c.subscription == subscriptionID {
		c.end(&transport.Error{Code: transport.CodeUnavailable, Message: "the handler ended its subscription"})
	}
}

// Connected reports whether there is an accepted subscription.
func (s *Session) Connected() bool { return s.current.Load() != nil }

// Err returns why there is no connection, or nil if there is one. It serves as a readiness check.
func (s *Session) Err() error {
	if s.Connected() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// disconnected clears the connection, so that Publish fails and Err returns err.
func (s *Session) disconnected(err error) {
	s.mu.Lock()
	s.last = err
	s.mu.Unlock()
	s.current.Store(nil)
}

// sleep waits for d or until something changes. It returns false if ctx has ended.
func (r *runner) sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.changed:
		r.log.InfoContext(ctx, "a file of the connection has changed; dialing at once")
		r.machine.Changed()
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// forgetChange discards a pending change signal.
func (r *runner) forgetChange() {
	select {
	case <-r.changed:
	default:
	}
}

// runner holds the state of one Run.
type runner struct {
	*Session
	machine *Machine
	dialer  transport.Dialer
	log     *slog.Logger
	changed <-chan struct{}
}

// connect runs one connection, from the dial to its end. It returns the wait before the next one.
func (r *runner) connect(ctx context.Context) time.Duration {
	var accepted *transport.Accepted
	err := r.serve(ctx, &accepted)
	if ctx.Err() != nil {
		// The end of ctx caused any other error.
		err = ctx.Err()
	}
	r.disconnected(err)
	wait := r.machine.Ended(time.Now(), err)
	r.metrics.ended(accepted, err)
	if accepted != nil && wait.Advice == transport.NextBackOff {
		// Scenario:
		//   t1: the certificates of 1000 agents are renewed while they are connected.
		//   t2: much later the broker restarts.
		//   t3: without this, the pending changes make all agents dial at the same moment.
		// Result: changes from the time of a connection do not shorten the wait after it.
		r.forgetChange()
	}
	switch {
	case ctx.Err() != nil:
		r.log.InfoContext(ctx, "session stopped")
	case wait.Advice == transport.NextStop:
		r.log.ErrorContext(ctx, "the broker rejects this session until an operator changes something",
			"accepted", accepted != nil, "error", err, "retry_in", wait.For)
	default:
		r.log.WarnContext(ctx, "no connection to the broker", "accepted", accepted != nil, "error", err, "retry_in", wait.For)
	}
	return wait.For
}

// serve dials and subscribes, and returns why the connection ended.
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
		r.log.InfoContext(ctx, "subscribed", "transport", a.Transport, "broker", a.Broker, "subscription", a.SubscriptionID, "protocol", a.Protocol, "resync", a.Resync)
		c := &connection{Conn: conn, subscription: a.SubscriptionID, end: end}
		// The connection is stored first, so that a goroutine that the handler wakes can publish.
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
			return context.Cause(connCtx) // the transport has not noticed the end yet
		}
		begun := time.Now()
		err := r.machine.Received(ctx, e)
		r.metrics.handled(time.Since(begun), err)
		return err
	}
	err = conn.Subscribe(connCtx, r.machine.Dialed(), ready, handle)
	if reason := context.Cause(connCtx); reason != nil {
		err = reason // the session ended it itself
	}
	r.disconnected(err)
	return err
}

// publishAll publishes the handler's first events on a connection.
func (r *runner) publishAll(ctx context.Context, c *connection, events []codec.Event) error {
	for _, e := range events {
		if _, err := r.publish(ctx, c, e); err != nil {
			return fmt.Errorf("publish %s: %w", e.Type(), err)
		}
	}
	return nil
}
