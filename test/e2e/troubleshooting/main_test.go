// Package troubleshooting stages what goes wrong at an operator's, on real control planes with the
// real programs, and looks at the screen as the operator would: with kubectl, hawser get
// and hawser doctor alone. What they print is in docs/troubleshooting.md, and each test
// compares.
package troubleshooting

import (
	"flag"
	"os"
	"testing"

	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

const cluster = "cluster1"

// shared is the fleet of all tests, which break it one after the other and mend it again.
var shared *harness.Fleet

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(harness.Main(m, fleet.Config{Root: "../../..", Clusters: []string{cluster}}, func(f *harness.Fleet) { shared = f }, nil))
}
