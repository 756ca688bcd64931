// Package e2e runs Hawser as it is deployed, on real kube-apiservers over mTLS. The fleet is a hub, two managed
// clusters, broker, hub-source and two agents, started from deploy/. README.md in this directory shows how to
// run one scenario.
package e2e

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// Fleet is the fleet of a scenario.
type Fleet struct {
	*harness.Fleet
	load      *load // see Fleet.outage
	stateless bool  // the broker is a stateless broker
}

const (
	cluster1 = "cluster1"
	cluster2 = "cluster2"
)

// shared is the fleet of all scenarios in this process. They use different names of works and namespaces.
var shared Fleet

func TestMain(m *testing.M) {
	flag.Parse()
	transport := fleet.GRPC
	if err := choose(os.Getenv("TRANSPORT"), &transport); err != nil {
		fmt.Fprintf(os.Stderr, "e2e: TRANSPORT: %v\n", err)
		os.Exit(2)
	}
	shared.stateless = transport == fleet.Mosquitto
	os.Exit(harness.Main(m, fleet.Config{
		Root:      "../..",
		Clusters:  []string{cluster1, cluster2},
		Transport: transport,
		// Works change while hub-source is down, and some works are too large for the webhook.
		NoWebhook: true,
		// The short grace period makes a wrong eviction visible within a scenario.
		Args: map[string][]string{fleet.Agent: {"--appliedmanifestwork-eviction-grace-period=2s"}},
	}, func(f *harness.Fleet) { shared.Fleet = f }, shared.endLoad))
}

// needBroker are the scenarios that need the Hawser broker. onlyMQTT are those about MQTT. onlyStateless are
// those about the behavior of stateless brokers.
var (
	needBroker = []string{
		"TestBrokerRestoredFromBackup", "TestClusterReplaced", "TestDocumentation_CommandsForTheDemo", "TestForeignCluster", "TestForeignSource",
		"TestRecreatedWhileAgentIsAway", "TestNoCredentials", "TestProgramSource",
	}
	onlyMQTT      = []string{"TestMessagesTwice", "TestSessionTakenOver"}
	onlyStateless = []string{"TestDroppedSpecs", "TestDroppedStatuses"}
)

// choose sets the transport of the fleet, and skips the scenarios for other transports.
func choose(name string, transport *fleet.Transport) error {
	if name == "" {
		name = string(fleet.GRPC)
	}
	if err := transport.Set(name); err != nil {
		return err
	}
	leave := slices.Concat(onlyMQTT, onlyStateless)
	switch *transport {
	case fleet.MQTT:
		leave = onlyStateless
	case fleet.Mosquitto:
		leave = needBroker
	}
	return flag.Set("test.skip", "^("+strings.Join(leave, "|")+")$")
}
