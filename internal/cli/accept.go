package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"
)

// acceptance is what hawser accept is asked to do.
type acceptance struct {
	connection
	choice
	wait bool
}

func newAccept(env Env) *cobra.Command {
	var a acceptance
	cmd := &cobra.Command{
		Use:   "accept CLUSTER…",
		Short: "Let clusters in that ask to join the hub",
		Long: `Let clusters in that ask to join the hub, with your rights in its kubeconfig.

It approves the request for the first certificate of each cluster, and sets
spec.hubAcceptsClient of its ManagedCluster. From then on the cluster gets its works, and
the hub renews its certificate by itself. A cluster that was denied is let in again. One
that is being detached is let in only until its works have ended. See who waits with:

  hawser get clusters

Where several agents ask under the name of one cluster, look whose each is (kubectl get csr)
and name the right one with --csr. So do where somebody asked with whose token no cluster
joins, or name who asked with --requester. A request for anything but a certificate of the
cluster is never approved.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, clusters []string) error {
			if err := a.check(cmd); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
			defer cancel()
			hub, err := a.hub()
			if err != nil {
				return err
			}
			var failed []error
			for _, name := range clusters {
				if err := a.accept(ctx, env, hub, name); err != nil {
					failed = append(failed, err)
				}
			}
			return several(failed)
		},
	}
	a.add(cmd, "the hub (default the current one)")
	f := cmd.Flags()
	f.StringArrayVar(&a.named, "csr", nil, "approve the certificate request of this name, and no other; may be repeated")
	f.BoolVar(&a.all, "all", false, "approve the requests of all agents that ask under the name of a cluster")
	f.StringArrayVar(&a.askers, "requester", nil, "user with whose token clusters join, beside the bootstrap accounts of Open Cluster Management; may be repeated")
	f.BoolVar(&a.wait, "wait", false, "wait for clusters that have not asked yet, and until each has joined")
	return cmd
}

// several is the errors of several clusters in one; one alone keeps its hint.
func several(failed []error) error {
	if len(failed) == 1 {
		return failed[0]
	}
	return errors.Join(failed...)
}

// accept lets one cluster in.
func (a *acceptance) accept(ctx context.Context, env Env, hub hubAPI, name string) error {
	if !a.wait {
		_, err := a.once(ctx, env, hub, name)
		return err
	}
	wait := func(look func(context.Context, hubAPI, string) (string, error)) error {
		return await(ctx, env, "cluster "+name, func(ctx context.Context) (string, error) { return look(ctx, hub, name) })
	}
	if err := wait(asked); err != nil {
		return err
	}
	again, err := a.once(ctx, env, hub, name)
	if err != nil {
		return err
	}
	if again {
		if err := wait(askedAgain); err != nil {
			return err
		}
		if _, err := a.once(ctx, env, hub, name); err != nil {
			return err
		}
	}
	return wait(joined)
}

// once does what can be done for a cluster now. It reports whether the cluster has to ask again,
// because it was denied.
func (a *acceptance) once(ctx context.Context, env Env, hub hubAPI, name string) (again bool, err error) {
	c, err := hub.cluster(ctx, name)
	switch {
	case err != nil:
		return false, err
	case c == nil:
		return false, unknownCluster(ctx, hub, name)
	case c.DeletionTimestamp != nil && c.Spec.HubAcceptsClient:
		return false, leaving(name)
	case c.DeletionTimestamp != nil:
		// So that it gets to know which works it has to delete. It gets no certificate.
		if err := hub.setAccepted(ctx, name, true); err != nil {
			return false, err
		}
		return false, say(env.Stdout, "cluster %s is accepted until its works have ended: it is being detached\n", name)
	}
	requests, err := hub.requests(ctx, name)
	if err != nil {
		return false, err
	}
	picked, err := a.pickFrom(env, name, requests)
	if err != nil {
		return false, err
	}
	if err := admit(ctx, env, hub, c); err != nil {
		return false, err
	}
	if len(picked) > 0 {
		return false, approveFirst(ctx, env, hub, picked)
	}
	return retry(ctx, env, hub, name, requests)
}

// leaving is the error of a cluster that does not join any more.
func leaving(cluster string) error {
	return fmt.Errorf("cluster %s is being detached: accept it when it has asked again", cluster)
}

// pickFrom returns the applications to approve; what may never be approved is said.
func (a *acceptance) pickFrom(env Env, cluster string, requests []certificatesv1.CertificateSigningRequest) ([]application, error) {
	var waiting []application
	for i := range requests {
		r := &requests[i]
		if !pending(r) {
			continue
		}
		applied, first, err := applicationOf(cluster, r)
		switch {
		case err != nil:
			if err := say(env.Stdout, "certificate request %s is left alone: %v\n", r.Name, err); err != nil {
				return nil, err
			}
		case first:
			waiting = append(waiting, applied)
		}
	}
	for _, name := range a.named {
		if !slices.ContainsFunc(waiting, func(w application) bool { return w.name == name }) {
			return nil, hint(fmt.Errorf("cluster %s has no certificate request %s that waits", cluster, name), "see those it has with: kubectl get csr -l %s=%s", clusterv1.ClusterNameLabelKey, cluster)
		}
	}
	picked, err := a.pick(waiting)
	var stranger strangerError
	switch {
	case errors.Is(err, errSeveral):
		lines := names(waiting, func(w application) string {
			return fmt.Sprintf("  %s of %s, asked for by %s", w.name, w.agent, w.asker)
		})
		return nil, hint(fmt.Errorf("cluster %s: %w:\n%s", cluster, err, strings.Join(lines, "\n")), "name the right one: hawser accept %s --csr NAME; or approve all with --all", cluster)
	case errors.As(err, &stranger):
		return nil, hint(fmt.Errorf("cluster %s: %w", cluster, err), "if that is right, name it: hawser accept %s --csr %s", cluster, stranger.name)
	}
	return picked, err
}

// admit sets what says that the hub accepts the cluster.
func admit(ctx context.Context, env Env, hub hubAPI, c *clusterv1.ManagedCluster) error {
	if c.Spec.HubAcceptsClient {
		return say(env.Stdout, "cluster %s is accepted already\n", c.Name)
	}
	if err := hub.setAccepted(ctx, c.Name, true); err != nil {
		return err
	}
	return say(env.Stdout, "cluster %s is accepted\n", c.Name)
}

// approveFirst approves requests for first certificates.
func approveFirst(ctx context.Context, env Env, hub hubAPI, picked []application) error {
	for _, a := range picked {
		undecided, err := hub.decide(ctx, a.name, certificatesv1.CertificateApproved, "HawserAccept", "hawser accept let this cluster in")
		switch {
		case err != nil:
			return fmt.Errorf("certificate request %s: %w", a.name, err)
		case !undecided:
			err = say(env.Stdout, "certificate request %s was decided by somebody else meanwhile\n", a.name)
		default:
			err = say(env.Stdout, "certificate request %s of %s, asked for by %s, is approved\n", a.name, a.agent, a.asker)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// retry deletes the denied requests of a cluster: an agent of Open Cluster Management asks again
// only when its request is gone. It reports whether one of them was for the first certificate.
func retry(ctx context.Context, env Env, hub hubAPI, cluster string, requests []certificatesv1.CertificateSigningRequest) (again bool, err error) {
	for i := range requests {
		r := &requests[i]
		_, first, err := applicationOf(cluster, r)
		if err != nil || !hasCondition(r, certificatesv1.CertificateDenied) {
			continue
		}
		only := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.UID}}
		if err := hub.Resource(signingRequests).Delete(ctx, r.Name, only); err != nil && !apierrors.IsNotFound(err) {
			return again, fmt.Errorf("certificate request %s: %w", r.Name, err)
		}
		if err := say(env.Stdout, "certificate request %s, which was denied, is deleted: the cluster asks again\n", r.Name); err != nil {
			return again, err
		}
		again = again || first
	}
	return again, nil
}

// asked says what is missing before a cluster can be accepted.
func asked(ctx context.Context, hub hubAPI, name string) (missing string, err error) {
	return applied(ctx, hub, name, "it has not asked for a certificate", func(*certificatesv1.CertificateSigningRequest) bool { return true })
}

// askedAgain says what is missing before a cluster can be accepted whose request was denied.
func askedAgain(ctx context.Context, hub hubAPI, name string) (missing string, err error) {
	return applied(ctx, hub, name, "it has to ask for a certificate again", func(r *certificatesv1.CertificateSigningRequest) bool {
		return !hasCondition(r, certificatesv1.CertificateDenied)
	})
}

// applied returns none, unless the cluster has joined, leaves, or has a request for a first
// certificate that counts.
func applied(ctx context.Context, hub hubAPI, name, none string, counts func(*certificatesv1.CertificateSigningRequest) bool) (missing string, err error) {
	c, err := hub.cluster(ctx, name)
	switch {
	case err != nil:
		return "", err
	case c == nil:
		return "it has not asked to join", nil
	case c.DeletionTimestamp != nil, apimeta.IsStatusConditionTrue(c.Status.Conditions, clusterv1.ManagedClusterConditionJoined):
		return "", nil
	}
	requests, err := hub.requests(ctx, name)
	if err != nil {
		return "", err
	}
	for i := range requests {
		if _, first, err := applicationOf(name, &requests[i]); err == nil && first && counts(&requests[i]) {
			return "", nil
		}
	}
	return none, nil
}

// joined says what is missing until a cluster has joined.
func joined(ctx context.Context, hub hubAPI, name string) (missing string, err error) {
	c, err := hub.cluster(ctx, name)
	switch {
	case err != nil:
		return "", err
	case c == nil:
		return "", fmt.Errorf("cluster %s is not on the hub any more", name)
	case c.DeletionTimestamp != nil:
		return "", leaving(name)
	case !apimeta.IsStatusConditionTrue(c.Status.Conditions, clusterv1.ManagedClusterConditionJoined):
		return "its agent has to take its certificate and come with it", nil
	}
	return "", nil
}

// unknownCluster is the error of a name that no cluster has; it says who waits.
func unknownCluster(ctx context.Context, hub hubAPI, name string) error {
	err := fmt.Errorf("the hub has no cluster %s", name)
	all, listErr := hub.clusters(ctx)
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	waiting := names(slices.DeleteFunc(all, func(c clusterv1.ManagedCluster) bool { return c.Spec.HubAcceptsClient }), func(c clusterv1.ManagedCluster) string { return c.Name })
	if len(waiting) == 0 {
		return hint(err, "no cluster waits to be accepted; let one ask with: hawser join %s", name)
	}
	return hint(err, "these wait to be accepted: %s", strings.Join(waiting, ", "))
}
