package hubidentity_test

import (
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/hubidentity"
)

// formerBook is the ConfigMap of identities as the API server returns it. Agents of commit 0647681f
// wrote it, in TestFormer_Write of that commit.
const formerBook = "testdata/former/hawser-agent-identities.json"

var (
	formerSince     = time.Date(2026, 5, 1, 8, 30, 0, 0, time.UTC)
	formerThrough   = hubidentity.BrokerRef{Cluster: "cluster1", Broker: "a:8090", Roots: []string{"ca1", "ca2"}, StoreID: "e1"}
	formerRefused   = hubidentity.BrokerRef{Cluster: "cluster1", Broker: "b:8090", Roots: []string{"ca1"}, StoreID: "e2"}
	formerPlaintext = hubidentity.BrokerRef{Cluster: "cluster2", Broker: "c:1883"} // without TLS, and its store has no identity
)

// book returns the ConfigMap of identities, nil if it does not exist.
func (w *world) book() *unstructured.Unstructured {
	return w.f.Look(w.f.Ref("v1", "ConfigMap", "hawser", hubidentity.ClaimsName))
}

// formerWorld is a cluster with objects that former agents wrote.
func formerWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	b, err := os.ReadFile(formerBook)
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal(b, o); err != nil {
		t.Fatal(err)
	}
	o.SetResourceVersion("")
	w.f.Put(o)
	return w
}

// TestFormer_Book checks that hubs in the ConfigMap of former agents are read.
func TestFormer_Book(t *testing.T) {
	w := formerWorld(t)
	got, err := w.mover.Registry.Claims(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := hubidentity.Claims{
		appliedwork.HubHash("hub1"): {Identity: "hub1", Since: formerSince, BrokerRef: formerThrough, Rejected: []hubidentity.Rejected{{Identity: "hub1", Since: formerSince, BrokerRef: formerRefused}}},
		appliedwork.HubHash("hub2"): {Identity: "hub2", Since: formerSince, BrokerRef: formerPlaintext},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for _, c := range []struct {
		cluster, broker, want string
		certain               bool
	}{{"cluster1", "a:8090", "hub1", true}, {"cluster1", "moved:8090", "hub1", false}, {"cluster2", "c:1883", "hub2", true}} {
		if id, certain, err := w.mover.Registry.Identify(t.Context(), c.cluster, c.broker); id != c.want || certain != c.certain || err != nil {
			t.Errorf("%s through %s is %q, certain %t, %v", c.cluster, c.broker, id, certain, err)
		}
	}
}

// TestFormer_Claims checks claims that a former agent wrote. The same broker is admitted without a write, also
// at a new address. Another broker is refused, also with another identity. The claim of a present agent is
// stored beside the former ones.
func TestFormer_Claims(t *testing.T) {
	w := formerWorld(t)
	before := w.book().GetResourceVersion()
	admit := func(identity string, through hubidentity.BrokerRef) error {
		_, err := w.mover.Registry.Admit(t.Context(), identity, through, []string{"ca1", "ca2"})
		return err
	}
	if err := admit("hub1", formerThrough); err != nil || w.book().GetResourceVersion() != before {
		t.Errorf("the same broker: %v, %v", err, w.book())
	}
	var refused *hubidentity.RefusedError
	if err := admit("hub1", formerRefused); !errors.As(err, &refused) || !refused.By.Since.Equal(formerSince) {
		t.Errorf("the broker that was refused before: %v", err)
	}
	if w.book().GetResourceVersion() != before {
		t.Errorf("it was written once more: %v", w.book())
	}
	sameStore := hubidentity.BrokerRef{Cluster: "cluster1", Broker: "b:8090", Roots: []string{"ca1"}, StoreID: "e1"}
	if err := admit("hub3", sameStore); !errors.As(err, &refused) || refused.Claim.Identity != "hub1" {
		t.Errorf("another identity through the same store: %v", err)
	}
	for identity, through := range map[string]hubidentity.BrokerRef{"hub1": sameStore, "hub4": {Cluster: "cluster1", Broker: "d:8090", StoreID: "e4"}} {
		if err := admit(identity, through); err != nil {
			t.Errorf("%s: %v", identity, err)
		}
	}
	b, err := w.mover.Registry.Claims(t.Context())
	if err != nil || len(b) != 3 || b[appliedwork.HubHash("hub1")].Broker != "b:8090" || b[appliedwork.HubHash("hub2")].Broker != "c:1883" {
		t.Errorf("%+v, %v", b, err)
	}
	if labels := w.book().GetLabels(); labels["app.kubernetes.io/managed-by"] != "hawser-agent" {
		t.Errorf("labels %v", labels)
	}
}
