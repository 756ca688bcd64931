package e2e

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/fleet"
)

// TestAgentRestartedWhileBrokerIsAway: what an agent holds stays on the cluster
// and is kept as it should be, also by a new process that has never reached a
// broker.
func TestAgentRestartedWhileBrokerIsAway(t *testing.T) {
	f := shared
	l := f.outage(t)
	ns := f.namespaceOn(t, cluster1)
	w := f.create(t, newWork(t, cluster1, "agent-restarted", configMapYAML(ns, "vanishes", "back")))
	f.ready(t, w)
	f.broker().Kill()
	f.startLater(t, fleet.Broker)
	agent := f.Program(fleet.AgentOf(cluster1))
	agent.Kill()
	f.startLater(t, fleet.AgentOf(cluster1))

	l.spoil(t, cluster1)
	if err := f.clusters[cluster1].kube.CoreV1().ConfigMaps(ns).Delete(t.Context(), "vanishes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	l.each(t, l.steady, l.Update)
	if err := agent.Launch(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.repaired(t, cluster1)
	f.hasValue(t, cluster1, ns, "vanishes", "back")

	f.start(t, fleet.Broker)
	l.settled(t)
}
