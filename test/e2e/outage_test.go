package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// TestKilledDuringUpdates: broker and hub-source are killed during 500 updates. Works are created and deleted
// while they are down.
func TestKilledDuringUpdates(t *testing.T) {
	f := &shared
	for name, next := range map[string][]string{
		fleet.Broker:    {fleet.AgentOf(cluster1), fleet.AgentOf(cluster2)},
		fleet.HubSource: f.Brokers(),
	} {
		t.Run(name, func(t *testing.T) {
			l := f.outage(t)
			before := keys("killed-1-"+name, "killed-2-"+name)
			l.each(t, before, l.Create)
			l.settled(t)
			f.startLater(t, name)
			f.killDuringUpdates(t, l, name, next, func() {
				l.each(t, before, l.Delete)
				l.each(t, keys("created-1-"+name, "created-2-"+name), l.Create)
			})
			l.settled(t)
		})
	}
}

// TestHubAway: the hub's kube-apiserver is down for 20 s during updates. That is long enough for hub-source to
// lose its Lease. The clusters are not affected.
func TestHubAway(t *testing.T) {
	f := &shared
	l := f.outage(t)
	deleted, created := keys("hub-away-deleted"), keys("hub-away-created")
	l.each(t, deleted, l.Create)
	l.settled(t)
	t.Cleanup(func() { // other scenarios need the hub
		if err := f.StartControlPlane(hub); err != nil {
			t.Errorf("start the hub again: %v", err)
		}
	})
	l.duringUpdates(t, 3, func() {
		l.each(t, deleted, l.Delete)
		if err := f.StopControlPlane(hub); err != nil {
			t.Fatal(err)
		}
		back := time.After(20 * time.Second)
		l.spoil(t, cluster1)
		l.repaired(t, cluster1)
		select {
		case <-back:
		case <-t.Context().Done():
		}
		if err := f.StartControlPlane(hub); err != nil {
			t.Fatal(err)
		}
	})
	l.each(t, created, l.Create)
	l.settled(t)
	// hub-source could not renew its Lease, and ended. kubelet would have restarted it too.
	f.Forgiven[fleet.HubSource] = len(f.Program(fleet.HubSource).Crashes())
}

// TestClusterAway: the kube-apiserver of a cluster is down for some seconds. The agent is not ready and reports
// the reason. It is ready again when the API server is back.
func TestClusterAway(t *testing.T) {
	f := &shared
	admin := "http://" + f.Program(fleet.AgentOf(cluster2)).Admin + "/readyz"
	ready := func(ctx context.Context) (code int, text string, err error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, admin, nil)
		if err != nil {
			return 0, "", err
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, "", err
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b), err
	}
	t.Cleanup(func() { // other scenarios need the cluster
		if err := f.StartControlPlane(cluster2); err != nil {
			t.Errorf("start the cluster again: %v", err)
		}
	})
	if err := f.StopControlPlane(cluster2); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, func(ctx context.Context) error {
		code, text, err := ready(ctx)
		if err == nil && (code != http.StatusServiceUnavailable || !strings.Contains(text, "cluster: the kube-apiserver of the managed cluster has not answered since 20")) {
			err = fmt.Errorf("/readyz reports %d %s", code, text)
		}
		return err
	})
	if err := f.StartControlPlane(cluster2); err != nil {
		t.Fatal(err)
	}
	// Scenario:
	//   t1: the kube-apiserver starts and has not loaded its roles yet.
	//   t2: it forbids a watch.
	//   t3: the agent tries again a second later.
	// Result: the agent becomes ready.
	harness.Eventually(t, func(ctx context.Context) error {
		code, text, err := ready(ctx)
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("/readyz reports %d %s", code, text)
		}
		return err
	})
}

// TestAgentAway: works are created, changed and deleted while the agent is down. In one case it is some of a
// cluster's works, in the other all of them.
func TestAgentAway(t *testing.T) {
	f := &shared
	l := f.outage(t)
	deleted, created := keys("agent-away-deleted"), keys("agent-away-created")
	l.each(t, deleted, l.Create)
	ns := f.NamespaceOn(t, cluster1)
	shrunk := f.Deliver(t, harness.NewWork(t, cluster1, "agent-away-shrunk", harness.ConfigMapYAML(ns, "kept", "0"), harness.ConfigMapYAML(ns, "dropped", "0")))
	l.settled(t)
	for _, agent := range []string{fleet.AgentOf(cluster1), fleet.AgentOf(cluster2)} {
		f.Program(agent).Kill()
		f.startLater(t, agent)
	}
	l.each(t, l.steadyOn(cluster1), l.Update)
	l.each(t, deleted, l.Delete)
	l.each(t, created, l.Create)
	l.each(t, created, l.Update)
	shrunk = f.Update(t, cluster1, shrunk.Name, func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests = []workv1.Manifest{harness.Manifest(t, harness.ConfigMapYAML(ns, "kept", "1"))}
	})
	// An empty list must not keep the last works alive.
	l.each(t, created[1:], l.Delete)
	l.each(t, l.steadyOn(cluster2), l.Delete)
	for _, agent := range []string{fleet.AgentOf(cluster1), fleet.AgentOf(cluster2)} {
		f.start(t, agent)
	}
	l.settled(t)
	f.Ready(t, shrunk)
	f.HasValue(t, cluster1, ns, "kept", "1")
	f.NoConfigMap(t, cluster1, ns, "dropped")
	l.each(t, l.steadyOn(cluster2), l.Create)
	l.settled(t)
}
