// Package server runs one Kubernetes control plane inside this process: etcd, kube-apiserver, controllers, and
// the simulated nodes of package kubelet.
//
// No test may import it, because it links about two thousand packages. Tests run the program.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/version"

	"github.com/hawser-io/hawser/test/controlplane/internal/config"
	"github.com/hawser-io/hawser/test/controlplane/internal/kubelet"
	"github.com/hawser-io/hawser/test/controlplane/internal/pki"
	"github.com/hawser-io/hawser/test/controlplane/internal/statedir"
)

// gcPercent trades 15 % more CPU for 40 MB less memory per control plane.
const gcPercent = 50

// ControlPlane is one cluster without machines.
type ControlPlane struct {
	Config config.Config
	// Ready is called once with the path of the kubeconfig. At that time the API server is ready, the controllers
	// work and the nodes are registered.
	Ready func(kubeconfig string)
	Log   *slog.Logger
}

// Version is the Kubernetes version, for example v1.36.3.
func Version() string { return version.Get().GitVersion }

// Run runs the control plane until ctx is done, and then returns nil without waiting for anything. An error
// names the failed part and the next step.
//
// The parts cannot be stopped before the process ends. The kube-apiserver takes up to a minute to stop, because
// it waits for the watches of its clients. So a process calls Run once and exits when it returns. That loses
// nothing: the operating system has what etcd acknowledged, and the next start replays it.
func (c *ControlPlane) Run(ctx context.Context) error {
	parts, fail := context.WithCancelCause(ctx)
	go func() { fail(c.start(parts, fail)) }()
	<-parts.Done()
	select {
	case <-ctx.Done():
		return nil
	default:
		return context.Cause(parts)
	}
}

// start starts one part after the other and then waits for ctx. A part that ends calls fail, which ends ctx.
func (c *ControlPlane) start(ctx context.Context, fail context.CancelCauseFunc) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	// Deprecated versions of kinds are served and watched here without warnings.
	restclient.SetDefaultWarningHandler(restclient.NoWarnings{})

	dir, err := statedir.Open(c.Config.Dir)
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // the kernel releases the lock in any case
	listener, err := dir.Listen(c.Config.Port)
	if err != nil {
		return err
	}
	certs, err := dir.Certificates(time.Now())
	if err != nil {
		return err
	}
	kubeconfig, err := dir.WriteKubeconfig(c.Config.Name, "https://"+listener.Addr().String(), certs)
	if err != nil {
		return err
	}
	socket, err := dir.EtcdSocket()
	if err != nil {
		return err
	}
	if err := startEtcd(ctx, dir.Path("etcd"), socket, fail); err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	background(ctx, fail, "kube-apiserver", func() error {
		return runAPIServer(ctx, listener, apiServerFlags(socket, certs, c.Config.APIServerFlags))
	})
	if err := c.startClients(ctx, kubeconfig, certs, fail); err != nil {
		return err
	}
	c.Ready(kubeconfig)
	<-ctx.Done()
	return nil
}

// startClients starts all clients of the API server once that is ready. It returns when they work.
func (c *ControlPlane) startClients(ctx context.Context, kubeconfig string, certs pki.Files, fail context.CancelCauseFunc) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	cfg.QPS = -1 // no limit
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	if err := waitForAPIServer(ctx, client); err != nil {
		return err
	}
	background(ctx, fail, "garbage collector", func() error { return runGarbageCollector(ctx, cfg, client) })
	background(ctx, fail, "namespace controller", func() error { return runNamespaceController(ctx, cfg, client, c.Log) })
	background(ctx, fail, "controllers", func() error { return runControllers(ctx, kubeconfig, certs) })
	if c.Config.Nodes > 0 {
		k := &kubelet.Kubelet{Client: client, Nodes: c.Config.Nodes, Log: c.Log}
		if err := k.Register(ctx); err != nil {
			return err
		}
		background(ctx, fail, "simulated kubelet", func() error { return k.Run(ctx) })
	}
	return waitForControllers(ctx, client)
}

// background runs a part until the control plane ends. If the part ends before ctx, that is a failure.
func background(ctx context.Context, fail context.CancelCauseFunc, name string, run func() error) {
	go func() {
		err := run()
		if err == nil && ctx.Err() == nil {
			err = errors.New("ended")
		}
		if err != nil {
			fail(fmt.Errorf("%s: %w", name, err))
		}
	}()
}
