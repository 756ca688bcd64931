// Package e2e runs Hawser as it is deployed, on real kube-apiservers over mTLS. The fleet is a hub, two managed
// clusters, broker, hub-source and two agents, started from deploy/. README.md in this directory shows how to
// run one scenario.
package e2e

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
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
	transport, brokers := fleet.GRPC, 1
	if err := choose(&transport, &brokers); err != nil {
		fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
		os.Exit(2)
	}
	shared.stateless = transport == fleet.Mosquitto
	os.Exit(harness.Main(m, fleet.Config{
		Root:      "../..",
		Clusters:  []string{cluster1, cluster2},
		Transport: transport,
		Brokers:   brokers,
		// Works change while hub-source is down, and some works are too large for the webhook.
		NoWebhook: true,
		// The short grace period makes a wrong eviction visible within a scenario.
		Args: map[string][]string{fleet.Agent: {"--appliedmanifestwork-eviction-grace-period=2s"}},
	}, func(f *harness.Fleet) { shared.Fleet = f }, shared.endLoad))
}

// needBroker are the scenarios that need the Hawser broker. onlyMQTT are those about MQTT. onlyStateless are
// those about the behavior of stateless brokers. onlyReplicas need several brokers. onlyOne are those about the disk
// of a broker, or about the time without any.
var (
	needBroker = []string{
		"TestBrokerRestoredFromBackup", "TestClusterReplaced", "TestDocumentation_CommandsForTheDemo", "TestForeignCluster", "TestForeignSource",
		"TestRecreatedWhileAgentIsAway", "TestNoCredentials", "TestProgramSource",
	}
	// onlyGRPC has a second broker and hub-source that no configuration for MQTT names.
	onlyGRPC      = []string{"TestClusterMovesToAnotherCell"}
	onlyMQTT      = []string{"TestMessagesTwice", "TestSessionTakenOver"}
	onlyStateless = []string{"TestDroppedSpecs", "TestDroppedStatuses"}
	onlyReplicas  = []string{"TestBrokersLost", "TestDatabaseRestarted", "TestRollingRestart"}
	onlyOne       = []string{
		"TestAgentRestartedWhileBrokerIsAway", "TestBrokerReplaced", "TestBrokerRestoredFromBackup", "TestDocumentation_CommandsForTheDemo",
		"TestMessagesTwice",
	}
)

// choose sets the transport and the number of brokers of the fleet as the environment requires, and skips the
// scenarios for others.
func choose(transport *fleet.Transport, brokers *int) (err error) {
	if name := os.Getenv("TRANSPORT"); name != "" {
		if err := transport.Set(name); err != nil {
			return fmt.Errorf("TRANSPORT: %w", err)
		}
	}
	if number := os.Getenv("BROKERS"); number != "" {
		if *brokers, err = strconv.Atoi(number); err != nil {
			return fmt.Errorf("BROKERS: %w", err)
		}
	}
	leave := slices.Concat(onlyMQTT, onlyStateless)
	switch *transport {
	case fleet.MQTT:
		leave = slices.Concat(onlyStateless, onlyGRPC)
	case fleet.Mosquitto:
		leave = slices.Concat(needBroker, onlyGRPC)
	}
	if *brokers > 1 {
		leave = slices.Concat(leave, onlyOne, onlyGRPC)
	} else {
		leave = slices.Concat(leave, onlyReplicas)
	}
	if *brokers > 1 {
		leave = slices.Concat(leave, onlyOne)
	} else {
		leave = slices.Concat(leave, onlyReplicas)
	}
	return flag.Set("test.skip", "^("+strings.Join(leave, "|")+")$")
}
