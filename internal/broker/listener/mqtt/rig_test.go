package mqtt_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"go.uber.org/goleak"

	"github.com/hawser-io/hawser/internal/broker/listener"
	"github.com/hawser-io/hawser/internal/broker/listener/grpc"
	"github.com/hawser-io/hawser/internal/broker/listener/mqtt"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is the maximum time that a test waits for an event.
const patience = 20 * time.Second

var (
	source1 = identity.Identity{Role: identity.Source, Name: "hub1"}
	source2 = identity.Identity{Role: identity.Source, Name: "hub2"}
	agent1  = identity.Identity{Role: identity.Agent, Name: "cluster1"}
	viewer  = identity.Identity{Role: identity.Viewer, Name: "people"}
)

// server is a transport.Server of functions.
type server struct {
	publish   func(ctx context.Context, p transport.Peer, event []byte, subscription string) (transport.Receipt, error)
	subscribe func(ctx context.Context, p transport.Peer, r transport.RawSubscription, out transport.Stream) error
}

func (s server) Publish(ctx context.Context, p transport.Peer, event []byte, subscription string) (transport.Receipt, error) {
	return s.publish(ctx, p, event, subscription)
}

func (s server) Subscribe(ctx context.Context, p transport.Peer, r transport.RawSubscription, out transport.Stream) error {
	return s.subscribe(ctx, p, r, out)
}

// accepts is a server that accepts each publish, and runs each subscription until its context ends.
var accepts = server{
	publish: func(context.Context, transport.Peer, []byte, string) (transport.Receipt, error) {
		return transport.Receipt{Outcome: codec.OutcomeAccepted, Revision: 7}, nil
	},
	subscribe: func(ctx context.Context, _ transport.Peer, _ transport.RawSubscription, out transport.Stream) error {
		if err := out.Accept(transport.Accepted{SubscriptionID: "s1", Protocol: transport.Protocol, Resync: codec.ResyncList, StoreID: "e", MaxEventBytes: 1 << 20}); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	},
}

// site is a port with the gRPC front and the MQTT front.
type site struct {
	t      testing.TB
	addr   string
	ca     *testkit.CA // nil: plaintext
	panics chan struct{}
	port   *grpc.Front
	stop   context.CancelFunc
	ended  chan error
}

// open opens a port that is served until the test ends.
func open(t testing.TB, s transport.Server, edit func(*grpc.Config, *mqtt.Config)) *site {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := &site{t: t, addr: l.Addr().String(), ca: testkit.NewCA(t), panics: make(chan struct{}, 8), ended: make(chan error, 2)}
	log := slog.New(slog.DiscardHandler)
	m := mqtt.Config{Server: testkit.Blocking{Server: s}, Log: log, OnPanic: func() { o.panics <- struct{}{} }}
	g := grpc.Config{
		Config: listener.Config{Listener: l, Log: log, Credentials: o.ca.Server(), Mapping: testkit.Mapping(source1, source2, viewer)},
		Server: testkit.Blocking{Server: s},
	}
	edit(&g, &m)
	if g.Insecure {
		o.ca, g.Credentials = nil, nil
	}
	front, err := mqtt.New(m)
	if err != nil {
		t.Fatal(err)
	}
	g.Other = front.Serve
	if o.port, err = grpc.New(g); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	o.stop = stop
	go func() { o.ended <- o.port.Run(ctx) }() // the result is received below
	go func() { o.ended <- front.Run(ctx) }()  // the result is received below
	t.Cleanup(func() {
		stop()
		for range 2 {
			if err := <-o.ended; err != nil {
				t.Errorf("port: %v", err)
			}
		}
	})
	return o
}

// cleartext changes nothing.
func cleartext(*grpc.Config, *mqtt.Config) {}

// peer is a client that can send arbitrary bytes.
type peer struct {
	t testing.TB
	net.Conn
}

// raw opens a connection and sends nothing. protocols are offered by ALPN.
func (s *site) raw(id identity.Identity, protocols ...string) *peer {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(patience))
	}
	if err == nil && s.ca != nil {
		conn, err = s.ca.Dial(conn, id, protocols...)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			s.t.Log(err)
		}
	})
	return &peer{s.t, conn}
}

// connect opens a connection and sends CONNECT, which edit may change. It returns the client and the answer.
func (s *site) connect(id identity.Identity, edit func(*packets.Packet)) (*peer, packets.Packet) {
	s.t.Helper()
	p := s.raw(id, "mqtt")
	c := connectPacket()
	edit(&c)
	p.send(c)
	return p, p.receive()
}

// join is connect with an unchanged CONNECT, which must be accepted.
func (s *site) join(id identity.Identity) *peer {
	s.t.Helper()
	p, ack := s.connect(id, func(*packets.Packet) {})
	if ack.FixedHeader.Type != packets.Connack || ack.ReasonCode != 0 {
		s.t.Fatalf("%s is answered %+v", id, ack)
	}
	return p
}

func connectPacket() packets.Packet {
	return packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Connect}, ProtocolVersion: 5,
		Connect: packets.ConnectParams{ProtocolName: []byte("MQTT"), Clean: true, Keepalive: 60, ClientIdentifier: "c"},
	}
}

// encoded returns the bytes of a packet.
func encoded(t testing.TB, p packets.Packet) []byte {
	t.Helper()
	var b bytes.Buffer
	p.ProtocolVersion = 5
	var err error
	switch p.FixedHeader.Type {
	case packets.Connect:
		err = p.ConnectEncode(&b)
	case packets.Publish:
		err = p.PublishEncode(&b)
	case packets.Puback:
		err = p.PubackEncode(&b)
	case packets.Subscribe:
		p.FixedHeader.Qos = 1
		err = p.SubscribeEncode(&b)
	case packets.Unsubscribe:
		p.FixedHeader.Qos = 1
		err = p.UnsubscribeEncode(&b)
	case packets.Pingreq:
		err = p.PingreqEncode(&b)
	case packets.Disconnect:
		err = p.DisconnectEncode(&b)
	}
	if err != nil || b.Len() == 0 {
		t.Fatalf("%+v: %v", p, err)
	}
	return b.Bytes()
}

// send sends packets in one write.
func (p *peer) send(all ...packets.Packet) {
	p.t.Helper()
	var b []byte
	for _, k := range all {
		b = append(b, encoded(p.t, k)...)
	}
	p.sendBytes(b)
}

// sendBytes sends bytes.
func (p *peer) sendBytes(b []byte) {
	p.t.Helper()
	if _, err := p.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

// receive returns the next packet.
func (p *peer) receive() packets.Packet {
	p.t.Helper()
	k, err := p.next()
	if err != nil {
		p.t.Fatal(err)
	}
	return k
}

func (p *peer) next() (k packets.Packet, err error) {
	var one [1]byte
	if _, err := io.ReadFull(p, one[:]); err != nil {
		return k, err
	}
	if err := k.FixedHeader.Decode(one[0]); err != nil {
		return k, err
	}
	k.ProtocolVersion = 5
	for shift := 0; ; shift += 7 {
		if _, err := io.ReadFull(p, one[:]); err != nil {
			return k, err
		}
		k.FixedHeader.Remaining |= int(one[0]&0x7F) << shift
		if one[0]&0x80 == 0 {
			break
		}
	}
	body := make([]byte, k.FixedHeader.Remaining)
	if _, err := io.ReadFull(p, body); err != nil {
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
	case packets.Unsuback:
		err = k.UnsubackDecode(body)
	case packets.Disconnect:
		err = k.DisconnectDecode(body)
	case packets.Pingresp:
	default:
		err = fmt.Errorf("packet of kind %d", k.FixedHeader.Type)
	}
	return k, err
}

// expect returns the next packet. The test fails if it is of another kind.
func (p *peer) expect(kind byte) packets.Packet {
	p.t.Helper()
	k := p.receive()
	if k.FixedHeader.Type != kind {
		p.t.Fatalf("got %s %#02x %q, want %s", packets.PacketNames[k.FixedHeader.Type], k.ReasonCode, k.Properties.ReasonString, packets.PacketNames[kind])
	}
	return k
}

// gone waits for the end of the connection and returns the last packet. Like every client, it closes a
// connection that the broker has ended.
func (p *peer) gone() (last packets.Packet) {
	p.t.Helper()
	for {
		k, err := p.next()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			p.t.Fatal("the connection does not end")
		}
		if err != nil {
			return last
		}
		if last = k; k.FixedHeader.Type == packets.Disconnect {
			if err := p.Close(); err != nil {
				p.t.Log(err)
			}
			return last
		}
	}
}

// user returns the value of a user property.
func user(k packets.Packet, key string) string {
	for _, u := range k.Properties.User {
		if u.Key == key {
			return u.Val
		}
	}
	return ""
}

// event returns a spec of a source for a cluster.
func event(t testing.TB, source, cluster, id string, version int32) codec.Message {
	t.Helper()
	return messageOf(t, codec.Builder{
		ID: "1", Time: time.Unix(7, 0), Source: source, Cluster: cluster,
		Type:        codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: codec.UpdateRequest}.String(),
		ContentType: codec.ContentTypeJSON, Data: []byte(`{"manifests":[]}`),
		Extensions: map[string]any{
			codec.ExtResourceID: id, codec.ExtResourceVersion: version,
			codec.ExtMetadata: fmt.Sprintf(`{"name":%q,"namespace":%q,"uid":%q,"generation":%d}`, id, cluster, id, version),
		},
	})
}

// status returns an agent's status of a work.
func status(t testing.TB, source, cluster, id string, version int32) codec.Message {
	t.Helper()
	return messageOf(t, codec.Builder{
		ID: "1", Time: time.Unix(7, 0), Source: cluster + "-agent", Cluster: cluster,
		Type:        codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Status, Action: codec.UpdateRequest}.String(),
		ContentType: codec.ContentTypeJSON, Data: []byte(`{"conditions":[]}`),
		Extensions: map[string]any{
			codec.ExtResourceID: id, codec.ExtResourceVersion: version, codec.ExtOriginalSource: source, codec.ExtSequenceID: fmt.Sprint(int(version)<<22 | 1<<12),
			codec.ExtMetadata: fmt.Sprintf(`{"name":%q,"namespace":%q,"uid":%q,"generation":%d}`, id, cluster, id, version),
		},
	})
}

func messageOf(t testing.TB, b codec.Builder) codec.Message {
	t.Helper()
	e, err := b.Event()
	if err != nil {
		t.Fatal(err)
	}
	m, err := codec.ToMessage(e)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// publish returns a message as a PUBLISH packet. more are additional user properties.
func publish(id uint16, topic string, m codec.Message, more ...packets.UserProperty) packets.Packet {
	k := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: min(byte(id), 1)}, PacketID: id, TopicName: topic, Payload: m.Payload,
		Properties: packets.Properties{ContentType: m.ContentType, User: more},
	}
	if id > 0 {
		k.FixedHeader.Qos = 1
	}
	for _, p := range m.Properties {
		k.Properties.User = append(k.Properties.User, packets.UserProperty{Key: p.Key, Val: p.Value})
	}
	return k
}

func subscribe(id uint16, filters ...string) packets.Packet {
	k := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Subscribe}, PacketID: id}
	for _, f := range filters {
		k.Filters = append(k.Filters, packets.Subscription{Filter: f, Qos: 1})
	}
	return k
}

// propertiesOf adds user properties to a packet.
func propertiesOf(k packets.Packet, kv ...string) packets.Packet {
	for i := 0; i < len(kv); i += 2 {
		k.Properties.User = append(k.Properties.User, packets.UserProperty{Key: kv[i], Val: kv[i+1]})
	}
	return k
}

func puback(id uint16, code byte) packets.Packet {
	return packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}, PacketID: id, ReasonCode: code}
}

// number returns a length as a variable byte integer.
func number(n int) []byte { return binary.AppendUvarint(nil, uint64(n)) }
