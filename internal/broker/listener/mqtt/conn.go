package mqtt

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/hawser-io/hawser/internal/broker/listener"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
)

const (
	// inFlight is the maximum number of concurrent publishes of a connection, which is the broker's Receive
	// Maximum. It is also the maximum number of unacknowledged deliveries.
	inFlight = 256
	// ahead is the capacity of a connection's inbox, and of its queue of deliveries. It allows many packets to be
	// written at once.
	ahead = 16
	// lingering is the time that the peer has to close a connection that the broker ended. If the broker closed the
	// connection while data is unread, the peer would lose the last packets.
	lingering = 2 * time.Second
	// lingerBytes is the maximum number of bytes that are read in that time. A peer that sends more is not waited
	// for.
	lingerBytes = 4 << 20
	// flushBytes is the number of bytes that are collected before a write.
	flushBytes = 32 << 10
)

// conn is one connection. One goroutine at a time owns it; only the owner uses the fields of the owner and
// writes packets. Other goroutines read, publish and serve subscriptions, and post events to the owner.
//
// An idle connection has no owner goroutine. With thousands of connections that saves 4 KiB each.
type conn struct {
	*Front
	*wire
	ctx     context.Context //nolint:containedctx // it is the life of the connection
	cancel  context.CancelFunc
	client  client
	options clientOptions

	inbox      chan any // events for the owner: *packet, *pending, opened, ended, or an error of the reader
	deliveries chan *delivery
	orders     chan command
	done       chan struct{} // closed when the inbox is not read any more
	// woken counts the wake calls since the owner last looked. The goroutine that makes it 1 starts an owner. After
	// the end of the connection it stays above 0.
	woken   atomic.Int32
	left    func() // called when all goroutines of the connection have ended
	reader  sync.WaitGroup
	over    atomic.Bool    // packets are discarded from now on
	sharing sync.WaitGroup // memberships in shared subscriptions

	// The fields below belong to the owner.
	connected bool // CONNACK is written
	reading   bool // the reader runs
	out       []byte
	publishing
	subscribing
	draining bool
}

// clientOptions are the options of CONNECT.
type clientOptions struct {
	window int  // maximum number of unacknowledged deliveries
	most   int  // maximum packet size in bytes
	sent   bool // reason strings and user properties are wanted
}

// command is a request of another goroutine to a connection.
type command int

const (
	draining command = iota + 1
	takenOver
)

// do sends a command to the connection, which may have ended. It never blocks.
func (c *conn) do(o command) {
	select {
	case c.orders <- o:
		c.wake()
	default: // the channel has space for all: each command is sent at most twice
	}
}

// post sends an event to the owner. It returns false if the connection has ended.
func (c *conn) post(what any) bool {
	select {
	case c.inbox <- what:
		c.wake()
		return true
	case <-c.done:
		return false
	}
}

// wake starts an owner if there is none.
func (c *conn) wake() {
	if c.woken.Add(1) == 1 {
		go c.own() // left is called after its end
	}
}

func newConn(f *Front, raw net.Conn, connection *listener.Connection, left func()) *conn {
	ctx, cancel := context.WithCancel(context.Background())
	c := &conn{
		Front: f, left: left, wire: &wire{Conn: raw, conn: connection, most: f.cfg.MaxPacketBytes, idleTimeout: listener.HandshakeTimeout, within: listener.HandshakeTimeout},
		ctx: ctx, cancel: cancel,
		inbox: make(chan any, ahead), deliveries: make(chan *delivery, ahead), orders: make(chan command, 4), done: make(chan struct{}),
		options: clientOptions{window: inFlight, most: f.cfg.MaxPacketBytes, sent: true},
	}
	c.woken.Store(1) // the caller of serve is the owner
	return c
}

// serve begins to serve a connection, and returns before its end. The reader is a new goroutine, whose stack is
// still small.
func (c *conn) serve() {
	if err := c.guarded(c.connect); err != nil {
		c.finish(err)
		return
	}
	c.reading = true
	c.reader.Go(c.receive)
	c.own()
}

// own handles all events. The caller is the owner until it returns.
func (c *conn) own() {
	if err := c.guarded(c.work); err != nil {
		c.finish(err)
	}
}

// finish ends the connection because of err. errBye means that the peer ended it.
func (c *conn) finish(err error) {
	defer c.leave()
	c.end(err)
}

// leave ends a connection and releases its resources.
func (c *conn) leave() {
	c.cancel()
	_ = c.Close() // an error means: closed already
	close(c.done)
	c.reader.Wait()
	c.depart(c)
	c.sharing.Wait()
	c.returned()
	for len(c.inbox) > 0 {
		if p, ok := (<-c.inbox).(*packet); ok {
			p.done()
		}
	}
	c.left()
}

// guarded calls do. It counts and logs a panic, and returns the error for the peer.
func (f *Front) guarded(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			f.cfg.OnPanic()
			f.cfg.Log.Error("mqtt call panicked", "panic", p, "stack", string(debug.Stack()))
			err = &transport.Error{
				Code: transport.CodeInternal, Next: transport.NextBackOff, Delay: time.Second,
				Message: "internal error", Hint: "the broker's log has the reason",
			}
		}
	}()
	return do()
}

// receive passes packets to the owner. After the end of the connection it only discards.
func (c *conn) receive() {
	for {
		if c.over.Load() {
			c.post(c.discard())
			return
		}
		p, err := c.read()
		if err != nil {
			c.post(err)
			return
		}
		if !c.aside(p) && !c.post(p) {
			p.done()
			return
		}
	}
}

// aside handles the PUBACK of a delivery in the reader, because to start an owner would take longer. It returns
// false if the connection has an owner, or for other packets.
func (c *conn) aside(p *packet) bool {
	if p.kind() != packets.Puback || !c.woken.CompareAndSwap(0, 1) {
		return false
	}
	waited := !c.canSend() || c.ending != nil
	err := c.guarded(func() error {
		if err := validate(p.header, p.body); err != nil {
			return err
		}
		return c.acknowledged(p)
	})
	switch {
	case err != nil:
		go c.finish(err) // left is called after its end
	case waited, c.woken.Add(-1) > 0:
		go c.own() // left is called after its end
	}
	return true
}

// errBye ends a connection without a reason for the peer.
var errBye = errors.New("the peer has disconnected")

// work handles events until there are none, and writes the answers.
func (c *conn) work() error {
	for {
		// Scenario:
		//   t1: the owner finds no more events.
		//   t2: another goroutine posts an event and calls wake.
		//   t3: the owner leaves, and the event of t2 waits for ever.
		// Result: the owner leaves only if wake was not called since this line.
		seen := c.woken.Load()
		for more := true; more; {
			var err error
			if more, err = c.next(); err != nil {
				return err
			}
			if len(c.out) >= flushBytes || !more {
				if err := c.flush(); err != nil {
					return err
				}
			}
		}
		if c.woken.Add(-seen) == 0 {
			return nil
		}
	}
}

// next handles one event. more is true if there was an event.
func (c *conn) next() (more bool, err error) {
	if c.ending != nil && c.before == 0 {
		return false, c.ending
	}
	deliveries := c.deliveries
	if !c.canSend() {
		deliveries = nil
	}
	select {
	case what := <-c.inbox:
		return true, c.handle(what)
	case d := <-deliveries:
		c.before--
		return true, c.deliver(d)
	case o := <-c.orders:
		if o == takenOver {
			return false, violated(property.TakenOver, "another connection of this identity uses the client id")
		}
		c.draining = true
		return true, c.drained()
	default:
		return false, nil
	}
}

func (c *conn) handle(what any) error {
	switch w := what.(type) {
	case *packet:
		return c.packet(w)
	case *pending:
		c.finished(w)
		return c.drained()
	case opened:
		return c.opened(w)
	case ended:
		return c.ended(w)
	case error: // the reader has ended
		c.reading = false
		return w
	}
	return nil
}

// drained ends a connection without work while the broker drains. A connection with subscriptions waits: the
// server ends these.
func (c *conn) drained() error {
	if !c.draining || len(c.queue) > 0 || len(c.subscriptions) > 0 {
		return nil
	}
	return &transport.Error{Code: transport.CodeUnavailable, Next: transport.NextBackOff, Delay: time.Second, Message: "the broker is shutting down"}
}

// packet handles one packet of the peer.
func (c *conn) packet(p *packet) error {
	if p.refusal != nil {
		return c.refused(p)
	}
	if err := validate(p.header, p.body); err != nil {
		p.done()
		return err
	}
	switch p.kind() {
	case packets.Publish:
		return c.published(p)
	case packets.Puback:
		return c.acknowledged(p)
	case packets.Subscribe:
		return c.subscribe(p)
	case packets.Unsubscribe:
		return c.unsubscribe(p)
	case packets.Pingreq:
		c.out = append(c.buffer(), pingresp...)
		return c.conn.ChargeControlFrame()
	case packets.Disconnect:
		return errBye
	}
	p.done()
	return wrong("a second CONNECT")
}

// buffers are shared, because thousands of connections are idle.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// buffer returns the collected bytes, to append to.
func (c *conn) buffer() []byte {
	if c.out == nil {
		c.out = *buffers.Get().(*[]byte)
	}
	return c.out
}

// send appends an answer for the next flush.
func (c *conn) send(a *answer) { c.out = a.append(c.buffer(), c.options.most, c.options.sent) }

// flush writes the collected bytes.
func (c *conn) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	err := c.write(c.out)
	if b := c.out[:0]; cap(b) <= 2*flushBytes {
		buffers.Put(&b)
	}
	c.out = nil
	return err
}

// end ends the connection. It sends the peer the reason, unless err is an error of the connection itself.
func (c *conn) end(err error) {
	var r property.Refusal
	var v *violation
	var e *transport.Error
	switch {
	case errors.As(err, &v):
		r = property.Refusal{Reason: v.reason, Text: v.text}
	case errors.As(err, &e):
		r = property.RefusalOf(e, 0)
		switch {
		case e.Next == transport.NextUseAnotherServer:
			r.Reason = property.UseAnotherServer
		case e.Code == transport.CodeUnavailable:
			r.Reason = property.ShuttingDown
		case e.Code == transport.CodeTooLarge:
			r.Reason = property.PacketTooLarge
		}
	default:
		return // the connection is broken or closed
	}
	c.cfg.Log.Debug("mqtt connection ends", "reason", r.Reason.String(), "text", r.Text, "addr", c.RemoteAddr().String())
	c.options.sent = true // both packets may always have a reason string
	switch {
	case c.connected:
		c.send(disconnect(r))
	case r.Reason == property.UnsupportedVersion:
		c.out = append(c.buffer(), connackOfOld...)
	default:
		c.send(connack(r, nil))
	}
	if c.flush() == nil && c.SetReadDeadline(time.Now().Add(lingering)) == nil {
		c.linger()
	}
}

// linger reads and discards data for up to the time lingering. If the connection were closed while data is
// unread, the peer would lose the last packets.
func (c *conn) linger() {
	if !c.reading {
		_ = c.discard() // the connection ends anyway
		return
	}
	c.over.Store(true)
	for timeout := time.After(lingering); ; {
		select {
		case what := <-c.inbox:
			if p, ok := what.(*packet); ok {
				p.done()
			}
			if _, over := what.(error); over {
				return
			}
		case <-timeout:
			return
		}
	}
}

// discard reads until the peer closes the connection, up to lingerBytes. It does not parse packets: otherwise a
// peer that reconnects repeatedly would keep the broker busy.
func (c *conn) discard() error {
	if _, err := io.CopyN(io.Discard, c.Conn, lingerBytes); err != nil {
		return err
	}
	return errBye
}
