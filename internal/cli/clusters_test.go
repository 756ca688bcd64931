package cli

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// TestClusterColumns: where clusters join through the broker the table says how far each is, and
// with which command it goes on; elsewhere nothing of that is there.
func TestClusterColumns(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	never, inSync, refused := hawserv1.ClusterState_CLUSTER_STATE_NEVER_SEEN, hawserv1.ClusterState_CLUSTER_STATE_IN_SYNC, hawserv1.ClusterState_CLUSTER_STATE_REFUSED
	fleet := []*hawserv1.ListClustersResponse{
		{Cluster: "asks", State: never, Registration: &hawserv1.ClusterRegistration{}},
		{Cluster: "denied", State: refused, Known: true, Registration: &hawserv1.ClusterRegistration{Joined: true, Available: "Unknown"}},
		{Cluster: "let-in", State: never, Registration: &hawserv1.ClusterRegistration{Accepted: true}},
		{
			Cluster: "works", State: inSync, Known: true, Subscriptions: 1, Live: 2, CertificateEnds: timestamppb.New(now.Add(48 * time.Hour)),
			Registration: &hawserv1.ClusterRegistration{Accepted: true, Joined: true, Available: "True"},
		},
	}
	for output, golden := range map[string]string{
		asTable: `
CLUSTER   STATE          ACCEPTED   JOINED   AVAILABLE   CERTIFICATE   WORKS   FAILING   PENDING   DELETING   LAST SEEN   AGENT   MESSAGE
asks      not accepted   no         no       -           -             0       0         0         0          never       -       let it in with hawser accept asks
denied    not accepted   no         yes      unknown     -             0       0         0         0          -           -       let it in with hawser accept denied
let-in    never seen     yes        no       -           -             0       0         0         0          never       -       accepted; its agent has to come with its certificate
works     in sync        yes        yes      yes         2d            2       0         0         0          now         -       -
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

// printed is what a person sees of clusters.
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
