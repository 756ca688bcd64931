package registration

import (
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/pkg/codec"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// FuzzDecide: for any object of an agent, the resulting call is about the agent's own cluster, and accepts no
// cluster.
func FuzzDecide(f *testing.F) {
	types := []codec.EventType{createdCluster, updatedCluster, createdCSR, createdEvent, updatedEvent, updatedLease, updatedAddOn, createdToken}
	csr := strings.ReplaceAll(base64Of(requestPEM(f, nil)), "\n", "")
	for n, data := range []string{
		`{"metadata":{"name":"cluster1","annotations":{"agent.open-cluster-management.io/a":"b"}},"spec":{"hubAcceptsClient":true,"managedClusterClientConfigs":[{"url":"u","caBundle":"YQ=="}]}}`,
		`{"metadata":{"name":"cluster1","uid":"u1","resourceVersion":"7"},"status":{"conditions":[{"type":"HubAcceptedManagedCluster","status":"True"},{"type":"x"},3]}}`,
		`{"metadata":{"name":"cluster1-abcde","labels":{"open-cluster-management.io/cluster-name":"cluster1"}},"spec":{"signerName":"open-cluster-management.io/grpc","usages":["client auth"],"request":"` + csr + `"}}`,
		`{"metadata":{"name":"e","namespace":"cluster1"},"regarding":{"kind":"ManagedCluster"}}`,
		`{"metadata":{"name":"e","namespace":"cluster1"},"series":{"count":2}}`,
		`{"metadata":{"name":"managed-cluster-lease","namespace":"cluster1"}}`,
		`{"metadata":{"name":"a","namespace":"cluster1"},"status":{}}`,
		`{"metadata":{"name":"a-agent","namespace":"cluster1","uid":"u"},"spec":{"expirationSeconds":600}}`,
	} {
		f.Add(uint8(n), true, []byte(data))
		f.Add(uint8(n), false, []byte(data))
	}
	accepted := known(f)
	f.Fuzz(func(t *testing.T, n uint8, bootstrap bool, data []byte) {
		what := types[int(n)%len(types)]
		e, err := codec.Builder{ID: "1", Time: time.Unix(1, 0), Source: "a", Type: what.String(), Cluster: cluster1, ContentType: "application/json", Data: data}.Event()
		if err != nil {
			return
		}
		b, err := codec.Marshal(e)
		if err != nil {
			return
		}
		on, user := accepted, agentOf1
		if bootstrap {
			on.cluster, user = nil, bootstrapUser
		}
		a, err := readRequest(&hawserv1.AgentRequest{Event: b, Cluster: cluster1, User: user, Bootstrap: bootstrap})
		if err != nil {
			refusal(t, err)
			return
		}
		c, err := decide(a, on)
		if err != nil {
			refusal(t, err)
			return
		}
		checkCall(t, c, user)
	})
}

// refusal fails the test unless the error has a Status, which agents read.
func refusal(t *testing.T, err error) {
	t.Helper()
	if apierrors.ReasonForError(err) == "" && !errors.Is(err, errNothing) {
		t.Errorf("refused with %v", err)
	}
}

// checkCall fails the test unless a call is one that cluster1 may cause.
func checkCall(t *testing.T, c call, user string) {
	t.Helper()
	bootstrap := user == bootstrapUser
	meta, _ := c.object["metadata"].(obj)
	for _, field := range []string{"finalizers", "ownerReferences", "generateName"} {
		if _, ok := meta[field]; ok {
			t.Errorf("%s reaches the hub: %+v", field, c)
		}
	}
	switch c.resource {
	case managedClusters:
		spec, _ := c.object["spec"].(obj)
		if c.name != cluster1 || c.verb == create && spec["hubAcceptsClient"] != false || c.verb != create && (spec != nil || bootstrap) {
			t.Errorf("%+v", c)
		}
	case signingRequests:
		labels, _ := meta["labels"].(obj)
		annotations, _ := meta["annotations"].(obj)
		if !c.asRegistrar || labels[ocm.ClusterLabel] != cluster1 || len(annotations) != 1 || annotations[ocm.RequesterAnnotation] != user {
			t.Errorf("%+v", c)
		}
	default:
		if c.namespace != cluster1 || c.asRegistrar || bootstrap || c.resource == leases || strings.ContainsAny(c.name, "/%") {
			t.Errorf("%+v", c)
		}
	}
}
