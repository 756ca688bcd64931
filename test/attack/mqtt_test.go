//go:build linux

package attack

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/hawser-io/hawser/internal/pki"
)

// TestMQTT_Lengths: packets that announce 15 MiB and never end cost no more than the received bytes.
func TestMQTT_Lengths(t *testing.T) { attack(t, "mqttlengths") }

// TestMQTT_Properties: packets full of the longest properties cost no more to read than their bytes.
func TestMQTT_Properties(t *testing.T) { attack(t, "mqttproperties") }

// TestMQTT_Storm: a client subscribes without end, to allowed and forbidden topics. It publishes on topics of
// others, and acknowledges messages that were never sent. It blocks no other client.
func TestMQTT_Storm(t *testing.T) { attack(t, "mqttstorm") }

// TestMQTT_SlowReading: the broker keeps no answers for a client that requests them and reads none.
func TestMQTT_SlowReading(t *testing.T) { attack(t, "mqttslow") }

// TestMQTT_HalfPackets: connections that stop within a packet are few, and end soon.
func TestMQTT_HalfPackets(t *testing.T) { attack(t, "mqtthalves") }

// TestMQTT_PacketIDs: a client uses packet identifiers that are in use, invalid, or more than its limit. It
// loses its connection and costs no more.
func TestMQTT_PacketIDs(t *testing.T) { attack(t, "mqttids") }

// mqtt opens a connection, sends CONNECT and discards the answers.
func (t target) mqtt(ctx context.Context, id string) (net.Conn, error) {
	c, err := t.unread(ctx, id)
	if err != nil {
		return nil, err
	}
	go func() { // ends with the connection
		_, _ = io.Copy(io.Discard, c) // any error ends it
		_ = c.Close()
		t.load.add("connections ended", 1)
	}()
	return c, nil
}

// unread is mqtt without a reader of the answers.
func (t target) unread(ctx context.Context, id string) (net.Conn, error) {
	config := t.configOf(pki.Agent, evil)
	config.NextProtos = []string{"mqtt"}
	c, err := t.secure(ctx, config)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = c.Close() })
	hello := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Connect}, ProtocolVersion: 5,
		Connect: packets.ConnectParams{ProtocolName: []byte("MQTT"), Clean: true, Keepalive: 60, ClientIdentifier: id},
	}
	var b bytes.Buffer
	if err = hello.ConnectEncode(&b); err == nil {
		_, err = c.Write(b.Bytes())
	}
	if err != nil {
		_ = c.Close() // CONNECT failed
		return nil, err
	}
	return c, nil
}

// mqttLengths starts a publish of 15 MiB on each of 16 connections, and sends all but its end.
func mqttLengths(ctx context.Context, t target) error {
	const size = 15 << 20
	head := append(binary.AppendUvarint([]byte{0x32}, size), 0, 1, 'x', 0, 1)
	piece := make([]byte, 64<<10)
	return sideBySide(ctx, 16, again, func(ctx context.Context) error {
		c, err := t.mqtt(ctx, "")
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(head)
		for sent := 0; err == nil && sent < size-2*len(piece); sent += len(piece) {
			_, err = c.Write(piece)
			t.load.add("KiB", int64(len(piece)>>10))
		}
		if err == nil {
			hold(ctx, c)
		}
		return err
	})
}

// mqttProperties publishes packets of 9 MiB that contain only user properties.
func mqttProperties(ctx context.Context, t target) error {
	k := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 1}, ProtocolVersion: 5, PacketID: 1,
		TopicName: "sources/" + source + "/clusters/" + evil + "/agentevents",
	}
	for range 140 {
		k.Properties.User = append(k.Properties.User, packets.UserProperty{Key: "ce-x", Val: string(bytes.Repeat([]byte("x"), 65535))})
	}
	return t.repeat(ctx, 4, "packets of 9 MiB", k)
}

// mqttSlow sends subscribes with the longest possible answers, and reads no answer.
func mqttSlow(ctx context.Context, t target) error {
	var all []packets.Packet // a rejection has a reason, and is longer than its request
	for id := range uint16(400) {
		k := statusRequest(packets.Subscribe, "#", "sources/+/clusters/c1/sourceevents")
		k.PacketID = id + 1
		all = append(all, k)
	}
	many, err := encode(all...)
	if err != nil {
		return err
	}
	return sideBySide(ctx, 16, again, func(ctx context.Context) error {
		c, err := t.unread(ctx, "")
		if err != nil {
			return err
		}
		defer c.Close()
		for err == nil {
			_, err = c.Write(many)
			t.load.add("questions", int64(len(all)))
		}
		return err
	})
}

// mqttHalves sends incomplete packets byte by byte, of SUBSCRIBE and of PUBLISH. It keeps every second
// connection open.
func mqttHalves(ctx context.Context, t target) error {
	b, err := encode(statusRequest(packets.Subscribe, "#"), foreign(1))
	if err != nil {
		return err
	}
	return sideBySide(ctx, 32, again, func(ctx context.Context) error {
		for n := 1; n < len(b) && ctx.Err() == nil; n += 7 {
			c, err := t.mqtt(ctx, "")
			if err != nil {
				return err
			}
			for i := 0; err == nil && i < n; i++ {
				_, err = c.Write(b[i : i+1])
			}
			if n%2 == 0 && err == nil {
				hold(ctx, c)
			}
			_ = c.Close()
			t.load.add("halves", 1)
		}
		return nil
	})
}

// mqttIDs violates each rule for packet identifiers, repeatedly.
func mqttIDs(ctx context.Context, t target) error {
	unasked := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}, ProtocolVersion: 5, PacketID: 9}
	var flood []packets.Packet // more than may be in flight
	for id := range uint16(1000) {
		flood = append(flood, foreign(id+1))
	}
	var tricks [][]byte
	for _, trick := range [][]packets.Packet{{foreign(7), foreign(7), foreign(7)}, {foreign(3), statusRequest(packets.Subscribe, "#"), statusRequest(packets.Unsubscribe, "#")}, {unasked, unasked}, flood} {
		b, err := encode(trick...)
		if err != nil {
			return err
		}
		tricks = append(tricks, b)
	}
	none := bytes.Clone(tricks[0]) // identifier 0
	if at := bytes.Index(none, []byte{0, 7}); at > 0 {
		none[at+1] = 0
	}
	tricks = append(tricks, none)
	return sideBySide(ctx, 16, again, func(ctx context.Context) error {
		for _, b := range tricks {
			c, err := t.mqtt(ctx, "")
			if err != nil {
				return err
			}
			for range 20 {
				if _, err = c.Write(b); err != nil {
					break // the expected end
				}
				t.load.add("tricks", 1)
			}
			_ = c.Close()
		}
		return nil
	})
}

// statusRequest returns a SUBSCRIBE or UNSUBSCRIBE with these filters.
func statusRequest(kind byte, filters ...string) packets.Packet {
	k := packets.Packet{FixedHeader: packets.FixedHeader{Type: kind, Qos: 1}, ProtocolVersion: 5, PacketID: 1}
	for _, f := range filters {
		k.Filters = append(k.Filters, packets.Subscription{Filter: f, Qos: 1})
	}
	return k
}

// foreign returns a publish on a topic of another cluster. Its QoS is 0 if id is 0, else 1.
func foreign(id uint16) packets.Packet {
	return packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: byte(min(id, 1))}, ProtocolVersion: 5, PacketID: id,
		TopicName:  fmt.Sprintf("sources/%s/clusters/%s/agentevents", source, cluster(int(id)%clusters)),
		Properties: packets.Properties{User: []packets.UserProperty{{Key: "ce-specversion", Val: "1.0"}, {Key: "ce-id", Val: "1"}}},
	}
}

// mqttStorm repeatedly sends packets that cost a broker more than their sender.
func mqttStorm(ctx context.Context, t target) error {
	id := func(kind byte) packets.Packet {
		return packets.Packet{FixedHeader: packets.FixedHeader{Type: kind}, ProtocolVersion: 5, PacketID: 1}
	}
	all := []packets.Packet{id(packets.Subscribe), id(packets.Subscribe), id(packets.Unsubscribe), id(packets.Puback)}
	for n := range 16 {
		own := fmt.Sprintf("sources/s%d/clusters/%s/sourceevents", n, evil)
		all[0].Filters = append(all[0].Filters, packets.Subscription{Filter: own, Qos: 1})
		all[2].Filters = append(all[2].Filters, packets.Subscription{Filter: own})
		for _, foreign := range []string{"#", "sources/+/clusters/+/sourceevents", "sources/+/clusters/c1/sourceevents"} {
			if len(all[1].Filters) < 16 {
				all[1].Filters = append(all[1].Filters, packets.Subscription{Filter: foreign, Qos: 1})
			}
		}
	}
	for n := range 100 {
		p := foreign(0)
		p.TopicName = fmt.Sprintf("sources/%s/clusters/%s/agentevents", source, cluster(n%clusters))
		all = append(all, p)
	}
	return t.repeat(ctx, 16, "rounds", all...)
}

// encode returns packets in their form on the wire.
func encode(all ...packets.Packet) ([]byte, error) {
	var b bytes.Buffer
	for _, k := range all {
		var err error
		switch k.FixedHeader.Type {
		case packets.Publish:
			err = k.PublishEncode(&b)
		case packets.Subscribe:
			k.FixedHeader.Qos = 1
			err = k.SubscribeEncode(&b)
		case packets.Unsubscribe:
			k.FixedHeader.Qos = 1
			err = k.UnsubscribeEncode(&b)
		case packets.Puback:
			err = k.PubackEncode(&b)
		}
		if err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

// repeat sends packets repeatedly on this number of connections.
func (t target) repeat(ctx context.Context, connections int, what string, all ...packets.Packet) error {
	b, err := encode(all...)
	if err != nil {
		return err
	}
	return sideBySide(ctx, connections, again, func(ctx context.Context) error {
		c, err := t.mqtt(ctx, "")
		if err != nil {
			return err
		}
		defer c.Close()
		for err == nil {
			_, err = c.Write(b)
			t.load.add(what, 1)
		}
		return err
	})
}
