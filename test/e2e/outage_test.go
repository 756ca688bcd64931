package e2e

import (
	"fmt"
	"testing"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/fleet"
)

// TestOutages: each program is stopped in turn while works are created, changed
// and deleted; when it is back, hub and cluster agree.
func TestOutages(t *testing.T) {
	f := shared
	for _, program := range []string{fleet.AgentOf(cluster1), fleet.Broker, fleet.HubSource} {
		t.Run(program, func(t *testing.T) {
			ns := f.namespaceOn(t, cluster1)
			name := func(s string) string { return fmt.Sprintf("outage-%s-%s", s, program) }
			changed := f.create(t, newWork(t, cluster1, name("changed"), configMapYAML(ns, "changed", "0"), configMapYAML(ns, "dropped", "0")))
			deleted := f.create(t, newWork(t, cluster1, name("deleted"), configMapYAML(ns, "deleted", "0")))
			f.ready(t, changed)
			f.ready(t, deleted)

			var created *workv1.ManifestWork
			f.whileDown(t, program, func() {
				created = f.create(t, newWork(t, cluster1, name("created"), configMapYAML(ns, "created", "1")))
				for i := range 3 {
					changed = f.update(t, cluster1, changed.Name, func(w *workv1.ManifestWork) {
						w.Spec.Workload.Manifests = []workv1.Manifest{manifest(t, configMapYAML(ns, "changed", fmt.Sprint(i+1)))}
					})
				}
				f.deleteWork(t, cluster1, deleted.Name)
			})

			f.ready(t, created)
			f.ready(t, changed)
			f.gone(t, cluster1, deleted.Name)
			f.hasValue(t, cluster1, ns, "created", "1")
			f.hasValue(t, cluster1, ns, "changed", "3")
			f.noConfigMap(t, cluster1, ns, "dropped")
			f.noConfigMap(t, cluster1, ns, "deleted")
		})
	}
}

// TestLastWorkDeletedWhileAgentIsAway: an empty list must not keep the last work
// alive.
func TestLastWorkDeletedWhileAgentIsAway(t *testing.T) {
	f := shared
	ns := f.namespaceOn(t, cluster2)
	w := f.create(t, newWork(t, cluster2, "the-last", configMapYAML(ns, "the-last", "x")))
	f.ready(t, w)
	f.whileDown(t, fleet.AgentOf(cluster2), func() { f.deleteWork(t, cluster2, w.Name) })
	f.gone(t, cluster2, w.Name)
	f.noConfigMap(t, cluster2, ns, "the-last")
}
