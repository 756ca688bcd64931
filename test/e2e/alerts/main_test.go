// Package alerts runs a real Prometheus with the rules of deploy/monitoring beside a fleet. It breaks the
// fleet, and waits for the alerts to fire and to clear.
package alerts

import (
	"flag"
	"os"
	"testing"

	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

const cluster = "cluster1"

// shared is the fleet of all tests.
var shared *harness.Fleet

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(harness.Main(m, fleet.Config{Root: "../../..", Clusters: []string{cluster}}, func(f *harness.Fleet) { shared = f }, nil))
}
