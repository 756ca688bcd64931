package cli

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// unseen maps cluster names to the reason why the health of their works is currently unknown. The broker then
// has only the last received statuses, not the current ones.
type unseen map[string]string

// look requests the clusters from the broker, all if cluster is "".
func (u *unseen) look(ctx context.Context, c hawserv1.AdminServiceClient, cluster string, timeout time.Duration) error {
	*u = unseen{}
	return paged(ctx, timeout, func(ctx context.Context, token string) (grpc.ServerStreamingClient[hawserv1.ListClustersResponse], error) {
		return c.ListClusters(ctx, &hawserv1.ListClustersRequest{Cluster: cluster, PageToken: token})
	}, func(m *hawserv1.ListClustersResponse) error {
		if why := whyUnseen(m); why != "" {
			(*u)[m.GetCluster()] = why
		}
		return nil
	})
}

// health returns the health of a work. It is Unknown while its cluster is unreachable, whatever the last status
// contains.
func (u *unseen) health(m *hawserv1.ListWorksResponse) string {
	last := healthWord(m)
	if _, is := (*u)[m.GetCluster()]; is && last != "" && last != notReported {
		return unknownHealth
	}
	return last
}

// message returns the reason of a work's health. While the cluster is unreachable, the last status is shown as
// last known.
func (u *unseen) message(m *hawserv1.ListWorksResponse) string {
	output := m.GetMessage()
	if why, is := (*u)[m.GetCluster()]; is && m.GetState() != hawserv1.WorkState_WORK_STATE_DELETED {
		switch last := healthWord(m); {
		case last == notReported, last == "" && output == "":
			output = why
		case last == "": // a deletion, and the reason that blocks it
			output = why + "; last known: " + output
		case output != "":
			output = why + "; last known: " + last + ", " + output
		default:
			output = why + "; last known: " + last
		}
	}
	if m.GetQueuedResourceId() != "" {
		output = strings.TrimPrefix(output+"; a new work of this name waits until this one is gone", "; ")
	}
	return output
}

// isAway reports whether a cluster has no agent connected.
func isAway(m *hawserv1.ListClustersResponse) bool {
	switch m.GetState() {
	case hawserv1.ClusterState_CLUSTER_STATE_DISCONNECTED, hawserv1.ClusterState_CLUSTER_STATE_REJECTED, hawserv1.ClusterState_CLUSTER_STATE_NEVER_CONNECTED:
		return true
	case hawserv1.ClusterState_CLUSTER_STATE_UNSPECIFIED, hawserv1.ClusterState_CLUSTER_STATE_IN_SYNC, hawserv1.ClusterState_CLUSTER_STATE_SYNCING,
		hawserv1.ClusterState_CLUSTER_STATE_OUT_OF_SYNC, hawserv1.ClusterState_CLUSTER_STATE_FAILING, hawserv1.ClusterState_CLUSTER_STATE_UNVERIFIED:
	}
	return false
}

// isDown reports whether the agent of a cluster is connected and the hub reports that the cluster is not
// available.
func isDown(m *hawserv1.ListClustersResponse) bool {
	return !isAway(m) && m.GetRegistration().GetAvailable() == "False"
}

// downSince returns since when a cluster is not available, as the hub reports; zero if unknown.
func downSince(m *hawserv1.ListClustersResponse) time.Time {
	if m.GetRegistration().GetAvailable() == "True" {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339, m.GetRegistration().GetAvailableSince())
	if err != nil {
		return time.Time{} // an older hub-source does not report it
	}
	return at
}

// awaySince returns since when no agent of a cluster is connected. It is exact if the broker saw the
// disconnect. Otherwise it is the time since which broker or hub have missed it. Zero means that no agent ever
// connected.
func awaySince(m *hawserv1.ListClustersResponse) (at time.Time, exact bool) {
	switch {
	case m.GetLastSeen() != nil:
		return m.GetLastSeen().AsTime(), true
	case !m.GetEverConnected() || m.GetBrokerSince() == nil:
		return at, false
	}
	at = m.GetBrokerSince().AsTime()
	if down := downSince(m); !down.IsZero() && down.Before(at) {
		at = down
	}
	return at, false
}

// whyUnseen returns why the health of a cluster's works is unknown, or "".
func whyUnseen(m *hawserv1.ListClustersResponse) string {
	if isDown(m) {
		since := ""
		if at := downSince(m); !at.IsZero() {
			since = " since " + stamp(at)
		}
		return "the cluster is not available" + since + ": " + m.GetRegistration().GetAvailableMessage()
	}
	if !isAway(m) {
		return ""
	}
	is := "the cluster is " + clusterWord(m)
	at, exact := awaySince(m)
	if at.IsZero() {
		return is
	}
	if clusterWord(m) != wordOf(hawserv1.ClusterState_CLUSTER_STATE_DISCONNECTED) {
		is += ", no agent" // the time must not be that of another state
	}
	if exact {
		return is + " since " + stamp(at)
	}
	return is + " since before " + stamp(at)
}

// stamp formats a time for a text that is stored.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// lastSeenText returns how long no agent of a cluster has been connected.
func lastSeenText(now time.Time, m *hawserv1.ListClustersResponse) string {
	switch at, exact := awaySince(m); {
	case at.IsZero():
		return ""
	case exact:
		return " for " + ageOf(now, at)
	default:
		return " for more than " + ageOf(now, at)
	}
}

// downMessage returns the hub's report on a cluster that is not available.
func downMessage(now time.Time, m *hawserv1.ListClustersResponse) string {
	age := ""
	if at := downSince(m); !at.IsZero() {
		age = " for " + ageOf(now, at)
	}
	return "not available" + age + ": " + m.GetRegistration().GetAvailableMessage() + "; check its API server"
}

// waiting returns the number of works that wait for a cluster without an agent.
func waiting(m *hawserv1.ListClustersResponse) string {
	switch n := m.GetPending(); {
	case !isAway(m) || n == 0:
		return ""
	case n == 1:
		return ", 1 work waits for it"
	default:
		return ", " + grouped(int(min(n, 1<<31))) + " works wait for it"
	}
}
