package registration

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/pkg/codec"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// FuzzRequest: a broker may invent events, clusters and users. All writes to the hub are then about the named
// cluster. For a cluster that is not accepted they create a waiting ManagedCluster or a CSR.
func FuzzRequest(f *testing.F) {
	types := []codec.EventType{
		createdCluster, updatedCluster, createdCSR, createdEvent, updatedEvent, updatedLease, updatedAddOn, createdToken,
		{DataType: codec.ManagedClusters, Subresource: codec.Spec, Action: codec.UpdateRequest}, {DataType: codec.ManagedClusters, Subresource: codec.Spec, Action: codec.DeleteRequest},
	}
	csr := base64Of(requestPEM(f, nil))
	for n, data := range []string{
		`{"metadata":{"name":"kube-system"},"spec":{"hubAcceptsClient":true}}`,
		`{"metadata":{"name":"cluster1"},"status":{"conditions":[{"type":"HubAcceptedManagedCluster","status":"True"}]}}`,
		`{"metadata":{"name":"../../a"},"spec":{"signerName":"open-cluster-management.io/grpc","usages":["client auth"],"request":"` + csr + `"}}`,
		`{"metadata":{"name":"e","namespace":"kube-system"}}`,
		`{"metadata":{"name":"e","namespace":"cluster1"},"series":{"count":2}}`,
		`{"metadata":{"name":"scheduler","namespace":"kube-system"}}`,
		`{"metadata":{"name":"a","namespace":"cluster1"},"status":{}}`,
		`{"metadata":{"name":"root","namespace":"kube-system"},"spec":{"audiences":["x"]}}`,
		`{"metadata":{"name":"cluster1"},"spec":{"hubAcceptsClient":true}}`, `{}`,
	} {
		for _, accepted := range []bool{false, true} {
			f.Add(uint8(n), "cluster1", "cluster1", agentOf1, "system:masters", accepted, !accepted, []byte(data))
			f.Add(uint8(n), "kube-system", "cluster1", "system:admin", "", accepted, accepted, []byte(data))
			f.Add(uint8(n), "../x\x1b[2J", "../x\x1b[2J", "", "", accepted, true, []byte(data))
		}
	}
	for _, user := range []string{agentOf1, bootstrapUser} {
		f.Add(uint8(2), "cluster1", "cluster1", user, "", false, true,
			[]byte(`{"metadata":{"name":"cluster1-x"},"spec":{"signerName":"open-cluster-management.io/grpc","usages":["client auth"],"request":"`+csr+`"}}`))
	}
	yes, no := known(f), known(f)
	no.cluster = hubs(f, false)
	f.Fuzz(func(t *testing.T, n uint8, cluster, named, user, group string, accepted, bootstrap bool, data []byte) {
		e, err := codec.Builder{ID: "1", Time: time.Unix(1, 0), Source: "a", Type: types[int(n)%len(types)].String(), Cluster: named, ContentType: "application/json", Data: data}.Event()
		if err != nil {
			return
		}
		raw, err := codec.Marshal(e)
		if err != nil {
			return
		}
		a, err := readRequest(&hawserv1.AgentRequest{Event: raw, Cluster: cluster, User: user, Groups: []string{group}, Bootstrap: bootstrap})
		if err != nil {
			refusal(t, err)
			return
		}
		on := no
		if accepted = accepted && cluster == cluster1; accepted {
			on = yes
		} else if cluster != cluster1 {
			on.cluster = nil // the hub has no cluster of that name
		}
		c, err := decide(a, on)
		if err != nil {
			refusal(t, err)
			return
		}
		meta, _ := c.object["metadata"].(obj)
		spec, _ := c.object["spec"].(obj)
		labels, _ := meta["labels"].(obj)
		annotations, _ := meta["annotations"].(obj)
		wrong := ""
		switch {
		case bootstrap && strings.HasPrefix(user, ocm.UserPrefix):
			wrong = "an agent with a token"
		case named != cluster || user == "" && c.verb == create && (c.resource == managedClusters || c.resource == signingRequests):
			wrong = "the requester is not the named one"
		case slices.ContainsFunc([]string{"finalizers", "ownerReferences", "generateName"}, func(f string) bool { return meta[f] != nil }):
			wrong = "metadata that is the hub's"
		case c.resource == managedClusters && c.verb == create:
			if c.name != cluster || spec["hubAcceptsClient"] != false || len(labels) > 0 || spec["taints"] != nil || c.asRegistrar {
				wrong = "a ManagedCluster that is not one that waits"
			}
		case c.resource == signingRequests:
			if !c.asRegistrar || labels[ocm.ClusterLabel] != cluster || len(annotations) != 1 || annotations[ocm.RequesterAnnotation] != user || !accepted && !bootstrap {
				wrong = "a certificate request in another name"
			}
		case !accepted || bootstrap || c.asRegistrar || spec != nil && c.subresource != "token":
			wrong = "more than a cluster may that is not accepted"
		case c.resource == managedClusters:
			if c.name != cluster || c.subresource != "status" {
				wrong = "another ManagedCluster"
			}
		case c.namespace != cluster:
			wrong = "another namespace"
		case c.subresource == "token" && c.labelled != [2]string{tokenLabel, tokenLabelValue}:
			wrong = "a token of any account"
		}
		if len(content.IsPathSegmentName(c.name)) > 0 && c.resource != managedClusters {
			wrong = "a name that is more than a part of a path"
		}
		if wrong != "" {
			t.Errorf("%s reaches the hub, of %q in cluster %q (accepted %t, bootstrap %t): %+v", wrong, user, cluster, accepted, bootstrap, c)
		}
		if _, err := json.Marshal(c.object); err != nil {
			t.Error(err)
		}
	})
}

// FuzzKeep: for any object of the hub, only the spec makes a cluster accepted. A CSR belongs to its agent only
// if the registrar or the hub names that user.
func FuzzKeep(f *testing.F) {
	for n, text := range []string{
		`{"metadata":{"name":"cluster1"},"spec":{"hubAcceptsClient":true},"status":{"conditions":[{"type":"ManagedClusterConditionAvailable","status":"True"},3]}}`,
		`{"metadata":{"name":"a","labels":{"open-cluster-management.io/cluster-name":"cluster1"},"annotations":{"open-cluster-management.io/csr-user":"` + agentOf1 + `"}},"spec":{"username":"mallory"}}`,
		`{"metadata":{"name":"managed-cluster-lease","namespace":"cluster1"},"spec":{"renewTime":"2026-01-01T00:00:00.000000Z"}}`,
		`{"metadata":{"name":"a","namespace":"cluster1"},"status":{"conditions":"x"}}`,
		`{"metadata":{"name":"a"},"spec":{"hubAcceptsClient":"true"},"status":{"conditions":[{"type":"HubAcceptedManagedCluster","status":"True"}]}}`,
	} {
		f.Add(uint8(n), []byte(text))
	}
	f.Fuzz(func(t *testing.T, n uint8, data []byte) {
		var o map[string]any
		if json.Unmarshal(data, &o) != nil || o == nil {
			return // an API server sends objects
		}
		k := kinds[int(n)%len(kinds)]
		u := &unstructured.Unstructured{Object: o}
		kept, err := k.keep(u)
		if err != nil {
			return
		}
		yes, _, _ := unstructured.NestedBool(o, "spec", "hubAcceptsClient")
		if kept.accepted() != (yes && k.dataType == codec.ManagedClusters) {
			t.Errorf("accepted is %t: %s", kept.accepted(), data)
		}
		user, _, _ := unstructured.NestedString(o, "spec", "username")
		if ours := ocm.UserPrefix + kept.cluster; kept.requestedBy.own && user != ocm.Registrar && user != ours && !strings.HasPrefix(user, ours+":") {
			t.Errorf("%q is accepted as an agent of %q: %s", user, kept.cluster, data)
		}
		if m := k.message(kept); m.GetCluster() != k.cluster(u) || !json.Valid(m.GetJson()) || kept.period < 0 {
			t.Errorf("kept as %v", m)
		}
	})
}
