package cli_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

// courier creates the requests that came through a broker. bootstrap is the user of the tokens with which
// clusters join.
const (
	courier   = "system:serviceaccount:open-cluster-management-hub:grpc-server-sa"
	bootstrap = "system:serviceaccount:open-cluster-management:agent-registration-bootstrap"
)

// requested is a hub with clusters that request to join. north and young have one agent each, south has two.
// west uses the name of another identity. Of the accepted ones, east has a request that none of its agents can
// have made. held has a finalizer that stays. tied has such a finalizer and a work.
func requested(t *testing.T) *clustertest.Fake {
	t.Helper()
	f := clustertest.New()
	f.Put(definition("cluster.open-cluster-management.io", "managedclusters", "ManagedCluster"))
	for _, name := range []string{"north", "south", "west", "east", "young"} {
		f.Put(clustertest.Object("cluster.open-cluster-management.io/v1", "ManagedCluster", "", name, "spec", map[string]any{"hubAcceptsClient": name == "east"}))
	}
	old := clustertest.Object("cluster.open-cluster-management.io/v1", "ManagedCluster", "", "old", "spec", map[string]any{"hubAcceptsClient": false})
	old.SetAnnotations(map[string]string{"hawser.dev/member": "true"})
	f.Put(old)
	f.Put(request(t, "old-aaaaa", "old", subject("old", "agent1"), bootstrap))
	f.Put(request(t, "old-bbbbb", "old", subject("old", "agent9"), bootstrap))
	for _, name := range []string{"held", "tied"} {
		o := clustertest.Object("cluster.open-cluster-management.io/v1", "ManagedCluster", "", name, "spec", map[string]any{"hubAcceptsClient": true})
		o.SetFinalizers([]string{"example.com/held"})
		f.Put(o)
	}
	works := definition("work.open-cluster-management.io", "manifestworks", "ManifestWork")
	if err := unstructured.SetNestedField(works.Object, "Namespaced", "spec", "scope"); err != nil {
		t.Fatal(err)
	}
	f.Put(works)
	f.Put(clustertest.Object("v1", "Namespace", "", "tied"))
	f.Put(clustertest.Object("v1", "Namespace", "", "open-cluster-management-hub"))
	f.Put(clustertest.Object("work.open-cluster-management.io/v1", "ManifestWork", "tied", "web"))
	f.Put(request(t, "north-aaaaa", "north", subject("north", "agent1"), bootstrap))
	f.Put(request(t, "south-aaaaa", "south", subject("south", "agent1"), bootstrap))
	f.Put(request(t, "south-bbbbb", "south", subject("south", "agent2"), bootstrap))
	f.Put(request(t, "west-aaaaa", "west", subject("west", "agent1"), "system:serviceaccount:ci:deployer"))
	f.Put(request(t, "young-aaaaa", "young", subject("young", "agent1"), bootstrap))
	f.Put(request(t, "east-aaaaa", "east", subject("north", "agent1"), bootstrap))
	f.Put(request(t, "east-bbbbb", "east", subject("east", "agent1"), "system:open-cluster-management:east:agent1"))
	return f
}

// definition is the definition of a cluster-scoped kind.
func definition(group, plural, kind string) *unstructured.Unstructured {
	return clustertest.Object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", plural+"."+group, "spec", map[string]any{
		"group": group, "scope": "Cluster", "names": map[string]any{"plural": plural, "kind": kind},
		"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}}}},
	})
}

func subject(cluster, agent string) pkix.Name {
	own := "system:open-cluster-management:" + cluster
	return pkix.Name{CommonName: own + ":" + agent, Organization: []string{own, "system:open-cluster-management:managed-clusters"}}
}

// request is a CSR that a broker created for a user.
func request(t *testing.T, name, cluster string, of pkix.Name, requester string) *unstructured.Unstructured {
	t.Helper()
	seed := sha256.Sum256([]byte(name)) // the output contains its SHA-256
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: of}, ed25519.NewKeyFromSeed(seed[:]))
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	o := clustertest.Object("certificates.k8s.io/v1", "CertificateSigningRequest", "", name, "spec", map[string]any{
		"request": base64.StdEncoding.EncodeToString(text), "signerName": "open-cluster-management.io/grpc", "username": courier,
		"usages": []any{"digital signature", "key encipherment", "client auth"},
	})
	o.SetLabels(map[string]string{"open-cluster-management.io/cluster-name": cluster})
	o.SetAnnotations(map[string]string{"open-cluster-management.io/csr-user": requester})
	return o
}

// spoke is a cluster with the klusterlet operator, and without a klusterlet that has joined.
func spoke() *clustertest.Fake {
	f := clustertest.New()
	f.Put(definition("operator.open-cluster-management.io", "klusterlets", "Klusterlet"))
	f.Put(clustertest.Object("operator.open-cluster-management.io/v1", "Klusterlet", "", "klusterlet", "spec", map[string]any{"clusterName": "spoke"}))
	return f
}
