package interop

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/pkg/agent"
	statedir "github.com/hawser-io/hawser/pkg/agent/journal"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
	"github.com/hawser-io/hawser/pkg/codec"
)

// startKeepingAgent runs a Hawser agent with a state directory, until the test ends or end is called.
func startKeepingAgent(t *testing.T, addr, dir string, cluster *clustertest.Fake) (a *ourAgent, end func()) {
	t.Helper()
	j, err := statedir.Open(statedir.Config{Dir: dir, Log: logOf(t)})
	if err != nil {
		t.Fatal(err)
	}
	a = startOurAgent(t, addr, cluster, func(c *agent.Config) { c.Journal = j })
	end = func() {
		a.end()
		if err := j.Close(); err != nil {
			t.Errorf("state directory: %v", err)
		}
	}
	t.Cleanup(end)
	return a, end
}

// drift changes and removes ConfigMaps of works, as another user of the cluster does.
func drift(a *ourAgent, changed, removed string) {
	a.cluster.Edit(a.cluster.Ref("v1", "ConfigMap", "default", changed), func(o *unstructured.Unstructured) {
		o.Object["data"] = map[string]any{"value": "drift"}
	})
	a.cluster.Remove(a.cluster.Ref("v1", "ConfigMap", "default", removed))
}

// TestC59_OCMBrokerAway_DriftIsRepaired: an agent with a state directory starts while the OCM broker is down.
// It enforces the works that it knows, and continues when the broker is back.
func TestC59_OCMBrokerAway_DriftIsRepaired(t *testing.T) {
	t.Parallel()
	b := startOCMBroker(t, "")
	wire, cluster, dir := newCable(t, b.addr), clustertest.New(), t.TempDir()
	first, end := startKeepingAgent(t, wire.addr, dir, cluster)
	b.put(withID("u1", newWork(cluster1, "one", 3)))
	b.put(withID("u2", newWork(cluster1, "two", 0))) // unversioned
	first.awaitValue("one", "3")
	first.awaitValue("two", "0")
	end()
	b.kill()
	wire.cut()
	drift(first, "one", "two")

	second, end := startKeepingAgent(t, wire.addr, dir, cluster)
	second.awaitValue("one", "3")
	second.awaitValue("two", "0")
	drift(second, "two", "one") // while the agent runs
	second.awaitValue("one", "3")
	second.awaitValue("two", "0")
	end()
	drift(first, "one", "two")

	// The broker's hub went back in time, and the broker lacks a work. Versions of an earlier process block no
	// update, and a missing work is not deleted.
	third, _ := startKeepingAgent(t, wire.addr, dir, cluster)
	third.awaitValue("one", "3")
	b = startOCMBroker(t, "")
	b.put(withID("u1", newWork(cluster1, "one", 2)))
	wire.plug(b.addr)
	third.awaitValue("one", "2")
	third.awaitValue("two", "0")
	b.send(codec.UpdateRequest, withID("u1", newWork(cluster1, "one", 1)), nil) // this event is late
	b.put(withID("u3", newWork(cluster1, "three", 1)))
	third.awaitValue("three", "1")
	if got := third.value("one"); got != "2" {
		t.Errorf("value %q, want 2: versions decide from then on", got)
	}
}
