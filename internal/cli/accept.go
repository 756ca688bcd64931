package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	certificatesv1 "k8s.io/api/certificates/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "open-cluster-management.io/api/cluster/v1"
)

// acceptance holds the arguments of hawser accept.
type acceptance struct {
	connection
	choice
	wait bool
}

func newAccept(env Env) *cobra.Command {
	var a acceptance
	cmd := &cobra.Command{
		Use:   "accept CLUSTER…",
		Short: "Accept clusters that request to join the hub",
		Long: `Accept clusters that request to join the hub, with your rights in its kubeconfig.

It approves the request for the first certificate of each cluster, and sets
spec.hubAcceptsClient of its ManagedCluster. From then on the cluster receives its works,
and the hub renews its certificate automatically. A denied cluster is accepted again. A
cluster that is being detached is accepted only until its works are gone. Show pending
clusters with:

  hawser get clusters

For a cluster that had an agent, only a request named with --csr is approved: every holder
of a token can request its name. hawser accept prints each pending request with its
requester, its time, the SHA-256 of its public key, and the command that approves it. The
log of the agent contains the same key.

The same applies if several agents request under the name of one cluster. It also applies
if a requester is not one that clusters join with; --requester names such a user. A request
for anything but a certificate of the cluster is never approved.`,
		Args: cobra.MinimumNArgs(1),
		RunE: a.onClusters(func(ctx context.Context, hub hubAPI, name string) error {
			return a.accept(ctx, env, hub, name)
		}),
	}
	a.add(cmd, "the hub (default the current one)")
	f := cmd.Flags()
	f.StringArrayVar(&a.named, "csr", nil, "approve the certificate request of this name, and no other; may be repeated")
	f.BoolVar(&a.all, "all", false, "approve the requests of all agents that request under the name of a cluster")
	f.StringArrayVar(&a.requesters, "requester", nil, "user with whose token clusters join, beside the bootstrap accounts of Open Cluster Management; may be repeated")
	f.BoolVar(&a.wait, "wait", false, "wait for the requests of the clusters, and until each is available")
	return cmd
}

// accept accepts one cluster. With --wait, the first request of a cluster without an agent is approved when it
// arrives. Later requests need a person.
func (a *acceptance) accept(ctx context.Context, env Env, hub hubAPI, name string) error {
	if !a.wait {
		_, err := a.once(ctx, env, hub, name)
		return err
	}
	wait := func(look func(context.Context, hubAPI, string) (string, error)) error {
		return await(ctx, env, "cluster "+name, func(ctx context.Context) (string, error) { return look(ctx, hub, name) })
	}
	if err := wait(requestOf); err != nil {
		return err
	}
	approved, err := a.once(ctx, env, hub, name)
	if err != nil {
		return err
	}
	if !approved {
		if err := wait(func(ctx context.Context, hub hubAPI, name string) (string, error) {
			return a.comes(ctx, env, hub, name)
		}); err != nil {
			return err
		}
		r, err := a.read(ctx, env, hub, name)
		if err == nil && r.cluster != nil {
			err = approveFirst(ctx, env, hub, r.picked)
		}
		if err != nil {
			return err
		}
	}
	return wait(there)
}

// once performs the steps for a cluster that are possible now. It reports whether it approved a request.
func (a *acceptance) once(ctx context.Context, env Env, hub hubAPI, name string) (approved bool, err error) {
	r, err := a.read(ctx, env, hub, name)
	switch c := r.cluster; {
	case err != nil:
		return false, err
	case c == nil:
		return false, unknownCluster(ctx, hub, name)
	case c.DeletionTimestamp != nil && c.Spec.HubAcceptsClient:
		return false, leaving(name)
	case c.DeletionTimestamp != nil:
		// An accepted cluster receives the deletions of its works. It gets no certificate.
		if err := hub.setAccepted(ctx, name, true); err != nil {
			return false, err
		}
		return false, printf(env.Stdout, "cluster %s is accepted until its works have ended: it is being detached\n", name)
	}
	if err := admit(ctx, env, hub, r.cluster, len(r.waiting) > 0); err != nil {
		return false, err
	}
	if len(r.picked) > 0 {
		return true, approveFirst(ctx, env, hub, r.picked)
	}
	if len(r.waiting) > 0 && !a.wait {
		if err := printf(env.Stdout, "%s", lines(a.unnamed(env, r)+"\n")); err != nil {
			return false, err
		}
	}
	return false, retry(ctx, env, hub, name, r.requests)
}

// unnamed returns a text with the pending requests of a cluster that had an agent.
func (a *acceptance) unnamed(env Env, r reading) string {
	return "cluster " + r.cluster.Name + " had an agent before, so none of these is approved unless it is named:\n" +
		a.lines(env, r.cluster.Name, r.history, r.waiting) + "\n" + compare
}

// leaving is the error of a cluster that is being detached.
func leaving(cluster string) error {
	return fmt.Errorf("cluster %s is being detached: accept it after its next request", cluster)
}

// reading holds the hub's objects of a cluster; cluster is nil if there is none.
type reading struct {
	cluster  *clusterv1.ManagedCluster
	requests []certificatesv1.CertificateSigningRequest
	history  history
	// waiting are the undecided applications, picked those of them to approve.
	waiting, picked []application
}

// read reads the hub's objects, and prints requests that may never be approved.
func (a *acceptance) read(ctx context.Context, env Env, hub hubAPI, cluster string) (r reading, err error) {
	if r.cluster, err = hub.cluster(ctx, cluster); err != nil || r.cluster == nil || r.cluster.DeletionTimestamp != nil {
		return r, err
	}
	if r.requests, err = hub.requests(ctx, cluster); err != nil {
		return r, err
	}
	r.history = historyOf(r.cluster, r.requests)
	for i := range r.requests {
		is := &r.requests[i]
		if !pending(is) {
			continue
		}
		applied, first, err := applicationOf(cluster, is)
		switch {
		case err != nil:
			if err := printf(env.Stdout, "certificate request %s is not changed: %v\n", is.Name, err); err != nil {
				return r, err
			}
		case first:
			r.waiting = append(r.waiting, applied)
		}
	}
	for _, name := range a.named {
		if !slices.ContainsFunc(r.waiting, func(w application) bool { return w.name == name }) {
			return r, hint(fmt.Errorf("cluster %s has no pending certificate request %s", cluster, name), "list its certificate requests with: kubectl get csr -l %s=%s", clusterv1.ClusterNameLabelKey, cluster)
		}
	}
	chosen := a.choice
	chosen.member = r.history.member
	r.picked, err = chosen.pick(r.waiting)
	var quarantined quarantinedError
	switch {
	case errors.Is(err, errSeveral):
		return r, hint(fmt.Errorf("cluster %s: %w:\n%s", cluster, err, a.lines(env, cluster, r.history, r.waiting)), "name the right one: hawser accept %s --csr NAME; or approve all with --all; %s", cluster, compare)
	case errors.As(err, &quarantined):
		return r, hint(fmt.Errorf("cluster %s: %w:\n%s", cluster, err, a.lines(env, cluster, r.history, r.waiting)), "if that is right, name it: hawser accept %s --csr %s", cluster, quarantined.name)
	}
	return r, err
}

// admit sets hubAcceptsClient of the cluster. requests: the cluster has a pending request.
func admit(ctx context.Context, env Env, hub hubAPI, c *clusterv1.ManagedCluster, requests bool) error {
	switch {
	case c.Spec.HubAcceptsClient && requests:
		return printf(env.Stdout, "cluster %s is accepted already\n", c.Name)
	case c.Spec.HubAcceptsClient:
		return printf(env.Stdout, "cluster %s is accepted already, and has no pending certificate request\n", c.Name)
	}
	if err := hub.setAccepted(ctx, c.Name, true); err != nil {
		return err
	}
	return printf(env.Stdout, "cluster %s is accepted\n", c.Name)
}

// approveFirst approves requests for first certificates.
func approveFirst(ctx context.Context, env Env, hub hubAPI, picked []application) error {
	for _, a := range picked {
		undecided, err := hub.decide(ctx, a.name, certificatesv1.CertificateApproved, "HawserAccept", "hawser accept accepted this cluster")
		switch {
		case err != nil:
			return fmt.Errorf("certificate request %s: %w", a.name, err)
		case !undecided:
			err = printf(env.Stdout, "certificate request %s was already decided by another user\n", a.name)
		default:
			err = printf(env.Stdout, "certificate request %s of %s, requested by %s, is approved\n", a.name, a.agent, a.requester)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// retry deletes requests of a cluster that were denied, or that can no longer be signed. An OCM agent makes a
// new request only when its old one is gone.
func retry(ctx context.Context, env Env, hub hubAPI, cluster string, requests []certificatesv1.CertificateSigningRequest) error {
	for i := range requests {
		r := &requests[i]
		over := hasCondition(r, certificatesv1.CertificateDenied) || hasCondition(r, certificatesv1.CertificateFailed)
		if _, _, err := applicationOf(cluster, r); err != nil || !over {
			continue
		}
		if err := hub.discard(ctx, r); err != nil {
			return err
		}
		if err := printf(env.Stdout, "certificate request %s, which was denied, is deleted: the cluster makes a new one\n", r.Name); err != nil {
			return err
		}
	}
	return nil
}

// requestOf returns what is missing before a cluster can be accepted. A cluster that joined before may have its
// certificate and no request.
func requestOf(ctx context.Context, hub hubAPI, name string) (missing string, err error) {
	c, err := hub.cluster(ctx, name)
	switch {
	case err != nil:
		return "", err
	case c == nil:
		return "it has not requested to join", nil
	case c.DeletionTimestamp != nil, apimeta.IsStatusConditionTrue(c.Status.Conditions, clusterv1.ManagedClusterConditionJoined):
		return "", nil
	}
	requests, err := firstRequests(ctx, hub, name)
	if err == nil && len(requests) == 0 {
		missing = "it has not requested a certificate"
	}
	return missing, err
}

// comes returns what is missing until an accepted cluster is available, or requests its first certificate.
func (a *acceptance) comes(ctx context.Context, env Env, hub hubAPI, name string) (missing string, err error) {
	if missing, err = there(ctx, hub, name); err != nil || missing == "" {
		return missing, err
	}
	r, err := (&acceptance{connection: a.connection, choice: choice{all: true}}).read(ctx, Env{Stdout: io.Discard, Program: env.Program}, hub, name)
	switch {
	case err != nil && !errors.As(err, new(quarantinedError)) || r.cluster == nil:
		return "", err
	case r.history.member && len(r.waiting) > 0:
		return a.unnamed(env, r), nil
	case len(r.waiting) > 0:
		return "", nil
	case slices.ContainsFunc(r.requests, func(is certificatesv1.CertificateSigningRequest) bool {
		return hasCondition(&is, certificatesv1.CertificateApproved)
	}):
		return missing, nil
	}
	return "its agent has to request a certificate, or to connect with the one that it has", nil
}

// there returns what is missing until an accepted cluster is available. The condition Joined does not suffice:
// it stays True while the cluster is disconnected.
func there(ctx context.Context, hub hubAPI, name string) (missing string, err error) {
	c, err := hub.cluster(ctx, name)
	switch {
	case err != nil:
		return "", err
	case c == nil:
		return "", fmt.Errorf("cluster %s is not on the hub any more", name)
	case c.DeletionTimestamp != nil:
		return "", leaving(name)
	case !apimeta.IsStatusConditionTrue(c.Status.Conditions, clusterv1.ManagedClusterConditionJoined),
		!apimeta.IsStatusConditionTrue(c.Status.Conditions, clusterv1.ManagedClusterConditionAvailable):
		return "its agent has to receive its certificate and connect with it", nil
	}
	return "", nil
}

// firstRequests returns the requests of a cluster for a first certificate.
func firstRequests(ctx context.Context, hub hubAPI, name string) ([]certificatesv1.CertificateSigningRequest, error) {
	all, err := hub.requests(ctx, name)
	return slices.DeleteFunc(all, func(r certificatesv1.CertificateSigningRequest) bool {
		_, first, err := applicationOf(name, &r)
		return err != nil || !first
	}), err
}

// unknownCluster is the error of an unknown cluster name; it lists the pending clusters.
func unknownCluster(ctx context.Context, hub hubAPI, name string) error {
	err := fmt.Errorf("the hub has no cluster %s", name)
	all, listErr := hub.clusters(ctx)
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	waiting := names(slices.DeleteFunc(all, func(c clusterv1.ManagedCluster) bool { return c.Spec.HubAcceptsClient }), func(c clusterv1.ManagedCluster) string { return c.Name })
	if len(waiting) == 0 {
		return hint(err, "no cluster is pending; hawser token create prints the command with which %s requests to join", name)
	}
	return hint(err, "pending clusters: %s", strings.Join(waiting, ", "))
}
