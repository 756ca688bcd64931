package cli

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// TestUnseen: the row of a cluster without a connected agent shows since when, and the number of waiting works.
// Its works show the same, with their last known status.
func TestUnseen(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-d)) }
	const (
		offline = hawserv1.ClusterState_CLUSTER_STATE_DISCONNECTED
		inSync  = hawserv1.ClusterState_CLUSTER_STATE_IN_SYNC
		failing = hawserv1.ClusterState_CLUSTER_STATE_FAILING
	)
	available := func(status, since, message string) *hawserv1.ClusterRegistration {
		return &hawserv1.ClusterRegistration{Accepted: true, Joined: true, Available: status, AvailableSince: since, AvailableMessage: message}
	}
	const muted = "The API server of the cluster does not answer its agent"
	for name, c := range map[string]struct {
		cluster           *hawserv1.ListClustersResponse
		row, why, message string
	}{
		"it is there": {&hawserv1.ListClustersResponse{State: inSync, Pending: 3}, "", "", "forbidden"},
		"it left": {
			&hawserv1.ListClustersResponse{State: offline, EverConnected: true, LastSeen: ago(12 * time.Minute), Pending: 3},
			"no agent for 12m, 3 works wait for it: check that it runs, and reaches the broker",
			"the cluster is Disconnected since 2026-03-01T11:48:00Z", "the cluster is Disconnected since 2026-03-01T11:48:00Z; last known: NotApplied, forbidden",
		},
		"nothing waits": {
			&hawserv1.ListClustersResponse{State: offline, EverConnected: true, LastSeen: ago(12 * time.Minute)},
			"no agent for 12m: check that it runs, and reaches the broker", "the cluster is Disconnected since 2026-03-01T11:48:00Z", "",
		},
		"the broker is younger": {
			&hawserv1.ListClustersResponse{State: offline, EverConnected: true, BrokerSince: ago(time.Minute), Pending: 1},
			"no agent for more than 60s, 1 work waits for it: check that it runs, and reaches the broker",
			"the cluster is Disconnected since before 2026-03-01T11:59:00Z", "",
		},
		"the hub knows more": {
			&hawserv1.ListClustersResponse{State: offline, EverConnected: true, BrokerSince: ago(time.Minute), Registration: available("Unknown", "2026-03-01T09:00:00Z", "x")},
			"no agent for more than 3h: check that it runs, and reaches the broker", "the cluster is Disconnected since before 2026-03-01T09:00:00Z", "",
		},
		"of that it is available the hub knows nothing": {
			&hawserv1.ListClustersResponse{State: offline, EverConnected: true, BrokerSince: ago(time.Minute), Registration: available("True", "2026-03-01T09:00:00Z", "x")},
			"no agent for more than 60s: check that it runs, and reaches the broker", "the cluster is Disconnected since before 2026-03-01T11:59:00Z", "",
		},
		"its certificate expired": {
			&hawserv1.ListClustersResponse{State: offline, EverConnected: true, LastSeen: ago(12 * time.Minute), CertificateNotAfter: ago(11 * time.Minute), Pending: 1200},
			"the certificate of its agent expired 11m ago, 1,200 works wait for it: put a new one into its Secret, or have it join again",
			"the cluster is Disconnected since 2026-03-01T11:48:00Z", "",
		},
		"it was refused": {
			&hawserv1.ListClustersResponse{
				Cluster: "c1", State: hawserv1.ClusterState_CLUSTER_STATE_REJECTED, EverConnected: true, LastSeen: ago(12 * time.Minute),
				RejectedAt: ago(2 * time.Minute), RejectionReason: "another certificate", Pending: 2,
			},
			"2m ago: another certificate, 2 works wait for it", "the cluster is Rejected, no agent since 2026-03-01T11:48:00Z", "",
		},
		"the hub has withdrawn its acceptance": {
			&hawserv1.ListClustersResponse{Cluster: "c1", State: offline, EverConnected: true, LastSeen: ago(12 * time.Minute), Registration: &hawserv1.ClusterRegistration{Joined: true}},
			"accept it with hawser accept c1", "the cluster is NotAccepted, no agent since 2026-03-01T11:48:00Z", "",
		},
		"it never came": {
			&hawserv1.ListClustersResponse{State: hawserv1.ClusterState_CLUSTER_STATE_NEVER_CONNECTED, BrokerSince: ago(time.Hour), Pending: 2},
			"no agent ever connected, 2 works wait for it: is the name misspelt, or does its agent not reach the broker?", "the cluster is NeverConnected", "",
		},
		"its API server does not answer": {
			&hawserv1.ListClustersResponse{State: failing, EverConnected: true, Registration: available("False", "2026-03-01T11:57:00Z", muted)},
			"not available for 3m: " + muted + "; check its API server", "the cluster is not available since 2026-03-01T11:57:00Z: " + muted, "",
		},
		"an older hub-source": {
			&hawserv1.ListClustersResponse{State: inSync, EverConnected: true, Registration: available("False", "", muted)},
			"not available: " + muted + "; check its API server", "the cluster is not available: " + muted, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := clusterMessage(now, c.cluster); got != c.row {
				t.Errorf("its row has %q, want %q", got, c.row)
			}
			if got := whyUnseen(c.cluster); got != c.why {
				t.Errorf("its works have %q, want %q", got, c.why)
			}
			u := unseen{}
			if c.why != "" {
				u[""] = c.why
			}
			w := &hawserv1.ListWorksResponse{
				State: hawserv1.WorkState_WORK_STATE_LIVE, Reported: true, Health: hawserv1.WorkHealth_WORK_HEALTH_NOT_APPLIED, Message: "forbidden",
			}
			if got := u.message(w); c.message != "" && got != c.message {
				t.Errorf("a work has %q, want %q", got, c.message)
			}
			if got := u.health(w); (got == unknownHealth) != (c.why != "") {
				t.Errorf("its health is %s", got)
			}
			deletion := &hawserv1.ListWorksResponse{State: hawserv1.WorkState_WORK_STATE_DELETING, Message: "waits for finalizers"}
			want := "waits for finalizers"
			if c.why != "" {
				want = c.why + "; last known: " + want
			}
			if got := u.message(deletion); got != want {
				t.Errorf("a deletion has %q, want %q", got, want)
			}
			w.Reported = false
			if got := u.health(w); got != notReported {
				t.Errorf("the health of a work without a status is %s", got)
			}
		})
	}
}
