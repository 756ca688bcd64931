package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	certificatesv1 "k8s.io/api/certificates/v1"
)

func newReject(env Env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "reject",
		Short: "Revoke the acceptance of a cluster on the hub",
	}, newRejectCluster(env))
}

func newRejectCluster(env Env) *cobra.Command {
	var c connection
	var reason string
	cmd := &cobra.Command{
		Use:   "cluster CLUSTER…",
		Short: "Revoke the acceptance of clusters on the hub",
		Long: `Revoke the acceptance of clusters on the hub, with your rights in its kubeconfig.

It sets spec.hubAcceptsClient of the ManagedCluster to false, and denies the pending
certificate requests of the cluster. Delivery of its works stops at once, and none of its
certificates is valid any more. Objects of works on the cluster stay, and so do the works
on the hub.

Only a person can accept the cluster again. Let it join again with a new token, and accept
its request with hawser accept CLUSTER --csr NAME. Then delivery continues.`,
		Args: cobra.MinimumNArgs(1),
		RunE: c.onClusters(func(ctx context.Context, hub hubAPI, name string) error {
			return rejectCluster(ctx, env, hub, name, reason)
		}),
	}
	c.add(cmd, "the hub (default the current one)")
	cmd.Flags().StringVar(&reason, "reason", "", "reason, for people who read the certificate request later")
	return cmd
}

// rejectCluster revokes the acceptance of a cluster on the hub.
func rejectCluster(ctx context.Context, env Env, hub hubAPI, name, reason string) error {
	c, err := hub.cluster(ctx, name)
	if err != nil {
		return err
	}
	if c == nil {
		return unknownCluster(ctx, hub, name)
	}
	// This write comes first, so that no controller approves a pending request.
	if err := hub.setAccepted(ctx, name, false); err != nil {
		return err
	}
	if err := hub.end(ctx, name, ""); err != nil {
		return err
	}
	line := "cluster %s is rejected: it receives no more works, and the objects on it stay\n"
	if !c.Spec.HubAcceptsClient {
		line = "cluster %s is not accepted\n"
	}
	if err := printf(env.Stdout, line, name); err != nil {
		return err
	}
	requests, err := hub.requests(ctx, name)
	if err != nil {
		return err
	}
	message := "hawser rejected this cluster"
	if reason != "" {
		message += ": " + reason
	}
	for i := range requests {
		if err := denyRequest(ctx, env, hub, &requests[i], message); err != nil {
			return err
		}
	}
	return nil
}

// denyRequest makes sure that a request of a rejected cluster gets no certificate. An approved request without
// a certificate would be signed after the cluster is accepted again.
func denyRequest(ctx context.Context, env Env, hub hubAPI, r *certificatesv1.CertificateSigningRequest, message string) error {
	switch {
	case hasCondition(r, certificatesv1.CertificateApproved) && len(r.Status.Certificate) == 0 && !hasCondition(r, certificatesv1.CertificateFailed):
		if err := hub.discard(ctx, r); err != nil {
			return err
		}
		return printf(env.Stdout, "certificate request %s, which was approved and is not signed yet, is deleted\n", r.Name)
	case !pending(r):
		return nil
	}
	undecided, err := hub.decide(ctx, r.Name, certificatesv1.CertificateDenied, "HawserReject", message)
	switch {
	case err != nil:
		return fmt.Errorf("certificate request %s: %w", r.Name, err)
	case !undecided:
		return nil
	}
	return printf(env.Stdout, "certificate request %s is denied\n", r.Name)
}
