package interop

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hawser-io/hawser/internal/mqttacl"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/topic"
)

// TestMosquitto_OCMClients_Lifecycle runs an OCM source and an OCM agent through Mosquitto, on the topics that
// Hawser's rules allow. A work is created, reported, changed and deleted. The tests with a Hawser client
// instead of one of them build on this one.
func TestMosquitto_OCMClients_Lifecycle(t *testing.T) {
	t.Parallel()
	ocmLifecycle(t, mqttacl.DefaultLayout(src1))
}

// TestC54_OCMClients_SharedSubscription runs the same clients on Maestro's topics, on which sources share the
// events of agents.
func TestC54_OCMClients_SharedSubscription(t *testing.T) {
	t.Parallel()
	ocmLifecycle(t, maestro(src1))
}

func ocmLifecycle(t *testing.T, l mqttacl.Layout) {
	t.Helper()
	b := startMosquitto(t, rulesOf(t, l))
	lifecycle(t, startMQTTSource(t, b.addr, l), startMQTTAgent(t, cluster1, b.addr, l))
}

// maestro returns the topics of Maestro. Clusters are called consumers, there are no broadcasts, and the servers
// share the events of agents.
func maestro(source string) mqttacl.Layout {
	return mqttacl.Layout{Source: source, Topics: topic.Set{
		SourceEvents: "sources/" + source + "/consumers/+/sourceevents",
		AgentEvents:  shareGroup + "sources/" + source + "/consumers/+/agentevents",
	}}
}

const shareGroup = "$share/statussubscribers/"

// lifecycle runs the life of a work between OCM clients. Both must have subscribed: a stateless broker drops
// events for disconnected clients.
func lifecycle(t *testing.T, source *ocmSource, agent *ocmAgent) {
	t.Helper()
	agent.await(t, 0, "its subscription", what("subscribed"))
	source.await(t, 0, "its subscription", what("subscribed"))
	id := source.create(newWork(agent.cluster, "w", 1))
	agent.awaitAdded(id)
	agent.finalizers("w", "interop/finalizer")
	agent.report("w", "is there")
	source.awaitStatus(t, id, "is there")
	source.update(newWork(agent.cluster, "w", 2))
	agent.await(t, 0, "version 2", func(l outputLine) bool { return ofID("modified", id)(l) && valueOf(t, *l.Work) == "2" })
	agent.report("w", "is changed")
	source.awaitStatus(t, id, "is changed")
	source.remove(agent.cluster, "w")
	agent.await(t, 0, "the deletion", func(l outputLine) bool { return ofID("modified", id)(l) && l.Work.DeletionTimestamp != nil })
	agent.finalizers("w")
	source.await(t, 0, "the end of the work", ofID("deleted", id))
}

// TestC51_OCMClients_PublishOnTheirTopics: the six cases in which a client publishes, each on its topic.
func TestC51_OCMClients_PublishOnTheirTopics(t *testing.T) {
	t.Parallel()
	b := startMosquitto(t, rulesOf(t, layouts...))
	spy := connectMQTT(t, b.addr, pki.Operator, onlooker, "spy").subscribe("#")
	agent := startMQTTAgent(t, cluster1, b.addr, mqttacl.DefaultLayout(src1))
	agent.await(t, 0, "its subscription", what("subscribed"))
	source := startMQTTSource(t, b.addr, mqttacl.DefaultLayout(src1))
	source.await(t, 0, "its subscription", what("subscribed"))
	id := source.create(newWork(cluster1, "w", 1))
	agent.awaitAdded(id)
	agent.report("w", "is there")
	for _, want := range []struct{ kind, topic string }{
		{"spec.resync_request", "clusters/cluster1/agentbroadcast"},
		{"status.resync_request", "sources/src1/sourcebroadcast"},
		{"spec.create_request", "sources/src1/clusters/cluster1/sourceevents"},
		{"status.update_request", "sources/src1/clusters/cluster1/agentevents"},
	} {
		m := spy.got.await(t, 0, want.kind, func(m message) bool {
			return m.properties["ce-type"] == codec.ManifestBundles.String()+"."+want.kind
		})
		if m.topic != want.topic {
			t.Errorf("%s on %s, want %s", want.kind, m.topic, want.topic)
		}
	}
	// The other two cases are answers to a client that reconnects, on the topics of events.
	source.kill()
	again := startMQTTSource(t, b.addr, mqttacl.DefaultLayout(src1))
	again.await(t, 0, "its subscription", what("subscribed"))
	m := spy.got.await(t, 0, "an answer", func(m message) bool {
		return m.properties["ce-type"] == codec.ManifestBundles.String()+".status.resync_response"
	})
	if want := "sources/src1/clusters/cluster1/agentevents"; m.topic != want {
		t.Errorf("answer on %s, want %s", m.topic, want)
	}
}

// TestC52_C53_OCMClients_NoBroadcast: without broadcast topics an agent sends its requests on the topic of its
// events. A source cannot send a request to all agents: it reports that and publishes nothing.
func TestC52_C53_OCMClients_NoBroadcast(t *testing.T) {
	t.Parallel()
	l := maestro(src1)
	b := startMosquitto(t, rulesOf(t, l))
	spy := connectMQTT(t, b.addr, pki.Operator, onlooker, "spy").subscribe("#")
	source := startMQTTSource(t, b.addr, l)
	source.await(t, 0, "its subscription", what("subscribed"))
	agent := startMQTTAgent(t, cluster1, b.addr, l)
	m := spy.got.await(t, 0, "the request of the agent", func(m message) bool {
		return m.properties["ce-type"] == codec.ManifestBundles.String()+".spec.resync_request"
	})
	if want := "sources/src1/consumers/cluster1/agentevents"; m.topic != want {
		t.Errorf("request on %s, want %s", m.topic, want)
	}
	agent.awaitAdded(source.create(newWork(cluster1, "w", 1)))
	if requests := spy.got.since(0, func(m message) bool {
		return m.properties["ce-type"] == codec.ManifestBundles.String()+".status.resync_request"
	}); len(requests) != 0 {
		t.Errorf("the source published the requests %v", requests)
	}
	source.kill()
	if output := source.log.String(); !strings.Contains(output, "source broadcast topic not set") {
		t.Errorf("the source logged: %s", output)
	}
}

// TestC56_OCMClients_BrokerKilled: Mosquitto is killed with messages in flight, and restarts without its state.
// The agent lists its works, and then has the works of the source.
func TestC56_OCMClients_BrokerKilled(t *testing.T) {
	t.Parallel()
	b := startMosquitto(t, rulesOf(t, layouts...), "persistence false")
	source, agent := startMQTTSource(t, b.addr, mqttacl.DefaultLayout(src1)), startMQTTAgent(t, cluster1, b.addr, mqttacl.DefaultLayout(src1))
	agent.await(t, 0, "its subscription", what("subscribed"))
	source.await(t, 0, "its subscription", what("subscribed"))
	want := map[string]bool{}
	for i := range 10 {
		want[source.create(newWork(cluster1, fmt.Sprintf("w%d", i), 1))] = true
	}
	from := agent.position()
	sourceFrom := source.position()
	b.kill()
	b.start()
	source.await(t, sourceFrom, "its subscription again", what("subscribed"))
	agent.await(t, from, "its subscription again", what("subscribed"))
	want[source.create(newWork(cluster1, "late", 1))] = true
	for id := range want {
		agent.awaitAdded(id)
	}
}
