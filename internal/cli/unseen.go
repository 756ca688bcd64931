package cli

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// unseen says of clusters, by name, why the health of their works is unknown at present: the statuses
// that the broker has are the last ones that came, and not how it is now.
type unseen map[string]string

// look asks the broker about a cluster, about all where it is "".
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

// health is how a work is: Unknown where its cluster cannot be asked, whatever it said before.
func (u *unseen) health(m *hawserv1.ListWorksResponse) string {
	last := healthWord(m)
	if _, is := (*u)[m.GetCluster()]; is && last != "" && last != notReported {
		return unknownHealth
	}
	return last
}

// message says why a work is as it is. What the last status said is there as that.
func (u *unseen) message(m *hawserv1.ListWorksResponse) string {
	output := m.GetMessage()
	if why, is := (*u)[m.GetCluster()]; is && m.GetState() != hawserv1.WorkState_WORK_STATE_DELETED {
		switch last := healthWord(m); {
		case last == notReported, last == "" && output == "":
			output = why
		case last == "": // a deletion, and what keeps it
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

// isAway tells whether a cluster has no agent at present.
func isAway(m *hawserv1.ListClustersResponse) bool {
	switch m.GetState() {
	case hawserv1.ClusterState_CLUSTER_STATE_DISCONNECTED, hawserv1.ClusterState_CLUSTER_STATE_REJECTED, hawserv1.ClusterState_CLUSTER_STATE_NEVER_CONNECTED:
		return true
	case hawserv1.ClusterState_CLUSTER_STATE_UNSPECIFIED, hawserv1.ClusterState_CLUSTER_STATE_IN_SYNC, hawserv1.ClusterState_CLUSTER_STATE_SYNCING,
		hawserv1.ClusterState_CLUSTER_STATE_OUT_OF_SYNC, hawserv1.ClusterState_CLUSTER_STATE_FAILING, hawserv1.ClusterState_CLUSTER_STATE_UNVERIFIED:
	}
	return false
}

// isDown tells whether the agent of a cluster is there and says, by way of the hub, that its cluster is not.
func isDown(m *hawserv1.ListClustersResponse) bool {
	return !isAway(m) && m.GetRegistration().GetAvailable() == "False"
}

// downSince is since when a cluster is not available, as the hub says; zero where it does not say.
func downSince(m *hawserv1.ListClustersResponse) time.Time {
	if m.GetRegistration().GetAvailable() == "True" {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339, m.GetRegistration().GetAvailableSince())
	if err != nil {
		return time.Time{} // an older hub-source does not say
	}
	return at
}

// awaySince is since when no agent of a cluster is connected. It is exact where the broker saw it leave;
// else it was before: the broker, or the hub, has missed it since then. Zero: none ever came.
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

// whyUnseen says why the health of the works of a cluster is unknown; "" where it is not.
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
		is += ", no agent" // the time is not that of another state
	}
	if exact {
		return is + " since " + stamp(at)
	}
	return is + " since before " + stamp(at)
}

// stamp is a time in a text that stays.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// lastSeenText is for how long no agent of a cluster is connected.
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

// downMessage is what the hub says of a cluster that is not available.
func downMessage(now time.Time, m *hawserv1.ListClustersResponse) string {
	age := ""
	if at := downSince(m); !at.IsZero() {
		age = " for " + ageOf(now, at)
	}
	return "not available" + age + ": " + m.GetRegistration().GetAvailableMessage() + "; check its API server"
}

// waiting says how many works wait for a cluster without an agent.
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
