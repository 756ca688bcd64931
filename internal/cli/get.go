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
		Short: "Show the data of a broker",
		Long: `Show the data of a broker: clusters, works, discrepancies, quotas of sources and
clusters, and denied identities.

  export HAWSER_BROKER=broker.example:8090 HAWSER_CA=certs/ca.crt
  export HAWSER_CERT=certs/viewer-me.crt HAWSER_KEY=certs/viewer-me.key
  hawser get clusters --state disconnected
  hawser get works --cluster cluster1
  hawser get work web --cluster cluster1 -o yaml
  hawser get discrepancies --watch
  hawser get quotas
  hawser get denials

With -o json and -o yaml it prints a List, as kubectl does, or one object if that was
requested by its name.`,
	}, newGetClusters(env), newGetWorks(env), newGetDiscrepancies(env), newGetQuotas(env), newGetDenials(env))
}

// clusterColumns returns the columns of the table of clusters; output is read when a row is shown.
func clusterColumns(env Env, output *string) []column[hawserv1.ListClustersResponse] {
	type item = hawserv1.ListClustersResponse
	return []column[item]{
		{header: "CLUSTER", cell: (*item).GetCluster},
		{header: "STATE", field: "state", cell: clusterWord},
		{header: "ACCEPTED", sparse: true, cell: func(m *item) string { return yesOrNo(m.GetRegistration(), m.GetRegistration().GetAccepted()) }},
		{header: "JOINED", sparse: true, cell: func(m *item) string { return yesOrNo(m.GetRegistration(), m.GetRegistration().GetJoined()) }},
		{header: "AVAILABLE", sparse: true, cell: func(m *item) string { return m.GetRegistration().GetAvailable() }},
		{header: "CERTIFICATE", sparse: true, cell: func(m *item) string {
			if *output == asWide || m.GetRegistration() == nil { // another column shows it
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

// clustersHelp is the help of hawser get clusters.
const clustersHelp = `Show clusters: whether their agents are connected and in sync.

STATE is one of these:

  InSync        the agent proved that it holds exactly the works of the broker, and
                none of them fails

  Syncing       changes are in progress

  Failing       works are not applied, or not available: FAILING is their number

  OutOfSync     the agent holds other works, even after a comparison

  Unverified    an agent is connected that has proved nothing yet; agents of Open
                Cluster Management never do

  Disconnected  no agent is connected

  Rejected      no agent is connected, and one was rejected in the last 15 minutes

  NeverConnected
                there are works, or the hub accepted the cluster, and no agent ever
                connected

  NotAccepted   the hub has not accepted the cluster: see hawser accept

  NotOnHub      the hub has no ManagedCluster of this name: the namespace of works is
                misspelt, or the cluster was detached. A detached cluster is shown
                while it has works, or an agent that connects

If clusters join through the broker, ACCEPTED, JOINED and AVAILABLE are the values of the
hub. CERTIFICATE is the time until the agent's certificate expires.

PENDING is the number of works that the agent still has to receive. Without a connected
agent it is the number of waiting works: the cluster has not reported on their current
version, or has to delete them.

LAST SEEN is the time since an agent was connected, AGENT its version. The broker does not
know the time before its start. LAST SEEN is then ">5m" for a broker that runs for five
minutes.

With -o wide, CERTIFICATE is the time until the agent's certificate expires. ROUND TRIP is
the time from the last acknowledged checkpoint to its ack, including the agent's disk.
LAST REJECTED is the time since an agent was rejected.`

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
		Use:               "clusters [NAME]",
		Aliases:           []string{"cluster"},
		Short:             "Show clusters: whether their agents are connected and in sync",
		Long:              clustersHelp,
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

// objectMeta returns these values as metadata of a Kubernetes object.
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

// first returns the first argument, or "".
func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// workColumns returns the columns of the table of works. u holds the clusters whose health is unknown.
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

STATE is Live; Deleting until the cluster has confirmed the deletion; Deleted from then
until the source knows it. REPORTED is the version in the last status of the cluster,
DELETED the time since the source deleted the work.

HEALTH is taken from that status. It is Available or Applied if all manifests are, and
NotApplied or NotAvailable if one is not; MESSAGE has the reason. It is Unknown if the
status has neither, and NotReported before the first status.

MESSAGE is also set if the agent is slow, or if others keep changing the objects. For a
work in state Deleting it names what keeps its objects. It begins with the reason, and is
complete.

If the cluster has no connected agent, or its API server does not answer, HEALTH is
Unknown. MESSAGE then has the start of that state and the last known health. With -o wide,
LAST KNOWN is the health in the last status; -o json and -o yaml have it as lastHealth.`,
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

// discrepanciesHelp is the help of hawser get discrepancies.
const discrepanciesHelp = `Show discrepancies: states that Hawser reports and does not change.

CAUSE is one of these:

  Orphan       the agent holds the work, and the broker has no record of it

  Ahead        the agent holds a newer version than the broker; its source has to
               publish the work again

  Withheld     the broker holds the work, its source no longer has it, and its
               deletion needs approval: see hawser approve

  Quarantined  an agent of another cluster uses a name that is bound: see hawser
               unbind cluster

  Unowned      the cluster has an AppliedManifestWork without a work and without an
               owner, as another agent leaves it: see hawser resolve orphan

  Shared       an AppliedManifestWork of another hub has objects that works of this
               hub have too. The owner of the cluster can transfer it with hawser
               hub-identity transfer`

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
		Short:   "Show discrepancies: states that Hawser reports and does not change",
		Long:    discrepanciesHelp,
		Args:    cmdline.NoArgs,
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
		Short:   "Show the usage and the limits of sources and clusters",
		Long: `Show the usage and the limits of sources and clusters, as 3/500.

WORKS are the live works and those whose deletion is not confirmed. BYTES is the size of
their specs. RECORDS are the works and the confirmed tombstones. CLUSTERS is the number of
clusters on which a source has works, ONLY ON lists the allowed ones. The limits are in
the configuration of the broker.`,
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
