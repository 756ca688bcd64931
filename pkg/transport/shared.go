package transport

import (
	"context"
	"errors"
	"sync"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Share returns a dialer that hands one connection of d to all who dial, so that the several
// subscriptions of a program need no connection each. The connection closes when all have closed
// theirs. Once a call on it has found that the peer is gone, or [SharedDialer.Renew] was called, the
// next Dial opens another. Dials wait for one another.
func Share(d Dialer) *SharedDialer {
	return &SharedDialer{dialer: d, lock: make(chan struct{}, 1), open: map[*sharedConn]bool{}}
}

// SharedDialer is a [Dialer]; see [Share].
type SharedDialer struct {
	dialer Dialer
	lock   chan struct{} // holds a token while somebody dials

	mu      sync.Mutex
	current *sharedConn // nil: the next Dial opens one
	open    map[*sharedConn]bool
}

// sharedConn is one connection and how many use it; the lock is that of its Shared.
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
		return nil, GaveUp(ctx, "gave up waiting for the connection")
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
	return s.join(), nil // nobody else dials, and who fails has not got it yet
}

// join returns a use of the present connection, nil without one.
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

// Renew has the next Dial open another connection. Who uses the present one keeps it.
func (s *SharedDialer) Renew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = nil
}

// Move has all who use a connection come over to one that Dial would return now, as after Renew. What
// they have under way fails as if the connection had broken, and they dial again at once. Nobody is
// disturbed if there is no such connection: the error says why. The new one stays open until the
// Conn is closed, at least.
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

// failed notes that a connection is of no use any more.
func (s *SharedDialer) failed(c *sharedConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == c {
		s.current = nil
	}
}

// left is the end of one use, and of the connection with the last.
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

// sharedConnHandle is what one who dialed has of a shared connection.
type sharedConnHandle struct {
	of    *SharedDialer
	on    *sharedConn
	ctx   context.Context //nolint:containedctx // ends with Close, and with it all calls
	leave context.CancelFunc
	once  sync.Once
}

var (
	errClosed = &Error{Code: CodeUnavailable, Message: "the connection is closed"}
	errMoved  = &Error{Code: CodeUnavailable, Message: "another connection takes the place of this one", Next: NextRefreshCredentials}
)

// over is why this use has ended, nil if it has not.
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

// until returns a context that ends with ctx, and when this use of the connection does.
func (u *sharedConnHandle) until(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(u.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// judged is the error of a call; where it says that the peer is gone, the next Dial opens another
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
