package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hawser-io/hawser/internal/cmdline"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

func newGet(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get",
		Short: "Show what a broker holds",
		Long: `Show what a broker holds: its clusters, its works, what does not fit together, what
sources and clusters may have, and who is kept out.

  export HAWSER_BROKER=broker.example:8090 HAWSER_CA=certs/ca.crt
  export HAWSER_CERT=certs/viewer-me.crt HAWSER_KEY=certs/viewer-me.key
  hawser get clusters
  hawser get works --cluster cluster1
  hawser get orphans
  hawser get limits
  hawser get denials`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newGetClusters(env), newGetWorks(env), newGetOrphans(env), newGetLimits(env), newGetDenials(env))
	return cmd
}

// listing is a verb that prints what a stream brings: a table, or JSON lines.
type listing[T any] struct {
	env    Env
	remote remote
	output string
	header []string
	// row is one line of the table.
	row func(*T) []string
	// The broker's order is that of group; within a group this is the order to show, if any.
	group func(*T) string
	order func(x, y *T) int
}

func (l *listing[T]) flags(cmd *cobra.Command) {
	l.remote.flags(cmd)
	cmd.Flags().StringVarP(&l.output, "output", "o", "table", "table, or json for one line of JSON each")
}

func (l *listing[T]) run(cmd *cobra.Command, list func(context.Context, hawserv1.InspectionServiceClient, string) (grpc.ServerStreamingClient[T], error)) error {
	if l.output != "table" && l.output != "json" {
		return usageOf(cmd, fmt.Errorf("--output %s: use table or json", l.output))
	}
	var rows [][]string
	show := func(m *T) error {
		if l.output == "json" {
			return asJSON(l.env.Stdout, any(m).(proto.Message))
		}
		rows = append(rows, l.row(m))
		return nil
	}
	err := l.remote.connected(cmd, func(ctx context.Context, c hawserv1.InspectionServiceClient) error {
		pages := func(ctx context.Context, token string) (grpc.ServerStreamingClient[T], error) {
			return list(ctx, c, token)
		}
		if l.order == nil {
			return paged(ctx, l.remote.timeout, pages, show)
		}
		return l.sorted(func(f func(*T) error) error { return paged(ctx, l.remote.timeout, pages, f) }, show)
	})
	if err != nil || l.output == "json" {
		return err
	}
	return table(l.env.Stdout, l.header, rows)
}

// sorted shows what each brings, group by group, in order.
func (l *listing[T]) sorted(each func(func(*T) error) error, show func(*T) error) error {
	var group []*T
	flush := func() error {
		slices.SortStableFunc(group, l.order)
		for _, m := range group {
			if err := show(m); err != nil {
				return err
			}
		}
		group = group[:0]
		return nil
	}
	err := each(func(m *T) error {
		if len(group) > 0 && l.group(group[0]) != l.group(m) {
			if err := flush(); err != nil {
				return err
			}
		}
		group = append(group, m)
		return nil
	})
	if err != nil {
		return err
	}
	return flush()
}

// table prints rows under their header, or says that there is nothing.
func table(w io.Writer, header []string, rows [][]string) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintln(w, "none")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	var failed error
	for _, row := range append([][]string{header}, rows...) {
		for i, cell := range row {
			if cell == "" {
				row[i] = "-"
			}
		}
		_, err := fmt.Fprintln(t, strings.Join(row, "\t"))
		failed = errors.Join(failed, err)
	}
	return errors.Join(failed, t.Flush())
}

func newGetClusters(env Env) *cobra.Command {
	l := listing[hawserv1.ListClustersResponse]{
		env: env, remote: remote{env: env}, header: []string{"CLUSTER", "AGENTS", "OVER", "SYNC", "WORKS", "DELETING", "PENDING", "REVISION", "ACKED"},
		row: func(m *hawserv1.ListClustersResponse) []string {
			return []string{
				m.GetCluster(), strconv.Itoa(int(m.GetSubscriptions())), strings.Join(m.GetTransports(), ","), syncWord(m), number(m.GetLive()), number(m.GetTombstones()),
				number(m.GetPending()), number(m.GetRevision()), number(m.GetAckedRevision()),
			}
		},
	}
	cmd := &cobra.Command{
		Use:   "clusters [NAME]",
		Short: "Show clusters, and whether they hold what they should",
		Long: `Show clusters, and whether they hold what they should.

OVER is the transport of its agents, grpc or mqtt. SYNC is "in sync" where the agent proved that it holds exactly the works that the
broker holds for it, "behind" while changes are under way, "differs" where it holds
something else even after a comparison (see hawser get orphans), "offline" without
an agent, and "never" where none ever came.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r := &hawserv1.ListClustersRequest{}
			if len(args) > 0 {
				r.Cluster = args[0]
			}
			return l.run(cmd, func(ctx context.Context, c hawserv1.InspectionServiceClient, token string) (grpc.ServerStreamingClient[hawserv1.ListClustersResponse], error) {
				r.PageToken = token
				return c.ListClusters(ctx, r)
			})
		},
	}
	l.flags(cmd)
	return cmd
}

func syncWord(m *hawserv1.ListClustersResponse) string {
	switch {
	case !m.GetKnown():
		return "never"
	case m.GetSubscriptions() == 0:
		return "offline"
	}
	return map[hawserv1.SyncState]string{
		hawserv1.SyncState_SYNC_STATE_UNSPECIFIED: "unknown",
		hawserv1.SyncState_SYNC_STATE_IN_SYNC:     "in sync",
		hawserv1.SyncState_SYNC_STATE_BEHIND:      "behind",
		hawserv1.SyncState_SYNC_STATE_DIFFERS:     "differs",
	}[m.GetSync()]
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }

func newGetWorks(env Env) *cobra.Command {
	r := &hawserv1.ListWorksRequest{}
	l := listing[hawserv1.ListWorksResponse]{
		env: env, remote: remote{env: env}, header: []string{"CLUSTER", "NAME", "SOURCE", "STATE", "VERSION", "REPORTED", "REVISION", "ID"},
		row: func(m *hawserv1.ListWorksResponse) []string {
			reported := ""
			if m.GetReported() {
				reported = strconv.FormatInt(m.GetReportedVersion(), 10)
			}
			return []string{
				m.GetCluster(), m.GetName(), m.GetSource(), stateWord(m), strconv.FormatInt(m.GetVersion(), 10), reported,
				number(m.GetRevision()), m.GetResourceId(),
			}
		},
		group: (*hawserv1.ListWorksResponse).GetCluster,
		order: func(x, y *hawserv1.ListWorksResponse) int { return cmp.Compare(x.GetName(), y.GetName()) },
	}
	cmd := &cobra.Command{
		Use:   "works",
		Short: "Show works as the broker holds them",
		Long: `Show works as the broker holds them.

STATE is "live", "deleting" until the cluster has confirmed that nothing is left, and
"deleted" from then until the source knows. REPORTED is the version that the last
status of the cluster is about.`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return l.run(cmd, func(ctx context.Context, c hawserv1.InspectionServiceClient, token string) (grpc.ServerStreamingClient[hawserv1.ListWorksResponse], error) {
				r.PageToken = token
				return c.ListWorks(ctx, r)
			})
		},
	}
	l.flags(cmd)
	cmd.Flags().StringVar(&r.Cluster, "cluster", "", "only works of this cluster")
	cmd.Flags().StringVar(&r.Source, "source", "", "only works of this source")
	return cmd
}

func stateWord(m *hawserv1.ListWorksResponse) string {
	word := map[hawserv1.WorkState]string{
		hawserv1.WorkState_WORK_STATE_LIVE:      "live",
		hawserv1.WorkState_WORK_STATE_TOMBSTONE: "deleting",
		hawserv1.WorkState_WORK_STATE_GRAVE:     "deleted",
	}[m.GetState()]
	if m.GetWaitingResourceId() != "" {
		word += ", next waits"
	}
	return word
}

func newGetOrphans(env Env) *cobra.Command {
	r := &hawserv1.ListOrphansRequest{}
	l := listing[hawserv1.ListOrphansResponse]{
		env: env, remote: remote{env: env}, header: []string{"CLUSTER", "CAUSE", "SOURCE", "NAME", "REVISION", "ID", "DETAIL"},
		row: func(m *hawserv1.ListOrphansResponse) []string {
			revision := ""
			if m.GetRevision() != 0 {
				revision = number(m.GetRevision())
			}
			return []string{m.GetCluster(), causeWord(m.GetCause()), m.GetSource(), m.GetName(), revision, m.GetResourceId(), m.GetDetail()}
		},
	}
	cmd := &cobra.Command{
		Use:   "orphans",
		Short: "Show what does not fit together and is therefore left alone",
		Long: `Show what does not fit together and is therefore left alone.

CAUSE "no record": the agent holds the work, and the broker knows nothing of it.
"ahead": the agent holds a newer version than the broker; its source has to publish
it again. "withheld": the broker holds the work, its source lacks it and does not
dare to delete it: see hawser approve. "stranger": an agent of another cluster comes
under a name that is taken: see hawser forget cluster. "no owner": on the cluster is an
AppliedManifestWork without a work that does not say whose it is, as another agent
leaves it: see hawser approve. "shared": one of another hub has objects that works of
this hub have too; the owner of the cluster can hand it over with hawser move.`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return l.run(cmd, func(ctx context.Context, c hawserv1.InspectionServiceClient, token string) (grpc.ServerStreamingClient[hawserv1.ListOrphansResponse], error) {
				r.PageToken = token
				return c.ListOrphans(ctx, r)
			})
		},
	}
	l.flags(cmd)
	cmd.Flags().StringVar(&r.Cluster, "cluster", "", "only of this cluster")
	return cmd
}

func causeWord(c hawserv1.OrphanCause) string {
	return map[hawserv1.OrphanCause]string{
		hawserv1.OrphanCause_ORPHAN_CAUSE_NO_RECORD: "no record",
		hawserv1.OrphanCause_ORPHAN_CAUSE_AHEAD:     "ahead",
		hawserv1.OrphanCause_ORPHAN_CAUSE_WITHHELD:  "withheld",
		hawserv1.OrphanCause_ORPHAN_CAUSE_STRANGER:  "stranger",
		hawserv1.OrphanCause_ORPHAN_CAUSE_NO_OWNER:  "no owner",
		hawserv1.OrphanCause_ORPHAN_CAUSE_SHARED:    "shared",
	}[c]
}

func newGetLimits(env Env) *cobra.Command {
	of := func(has, most uint64) string {
		if most == 0 {
			return ""
		}
		return number(has) + "/" + number(most)
	}
	l := listing[hawserv1.ListLimitsResponse]{
		env: env, remote: remote{env: env}, header: []string{"SOURCE", "CLUSTER", "WORKS", "BYTES", "STATUS BYTES", "CLUSTERS", "RECORDS", "ONLY ON"},
		row: func(m *hawserv1.ListLimitsResponse) []string {
			return []string{
				m.GetSource(), m.GetCluster(), of(m.GetWorks(), m.GetMaxWorks()), of(m.GetBytes(), m.GetMaxBytes()),
				of(m.GetStatusBytes(), m.GetMaxStatusBytes()), of(m.GetClusters(), m.GetMaxClusters()), of(m.GetRecords(), m.GetMaxRecords()),
				strings.Join(m.GetReach(), ","),
			}
		},
	}
	cmd := &cobra.Command{
		Use:   "limits",
		Short: "Show what sources and clusters have, and what they may have",
		Long: `Show what sources and clusters have, and what they may have, as 3/500.

WORKS are those that live and those whose deletion is not confirmed, BYTES those of
their specs, RECORDS the works and what is kept of deleted ones until their source
knows. CLUSTERS is on how many a source has works, ONLY ON where it may. The limits
are in the configuration of the broker.`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return l.run(cmd, func(ctx context.Context, c hawserv1.InspectionServiceClient, token string) (grpc.ServerStreamingClient[hawserv1.ListLimitsResponse], error) {
				return c.ListLimits(ctx, &hawserv1.ListLimitsRequest{PageToken: token})
			})
		},
	}
	l.flags(cmd)
	return cmd
}
