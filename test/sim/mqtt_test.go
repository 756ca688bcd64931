package sim

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"google.golang.org/grpc/credentials"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/listener"
	"github.com/hawser-io/hawser/internal/broker/listener/mqtt"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/topic"
)

// The real MQTT listener runs on connections in memory. Each publish that it hands on waits for its turn. It
// serves several publishes of one connection concurrently, so the seed decides their order.

// front is the listener of one process of the broker. It is also the server that it calls.
type front struct {
	w      *world
	broker *broker.Broker
	port   *listener.Port
	front  *mqtt.Front
	dialed chan net.Conn // to be accepted; closed by Close
	accept net.Listener
	filled chan struct{} // closed when the listener accepts no more
	done   chan error

	mu    sync.Mutex // guards what follows, which the goroutines of the listener use
	conns map[uint64]*conn
	turns []*turn
}

// turn is a publish that the listener handed on, and that the broker has not processed.
type turn struct {
	conn *conn
	env  codec.Envelope
	take chan struct{}
}

func newFront(ctx context.Context, w *world, b *broker.Broker) *front {
	f := &front{w: w, broker: b, dialed: make(chan net.Conn, 1), filled: make(chan struct{}), done: make(chan error, 1), conns: map[uint64]*conn{}}
	log := slog.New(slog.DiscardHandler)
	var err error
	f.port, _, err = listener.New(listener.Config{
		Listener: f, Log: log, Credentials: known{},
		Mapping: testkit.Mapping(identity.Identity{Role: identity.Source, Name: hubName}, identity.Identity{Role: identity.Source, Name: shopName}),
	})
	if err != nil {
		panic(err)
	}
	var fill func()
	if f.accept, fill, err = f.port.Listen(ctx); err != nil {
		panic(err)
	}
	f.front, err = mqtt.New(mqtt.Config{Server: testkit.Blocking{Server: f}, Log: log, OnPanic: func() { panic("the MQTT listener panicked") }})
	if err != nil {
		panic(err)
	}
	go func() { f.done <- f.front.Run(ctx) }() // end waits for both
	go func() {
		defer close(f.filled)
		fill()
	}()
	return f
}

// end waits for the listener, whose context and connections have ended.
func (f *front) end() {
	if f == nil {
		return
	}
	if err := errors.Join(<-f.done, f.accept.Close()); err != nil {
		panic(err)
	}
	<-f.filled
}

// Accept implements net.Listener.
func (f *front) Accept() (net.Conn, error) {
	if c, open := <-f.dialed; open {
		return c, nil
	}
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (f *front) Close() error {
	close(f.dialed)
	return nil
}

// Addr implements net.Listener.
func (f *front) Addr() net.Addr { return &net.UnixAddr{} }

// Publish implements transport.Server.
func (f *front) Publish(ctx context.Context, p transport.Peer, event []byte, subscription string) (transport.Receipt, error) {
	env, err := codec.ParseEnvelope(event)
	if err != nil {
		return transport.Receipt{}, err
	}
	f.mu.Lock()
	t := &turn{conn: f.conns[p.Conn], env: env, take: make(chan struct{})}
	f.turns = append(f.turns, t)
	f.mu.Unlock()
	select {
	case <-t.take:
	case <-ctx.Done():
	}
	f.mu.Lock()
	f.turns = slices.DeleteFunc(f.turns, func(o *turn) bool { return o == t })
	f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return transport.Receipt{}, err
	}
	lent := slices.Clone(event)
	defer clear(lent) // the memory is used again
	return f.broker.Publish(ctx, t.conn.peer, lent, subscription)
}

// Subscribe implements transport.Server.
func (f *front) Subscribe(ctx context.Context, p transport.Peer, raw transport.RawSubscription, out transport.Stream) error {
	f.mu.Lock()
	c := f.conns[p.Conn]
	f.mu.Unlock()
	c.client.entered.Store(true)
	defer close(c.over)
	return f.broker.Subscribe(ctx, c.peer, raw, out)
}

// steps let a publish through to the broker.
func (f *front) steps(list []step) []step {
	if f == nil {
		return list
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	slices.SortFunc(f.turns, func(a, b *turn) int { // one of each resource, as the listener has it
		return cmp.Or(cmp.Compare(a.conn.peer.Conn, b.conn.peer.Conn), cmp.Compare(a.env.ResourceID, b.env.ResourceID))
	})
	for _, t := range f.turns {
		list = append(list, step{t.conn.link.name, "is served", t.env.ResourceID, func() { close(t.take) }})
	}
	return list
}

// known are credentials that accept the identity of the peer as given, instead of TLS.
type known struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (known) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	id := raw.RemoteAddr().(caller).id
	name, organization := pki.Subject(pki.Role(id.Role), id.Name)
	shown := []*x509.Certificate{{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(1e6 * time.Hour),
		Subject: pkix.Name{CommonName: name, Organization: []string{organization}},
	}}
	return raw, credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: shown, VerifiedChains: [][]*x509.Certificate{shown}}}, nil
}

// socket is the broker's end of a connection.
type socket struct {
	net.Conn
	id identity.Identity
}

// RemoteAddr implements net.Conn. Wrappers of the connection pass it on.
func (s *socket) RemoteAddr() net.Addr { return caller{s.Conn.RemoteAddr(), s.id} }

// caller is an address that carries the identity of the client.
type caller struct {
	net.Addr
	id identity.Identity
}

// client is the client end of an MQTT connection. It reads all the time, as every client does that keeps its
// connection alive. It acknowledges an event only when the simulated program has received it.
type client struct {
	conn    *conn
	wire    net.Conn
	publish func(t codec.EventType, env *codec.Envelope) (string, error) // returns the topic
	entered atomic.Bool                                                  // the broker has received the subscription
	left    atomic.Bool                                                  // the program now uses another connection

	unacked chan uint16 // deliveries, as in stream.events

	mu       sync.Mutex // guards what follows
	last     uint16
	unknown  map[uint16]*call // publishes that are not acknowledged
	finished bool
}

// pings is the interval between pings. It is short enough for the longest keep alive of the listener, and no
// other event has the same time.
const pings = 44_987_123_457 * time.Nanosecond

// connectMQTT subscribes over MQTT. The caller handles the answer.
func (w *world) connectMQTT(l *link, f transport.Filter, h transport.Hello) *conn {
	near, remote := net.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	c := &conn{
		link: l, ended: make(chan error, 1), over: make(chan struct{}), peer: w.peer(l.id),
		stream: &stream{ctx: ctx, accepted: make(chan transport.Accepted, 1), events: make(chan []byte, l.window)},
	}
	c.peer.Transport = transport.MQTT
	c.client = &client{conn: c, wire: near, unacked: make(chan uint16, l.window), unknown: map[uint16]*call{}}
	c.cancel = func() {
		cancel()
		_ = near.Close() // the other end notices
	}
	var filter string
	c.client.publish, filter = topicsOf(f)
	w.broker.front.take(c, &socket{remote, l.id})
	go c.client.run(filter, h) // ends with the connection
	go c.client.ping(ctx)      // ends with ctx
	return c
}

// take accepts a connection.
func (f *front) take(c *conn, remote net.Conn) {
	f.dialed <- remote
	raw, err := f.accept.Accept()
	if err != nil {
		panic(err)
	}
	raw, connection, err := f.port.Handshake(raw)
	if err != nil {
		panic(err)
	}
	f.mu.Lock()
	f.conns[connection.Peer().Conn] = c
	f.mu.Unlock()
	if p := connection.Peer(); p.Name != c.peer.Name || p.Role != c.peer.Role {
		f.w.fail("I8", "%s is taken for %s/%s", c.link.id, p.Role, p.Name)
	}
	f.front.Serve(raw, connection, listener.MQTT)
}

// topicsOf returns the topics on which a client publishes, and its topic filter.
func topicsOf(f transport.Filter) (publish func(codec.EventType, *codec.Envelope) (string, error), filter string) {
	set := topic.Set{
		SourceEvents: "sources/+/clusters/+/sourceevents", AgentEvents: "sources/+/clusters/+/agentevents",
		SourceBroadcast: "sources/+/sourcebroadcast", AgentBroadcast: "clusters/+/agentbroadcast",
	}
	if f.Source == "" {
		a, err := topic.NewAgent(set, f.Cluster)
		if err != nil {
			panic(err)
		}
		return func(t codec.EventType, env *codec.Envelope) (string, error) {
			return a.Topic(t, env.OriginalSource, true)
		}, a.Filters(true)[0]
	}
	set.SourceEvents, set.AgentEvents = "sources/"+f.Source+"/clusters/+/sourceevents", "sources/"+f.Source+"/clusters/+/agentevents"
	s, err := topic.NewSource(set, f.Source)
	if err != nil {
		panic(err)
	}
	return func(t codec.EventType, env *codec.Envelope) (string, error) { return s.Topic(t, env.Cluster, true) }, s.Filters(true)[0]
}

func (c *client) ping(ctx context.Context) {
	for tick := time.NewTicker(pings); ; {
		select {
		case <-tick.C:
			if !c.left.Load() {
				_ = c.sendPacket(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}}) // run sees the end
			}
		case <-ctx.Done():
			tick.Stop()
			return
		}
	}
}

// run starts the subscription, and reads packets until the connection ends.
func (c *client) run(filter string, h transport.Hello) {
	err := c.sendPacket(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Connect},
		Connect:     packets.ConnectParams{ProtocolName: []byte("MQTT"), Clean: true, Keepalive: 60, ClientIdentifier: c.conn.link.name},
		Properties:  packets.Properties{ReceiveMaximum: uint16(c.conn.link.window)},
	})
	for err == nil {
		var k packets.Packet
		if k, err = c.read(); err == nil {
			err = c.took(&k, filter, h)
		}
	}
	e, reported := err.(*transport.Error) //nolint:errorlint // of ours, or of the connection
	if !reported {
		e = unavailable("the connection broke")
	}
	c.mu.Lock()
	c.finished = true
	for _, call := range c.unknown {
		call.answers <- answer{err: unavailable("the connection broke"), given: time.Now()}
	}
	c.unknown = nil
	c.mu.Unlock()
	if !c.entered.Load() {
		close(c.conn.over)
	}
	c.conn.ended <- e
	_ = c.wire.Close() // at worst it is closed already
}

// took handles a packet of the broker. An error ends the connection.
func (c *client) took(k *packets.Packet, filter string, h transport.Hello) error {
	reported := make([]codec.Property, 0, len(k.Properties.User))
	for _, u := range k.Properties.User {
		reported = append(reported, codec.Property{Key: u.Key, Value: u.Val})
	}
	refusal := property.Refusal{Reason: property.Reason(k.ReasonCode), Text: k.Properties.ReasonString, Properties: reported}
	switch k.FixedHeader.Type {
	case packets.Connack:
		if refusal.Reason.Failed() {
			return refusal.Error()
		}
		s := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1}, PacketID: 1, Filters: packets.Subscriptions{{Filter: filter, Qos: 1}}}
		for _, p := range property.Hello(h, codec.ManifestBundles) {
			s.Properties.User = append(s.Properties.User, packets.UserProperty{Key: p.Key, Val: p.Value})
		}
		return c.sendPacket(s)
	case packets.Suback:
		if refusal.Reason = property.Reason(k.ReasonCodes[0]); refusal.Reason.Failed() {
			return refusal.Error()
		}
		c.conn.stream.accepted <- property.AcceptedOf(reported)
	case packets.Publish:
		event, err := (codec.Message{ContentType: k.Properties.ContentType, Properties: reported, Payload: k.Payload}).Proto()
		if err != nil {
			return err
		}
		c.unacked <- k.PacketID
		c.conn.stream.events <- event
	case packets.Puback:
		c.answered(k.PacketID, answer{receipt: property.ReceiptOf(reported), given: time.Now()}, refusal)
	case packets.Disconnect:
		return refusal.Error()
	}
	return nil
}

// answered handles the acknowledgement of a publish.
func (c *client) answered(id uint16, a answer, r property.Refusal) {
	if r.Reason.Failed() {
		e := r.Error()
		if e.Code == transport.CodeUnavailable { // whether that or the end of the connection comes first, is chance
			e = unavailable("the connection broke")
		}
		a.receipt.Outcome, a.err = "", e
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if call := c.unknown[id]; call != nil {
		delete(c.unknown, id)
		call.answers <- a
	}
}

// send publishes.
func (c *client) send(call *call) {
	m, err := codec.ToMessage(call.event)
	if err != nil {
		panic(err)
	}
	env := envelope(call.event)
	t, _ := codec.ParseEventType(call.event.Type()) // events of ours have none
	to, err := c.publish(t, &env)
	if err != nil {
		panic(fmt.Errorf("%s cannot publish %s: %w", c.conn.link.name, call.what, err))
	}
	k := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 1}, TopicName: to, Payload: m.Payload,
		Properties: packets.Properties{ContentType: m.ContentType},
	}
	for _, p := range append(m.Properties, property.SubscriptionID(c.conn.id)...) {
		k.Properties.User = append(k.Properties.User, packets.UserProperty{Key: p.Key, Val: p.Value})
	}
	c.mu.Lock()
	over := c.finished
	if !over {
		c.last++
		k.PacketID = c.last
		c.unknown[k.PacketID] = call
	}
	c.mu.Unlock()
	if over {
		call.answers <- answer{err: unavailable("no way"), given: time.Now()}
		return
	}
	_ = c.sendPacket(k) // it fails if the connection has ended; then run answers the call
}

// acknowledge acknowledges the oldest event that the client has received.
func (c *client) acknowledge() {
	_ = c.sendPacket(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}, PacketID: <-c.unacked}) // run sees the end
}

// sendPacket writes a packet.
func (c *client) sendPacket(k packets.Packet) error {
	var b bytes.Buffer
	k.ProtocolVersion = 5
	encode := map[byte]func(*bytes.Buffer) error{
		packets.Connect: k.ConnectEncode, packets.Publish: k.PublishEncode, packets.Puback: k.PubackEncode,
		packets.Subscribe: k.SubscribeEncode, packets.Pingreq: k.PingreqEncode,
	}[k.FixedHeader.Type]
	if err := encode(&b); err != nil {
		panic(err)
	}
	_, err := c.wire.Write(b.Bytes())
	return err
}

// read reads a packet.
func (c *client) read() (k packets.Packet, err error) {
	var head [1]byte
	if _, err := io.ReadFull(c.wire, head[:]); err != nil {
		return k, err
	}
	if err := k.FixedHeader.Decode(head[0]); err != nil {
		return k, err
	}
	k.ProtocolVersion = 5
	for shift := 0; shift == 0 || head[0]&0x80 != 0; shift += 7 {
		if _, err := io.ReadFull(c.wire, head[:]); err != nil {
			return k, err
		}
		k.FixedHeader.Remaining |= int(head[0]&0x7F) << shift
	}
	body := make([]byte, k.FixedHeader.Remaining)
	if _, err := io.ReadFull(c.wire, body); err != nil {
		return k, err
	}
	switch k.FixedHeader.Type {
	case packets.Connack:
		err = k.ConnackDecode(body)
	case packets.Publish:
		err = k.PublishDecode(body)
	case packets.Puback:
		err = k.PubackDecode(body)
	case packets.Suback:
		err = k.SubackDecode(body)
	case packets.Disconnect:
		err = k.DisconnectDecode(body)
	case packets.Pingresp:
	default:
		err = fmt.Errorf("a packet of kind %d", k.FixedHeader.Type)
	}
	return k, err
}

// TestMQTTSeeds plays seeds in which most clients use MQTT with the Hawser broker, and the others gRPC. The
// environment selects the seeds.
func TestMQTTSeeds(t *testing.T) {
	playSeeds(t, spoken, leastMQTTSeeds, mqttTime)
}

// The defaults of TestMQTTSeeds.
const (
	mqttTime       = 15 * time.Second
	leastMQTTSeeds = 300
)
