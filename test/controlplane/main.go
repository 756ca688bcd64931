// Command controlplane runs one real Kubernetes control plane on 127.0.0.1, in one process and without
// containers. It has etcd, kube-apiserver with RBAC, and a simulated scheduler and kubelet. It has the
// controllers for deletion, ownership, namespaces, service accounts and workloads.
//
// It is the hub and the managed clusters of Hawser's tests, benchmarks and demo. README.md in this directory
// has its flags and limits.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/hawser-io/hawser/test/controlplane/internal/config"
	"github.com/hawser-io/hawser/test/controlplane/internal/server"
)

func main() {
	cfg, err := config.Parse(os.Args[1:])
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Print(config.Usage())
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "controlplane: %v\nRun controlplane --help for the flags.\n", err)
		os.Exit(2)
	case cfg.ShowVersion:
		fmt.Println(server.Version())
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	if cfg.StopWithStdin {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // the end of standard input stops the process
			stop()
		}()
	}
	cp := &server.ControlPlane{
		Config: cfg,
		Ready:  func(kubeconfig string) { fmt.Println(kubeconfig) },
		Log:    slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	if err := cp.Run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "controlplane: %v\n", err)
		os.Exit(1)
	}
}
