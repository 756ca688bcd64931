package mqtt

import (
	"context"
	"errors"
	"fmt"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/topic"
)

// Subscribe implements [transport.Subscriber]. h runs on the calling goroutine, with ctx. A message that cannot
// be decoded, or that contradicts its topic, is dropped and counted. A broker could only send it again.
//
// Subscriptions of one connection with the same filters share the messages, because MQTT subscribes to a filter
// once. The last of them determines the properties that the broker gets.
func (c *Conn) Subscribe(ctx context.Context, s transport.Subscription, ready func(transport.Accepted), h transport.Handler) error {
	if (s.Source == "") == (s.Cluster == "") {
		return transport.Invalid("a subscription names either a source or a cluster", nil)
	}
	filters, err := c.dialer.topics.filters(s.Filter, c.hawser)
	if err != nil {
		return err
	}
	if err := c.acquire(ctx); err != nil {
		return err
	}
	// Messages may follow the answer immediately.
	sub := c.state.inbox.add(filters)
	accepted, err := c.request(ctx, s, filters)
	<-c.lock
	if err != nil {
		c.leave(sub)
		return err
	}
	c.state.inbox.accepted(sub)
	ready(accepted)
	err = c.deliver(ctx, sub, s, h)
	c.leave(sub)
	return err
}

func (c *Conn) acquire(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	select {
	case c.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// request sends SUBSCRIBE and reads the answer.
func (c *Conn) request(ctx context.Context, s transport.Subscription, filters []string) (transport.Accepted, error) {
	o := &c.dialer.opts
	callCtx, cancel := context.WithTimeout(ctx, o.SubscribeTimeout)
	defer cancel()
	packet := &paho.Subscribe{Properties: &paho.SubscribeProperties{}}
	for _, f := range filters {
		packet.Subscriptions = append(packet.Subscriptions, paho.SubscribeOptions{Topic: f, QoS: qos, RetainHandling: noRetained})
	}
	if c.hawser {
		for _, p := range property.Hello(s.Hello, s.DataType) {
			packet.Properties.User.Add(p.Key, p.Value)
		}
	}
	answer, err := c.client.Subscribe(callCtx, packet)
	if answer == nil && callCtx.Err() == nil && !errors.Is(err, paho.ErrInvalidArguments) {
		// If the write failed, wait until the reader has found the reason.
		select {
		case <-c.state.over:
		case <-callCtx.Done():
		}
	}
	switch {
	case answer != nil:
	case ctx.Err() != nil:
		return transport.Accepted{}, ctx.Err()
	case callCtx.Err() != nil:
		return transport.Accepted{}, &transport.Error{
			Code: transport.CodeDeadline, Message: "the broker did not answer the subscription within " + o.SubscribeTimeout.String(),
		}
	case errors.Is(err, paho.ErrInvalidArguments):
		return transport.Accepted{}, transport.Invalid("the broker cannot accept the subscription", err)
	default:
		return transport.Accepted{}, c.ended()
	}
	return c.judge(answer, filters)
}

// judge reads a SUBACK.
func (c *Conn) judge(answer *paho.Suback, filters []string) (transport.Accepted, error) {
	properties := userPropertiesOf(answer.Properties.User)
	if len(answer.Reasons) != len(filters) {
		return transport.Accepted{}, &transport.Error{Code: transport.CodeInternal, Message: "the broker answered a subscription to other filters"}
	}
	for i, code := range answer.Reasons {
		if reason := property.Reason(code); reason.Failed() {
			e := property.Refusal{Reason: reason, Text: answer.Properties.ReasonString, Properties: properties}.Error()
			if !c.hawser {
				e.Message = "the filter " + filters[i] + ": " + e.Message
			}
			return transport.Accepted{}, e
		}
		if code < qos {
			c.dialer.opts.Log.Warn("the broker grants a subscription without acknowledgements, and may lose messages", "broker", c.broker, "filter", filters[i])
		}
	}
	if !c.hawser {
		limit := c.brokerPacket
		if limit > 0 {
			limit = max(1, limit-envelopeBytes)
		}
		return transport.Accepted{Stateless: true, Roots: c.roots, MaxEventBytes: limit, Transport: transport.MQTT, Broker: c.broker}, nil
	}
	accepted := property.AcceptedOf(properties)
	accepted.Roots, accepted.Transport, accepted.Broker = c.roots, transport.MQTT, c.broker
	return accepted, nil
}

// deliver passes messages to h until ctx or the connection ends, or h fails.
func (c *Conn) deliver(ctx context.Context, sub *subscription, s transport.Subscription, h transport.Handler) error {
	for {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if c.isOver() && c.state.end() == nil {
			return c.ended() // the network broke: the rest is delivered again
		}
		m, p, ok := c.state.inbox.next(sub)
		if ok {
			if e, good := c.event(p, s.Filter); good {
				if err := h(ctx, e); err != nil {
					c.state.inbox.refused(sub, m)
					return err
				}
			}
			c.state.inbox.handled(sub, m)
			continue
		}
		if c.isOver() {
			return c.ended() // the broker disconnected, and all earlier messages have been handled
		}
		select {
		case <-sub.wake:
		case <-ctx.Done():
		case <-c.state.over:
		}
	}
}

func (c *Conn) isOver() bool {
	select {
	case <-c.state.over:
		return true
	default:
		return false
	}
}

// leave ends a subscription. A Hawser broker gets an UNSUBSCRIBE, so that it ends its side while the connection
// stays open. An OCM broker gets none, because it would drop the messages that it stores for the next
// connection.
func (c *Conn) leave(sub *subscription) {
	c.state.inbox.remove(sub)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.hawser || c.closed.Load() || c.isOver() {
		return
	}
	c.tasks.Add(1)
	go func() { // ends with the answer or with the connection; Close waits
		defer c.tasks.Done()
		select {
		case c.lock <- struct{}{}:
		case <-c.state.over:
			return
		}
		// Another subscription with the same filters may have started in between.
		if orphaned := c.state.inbox.orphaned(sub); len(orphaned) > 0 {
			_, _ = c.client.Unsubscribe(context.Background(), &paho.Unsubscribe{Topics: orphaned}) // a failure has no effect
		}
		<-c.lock
	}()
}

// event returns the event of a message; ok is false if the message must be dropped.
func (c *Conn) event(p *packets.Publish, f transport.Filter) (e codec.Event, ok bool) {
	if p.Retain {
		c.drop(dropRetained, p.Topic, errors.New("it was retained by the broker and may be old"))
		return e, false
	}
	if string(p.Payload) == emptied {
		return e, false // already counted
	}
	e, err := codec.FromMessage(codec.Message{ContentType: p.Properties.ContentType, Properties: userProperties(p.Properties.User), Payload: p.Payload})
	if err != nil {
		c.drop(dropUndecodable, p.Topic, err)
		return e, false
	}
	if e.Type() == codec.TypeHeartbeat {
		return e, false
	}
	if t, err := codec.ParseEventType(e.Type()); err == nil && t.DataType != f.DataType {
		c.drop(dropDataType, p.Topic, fmt.Errorf("it is of type %.200s", e.Type()))
		return e, false
	}
	if !c.hawser {
		if err := agree(p.Topic, e); err != nil {
			c.drop(dropTopic, p.Topic, err)
			return e, false
		}
	}
	return e, true
}

// agree returns an error if an event contradicts its topic. An OCM broker authorizes publishers by topic and
// does not read events. Therefore the event must contain the names that the topic has.
func agree(name string, e codec.Event) error {
	t, err := topic.Parse(name)
	if err != nil {
		return err
	}
	if t.Kind == topic.SourceEvents || t.Kind == topic.SourceBroadcast {
		if t.Source != e.Source() {
			return fmt.Errorf("it is of the source %.200q", e.Source())
		}
	}
	if t.Kind == topic.SourceBroadcast {
		return nil
	}
	if cluster, _, err := codec.StringExtension(e, codec.ExtClusterName); err != nil || cluster != t.Cluster {
		return fmt.Errorf("it is of the cluster %.200q", cluster)
	}
	return nil
}
