package server

import (
	"context"
	"fmt"
	"net"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilcompat "k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	basecompat "k8s.io/component-base/compatibility"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/hawser-io/hawser/test/controlplane/internal/pki"
)

// apiServerFlags returns the flags of kube-apiserver. Admission and authentication keep all defaults.
func apiServerFlags(etcdSocket string, certs pki.Files, extra []string) []string {
	return append([]string{
		"--etcd-servers=unix://" + etcdSocket,
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none", // 127.0.0.1 is no valid endpoint of a Service
		"--service-cluster-ip-range=10.0.0.0/16",
		"--tls-cert-file=" + certs.ServerCert,
		"--tls-private-key-file=" + certs.ServerKey,
		"--client-ca-file=" + certs.CACert,
		"--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + certs.TokenVerifyKeys,
		"--service-account-signing-key-file=" + certs.TokenSigningKey,
		"--allow-privileged=true",
		"--enable-priority-and-fairness=false",
		"--profiling=false",
	}, extra...)
}

// runAPIServer serves the Kubernetes API on an open listener. It does the same as the command kube-apiserver,
// without its signal handling.
func runAPIServer(ctx context.Context, listener net.Listener, flags []string) error {
	// Several components of this process configure the same logger.
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged
	s := options.NewServerRunOptions()
	registry, err := newRegistry()
	if err != nil {
		return err
	}
	s.GenericServerRunOptions.ComponentGlobalsRegistry = registry
	if err := parseFlags(s.Flags(), flags); err != nil {
		return err
	}
	s.SecureServing.Listener = listener // it takes precedence over address and port
	s.SecureServing.BindPort = listener.Addr().(*net.TCPAddr).Port
	if err := registry.Set(); err != nil {
		return err
	}
	if err := logsapi.ValidateAndApply(s.Logs, utilfeature.DefaultFeatureGate); err != nil {
		return err
	}
	completed, err := s.Complete(ctx)
	if err != nil {
		return err
	}
	if err := utilerrors.NewAggregate(completed.Validate()); err != nil {
		return fmt.Errorf("check the flags after --: %w", err)
	}
	return app.Run(ctx, completed)
}

// newRegistry returns the version and feature gates of one component. Each component has its own, because it
// sets them from its own flags.
func newRegistry() (basecompat.ComponentGlobalsRegistry, error) {
	r := basecompat.NewComponentGlobalsRegistry()
	err := r.Register(basecompat.DefaultKubeComponent, utilcompat.DefaultBuildEffectiveVersion(), utilfeature.DefaultMutableFeatureGate)
	if err != nil {
		return nil, fmt.Errorf("register feature gates: %w", err)
	}
	return r, nil
}

func parseFlags(sets cliflag.NamedFlagSets, args []string) error {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, set := range sets.FlagSets {
		fs.AddFlagSet(set)
	}
	if err := fs.Parse(args); err != nil {
		return fmt.Errorf("check the flags after --: %w", err)
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("check the flags after --: %q is no flag", fs.Arg(0))
	}
	return nil
}
