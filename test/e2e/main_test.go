// Package e2e runs Hawser as it is deployed, on real kube-apiservers over mTLS:
// a hub, two managed clusters, broker, hub-source and two agents, started from
// deploy/. README.md beside this file says how to run one scenario.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	workclient "open-cluster-management.io/api/client/work/clientset/versioned"

	"github.com/hawser-io/hawser/internal/controlplane"
	"github.com/hawser-io/hawser/internal/fleet"
)

// Fleet is what a scenario runs on: how events travel, and the clients to look
// at both ends.
type Fleet struct {
	// Transport carries the events ("grpc"), Network is what lies between
	// broker and agents ("direct").
	Transport, Network string

	*fleet.Fleet
	root     string
	hub      clients
	clusters map[string]clients
	load     *load // see Fleet.outage
}

// clients are those of a control plane's administrator.
type clients struct {
	kube    kubernetes.Interface
	dynamic dynamic.Interface
	work    workclient.Interface
}

const (
	cluster1 = "cluster1"
	cluster2 = "cluster2"
)

// shared is the fleet all scenarios of this process run on; they keep apart by
// the names of their works and namespaces.
var shared *Fleet

func TestMain(m *testing.M) {
	os.Exit(func() int {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		var err error
		shared, err = startFleet(ctx)
		if err != nil {
			fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
			return 1
		}
		code := m.Run()
		if err := shared.end(); err != nil {
			fmt.Fprintf(os.Stderr, "e2e: stop the fleet: %v\n", err)
			code = max(code, 1)
		}
		if code == 0 {
			if err := os.RemoveAll(filepath.Dir(shared.LogDir())); err != nil {
				fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
			}
		} else {
			fmt.Fprintf(os.Stderr, "e2e: logs are kept in %s\n", shared.LogDir())
		}
		return code
	}())
}

func startFleet(ctx context.Context) (*Fleet, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	programs, err := controlplane.Build(ctx, root, os.Stderr)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(root, "bin", "hawser-agent")); err != nil {
		return nil, fmt.Errorf("the programs are not built, run the tests with make e2e: %w", err)
	}
	dir, err := os.MkdirTemp("", "hawser-e2e-")
	if err != nil {
		return nil, err
	}
	began := time.Now()
	f := &Fleet{
		Transport: "grpc", Network: "direct", root: root, clusters: map[string]clients{},
		Fleet: fleet.New(fleet.Config{
			Root: root, Dir: dir, Bin: filepath.Join(root, "bin"), ControlPlane: programs,
			Clusters: []string{cluster1, cluster2},
			// Scenarios with a hundred works must not wait for the default rate, and
			// what is evicted shall be so before they end, rightly or wrongly.
			Args: map[string][]string{fleet.Agent: {
				"--kube-api-qps=500", "--kube-api-burst=500", "--appliedmanifestwork-eviction-grace-period=2s",
			}},
			Say: func(format string, args ...any) {
				fmt.Fprintf(os.Stderr, "e2e: %3.0fs %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
			},
		}),
	}
	if err := f.Start(ctx); err != nil {
		return nil, err
	}
	if f.hub, err = clientsOf(f.Hub); err != nil {
		return nil, err
	}
	for name, c := range f.Clusters {
		if f.clusters[name], err = clientsOf(c); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func clientsOf(c *controlplane.Cluster) (cl clients, err error) {
	cfg, err := c.RESTConfig()
	if err != nil {
		return cl, err
	}
	if cl.kube, err = kubernetes.NewForConfig(cfg); err != nil {
		return cl, err
	}
	if cl.dynamic, err = dynamic.NewForConfig(cfg); err != nil {
		return cl, err
	}
	cl.work, err = workclient.NewForConfig(cfg)
	return cl, err
}
