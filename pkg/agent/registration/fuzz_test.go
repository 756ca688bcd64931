package registration

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// FuzzShown: for any objects and errors from a broker, the agent makes requests only for its own cluster. It
// accepts only a certificate of its own key and subject.
func FuzzShown(f *testing.F) {
	for _, joined := range []bool{false, true} {
		r := newRig(f)
		r.hub.approving, r.hub.accepting = joined, joined
		r.pass(3 * time.Second)
		for k := range numKinds {
			for _, o := range r.hub.all(k) {
				data, err := json.Marshal(o)
				if err != nil {
					f.Fatal(err)
				}
				f.Add(uint8(k), joined, data, "uid-1", "")
			}
		}
	}
	f.Add(uint8(Requests), true, []byte(nil), "uid-3", `{"reason":"AlreadyExists","code":409}`)
	f.Add(uint8(Clusters), true, []byte(`{"metadata":{"name":"other","uid":"x"},"spec":{"hubAcceptsClient":true}}`), "", `{"code":"x"}`)
	f.Add(uint8(Requests), false, []byte(`{"metadata":{"name":"cluster1-n0002","uid":"x","labels":{"open-cluster-management.io/cluster-name":"cluster1"}},"status":{"certificate":"LS0t"}}`), "", "{")
	f.Fuzz(func(t *testing.T, kind uint8, joined bool, data []byte, uid, refusal string) {
		r := newRig(t)
		r.hub.approving, r.hub.accepting = joined, joined
		r.pass(3 * time.Second)
		k := Kind(kind) % numKinds
		b := codec.Builder{
			ID: "1", Time: r.now, Source: "hub", Cluster: cluster1, Data: data,
			Type: codec.EventType{DataType: dataTypes[k], Subresource: codec.Spec, Action: codec.UpdateRequest}.String(),
		}
		if b.ContentType = codec.ContentTypeJSON; len(data) == 0 {
			b.ContentType, b.Extensions = "", map[string]any{codec.ExtResourceID: uid, codec.ExtDeletionTimestamp: r.now}
		}
		e, err := b.Event()
		if err != nil {
			return
		}
		before := r.core.state.Credential
		switch s, err := read(k, e); {
		case err != nil:
		case s.object != nil:
			r.core.StoreObject(s.object)
		default:
			r.core.RemoveObject(r.now, k, s.uid)
		}
		if refusal != "" {
			r.hub.refuse = func(RequestKind) error { return &transport.Error{Code: transport.CodeInternal, Message: refusal} }
		}
		for _, e := range r.core.Step(r.now) {
			p, ok := e.(Publish)
			if !ok {
				continue
			}
			if event, err := (envelope{id: "2", time: r.now, cluster: cluster1}).event(p); err == nil {
				if named, _, err := codec.StringExtension(event, codec.ExtClusterName); err != nil || named != cluster1 {
					t.Fatalf("%s is requested in the name of %q: %v", p.Request, named, err)
				}
			}
			if o, ok := p.Object.(*certificatesv1.CertificateSigningRequest); ok && bytes.Contains(o.Spec.Request, []byte("PRIVATE KEY")) {
				t.Fatal("the key leaves the cluster")
			}
			r.core.Published(r.now, p, r.hub.do(p.Request, p.Object))
		}
		r.core.Step(r.now)
		own := r.core.state.Credential
		if before != nil && own == nil {
			t.Fatal("an event of the broker removed the certificate")
		}
		if own != nil {
			if _, err := ReadCredential(own.Cert, own.Key, r.core.subject()); err != nil {
				t.Fatal(err)
			}
		}
		if err := ownOnly(r.core); err != "" {
			t.Fatal(err)
		}
	})
}

// ownOnly returns a text about state of another cluster in a core; "" if there is none.
func ownOnly(c *Core) string {
	switch {
	case c.cluster != nil && c.cluster.Name != cluster1:
		return "took the ManagedCluster " + c.cluster.Name
	case c.lease != nil && (c.lease.Namespace != cluster1 || c.lease.Name != ocm.LeaseName):
		return "took the Lease " + c.lease.Namespace + "/" + c.lease.Name
	case c.state.Cluster != cluster1 || c.state.Hub != "hub1" || identity.CheckAgent(c.state.Agent) != nil:
		return "is another one: " + c.state.Cluster + " " + c.state.Hub + " " + c.state.Agent
	}
	for _, r := range c.requests {
		if r.Labels[clusterv1.ClusterNameLabelKey] != cluster1 {
			return "took the request " + r.Name
		}
	}
	return ""
}

// FuzzReadSavedState: for any Secret, the content that is read belongs to this cluster and hub and is
// consistent. It is written unchanged.
func FuzzReadSavedState(f *testing.F) {
	r := newRig(f)
	r.hub.approving, r.hub.accepting = true, true
	r.pass(3 * time.Second)
	d := r.secret
	f.Add(cluster1, "hub1", string(d[keyAgent]), d[keyCert], d[keyKey], "cluster1-n0003", d[keyKey], "registered")
	f.Add(cluster1, "hub1", "n0001", []byte("x"), []byte(nil), "a", []byte("x"), "bootstrap")
	f.Add("cluster2", "hub1", "n0001", d[keyCert], d[keyKey], "", []byte(nil), "")
	f.Add(cluster1, "hub1", "../n\x1b[2J", d[keyCert], d[keyKey], "", []byte(nil), "other")
	f.Fuzz(func(t *testing.T, cluster, hub, agent string, cert, key []byte, pending string, pendingKey []byte, as string) {
		data := map[string][]byte{
			keyCluster: []byte(cluster), keyHub: []byte(hub), keyAgent: []byte(agent), keyCert: cert, keyKey: key,
			keyPendingName: []byte(pending), keyPendingKey: pendingKey, keyPendingAs: []byte(as),
		}
		k, why := ReadSavedState(data, cluster1, "hub1")
		raw := func(r rune) bool { return !strconv.IsPrint(r) }
		if why != nil && (why.Error() == "" || k.Agent == "" && (len(why.Error()) > 1<<10 || strings.ContainsFunc(why.Error(), raw))) {
			t.Fatalf("refused with %v", why)
		}
		if why != nil && k.Credential != nil || k.Credential != nil && (cluster != cluster1 || hub != "hub1") {
			t.Fatalf("took %v, %v", k.Credential, why)
		}
		if k.Agent == "" {
			if k.Pending != nil || k.Credential != nil || why == nil {
				t.Fatalf("accepted %+v without an owner", k)
			}
			return
		}
		if identity.CheckAgent(k.Agent) != nil || k.Cluster != cluster1 || k.Hub != "hub1" {
			t.Fatalf("took %+v", k)
		}
		again, why := ReadSavedState(k.Data(), cluster1, "hub1")
		if why != nil || !again.equal(k) {
			t.Fatalf("written as %v, read as %v: %v", k.Data(), again.Data(), why)
		}
	})
}
