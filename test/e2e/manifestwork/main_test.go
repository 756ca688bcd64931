// Package manifestwork shows the effects of a ManifestWork, from kubectl on a real hub to a real cluster and
// back. It covers strategies, feedback, conditions, deletion, executors and admission. The tests run in
// parallel on one fleet, with different names of works and namespaces.
package manifestwork

import (
	"os"
	"testing"

	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// cluster is the managed cluster, and the namespace of its works on the hub.
const cluster = "cluster1"

var shared *harness.Fleet

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, fleet.Config{
		Root:     "../../..",
		Clusters: []string{cluster},
		Args:     map[string][]string{fleet.HubSource: {"--feature-gates=CleanUpCompletedManifestWork=true,NilExecutorValidating=true"}},
	}, func(f *harness.Fleet) { shared = f }, nil))
}
