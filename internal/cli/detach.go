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
		Short: "Remove a cluster from the hub, with its works",
		Long: `Remove a cluster from the hub, with its works.

It deletes the ManagedCluster and waits until it is gone. The hub first deletes the
add-ons of the cluster and its works. A work is gone when its cluster has deleted the
objects. The agent stays on the cluster until you remove it, and so does the namespace of
the cluster on the hub. When the ManagedCluster is gone, none of its certificates is valid
any more: another cluster can use the name.

To keep the objects of works on a cluster, do not detach it: deny it (hawser reject
cluster). The works of a denied cluster cannot end; the command then prints the remedy.`,
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
		return hint(fmt.Errorf("the hub has no cluster %s", name), "list the clusters with: kubectl get managedclusters")
	}
	// Scenario:
	//   t1: the ManagedCluster is deleted.
	//   t2: this program ends.
	//   t3: another cluster of that name gets its works.
	// Result: the certificates become invalid before the deletion.
	until := c.UID
	if had, err := hub.earliestOf(ctx, name); err != nil {
		return err
	} else if had.Counts() && !c.Spec.HubAcceptsClient {
		until = "" // the rejected cluster cannot connect
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
		return hint(err, "check that its agent runs and reaches the broker. If the cluster will never return: hawser unbind cluster %s --works", name)
	case err != nil:
		return err
	}
	return printf(env.Stdout, `cluster %s is detached
what stays on the hub:      the namespace %[1]s, with the objects of others in it
what stays on the cluster:  its agent; remove it with hawser uninstall cluster %[1]s, or as its klusterlet was installed
`, name)
}

// attached returns which parts of a cluster remain. It returns an error if the cluster has works but is not
// accepted: a broker then sends it no deletions.
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
		return "the cluster has to delete the objects of " + fewNames(works.Items), nil
	}
	if d := apimeta.FindStatusCondition(c.Status.Conditions, clusterv1.ManagedClusterConditionDeleting); d != nil && d.Message != "" {
		return d.Message, nil
	}
	if len(c.Finalizers) > 0 {
		return "wait for the owners of its finalizers: " + strings.Join(c.Finalizers, ", "), nil
	}
	return "the hub has to delete it", nil
}

// neverConnected is the error of works whose deletion no broker sends to the cluster.
func neverConnected(ctx context.Context, hub hubAPI, cluster string, works []unstructured.Unstructured) error {
	e, err := hub.earliestOf(ctx, cluster)
	switch {
	case err != nil:
		return err
	case e.Counts():
		return hint(fmt.Errorf("cluster %s is being detached, but it was denied: it receives no deletion of %s", cluster, fewNames(works)),
			"to leave it on the cluster: hawser unbind cluster %s --works; then run hawser detach %[1]s again", cluster)
	}
	return hint(fmt.Errorf("cluster %s is being detached, but it is not accepted: it receives no deletion of %s", cluster, fewNames(works)),
		"to have it deleted: hawser accept %s; to leave it on the cluster: hawser unbind cluster %[1]s --works; then run hawser detach %[1]s again", cluster)
}

// fewOf returns the beginning of a list of names, in brackets.
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

// fewNames returns the names of works, limited in number.
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
