// Package troubleshooting stages faults of an operator's installation, on real control planes with the real
// programs. It looks at the screen as the operator does: only with kubectl, hawser get and hawser doctor. Each
// test compares the output with docs/troubleshooting.md.
package troubleshooting

import (
	"flag"
	"os"
	"testing"

	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

const cluster = "cluster1"

// shared is the fleet of all tests. Each test breaks and repairs it.
var shared *harness.Fleet

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(harness.Main(m, fleet.Config{Root: "../../..", Clusters: []string{cluster}}, func(f *harness.Fleet) { shared = f }, nil))
}
