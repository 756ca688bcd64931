package mqtt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
)

// acks reads PUBACKs until the client leaves, and returns a channel with their ids in order.
func (p *peer) acks() <-chan uint16 {
	ids := make(chan uint16, 1000)
	go func() { // ends with the connection
		defer close(ids)
		for cp := p.read(); cp != nil; cp = p.read() {
			switch cp.Type {
			case packets.PUBACK:
				ids <- cp.PacketID()
			case packets.PINGREQ:
				p.write(packets.NewControlPacket(packets.PINGRESP))
			}
		}
	}()
	return ids
}

// TestSubscribe_AcknowledgesAcceptedTopics: a message is acknowledged after its handler returned. The order is
// that of arrival, also with dropped messages in between.
func TestSubscribe_AcknowledgesAcceptedTopics(t *testing.T) {
	m := messageOf(t, newEvent(1))
	acks, over := make(chan (<-chan uint16), 1), make(chan struct{})
	f := newFake(t, func(p *peer) {
		p.welcome(false)
		p.grant(p.expect(packets.SUBSCRIBE).Content.(*packets.Subscribe))
		ids := p.acks()
		acks <- ids
		p.publish(1, specTopic, m)
		p.publish(2, "sources/source9/clusters/cluster1/sourceevents", m) // dropped, and acknowledged behind the first
		p.publish(3, specTopic, m)
		<-over
	})
	defer close(over)
	entered, leave := make(chan struct{}), make(chan error)
	s := subscribe(t, dial(t, newDialer(t, options(f))), agentSubscription(), func(context.Context, codec.Event) error {
		entered <- struct{}{}
		return <-leave
	})
	ids := await(t, acks, "SUBSCRIBE")
	await(t, entered, "the first event")
	select {
	case id := <-ids:
		t.Fatalf("%d was acknowledged before the handler returned", id)
	default:
	}
	leave <- nil
	await(t, entered, "the second event")
	leave <- errors.New("disk full")
	if err := await(t, s.ended, "end"); err == nil || err.Error() != "disk full" {
		t.Errorf("ended with %v", err)
	}
	for _, want := range []uint16{1, 2} {
		if id := await(t, ids, "PUBACK"); id != want {
			t.Errorf("PUBACK of %d, want %d", id, want)
		}
	}
	select {
	case id := <-ids:
		t.Errorf("%d was acknowledged without being accepted", id)
	default:
	}
}

// TestSubscribe_ResumesStoredSession: messages that a broker stored for the client arrive before the SUBSCRIBE,
// and wait for the subscription.
func TestSubscribe_ResumesStoredSession(t *testing.T) {
	acks := make(chan uint16, 3)
	f := newFake(t, func(p *peer) {
		p.welcome(false, func(c *packets.Connack) { c.SessionPresent = true })
		p.publish(1, specTopic, messageOf(t, newEvent(1)))
		p.publish(2, "sources/source1/clusters/cluster2/sourceevents", messageOf(t, newEvent(2))) // for the cluster of a former configuration
		p.grant(p.expect(packets.SUBSCRIBE).Content.(*packets.Subscribe))
		p.publish(3, specTopic, messageOf(t, newEvent(3)))
		for range 3 {
			acks <- p.expect(packets.PUBACK).PacketID()
		}
		p.stay()
	})
	c := dial(t, newDialer(t, options(f)))
	waitFor(t, "what the broker kept", func() bool {
		c.state.inbox.mu.Lock()
		defer c.state.inbox.mu.Unlock()
		return len(c.state.inbox.order) == 2
	})
	got := make(chan string, 3)
	ready := false
	go func() { // ends with the connection
		_ = c.Subscribe(t.Context(), agentSubscription(), func(transport.Accepted) { ready = true }, func(_ context.Context, e codec.Event) error {
			if !ready {
				t.Error("an event before ready")
			}
			got <- e.ID()
			return nil
		})
	}()
	for _, want := range []string{"event-1", "event-3"} {
		if id := await(t, got, want); id != want {
			t.Errorf("got %s, want %s", id, want)
		}
	}
	for _, want := range []uint16{1, 2, 3} {
		if id := await(t, acks, "PUBACK"); id != want {
			t.Errorf("PUBACK of %d, want %d", id, want)
		}
	}
}

// TestSubscribe_AcceptsStoredSessionBeyondInbox: stored messages that exceed the inbox arrive before the SUBACK.
// The client must read the SUBACK nevertheless.
func TestSubscribe_AcceptsStoredSessionBeyondInbox(t *testing.T) {
	big := newEvent(1)
	big.DataEncoded = make([]byte, 8<<20)
	m := messageOf(t, big)
	f := newFake(t, func(p *peer) {
		p.welcome(false, func(c *packets.Connack) { c.SessionPresent = true })
		s := p.expect(packets.SUBSCRIBE).Content.(*packets.Subscribe)
		ids := p.acks()
		for n := range uint16(4) {
			p.publish(n+1, specTopic, m)
		}
		p.grant(s)
		p.publish(9, specTopic, m)
		for id := range ids {
			if id == 9 {
				p.goodbye(property.ShuttingDown, "", nil)
			}
		}
	})
	c := dial(t, newDialer(t, options(f)))
	s := subscribe(t, c, agentSubscription(), acceptAll)
	await(t, s.ready, "ready")
	wantCode(t, await(t, s.ended, "end"), transport.CodeUnavailable)
}

// TestSubscribe_BoundsMemoryAboveReceiveMaximum: the client bounds its memory, and no message is lost.
func TestSubscribe_BoundsMemoryAboveReceiveMaximum(t *testing.T) {
	const count = 60
	event := newEvent(1)
	event.DataEncoded = make([]byte, 1<<20)
	m := messageOf(t, event)
	f := newFake(t, func(p *peer) {
		p.welcome(false)
		p.grant(p.expect(packets.SUBSCRIBE).Content.(*packets.Subscribe))
		ids := p.acks()
		for n := range uint16(count) { // none is acknowledged yet
			p.publish(n+1, specTopic, m)
		}
		want := uint16(0)
		for id := range ids {
			if want++; id != want {
				t.Errorf("PUBACK of %d, want %d", id, want)
			}
			if id == count {
				p.goodbye(property.ShuttingDown, "", nil)
			}
		}
	})
	c := dial(t, newDialer(t, options(f)))
	stuck, handled, most := make(chan struct{}), 0, 0
	s := subscribe(t, c, agentSubscription(), func(context.Context, codec.Event) error {
		if handled++; handled == 1 {
			<-stuck
		}
		c.state.inbox.mu.Lock()
		defer c.state.inbox.mu.Unlock()
		most = max(most, c.state.inbox.bytes)
		return nil
	})
	waitFor(t, "a full inbox", c.state.inbox.full)
	close(stuck)
	wantCode(t, await(t, s.ended, "end"), transport.CodeUnavailable)
	if handled != count || most > maxQueued+2<<20 {
		t.Errorf("%d of %d were handled, %d bytes were there at once", handled, count, most)
	}
}

// count returns the value of a counter, with this value of its label if it has one.
func count(t *testing.T, reg *prometheus.Registry, name, label string) (n float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// TestMetrics_AreDocumented: docs/metrics.md and the registry have the same series.
func TestMetrics_AreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	m, err := NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewMetrics(reg); err == nil {
		t.Error("metrics were registered twice")
	}
	for _, reason := range []string{dropUndecodable, dropTooLarge, dropRetained, dropDataType, dropTopic} {
		m.drop(reason)
		if !strings.Contains(string(doc), "`"+reason+"`") {
			t.Errorf("docs/metrics.md does not name the reason %s", reason)
		}
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		label := "–"
		if l := f.GetMetric()[0].GetLabel(); len(l) > 0 {
			label = "`" + l[0].GetName() + "`"
		}
		if row := fmt.Sprintf("| `%s` | counter | %s | ", f.GetName(), label); !strings.Contains(string(doc), row) {
			t.Errorf("docs/metrics.md does not have %s", row)
		}
	}
	if n := strings.Count(string(doc), "| `hawser_mqtt_"); n != len(families) {
		t.Errorf("%d metrics are documented, there are %d", n, len(families))
	}
}

// TestSubscribe_Drops: each dropped message is counted by its reason, and acknowledged.
func TestSubscribe_Drops(t *testing.T) {
	good := messageOf(t, newEvent(1))
	other := newEvent(2)
	other.SetType("g.v1.r.spec.create_request")
	foreign := newEvent(3)
	foreign.SetExtension(codec.ExtClusterName, "cluster2")
	source := newEvent(4)
	source.SetSource("source2")
	retained := publishPacket(5, specTopic, good)
	retained.Content.(*packets.Publish).Retain = true
	large := publishPacket(6, specTopic, codec.Message{Payload: make([]byte, 1<<20)})
	properties := publishPacket(7, specTopic, codec.Message{Properties: make([]codec.Property, maxProperties/5+1)})
	zero := publishPacket(0, specTopic, good)
	zero.Content.(*packets.Publish).QoS = 0
	heartbeat := newEvent(8)
	heartbeat.SetType(codec.TypeHeartbeat)
	for name, c := range map[string]struct {
		packet *packets.ControlPacket
		reason string
	}{
		"good":              {publishPacket(1, specTopic, good), ""},
		"QoS 0":             {zero, ""},
		"no event":          {publishPacket(1, specTopic, codec.Message{Payload: []byte("x")}), dropUndecodable},
		"another data type": {publishPacket(2, specTopic, messageOf(t, other)), dropDataType},
		"another cluster":   {publishPacket(3, specTopic, messageOf(t, foreign)), dropTopic},
		"another source":    {publishPacket(4, specTopic, messageOf(t, source)), dropTopic},
		"retained":          {retained, dropRetained},
		"too large":         {large, dropTooLarge},
		"properties":        {properties, dropTooLarge},
		"not subscribed":    {publishPacket(8, "clusters/cluster1/agentbroadcast", good), dropTopic},
		"heartbeat":         {publishPacket(9, specTopic, messageOf(t, heartbeat)), "none"},
	} {
		t.Run(name, func(t *testing.T) {
			handled, want, all := 0, 1, make(chan struct{})
			if c.reason == "" {
				want = 2
			}
			f := newFake(t, func(p *peer) {
				p.welcome(false)
				p.grant(p.expect(packets.SUBSCRIBE).Content.(*packets.Subscribe))
				ids := p.acks()
				p.write(c.packet)
				p.publish(100, specTopic, good)
				for id := range ids {
					if id == 100 {
						await(t, all, "all events") // messages with QoS 0 may arrive later
						p.goodbye(property.ShuttingDown, "", nil)
					} else if id != c.packet.PacketID() {
						t.Errorf("PUBACK of %d", id)
					}
				}
			})
			o := options(f)
			o.MaxEventBytes = 900 << 10
			reg := prometheus.NewRegistry()
			var err error
			if o.Metrics, err = NewMetrics(reg); err != nil {
				t.Fatal(err)
			}
			s := subscribe(t, dial(t, newDialer(t, o)), agentSubscription(), func(context.Context, codec.Event) error {
				if handled++; handled == want {
					close(all)
				}
				return nil
			})
			wantCode(t, await(t, s.ended, "end"), transport.CodeUnavailable)
			if handled != want {
				t.Errorf("%d events were handled, want %d", handled, want)
			}
			for _, reason := range []string{dropUndecodable, dropTooLarge, dropRetained, dropDataType, dropTopic} {
				n := count(t, reg, "hawser_mqtt_dropped_total", reason)
				if want := map[bool]float64{true: 1}[reason == c.reason]; n != want {
					t.Errorf("%s: %v, want %v", reason, n, want)
				}
			}
		})
	}
}

// TestSubscribe_SourceDropsEventsOfOtherTopic: a cluster that may publish only on its own topics cannot send
// events of another cluster.
func TestSubscribe_SourceDropsEventsOfOtherTopic(t *testing.T) {
	status := newEvent(1)
	status.SetType(codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Status, Action: codec.UpdateRequest}.String())
	status.SetSource("agent1")
	status.SetExtension(codec.ExtOriginalSource, "source1")
	request := newEvent(2)
	request.SetType(codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: codec.ResyncRequest}.String())
	f := newFake(t, func(p *peer) {
		p.welcome(false)
		p.grant(p.expect(packets.SUBSCRIBE).Content.(*packets.Subscribe))
		ids := p.acks()
		p.publish(1, "sources/source1/clusters/cluster2/agentevents", messageOf(t, status))
		p.publish(2, statusTopic, messageOf(t, status))
		p.publish(3, "clusters/cluster2/agentbroadcast", messageOf(t, request))
		p.publish(4, "clusters/cluster1/agentbroadcast", messageOf(t, request))
		for id := range ids {
			if id == 4 {
				p.goodbye(property.ShuttingDown, "", nil)
			}
		}
	})
	o := options(f)
	o.Topics.AgentEvents, o.Topics.AgentBroadcast = "$share/g/"+o.Topics.AgentEvents, "clusters/+/agentbroadcast"
	var got []string
	s := subscribe(t, dial(t, newDialer(t, o)), transport.Subscription{Filter: transport.Filter{Source: "source1", DataType: codec.ManifestBundles}},
		func(_ context.Context, e codec.Event) error { got = append(got, e.ID()); return nil })
	wantCode(t, await(t, s.ended, "end"), transport.CodeUnavailable)
	if d := cmp.Diff([]string{"event-1", "event-2"}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestTakeover: the error names client id and broker. The wait grows with each consecutive takeover.
func TestTakeover(t *testing.T) {
	for name, end := range map[string]func(*peer){
		"reported": func(p *peer) { p.goodbye(property.TakenOver, "", nil); p.stay() },
		"closed":   func(*peer) {},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, func(p *peer) {
				p.welcome(false)
				p.grant(p.expect(packets.SUBSCRIBE).Content.(*packets.Subscribe))
				p.publish(1, specTopic, messageOf(t, newEvent(1)))
				p.expect(packets.PUBACK)
				end(p)
			})
			o := options(f)
			reg := prometheus.NewRegistry()
			var err error
			if o.Metrics, err = NewMetrics(reg); err != nil {
				t.Fatal(err)
			}
			d := newDialer(t, o)
			var delays []time.Duration
			for range 8 {
				s := subscribe(t, dial(t, d), agentSubscription(), acceptAll)
				e := wantCode(t, await(t, s.ended, "end"), transport.CodeUnavailable, "another client", `"client-1"`, f.Addr().String())
				if e.Next != transport.NextBackOff {
					t.Errorf("%+v", e)
				}
				delays = append(delays, e.Delay)
			}
			s := time.Second
			if d := cmp.Diff([]time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 30 * s, 30 * s, 30 * s}, delays); d != "" {
				t.Errorf("delays (-want +got):\n%s", d)
			}
			if n := count(t, reg, "hawser_mqtt_takeovers_total", ""); n != 8 {
				t.Errorf("%v takeovers are counted", n)
			}
		})
	}
	t.Run("a connection that lived ends the row", func(t *testing.T) {
		var r takeovers
		for range 5 {
			r.another(time.Second)
		}
		if d := r.another(stable); d != firstDelay {
			t.Errorf("waits %v", d)
		}
		r.quiet(stable)
		if d := r.another(time.Second); d != firstDelay {
			t.Errorf("waits %v", d)
		}
		r.quiet(time.Second)
		if d := r.another(time.Second); d != 2*firstDelay {
			t.Errorf("waits %v", d)
		}
	})
}

// TestDisconnect: other reasons in the DISCONNECT of a broker.
func TestDisconnect(t *testing.T) {
	draining := property.RefusalOf(&transport.Error{Code: transport.CodeUnavailable, Next: transport.NextBackOff, Delay: 3 * time.Second, Message: "shutting down"}, 0)
	for name, c := range map[string]struct {
		reason     property.Reason
		text       string
		properties []codec.Property
		want       transport.Error
	}{
		"drain of ours": {property.ShuttingDown, draining.Text, draining.Properties, transport.Error{Code: transport.CodeUnavailable, Next: transport.NextBackOff, Delay: 3 * time.Second, Message: "shutting down"}},
		"not any more":  {property.NotAuthorized, "gone", nil, transport.Error{Code: transport.CodeDenied, Message: "gone"}},
		"quota":         {property.QuotaExceeded, "full", nil, transport.Error{Code: transport.CodeOverloaded, Message: "full"}},
	} {
		f := newFake(t, func(p *peer) {
			p.welcome(true)
			p.grant(p.expect(packets.SUBSCRIBE).Content.(*packets.Subscribe))
			p.goodbye(c.reason, c.text, c.properties)
			p.stay()
		})
		conn := dial(t, newDialer(t, options(f)))
		s := subscribe(t, conn, agentSubscription(), acceptAll)
		if d := cmp.Diff(error(&c.want), await(t, s.ended, "end")); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		_, err := conn.Publish(t.Context(), newEvent(1), "")
		wantCode(t, err, transport.CodeUnavailable, c.text)
	}
}

// TestPinger: a silent broker counts as gone, but not because the client is slow.
func TestPinger(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	stalled := false
	p := &pinger{stalled: func() bool { return stalled }, sent: start, received: start}
	look := func(s int, want bool) {
		t.Helper()
		due, err := p.look(at(s), 10*time.Second)
		if err != nil || due != want {
			t.Errorf("at %d s: %v, %v", s, due, err)
		}
		if due {
			p.sent = at(s)
		}
	}
	look(2, false)
	look(5, true)
	p.received = at(6)
	look(7, false)
	p.received = at(9) // the broker sends packets, and this client does not
	look(10, true)
	look(14, false)
	look(15, true)
	if _, err := p.look(at(20), 10*time.Second); err == nil {
		t.Error("no answer for 10 s, and the broker is still connected")
	}
	stalled = true
	look(20, true)
	look(31, true)
	stalled = false
	look(36, true)
	if _, err := p.look(at(46), 10*time.Second); err == nil {
		t.Error("no answer for 10 s, and the broker is still connected")
	}

}
