package interoptest

import (
	"testing"

	"github.com/hawser-io/hawser/internal/mqttacl"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/topic"
)

// Stock source and stock agent through Mosquitto, on the topics that Hawser's
// rules allow: a work there, its status back, changed, and gone. What follows
// with our parties in the place of one of them stands on this.
func TestMosquitto_StockParties_WholeLife(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]mqttacl.Layout{"usual": mqttacl.Usual(src1), "maestro": maestro(src1)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startMosquitto(t, rulesOf(t, l))
			source, agent := startMQTTSource(t, b.addr, l), startMQTTAgent(t, cluster1, b.addr, l)
			wholeLife(t, source, agent)
		})
	}
}

// maestro is how Maestro lays out its topics: clusters are consumers, nothing is
// broadcast, and the servers share what agents say.
func maestro(source string) mqttacl.Layout {
	return mqttacl.Layout{Source: source, Topics: topic.Set{
		SourceEvents: "sources/" + source + "/consumers/+/sourceevents",
		AgentEvents:  shareGroup + "sources/" + source + "/consumers/+/agentevents",
	}}
}

const shareGroup = "$share/statussubscribers/"

// wholeLife plays a work of stock parties. Both must have subscribed: of who is
// not there a plain broker keeps nothing.
func wholeLife(t *testing.T, source *stockSource, agent *stockAgent) {
	t.Helper()
	agent.await(t, 0, "its subscription", what("subscribed"))
	source.await(t, 0, "its subscription", what("subscribed"))
	id := source.create(newWork(agent.cluster, "w", 1))
	agent.awaitAdded(id)
	agent.finalizers("w", "interop/finalizer")
	agent.report("w", "is there")
	source.awaitStatus(t, id, "is there")
	source.update(newWork(agent.cluster, "w", 2))
	agent.await(t, 0, "version 2", func(l line) bool { return ofID("modified", id)(l) && valueOf(t, *l.Work) == "2" })
	agent.report("w", "is changed")
	source.awaitStatus(t, id, "is changed")
	source.remove(agent.cluster, "w")
	agent.await(t, 0, "the deletion", func(l line) bool { return ofID("modified", id)(l) && l.Work.DeletionTimestamp != nil })
	agent.finalizers("w")
	source.await(t, 0, "the end of the work", ofID("deleted", id))
}

// The six cases in which a party publishes, each on its topic.
func TestC51_StockParties_PublishOnTheirTopics(t *testing.T) {
	t.Parallel()
	b := startMosquitto(t, rulesOf(t, layouts...))
	spy := connectMQTT(t, b.addr, pki.Operator, onlooker, "spy").subscribe("#")
	agent := startMQTTAgent(t, cluster1, b.addr, mqttacl.Usual(src1))
	agent.await(t, 0, "its subscription", what("subscribed"))
	source := startMQTTSource(t, b.addr, mqttacl.Usual(src1))
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
	// The other two: answers to a party that comes back, on the topics of events.
	source.kill()
	again := startMQTTSource(t, b.addr, mqttacl.Usual(src1))
	again.await(t, 0, "its subscription", what("subscribed"))
	m := spy.got.await(t, 0, "an answer", func(m message) bool {
		return m.properties["ce-type"] == codec.ManifestBundles.String()+".status.resync_response"
	})
	if want := "sources/src1/clusters/cluster1/agentevents"; m.topic != want {
		t.Errorf("answer on %s, want %s", m.topic, want)
	}
}
