package e2e

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// TestAgentRestartedWhileBrokerIsAway: the works of an agent stay on the cluster, and their drift is repaired.
// A new process that has never reached a broker does the same.
func TestAgentRestartedWhileBrokerIsAway(t *testing.T) {
	f := &shared
	l := f.outage(t)
	ns := f.NamespaceOn(t, cluster1)
	f.Deliver(t, harness.NewWork(t, cluster1, "agent-restarted", harness.ConfigMapYAML(ns, "vanishes", "back")))
	f.broker().Kill()
	f.startLater(t, fleet.Broker)
	agent := f.Program(fleet.AgentOf(cluster1))
	agent.Kill()
	f.startLater(t, fleet.AgentOf(cluster1))

	l.spoil(t, cluster1)
	if err := f.API[cluster1].Kube.CoreV1().ConfigMaps(ns).Delete(t.Context(), "vanishes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	l.each(t, l.steady, l.Update)
	if err := agent.Launch(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.repaired(t, cluster1)
	f.HasValue(t, cluster1, ns, "vanishes", "back")

	f.start(t, fleet.Broker)
	l.settled(t)
}
