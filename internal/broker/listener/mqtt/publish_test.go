package mqtt_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/hawser-io/hawser/internal/broker/listener/grpc"
	"github.com/hawser-io/hawser/internal/broker/listener/mqtt"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// gated is a server that reports the start of each publish, and delays some publishes until the test releases
// them.
type gated struct {
	server
	entered chan string
	release map[string]chan struct{}
}

func newGated(ids ...string) *gated {
	g := &gated{server: accepts, entered: make(chan string, 1000), release: map[string]chan struct{}{}}
	for _, id := range ids {
		g.release[id] = make(chan struct{})
	}
	g.publish = func(ctx context.Context, _ transport.Peer, event []byte, _ string) (transport.Receipt, error) {
		e, err := codec.ParseEnvelope(event)
		if err != nil {
			return transport.Receipt{}, err
		}
		name := fmt.Sprintf("%s/%d", e.ResourceID, e.Version)
		g.entered <- name
		if held := g.release[name]; held != nil {
			select {
			case <-held:
			case <-ctx.Done():
				return transport.Receipt{}, ctx.Err()
			}
		}
		return transport.Receipt{Outcome: codec.OutcomeAccepted, Revision: uint64(e.Version)}, nil
	}
	return g
}

func (g *gated) wait(t *testing.T) string {
	t.Helper()
	select {
	case name := <-g.entered:
		return name
	case <-time.After(patience):
		t.Fatal("no publish arrives")
		return ""
	}
}

// TestPublish_TogetherAndAnsweredInOrder checks that publishes run in parallel, so that they are committed
// together, and are acknowledged in the order of their arrival.
func TestPublish_TogetherAndAnsweredInOrder(t *testing.T) {
	g := newGated("w1/1")
	source := open(t, g, cleartext).join(source1)
	source.send(
		publish(5, specs1, event(t, "hub1", "cluster1", "w1", 1)), publish(9, specs1, event(t, "hub1", "cluster1", "w2", 2)),
		publish(2, specs1, event(t, "hub1", "cluster1", "w3", 3)))
	for range 3 { // all start, although the first one is not answered
		g.wait(t)
	}
	source.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	source.expect(packets.Pingresp) // no PUBACK arrives before that of the first publish
	close(g.release["w1/1"])
	for n, id := range []uint16{5, 9, 2} {
		if k := source.expect(packets.Puback); k.PacketID != id || k.ReasonCode != 0 || user(k, codec.HeaderRevision) != fmt.Sprint(n+1) {
			t.Errorf("%d: %+v", id, k)
		}
	}
}

// TestPublish_OneResourceInOrder checks that publishes of one work run one after the other, because their order
// decides.
func TestPublish_OneResourceInOrder(t *testing.T) {
	g := newGated("w1/1", "w1/2")
	source := open(t, g, cleartext).join(source1)
	source.send(
		publish(1, specs1, event(t, "hub1", "cluster1", "w1", 1)), publish(2, specs1, event(t, "hub1", "cluster1", "w1", 2)),
		publish(3, specs1, event(t, "hub1", "cluster1", "w1", 3)), publish(4, specs1, event(t, "hub1", "cluster1", "w2", 1)))
	got := map[string]bool{g.wait(t): true, g.wait(t): true}
	if !got["w1/1"] || !got["w2/1"] {
		t.Fatalf("%v were handed on", got)
	}
	close(g.release["w1/1"])
	if name := g.wait(t); name != "w1/2" {
		t.Errorf("then %s", name)
	}
	close(g.release["w1/2"])
	if name := g.wait(t); name != "w1/3" {
		t.Errorf("then %s", name)
	}
	for id := range uint16(4) {
		if k := source.expect(packets.Puback); k.PacketID != id+1 {
			t.Errorf("%d before %d", k.PacketID, id+1)
		}
	}
}

// TestPublish_Refusals checks that a rejection is in the PUBACK, with the details that the client requested.
func TestPublish_Refusals(t *testing.T) {
	s := accepts
	s.publish = func(context.Context, transport.Peer, []byte, string) (transport.Receipt, error) {
		return transport.Receipt{Revision: 3}, &transport.Error{
			Code: transport.CodeOverloaded, Next: transport.NextBackOff, Delay: 1500 * time.Millisecond,
			Attribute: "data", Message: "too much", Hint: "wait", Err: fmt.Errorf("secret"),
		}
	}
	o := open(t, s, cleartext)
	good := publish(7, specs1, event(t, "hub1", "cluster1", "w1", 1))
	source := o.join(source1)
	source.send(good)
	k := source.expect(packets.Puback)
	if k.ReasonCode != 0x97 || k.Properties.ReasonString != "too much" || user(k, "hawser-code") != "overloaded" || user(k, "hawser-next-step") != "back_off" ||
		user(k, "hawser-delay") != "1.5s" || user(k, "hawser-attribute") != "data" || user(k, "hawser-hint") != "wait" || user(k, codec.HeaderRevision) != "3" {
		t.Errorf("%#02x %q %v", k.ReasonCode, k.Properties.ReasonString, k.Properties.User)
	}
	for name, edit := range map[string]func(*packets.Packet){
		"no problem information": func(k *packets.Packet) { k.Properties.RequestProblemInfoFlag = true },
		"small packets":          func(k *packets.Packet) { k.Properties.MaximumPacketSize = 100 },
	} {
		terse, _ := o.connect(source1, func(k *packets.Packet) { k.Connect.ClientIdentifier = name; edit(k) })
		terse.send(good)
		if k := terse.expect(packets.Puback); k.PacketID != 7 || k.ReasonCode != 0x97 || len(k.Properties.User) > 0 || k.Properties.ReasonString != "" {
			t.Errorf("%s: %#02x %+v", name, k.ReasonCode, k.Properties)
		}
	}
}

// TestPublish_Contradictions checks publishes that are rejected before they reach the server.
func TestPublish_Contradictions(t *testing.T) {
	s := accepts
	s.publish = func(context.Context, transport.Peer, []byte, string) (transport.Receipt, error) {
		t.Error("it reached the server")
		return transport.Receipt{}, nil
	}
	source := open(t, s, cleartext).join(source1)
	spec := event(t, "hub1", "cluster1", "w1", 1)
	twice := spec
	twice.Properties = append(twice.Properties[:len(twice.Properties):len(twice.Properties)], codec.Property{Key: "ce-source", Value: "hub1"})
	structured := codec.Message{ContentType: "application/cloudevents+json", Payload: []byte(`{"specversion":"1.0","id":"1","source":"hub2","type":"io.open-cluster-management.works.v1alpha1.manifestbundles.spec.update_request","clustername":"cluster1","resourceid":"w1","resourceversion":1,"metadata":"{}"}`)}
	for name, c := range map[string]struct {
		packet packets.Packet
		code   byte
		reason string
	}{
		"another source's topic":  {publish(1, "sources/hub2/clusters/cluster1/sourceevents", spec), 0x87, "denied"},
		"another cluster's topic": {publish(1, "sources/hub1/clusters/cluster2/sourceevents", spec), 0x87, "denied"},
		"agents' topic":           {publish(1, statuses1, spec), 0x87, "denied"},
		"outside the grammar":     {publish(1, "sources/hub1", spec), 0x90, "invalid"},
		"another event's source":  {publish(1, specs1, event(t, "hub2", "cluster1", "w1", 1)), 0x87, "denied"},
		"another source in JSON":  {publish(1, specs1, structured), 0x87, "denied"},
		"no event":                {publish(1, specs1, codec.Message{}), 0x99, "invalid"},
		"a source twice":          {publish(1, specs1, twice), 0x99, "invalid"},
	} {
		source.send(c.packet)
		if k := source.expect(packets.Puback); k.ReasonCode != c.code || user(k, "hawser-code") != c.reason || k.Properties.ReasonString == "" {
			t.Errorf("%s: %#02x %q %v", name, k.ReasonCode, k.Properties.ReasonString, k.Properties.User)
		}
	}
	source.send(publish(0, "sources/hub2/clusters/cluster1/sourceevents", spec), packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	source.expect(packets.Pingresp) // QoS 0 gets no answer
}

// TestPublish_AtMostOnce checks that a publish of QoS 0 reaches the server and is not acknowledged.
func TestPublish_AtMostOnce(t *testing.T) {
	g := newGated()
	source := open(t, g, cleartext).join(source1)
	source.send(publish(0, specs1, event(t, "hub1", "cluster1", "w1", 1)), packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	source.expect(packets.Pingresp)
	g.wait(t)
}

// TestPublish_Panic checks that a panic ends one publish, and is counted.
func TestPublish_Panic(t *testing.T) {
	s := accepts
	s.publish = func(context.Context, transport.Peer, []byte, string) (transport.Receipt, error) { panic("oops") }
	o := open(t, s, cleartext)
	source := o.join(source1)
	source.send(publish(1, specs1, event(t, "hub1", "cluster1", "w1", 1)))
	if k := source.expect(packets.Puback); k.ReasonCode != 0x80 || strings.Contains(k.Properties.ReasonString, "oops") {
		t.Errorf("%#02x %q", k.ReasonCode, k.Properties.ReasonString)
	}
	<-o.panics
}

// TestPublish_Violations checks that a violation of MQTT ends the connection.
func TestPublish_Violations(t *testing.T) {
	g := newGated("w1/1")
	o := open(t, g, func(_ *grpc.Config, m *mqtt.Config) { m.MaxPacketBytes = 1 << 20 })
	good := publish(7, specs1, event(t, "hub1", "cluster1", "w1", 1))
	edit := func(f func(*packets.Packet)) []byte {
		k := good
		f(&k)
		return encoded(t, k)
	}
	many := []byte{}
	for id := range uint16(257) {
		many = append(many, encoded(t, publish(id+1, specs1, event(t, "hub1", "cluster1", "w1", 1)))...)
	}
	for name, c := range map[string]struct {
		bytes []byte
		code  byte
	}{
		"QoS 2":                   {edit(func(k *packets.Packet) { k.FixedHeader.Qos = 2 }), 0x9B},
		"QoS 3":                   {append([]byte{0x36}, encoded(t, good)[1:]...), 0x81},
		"retained":                {edit(func(k *packets.Packet) { k.FixedHeader.Retain = true }), 0x9A},
		"topic alias":             {edit(func(k *packets.Packet) { k.Properties.TopicAlias, k.Properties.TopicAliasFlag = 1, true }), 0x94},
		"subscription identifier": {edit(func(k *packets.Packet) { k.Properties.SubscriptionIdentifier = []int{1} }), 0xA1},
		"identifier in use":       {append(encoded(t, good), encoded(t, good)...), 0x82},
		"more than fit":           {many, 0x93},
		"too large":               {append([]byte{0x32}, number(2<<20)...), 0x95},
		"length of five bytes":    {[]byte{0x32, 0xFF, 0xFF, 0xFF, 0xFF, 1}, 0x81},
		"long topic":              {edit(func(k *packets.Packet) { k.TopicName = strings.Repeat("x", 2000) }), 0x90},
		"second CONNECT":          {encoded(t, connectPacket()), 0x82},
		"PUBREC":                  {[]byte{0x50, 2, 0, 1}, 0x82},
		"AUTH":                    {[]byte{0xF0, 0}, 0x82},
		"kind 0":                  {[]byte{0x00, 0}, 0x82},
		"a server's packet":       {[]byte{0xD0, 0}, 0x82},
	} {
		p, _ := o.connect(source1, func(k *packets.Packet) { k.Connect.ClientIdentifier = name })
		p.sendBytes(c.bytes)
		if k := p.gone(); k.FixedHeader.Type != packets.Disconnect || k.ReasonCode != c.code || k.Properties.ReasonString == "" {
			t.Errorf("%s: %s %#02x %q", name, packets.PacketNames[k.FixedHeader.Type], k.ReasonCode, k.Properties.ReasonString)
		}
	}
}

// TestPublish_ManyBytes checks that data of an agent beyond 16 MiB is read at 4 MiB per second, and nothing is
// lost.
func TestPublish_ManyBytes(t *testing.T) {
	o := open(t, accepts, cleartext)
	agent := o.join(agent1)
	large := status(t, "hub1", "cluster1", "w1", 1)
	large.Payload = make([]byte, 6<<20)
	began := time.Now()
	for n := range uint16(3) {
		agent.send(publish(n+1, statuses1, large))
		if k := agent.expect(packets.Puback); k.ReasonCode != 0 {
			t.Errorf("%d: %#02x %q", n, k.ReasonCode, k.Properties.ReasonString)
		}
	}
	if took := time.Since(began); took < 400*time.Millisecond {
		t.Errorf("2 MiB more than may come at once took %v", took)
	}
}
