package mqtt

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/hawser-io/hawser/internal/broker/listen"
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
	// flushBytes is how much is gathered before it is written.
	flushBytes = 32 << 10
)

// conn is one connection, owned by one goroutine: it alone uses the state and writes. Another
// one reads, and tells it what came, as do those that serve publishes and subscriptions.
type conn struct {
	*Front
	*wire
	ctx    context.Context //nolint:containedctx // it is the life of the connection
	cancel context.CancelFunc
	client client
	terms  terms

	inbox      chan any // what happened: *packet, *pending, opened, ended, or an error of the reader
	deliveries chan *delivery
	orders     chan order
	done       chan struct{} // closed when nobody reads the inbox any more
	reader     sync.WaitGroup
	sharing    sync.WaitGroup // memberships of groups

	// What follows is the owner's.
	connected bool // CONNACK was sent
	reading   bool // there is a reader
	out       []byte
	publishing
	subscribing
	draining bool
}

// terms are what CONNECT asked for.
type terms struct {
	window int  // deliveries that may be unacknowledged
	most   int  // largest packet
	told   bool // reason strings and user properties are wanted
}

// order is what others want of a connection.
type order int

const (
	draining order = iota + 1
	takenOver
)

// order tells the connection, which may have ended; it never waits.
func (c *conn) order(o order) {
	select {
	case c.orders <- o:
	default: // there are no more orders than fit, each at most twice
	}
}

// post tells the owner what happened; false: it is gone.
func (c *conn) post(what any) bool {
	select {
	case c.inbox <- what:
		return true
	case <-c.done:
		return false
	}
}

func newConn(f *Front, raw net.Conn, who *listen.Connection) *conn {
	ctx, cancel := context.WithCancel(context.Background())
	return &conn{
		Front: f, wire: &wire{Conn: raw, who: who, most: f.cfg.MaxPacketBytes, silence: listen.HandshakeTimeout, within: listen.HandshakeTimeout},
		ctx: ctx, cancel: cancel,
		inbox: make(chan any, ahead), deliveries: make(chan *delivery, ahead), orders: make(chan order, 4), done: make(chan struct{}),
		terms: terms{window: inFlight, most: f.cfg.MaxPacketBytes, told: true},
	}
}

// serve serves a connection until it ends; left is called then.
func (c *conn) serve(left func()) {
	defer c.leave(left)
	c.end(c.run())
}

// leave is the end of a connection, and of all that belongs to it.
func (c *conn) leave(left func()) {
	c.cancel()
	_ = c.Close() // at worst it is closed already
	close(c.done)
	c.reader.Wait()
	left()
	c.depart(c)
	c.sharing.Wait()
	c.returned()
	for len(c.inbox) > 0 {
		if p, ok := (<-c.inbox).(*packet); ok {
			p.done()
		}
	}
}

// run serves the connection; the result is why it ends, nil where its peer ended it.
func (c *conn) run() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = c.panicked(p)
		}
	}()
	if err := c.connect(); err != nil {
		return err
	}
	c.reading = true
	c.reader.Go(c.receive)
	for {
		if err := c.next(); err != nil {
			return err
		}
	}
}

// panicked counts a panic, and is what the peer is told.
func (f *Front) panicked(p any) error {
	f.cfg.OnPanic()
	f.cfg.Log.Error("mqtt call panicked", "panic", p, "stack", string(debug.Stack()))
	return internal()
}

func internal() *transport.Error {
	return &transport.Error{
		Code: transport.CodeInternal, Next: transport.NextBackOff, Delay: time.Second,
		Message: "internal error", Hint: "the broker's log says more",
	}
}

// receive forwards what comes.
func (c *conn) receive() {
	for {
		p, err := c.read()
		if err != nil {
			c.post(err)
			return
		}
		if !c.post(p) {
			p.done()
			return
		}
	}
}

// errBye ends a connection in which there is nobody to be told why.
var errBye = errors.New("the peer has disconnected")

// next handles what happens next, and writes what that leads to once there is nothing more.
func (c *conn) next() error {
	if c.ending != nil && c.before == 0 {
		return c.ending
	}
	deliveries := c.deliveries
	if !c.room() {
		deliveries = nil
	}
	if len(c.out) >= flushBytes || len(c.inbox) == 0 && len(deliveries) == 0 {
		if err := c.flush(); err != nil {
			return err
		}
	}
	select {
	case what := <-c.inbox:
		return c.handle(what)
	case d := <-deliveries:
		c.before--
		return c.deliver(d)
	case o := <-c.orders:
		if o == takenOver {
			return violated(property.TakenOver, "another connection of this party uses the client id")
		}
		c.draining = true
		return c.drained()
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
	if err := check(p.header, p.body); err != nil {
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
		return c.who.Idle()
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
func (c *conn) send(a *answer) { c.out = a.append(c.buffer(), c.terms.most, c.terms.told) }

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
	c.terms.told = true // both packets may always tell
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
		_, _ = io.CopyN(io.Discard, c.Conn, int64(c.cfg.MaxPacketBytes)) // until its peer closes it, at best
		return
	}
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
