package interop

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hawser-io/hawser/internal/mqttacl"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportmqtt "github.com/hawser-io/hawser/pkg/transport/mqtt"
)

// TestC52_C53_HawserClients_NoBroadcast: without broadcast topics the Hawser agent lists its works on the topic
// of its events. hub-source sends its requests to each cluster separately.
func TestC52_C53_HawserClients_NoBroadcast(t *testing.T) {
	t.Parallel()
	l := maestro(src1)
	b := startMosquitto(t, rulesOf(t, l))
	spy := connectMQTT(t, b.addr, pki.Operator, onlooker, "spy").subscribe("#")
	hub := startMQTTHub(t, b.addr, l)
	startOurMQTTAgent(t, b.addr, ofAgents(l))
	hub.apply(newWork(cluster1, "w", 0))
	eventually(t, "the status on the hub", func() bool { return appliedMessage(hub.work(cluster1, "w").Status) != "" })
	for kind, want := range map[string]string{
		"spec.resync_request":   "sources/src1/consumers/cluster1/agentevents",
		"status.resync_request": "sources/src1/consumers/cluster1/sourceevents",
	} {
		m := spy.got.await(t, 0, kind, func(m message) bool { return m.properties["ce-type"] == codec.ManifestBundles.String()+"."+kind })
		if m.topic != want {
			t.Errorf("%s on %s, want %s", kind, m.topic, want)
		}
	}
	for _, m := range spy.got.since(0, func(m message) bool { return strings.HasSuffix(m.topic, "broadcast") }) {
		t.Errorf("something was published on %s", m.topic)
	}
}

// TestC54_OCMSources_OneGetsEachStatus: two OCM sources share the events of agents, and one of them gets each
// status. It holds through Mosquitto and with the Hawser broker.
func TestC54_OCMSources_OneGetsEachStatus(t *testing.T) {
	t.Parallel()
	l := maestro(src1)
	for name, start := range map[string]func(t *testing.T) (addr string){
		"Mosquitto": func(t *testing.T) string {
			return startMosquitto(t, rulesOf(t, l), "use_username_as_clientid false").addr
		},
		"our broker": func(t *testing.T) string { return startBroker(t).addr },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := start(t)
			sources := []*ocmSource{startMQTTSource(t, addr, l, "-client-id=one"), startMQTTSource(t, addr, l, "-client-id=two")}
			for _, s := range sources {
				s.stateless.Store(name == "Mosquitto")
				s.await(t, 0, "its subscription", what("subscribed"))
			}
			agent := startMQTTAgent(t, cluster1, addr, l)
			agent.stateless.Store(name == "Mosquitto")
			agent.await(t, 0, "its subscription", what("subscribed"))
			id := sources[0].create(newWork(cluster1, "w", 1))
			agent.awaitAdded(id)
			got := func(message string) (n int) {
				for _, s := range sources {
					n += len(s.since(0, func(l outputLine) bool {
						return l.What == "received" && l.Event != nil && strings.Contains(l.Event.Data, message)
					}))
				}
				return n
			}
			const reports = 6
			for i := range reports {
				message := fmt.Sprintf("report %d", i)
				agent.report("w", message)
				eventually(t, message, func() bool { return got(message) > 0 })
			}
			for i := range reports - 1 { // messages keep their order, so all earlier ones have arrived
				if message := fmt.Sprintf("report %d", i); got(message) != 1 {
					t.Errorf("%s came %d times", message, got(message))
				}
			}
		})
	}
}

// TestC55_OCMSource_OtherSourceInTopics_IsRefused: an OCM source whose topics are those of another source
// reports that, and never subscribes.
func TestC55_OCMSource_OtherSourceInTopics_IsRefused(t *testing.T) {
	t.Parallel()
	b := startMosquitto(t, rulesOf(t, layouts...))
	l := mqttacl.DefaultLayout(src1)
	l.Topics.AgentEvents = mqttacl.DefaultLayout(src2).Topics.AgentEvents
	s := startMQTTSource(t, b.addr, l)
	eventually(t, "its complaint", func() bool { return strings.Contains(s.log.String(), "does not match the client sourceID") })
	if got := s.since(0, what("subscribed")); len(got) != 0 {
		t.Errorf("it subscribed: %v", got)
	}
}

// TestC55_OurSource_OtherSourceInTopics_IsRefused: hub-source does not start with such topics in its file.
func TestC55_OurSource_OtherSourceInTopics_IsRefused(t *testing.T) {
	t.Parallel()
	topics := mqttacl.DefaultLayout(src1).Topics
	topics.AgentEvents = mqttacl.DefaultLayout(src2).Topics.AgentEvents
	file := mqttConfig(t, pki.Source, src1, "127.0.0.1:8883", topics)
	_, _, err := transportmqtt.Load(file, transport.Filter{Source: src1}, false, logOf(t))
	if err == nil || !strings.Contains(err.Error(), `topics.agentEvents: names the source "src2", but this client is for the source "src1"`) {
		t.Errorf("got %v", err)
	}
}

// TestC56_OCMClientsAtOurBroker_ConnectionsBreak: both connections break with works in flight. The agent still
// gets the works of the source.
func TestC56_OCMClientsAtOurBroker_ConnectionsBreak(t *testing.T) {
	t.Parallel()
	wire := newCable(t, startBroker(t).addr)
	source, agent := startMQTTSource(t, wire.addr, mqttacl.DefaultLayout(src1)), startMQTTAgent(t, cluster1, wire.addr, mqttacl.DefaultLayout(src1))
	agent.await(t, 0, "its subscription", what("subscribed"))
	source.await(t, 0, "its subscription", what("subscribed"))
	want := map[string]bool{}
	for i := range 10 {
		want[source.create(newWork(cluster1, fmt.Sprintf("w%d", i), 1))] = true
	}
	from, sourceFrom := agent.position(), source.position()
	target := wire.target
	wire.cut()
	wire.plug(target)
	source.await(t, sourceFrom, "its subscription again", what("subscribed"))
	agent.await(t, from, "its subscription again", what("subscribed"))
	want[source.create(newWork(cluster1, "late", 1))] = true
	for id := range want {
		agent.awaitAdded(id)
	}
}

// TestMaestro_HubAndOCMAgent_Lifecycle: Hawser clients in Maestro's layout, with hub-source as one member of a
// share group.
func TestMaestro_HubAndOCMAgent_Lifecycle(t *testing.T) {
	t.Parallel()
	l := maestro(src1)
	t.Run("Mosquitto", func(t *testing.T) {
		t.Parallel()
		b := startMosquitto(t, rulesOf(t, l))
		agent := startMQTTAgent(t, cluster1, b.addr, l)
		agent.stateless.Store(true)
		agent.await(t, 0, "its subscription", what("subscribed"))
		hubLifecycle(t, startMQTTHub(t, b.addr, l), agent)
	})
	t.Run("our broker", func(t *testing.T) {
		t.Parallel()
		b := startBroker(t)
		hubLifecycle(t, startMQTTHub(t, b.addr, l), startMQTTAgent(t, cluster1, b.addr, l))
	})
}

// TestMaestro_OCMSourceAndOurAgent_Lifecycle: an OCM source in Maestro's layout and a Hawser agent at the
// Hawser broker.
func TestMaestro_OCMSourceAndOurAgent_Lifecycle(t *testing.T) {
	t.Parallel()
	b, l := startBroker(t), maestro(src1)
	sourceLifecycle(t, startMQTTSource(t, b.addr, l), startOurMQTTAgent(t, b.addr, ofAgents(l)))
}
