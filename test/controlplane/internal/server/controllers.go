package server

import (
	"context"
	"strings"

	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"

	"github.com/hawser-io/hawser/test/controlplane/internal/pki"
)

// controllers are the enabled controllers of kube-controller-manager. The garbage collector and the namespace
// controller run separately with shorter waits, see garbagecollector.go and namespaces.go. The controllers of
// the node lifecycle must not run, because simulated nodes send no heartbeats.
var controllers = []string{
	names.ServiceAccountController,
	names.ServiceAccountTokenController,
	names.RootCACertificatePublisherController,
	names.ClusterRoleAggregationController,
	names.DeploymentController,
	names.ReplicaSetController,
	names.StatefulSetController,
	names.DaemonSetController,
	names.JobController,
	names.CronJobController,
	names.EndpointSliceController,
	names.CertificateSigningRequestSigningController,
	names.CertificateSigningRequestApprovingController,
}

// runControllers does the same as the command kube-controller-manager, without signal handling, leader election
// and an address.
func runControllers(ctx context.Context, kubeconfig string, certs pki.Files) error {
	s, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		return err
	}
	if s.ComponentGlobalsRegistry, err = newRegistry(); err != nil {
		return err
	}
	all, disabled, aliases := app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()
	flags := s.Flags(all, disabled, aliases)
	s.ParsedFlags = &flags
	if err := parseFlags(flags, []string{
		"--kubeconfig=" + kubeconfig,
		"--leader-elect=false",
		"--secure-port=0",
		"--controllers=" + strings.Join(controllers, ","),
		"--root-ca-file=" + certs.CACert,
		"--service-account-private-key-file=" + certs.TokenSigningKey,
		"--cluster-signing-cert-file=" + certs.CACert,
		"--cluster-signing-key-file=" + certs.CAKey,
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
		"--profiling=false",
	}); err != nil {
		return err
	}
	if err := s.ComponentGlobalsRegistry.Set(); err != nil {
		return err
	}
	cfg, err := s.Config(ctx, all, disabled, aliases)
	if err != nil {
		return err
	}
	return app.Run(ctx, cfg.Complete())
}
