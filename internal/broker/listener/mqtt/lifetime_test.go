package mqtt_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/hawser-io/hawser/internal/broker/denylist"
	"github.com/hawser-io/hawser/internal/broker/listener/grpc"
	"github.com/hawser-io/hawser/internal/broker/listener/mqtt"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/testkit"
)

// TestEnds_Denied checks that a denied client loses its connection, and gets the reason when it reconnects.
func TestEnds_Denied(t *testing.T) {
	store := mem.Open(mem.Options{NewID: testkit.NewIDs("store")})
	defer store.Close()
	d := testkit.Denylist(t, store)
	s, all := calls()
	o := open(t, s, func(g *grpc.Config, _ *mqtt.Config) { g.Denials = d })
	agent, other := o.join(agent1), o.join(source1)
	agent.send(subscribe(1, allSpecs))
	agent.expect(packets.Suback)
	call := await(t, all)
	subject, err := denylist.ParseSubject("agent/cluster1")
	if err == nil {
		err = d.Deny(t.Context(), denylist.Denial{Subject: subject, At: time.Now()})
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := call.out.Send(wire(t, event(t, "hub1", "cluster1", "w1", 1))); err == nil {
		await(t, call.ctx.Done()) // the status did not reach the server
	}
	if k := agent.gone(); k.FixedHeader.Type == packets.Publish {
		t.Error("a denied client gets a work")
	}
	_, k := o.connect(agent1, func(*packets.Packet) {})
	if k.FixedHeader.Type != packets.Connack || k.ReasonCode != 0x87 || user(k, "hawser-code") != "unauthenticated" || user(k, "hawser-hint") != "an operator allows it again with: hawser allow agent/cluster1" {
		t.Errorf("%#02x %q %v", k.ReasonCode, k.Properties.ReasonString, k.Properties.User)
	}
	other.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	other.expect(packets.Pingresp)
}

// TestEnds_IssuedTooEarly checks that a certificate older than the earliest issue time of its cluster loses its
// connection and cannot reconnect. The answer has the next step.
func TestEnds_IssuedTooEarly(t *testing.T) {
	store := mem.Open(mem.Options{NewID: testkit.NewIDs("store")})
	defer store.Close()
	d := testkit.Denylist(t, store)
	s, all := calls()
	o := open(t, s, func(g *grpc.Config, _ *mqtt.Config) { g.Denials = d })
	agent := o.join(agent1)
	agent.send(subscribe(1, allSpecs))
	agent.expect(packets.Suback)
	call := await(t, all)
	if err := d.Raise(t.Context(), map[string]time.Time{"cluster1": time.Now().Add(2 * time.Second)}); err != nil {
		t.Fatal(err)
	}
	if err := call.out.Send(wire(t, event(t, "hub1", "cluster1", "w1", 1))); err == nil {
		await(t, call.ctx.Done()) // the status did not reach the server
	}
	if k := agent.gone(); k.FixedHeader.Type == packets.Publish {
		t.Error("a work is sent to a former certificate")
	}
	_, k := o.connect(agent1, func(*packets.Packet) {})
	if k.FixedHeader.Type != packets.Connack || k.ReasonCode != 0x87 || user(k, "hawser-attribute") != "certificate" || user(k, "hawser-hint") != "have the cluster join again with a new token: hawser token create prints how" {
		t.Errorf("%#02x %q %v", k.ReasonCode, k.Properties.ReasonString, k.Properties.User)
	}
}

// TestEnds_WithTheCertificate checks that a connection ends when its certificate expires.
func TestEnds_WithTheCertificate(t *testing.T) {
	var passed atomic.Int64
	o := open(t, accepts, func(g *grpc.Config, _ *mqtt.Config) {
		g.Now = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
	})
	agent := o.join(agent1)
	passed.Store(int64(2 * time.Hour)) // the certificate is valid for one hour
	if k := agent.gone(); k.FixedHeader.Type != 0 {
		t.Errorf("%+v", k)
	}
}
