package interop

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/mqttacl"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/agent"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportmqtt "github.com/hawser-io/hawser/pkg/transport/mqtt"
)

// dialMQTT returns the dialer of a Hawser client, with a configuration file of OCM.
func dialMQTT(t testing.TB, role pki.Role, name, addr string, l mqttacl.Layout) transport.Dialer {
	t.Helper()
	filter := transport.Filter{Cluster: name}
	if role == pki.Source {
		filter = transport.Filter{Source: name}
	}
	o, f, err := transportmqtt.Load(mqttConfig(t, role, name, addr, l.Topics), filter, false, logOf(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Unknown) > 0 {
		t.Errorf("keys %v of OCM's file mean nothing to us", f.Unknown)
	}
	d, err := transportmqtt.NewDialer(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// startMQTTHub runs hub-source as src1 over MQTT.
func startMQTTHub(t *testing.T, addr string, l mqttacl.Layout) *fakeHub {
	t.Helper()
	return runHubSource(t, dialMQTT(t, pki.Source, src1, addr, l))
}

// startOurMQTTAgent runs a Hawser agent of cluster1 over MQTT.
func startOurMQTTAgent(t *testing.T, addr string, l mqttacl.Layout, edit ...func(*agent.Config)) *ourAgent {
	t.Helper()
	return runOurAgent(t, dialMQTT(t, pki.Agent, cluster1, addr, l), clustertest.New(), edit...)
}

// TestMosquitto_HubAndOCMAgent_Lifecycle: Hawser's hub-source and an OCM agent through Mosquitto. A work is
// created, reported, changed and deleted.
func TestMosquitto_HubAndOCMAgent_Lifecycle(t *testing.T) {
	t.Parallel()
	b := startMosquitto(t, rulesOf(t, layouts...))
	agent := startMQTTAgent(t, cluster1, b.addr, mqttacl.DefaultLayout(src1))
	agent.stateless.Store(true)
	agent.await(t, 0, "its subscription", what("subscribed"))
	hubLifecycle(t, startMQTTHub(t, b.addr, mqttacl.DefaultLayout(src1)), agent)
}

// TestListener_HubAndOCMAgent_Lifecycle: Hawser's hub-source and an OCM agent at the Hawser broker.
func TestListener_HubAndOCMAgent_Lifecycle(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	hubLifecycle(t, startMQTTHub(t, b.addr, mqttacl.DefaultLayout(src1)), startMQTTAgent(t, cluster1, b.addr, mqttacl.DefaultLayout(src1)))
}

// hubLifecycle runs the life of a work between hub-source and an OCM agent.
func hubLifecycle(t *testing.T, hub *fakeHub, agent *ocmAgent) {
	t.Helper()
	w := newWork(agent.cluster, "w", 0)
	hub.apply(w)
	const id = "uid-of-w"
	agent.awaitAdded(id)
	agent.report("w", "is there")
	shows := func(message string) func() bool {
		return func() bool { return appliedMessage(hub.work(agent.cluster, "w").Status) == message }
	}
	eventually(t, "the status on the hub", shows("is there"))
	w.Spec.Workload.Manifests[0] = configMap("w", "changed", 0)
	hub.apply(w)
	agent.await(t, 0, "generation 2", func(l outputLine) bool { return ofID("modified", id)(l) && l.Work.Generation == 2 })
	agent.report("w", "is changed")
	eventually(t, "the status on the hub", shows("is changed"))
	hub.remove(agent.cluster, "w")
	agent.await(t, 0, "the deletion", func(l outputLine) bool { return ofID("modified", id)(l) && l.Work.DeletionTimestamp != nil })
	agent.finalizers("w")
	eventually(t, "the end of the work on the hub", func() bool { return hub.work(agent.cluster, "w") == nil })
}

// TestMosquitto_OCMSourceAndOurAgent_Lifecycle: an OCM source and a Hawser agent through Mosquitto, in the
// usual layout and in Maestro's.
func TestMosquitto_OCMSourceAndOurAgent_Lifecycle(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]mqttacl.Layout{"usual": mqttacl.DefaultLayout(src1), "maestro": maestro(src1)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startMosquitto(t, rulesOf(t, l))
			source := startMQTTSource(t, b.addr, l)
			source.stateless.Store(true)
			source.await(t, 0, "its subscription", what("subscribed"))
			sourceLifecycle(t, source, startOurMQTTAgent(t, b.addr, ofAgents(l)))
		})
	}
}

// TestListener_OCMSourceAndOurAgent_Lifecycle: an OCM source and a Hawser agent at the Hawser broker.
func TestListener_OCMSourceAndOurAgent_Lifecycle(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	sourceLifecycle(t, startMQTTSource(t, b.addr, mqttacl.DefaultLayout(src1)), startOurMQTTAgent(t, b.addr, mqttacl.DefaultLayout(src1)))
}

// sourceLifecycle runs the life of a work between an OCM source and a Hawser agent.
func sourceLifecycle(t *testing.T, source *ocmSource, a *ourAgent) {
	t.Helper()
	id := source.create(newWork(cluster1, "w", 1))
	a.awaitValue("w", "1")
	source.awaitStatus(t, id, "Apply manifest work complete")
	source.update(newWork(cluster1, "w", 2))
	a.awaitValue("w", "2")
	source.await(t, 0, "the status of version 2", func(l outputLine) bool {
		return l.What == "received" && fmt.Sprint(l.Event.Extensions[codec.ExtResourceVersion]) == "2" // a number over gRPC
	})
	source.remove(cluster1, "w")
	a.awaitValue("w", "")
	source.await(t, 0, "the end of the work", ofID("deleted", id))
	eventually(t, "the end of the record", func() bool { return a.record("w") == nil })
}

// TestListener_OCMClients_Lifecycle: OCM clients at the Hawser broker: both over MQTT, in the usual layout and
// in Maestro's, and one over gRPC.
func TestListener_OCMClients_Lifecycle(t *testing.T) {
	t.Parallel()
	usual := mqttacl.DefaultLayout(src1)
	for name, f := range map[string]func(t *testing.T, addr string) (*ocmSource, *ocmAgent){
		"MQTT": func(t *testing.T, addr string) (*ocmSource, *ocmAgent) {
			return startMQTTSource(t, addr, usual), startMQTTAgent(t, cluster1, addr, usual)
		},
		"Maestro's layout": func(t *testing.T, addr string) (*ocmSource, *ocmAgent) {
			return startMQTTSource(t, addr, maestro(src1)), startMQTTAgent(t, cluster1, addr, maestro(src1))
		},
		"source over gRPC": func(t *testing.T, addr string) (*ocmSource, *ocmAgent) {
			return startSource(t, src1, addr), startMQTTAgent(t, cluster1, addr, usual)
		},
		"agent over gRPC": func(t *testing.T, addr string) (*ocmSource, *ocmAgent) {
			return startMQTTSource(t, addr, usual), startAgent(t, cluster1, addr)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBroker(t)
			source, agent := f(t, b.addr)
			lifecycle(t, source, agent)
		})
	}
}

// TestC51_HawserClients_PublishOnTheirTopics checks the topics on which Hawser clients publish, in those of the
// six cases that exist with a stateless broker.
func TestC51_HawserClients_PublishOnTheirTopics(t *testing.T) {
	t.Parallel()
	b := startMosquitto(t, rulesOf(t, layouts...))
	spy := connectMQTT(t, b.addr, pki.Operator, onlooker, "spy").subscribe("#")
	hub := startMQTTHub(t, b.addr, mqttacl.DefaultLayout(src1))
	a := startOurMQTTAgent(t, b.addr, mqttacl.DefaultLayout(src1))
	hub.apply(newWork(cluster1, "w", 0))
	eventually(t, "the status on the hub", func() bool { return appliedMessage(hub.work(cluster1, "w").Status) != "" })
	got := map[string]string{}
	for kind, want := range map[string]string{
		"spec.resync_request":   "clusters/cluster1/agentbroadcast",
		"spec.create_request":   "sources/src1/clusters/cluster1/sourceevents",
		"status.update_request": "sources/src1/clusters/cluster1/agentevents",
	} {
		m := spy.got.await(t, 0, kind, func(m message) bool {
			return m.properties["ce-type"] == codec.ManifestBundles.String()+"."+kind
		})
		if got[kind] = m.topic; m.topic != want {
			t.Errorf("%s on %s, want %s", kind, m.topic, want)
		}
	}
	topics := []string{"clusters/cluster1/agentbroadcast", "sources/src1/sourcebroadcast", "sources/src1/clusters/cluster1/sourceevents", "sources/src1/clusters/cluster1/agentevents"}
	for _, m := range spy.got.since(0, func(m message) bool { return !slices.Contains(topics, m.topic) }) {
		t.Errorf("something was published on %s", m.topic)
	}
	a.end()
}

// TestC56_HawserClients_BrokerKilled: Mosquitto is killed with works in flight, and restarts without its state.
// Then the agent has the works of the hub, and the hub has the statuses of the agent.
func TestC56_HawserClients_BrokerKilled(t *testing.T) {
	t.Parallel()
	b := startMosquitto(t, rulesOf(t, layouts...), "persistence false")
	hub := startMQTTHub(t, b.addr, mqttacl.DefaultLayout(src1))
	a := startOurMQTTAgent(t, b.addr, mqttacl.DefaultLayout(src1))
	hub.apply(newWork(cluster1, "first", 0))
	a.awaitValue("first", "0")
	want := map[string]string{"first": "0", "late": "0"}
	for i := range 10 {
		name := fmt.Sprintf("w%d", i)
		hub.apply(newWork(cluster1, name, 0))
		want[name] = "0"
	}
	b.kill()
	hub.apply(newWork(cluster1, "late", 0))
	b.start()
	eventually(t, "all works on the cluster", func() bool {
		got := map[string]string{}
		for name := range want {
			got[name] = a.value(name)
		}
		return cmp.Equal(got, want)
	})
	for name := range want {
		eventually(t, "the status of "+name, func() bool { return appliedMessage(hub.work(cluster1, name).Status) != "" })
	}
}
