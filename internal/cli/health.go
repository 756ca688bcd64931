package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/duration"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// waitsForHub reports whether the hub has yet to accept the cluster.
func waitsForHub(m *hawserv1.ListClustersResponse) bool {
	return m.GetRegistration() != nil && !m.GetRegistration().GetAccepted() && !m.GetRegistration().GetNotOnHub()
}

// isOver reports whether a detached cluster has neither a work nor an agent that connects.
func isOver(m *hawserv1.ListClustersResponse) bool {
	return m.GetRegistration().GetNotOnHub() && m.GetLive() == 0 && m.GetTombstones() == 0 && m.GetState() == hawserv1.ClusterState_CLUSTER_STATE_DISCONNECTED
}

// absentMessage returns the remedy for a name without a cluster on the hub.
func absentMessage(m *hawserv1.ListClustersResponse) string {
	switch {
	case !m.GetEverConnected():
		return "the hub has no ManagedCluster " + m.GetCluster() + ": is the namespace of its works misspelt?"
	case m.GetLive()+m.GetTombstones() > 0:
		return "detached, and has works on the hub: delete these, or have it join again as hawser token create prints"
	}
	return "detached: remove its agent (hawser uninstall cluster " + m.GetCluster() + "), or let it join again"
}

// yesOrNo returns a value that the hub reports; empty if it reports none.
func yesOrNo(r *hawserv1.ClusterRegistration, yes bool) string {
	switch {
	case r == nil:
		return ""
	case yes:
		return "yes"
	}
	return "no"
}

// lastSeen returns how long ago an agent was connected. For a time before the start of the broker only a lower
// bound is known.
func lastSeen(now time.Time, m *hawserv1.ListClustersResponse) string {
	switch {
	case m.GetSubscriptions() > 0:
		return "now"
	case m.GetLastSeen() != nil:
		return age(now, m.GetLastSeen())
	case !m.GetEverConnected():
		return "never"
	case m.GetBrokerSince() != nil:
		return ">" + age(now, m.GetBrokerSince())
	}
	return ""
}

// until returns the time until at; "" if at is unknown.
func until(now time.Time, at *timestamppb.Timestamp) string {
	switch {
	case at == nil:
		return ""
	case at.AsTime().Before(now):
		return "ended " + age(now, at) + " ago"
	}
	return duration.HumanDuration(at.AsTime().Sub(now))
}

func tripOf(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return d.AsDuration().Round(time.Millisecond).String()
}

// clusterMessage returns the reason of a cluster's state if the broker knows it, otherwise where to look. For a
// disconnected cluster it adds the number of pending works.
func clusterMessage(now time.Time, m *hawserv1.ListClustersResponse) string {
	switch {
	case m.GetRegistration().GetNotOnHub():
		return absentMessage(m)
	case waitsForHub(m):
		return "accept it with hawser accept " + m.GetCluster()
	case isDown(m):
		return downMessage(now, m)
	}
	return stateMessage(now, m)
}

// stateMessage returns the text about the state that the broker reports.
func stateMessage(now time.Time, m *hawserv1.ListClustersResponse) string {
	waits := waiting(m)
	switch m.GetState() {
	case hawserv1.ClusterState_CLUSTER_STATE_REJECTED:
		return age(now, m.GetRejectedAt()) + " ago: " + m.GetRejectionReason() + waits
	case hawserv1.ClusterState_CLUSTER_STATE_NEVER_CONNECTED:
		if m.GetRegistration().GetAccepted() {
			return "accepted" + waits + "; its agent has to connect with its certificate"
		}
		return "no agent ever connected" + waits + ": is the name misspelt, or does its agent not reach the broker?"
	case hawserv1.ClusterState_CLUSTER_STATE_DISCONNECTED:
		if ends := m.GetCertificateNotAfter(); ends != nil && ends.AsTime().Before(now) {
			return "the certificate of its agent expired " + age(now, ends) + " ago" + waits + ": put a new one into its Secret, or have it join again"
		}
		return "no agent" + lastSeenText(now, m) + waits + ": check that it runs, and reaches the broker"
	case hawserv1.ClusterState_CLUSTER_STATE_FAILING:
		return "see hawser get works --cluster " + m.GetCluster()
	case hawserv1.ClusterState_CLUSTER_STATE_OUT_OF_SYNC:
		return "see hawser get discrepancies --cluster " + m.GetCluster()
	case hawserv1.ClusterState_CLUSTER_STATE_UNSPECIFIED, hawserv1.ClusterState_CLUSTER_STATE_IN_SYNC,
		hawserv1.ClusterState_CLUSTER_STATE_SYNCING, hawserv1.ClusterState_CLUSTER_STATE_UNVERIFIED:
	}
	return ""
}

// tally counts listed items by word.
type tally struct {
	all  int
	each map[string]int
}

func (t *tally) add(name string) {
	if t.each == nil {
		t.each = map[string]int{}
	}
	t.all++
	t.each[name]++
}

// line returns the summary: "1,001 clusters: 990 in sync, 11 offline".
func (t *tally) line(what string, words []string) string {
	if t.all != 1 {
		what += "s"
	}
	var parts []string
	for _, w := range words {
		if n := t.each[w]; n > 0 {
			parts = append(parts, grouped(n)+" "+w)
		}
	}
	return fmt.Sprintf("%s %s: %s", grouped(t.all), what, strings.Join(parts, ", "))
}

// grouped formats a number with commas between thousands.
func grouped(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
