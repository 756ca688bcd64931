package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-io/hawser/internal/cmdline"
	"google.golang.org/grpc"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

func newForget(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "forget",
		Short: "Give up a work, or which cluster goes by a name",
		Args:  cmdline.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newForgetWork(env), newForgetCluster(env))
	return cmd
}

func newForgetWork(env Env) *cobra.Command {
	r := remote{env: env}
	cmd := &cobra.Command{
		Use:   "work CLUSTER ID",
		Short: "Give a work up as if its cluster had confirmed its deletion",
		Long: `Give a work up as if its cluster had confirmed its deletion.

For a cluster that will never come back. The source is told that nothing of the work
is left; what is on the cluster stays there. Give up a work that its source still
wants, and the source publishes it again at its next comparison.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.call(cmd, func(ctx context.Context, c hawserv1.InspectionServiceClient) error {
				if _, err := c.ForgetWork(ctx, &hawserv1.ForgetWorkRequest{Cluster: args[0], ResourceId: args[1]}); err != nil {
					return err
				}
				return say(env.Stdout, "work %s of cluster %s is given up\n", args[1], args[0])
			})
		},
	}
	r.flags(cmd)
	return cmd
}

func newForgetCluster(env Env) *cobra.Command {
	r := remote{env: env}
	var works bool
	cmd := &cobra.Command{
		Use:   "cluster NAME",
		Short: "Let another cluster take over a name",
		Long: `Let another cluster take over a name.

A broker remembers which cluster an agent spoke for, and refuses another one under
the same name. After a cluster was replaced for good, this forgets the old one: the
cluster that was refused meanwhile (hawser get orphans) has the name from now on, or,
if none was, the next that comes. The works stay and go to it, and agents of the old
cluster are refused. With --works the works are given up too: every source is told
that nothing of them is left.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.call(cmd, func(ctx context.Context, c hawserv1.InspectionServiceClient) error {
				resp, err := c.ForgetCluster(ctx, &hawserv1.ForgetClusterRequest{Cluster: args[0], Works: works})
				if err != nil {
					return err
				}
				if err := say(env.Stdout, "another cluster may take over the name %s\n", args[0]); err != nil || !works {
					return err
				}
				return say(env.Stdout, "works given up: %d\n", resp.GetWorks())
			})
		},
	}
	r.flags(cmd)
	cmd.Flags().BoolVar(&works, "works", false, "give all works of the cluster up too")
	return cmd
}

func newAdopt(env Env) *cobra.Command {
	r := remote{env: env}
	var source string
	cmd := &cobra.Command{
		Use:   "adopt CLUSTER ID --source NEW",
		Short: "Give a work to another source",
		Long: `Give a work to another source, for instance after a hub was renamed. From then on
only the new source may change or delete it, and statuses go there.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if source == "" {
				return usageOf(cmd, errors.New("--source is not set: name the source that the work is to belong to"))
			}
			return r.call(cmd, func(ctx context.Context, c hawserv1.InspectionServiceClient) error {
				if _, err := c.Adopt(ctx, &hawserv1.AdoptRequest{Cluster: args[0], ResourceId: args[1], Source: source}); err != nil {
					return err
				}
				return say(env.Stdout, "work %s of cluster %s belongs to %s\n", args[1], args[0], source)
			})
		},
	}
	r.flags(cmd)
	cmd.Flags().StringVar(&source, "source", "", "the new owner (required)")
	return cmd
}

func newApprove(env Env) *cobra.Command {
	r := remote{env: env}
	var source, clusterName string
	var all, remove, adopt bool
	cmd := &cobra.Command{
		Use:   "approve --cluster CLUSTER (--source SOURCE (--all | ID…) | (--remove | --adopt) UID…)",
		Short: "Delete what is left alone until somebody decides about it",
		Long: `Delete works that their source lacks and did not dare to delete.

A source that finds works at the broker which its hub does not have deletes them by
itself, unless there are many of them or the hub looks as if it went back in time, as
after a restore from a backup. Then they are withheld: look at them with

  hawser get orphans --cluster CLUSTER

and, if they are to go, approve. Without ids and without --all nothing is deleted.

What is listed as "no owner" is on the cluster and no source knows of it. The agent
removes it with its objects (--remove), or gives it to the work of its name (--adopt),
if it is still the one with this uid and still nobody's; it has to be connected.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, ids []string) error {
			if remove || adopt {
				switch {
				case remove && adopt || all || source != "":
					return usageOf(cmd, errors.New("--remove, --adopt, and --source or --all exclude each other"))
				case clusterName == "" || len(ids) == 0:
					return usageOf(cmd, errors.New("name the cluster with --cluster, and each AppliedManifestWork by its uid, as hawser get orphans shows it"))
				}
				return r.call(cmd, func(ctx context.Context, c hawserv1.InspectionServiceClient) error {
					return resolveAll(ctx, env, c, &hawserv1.ResolveRequest{Cluster: clusterName, Adopt: adopt}, ids)
				})
			}
			switch {
			case source == "" || clusterName == "":
				return usageOf(cmd, errors.New("--source and --cluster are not both set"))
			case all == (len(ids) > 0):
				return usageOf(cmd, errors.New("name the works by id, or all that are withheld with --all"))
			}
			return r.call(cmd, func(ctx context.Context, c hawserv1.InspectionServiceClient) error {
				works, err := withheld(ctx, c, source, clusterName, ids)
				if err != nil {
					return err
				}
				return approve(ctx, env, c, &hawserv1.ApproveRequest{Source: source, Cluster: clusterName, Works: works})
			})
		},
	}
	r.flags(cmd)
	cmd.Flags().StringVar(&source, "source", "", "the source that lacks the works")
	cmd.Flags().StringVar(&clusterName, "cluster", "", "their cluster (required)")
	cmd.Flags().BoolVar(&all, "all", false, "all that are withheld now")
	cmd.Flags().BoolVar(&remove, "remove", false, "remove AppliedManifestWorks without an owner, with their objects")
	cmd.Flags().BoolVar(&adopt, "adopt", false, "let the works of their names have them")
	return cmd
}

// approve has the broker delete what a source lacks on a cluster, as r says.
func approve(ctx context.Context, env Env, c hawserv1.InspectionServiceClient, r *hawserv1.ApproveRequest) error {
	if _, err := c.Approve(ctx, r); err != nil {
		return err
	}
	for _, w := range r.GetWorks() {
		if err := say(env.Stdout, "work %s (%s) is being deleted on %s\n", w.GetName(), w.GetResourceId(), r.GetCluster()); err != nil {
			return err
		}
	}
	return nil
}

// resolveAll has the agent of a cluster remove or adopt, as r says, what is
// nobody's.
func resolveAll(ctx context.Context, env Env, c hawserv1.InspectionServiceClient, r *hawserv1.ResolveRequest, uids []string) error {
	what := "removes it with its objects"
	if r.GetAdopt() {
		what = "gives it to the work of its name"
	}
	for _, uid := range uids {
		resp, err := c.Resolve(ctx, &hawserv1.ResolveRequest{Cluster: r.GetCluster(), Uid: uid, Adopt: r.GetAdopt()})
		if err != nil {
			return err
		}
		if err := say(env.Stdout, "AppliedManifestWork %s: the agent of %s %s; what it cannot do it says in hawser get orphans\n", resp.GetName(), r.GetCluster(), what); err != nil {
			return err
		}
	}
	return nil
}

// withheld returns what the source withholds on the cluster, of it the ids, or
// everything where there are none.
func withheld(ctx context.Context, c hawserv1.InspectionServiceClient, source, clusterName string, ids []string) ([]*hawserv1.WithheldDeletion, error) {
	var works []*hawserv1.WithheldDeletion
	missing := slices.Clone(ids)
	list := func(ctx context.Context, token string) (grpc.ServerStreamingClient[hawserv1.ListOrphansResponse], error) {
		return c.ListOrphans(ctx, &hawserv1.ListOrphansRequest{Cluster: clusterName, PageToken: token})
	}
	err := paged(ctx, time.Hour, list, func(o *hawserv1.ListOrphansResponse) error {
		named := len(ids) == 0 || slices.Contains(ids, o.GetResourceId())
		if o.GetCause() == hawserv1.OrphanCause_ORPHAN_CAUSE_WITHHELD && o.GetSource() == source && named {
			works = append(works, &hawserv1.WithheldDeletion{ResourceId: o.GetResourceId(), Name: o.GetName(), Revision: o.GetRevision()})
			missing = slices.DeleteFunc(missing, func(id string) bool { return id == o.GetResourceId() })
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case len(missing) > 0:
		return nil, hint(fmt.Errorf("%s does not withhold %s on %s", source, strings.Join(missing, ", "), clusterName),
			"see what is withheld with: hawser get orphans --cluster %s", clusterName)
	case len(works) == 0:
		return nil, hint(fmt.Errorf("%s withholds nothing on %s", source, clusterName), "a source withholds only while it is connected")
	}
	return works, nil
}

func say(w io.Writer, format string, args ...any) error {
	_, err := fmt.Fprintf(w, format, args...)
	return err
}
