package mqtt_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/hawser-io/hawser/pkg/transport"
)

const shared = "$share/workers/sources/hub1/clusters/+/agentevents"

// member connects a client and joins the group.
func member(t *testing.T, s *site, id string, window uint16) *peer {
	t.Helper()
	p, _ := s.connect(source1, func(k *packets.Packet) { k.Connect.ClientIdentifier, k.Properties.ReceiveMaximum = id, window })
	p.send(propertiesOf(subscribe(1, shared), "hawser-protocol", "2", "hawser-cursor", "e/t/1"))
	if k := p.expect(packets.Suback); k.ReasonCodes[0] != 1 {
		t.Fatalf("%x %q", k.ReasonCodes, k.Properties.ReasonString)
	}
	return p
}

// TestShare_OneMemberGetsEachStatus checks that a group is one subscription. Each status goes to one member,
// and to another one if that member leaves without a PUBACK.
func TestShare_OneMemberGetsEachStatus(t *testing.T) {
	s, all := calls()
	o := open(t, s, cleartext)
	one := member(t, o, "one", 3)
	call := await(t, all)
	if call.raw.Hello != (transport.Hello{}) || call.raw.Source != "hub1" {
		t.Errorf("a group resumes: %+v", call.raw)
	}
	two := member(t, o, "two", 3)
	sent := make(chan error, 1)
	const events = 5
	go func() { // the result is received below
		for n := range events {
			if err := call.out.Send(wire(t, status(t, "hub1", "cluster1", fmt.Sprint("w", n), 1))); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	if err := await(t, sent); err != nil { // one window alone is too small for all of them
		t.Fatal(err)
	}
	got := map[string]int{}
	if err := one.Close(); err != nil { // this member has acknowledged none of its deliveries
		t.Fatal(err)
	}
	for len(got) < events {
		k := two.expect(packets.Publish)
		if k.TopicName != statuses1 {
			t.Errorf("on %s", k.TopicName)
		}
		got[user(k, "ce-resourceid")]++
		two.send(puback(k.PacketID, 0))
	}
	for id, n := range got {
		if n != 1 {
			t.Errorf("%s came %d times", id, n)
		}
	}
	select {
	case <-call.ctx.Done():
		t.Error("the group ended although it has a member")
	default:
	}
	two.send(propertiesOf(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Unsubscribe}, PacketID: 9, Filters: packets.Subscriptions{{Filter: shared}}}))
	two.expect(packets.Unsuback)
	await(t, call.ctx.Done())
	member(t, o, "three", 3) // the new member creates a new group
	await(t, all)
}

// TestShare_Rules checks the filters that a group cannot have.
func TestShare_Rules(t *testing.T) {
	s, all := calls()
	o := open(t, s, cleartext)
	agent := o.join(agent1)
	agent.send(subscribe(1, "$share/g/sources/+/clusters/cluster1/sourceevents"))
	if k := agent.expect(packets.Suback); k.ReasonCodes[0] != 0x9E {
		t.Errorf("%x %q", k.ReasonCodes, k.Properties.ReasonString)
	}
	local := subscribe(2, "$share/g/sources/hub1/clusters/+/agentevents")
	local.Filters[0].NoLocal = true
	agent.send(local)
	if k := agent.gone(); k.ReasonCode != 0x82 {
		t.Errorf("%#02x", k.ReasonCode)
	}
	// When the server ends the group, all members end.
	one, two := member(t, o, "one", 3), member(t, o, "two", 3)
	call := await(t, all)
	call.end <- &transport.Error{Code: transport.CodeUnavailable, Message: "going away"}
	for _, p := range []*peer{one, two} {
		if k := p.gone(); k.ReasonCode != 0x8B {
			t.Errorf("%#02x", k.ReasonCode)
		}
	}
	// A client without the right gets the reason.
	denies := accepts
	denies.subscribe = func(context.Context, transport.Peer, transport.RawSubscription, transport.Stream) error {
		return &transport.Error{Code: transport.CodeDenied, Message: "not yours"}
	}
	o = open(t, denies, cleartext)
	p := o.join(source1)
	p.send(subscribe(1, shared))
	if k := p.expect(packets.Suback); k.ReasonCodes[0] != 0x87 {
		t.Errorf("%x", k.ReasonCodes)
	}
}
