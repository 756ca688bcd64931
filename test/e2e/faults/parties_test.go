package faults

import (
	"context"
	"testing"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/fleet"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// down stops a program, which runs again when the test ends, and returns what starts it.
func (o *operator) down(program string) (up func()) {
	o.t.Helper()
	o.Program(program).Kill()
	up = func() {
		o.t.Helper()
		if err := o.Program(program).Start(context.WithoutCancel(o.t.Context())); err != nil {
			o.t.Error(err)
		}
	}
	o.t.Cleanup(up)
	return up
}

func web(t *testing.T, value string) *workv1.ManifestWork {
	t.Helper()
	return harness.NewWork(t, cluster, "web", harness.ConfigMapYAML("default", "web", value))
}

func TestAgentDown(t *testing.T) {
	o := sit(t)
	o.Deliver(t, web(t, "old"))
	up := o.down(fleet.AgentOf(cluster))
	o.Update(t, cluster, "web", func(w *workv1.ManifestWork) { w.Spec = web(t, "new").Spec })
	looks := []look{
		{command: theWork("web", cluster), says: `web +True +True +2 +1 `},
		{command: "hawser get clusters " + cluster, says: cluster + ` .*offline`},
	}
	o.sees("agent down", looks...)
	up()
	o.isWell(looks...)
}

func TestBrokerDown(t *testing.T) {
	o := sit(t)
	up := o.down(fleet.Broker)
	w := web(t, "x")
	w.Name = "new"
	o.Create(t, w)
	looks := []look{
		{command: theWork("new", cluster), says: `new +1 `},
		{command: "kubectl events --for manifestwork/new -n " + cluster, says: "No events"},
		{command: "hawser doctor", says: `nobody listens`},
	}
	o.sees("broker down", looks...)
	up()
	o.isWell(looks...)
}

func TestHubSourceDown(t *testing.T) {
	o := sit(t)
	o.write("web.yaml", workYAML(10))
	up := o.down(fleet.HubSource)
	looks := []look{{command: "kubectl apply -f web.yaml", says: `failed calling webhook`}}
	o.sees("hub-source down", looks...)
	up()
	o.isWell(looks...)
	o.Remove(t, cluster, "web")
}

// TestDeletionOnADeadCluster: a cluster is gone for good, with works that were deleted.
func TestDeletionOnADeadCluster(t *testing.T) {
	o := sit(t)
	const dead = "paris"
	o.JoinAs(t, dead)
	o.forget(dead)
	stop := o.RunAgent(t, cluster, dead, "--hub-identity="+dead)
	w := web(t, "x")
	w.Namespace = dead
	o.Deliver(t, w)
	stop()
	o.DeleteWork(t, dead, "web")
	looks := []look{
		{command: theWork("web", dead), says: `web +True`},
		{command: "kubectl events --for manifestwork/web -n " + dead, says: "DeletionWaits", past: true},
		{command: "hawser get clusters " + dead, says: dead + ` .*offline`, past: true},
		{command: "hawser get works --state deleting", says: dead + ` +web`},
	}
	o.sees("deletion on a dead cluster", looks...)
	if out, err := o.types(t.Context(), "hawser forget work "+dead+" web"); err != nil {
		t.Fatal(err, out)
	}
	o.isWell(looks...)
}
