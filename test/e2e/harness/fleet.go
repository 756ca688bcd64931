// Package harness is the common part of the end-to-end tests: a running fleet, clients for both of its ends,
// and the steps of scenarios.
package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	workclient "open-cluster-management.io/api/client/work/clientset/versioned"

	"github.com/hawser-io/hawser/internal/local/controlplane"
	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/tools/testlog"
)

// Fleet is the fleet of a scenario. A failed step ends the test. Created objects are removed at the end of the
// test.
type Fleet struct {
	*fleet.Fleet
	// Root is the directory of the repository.
	Root string
	// HubAPI and API are clients of the hub and, by name, of the clusters.
	HubAPI Clients
	API    map[string]Clients
	// Forgiven is the number of expected crashes by program.
	Forgiven map[string]int
}

// Clients are the clients of a control plane's administrator.
type Clients struct {
	Kube    kubernetes.Interface
	Dynamic dynamic.Interface
	Work    workclient.Interface
}

// Main runs the tests of a package on one fleet, and returns the exit code. started gets the fleet before the
// first test. ended is called after the last one, while the fleet still runs; it may be nil. cfg contains the
// differences from the usual fleet: its Root is relative to the package; Dir, Bin, ControlPlane and Say are
// filled in. Logs are kept if anything fails.
func Main(m *testing.M, cfg fleet.Config, started func(*Fleet), ended func()) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	f, err := start(ctx, cfg)
	if err != nil {
		fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
		return 1
	}
	started(f)
	code := m.Run()
	if ended != nil {
		ended()
	}
	if err := errors.Join(f.crashes(), f.Stop()); err != nil {
		fmt.Fprintf(os.Stderr, "\n%send of the fleet: %v\n", testlog.Outside, err)
		code = max(code, 1)
	}
	if code != 0 {
		fmt.Fprintf(os.Stderr, "e2e: logs are kept in %s\n", f.LogDir())
		return code
	}
	if err := os.RemoveAll(filepath.Dir(f.LogDir())); err != nil {
		fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
	}
	return 0
}

// LeaseLost is the reason for which hub-source may end at any time: on a busy machine the hub may not answer
// for ten seconds.
const LeaseLost = "the leader lease was lost"

// crashes returns an error for each program that ended unexpectedly.
func (f *Fleet) crashes() error {
	var errs []error
	for _, name := range f.Programs() {
		for _, c := range f.Program(name).Crashes()[f.Forgiven[name]:] {
			if !strings.Contains(c, LeaseLost) {
				errs = append(errs, fmt.Errorf("%s ended by itself: %s", name, c))
			}
		}
	}
	return errors.Join(errs...)
}

// start starts a fleet.
func start(ctx context.Context, cfg fleet.Config) (*Fleet, error) {
	root, err := filepath.Abs(cfg.Root)
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
	cfg.Root, cfg.Dir, cfg.Bin, cfg.ControlPlane = root, dir, filepath.Join(root, "bin"), programs
	cfg.Printf = func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "e2e: %3.0fs %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	f := &Fleet{Root: root, API: map[string]Clients{}, Forgiven: map[string]int{}, Fleet: fleet.New(cfg)}
	if err := f.Start(ctx); err != nil {
		return nil, err
	}
	if f.HubAPI, err = clientsOf(f.Hub); err != nil {
		return nil, errors.Join(err, f.Stop())
	}
	for name, c := range f.Clusters {
		if f.API[name], err = clientsOf(c); err != nil {
			return nil, errors.Join(err, f.Stop())
		}
	}
	return f, nil
}

func clientsOf(c *controlplane.Cluster) (cl Clients, err error) {
	cfg, err := c.RESTConfig()
	if err != nil {
		return cl, err
	}
	cfg.QPS = -1 // scenarios run side by side: no limit
	if cl.Kube, err = kubernetes.NewForConfig(cfg); err != nil {
		return cl, err
	}
	if cl.Dynamic, err = dynamic.NewForConfig(cfg); err != nil {
		return cl, err
	}
	cl.Work, err = workclient.NewForConfig(cfg)
	return cl, err
}
