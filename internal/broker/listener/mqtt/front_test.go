package mqtt_test

import (
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
)

const (
	specs1    = "sources/hub1/clusters/cluster1/sourceevents"
	statuses1 = "sources/hub1/clusters/cluster1/agentevents"
)

// TestBroker_SpecAndStatus checks a source and an agent at one broker.
func TestBroker_SpecAndStatus(t *testing.T) {
	b := testkit.StartBroker(t, testkit.Options{Port: true, Known: []identity.Identity{source1}})
	s := &site{t: t, addr: b.Addr, ca: b.CA}
	source, agent := s.join(source1), s.join(agent1)
	agent.send(subscribe(1, "sources/+/clusters/cluster1/sourceevents", "sources/+/sourcebroadcast"))
	if k := agent.expect(packets.Suback); string(k.ReasonCodes) != "\x01\x01" || user(k, codec.HeaderSubscriptionID) == "" {
		t.Fatalf("%v %v", k.ReasonCodes, k.Properties.User)
	}
	source.send(subscribe(1, "sources/hub1/clusters/+/agentevents"))
	source.expect(packets.Suback)
	source.send(publish(2, specs1, event(t, "hub1", "cluster1", "w1", 1)))
	if k := source.expect(packets.Puback); k.PacketID != 2 || k.ReasonCode != 0 || user(k, codec.HeaderOutcome) != codec.OutcomeAccepted || user(k, codec.HeaderRevision) == "" {
		t.Fatalf("%+v", k)
	}
	k := agent.expect(packets.Publish)
	if k.TopicName != specs1 || user(k, "ce-resourceid") != "w1" || user(k, "ce-resourceversion") != "1" || string(k.Payload) != `{"manifests":[]}` {
		t.Fatalf("%s %+v", k.TopicName, k.Properties.User)
	}
	agent.send(puback(k.PacketID, 0), publish(7, statuses1, status(t, "hub1", "cluster1", "w1", 1)))
	if k := agent.expect(packets.Puback); k.ReasonCode != 0 || user(k, codec.HeaderOutcome) != codec.OutcomeAccepted {
		t.Fatalf("%+v", k)
	}
	if k := source.expect(packets.Publish); k.TopicName != statuses1 || user(k, "ce-resourceid") != "w1" {
		t.Fatalf("%+v", k)
	}
}
