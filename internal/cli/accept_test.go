package cli

import (
	"bytes"
	"context"
	"crypto/x509/pkix"
	"encoding/base64"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

// joinedOnce is a hub with a cluster that joined before, and is not available.
func joinedOnce(accepted bool) hubAPI {
	north := clustertest.Object("cluster.open-cluster-management.io/v1", "ManagedCluster", "", "north", "spec", map[string]any{"hubAcceptsClient": accepted}, "status", conditions("Unknown"))
	return hubWith(north)
}

func conditions(available string) map[string]any {
	return map[string]any{"conditions": []any{
		map[string]any{"type": "ManagedClusterJoined", "status": "True"},
		map[string]any{"type": "ManagedClusterConditionAvailable", "status": available},
	}}
}

// TestAccept_WaitsForReturningCluster: the condition Joined of a former member shows nothing. Its request comes
// later, or never if its certificate is still valid.
func TestAccept_WaitsForReturningCluster(t *testing.T) {
	for name, requests := range map[string]bool{"requests again": true, "has its certificate": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				hub := joinedOnce(requests)
				var out bytes.Buffer
				a := acceptance{wait: true}
				ended := make(chan error, 1)
				go func() { ended <- a.accept(ctx, Env{Stdout: &out}, hub, "north") }()
				pause := func() {
					t.Helper()
					select {
					case err := <-ended:
						t.Fatalf("it waits no more: %v\n%s", err, &out)
					case <-time.After(5 * time.Second):
					}
				}
				pause()
				north, err := hub.cluster(ctx, "north")
				if err != nil || !north.Spec.HubAcceptsClient {
					t.Fatalf("%v, it is not accepted", err)
				}
				if requests { // any holder of a token may have made the request, so it is approved only by name
					if _, err := hub.Resource(signingRequests).Create(ctx, firstRequest(t, "north-aaaaa", "north"), metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
					pause()
					all, err := hub.requests(ctx, "north")
					if err != nil || len(all) != 1 || !pending(&all[0]) {
						t.Fatalf("%v: %+v is decided", err, all)
					}
					if !strings.Contains(out.String(), "    hawser accept north --csr north-aaaaa\n") {
						t.Fatalf("the output does not name the next command:\n%s", &out)
					}
					byName := acceptance{choice: choice{named: []string{"north-aaaaa"}}}
					if err := byName.accept(ctx, Env{Stdout: &out}, hub, "north"); err != nil {
						t.Fatal(err)
					}
					if all, err = hub.requests(ctx, "north"); err != nil || !hasCondition(&all[0], "Approved") {
						t.Fatalf("%v: %+v is not approved", err, all)
					}
				}
				is, err := hub.Resource(clusterKind).Get(ctx, "north", metav1.GetOptions{})
				if err == nil {
					is.Object["status"] = conditions("True")
					_, err = hub.Resource(clusterKind).Update(ctx, is, metav1.UpdateOptions{})
				}
				if err != nil {
					t.Fatal(err)
				}
				if err := <-ended; err != nil {
					t.Error(err)
				}
				want := []string{"waiting for cluster north: its agent has to request a certificate, or to connect with the one that it has"}
				if requests {
					want = append(want, "cluster north is accepted already, and has no pending certificate request", "certificate request north-aaaaa of")
				}
				for _, line := range want {
					if strings.Count(out.String(), line) != 1 {
						t.Errorf("%q is not there once:\n%s", line, &out)
					}
				}
			})
		})
	}
}

// firstRequest is the CSR that a broker creates for the agent of a cluster.
func firstRequest(t *testing.T, name, cluster string) *unstructured.Unstructured {
	t.Helper()
	group := "system:open-cluster-management:" + cluster
	o := clustertest.Object("certificates.k8s.io/v1", "CertificateSigningRequest", "", name, "spec", map[string]any{
		"request": base64.StdEncoding.EncodeToString(csrOf(t, pkix.Name{CommonName: group + ":agent1", Organization: []string{group}})), "signerName": grpcSigner, "username": courier,
	})
	o.SetLabels(map[string]string{"open-cluster-management.io/cluster-name": cluster})
	o.SetAnnotations(map[string]string{requesterAnnotation: bootstrapUser})
	return o
}
