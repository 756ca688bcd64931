package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

func newForceDelete(env Env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "force-delete",
		Short: "Delete a work at the broker without its cluster",
	}, newForceDeleteWork(env))
}

func newUnbind(env Env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "unbind",
		Short: "Remove the cluster that is bound to a name",
	}, newUnbindCluster(env))
}

func newTransfer(env Env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "transfer",
		Short: "Give a work to another source",
	}, newTransferWork(env))
}

func newForceDeleteWork(env Env) *cobra.Command {
	r := remote{env: env}
	cmd := &cobra.Command{
		Use:   "work CLUSTER WORK",
		Short: "Force the deletion of a work, as if its cluster had confirmed it",
		Long: `Delete a work at the broker as if its cluster had confirmed the deletion.

Use it for a cluster that will never return. The source receives the confirmation that no
object of the work is left; objects on the cluster stay there. If the source still wants
the work, it publishes the work again at its next comparison. WORK is a name or an id.`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: r.args(workOfCluster),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.call(cmd, func(ctx context.Context, c hawserv1.AdminServiceClient) error {
				id, err := workID(ctx, c, args[0], args[1])
				if err != nil {
					return err
				}
				if _, err := c.ForceDeleteWork(ctx, &hawserv1.ForceDeleteWorkRequest{Cluster: args[0], ResourceId: id}); err != nil {
					return err
				}
				return printf(env.Stdout, "work %s of cluster %s is deleted at the broker\n", args[1], args[0])
			})
		},
	}
	r.flags(cmd)
	return cmd
}

func newUnbindCluster(env Env) *cobra.Command {
	r := remote{env: env}
	var works bool
	var c consent
	cmd := &cobra.Command{
		Use:   "cluster NAME",
		Short: "Let another cluster use a name",
		Long: `Let another cluster use a name.

A broker binds a cluster name to the uid of the cluster, and rejects agents of another
cluster under that name. After a cluster was replaced, this removes the binding. The
cluster that was rejected (hawser get discrepancies) gets the name or, if there is none,
the next cluster that connects.

The works stay and go to the new cluster; agents of the old one are rejected. With --works
the works are deleted at the broker too: each source receives the confirmation that no
object of them is left. This cannot be undone, so it asks first.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: r.args(clusterNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !works && !c.dryRun {
				return r.call(cmd, func(ctx context.Context, client hawserv1.AdminServiceClient) error {
					return unbindCluster(ctx, env, client, &hawserv1.UnbindClusterRequest{Cluster: args[0]})
				})
			}
			if err := c.check(cmd); err != nil {
				return err
			}
			var left []string
			return r.agreed(cmd, &c, func(ctx context.Context, client hawserv1.AdminServiceClient) (what string, err error) {
				left, err = givenUp(ctx, client, args[0], works)
				return fmt.Sprintf("This deletes %d works of cluster %s at the broker%s. Their sources receive the confirmation that no object of them is left.", len(left), args[0], fewOf(left)), err
			}, func() error {
				for _, name := range left {
					if err := printf(env.Stdout, "work %s of cluster %s would be deleted at the broker\n", name, args[0]); err != nil {
						return err
					}
				}
				return printf(env.Stdout, "another cluster would get the name %s\n", args[0])
			}, func(ctx context.Context, client hawserv1.AdminServiceClient) error {
				return unbindCluster(ctx, env, client, &hawserv1.UnbindClusterRequest{Cluster: args[0], Works: works})
			})
		},
	}
	r.flags(cmd)
	c.add(cmd)
	cmd.Flags().BoolVar(&works, "works", false, "delete all works of the cluster at the broker too")
	return cmd
}

func unbindCluster(ctx context.Context, env Env, c hawserv1.AdminServiceClient, r *hawserv1.UnbindClusterRequest) error {
	resp, err := c.UnbindCluster(ctx, r)
	if err != nil {
		return err
	}
	if err := printf(env.Stdout, "another cluster may use the name %s\n", r.GetCluster()); err != nil || !r.GetWorks() {
		return err
	}
	return printf(env.Stdout, "works deleted at the broker: %d\n", resp.GetWorks())
}

// givenUp returns the works that are dropped with a cluster name, none without --works. An unknown cluster is
// an error.
func givenUp(ctx context.Context, c hawserv1.AdminServiceClient, cluster string, works bool) (names []string, err error) {
	known := false
	s, err := c.ListClusters(ctx, &hawserv1.ListClustersRequest{Cluster: cluster})
	err = received(s, err, func(m *hawserv1.ListClustersResponse) error {
		known = known || m.GetCluster() == cluster
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case !known:
		return nil, hint(fmt.Errorf("cluster %s is not known", cluster), "hawser get clusters shows the known ones")
	case !works:
		return nil, nil
	}
	err = allWorks(ctx, c, cluster, func(m *hawserv1.ListWorksResponse) error {
		if m.GetState() != hawserv1.WorkState_WORK_STATE_DELETED {
			names = append(names, m.GetName())
		}
		return nil
	})
	return names, err
}

func newTransferWork(env Env) *cobra.Command {
	r := remote{env: env}
	var source string
	var c consent
	cmd := &cobra.Command{
		Use:   "work CLUSTER WORK --to-source NEW",
		Short: "Give a work to another source",
		Long: `Give a work to another source, for instance after a hub was renamed. From then on
only the new source may change or delete it, and statuses go there. The broker has to
know the new source: it has works, or is connected, or the configuration names it. WORK
is its name, or its id. It asks before it does so.`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: r.args(workOfCluster),
		RunE: func(cmd *cobra.Command, args []string) error {
			if source == "" {
				return usageOf(cmd, errors.New("--to-source is not set: name the source that the work is to belong to"))
			}
			if err := c.check(cmd); err != nil {
				return err
			}
			var id string
			return r.agreed(cmd, &c, func(ctx context.Context, client hawserv1.AdminServiceClient) (what string, err error) {
				if err := knownSource(ctx, client, source); err != nil {
					return "", err
				}
				id, err = workID(ctx, client, args[0], args[1])
				return fmt.Sprintf("This gives work %s of cluster %s to source %s. The source that has it can not change or delete it any more.", args[1], args[0], source), err
			}, func() error {
				return printf(env.Stdout, "work %s of cluster %s would belong to %s\n", args[1], args[0], source)
			}, func(ctx context.Context, client hawserv1.AdminServiceClient) error {
				if _, err := client.TransferWork(ctx, &hawserv1.TransferWorkRequest{Cluster: args[0], ResourceId: id, Source: source}); err != nil {
					return err
				}
				return printf(env.Stdout, "work %s of cluster %s belongs to %s\n", args[1], args[0], source)
			})
		},
	}
	r.flags(cmd)
	c.add(cmd)
	cmd.Flags().StringVar(&source, "to-source", "", "the new owner (required)")
	complete(cmd, "to-source", r.args(sourceNames))
	return cmd
}

// approval has the flags of hawser approve.
type approval struct {
	remote          remote
	source, cluster string
	all             bool
}

func newApprove(env Env) *cobra.Command {
	a := approval{remote: remote{env: env}}
	cmd := &cobra.Command{
		Use:   "approve --cluster CLUSTER --source SOURCE (--all | WORK…)",
		Short: "Delete works whose deletion is withheld",
		Long: `Delete works that their source no longer has and whose deletion is withheld.

A source deletes works at the broker that its hub does not have. It withholds these
deletions if there are many, or if it suspects a rollback of the hub, for instance a
restore from a backup. Show them with

  hawser get discrepancies --cluster CLUSTER

and approve those that are to go. Without names and without --all nothing is deleted.
WORK is a name or an id.`,
		Args: cobra.ArbitraryArgs,
		ValidArgsFunction: a.remote.args(func(ctx context.Context, l *lookup, _ []string) error {
			return completeDiscrepancies(ctx, l, hawserv1.DiscrepancyCause_DISCREPANCY_CAUSE_WITHHELD, a.cluster, a.source)
		}),
		RunE: func(cmd *cobra.Command, names []string) error {
			if err := a.check(names); err != nil {
				return usageOf(cmd, err)
			}
			return a.remote.call(cmd, func(ctx context.Context, c hawserv1.AdminServiceClient) error {
				works, err := withheld(ctx, c, a.source, a.cluster, names)
				if err != nil {
					return err
				}
				return approve(ctx, env, c, &hawserv1.ApproveRequest{Source: a.source, Cluster: a.cluster, Works: works})
			})
		},
	}
	a.remote.flags(cmd)
	cmd.Flags().StringVar(&a.source, "source", "", "source that no longer has the works (required)")
	cmd.Flags().StringVar(&a.cluster, "cluster", "", "their cluster (required)")
	cmd.Flags().BoolVar(&a.all, "all", false, "all that are withheld now")
	complete(cmd, "source", a.remote.args(sourceNames))
	complete(cmd, "cluster", a.remote.args(clusterNames))
	return cmd
}

// check returns an error for invalid flags and arguments.
func (a *approval) check(names []string) error {
	switch {
	case a.source == "" || a.cluster == "":
		return errors.New("--source and --cluster are not both set")
	case a.all == (len(names) > 0):
		return errors.New("name the works, or all that are withheld with --all")
	}
	return nil
}

// completeDiscrepancies completes the names of the discrepancies of a cluster with a cause; of one source, "" for all.
func completeDiscrepancies(ctx context.Context, l *lookup, cause hawserv1.DiscrepancyCause, cluster, source string) error {
	return orphans(ctx, l.client, cluster, func(o *hawserv1.ListDiscrepanciesResponse) error {
		if o.GetCause() != cause || source != "" && o.GetSource() != source {
			return nil
		}
		return l.add(o.GetName())
	})
}

func newResolve(env Env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "resolve",
		Short: "Decide about an orphan AppliedManifestWork",
	}, newResolveOrphan(env))
}

func newResolveOrphan(env Env) *cobra.Command {
	r := remote{env: env}
	var cluster string
	var remove, adopt bool
	cmd := &cobra.Command{
		Use:   "orphan NAME… --cluster CLUSTER (--remove | --adopt)",
		Short: "Remove orphan AppliedManifestWorks, or give them to works",
		Long: `Remove orphan AppliedManifestWorks, or give them to the works of their names.

An orphan with the cause Unowned is on the cluster, and no source has it: see hawser get
discrepancies. The agent removes it with its objects (--remove), or gives it to the work
of its name (--adopt). Both need the same AppliedManifestWork, still without an owner, and
a connected agent. NAME is a name or an id.`,
		Args: cobra.ArbitraryArgs,
		ValidArgsFunction: r.args(func(ctx context.Context, l *lookup, _ []string) error {
			return completeDiscrepancies(ctx, l, hawserv1.DiscrepancyCause_DISCREPANCY_CAUSE_UNOWNED, cluster, "")
		}),
		RunE: func(cmd *cobra.Command, names []string) error {
			switch {
			case remove == adopt:
				return usageOf(cmd, errors.New("set one of --remove and --adopt"))
			case cluster == "" || len(names) == 0:
				return usageOf(cmd, errors.New("name the cluster with --cluster, and each AppliedManifestWork as hawser get discrepancies shows it"))
			}
			return r.call(cmd, func(ctx context.Context, c hawserv1.AdminServiceClient) error {
				return resolveAll(ctx, env, c, &hawserv1.ResolveOrphanRequest{Cluster: cluster, Adopt: adopt}, names)
			})
		},
	}
	r.flags(cmd)
	cmd.Flags().StringVar(&cluster, "cluster", "", "their cluster (required)")
	cmd.Flags().BoolVar(&remove, "remove", false, "remove them with their objects")
	cmd.Flags().BoolVar(&adopt, "adopt", false, "give them to the works of their names")
	complete(cmd, "cluster", r.args(clusterNames))
	return cmd
}

// approve makes the broker delete works that a source no longer has on a cluster, as specified by r.
func approve(ctx context.Context, env Env, c hawserv1.AdminServiceClient, r *hawserv1.ApproveRequest) error {
	if _, err := c.Approve(ctx, r); err != nil {
		return err
	}
	for _, w := range r.GetWorks() {
		if err := printf(env.Stdout, "work %s (%s) is being deleted on %s\n", w.GetName(), w.GetResourceId(), r.GetCluster()); err != nil {
			return err
		}
	}
	return nil
}

// resolveAll makes the agent of a cluster remove or adopt orphans, as specified by r.
func resolveAll(ctx context.Context, env Env, c hawserv1.AdminServiceClient, r *hawserv1.ResolveOrphanRequest, names []string) error {
	what := "removes it with its objects"
	if r.GetAdopt() {
		what = "gives it to the work of its name"
	}
	uids, err := unownedOrphans(ctx, c, r.GetCluster(), names)
	if err != nil {
		return err
	}
	for _, uid := range uids {
		resp, err := c.ResolveOrphan(ctx, &hawserv1.ResolveOrphanRequest{Cluster: r.GetCluster(), Uid: uid, Adopt: r.GetAdopt()})
		if err != nil {
			return err
		}
		if err := printf(env.Stdout, "AppliedManifestWork %s: the agent of %s %s; failures are shown by hawser get discrepancies\n", resp.GetName(), r.GetCluster(), what); err != nil {
			return err
		}
	}
	return nil
}

func orphans(ctx context.Context, c hawserv1.AdminServiceClient, clusterName string, f func(*hawserv1.ListDiscrepanciesResponse) error) error {
	return paged(ctx, time.Hour, func(ctx context.Context, token string) (grpc.ServerStreamingClient[hawserv1.ListDiscrepanciesResponse], error) {
		return c.ListDiscrepancies(ctx, &hawserv1.ListDiscrepanciesRequest{Cluster: clusterName, PageToken: token})
	}, f)
}

// unownedOrphans returns the uids of the named AppliedManifestWorks without an owner. Unlisted names are passed
// on; the broker rejects them.
func unownedOrphans(ctx context.Context, c hawserv1.AdminServiceClient, clusterName string, names []string) ([]string, error) {
	uids := slices.Clone(names)
	err := orphans(ctx, c, clusterName, func(o *hawserv1.ListDiscrepanciesResponse) error {
		if i := slices.Index(names, o.GetName()); i >= 0 && o.GetCause() == hawserv1.DiscrepancyCause_DISCREPANCY_CAUSE_UNOWNED {
			uids[i] = o.GetResourceId()
		}
		return nil
	})
	return uids, err
}

// withheld returns the withheld deletions of the source on the cluster: the named ones, or all without names.
func withheld(ctx context.Context, c hawserv1.AdminServiceClient, source, clusterName string, names []string) ([]*hawserv1.WithheldDeletion, error) {
	var works []*hawserv1.WithheldDeletion
	missing := slices.Clone(names)
	err := orphans(ctx, c, clusterName, func(o *hawserv1.ListDiscrepanciesResponse) error {
		means := func(name string) bool { return name == o.GetResourceId() || name == o.GetName() }
		named := len(names) == 0 || slices.ContainsFunc(names, means)
		if o.GetCause() == hawserv1.DiscrepancyCause_DISCREPANCY_CAUSE_WITHHELD && o.GetSource() == source && named {
			works = append(works, &hawserv1.WithheldDeletion{ResourceId: o.GetResourceId(), Name: o.GetName(), Revision: o.GetRevision()})
			missing = slices.DeleteFunc(missing, means)
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case len(missing) > 0:
		return nil, hint(fmt.Errorf("%s does not withhold %s on %s", source, strings.Join(missing, ", "), clusterName),
			"list the withheld deletions with: hawser get discrepancies --cluster %s", clusterName)
	case len(works) == 0:
		return nil, hint(fmt.Errorf("%s withholds nothing on %s", source, clusterName), "a source withholds only while it is connected")
	}
	return works, nil
}
