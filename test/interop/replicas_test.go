package interop

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/internal/broker"
	storepostgres "github.com/hawser-io/hawser/internal/broker/store/postgres"
	"github.com/hawser-io/hawser/internal/local/postgres"
	"github.com/hawser-io/hawser/internal/mqttacl"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
	"github.com/hawser-io/hawser/pkg/codec"
)

// startPostgres starts a PostgreSQL server for one test.
func startPostgres(t *testing.T) *postgres.Server {
	t.Helper()
	programs, err := postgres.Fetch(t.Context(), "../..", nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := postgres.Create(t.Context(), postgres.Config{Programs: programs, Dir: filepath.Join(t.TempDir(), "postgresql")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	return s
}

// startReplica starts a broker that shares a database with others. configure may change its configuration.
func startReplica(t *testing.T, url string, configure ...func(*broker.Config)) *ourBroker {
	t.Helper()
	s, err := storepostgres.Open(t.Context(), storepostgres.Options{URL: url, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return startBroker(t, append(configure, func(c *broker.Config) { c.Store = s })...)
}

// TestReplicas_Lifecycle: the source is a client of one broker, the agent of another one over the same database.
func TestReplicas_Lifecycle(t *testing.T) {
	t.Parallel()
	server, usual := startPostgres(t), mqttacl.DefaultLayout(src1)
	t.Run("pairs", func(t *testing.T) {
		number := 0
		for name, live := range map[string]func(t *testing.T, one, other string){
			"OCM source and agent over gRPC": func(t *testing.T, one, other string) {
				lifecycle(t, startSource(t, src1, one), startAgent(t, cluster1, other))
			},
			"OCM source and agent over MQTT": func(t *testing.T, one, other string) {
				lifecycle(t, startMQTTSource(t, one, usual), startMQTTAgent(t, cluster1, other, usual))
			},
			"OCM source over gRPC, agent over MQTT": func(t *testing.T, one, other string) {
				lifecycle(t, startSource(t, src1, one), startMQTTAgent(t, cluster1, other, usual))
			},
			"OCM source over MQTT, agent over gRPC": func(t *testing.T, one, other string) {
				lifecycle(t, startMQTTSource(t, one, usual), startAgent(t, cluster1, other))
			},
			"hub-source over gRPC, OCM agent over MQTT": func(t *testing.T, one, other string) {
				hubLifecycle(t, startHubSource(t, one), startMQTTAgent(t, cluster1, other, usual))
			},
			"hub-source over MQTT, OCM agent over gRPC": func(t *testing.T, one, other string) {
				hubLifecycle(t, startMQTTHub(t, one, usual), startAgent(t, cluster1, other))
			},
			"OCM source over gRPC, Hawser's agent over MQTT": func(t *testing.T, one, other string) {
				sourceLifecycle(t, startSource(t, src1, one), startOurMQTTAgent(t, other, usual))
			},
			"OCM source over MQTT, Hawser's agent over gRPC": func(t *testing.T, one, other string) {
				sourceLifecycle(t, startMQTTSource(t, one, usual), startOurAgent(t, other, clustertest.New()))
			},
		} {
			number++
			database := fmt.Sprintf("pair%d", number)
			if err := server.Exec(t.Context(), postgres.Superuser, "CREATE DATABASE "+database); err != nil {
				t.Fatal(err)
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				live(t, startReplica(t, server.URL(database)).addr, startReplica(t, server.URL(database)).addr)
			})
		}
	})
}

// TestReplicas_Klusterlet: the hub serves registration at two brokers. A klusterlet joins at one of them, comes to the
// other one with its certificate, and renews it there.
func TestReplicas_Klusterlet(t *testing.T) {
	t.Parallel()
	url := startPostgres(t).URL(postgres.Superuser)
	one, other := startReplica(t, url, registersWith), startReplica(t, url, registersWith)
	hub := newRegistrar(t)
	hub.serve(one)
	hub.serve(other)
	joining := startJoiner(t, hub.token(joiner), cluster1, one.addr)
	joining.do(command{Do: "create", Type: codec.ManagedClusters.String(), Object: aCluster(cluster1, true)})
	joining.do(command{Do: "create", Type: codec.SigningRequests.String(), Object: aRequest(cluster1, "first")})
	joining.await(t, 0, "its request with a version", showsAs(codec.SigningRequests, "first", hasVersion))
	hub.sign(cluster1, "first")
	joining.await(t, 0, "the certificate", signed("first"))

	member := startMember(t, cluster1, other.addr)
	member.await(t, 0, "its cluster", shows("added", codec.ManagedClusters, cluster1))
	member.do(command{Do: "create", Type: codec.SigningRequests.String(), Object: aRequest(cluster1, "second")})
	member.await(t, 0, "its request with a version", showsAs(codec.SigningRequests, "second", hasVersion))
	hub.sign(cluster1, "second")
	member.await(t, 0, "the renewed certificate", signed("second"))
	if l := member.tryPatch(codec.ManagedClusters, cluster1, map[string]any{"version": map[string]any{"kubernetes": "v1.30.0"}}); l.Error != "" {
		t.Errorf("status: %s", l.Error)
	}
	joining.await(t, 0, "the status at the other broker", showsAs(codec.ManagedClusters, cluster1, func(o *unstructured.Unstructured) bool {
		version, _, err := unstructured.NestedString(o.Object, "status", "version", "kubernetes")
		return err == nil && version == "v1.30.0"
	}))
}
