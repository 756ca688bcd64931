package transport

import (
	"context"
	"errors"
	"sync"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Share returns a dialer that shares one connection of d among all callers of Dial, so that the subscriptions
// of a program use one connection. The connection closes when all callers have closed theirs. The next Dial
// opens a new one after a call has found the peer gone, or after [SharedDialer.Renew]. Dials wait for one
// another.
func Share(d Dialer) *SharedDialer {
	return &SharedDialer{dialer: d, lock: make(chan struct{}, 1), open: map[*sharedConn]bool{}}
}

// SharedDialer is a [Dialer]; see [Share].
type SharedDialer struct {
	dialer Dialer
	lock   chan struct{} // holds a token during a dial

	mu      sync.Mutex
	current *sharedConn // nil: the next Dial opens one
	open    map[*sharedConn]bool
}

// sharedConn is one connection and its number of users, protected by the lock of its SharedDialer.
type sharedConn struct {
	Conn
	users int
	ctx   context.Context //nolint:containedctx // of all uses
	end   context.CancelCauseFunc
}

// Dial implements [Dialer].
func (s *SharedDialer) Dial(ctx context.Context) (Conn, error) {
	select {
	case s.lock <- struct{}{}:
	case <-ctx.Done():
		return nil, GaveUp(ctx, "the caller stopped waiting for the connection")
	}
	defer func() { <-s.lock }()
	if c := s.join(); c != nil {
		return c, nil
	}
	conn, err := s.dialer.Dial(ctx)
	if err != nil {
		return nil, err
	}
	c := &sharedConn{Conn: conn}
	c.ctx, c.end = context.WithCancelCause(context.Background())
	s.mu.Lock()
	s.current, s.open[c] = c, true
	s.mu.Unlock()
	return s.join(), nil // no other dial runs, and a failed user does not have it yet
}

// join returns a use of the current connection, nil if there is none.
func (s *SharedDialer) join() Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		return nil
	}
	s.current.users++
	ctx, leave := context.WithCancel(s.current.ctx)
	return &sharedConnHandle{of: s, on: s.current, ctx: ctx, leave: leave}
}

// Renew makes the next Dial open a new connection. Users of the current one keep it.
func (s *SharedDialer) Renew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = nil
}

// Move moves all users to the connection that Dial would return now, as after Renew. Their running calls fail
// as if the connection had broken, and they dial again at once. If that Dial fails, Move returns its error and
// changes nothing. The new connection stays open at least until the Conn is closed.
func (s *SharedDialer) Move(ctx context.Context) (Conn, error) {
	conn, err := s.Dial(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		if c != s.current {
			c.end(errMoved)
		}
	}
	return conn, nil
}

// failed records that a connection is useless.
func (s *SharedDialer) failed(c *sharedConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == c {
		s.current = nil
	}
}

// left ends one use, and closes the connection after the last one.
func (s *SharedDialer) left(c *sharedConn) error {
	s.mu.Lock()
	c.users--
	last := c.users == 0
	if last {
		delete(s.open, c)
	}
	if last && s.current == c {
		s.current = nil
	}
	s.mu.Unlock()
	if !last {
		return nil
	}
	c.end(nil)
	return c.Close()
}

// sharedConnHandle is one use of a shared connection.
type sharedConnHandle struct {
	of    *SharedDialer
	on    *sharedConn
	ctx   context.Context //nolint:containedctx // ends with Close, and with it all calls
	leave context.CancelFunc
	once  sync.Once
}

var (
	errClosed = &Error{Code: CodeUnavailable, Message: "the connection is closed"}
	errMoved  = &Error{Code: CodeUnavailable, Message: "another connection replaces this one", Next: NextRefreshCredentials}
)

// over returns why this use has ended, or nil.
func (u *sharedConnHandle) over() error {
	switch {
	case u.ctx.Err() == nil:
		return nil
	case errors.Is(context.Cause(u.ctx), errMoved):
		return errMoved
	}
	return errClosed
}

// Publish implements [Publisher].
func (u *sharedConnHandle) Publish(ctx context.Context, e codec.Event, subscriptionID string) (Receipt, error) {
	if err := u.over(); err != nil {
		return Receipt{}, err
	}
	ctx, stop := u.until(ctx)
	defer stop()
	r, err := u.on.Publish(ctx, e, subscriptionID)
	return r, u.judged(err)
}

// Subscribe implements [Subscriber].
func (u *sharedConnHandle) Subscribe(ctx context.Context, s Subscription, ready func(Accepted), h Handler) error {
	if err := u.over(); err != nil {
		return err
	}
	ctx, stop := u.until(ctx)
	defer stop()
	return u.judged(u.on.Subscribe(ctx, s, ready, h))
}

// until returns a context that ends with ctx or with this use of the connection.
func (u *sharedConnHandle) until(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(u.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// judged returns the error of a call. If the error reports that the peer is gone, the next Dial opens a new
// connection.
func (u *sharedConnHandle) judged(err error) error {
	if err == nil {
		return nil
	}
	if over := u.over(); over != nil {
		return over
	}
	if CodeOf(err) == CodeUnavailable {
		u.of.failed(u.on)
	}
	return err
}

// Close implements [Conn].
func (u *sharedConnHandle) Close() (err error) {
	u.once.Do(func() {
		u.leave()
		err = u.of.left(u.on)
	})
	return err
}
