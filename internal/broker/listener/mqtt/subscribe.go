package mqtt

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/hawser-io/hawser/internal/broker/authz"
	"github.com/hawser-io/hawser/internal/broker/listener"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/topic"
)

// mostSubscriptions is the maximum number of filters of a connection.
const mostSubscriptions = 64

// subscribing holds the subscriptions of a connection.
type subscribing struct {
	subscriptions map[string]*subscription // by filter
	// silent are filters on which nothing is ever sent: broadcasts, which the broker answers.
	silent map[string]bool
	// unacked are deliveries that wait for their PUBACK. lastID is the last packet identifier.
	unacked map[uint16]*delivery
	lastID  uint16
	held    int // bytes of unacked deliveries of groups
	// ending is the reason to end the connection once before more deliveries are written. The server sent these
	// before it ended their subscription.
	ending error
	before int
}

// request is a SUBSCRIBE without an answer.
type request struct {
	id      uint16
	codes   []byte
	waiting int // filters without a decision
	// accepted is the server's answer for the first granted filter, refused the reason of the first rejected one.
	accepted *transport.Accepted
	refused  *property.Refusal
	granted  []*subscription
}

// subscription is one filter with its events. It belongs to the owner of the connection; other goroutines serve
// it.
type subscription struct {
	conn   *conn
	filter topic.Topic
	text   string
	qos    byte
	raw    transport.RawSubscription
	call   *listener.Body
	ctx    context.Context //nolint:containedctx // it is the life of the subscription
	cancel context.CancelFunc
	// proceed is closed when SUBACK is written.
	proceed chan struct{}

	// The fields below belong to the owner.
	request *request // nil after the decision
	index   int      // in the codes of the request
}

// Events of subscriptions for the owner of their connection.
type (
	opened struct {
		of       *subscription
		accepted transport.Accepted
	}
	ended struct {
		of  *subscription
		err error
	}
)

// delivery is an event that is sent to the peer.
type delivery struct {
	publication
	of    *subscription
	group *sharedSubscription // group that gets the delivery back if it is not acknowledged; nil: no group
}

// subscribe handles a SUBSCRIBE.
func (c *conn) subscribe(p *packet) error {
	pk, err := decode(p.header, p.body)
	if err != nil {
		return err
	}
	if err := c.conn.ChargeControlFrame(); err != nil {
		return err
	}
	hello, dataType := property.HelloOf(propertiesOf(pk))
	r := &request{id: pk.PacketID, codes: make([]byte, len(pk.Filters)), waiting: 1}
	for i, f := range pk.Filters {
		if f.NoLocal && strings.HasPrefix(f.Filter, "$share/") {
			return wrong("a shared subscription has No Local")
		}
		s, err := c.newSubscription(f.Filter, dataType, hello)
		if err == nil && s == nil { // a broadcast
			r.codes[i] = min(f.Qos, 1)
			continue
		}
		if err == nil {
			s.qos, s.request, s.index = min(f.Qos, 1), r, i
			err = c.begin(s)
		}
		if err != nil {
			c.conn.Refused(authz.Subscribe, listener.ReasonOf(err), err)
			r.refuse(i, err)
			if err := c.conn.ChargeRefusedCall(1); err != nil {
				return err
			}
		}
	}
	return c.decided(r)
}

// newSubscription returns the subscription of a filter, nil for a broadcast filter, on which nothing is ever
// sent.
func (c *conn) newSubscription(filter, dataType string, hello transport.Hello) (*subscription, error) {
	filter = strings.Clone(filter)
	t, err := topic.Parse(filter)
	if err != nil {
		return nil, &filterError{property.TopicFilterInvalid, &transport.Error{Code: transport.CodeInvalid, Next: transport.NextStop, Message: err.Error()}}
	}
	if len(c.subscriptions)+len(c.silent) >= mostSubscriptions {
		return nil, &transport.Error{
			Code: transport.CodeOverloaded, Next: transport.NextBackOff, Delay: time.Second,
			Message: fmt.Sprintf("a connection has at most %d filters", mostSubscriptions),
		}
	}
	s := &subscription{conn: c, filter: t, text: filter, raw: transport.RawSubscription{DataType: dataType, Hello: hello}}
	switch t.Kind {
	case topic.SourceBroadcast, topic.AgentBroadcast:
		if c.silent == nil {
			c.silent = map[string]bool{}
		}
		c.silent[filter] = true
		return nil, nil //nolint:nilnil // there is none, and that is fine
	case topic.AgentEvents:
		if s.raw.Source = t.Source; t.AnySource() {
			return nil, contradiction("source", "the filter %q names no source; statuses are sent for one source only", filter)
		}
		if !t.AnyCluster() || t.Group != "" {
			s.raw.Hello = transport.Hello{} // a filter for only a part of the events cannot resume
		}
	default:
		if t.Group != "" {
			return nil, errNotShared
		}
		if s.raw.Cluster = t.Cluster; t.AnyCluster() {
			return nil, contradiction(codec.ExtClusterName, "the filter %q names no cluster; works are sent for one cluster only", filter)
		}
		if !t.AnySource() {
			s.raw.Hello = transport.Hello{}
		}
	}
	return s, nil
}

// filterError is an error with its own reason code in SUBACK.
type filterError struct {
	reason property.Reason
	err    *transport.Error
}

// Error implements error.
func (e *filterError) Error() string { return e.err.Error() }

// Unwrap returns the error for the peer.
func (e *filterError) Unwrap() error { return e.err }

// begin starts a subscription. It replaces one with the same filter.
func (c *conn) begin(s *subscription) error {
	s.call = c.conn.NewBody(c.bodies.Add(1), true)
	if before := c.subscriptions[s.text]; before != nil {
		c.forget(before)
	}
	if err := c.conn.Begin(listener.Streaming, s.call); err != nil {
		return err
	}
	s.ctx, s.cancel = context.WithCancel(c.ctx)
	s.proceed = make(chan struct{})
	if c.subscriptions == nil {
		c.subscriptions = map[string]*subscription{}
	}
	c.subscriptions[s.text] = s
	s.request.waiting++
	if s.filter.Group != "" {
		c.sharing.Add(1)
	}
	c.serving.Add(1)
	go s.run() // the connection waits for the end of the subscription
	return nil
}

// forget ends a subscription that the peer has unsubscribed or replaced. Deliveries in flight are dropped.
func (c *conn) forget(s *subscription) {
	s.cancel()
	s.call.End()
	delete(c.subscriptions, s.text)
	if r := s.request; r != nil {
		s.request = nil
		r.codes[s.index] = s.qos // SUBACK reports it as granted; the peer has unsubscribed since
		r.waiting--
	}
}

// current reports whether s is still the subscription of its filter.
func (c *conn) current(s *subscription) bool { return c.subscriptions[s.text] == s }

// run begins to serve the subscription. It returns when nothing is due, or at the end.
func (s *subscription) run() {
	c := s.conn
	if s.filter.Group != "" {
		err := s.share()
		c.sharing.Done()
		s.end(err)
		return
	}
	if err := c.guarded(func() error {
		c.cfg.Server.Start(s.ctx, c.peer(), s.raw, stream{s}, s.end)
		return nil
	}); err != nil {
		s.end(err)
	}
}

// end is called once, after the end of the subscription.
func (s *subscription) end(err error) {
	s.cancel()
	s.call.End()
	s.conn.post(ended{s, err})
	s.conn.serving.Done()
}

// opened handles a subscription that the server has accepted.
func (c *conn) opened(o opened) error {
	s := o.of
	r := s.request
	if r == nil || !c.current(s) {
		return nil
	}
	s.request = nil
	r.codes[s.index] = s.qos
	r.accepted = cmp.Or(r.accepted, &o.accepted)
	r.granted = append(r.granted, s)
	return c.decided(r)
}

// ended handles a subscription that the server has ended. MQTT has no packet for that, so the end of any
// subscription ends the connection.
func (c *conn) ended(e ended) error {
	s := e.of
	if !c.current(s) {
		return nil
	}
	if code := transport.CodeOf(e.err); e.err != nil && (code == transport.CodeDenied || code == transport.CodeUnauthenticated) {
		c.conn.Refused(authz.Subscribe, "scope", e.err)
	}
	c.conn.Called(authz.Subscribe, e.err)
	r := s.request
	if r == nil && c.ending == nil {
		c.ending, c.before = errorFor(e.err), len(c.deliveries)
	}
	if r == nil {
		return nil
	}
	delete(c.subscriptions, s.text)
	r.refuse(s.index, errorFor(e.err))
	return c.decided(r)
}

// refuse records why a filter was rejected.
func (r *request) refuse(place int, err error) {
	refused := property.RefusalOf(errorFor(err), 0)
	if f := (*filterError)(nil); errors.As(err, &f) {
		refused.Reason = f.reason
	}
	r.codes[place] = byte(refused.Reason)
	r.refused = cmp.Or(r.refused, &refused)
}

// decided answers a SUBSCRIBE after its last decision.
func (c *conn) decided(r *request) error {
	if r.waiting--; r.waiting > 0 {
		return nil
	}
	a := &answer{kind: packets.Suback, id: r.id, codes: r.codes}
	if r.accepted != nil {
		a.properties = property.Accepted(*r.accepted)
	}
	if r.refused != nil {
		a.text, a.properties = r.refused.Text, append(a.properties, r.refused.Properties...)
	}
	c.send(a)
	for _, s := range r.granted {
		close(s.proceed)
	}
	return nil
}

// unsubscribe handles an UNSUBSCRIBE.
func (c *conn) unsubscribe(p *packet) error {
	pk, err := decode(p.header, p.body)
	if err != nil {
		return err
	}
	a := &answer{kind: packets.Unsuback, id: pk.PacketID}
	for _, f := range pk.Filters {
		code := packets.CodeNoSubscriptionExisted.Code
		if s := c.subscriptions[f.Filter]; s != nil {
			code = byte(property.Success)
			r := s.request
			c.forget(s)
			if r != nil {
				r.waiting++
				if err := c.decided(r); err != nil {
					return err
				}
			}
		} else if c.silent[f.Filter] {
			code = byte(property.Success)
			delete(c.silent, f.Filter)
		}
		a.codes = append(a.codes, code)
	}
	c.send(a)
	return c.conn.ChargeControlFrame()
}

// deliver writes an event.
func (c *conn) deliver(d *delivery) error {
	switch {
	case !c.current(d.of):
		d.giveBack()
		return nil
	case len(d.packet) > c.options.most: // possible in a group, because its members have different limits
		d.giveBack()
		return tooLarge(d.publication, c.options.most)
	}
	if d.id > 0 {
		if c.unacked == nil {
			c.unacked = map[uint16]*delivery{}
		}
		for c.lastID++; c.lastID == 0 || c.unacked[c.lastID] != nil; c.lastID++ {
		}
		c.unacked[c.lastID] = d
		d.number(c.lastID)
	}
	packet := d.packet
	if d.group == nil || d.id == 0 {
		d.packet = nil
	}
	c.held += len(d.packet)
	if len(packet) < flushBytes {
		c.out = append(c.buffer(), packet...)
		return nil
	}
	if err := c.flush(); err != nil {
		return err
	}
	return c.write(packet)
}

// canSend reports whether another delivery that needs a PUBACK may be sent.
func (c *conn) canSend() bool { return len(c.unacked) < c.options.window && c.held < mostHeld }

// acknowledged handles the PUBACK of a delivery. A peer that rejects an event can get it again only through a
// new subscription, so the connection ends.
func (c *conn) acknowledged(p *packet) error {
	id, reason := binary.BigEndian.Uint16(p.body), property.Success // a PUBACK without a code is a success
	if len(p.body) > 2 {
		reason = property.Reason(p.body[2])
	}
	d := c.unacked[id]
	if d == nil {
		return c.conn.ChargeControlFrame()
	}
	delete(c.unacked, id)
	c.held -= len(d.packet)
	if !reason.Failed() || d.group != nil || !c.current(d.of) { // in a group, the rejected event is dropped
		return nil
	}
	pk, err := decode(p.header, p.body)
	if err != nil {
		return err
	}
	return violated(property.ImplementationSpecific, "an event was not accepted: %s %.200s", reason, pk.Properties.ReasonString)
}

// stream is the sending side of a subscription.
type stream struct{ *subscription }

var _ transport.Stream = stream{}

// Accept implements [transport.Stream]. It returns after SUBACK is written, so no event comes before it.
func (s stream) Accept(a transport.Accepted) error {
	if !s.conn.post(opened{s.subscription, a}) {
		return errGone
	}
	select {
	case <-s.proceed:
		return nil
	case <-s.ctx.Done():
		return errGone
	}
}

// errGone is the error of a stream whose peer has disconnected or unsubscribed.
var errGone = &transport.Error{Code: transport.CodeUnavailable, Message: "the peer has disconnected"}

// Send implements [transport.Stream].
func (s stream) Send(parts ...[]byte) error {
	d, err := s.delivery(parts)
	if err != nil || d == nil {
		return err
	}
	if most := s.conn.options.most; len(d.packet) > most {
		return tooLarge(d.publication, most)
	}
	if s.ctx.Err() != nil {
		return errGone
	}
	select {
	case s.conn.deliveries <- d:
		s.conn.wake()
		return nil
	case <-s.ctx.Done():
		return errGone
	case <-s.conn.done:
		return errGone
	}
}

// delivery returns an event in the form for a subscription, nil if it is not sent.
func (s *subscription) delivery(parts [][]byte) (*delivery, error) {
	event := parts[0]
	if len(parts) > 1 {
		event = bytes.Join(parts, nil)
	}
	if codec.IsHeartbeat(event) { // MQTT has its own keep alive
		return nil, nil //nolint:nilnil // there is none, and that is fine
	}
	m, err := message(event)
	if err != nil {
		return nil, err
	}
	to, ok, err := s.to(m)
	if err != nil || !ok {
		return nil, err
	}
	return &delivery{publication: newPublication(to, m, s.qos), of: s}, nil
}

// tooLarge returns the error that ends a subscription whose client cannot receive an event. The event cannot be
// skipped, because it would never be sent again.
func tooLarge(p publication, most int) *transport.Error {
	return &transport.Error{
		Code: transport.CodeTooLarge, Next: transport.NextBackOff, Delay: time.Second,
		Message: fmt.Sprintf("the event about %.200q takes %d bytes, and Maximum Packet Size of this client is %d", p.about, len(p.packet), most),
		Hint:    "let the client take larger packets, or make the work smaller",
	}
}

// message returns an event in the form of MQTT: in binary mode, or else in structured mode. Structured mode is
// needed for an attribute that is too long for a property, or contains the character that no property may have.
func message(event []byte) (codec.Message, error) {
	m, err := codec.MessageOfProto(event)
	if err == nil && m.CheckLengths() == nil {
		return m, nil
	}
	e, err := codec.Unmarshal(event)
	if err != nil {
		return m, err
	}
	m = codec.Message{ContentType: "application/cloudevents+json"}
	m.Payload, err = json.Marshal(e)
	return m, err
}

// to returns the topic of an event: the subscription's own filter with its wildcards replaced. ok is false if
// the filter names another source or cluster.
func (s *subscription) to(m codec.Message) (to string, ok bool, err error) {
	source := property.Get(m.Properties, "ce-source")
	cluster := property.Get(m.Properties, "ce-"+codec.ExtClusterName)
	if len(m.Properties) == 0 { // in structured mode
		source, cluster, err = named(m.Payload)
		if err != nil {
			return "", false, err
		}
	}
	t, err := codec.ParseEventType(property.Get(m.Properties, "ce-type"))
	ordinary := err == nil && t.Action != codec.ResyncRequest
	switch {
	case ordinary && s.filter.Kind == topic.SourceEvents && !s.filter.AnySource() && s.filter.Source != source,
		ordinary && s.filter.Kind == topic.AgentEvents && !s.filter.AnyCluster() && s.filter.Cluster != cluster:
		return "", false, nil
	}
	to, err = s.filter.Fill(level(source), level(cluster))
	return to, err == nil, err
}

// named returns source and cluster of an event in structured mode.
func named(event []byte) (source, cluster string, err error) {
	var e struct {
		Source  string `json:"source"`
		Cluster string `json:"clustername"`
	}
	err = json.Unmarshal(event, &e)
	return e.Source, e.Cluster, err
}

// level returns a name as one valid level of a topic.
func level(name string) string {
	if name == "" { // the broker's own events have no name
		return "hawser-broker"
	}
	if topic.CheckName(name) != nil {
		return url.QueryEscape(name)
	}
	return name
}
