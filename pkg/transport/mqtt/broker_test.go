package mqtt

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/topic"
)

// patience bounds every wait of the tests.
const patience = 20 * time.Second

var testTopics = topic.Set{SourceEvents: "sources/source1/clusters/+/sourceevents", AgentEvents: "sources/source1/clusters/+/agentevents"}

// fake is a listener; a test function plays the broker on each connection.
type fake struct {
	net.Listener
	serve func(*peer)

	mu    sync.Mutex
	conns []net.Conn
	done  sync.WaitGroup
}

// peer is the broker's end of one connection.
type peer struct {
	net.Conn
	t       testing.TB
	n       uint64
	writing sync.Mutex
	connect *packets.Connect
}

func newFake(t testing.TB, serve func(*peer)) *fake {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{Listener: l, serve: serve}
	var number atomic.Uint64
	f.done.Add(1)
	go func() { // ends with the listener, which the test closes
		defer f.done.Done()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.conns = append(f.conns, c)
			f.mu.Unlock()
			f.done.Add(1)
			go func() { // ends with its connection
				defer f.done.Done()
				defer c.Close()
				f.serve(&peer{Conn: c, t: t, n: number.Add(1)})
			}()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close() // ends Accept
		f.cut()
		f.done.Wait()
	})
	return f
}

// cut breaks all connections as a network does.
func (f *fake) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // makes Close send a reset
		}
		_ = c.Close() // may be closed already
	}
	f.conns = nil
}

// read returns the next packet, nil at the end.
func (p *peer) read() *packets.ControlPacket {
	cp, err := packets.ReadPacket(p.Conn)
	if err != nil {
		return nil
	}
	return cp
}

// expect reads the next packet of this type, and answers pings before it.
func (p *peer) expect(kind byte) *packets.ControlPacket {
	for {
		cp := p.read()
		switch {
		case cp == nil:
			p.t.Errorf("the client left, and a packet of type %d was expected", kind)
			return packets.NewControlPacket(kind)
		case cp.Type == packets.PINGREQ:
			p.write(packets.NewControlPacket(packets.PINGRESP))
		case cp.Type == kind:
			return cp
		default:
			p.t.Errorf("a packet of type %s, and one of type %d was expected", cp.PacketType(), kind)
			return packets.NewControlPacket(kind)
		}
	}
}

func (p *peer) write(cp *packets.ControlPacket) bool {
	p.writing.Lock()
	defer p.writing.Unlock()
	var b bytes.Buffer // for a single write: the race detector misses writes of several buffers
	if _, err := cp.WriteTo(&b); err != nil {
		p.t.Error(err)
	}
	_, err := p.Conn.Write(b.Bytes())
	return err == nil
}

// welcome answers the CONNECT.
func (p *peer) welcome(hawser bool, change ...func(*packets.Connack)) {
	p.connect, _ = p.expect(packets.CONNECT).Content.(*packets.Connect)
	ack := packets.NewControlPacket(packets.CONNACK)
	ca := ack.Content.(*packets.Connack)
	if hawser {
		ca.Properties.User = users(property.Announcement{StoreID: "e", MaxEventBytes: 1 << 20}.Properties())
	}
	for _, f := range change {
		f(ca)
	}
	p.write(ack)
}

// grant answers a SUBSCRIBE.
func (p *peer) grant(s *packets.Subscribe, properties ...codec.Property) {
	ack := packets.NewControlPacket(packets.SUBACK)
	suback := ack.Content.(*packets.Suback)
	suback.PacketID = s.PacketID
	for range s.Subscriptions {
		suback.Reasons = append(suback.Reasons, 1)
	}
	suback.Properties.User = users(properties)
	p.write(ack)
}

// puback answers a PUBLISH.
func (p *peer) puback(id uint16, reason property.Reason, text string, properties []codec.Property) {
	ack := packets.NewControlPacket(packets.PUBACK)
	pa := ack.Content.(*packets.Puback)
	pa.PacketID, pa.ReasonCode = id, byte(reason)
	pa.Properties.ReasonString, pa.Properties.User = text, users(properties)
	p.write(ack)
}

// publish sends an event.
func (p *peer) publish(id uint16, topic string, m codec.Message) bool {
	return p.write(publishPacket(id, topic, m))
}

func publishPacket(id uint16, topic string, m codec.Message) *packets.ControlPacket {
	cp := packets.NewControlPacket(packets.PUBLISH)
	pb := cp.Content.(*packets.Publish)
	pb.PacketID, pb.QoS, pb.Topic, pb.Payload = id, 1, topic, m.Payload
	pb.Properties.ContentType, pb.Properties.User = m.ContentType, users(m.Properties)
	return cp
}

// goodbye sends a DISCONNECT.
func (p *peer) goodbye(reason property.Reason, text string, properties []codec.Property) {
	cp := packets.NewControlPacket(packets.DISCONNECT)
	d := cp.Content.(*packets.Disconnect)
	d.ReasonCode, d.Properties.ReasonString, d.Properties.User = byte(reason), text, users(properties)
	p.write(cp)
}

func users(properties []codec.Property) (u []packets.User) {
	for _, p := range properties {
		u = append(u, packets.User{Key: p.Key, Value: p.Value})
	}
	return u
}

func options(f *fake) Options {
	return Options{Broker: f.Addr().String(), Insecure: true, ClientID: "client-1", Topics: testTopics, Log: slog.New(slog.DiscardHandler)}
}

func newDialer(t testing.TB, o Options) *Dialer {
	t.Helper()
	d, err := NewDialer(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func dial(t testing.TB, d *Dialer) *Conn {
	t.Helper()
	c, err := d.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c.(*Conn)
}

// hawserBroker plays a Hawser broker in front of a server, with the features that the contract needs.
func hawserBroker(s transport.Server) func(*peer) {
	return func(p *peer) {
		h := &hawserPeer{peer: p, server: s, streams: map[string]context.CancelFunc{}, acked: make(chan struct{}, 256)}
		ctx, cancel := context.WithCancel(context.Background())
		defer h.calls.Wait()
		defer p.Close()
		defer cancel()
		p.welcome(true)
		h.window = make(chan struct{}, *p.connect.Properties.ReceiveMaximum)
		h.run(ctx)
	}
}

type hawserPeer struct {
	*peer
	server  transport.Server
	calls   sync.WaitGroup
	window  chan struct{}
	acked   chan struct{}
	id      atomic.Uint32
	mu      sync.Mutex
	streams map[string]context.CancelFunc // by filter
}

func (h *hawserPeer) identity() transport.Peer {
	return transport.Peer{Role: "agent", Name: "cluster1", Addr: h.RemoteAddr().String(), Conn: h.n}
}

func (h *hawserPeer) run(ctx context.Context) {
	var turn chan struct{} // closed when the previous publish was answered
	for cp := h.read(); cp != nil; cp = h.read() {
		switch c := cp.Content.(type) {
		case *packets.Publish:
			before, mine := turn, make(chan struct{})
			turn = mine
			h.calls.Add(1)
			go func() { // ends with ctx at the latest
				defer h.calls.Done()
				defer close(mine)
				h.take(ctx, c, before)
			}()
		case *packets.Subscribe:
			h.subscribe(ctx, c)
		case *packets.Unsubscribe:
			h.mu.Lock()
			for _, f := range c.Topics {
				h.streams[f]()
			}
			h.mu.Unlock()
			ack := packets.NewControlPacket(packets.UNSUBACK)
			ack.Content.(*packets.Unsuback).PacketID = c.PacketID
			ack.Content.(*packets.Unsuback).Reasons = make([]byte, len(c.Topics))
			h.write(ack)
		case *packets.Puback:
			<-h.window
		case *packets.Pingreq:
			h.write(packets.NewControlPacket(packets.PINGRESP))
		case *packets.Disconnect:
			return
		}
	}
}

// take processes a publish and answers it after the previous one.
func (h *hawserPeer) take(ctx context.Context, p *packets.Publish, before <-chan struct{}) {
	m := codec.Message{ContentType: p.Properties.ContentType, Properties: userProperties(p.Properties.User), Payload: p.Payload}
	event, err := m.Proto()
	var r transport.Receipt
	if err == nil {
		r, err = h.server.Publish(ctx, h.identity(), event, property.SubscriptionIDOf(m.Properties))
	}
	if before != nil {
		<-before
	}
	if err != nil {
		refusal := property.RefusalOf(typed(err), r.Revision)
		h.puback(p.PacketID, refusal.Reason, refusal.Text, refusal.Properties)
		return
	}
	h.puback(p.PacketID, property.Success, "", property.Receipt(r))
}

func typed(err error) *transport.Error {
	var e *transport.Error
	if errors.As(err, &e) {
		return e
	}
	return &transport.Error{Code: transport.CodeInternal, Message: "internal error"}
}

func (h *hawserPeer) subscribe(ctx context.Context, s *packets.Subscribe) {
	filter := s.Subscriptions[0].Topic
	f, err := topic.Parse(filter)
	if err != nil {
		h.t.Error(err)
	}
	streamCtx, cancel := context.WithCancel(ctx)
	h.mu.Lock()
	if end := h.streams[filter]; end != nil {
		end()
	}
	h.streams[filter] = cancel
	h.mu.Unlock()
	hello, dataType := property.HelloOf(userProperties(s.Properties.User))
	raw := transport.RawSubscription{Cluster: f.Cluster, DataType: dataType, Hello: hello}
	if f.Kind == topic.AgentEvents {
		raw = transport.RawSubscription{Source: f.Source, DataType: dataType, Hello: hello}
	}
	h.calls.Add(1)
	go func() { // ends with ctx at the latest
		defer h.calls.Done()
		out := &hawserStream{h: h, ctx: streamCtx, subscribe: s, filter: f}
		err := h.server.Subscribe(streamCtx, h.identity(), raw, out)
		switch {
		case streamCtx.Err() != nil:
		case err == nil:
			h.goodbye(property.ShuttingDown, "", nil)
			_ = h.Close() // ends the connection
		case !out.accepted:
			refusal := property.RefusalOf(typed(err), 0)
			ack := packets.NewControlPacket(packets.SUBACK)
			suback := ack.Content.(*packets.Suback)
			suback.PacketID, suback.Reasons = s.PacketID, []byte{byte(refusal.Reason)}
			suback.Properties.ReasonString, suback.Properties.User = refusal.Text, users(refusal.Properties)
			h.write(ack)
		default:
			refusal := property.RefusalOf(typed(err), 0)
			h.goodbye(refusal.Reason, refusal.Text, refusal.Properties)
		}
	}()
}

type hawserStream struct {
	h         *hawserPeer
	ctx       context.Context
	subscribe *packets.Subscribe
	filter    topic.Topic
	accepted  bool
}

func (s *hawserStream) Accept(a transport.Accepted) error {
	s.accepted = true
	s.h.grant(s.subscribe, property.Accepted(a)...)
	return nil
}

func (s *hawserStream) Send(parts ...[]byte) error {
	var b []byte
	for _, p := range parts {
		b = append(b, p...)
	}
	if codec.IsHeartbeat(b) {
		return nil
	}
	m, err := codec.MessageOfProto(b)
	if err != nil {
		return err
	}
	name, err := s.filter.Fill("source1", "cluster1")
	if err != nil {
		return err
	}
	select {
	case s.h.window <- struct{}{}:
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
	id := uint16(s.h.id.Add(1)%60000 + 1)
	if !s.h.publish(id, name, m) {
		return errors.New("the client is gone")
	}
	return nil
}
