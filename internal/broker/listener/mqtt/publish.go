package mqtt

import (
	"context"
	"errors"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/hawser-io/hawser/internal/broker/authz"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/topic"
)

// publishing holds the publishes of a connection that are not answered yet.
type publishing struct {
	// queue has the publishes that need a PUBACK, in the order in which they arrived.
	queue []*pending
	// running is the number of publishes that are served, with those of QoS 0.
	running int
	// last is the last publish of each resource. Publishes run in parallel, so that they are committed together.
	// Publishes of one resource run one after the other, because their order decides.
	last map[string]*pending
}

// pending is a publish without an answer.
type pending struct {
	id  uint16 // 0: QoS 0, no PUBACK
	key string
	// next is the publish of the same resource that starts after this one.
	next *pending

	packet       *packet
	topic        topic.Topic
	message      codec.Message
	subscription string

	started, finished bool

	receipt transport.Receipt
	reason  property.Reason // overrides the reason that follows from err
	err     error
}

// published handles a PUBLISH.
func (c *conn) published(p *packet) error {
	pk, err := decode(p.header, p.body)
	if err != nil {
		p.done()
		return err
	}
	n := &pending{id: pk.PacketID, packet: p}
	if err := c.expect(n); err != nil {
		p.done()
		return err
	}
	if n.id == 0 && c.running >= 2*inFlight { // QoS 0 may be lost
		c.conn.Refused(authz.Publish, "number", errTooMany)
		p.done()
		return nil
	}
	n.message = codec.Message{ContentType: pk.Properties.ContentType, Payload: pk.Payload, Properties: propertiesOf(pk)}
	n.subscription = property.SubscriptionIDOf(n.message.Properties)
	n.key = property.Get(n.message.Properties, "ce-"+codec.ExtResourceID)
	if n.on(pk.TopicName) {
		c.start(n)
		return nil
	}
	p.done()
	c.finished(n)
	return nil
}

// on sets the topic of a publish. It returns false if the topic does not follow the grammar.
func (n *pending) on(name string) bool {
	t, err := topic.Parse(name)
	if err != nil {
		n.reason, n.err = property.TopicNameInvalid, &transport.Error{Code: transport.CodeInvalid, Next: transport.NextStop, Message: err.Error()}
	}
	n.topic = t
	return err == nil
}

// errTooMany is the error for a dropped publish of QoS 0. It is counted, and not sent to the client.
var errTooMany = &transport.Error{Code: transport.CodeOverloaded, Message: "too many publishes of QoS 0 wait"}

// expect adds a publish to the queue of those that need a PUBACK.
func (c *conn) expect(n *pending) error {
	if n.id == 0 {
		return nil
	}
	for _, other := range c.queue {
		if other.id == n.id {
			return wrong("the packet identifier %d is in use", n.id)
		}
	}
	if len(c.queue) >= inFlight {
		return violated(property.ReceiveMaximumExceeded, "more than %d publishes are not acknowledged yet", inFlight)
	}
	c.queue = append(c.queue, n)
	return nil
}

// refused answers a PUBLISH that was rejected after its beginning was read.
func (c *conn) refused(p *packet) error {
	w := &packetReader{rest: p.body}
	w.head(p.header & 0x0F)
	if w.err != nil {
		return w.err
	}
	if p.header&0x06 == 0 {
		return nil
	}
	id := p.body[len(p.body)-len(w.rest)-2:]
	n := &pending{id: uint16(id[0])<<8 | uint16(id[1]), packet: p, err: p.refusal}
	if err := c.expect(n); err != nil {
		return err
	}
	c.finished(n)
	return nil
}

// start serves a publish after the previous one of the same resource.
func (c *conn) start(n *pending) {
	n.started = true
	c.running++
	before := c.last[n.key]
	if c.last == nil {
		c.last = map[string]*pending{}
	}
	c.last[n.key] = n
	if before != nil {
		before.next = n
		return
	}
	c.serving.Go(func() { c.publish(n) })
}

// propertiesOf returns the user properties of a packet.
func propertiesOf(pk *packets.Packet) []codec.Property {
	out := make([]codec.Property, len(pk.Properties.User))
	for i, u := range pk.Properties.User {
		out[i] = codec.Property{Key: u.Key, Value: u.Val}
	}
	return out
}

// publish serves a publish, and posts the result to the owner.
func (c *conn) publish(n *pending) {
	n.err = c.guarded(func() (err error) {
		defer n.packet.done()
		ctx, cancel := context.WithTimeout(c.ctx, c.cfg.PublishTimeout)
		defer cancel()
		n.receipt, err = c.accept(ctx, n)
		return err
	})
	c.post(n)
}

// accept checks a publish against its topic, and passes it to the server.
func (c *conn) accept(ctx context.Context, n *pending) (transport.Receipt, error) {
	event, err := n.message.Proto()
	if err != nil {
		return transport.Receipt{}, transport.Undecodable(err)
	}
	e, err := codec.ParseEnvelope(event)
	if err != nil {
		return transport.Receipt{}, transport.Undecodable(err)
	}
	peer := c.peer()
	if err := bind(identity.Role(peer.Role), n.topic, &e); err != nil {
		return transport.Receipt{}, err
	}
	return c.cfg.Server.Publish(ctx, peer, event, n.subscription)
}

// finished records the result of a publish. It acknowledges the finished ones at the head of the queue.
func (c *conn) finished(n *pending) {
	n.finished = true
	if n.started {
		c.running--
		if n.next != nil {
			c.serving.Go(func() { c.publish(n.next) })
		} else {
			delete(c.last, n.key)
		}
	}
	c.answer(n)
	acked := 0
	for ; acked < len(c.queue) && c.queue[acked].finished; acked++ {
		c.acknowledge(c.queue[acked])
	}
	clear(c.queue[:acked])
	if c.queue = c.queue[acked:]; len(c.queue) == 0 {
		c.queue = nil
	}
}

// answer reports a failed publish to metrics, audit or log.
func (c *conn) answer(n *pending) {
	switch code := transport.CodeOf(n.err); {
	case n.err == nil || n.packet.refusal != nil:
	case code == transport.CodeDenied || code == transport.CodeUnauthenticated:
		c.conn.Refused(authz.Publish, "scope", n.err)
	case code == transport.CodeInternal && c.ctx.Err() == nil:
		c.cfg.Log.Error("call failed", "error", n.err)
	}
}

// acknowledge writes the PUBACK of a publish.
func (c *conn) acknowledge(n *pending) {
	if n.err == nil {
		c.out = appendAccepted(c.buffer(), n.id, property.Receipt(n.receipt), c.options.most, c.options.sent)
		return
	}
	r := property.RefusalOf(errorFor(n.err), n.receipt.Revision)
	if n.reason != 0 {
		r.Reason = n.reason
	}
	c.send(puback(n.id, r))
}

// errorFor returns the error for the peer. Details of an internal error are left out.
func errorFor(err error) *transport.Error {
	var e *transport.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded):
		return &transport.Error{Code: transport.CodeDeadline, Next: transport.NextBackOff, Delay: time.Second, Message: "the call took too long"}
	case err == nil, errors.Is(err, context.Canceled):
		return &transport.Error{Code: transport.CodeUnavailable, Message: "the broker ended the call"}
	}
	return &transport.Error{Code: transport.CodeInternal, Message: "internal error"}
}
