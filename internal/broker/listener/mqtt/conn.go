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
	// inFlight is how many publishes of a connection are served at a time, which is our
	// Receive Maximum, and at most how many deliveries it has not acknowledged.
	inFlight = 256
	// ahead is how much of what came waits for the owner of a connection, and as much of what
	// goes: enough to write many packets at a time.
	ahead = 16
	// lingering is how long a peer has to close a connection that we ended: closed with
	// something unread, it would lose what was sent last.
	lingering = 2 * time.Second
	// lingerBytes is how much of it is read meanwhile: who sends more does not read what it is told.
	lingerBytes = 4 << 20
	// flushBytes is how much is gathered before it is written.
	flushBytes = 32 << 10
)

// conn is one connection, owned by one goroutine at a time: it alone uses the state and writes.
// Another one reads, and tells it what came, as do those that serve publishes and subscriptions.
// As long as there is nothing to do, nobody is the owner: thousands of connections are idle, and
// each of their goroutines would take at least 4 KiB.
type conn struct {
	*Front
	*wire
	ctx     context.Context //nolint:containedctx // it is the life of the connection
	cancel  context.CancelFunc
	client  client
	options clientOptions

	inbox      chan any // what happened: *packet, *pending, opened, ended, or an error of the reader
	deliveries chan *delivery
	orders     chan command
	done       chan struct{} // closed when nobody reads the inbox any more
	// woken is how often the owner was told of something since it had a look; whoever makes it 1
	// has to find an owner. Once the connection ends, it never is 0 again.
	woken   atomic.Int32
	left    func() // is called when all of it has ended
	reader  sync.WaitGroup
	over    atomic.Bool    // nothing that comes is handled any more
	sharing sync.WaitGroup // memberships of groups

	// What follows is the owner's.
	connected bool // CONNACK was sent
	reading   bool // there is a reader
	out       []byte
	publishing
	subscribing
	draining bool
}

// clientOptions are what CONNECT asked for.
type clientOptions struct {
	window int  // deliveries that may be unacknowledged
	most   int  // largest packet
	sent   bool // reason strings and user properties are wanted
}

// command is what others want of a connection.
type command int

const (
	draining command = iota + 1
	takenOver
)

// do tells the connection, which may have ended; it never waits.
func (c *conn) do(o command) {
	select {
	case c.orders <- o:
		c.wake()
	default: // there are no more orders than fit, each at most twice
	}
}

// post tells the owner what happened; false: it is gone.
func (c *conn) post(what any) bool {
	select {
	case c.inbox <- what:
		c.wake()
		return true
	case <-c.done:
		return false
	}
}

// wake tells the owner that something waits for it.
func (c *conn) wake() {
	if c.woken.Add(1) == 1 {
		go c.own() // whoever waits for left waits for it
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
	c.woken.Store(1) // whoever serves it is the owner
	return c
}

// serve begins to serve a connection, and does not wait for its end. Its reader is another
// goroutine, whose stack has not grown yet.
func (c *conn) serve() {
	if err := c.guarded(c.connect); err != nil {
		c.finish(err)
		return
	}
	c.reading = true
	c.reader.Go(c.receive)
	c.own()
}

// own handles what happened. The caller is the owner, and no more when it returns.
func (c *conn) own() {
	if err := c.guarded(c.work); err != nil {
		c.finish(err)
	}
}

// finish ends the connection because of err, which is errBye where its peer ended it.
func (c *conn) finish(err error) {
	defer c.leave()
	c.end(err)
}

// leave is the end of a connection, and of all that belongs to it.
func (c *conn) leave() {
	c.cancel()
	_ = c.Close() // at worst it is closed already
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

// guarded calls do. It counts a panic of it, and returns what the peer is told.
func (f *Front) guarded(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			f.cfg.OnPanic()
			f.cfg.Log.Error("mqtt call panicked", "panic", p, "stack", string(debug.Stack()))
			err = &transport.Error{
				Code: transport.CodeInternal, Next: transport.NextBackOff, Delay: time.Second,
				Message: "internal error", Hint: "the broker's log says more",
			}
		}
	}()
	return do()
}

// receive forwards what comes, as long as anything is handled.
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

// aside handles what leads to nothing, the acknowledgement of a delivery, on the goroutine that
// reads: where nobody is the owner, to find one would take longer. The result is whether it did.
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
		go c.finish(err) // whoever waits for left waits for it
	case waited, c.woken.Add(-1) > 0:
		go c.own() // whoever waits for left waits for it
	}
	return true
}

// errBye ends a connection in which there is nobody to be told why.
var errBye = errors.New("the peer has disconnected")

// work handles what happened until there is nothing more, and writes what that leads to.
func (c *conn) work() error {
	for {
		// t1 there is nothing more, t2 somebody tells of something, t3 the owner goes: what came
		// at t2 would wait for ever. So it goes only if it was told of nothing since t0, here.
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

// next handles one thing that happened; more: there was one.
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
			return false, violated(property.TakenOver, "another connection of this party uses the client id")
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
	case error: // of the reader, which has ended
		c.reading = false
		return w
	}
	return nil
}

// drained ends a connection that has nothing to wait for while the broker goes away. One
// with a subscription waits for the end of that, which has a pace.
func (c *conn) drained() error {
	if !c.draining || len(c.queue) > 0 || len(c.subscriptions) > 0 {
		return nil
	}
	return &transport.Error{Code: transport.CodeUnavailable, Next: transport.NextBackOff, Delay: time.Second, Message: "the broker is going away"}
}

// packet handles what the peer sent.
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

// buffers are for what is to be written: thousands of connections are idle.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// buffer returns what was gathered, to be appended to.
func (c *conn) buffer() []byte {
	if c.out == nil {
		c.out = *buffers.Get().(*[]byte)
	}
	return c.out
}

// send writes an answer with the next flush.
func (c *conn) send(a *answer) { c.out = a.append(c.buffer(), c.options.most, c.options.sent) }

// flush writes what was gathered.
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

// end ends the connection, and tells the peer why if that is what err is about.
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
		case e.Code == transport.CodeUnavailable:
			r.Reason = property.ShuttingDown
		case e.Code == transport.CodeTooLarge:
			r.Reason = property.PacketTooLarge
		}
	default:
		return // nobody is there, or the connection was ended already
	}
	c.cfg.Log.Debug("mqtt connection ends", "reason", r.Reason.String(), "text", r.Text, "addr", c.RemoteAddr().String())
	c.options.sent = true // both packets may always tell
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

// linger reads on, and handles nothing: closed with something unread, the connection would
// lose what was sent last.
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

// discard reads until the peer closes the connection, at best. It looks for no packets: a peer
// that ends and comes again would have the broker do nothing else.
func (c *conn) discard() error {
	if _, err := io.CopyN(io.Discard, c.Conn, lingerBytes); err != nil {
		return err
	}
	return errBye
}
