// Package mem is the transport without a network: a [Dialer] calls a [transport.Server] in the same process.
// Events cross it as protobuf bytes, as on a real wire. Demonstrations and tests use it. Cut and Restore
// simulate a network failure.
package mem

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// connIDs numbers connections. The upper half of the numbers belongs to this package, the lower half to the
// listeners of the process.
var connIDs atomic.Uint64

const firstConnID = 1 << 63

// Dialer opens connections of one peer to one server. Its methods may be called
// concurrently.
type Dialer struct {
	server transport.Server
	peer   transport.Peer

	mu    sync.Mutex
	down  bool
	conns map[*Conn]struct{}
}

var _ transport.Dialer = (*Dialer)(nil)

// New returns a dialer whose connections the server sees as peer; New sets Addr to "mem", and Conn.
func New(server transport.Server, peer transport.Peer) *Dialer {
	peer.Addr = "mem"
	return &Dialer{server: server, peer: peer, conns: make(map[*Conn]struct{})}
}

// Dial implements [transport.Dialer]. It fails with CodeUnavailable between Cut
// and Restore.
func (d *Dialer) Dial(ctx context.Context) (transport.Conn, error) {
	if ctx.Err() != nil {
		return nil, transport.GaveUp(ctx, "the call was given up")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down {
		return nil, &transport.Error{Code: transport.CodeUnavailable, Message: "the network is cut"}
	}
	peer := d.peer
	peer.Conn = firstConnID + connIDs.Add(1)
	c := &Conn{dialer: d, peer: peer, gone: make(chan struct{}), calls: make(map[*call]struct{})}
	d.conns[c] = struct{}{}
	return c, nil
}

// Cut fails all open connections, and each Dial until Restore. It does not wait for the server's side of their
// calls to return; Close does.
func (d *Dialer) Cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down = true
	for c := range d.conns {
		c.fail("the network was cut")
	}
}

// Restore ends a Cut. Connections that were cut stay failed.
func (d *Dialer) Restore() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down = false
}

// Conn is one in-process connection.
type Conn struct {
	dialer *Dialer
	peer   transport.Peer
	// gone is closed when the connection is closed or cut.
	gone chan struct{}
	// servers are the server's sides of the calls; Close waits for them.
	servers sync.WaitGroup

	mu sync.Mutex
	// reason is the error of running and later calls once gone is closed.
	reason *transport.Error
	calls  map[*call]struct{}
}

// call is the server's side of a running call.
type call struct{ cancel context.CancelFunc }

var _ transport.Conn = (*Conn)(nil)

// Close implements [transport.Conn]. It returns when the server's side of all
// calls has returned, so the server must not call it.
func (c *Conn) Close() error {
	c.fail("the connection was closed")
	c.servers.Wait()
	c.dialer.mu.Lock()
	defer c.dialer.mu.Unlock()
	delete(c.dialer.conns, c)
	return nil
}

// fail ends all calls with CodeUnavailable; only the first reason is kept.
func (c *Conn) fail(message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason != nil {
		return
	}
	c.reason = &transport.Error{Code: transport.CodeUnavailable, Message: message}
	close(c.gone)
	for running := range c.calls {
		running.cancel()
	}
}

// serve runs the server's side of one call. Its context ends with the call's own and with the connection. The
// caller calls the returned function when its side has ended. An error means that the call was not started.
func (c *Conn) serve(ctx context.Context, side func(ctx context.Context)) (over func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctx.Err() != nil {
		return nil, transport.GaveUp(ctx, "the call was given up")
	}
	if c.reason != nil {
		return nil, c.reason
	}
	ctx, cancel := context.WithCancel(ctx)
	running := &call{cancel: cancel}
	c.calls[running] = struct{}{}
	c.servers.Go(func() { // Close waits for it
		defer cancel()
		side(ctx)
	})
	return func() {
		cancel()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.calls, running)
	}, nil
}

// ended returns the error of a call whose context or connection has ended, else nil.
func (c *Conn) ended(ctx context.Context) error {
	if ctx.Err() != nil {
		return transport.GaveUp(ctx, "the call was given up")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason != nil {
		return c.reason
	}
	return nil
}

// Publish implements [transport.Publisher].
func (c *Conn) Publish(ctx context.Context, e codec.Event, subscriptionID string) (transport.Receipt, error) {
	b, err := codec.Marshal(e)
	if err != nil {
		return transport.Receipt{}, transport.Invalid("the event cannot be encoded", err)
	}
	type answer struct {
		receipt transport.Receipt
		err     error
	}
	answers := make(chan answer, 1)
	over, err := c.serve(ctx, func(ctx context.Context) {
		receipt, err := c.dialer.server.Publish(ctx, c.peer, b, subscriptionID)
		answers <- answer{receipt, err}
	})
	if err != nil {
		return transport.Receipt{}, err
	}
	defer over()
	select {
	case a := <-answers:
		if a.err == nil {
			return a.receipt, nil
		}
		if err := c.ended(ctx); err != nil {
			return transport.Receipt{}, err
		}
		return transport.Receipt{Revision: a.receipt.Revision}, asSent(a.err)
	case <-ctx.Done():
	case <-c.gone:
	}
	return transport.Receipt{}, c.ended(ctx)
}

// asSent returns a server's error as the peer sees it. It has no cause; an error other than a *transport.Error
// has no text.
func asSent(err error) *transport.Error {
	var e *transport.Error
	if !errors.As(err, &e) {
		return &transport.Error{Code: transport.CodeInternal, Message: "internal error"}
	}
	sent := *e
	sent.Err = nil
	return &sent
}
