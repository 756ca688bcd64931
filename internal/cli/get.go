package cli

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/hawser-io/hawser/internal/cmdline"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

func newGet(env Env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "get",
		Short: "Show what a broker holds",
		Long: `Show what a broker holds: its clusters, its works, what does not fit together, what
sources and clusters may have, and who is kept out.

  export HAWSER_BROKER=broker.example:8090 HAWSER_CA=certs/ca.crt
  export HAWSER_CERT=certs/viewer-me.crt HAWSER_KEY=certs/viewer-me.key
  hawser get clusters --state disconnected
  hawser get works --cluster cluster1
  hawser get work web --cluster cluster1 -o yaml
  hawser get discrepancies --watch
  hawser get quotas
  hawser get denials

With -o json and -o yaml it prints a List, as kubectl does, or one object if that was
asked for by its name.`,
	}, newGetClusters(env), newGetWorks(env), newGetDiscrepancies(env), newGetQuotas(env), newGetDenials(env))
}

// clusterColumns are the table of clusters, for an output that is known when it is shown.
func clusterColumns(env Env, output *string) []column[hawserv1.ListClustersResponse] {
	type item = hawserv1.ListClustersResponse
	return []column[item]{
		{header: "CLUSTER", cell: (*item).GetCluster},
		{header: "STATE", field: "state", cell: clusterWord},
		{header: "ACCEPTED", sparse: true, cell: func(m *item) string { return yesOrNo(m.GetRegistration(), m.GetRegistration().GetAccepted()) }},
		{header: "JOINED", sparse: true, cell: func(m *item) string { return yesOrNo(m.GetRegistration(), m.GetRegistration().GetJoined()) }},
		{header: "AVAILABLE", sparse: true, cell: func(m *item) string { return m.GetRegistration().GetAvailable() }},
		{header: "CERTIFICATE", sparse: true, cell: func(m *item) string {
			if *output == asWide || m.GetRegistration() == nil { // there is another column for it
				return ""
			}
			return until(env.Now(), m.GetCertificateNotAfter())
		}},
		{header: "WORKS", cell: func(m *item) string { return number(m.GetLive()) }},
		{header: "FAILING", cell: func(m *item) string { return number(m.GetFailing()) }},
		{header: "PENDING", cell: func(m *item) string { return number(m.GetPending()) }},
		{header: "DELETING", cell: func(m *item) string { return number(m.GetTombstones()) }},
		{header: "LAST SEEN", cell: func(m *item) string { return lastSeen(env.Now(), m) }},
		{header: "AGENT", cell: (*item).GetAgentVersion},
		{header: "AGENTS", wide: true, cell: func(m *item) string { return strconv.Itoa(int(m.GetSubscriptions())) }},
		{header: "TRANSPORT", wide: true, cell: func(m *item) string {
			return cmp.Or(strings.Join(m.GetTransports(), ","), m.GetLastTransport())
		}},
		{header: "ADDRESS", wide: true, cell: (*item).GetAddress},
		{header: "CONNECTED SINCE", wide: true, cell: func(m *item) string { return age(env.Now(), m.GetConnectedAt()) }},
		{header: "CERTIFICATE", wide: true, cell: func(m *item) string { return until(env.Now(), m.GetCertificateNotAfter()) }},
		{header: "ROUND TRIP", wide: true, cell: func(m *item) string { return tripOf(m.GetRoundTrip()) }},
		{header: "LAST REJECTED", wide: true, cell: func(m *item) string { return age(env.Now(), m.GetRejectedAt()) }},
		{header: "REVISION", wide: true, cell: func(m *item) string { return number(m.GetRevision()) }},
		{header: "ACKED REVISION", wide: true, cell: func(m *item) string { return number(m.GetAckedRevision()) }},
		{header: "UID", wide: true, cell: (*item).GetUid},
		{header: "MESSAGE", cell: func(m *item) string { return clusterMessage(env.Now(), m) }},
	}
}

func newGetClusters(env Env) *cobra.Command {
	type item = hawserv1.ListClustersResponse
	var states []string
	var named string
	var sum tally
	l := listing[item]{
		env: env, remote: remote{env: env}, kind: "Cluster",
		path: (*item).GetCluster,
		meta: func(m *item) map[string]any { return objectMeta(m.GetCluster(), "", m.GetUid()) },
		keep: func(m *item) bool {
			return (len(states) > 0 || named != "" || !isOver(m)) && wanted(states, clusterWord(m))
		},
		sum: func(m *item) { sum.add(clusterWord(m)) }, total: func() string { return sum.line("cluster", clusterWords) },
	}
	l.columns = clusterColumns(env, &l.output)
	cmd := &cobra.Command{
		Use:     "clusters [NAME]",
		Aliases: []string{"cluster"},
		Short:   "Show clusters: whether they are there, and hold what they should",
		Long: `Show clusters: whether they are there, and hold what they should.

STATE is one of these:

  InSync        the agent proved that it holds exactly the works that the broker holds
                for it, and none of them fails
  Syncing       changes are under way
  Failing       works are not applied, or not available: FAILING says how many
  OutOfSync     the agent holds something else, even after a comparison
  Unverified    an agent is connected that has proved nothing yet; agents of Open
                Cluster Management never do
  Disconnected  no agent is connected
  Rejected      no agent is connected, and one was rejected in the last 15 minutes
  NeverConnected
                there are works, or the hub accepted the cluster, and no agent ever came
  NotAccepted   the hub has not accepted the cluster: see hawser accept
  NotOnHub      the hub has no ManagedCluster of this name: the namespace of works is
                misspelt, or the cluster was detached. One that was detached is shown
                while works, or an agent that comes, are left of it

Where clusters join through the broker, ACCEPTED, JOINED and AVAILABLE are what the hub says
of them, and CERTIFICATE is when the certificate ends that the agent showed.

PENDING is how many works the agent still has to be sent. Where no agent is connected,
it is how many works wait: the cluster has said nothing of their present version, or has
to delete them.

LAST SEEN is when an agent was connected last, AGENT its version. The broker does not
know what was before it was started: then LAST SEEN is ">5m" where it runs for five
minutes. With -o wide, CERTIFICATE is when the certificate ends that the agent showed,
ROUND TRIP how long the last checkpoint was under way that it acknowledged: there, onto
its disk and back. LAST REJECTED is when an agent was refused last.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: l.remote.args(clusterNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := someOf(cmd, "state", states, clusterWords); err != nil {
				return err
			}
			named = first(args)
			return l.run(cmd, func(ctx context.Context, c hawserv1.AdminServiceClient, token string) (grpc.ServerStreamingClient[item], error) {
				return c.ListClusters(ctx, &hawserv1.ListClustersRequest{Cluster: named, PageToken: token})
			}, named)
		},
	}
	l.flags(cmd)
	choose(cmd, &states, "state", "only clusters in these states", clusterWords)
	return cmd
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }

// objectMeta is what an object of Kubernetes has of these in its metadata.
func objectMeta(name, namespace, uid string) map[string]any {
	m := map[string]any{"name": name}
	if namespace != "" {
		m["namespace"] = namespace
	}
	if uid != "" {
		m["uid"] = uid
	}
	return m
}

// first returns the first argument, if there is one.
func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// workColumns are the table of works, of which some may be on clusters that cannot be asked.
func workColumns(env Env, u *unseen) []column[hawserv1.ListWorksResponse] {
	type item = hawserv1.ListWorksResponse
	return []column[item]{
		{header: "CLUSTER", cell: (*item).GetCluster},
		{header: "NAME", cell: (*item).GetName},
		{header: "SOURCE", cell: (*item).GetSource},
		{header: "STATE", field: "state", cell: stateWord},
		{header: "VERSION", cell: func(m *item) string { return strconv.FormatInt(m.GetVersion(), 10) }},
		{header: "REPORTED", cell: func(m *item) string {
			if !m.GetReported() {
				return ""
			}
			return strconv.FormatInt(m.GetReportedVersion(), 10)
		}},
		{header: "HEALTH", field: "health", cell: u.health},
		{header: "DELETED", cell: func(m *item) string { return age(env.Now(), m.GetDeletedAt()) }},
		{header: "LAST KNOWN", field: "lastHealth", wide: true, cell: healthWord},
		{header: "REVISION", wide: true, cell: func(m *item) string { return number(m.GetRevision()) }},
		{header: "ID", wide: true, cell: (*item).GetResourceId},
		{header: "QUEUED", wide: true, cell: (*item).GetQueuedResourceId},
		{header: "MESSAGE", field: "message", cell: u.message},
	}
}

func newGetWorks(env Env) *cobra.Command {
	type item = hawserv1.ListWorksResponse
	r := &hawserv1.ListWorksRequest{}
	var states, healths []string
	var named string
	var away unseen
	l := listing[item]{
		env: env, remote: remote{env: env}, kind: "Work",
		path:  func(m *item) string { return m.GetCluster() + "/" + m.GetName() },
		id:    func(m *item) string { return m.GetCluster() + "/" + m.GetResourceId() },
		meta:  func(m *item) map[string]any { return objectMeta(m.GetName(), m.GetCluster(), m.GetResourceId()) },
		group: (*item).GetCluster,
		order: func(x, y *item) int { return cmp.Compare(x.GetName(), y.GetName()) },
		keep: func(m *item) bool {
			return (named == "" || isNamed(m, named)) && wanted(states, stateWord(m)) && wanted(healths, away.health(m))
		},
	}
	l.columns = workColumns(env, &away)
	cmd := &cobra.Command{
		Use:     "works [NAME]",
		Aliases: []string{"work"},
		Short:   "Show works as the broker holds them",
		Long: `Show works as the broker holds them.

STATE is Live, Deleting until the cluster has confirmed that nothing is left, and
Deleted from then until the source knows. REPORTED is the version that the last
status of the cluster is about, DELETED how long ago the source deleted it.

HEALTH is what that status says: Available and Applied where all of it is, NotApplied
and NotAvailable where something is not, and MESSAGE why, Unknown where it says nothing
of both, and NotReported before the first status. MESSAGE is there too where the agent
takes long for the work, or others keep changing its objects, and of a work in state
Deleting where something keeps its objects. It begins with the reason, and is whole.

Where the cluster has no agent at present, or its API server does not answer, HEALTH is
Unknown, and MESSAGE says since when and what was known last. With -o wide, LAST KNOWN is
what the last status says; -o json and -o yaml have it as lastHealth.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: l.remote.args(func(ctx context.Context, c *lookup, _ []string) error { return workNames(ctx, c, r.GetCluster()) }),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(someOf(cmd, "state", states, workWords), someOf(cmd, "health", healths, healthWords)); err != nil {
				return err
			}
			named = first(args)
			return l.run(cmd, func(ctx context.Context, c hawserv1.AdminServiceClient, token string) (grpc.ServerStreamingClient[item], error) {
				if token == "" {
					if err := away.look(ctx, c, r.GetCluster(), l.remote.timeout); err != nil {
						return nil, err
					}
				}
				r.PageToken = token
				return c.ListWorks(ctx, r)
			}, named)
		},
	}
	l.flags(cmd)
	cmd.Flags().StringVar(&r.Cluster, "cluster", "", "only works of this cluster")
	cmd.Flags().StringVar(&r.Source, "source", "", "only works of this source")
	choose(cmd, &states, "state", "only works in these states", workWords)
	choose(cmd, &healths, "health", "only works of these healths", healthWords)
	complete(cmd, "cluster", l.remote.args(clusterNames))
	complete(cmd, "source", l.remote.args(sourceNames))
	return cmd
}

func newGetDiscrepancies(env Env) *cobra.Command {
	type item = hawserv1.ListDiscrepanciesResponse
	r := &hawserv1.ListDiscrepanciesRequest{}
	var source string
	var causes []string
	l := listing[item]{
		env: env, remote: remote{env: env}, kind: "Discrepancy",
		path: func(m *item) string { return m.GetCluster() + "/" + cmp.Or(m.GetName(), m.GetResourceId()) },
		id:   func(m *item) string { return m.GetCluster() + "/" + m.GetCause().String() + "/" + m.GetResourceId() },
		meta: func(m *item) map[string]any {
			return objectMeta(cmp.Or(m.GetName(), m.GetResourceId()), m.GetCluster(), m.GetResourceId())
		},
		keep: func(m *item) bool {
			return (source == "" || m.GetSource() == source) && wanted(causes, wordOf(m.GetCause()))
		},
	}
	l.columns = []column[item]{
		{header: "CLUSTER", cell: (*item).GetCluster},
		{header: "CAUSE", cell: func(m *item) string { return wordOf(m.GetCause()) }},
		{header: "SOURCE", cell: (*item).GetSource},
		{header: "NAME", cell: (*item).GetName},
		{header: "REVISION", wide: true, cell: func(m *item) string {
			if m.GetRevision() == 0 {
				return ""
			}
			return number(m.GetRevision())
		}},
		{header: "ID", cell: (*item).GetResourceId},
		{header: "DETAIL", cell: (*item).GetDetail},
	}
	cmd := &cobra.Command{
		Use:     "discrepancies",
		Aliases: []string{"discrepancy", "disc"},
		Short:   "Show what does not fit together and is therefore left alone",
		Long: `Show what does not fit together and is therefore left alone.

CAUSE Orphan: the agent holds the work, and the broker knows nothing of it.
Ahead: the agent holds a newer version than the broker; its source has to publish
it again. Withheld: the broker holds the work, its source lacks it and does not
dare to delete it: see hawser approve. Quarantined: an agent of another cluster comes
under a name that is taken: see hawser unbind cluster. Unowned: on the cluster is an
AppliedManifestWork without a work that does not say whose it is, as another agent
leaves it: see hawser resolve orphan. Shared: one of another hub has objects that works
of this hub have too; the owner of the cluster can hand it over with
hawser hub-identity transfer.`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := someOf(cmd, "cause", causes, causeWords); err != nil {
				return err
			}
			return l.run(cmd, func(ctx context.Context, c hawserv1.AdminServiceClient, token string) (grpc.ServerStreamingClient[item], error) {
				r.PageToken = token
				return c.ListDiscrepancies(ctx, r)
			}, "")
		},
	}
	l.flags(cmd)
	cmd.Flags().StringVar(&r.Cluster, "cluster", "", "only of this cluster")
	cmd.Flags().StringVar(&source, "source", "", "only of this source")
	choose(cmd, &causes, "cause", "only for these causes", causeWords)
	complete(cmd, "cluster", l.remote.args(clusterNames))
	complete(cmd, "source", l.remote.args(sourceNames))
	return cmd
}

func newGetQuotas(env Env) *cobra.Command {
	type item = hawserv1.ListQuotasResponse
	of := func(has, most func(*item) uint64) func(*item) string {
		return func(m *item) string {
			if most(m) == 0 {
				return ""
			}
			return number(has(m)) + "/" + number(most(m))
		}
	}
	l := listing[item]{
		env: env, remote: remote{env: env}, kind: "Quota",
		path: func(m *item) string {
			if m.GetSource() != "" {
				return "source/" + m.GetSource()
			}
			return "cluster/" + m.GetCluster()
		},
		meta: func(m *item) map[string]any { return objectMeta(cmp.Or(m.GetSource(), m.GetCluster()), "", "") },
	}
	l.columns = []column[item]{
		{header: "SOURCE", cell: (*item).GetSource},
		{header: "CLUSTER", cell: (*item).GetCluster},
		{header: "WORKS", cell: of((*item).GetWorks, (*item).GetMaxWorks)},
		{header: "BYTES", cell: of((*item).GetBytes, (*item).GetMaxBytes)},
		{header: "STATUS BYTES", cell: of((*item).GetStatusBytes, (*item).GetMaxStatusBytes)},
		{header: "CLUSTERS", cell: of((*item).GetClusters, (*item).GetMaxClusters)},
		{header: "RECORDS", cell: of((*item).GetRecords, (*item).GetMaxRecords)},
		{header: "ONLY ON", cell: func(m *item) string { return strings.Join(m.GetAllowedClusters(), ",") }},
	}
	cmd := &cobra.Command{
		Use:     "quotas",
		Aliases: []string{"quota"},
		Short:   "Show what sources and clusters have, and what they may have",
		Long: `Show what sources and clusters have, and what they may have, as 3/500.

WORKS are those that live and those whose deletion is not confirmed, BYTES those of
their specs, RECORDS the works and what is kept of deleted ones until their source
knows. CLUSTERS is on how many a source has works, ONLY ON where it may. The limits
are in the configuration of the broker.`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return l.run(cmd, func(ctx context.Context, c hawserv1.AdminServiceClient, token string) (grpc.ServerStreamingClient[item], error) {
				return c.ListQuotas(ctx, &hawserv1.ListQuotasRequest{PageToken: token})
			}, "")
		},
	}
	l.flags(cmd)
	return cmd
}
