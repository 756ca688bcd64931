package cli

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// TestClusterColumns: on a hub with registration the table shows the progress of each cluster and the next
// command. On other hubs it does not have these columns.
func TestClusterColumns(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	never, inSync, refused := hawserv1.ClusterState_CLUSTER_STATE_NEVER_CONNECTED, hawserv1.ClusterState_CLUSTER_STATE_IN_SYNC, hawserv1.ClusterState_CLUSTER_STATE_REJECTED
	fleet := []*hawserv1.ListClustersResponse{
		{Cluster: "asks", State: never, Registration: &hawserv1.ClusterRegistration{}},
		{Cluster: "denied", State: refused, EverConnected: true, Registration: &hawserv1.ClusterRegistration{Joined: true, Available: "Unknown"}},
		{Cluster: "let-in", State: never, Registration: &hawserv1.ClusterRegistration{Accepted: true}},
		{Cluster: "left", State: refused, EverConnected: true, Registration: &hawserv1.ClusterRegistration{NotOnHub: true}},
		{Cluster: "left-works", State: refused, EverConnected: true, Live: 1, Registration: &hawserv1.ClusterRegistration{NotOnHub: true}},
		{Cluster: "misspelt", State: never, Live: 1, Registration: &hawserv1.ClusterRegistration{NotOnHub: true}},
		{
			Cluster: "works", State: inSync, EverConnected: true, Subscriptions: 1, Live: 2, CertificateNotAfter: timestamppb.New(now.Add(48 * time.Hour)),
			Registration: &hawserv1.ClusterRegistration{Accepted: true, Joined: true, Available: "True"},
		},
	}
	for output, golden := range map[string]string{
		asTable: `
CLUSTER      STATE            ACCEPTED   JOINED   AVAILABLE   CERTIFICATE   WORKS   FAILING   PENDING   DELETING   LAST SEEN   AGENT   MESSAGE
asks         NotAccepted      no         no       -           -             0       0         0         0          never       -       accept it with hawser accept asks
denied       NotAccepted      no         yes      Unknown     -             0       0         0         0          -           -       accept it with hawser accept denied
let-in       NeverConnected   yes        no       -           -             0       0         0         0          never       -       accepted; its agent has to connect with its certificate
left         NotOnHub         no         no       -           -             0       0         0         0          -           -       detached: remove its agent (hawser uninstall cluster left), or let it join again
left-works   NotOnHub         no         no       -           -             1       0         0         0          -           -       detached, and has works on the hub: delete these, or have it join again as hawser token create prints
misspelt     NotOnHub         no         no       -           -             1       0         0         0          never       -       the hub has no ManagedCluster misspelt: is the namespace of its works misspelt?
works        InSync           yes        yes      True        2d            2       0         0         0          now         -       -
`,
		asWide: "CERTIFICATE",
	} {
		t.Run(output, func(t *testing.T) {
			got := printed(t, Env{Now: func() time.Time { return now }}, output, fleet)
			if output == asWide {
				if strings.Count(got, golden) != 1 || strings.Count(got, " 2d ") != 1 {
					t.Errorf("want the end of the certificate once:\n%s", got)
				}
				return
			}
			if got != golden[1:] {
				t.Errorf("got\n%swant%s", got, golden)
			}
			for _, c := range fleet {
				c.Registration = nil
			}
			if got := printed(t, Env{Now: func() time.Time { return now }}, output, fleet); strings.Contains(got, "ACCEPTED") || strings.Contains(got, "CERTIFICATE") {
				t.Errorf("a broker that clusters do not join through:\n%s", got)
			}
		})
	}
}

// TestClusters_DetachedIsOver: a detached cluster is listed until nothing is left of it.
func TestClusters_DetachedIsOver(t *testing.T) {
	offline := hawserv1.ClusterState_CLUSTER_STATE_DISCONNECTED
	absent := &hawserv1.ClusterRegistration{NotOnHub: true}
	for name, c := range map[string]struct {
		*hawserv1.ListClustersResponse
		over bool
	}{
		"nothing is left":      {&hawserv1.ListClustersResponse{State: offline, Registration: absent}, true},
		"a work":               {&hawserv1.ListClustersResponse{State: offline, Live: 1, Registration: absent}, false},
		"a deletion":           {&hawserv1.ListClustersResponse{State: offline, Tombstones: 1, Registration: absent}, false},
		"its agent comes":      {&hawserv1.ListClustersResponse{State: hawserv1.ClusterState_CLUSTER_STATE_REJECTED, Registration: absent}, false},
		"the hub has it":       {&hawserv1.ListClustersResponse{State: offline, Registration: &hawserv1.ClusterRegistration{}}, false},
		"clusters do not join": {&hawserv1.ListClustersResponse{State: offline}, false},
		"no agent of it came":  {&hawserv1.ListClustersResponse{State: hawserv1.ClusterState_CLUSTER_STATE_NEVER_CONNECTED, Registration: absent}, false},
	} {
		if isOver(c.ListClustersResponse) != c.over {
			t.Errorf("%s: over is %t, want %t", name, !c.over, c.over)
		}
	}
}

// printed returns the table of these clusters.
func printed(t *testing.T, env Env, output string, clusters []*hawserv1.ListClustersResponse) string {
	t.Helper()
	var out strings.Builder
	l := listing[hawserv1.ListClustersResponse]{env: env, output: output, kind: "Cluster",
		path: (*hawserv1.ListClustersResponse).GetCluster, meta: func(*hawserv1.ListClustersResponse) map[string]any { return nil }}
	l.columns = clusterColumns(env, &l.output)
	p := newPrinter(&out, output, l.header(), l.sparse(), false)
	for _, c := range clusters {
		if err := p.show(l.thing(c)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.end(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
