package mqtt

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
)

// Conn is one connection to a broker. No lock is held across a call. Publishing and receiving do not wait for
// each other, unless the broker exceeds its send limit (see maxQueued).
type Conn struct {
	dialer    *Dialer
	broker    string // the used address, for display
	client    *paho.Client
	state     *sessionState
	pinger    *pinger
	maxPacket int // largest packet that this client accepts, in bytes
	roots     []string
	will      bool // the CONNECT had one

	// hawser: the broker announced itself as a Hawser broker. brokerPacket is the largest packet that it accepts, 0
	// if unknown.
	hawser       bool
	brokerPacket int
	since        time.Time // the CONNACK

	// lock serializes SUBSCRIBE and UNSUBSCRIBE packets.
	lock   chan struct{}
	closed atomic.Bool
	tasks  sync.WaitGroup // pending UNSUBSCRIBEs

	endOnce sync.Once
	end     *transport.Error

	mu       sync.Mutex      // tasks are added under it
	reported map[string]bool // reasons of drops that were logged
}

var _ transport.Conn = (*Conn)(nil)

// connected applies the CONNACK.
func (c *Conn) connected(ca *paho.Connack) error {
	c.since = time.Now()
	_, c.hawser = property.Announced(userPropertiesOf(ca.Properties.User))
	if ca.Properties.MaximumPacketSize != nil {
		c.brokerPacket = int(*ca.Properties.MaximumPacketSize)
	}
	if ca.Properties.MaximumQoS != nil && *ca.Properties.MaximumQoS < qos {
		return &transport.Error{
			Code: transport.CodeInvalid, Next: transport.NextStop,
			Message: "the broker " + c.broker + " takes messages of QoS 0 only, which it may lose",
			Hint:    "allow QoS 1 at the broker",
		}
	}
	if ca.Properties.AssignedClientID != "" {
		c.dialer.opts.Log.Warn("the broker gave this client another id", "broker", c.broker,
			"client_id", c.dialer.opts.ClientID, "assigned", ca.Properties.AssignedClientID)
	}
	return nil
}

// Close implements [transport.Conn]. It disconnects, and lets an OCM broker keep the will. The broker publishes
// the will if this client does not reconnect within 30 s.
func (c *Conn) Close() error {
	c.mu.Lock()
	again := c.closed.Swap(true)
	c.mu.Unlock()
	if again {
		<-c.client.Done()
		return nil
	}
	c.state.stream.leave()
	goodbye := property.Success
	if c.will && !c.hawser {
		goodbye = property.DisconnectWithWill
	}
	_ = c.client.Disconnect(&paho.Disconnect{ReasonCode: byte(goodbye)})
	c.tasks.Wait()
	return nil
}

// Publish implements [transport.Publisher]. An event that cannot be encoded, or has no configured topic, is
// CodeInvalid. One that exceeds a limit of MQTT or the broker is CodeTooLarge. Neither is sent. The broker may
// acknowledge in any order, so publishes run concurrently, as many as it allows.
func (c *Conn) Publish(ctx context.Context, e codec.Event, subscriptionID string) (transport.Receipt, error) {
	p, err := c.dialer.topics.publish(e, subscriptionID, c.hawser)
	if err != nil {
		return transport.Receipt{}, err
	}
	size, err := c.fits(p.Packet())
	if err != nil {
		return transport.Receipt{}, err
	}
	o := &c.dialer.opts
	callCtx, cancel := context.WithTimeout(ctx, o.PublishTimeout)
	defer cancel()
	answer, err := c.client.Publish(callCtx, p)
	switch {
	case answer != nil:
		return c.answered(p.Topic, answer)
	case ctx.Err() != nil:
		return transport.Receipt{}, transport.GaveUp(ctx, "the event was not published")
	case callCtx.Err() != nil:
		if c.state.window.stuck(size, o.PublishTimeout) {
			// MQTT does not retransmit on a connection: a lost packet would use its window slot for ever.
			c.state.stream.fail(fmt.Errorf("it has acknowledged nothing for %v", o.PublishTimeout))
		}
		return transport.Receipt{}, &transport.Error{
			Code: transport.CodeDeadline, Message: "the broker did not acknowledge the event within " + o.PublishTimeout.String(),
		}
	case errors.Is(err, paho.ErrInvalidArguments):
		return transport.Receipt{}, transport.Invalid("the broker cannot accept the event", err)
	}
	return transport.Receipt{}, c.gone()
}

// fits returns the size of a packet, or an error if it must not be sent. paho does not check sizes.
func (c *Conn) fits(p *packets.Publish) (size int, err error) {
	size = publishSize(p)
	if limit := c.sendLimit(); size > limit {
		return size, &transport.Error{
			Code: transport.CodeTooLarge, Next: transport.NextStop,
			Message: fmt.Sprintf("the event needs an MQTT packet of %d bytes, at most %d are accepted", size, limit),
			Hint:    "make the work smaller or split it",
		}
	}
	if c.state.managed {
		return size, checkManaged(p)
	}
	return size, nil
}

// answered reads a PUBACK.
func (c *Conn) answered(topic string, answer *paho.PublishResponse) (transport.Receipt, error) {
	reason, properties := property.Reason(answer.ReasonCode), userPropertiesOf(answer.Properties.User)
	receipt := property.ReceiptOf(properties)
	if reason.Failed() {
		e := property.Refusal{Reason: reason, Text: answer.Properties.ReasonString, Properties: properties}.Error()
		return transport.Receipt{Revision: receipt.Revision}, e
	}
	if reason == property.NoMatchingSubscribers {
		// This is only a hint: brokers report it wrongly, or omit it.
		receipt.NoSubscribers = true
		c.dialer.opts.Metrics.noSubscriber()
		c.dialer.opts.Log.Debug("the broker reports that no client has subscribed to the topic of a published event", "broker", c.broker, "topic", topic)
	}
	return receipt, nil
}

// sendLimit returns the size of the largest packet that may be sent, in bytes.
func (c *Conn) sendLimit() int {
	if c.brokerPacket > 0 {
		return min(c.brokerPacket, c.maxPacket)
	}
	return c.maxPacket
}

// gone returns the error of a call whose connection ended.
func (c *Conn) gone() *transport.Error {
	return &transport.Error{Code: transport.CodeUnavailable, Message: "the connection to " + c.broker + " is lost", Err: c.ended()}
}

// ended returns why the connection ended. Call it only after the end.
func (c *Conn) ended() *transport.Error {
	c.endOnce.Do(func() { c.end = c.whyEnded() })
	return c.end
}

func (c *Conn) whyEnded() *transport.Error {
	broker, disconnect, cause := c.broker, c.state.end(), c.state.stream.failure()
	lived := time.Since(c.since)
	switch {
	case c.closed.Load():
		return &transport.Error{Code: transport.CodeUnavailable, Message: "the connection to " + broker + " was closed"}
	case disconnect == nil && !c.hawser && isBareEnd(cause) && lived < soon:
		return c.takenOver(fmt.Sprintf("the connection to %s ended %v after it began, without a reason from the broker: another client may have taken it over", broker, lived.Round(time.Millisecond)), cause)
	case disconnect == nil && cause == nil:
		return &transport.Error{Code: transport.CodeUnavailable, Message: "the connection to " + broker + " is broken", Err: errProtocol}
	case disconnect == nil:
		c.dialer.takeover.quiet(lived)
		return &transport.Error{Code: transport.CodeUnavailable, Message: "the connection to " + broker + " is broken", Err: cause}
	}
	r := refusalOf(disconnect)
	switch {
	case r.Reason == property.TakenOver:
		return c.takenOver("another client has taken over the connection to "+broker, nil)
	case r.Reason == property.PacketTooLarge && !c.hawser:
		e := r.Error()
		e.Code, e.Next = transport.CodeUnavailable, transport.NextBackOff // the event has its own error
		return e
	case r.Reason == property.Success: // a normal disconnect, which MQTT 5 does not define for a broker
		return &transport.Error{Code: transport.CodeUnavailable, Message: "the broker " + broker + " ended the connection"}
	}
	c.dialer.takeover.quiet(lived)
	return r.Error()
}

// refusalOf reads a DISCONNECT.
func refusalOf(d *packets.Disconnect) property.Refusal {
	r := property.Refusal{Reason: property.Reason(d.ReasonCode)}
	if d.Properties != nil {
		r.Text, r.Properties = d.Properties.ReasonString, userProperties(d.Properties.User)
	}
	return r
}
