package clustercontroller

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/ocm"
)

// These objects were written by the hub-source of commit 0647681f, and are in the form that the API server
// returns. They are a ManagedCluster that was accepted automatically for a key, the same one after it was
// denied, and a renewal. TestFormer_Write of that commit wrote them. The requester, and the issue time of the
// certificate behind the renewal, are as package registration wrote them.
const (
	formerMember  = "testdata/former/member.json"
	formerDenied  = "testdata/former/denied.json"
	formerRequest = "testdata/former/request.json"
)

var formerIssued = time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)

func readFormer[T any](t *testing.T, file string) *T {
	t.Helper()
	var o T
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &o)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &o
}

// decideFormer returns the decisions about a cluster and its requests.
func decideFormer(c *clusterv1.ManagedCluster, requests ...*certificatesv1.CertificateSigningRequest) string {
	s := clusterState{name: "east", cluster: c, renewal: &renewal{written: start, seen: start}, requests: requests, now: start}
	return reported(effects{decisions: decide(rules{users: []string{bootstrapUser}}, s).decisions})
}

// TestFormer_Cluster: the marks of a former hub-source on a ManagedCluster are valid. The cluster has an agent,
// another key is not approved automatically, and a denial lasts, also if the status was lost.
func TestFormer_Cluster(t *testing.T) {
	member, denied := readFormer[clusterv1.ManagedCluster](t, formerMember), readFormer[clusterv1.ManagedCluster](t, formerDenied)
	member.Status, denied.Status = clusterv1.ManagedClusterStatus{}, clusterv1.ManagedClusterStatus{}
	quarantined := csrOf(t, "east-s", "east", "agent", bootstrapUser, newKey(t))
	request := readFormer[certificatesv1.CertificateSigningRequest](t, formerRequest)
	for want, got := range map[string]string{
		"": decideFormer(member, quarantined) + decideFormer(denied, quarantined), "approved east-1": decideFormer(member, request), "denied east-1": decideFormer(denied, request),
	} {
		if got != want {
			t.Errorf("decided %q, want %q", got, want)
		}
	}
	if !WasMember(member) || !WasMember(denied) || len(member.Annotations[KeyAnnotation]) != 64 || denied.Annotations[KeyAnnotation] != NoKey {
		t.Errorf("member %v, denied %v", member.Annotations, denied.Annotations)
	}
}

// TestFormer_Request: a CSR contains its requester, and the issue time of the certificate behind the request.
func TestFormer_Request(t *testing.T) {
	csr := readFormer[certificatesv1.CertificateSigningRequest](t, formerRequest)
	if csr.Annotations[ocm.RequesterAnnotation] != userOf("east", "agent") {
		t.Errorf("the CSR was created by %q", csr.Annotations[ocm.RequesterAnnotation])
	}
	for from, signed := range map[time.Time]bool{formerIssued: true, formerIssued.Add(time.Second): false} {
		if why := superseded(csr, from); (why == nil) != signed {
			t.Errorf("certificates count from %v on: %v", from, why)
		}
	}
}
