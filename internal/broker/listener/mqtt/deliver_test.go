package mqtt_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/hawser-io/hawser/pkg/codec"
)

const allSpecs = "sources/+/clusters/cluster1/sourceevents"

// subscribed returns an agent and its subscription at the server.
func subscribed(t *testing.T, edit func(*packets.Packet), filter string) (*peer, *called) {
	t.Helper()
	s, all := calls()
	p, _ := open(t, s, cleartext).connect(agent1, edit)
	p.send(subscribe(1, filter))
	if k := p.expect(packets.Suback); k.ReasonCodes[0] != 1 {
		t.Fatalf("%x", k.ReasonCodes)
	}
	return p, await(t, all)
}

// TestDeliver_Window checks that the Receive Maximum of the client bounds the unacknowledged deliveries. At the
// bound Send blocks, and further events wait in the delivery queue.
func TestDeliver_Window(t *testing.T) {
	agent, call := subscribed(t, func(k *packets.Packet) { k.Properties.ReceiveMaximum = 2 }, allSpecs)
	sent, e := make(chan int, 1000), wire(t, event(t, "hub1", "cluster1", "w1", 1))
	go func() { // until the test ends
		for n := 0; call.out.Send(e) == nil; n++ {
			sent <- n
		}
		close(sent)
	}()
	one, two := agent.expect(packets.Publish), agent.expect(packets.Publish)
	if one.FixedHeader.Qos != 1 || one.PacketID == two.PacketID || one.PacketID == 0 {
		t.Errorf("%+v, %+v", one.FixedHeader, two.FixedHeader)
	}
	agent.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	agent.expect(packets.Pingresp) // the broker sends no third event before this answer
	agent.send(puback(two.PacketID, 0))
	three := agent.expect(packets.Publish)
	if three.PacketID == one.PacketID {
		t.Error("the identifier of a delivery that is not acknowledged is used again")
	}
	agent.send(puback(99, 0), puback(one.PacketID, 0x10), puback(three.PacketID, 0)) // 99 is not a delivery
	agent.expect(packets.Publish)
	agent.expect(packets.Publish)
	if n := len(sent); n > 2+2*16+4 {
		t.Errorf("%d events were taken from the server", n)
	}
	if err := agent.Close(); err != nil {
		t.Error(err)
	}
	for range sent {
	}
}

// TestDeliver_AtMostOnce checks that a client with QoS 0 sends no PUBACK.
func TestDeliver_AtMostOnce(t *testing.T) {
	s, all := calls()
	agent := open(t, s, cleartext).join(agent1)
	k := subscribe(1, allSpecs)
	k.Filters[0].Qos = 0
	agent.send(k)
	if k := agent.expect(packets.Suback); k.ReasonCodes[0] != 0 {
		t.Fatalf("%x", k.ReasonCodes)
	}
	call := await(t, all)
	for range 600 { // more than the maximum window
		if err := call.out.Send(wire(t, event(t, "hub1", "cluster1", "w1", 1))); err != nil {
			t.Fatal(err)
		}
		if k := agent.expect(packets.Publish); k.FixedHeader.Qos != 0 || k.PacketID != 0 {
			t.Fatalf("%+v", k.FixedHeader)
		}
	}
}

// TestDeliver_NotAccepted checks that a client that rejects an event must subscribe again to get it.
func TestDeliver_NotAccepted(t *testing.T) {
	agent, call := subscribed(t, func(*packets.Packet) {}, allSpecs)
	if err := call.out.Send(wire(t, event(t, "hub1", "cluster1", "w1", 1))); err != nil {
		t.Fatal(err)
	}
	agent.send(puback(agent.expect(packets.Publish).PacketID, 0x83))
	if k := agent.gone(); k.ReasonCode != 0x83 || !strings.Contains(k.Properties.ReasonString, "not accepted") {
		t.Errorf("%#02x %q", k.ReasonCode, k.Properties.ReasonString)
	}
	await(t, call.ctx.Done())
}

// TestDeliver_TooLarge checks an event above the client's Maximum Packet Size. It is never skipped: the
// connection ends, and the reason names the event.
func TestDeliver_TooLarge(t *testing.T) {
	agent, call := subscribed(t, func(k *packets.Packet) { k.Properties.MaximumPacketSize = 2000 }, allSpecs)
	small, large := event(t, "hub1", "cluster1", "w1", 1), event(t, "hub1", "cluster1", "the-large-one", 1)
	large.Payload = []byte(strings.Repeat(" ", 2000))
	if err := call.out.Send(wire(t, small)); err != nil {
		t.Fatal(err)
	}
	err := call.out.Send(wire(t, large))
	if err == nil {
		t.Fatal("it was sent")
	}
	call.end <- err // a broker ends the subscription with this error
	agent.expect(packets.Publish)
	if k := agent.gone(); k.ReasonCode != 0x95 || !strings.Contains(k.Properties.ReasonString, "the-large-one") || user(k, "hawser-code") != "too_large" {
		t.Errorf("%#02x %q %v", k.ReasonCode, k.Properties.ReasonString, k.Properties.User)
	}
}

// TestDeliver_Heartbeat checks that no heartbeat is sent: MQTT has its own keep alive.
func TestDeliver_Heartbeat(t *testing.T) {
	agent, call := subscribed(t, func(*packets.Packet) {}, allSpecs)
	for _, e := range [][]byte{codec.Heartbeat("h"), wire(t, event(t, "hub1", "cluster1", "w1", 1))} {
		if err := call.out.Send(e); err != nil {
			t.Fatal(err)
		}
	}
	if k := agent.expect(packets.Publish); user(k, "ce-resourceid") != "w1" {
		t.Errorf("%+v", k.Properties.User)
	}
}

// TestDeliver_LongAttribute checks that an event with an attribute too long for a property is sent in
// structured mode.
func TestDeliver_LongAttribute(t *testing.T) {
	agent, call := subscribed(t, func(*packets.Packet) {}, allSpecs)
	long := event(t, "hub1", "cluster1", "w1", 1)
	for i, p := range long.Properties {
		if p.Key == "ce-metadata" {
			long.Properties[i].Value = `{"name":"w1","annotations":{"a":"` + strings.Repeat("x", 70_000) + `"}}`
		}
	}
	if err := call.out.Send(wire(t, long)); err != nil {
		t.Fatal(err)
	}
	k := agent.expect(packets.Publish)
	m := codec.Message{ContentType: k.Properties.ContentType, Payload: k.Payload}
	got, err := codec.FromMessage(m)
	if err != nil || k.TopicName != specs1 {
		t.Fatalf("%s %s: %v", k.TopicName, m.ContentType, err)
	}
	want, err := codec.FromMessage(long)
	if err != nil || got.String() != want.String() {
		t.Errorf("%v: the event changed on its way", err)
	}
}

// TestDeliver_Topics checks that the topic is the subscriber's own filter with its wildcards replaced. Events
// of another source or cluster are not sent, except for requests of the broker.
func TestDeliver_Topics(t *testing.T) {
	spec := func(source string) codec.Message { return event(t, source, "cluster1", "w1", 1) }
	req := messageOf(t, codec.Builder{
		ID: "1", Time: time.Unix(7, 0), Source: "hawser-broker", Cluster: "cluster1",
		Type: codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Status, Action: codec.ResyncRequest}.String(),
	})
	for name, c := range map[string]struct {
		filter string
		events []codec.Message
		want   []string
	}{
		"all sources": {allSpecs, []codec.Message{spec("hub1"), spec("a/b+"), req}, []string{specs1, "sources/a%2Fb%2B/clusters/cluster1/sourceevents", "sources/hawser-broker/clusters/cluster1/sourceevents"}},
		"one source":  {"from/hub2/to/cluster1/sourceevents", []codec.Message{spec("hub1"), spec("hub2"), req}, []string{"from/hub2/to/cluster1/sourceevents", "from/hub2/to/cluster1/sourceevents"}},
		"all clusters": {
			"sources/hub1/clusters/+/agentevents",
			[]codec.Message{status(t, "hub1", "cluster1", "w1", 1), status(t, "hub1", "cluster2", "w1", 1)},
			[]string{statuses1, "sources/hub1/clusters/cluster2/agentevents"},
		},
		"one cluster": {
			"sources/hub1/clusters/cluster2/agentevents",
			[]codec.Message{status(t, "hub1", "cluster1", "w1", 1), status(t, "hub1", "cluster2", "w1", 1)},
			[]string{"sources/hub1/clusters/cluster2/agentevents"},
		},
	} {
		agent, call := subscribed(t, func(*packets.Packet) {}, c.filter)
		for _, m := range c.events {
			if err := call.out.Send(wire(t, m)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		for _, want := range c.want {
			if k := agent.expect(packets.Publish); k.TopicName != want {
				t.Errorf("%s: on %s, want %s", name, k.TopicName, want)
			}
		}
		agent.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
		agent.expect(packets.Pingresp)
	}
}

// TestDeliver_NoSubscribers checks that a stream ends with its connection.
func TestDeliver_NoSubscribers(t *testing.T) {
	agent, call := subscribed(t, func(*packets.Packet) {}, allSpecs)
	if err := agent.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, call.ctx.Done())
	if err := call.out.Send(wire(t, event(t, "hub1", "cluster1", "w1", 1))); err == nil || context.Cause(call.ctx) == nil {
		t.Errorf("%v", err)
	}
}
