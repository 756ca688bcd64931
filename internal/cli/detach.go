package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "open-cluster-management.io/api/cluster/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

// manifestWorks are the works of a hub.
var manifestWorks = schema.GroupVersionResource{Group: workv1.GroupName, Version: "v1", Resource: "manifestworks"}

func newDetach(env Env) *cobra.Command {
	var c connection
	var wait bool
	cmd := &cobra.Command{
		Use:   "detach CLUSTER",
		Short: "Take a cluster out of the hub, with its works",
		Long: `Take a cluster out of the hub, with its works.

It deletes the ManagedCluster and waits until it is gone: the hub deletes the add-ons of the
cluster and its works first, and a work is gone when its cluster has deleted what it has of
it. The agent stays on the cluster until you take it off, and so does the namespace of the
cluster on the hub. When the ManagedCluster is gone, no certificate of it counts any more:
another cluster can have the name.

To keep what works have on a cluster, do not detach it: deny it (hawser reject cluster). The
works of a cluster that is denied do not end, so it says at once what to do.`,
		Args: cobra.ExactArgs(1),
		RunE: c.onClusters(func(ctx context.Context, hub hubAPI, name string) error {
			return detach(ctx, env, hub, name, wait)
		}),
	}
	c.add(cmd, "the hub (default the current one)")
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until it is gone")
	return cmd
}

// detach deletes a ManagedCluster.
func detach(ctx context.Context, env Env, hub hubAPI, name string, wait bool) error {
	c, err := hub.cluster(ctx, name)
	switch {
	case err != nil:
		return err
	case c == nil:
		return hint(fmt.Errorf("the hub has no cluster %s", name), "see those it has with: kubectl get managedclusters")
	}
	// First: t1 it is deleted, t2 this ends here, t3 another cluster of the name is given its works.
	until := c.UID
	if had, err := hub.earliestOf(ctx, name); err != nil {
		return err
	} else if had.Counts() && !c.Spec.HubAcceptsClient {
		until = "" // it was denied, and can not come
	}
	if err := hub.end(ctx, name, until); err != nil {
		return err
	}
	if c.DeletionTimestamp == nil {
		only := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &c.UID}}
		if err := hub.Resource(clusterKind).Delete(ctx, name, only); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	look := func(ctx context.Context) (string, error) { return attached(ctx, hub, c) }
	if !wait {
		if _, err := look(ctx); err != nil {
			return err
		}
		return printf(env.Stdout, "cluster %s is being detached\n", name)
	}
	switch err := await(ctx, env, "cluster "+name, look); {
	case err != nil && ctx.Err() != nil:
		return hint(err, "does its agent run, and reach the broker? If it never comes back: hawser unbind cluster %s --works", name)
	case err != nil:
		return err
	}
	return printf(env.Stdout, `cluster %s is detached
what stays on the hub:      the namespace %[1]s, with what others put there
what stays on the cluster:  its agent; take it off with hawser uninstall cluster %[1]s, or as its klusterlet was installed
`, name)
}

// attached says what of a cluster is still there. Its works of which nobody tells it that they are
// deleted are an error: a broker sends a cluster that is not accepted nothing.
func attached(ctx context.Context, hub hubAPI, was *clusterv1.ManagedCluster) (missing string, err error) {
	c, err := hub.cluster(ctx, was.Name)
	if err != nil || c == nil || c.UID != was.UID {
		return "", err
	}
	works, err := hub.Resource(manifestWorks).Namespace(c.Name).List(ctx, metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", err
	}
	switch {
	case works == nil || len(works.Items) == 0:
	case !c.Spec.HubAcceptsClient:
		return "", neverConnected(ctx, hub, c.Name, works.Items)
	default:
		return "the cluster has to delete what it has of " + fewNames(works.Items), nil
	}
	if d := apimeta.FindStatusCondition(c.Status.Conditions, clusterv1.ManagedClusterConditionDeleting); d != nil && d.Message != "" {
		return d.Message, nil
	}
	if len(c.Finalizers) > 0 {
		return "who has put these finalizers on it has to be done: " + strings.Join(c.Finalizers, ", "), nil
	}
	return "the hub has to delete it", nil
}

// neverConnected is the error of works of which no broker tells the cluster that they are deleted.
func neverConnected(ctx context.Context, hub hubAPI, cluster string, works []unstructured.Unstructured) error {
	e, err := hub.earliestOf(ctx, cluster)
	switch {
	case err != nil:
		return err
	case e.Counts():
		return hint(fmt.Errorf("cluster %s is being detached, but it was denied: it does not get to know that it has to delete what it has of %s", cluster, fewNames(works)),
			"to leave it on the cluster: hawser unbind cluster %s --works; then run hawser detach %[1]s again", cluster)
	}
	return hint(fmt.Errorf("cluster %s is being detached, but it is not accepted: it does not get to know that it has to delete what it has of %s", cluster, fewNames(works)),
		"to have it deleted: hawser accept %s; to leave it on the cluster: hawser unbind cluster %[1]s --works; then run hawser detach %[1]s again", cluster)
}

// fewOf is the beginning of a list of names, in brackets.
func fewOf(names []string) string {
	const most = 5
	switch {
	case len(names) == 0:
		return ""
	case len(names) > most:
		return " (" + strings.Join(names[:most], ", ") + ", …)"
	}
	return " (" + strings.Join(names, ", ") + ")"
}

// fewNames names works, not too many.
func fewNames(works []unstructured.Unstructured) string {
	const most = 5
	all := names(works, func(o unstructured.Unstructured) string { return o.GetName() })
	if len(all) == 1 {
		return "the work " + all[0]
	}
	text := fmt.Sprintf("%d works: ", len(all))
	if len(all) > most {
		return text + strings.Join(all[:most], ", ") + ", …"
	}
	return text + strings.Join(all, ", ")
}
