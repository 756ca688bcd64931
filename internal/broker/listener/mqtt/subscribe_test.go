package mqtt_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// called is a subscription at the server, with the stream on which the test sends.
type called struct {
	peer transport.Peer
	raw  transport.RawSubscription
	ctx  context.Context
	out  transport.Stream
	end  chan error
}

// calls returns a server that accepts each subscription and passes it to the test.
func calls() (server, chan *called) {
	s, all := accepts, make(chan *called, 16)
	s.subscribe = func(ctx context.Context, p transport.Peer, r transport.RawSubscription, out transport.Stream) error {
		c := &called{peer: p, raw: r, ctx: ctx, out: out, end: make(chan error, 1)}
		if err := out.Accept(transport.Accepted{SubscriptionID: "s1", Protocol: r.Hello.Protocol, Resync: codec.ResyncList, StoreID: "e", MaxEventBytes: 9}); err != nil {
			return err
		}
		all <- c
		select {
		case err := <-c.end:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return s, all
}

func await[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal("it does not come")
		panic("unreachable")
	}
}

// wire returns an event in the form in which a server sends it.
func wire(t testing.TB, m codec.Message) []byte {
	t.Helper()
	b, err := m.Proto()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestSubscribe_Request checks that the properties of a Hawser client reach the server, and that its answer
// reaches the client.
func TestSubscribe_Request(t *testing.T) {
	s, all := calls()
	o := open(t, s, cleartext)
	agent := o.join(agent1)
	agent.send(propertiesOf(subscribe(3, "sources/+/consumers/cluster1/sourceevents"), "hawser-protocol", "2", "hawser-cursor", "e/t/1", "hawser-cluster-uid", "u"))
	k := agent.expect(packets.Suback)
	if k.PacketID != 3 || string(k.ReasonCodes) != "\x01" || user(k, "subscription-id") != "s1" || user(k, "hawser-protocol") != "2" ||
		user(k, "hawser-resync") != "list" || user(k, "hawser-store-id") != "e" || user(k, "hawser-max-event-bytes") != "9" {
		t.Errorf("%v %v", k.ReasonCodes, k.Properties.User)
	}
	got := await(t, all)
	want := transport.RawSubscription{
		Cluster: "cluster1", DataType: codec.ManifestBundles.String(), Hello: transport.Hello{Protocol: transport.Protocol, Cursor: "e/t/1", ClusterUID: "u"},
	}
	if diff := cmp.Diff(want, got.raw); diff != "" || got.peer.Role != "agent" || got.peer.Name != "cluster1" || got.peer.Conn == 0 {
		t.Errorf("%+v %s", got.peer, diff)
	}
	// A subscription to the works of one source has no cursor for all works.
	agent.send(propertiesOf(subscribe(4, "sources/hub1/consumers/cluster1/sourceevents"), "hawser-protocol", "2", "hawser-cursor", "e/t/1"))
	agent.expect(packets.Suback)
	if got := await(t, all); got.raw.Hello != (transport.Hello{}) {
		t.Errorf("%+v", got.raw)
	}
	source := o.join(source1)
	source.send(propertiesOf(subscribe(1, "sources/hub1/clusters/+/agentevents", "clusters/+/agentbroadcast"), "hawser-data-type", "x"))
	if k := source.expect(packets.Suback); string(k.ReasonCodes) != "\x01\x01" {
		t.Errorf("%v", k.ReasonCodes)
	}
	if got := await(t, all); got.raw != (transport.RawSubscription{Source: "hub1", DataType: "x"}) {
		t.Errorf("%+v", got.raw)
	}
}

// TestSubscribe_Refusals checks that each filter has its own code. The reason is that of the first rejected
// filter.
func TestSubscribe_Refusals(t *testing.T) {
	s := accepts
	s.subscribe = func(_ context.Context, _ transport.Peer, r transport.RawSubscription, _ transport.Stream) error {
		return &transport.Error{Code: transport.CodeDenied, Next: transport.NextStop, Message: "not yours: " + r.Cluster + r.Source}
	}
	agent := open(t, s, cleartext).join(agent1)
	for filter, want := range map[string]string{
		"sources/+/clusters/cluster2/sourceevents": "87 denied",
		"sources/hub1/clusters/+/agentevents":      "87 denied", // the topic belongs to a source
		"sources/+/clusters/+/sourceevents":        "87 denied",
		"sources/+/clusters/+/agentevents":         "87 denied",
		"#":                                        "8f invalid",
		"sources/#":                                "8f invalid",
		"$SYS/x":                                   "8f invalid",
		"+/+/+/+/+":                                "8f invalid",
		"sources/+/sourcebroadcast":                "1 ",
	} {
		agent.send(subscribe(1, filter))
		k := agent.expect(packets.Suback)
		if got := fmt.Sprintf("%x %s", k.ReasonCodes[0], user(k, "hawser-code")); got != want || k.ReasonCodes[0] >= 0x80 && k.Properties.ReasonString == "" {
			t.Errorf("%s: %s %q", filter, got, k.Properties.ReasonString)
		}
	}
	agent.send(subscribe(2, "sources/+/sourcebroadcast", "#", "sources/+/clusters/cluster2/sourceevents"))
	if k := agent.expect(packets.Suback); string(k.ReasonCodes) != "\x01\x8f\x87" || !strings.Contains(k.Properties.ReasonString, "grammar") && k.Properties.ReasonString == "" {
		t.Errorf("%x %q", k.ReasonCodes, k.Properties.ReasonString)
	}
}

// TestSubscribe_GivenUp checks that the subscription of an unsubscribed or replaced filter ends at the server,
// while the connection stays.
func TestSubscribe_GivenUp(t *testing.T) {
	s, all := calls()
	agent := open(t, s, cleartext).join(agent1)
	const filter = "sources/+/clusters/cluster1/sourceevents"
	agent.send(subscribe(1, filter))
	agent.expect(packets.Suback)
	first := await(t, all)
	agent.send(subscribe(2, filter))
	agent.expect(packets.Suback)
	second := await(t, all)
	await(t, first.ctx.Done())
	if err := first.out.Send(wire(t, event(t, "hub1", "cluster1", "w1", 1))); err == nil {
		t.Error("the first one still sends")
	}
	unsubscribe := subscribe(3, filter, "never/seen")
	unsubscribe.FixedHeader.Type = packets.Unsubscribe
	agent.send(unsubscribe)
	if k := agent.expect(packets.Unsuback); string(k.ReasonCodes) != "\x00\x11" {
		t.Errorf("%x", k.ReasonCodes)
	}
	await(t, second.ctx.Done())
	agent.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	agent.expect(packets.Pingresp)
}

// TestSubscribe_EndOfTheServer checks that the end of a subscription by the server ends the connection, after
// all earlier events.
func TestSubscribe_EndOfTheServer(t *testing.T) {
	s, all := calls()
	o := open(t, s, cleartext)
	for name, c := range map[string]struct {
		err    error
		code   byte
		reason string
	}{
		"going away": {&transport.Error{Code: transport.CodeUnavailable, Next: transport.NextBackOff, Delay: time.Second, Message: "going away"}, 0x8B, "unavailable"},
		"denied":     {&transport.Error{Code: transport.CodeDenied, Message: "no more"}, 0x87, "denied"},
		"untyped":    {errors.New("open /var/lib/secret"), 0x80, "internal"},
		"nil":        {nil, 0x8B, "unavailable"},
	} {
		agent, _ := o.connect(agent1, func(k *packets.Packet) {
			k.Connect.ClientIdentifier, k.Properties.RequestProblemInfoFlag = name, true // DISCONNECT may have a reason string anyway
		})
		agent.send(subscribe(1, "sources/+/clusters/cluster1/sourceevents"))
		agent.expect(packets.Suback)
		call := await(t, all)
		if err := call.out.Send(wire(t, event(t, "hub1", "cluster1", "w1", 1))); err != nil {
			t.Fatal(err)
		}
		call.end <- c.err
		agent.expect(packets.Publish)
		k := agent.expect(packets.Disconnect)
		if k.ReasonCode != c.code || user(k, "hawser-code") != c.reason || strings.Contains(k.Properties.ReasonString, "secret") {
			t.Errorf("%s: %#02x %q %v", name, k.ReasonCode, k.Properties.ReasonString, k.Properties.User)
		}
	}
}
