package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/install"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

func newUninstall(env Env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "uninstall",
		Short: "Remove Hawser from a managed cluster or a hub and, on request, the delivered objects",
		Long: `Remove from a managed cluster or a hub what hawser install has installed.

Objects of works on clusters stay. So does the data for a later installation: the
definitions with works and records, the broker's volume, the CA, and the namespace hawser.

With --delete-workloads the works are deleted first, which removes their objects from the
clusters, then the clusters that joined. Only resources that Open Cluster Management uses
on the hub stay. This cannot be undone, so it asks first.`,
	}, newUninstallHub(env), newUninstallCluster(env))
}

// uninstallFlags adds the options of an uninstallation to those of an installation.
type uninstallFlags struct {
	connection
	consent
	workloads bool
}

func (f *uninstallFlags) add(cmd *cobra.Command, of, works string) {
	f.connection.add(cmd, of)
	f.consent.add(cmd)
	cmd.Flags().BoolVar(&f.workloads, "delete-workloads", false, "delete "+works+" first, wait until they are gone, and leave nothing")
}

// checkWord checks the connection and, with --delete-workloads, the consent.
func (f *uninstallFlags) checkWord(cmd *cobra.Command, check func(*cobra.Command) error) error {
	if err := check(cmd); err != nil || !f.workloads {
		return err
	}
	return f.consent.check(cmd)
}

// agreed asks the user for confirmation before the works of a namespace, or all works, are deleted. The time of
// the answer does not count towards the timeout.
func (f *uninstallFlags) agreed(cmd *cobra.Command, env Env, hub *kubeclient.Kube, namespace string) error {
	if !f.workloads || f.dryRun || f.yes {
		return nil
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
	defer cancel()
	works, err := installer(env, hub).Works(ctx, hub.Metadata(), namespace)
	if err != nil {
		return err
	}
	return f.get(cmd.Context(), cmd, env, fmt.Sprintf("This deletes %d works of the hub%s, with their objects on the clusters. This cannot be undone.", len(works), fewOf(works)))
}

// remove uninstalls the objects of a plan.
func (f *uninstallFlags) remove(ctx context.Context, i install.Installer, p install.Plan) error {
	keep, err := i.KeepFilter(ctx, p, f.workloads)
	if err != nil {
		return err
	}
	return i.Remove(ctx, p, keep)
}

func newUninstallHub(env Env) *cobra.Command {
	var f uninstallFlags
	cmd := &cobra.Command{
		Use:   "hub",
		Short: "Remove broker and hub-source from a hub",
		Args:  cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.checkWord(cmd, f.connection.check); err != nil {
				return err
			}
			hub, err := f.dial(f.context)
			if err != nil {
				return err
			}
			if err := f.agreed(cmd, env, hub, ""); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			p, err := install.Installed(ctx, hub, env.Now())
			if err != nil {
				return err
			}
			i := installer(env, hub)
			i.Dry = f.dryRun
			if f.workloads {
				if err := i.DeleteWorks(ctx, hub.Metadata(), ""); err != nil {
					return err
				}
				if err := i.DeleteClusters(ctx, hub.Metadata(), p); err != nil {
					return err
				}
			}
			if err := f.remove(ctx, i, p); err != nil || f.workloads || f.dryRun {
				return err
			}
			return printf(env.Stdout, "the remaining objects are for a later hawser install hub; remaining agents keep their objects\n")
		},
	}
	f.add(cmd, "the hub (default the current one)", "the works of all clusters")
	return cmd
}

func newUninstallCluster(env Env) *cobra.Command {
	var f uninstallFlags
	var hubContext string
	cmd := &cobra.Command{
		Use:   "cluster NAME --context CONTEXT",
		Short: "Remove the agent from a managed cluster",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.checkWord(cmd, f.checkCluster); err != nil {
				return err
			}
			b, err := f.dialBoth(hubContext)
			if err != nil {
				return err
			}
			if err := f.agreed(cmd, env, b.hub, args[0]); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			p, err := install.Cluster(ctx, install.Managed{Name: args[0], Hub: b.hub, Client: b.cluster}, env.Now())
			if err != nil {
				return err
			}
			return f.uninstallCluster(ctx, env, args[0], b, p)
		},
	}
	f.add(cmd, "the managed cluster (required)", "the works of this cluster")
	cmd.Flags().StringVar(&hubContext, "hub-context", "", "context of the hub (default the current one)")
	return cmd
}

func (f *uninstallFlags) uninstallCluster(ctx context.Context, env Env, name string, b both, p install.Plan) error {
	i := installer(env, b.cluster)
	i.Dry = f.dryRun
	if !f.workloads {
		if err := errors.Join(f.remove(ctx, i, p), i.Leave(ctx)); err != nil || f.dryRun {
			return err
		}
		return printf(env.Stdout, "objects of works on the cluster stay; hawser install cluster %s continues with them\n", name)
	}
	if err := i.DeleteWorks(ctx, b.hub.Metadata(), name); err != nil {
		return err
	}
	left, err := install.HasRecords(ctx, b.cluster.Metadata())
	if err != nil {
		return err
	}
	if left && !f.dryRun {
		return hint(errors.New("the cluster has records of works that are not on this hub, so its agent stays"),
			"list them with: kubectl get appliedmanifestworks")
	}
	if err := errors.Join(i.Leave(ctx), f.remove(ctx, i, p)); err != nil || f.dryRun {
		return err
	}
	return printf(env.Stdout, "nothing of Hawser stays on the cluster; on the hub the namespace %s stays\n", name)
}
