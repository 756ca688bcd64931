package interop

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// ocmKlusterlet holds the running OCM clients of a klusterlet's registration agent.
type ocmKlusterlet struct {
	*program
	cluster string
}

// startJoiner runs the OCM clients of a klusterlet with a token and without a certificate.
func startJoiner(t testing.TB, token, cluster, addr string) *ocmKlusterlet {
	t.Helper()
	return startClients(t, configFile(t, addr, "token: "+token), cluster, codec.ManagedClusters, codec.SigningRequests)
}

// startMember runs the OCM clients of a klusterlet of OCM v1.3 with a certificate.
func startMember(t testing.TB, cluster, addr string) *ocmKlusterlet {
	t.Helper()
	return startKlusterlet(t, cluster, addr, codec.ManagedClusters, codec.SigningRequests, codec.Leases, codec.KubeEvents, codec.AddOnsV1Beta1)
}

// startKlusterlet runs OCM clients of some types with the cluster's certificate.
func startKlusterlet(t testing.TB, cluster, addr string, types ...codec.DataType) *ocmKlusterlet {
	t.Helper()
	return startClients(t, clientConfig(t, pki.Agent, cluster, addr, ""), cluster, types...)
}

// startClients runs OCM clients of some types. It returns when they have subscribed.
func startClients(t testing.TB, config, cluster string, types ...codec.DataType) *ocmKlusterlet {
	t.Helper()
	var names []string
	for _, d := range types {
		names = append(names, d.String())
	}
	p := start(t, "ocmregistration", "-config", config, "-cluster", cluster, "-types", strings.Join(names, ","))
	k := &ocmKlusterlet{program: p, cluster: cluster}
	for _, d := range types {
		if d != codec.KubeEvents {
			k.await(t, 0, "subscription to "+d.String(), ofType("subscribed", d))
		}
	}
	return k
}

// ofType matches the lines of one kind about a data type.
func ofType(kind string, d codec.DataType) func(outputLine) bool {
	return func(l outputLine) bool { return l.What == kind && l.Type == d.String() }
}

// shows matches lines of a kind in which an informer shows an object.
func shows(kind string, d codec.DataType, name string) func(outputLine) bool {
	return func(l outputLine) bool { return ofType(kind, d)(l) && l.Object != nil && l.Object.GetName() == name }
}

// showsAs matches lines in which an informer shows an object for which wanted returns true.
func showsAs(d codec.DataType, name string, wanted func(*unstructured.Unstructured) bool) func(outputLine) bool {
	return func(l outputLine) bool {
		return (shows("added", d, name)(l) || shows("modified", d, name)(l)) && wanted(&l.Object.Unstructured)
	}
}

// held returns the objects in the cache of a type's client, by name.
func (k *ocmKlusterlet) held(d codec.DataType) map[string]unstructured.Unstructured {
	k.t.Helper()
	all := map[string]unstructured.Unstructured{}
	for _, o := range k.do(command{Do: "list", Type: d.String()}).Objects {
		all[o.GetName()] = o.Unstructured
	}
	return all
}

// awaitHeld waits until the client has an object with that version, and returns it. With version "" any version
// is enough.
func (k *ocmKlusterlet) awaitHeld(d codec.DataType, name, version string) unstructured.Unstructured {
	k.t.Helper()
	var o unstructured.Unstructured
	eventually(k.t, d.Resource+" "+name, func() bool {
		is, ok := k.held(d)[name]
		o = is
		return ok && (version == "" || is.GetResourceVersion() == version)
	})
	return o
}

// tryPatch patches the status of an object.
func (k *ocmKlusterlet) tryPatch(d codec.DataType, name string, status any) outputLine {
	k.t.Helper()
	b, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		k.t.Fatal(err)
	}
	return k.try(command{Do: "patch", Type: d.String(), Name: name, Patch: b})
}

// wants reports an error unless the command failed with this reason. Functions such as IsAlreadyExists and
// IsConflict check that reason.
func wants(t testing.TB, l outputLine, reason metav1.StatusReason) {
	t.Helper()
	if l.Reason != string(reason) {
		t.Errorf("error %q with reason %q, want %s", l.Error, l.Reason, reason)
	}
}

func fields(o any) *unstructured.Unstructured {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(b, &u.Object); err != nil {
		panic(err)
	}
	return u
}

// aCluster returns a ManagedCluster that the hub has accepted, or not.
func aCluster(name string, accepted bool) *unstructured.Unstructured {
	return fields(map[string]any{
		"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"hubAcceptsClient": accepted, "leaseDurationSeconds": 60},
		"status":   map[string]any{},
	})
}

func clusterKey(name string) objectKey { return objectKey{codec.ManagedClusters, name, name} }

// aRequest returns a certificate request of a cluster.
func aRequest(cluster, name string) *unstructured.Unstructured {
	return fields(map[string]any{
		"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
		"metadata": map[string]any{"name": name, "labels": map[string]any{"open-cluster-management.io/cluster-name": cluster}},
		"spec": map[string]any{
			"request": []byte("a request"), "signerName": "open-cluster-management.io/grpc",
			"usages": []any{"digital signature", "key encipherment", "client auth"},
		},
	})
}

func anAddOn(d codec.DataType, cluster, name string) *unstructured.Unstructured {
	return fields(map[string]any{
		"apiVersion": d.Group + "/" + d.Version, "kind": "ManagedClusterAddOn",
		"metadata": map[string]any{"name": name, "namespace": cluster}, "spec": map[string]any{}, "status": map[string]any{},
	})
}

func aLease(cluster string, renewed time.Time) *unstructured.Unstructured {
	return fields(map[string]any{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
		"metadata": map[string]any{"name": leaseName, "namespace": cluster},
		"spec":     map[string]any{"holderIdentity": leaseName, "leaseDurationSeconds": 60, "renewTime": metav1.NewMicroTime(renewed)},
	})
}

const leaseName = "managed-cluster-lease"

// registering returns a broker with src1 as its registration source, and a hub that has accepted these clusters.
func registering(t *testing.T, accepted ...string) (*ourBroker, *registrar) {
	t.Helper()
	b, hub := startBroker(t, registersWith), newRegistrar(t)
	for _, name := range accepted {
		hub.put(clusterKey(name), aCluster(name, true))
	}
	hub.serve(b)
	return b, hub
}

func registersWith(c *broker.Config) { c.Registration = src1 }

// TestKlusterlet_Bootstrap: a klusterlet with only a token creates ManagedCluster and request. It gets
// AlreadyExists if they exist, and receives the certificate.
func TestKlusterlet_Bootstrap(t *testing.T) {
	t.Parallel()
	b, hub := registering(t)
	k := startJoiner(t, hub.token(joiner), cluster1, b.addr)
	k.do(command{Do: "create", Type: codec.ManagedClusters.String(), Object: aCluster(cluster1, true)})
	k.do(command{Do: "create", Type: codec.SigningRequests.String(), Object: aRequest(cluster1, "csr1")})
	k.await(t, 0, "its cluster", shows("added", codec.ManagedClusters, cluster1))
	k.await(t, 0, "its request with a version", showsAs(codec.SigningRequests, "csr1", hasVersion))
	for _, a := range hub.requests.since(0, func(request) bool { return true }) {
		if a.GetUser() != userOf(joiner) || !a.GetBootstrap() || a.GetCluster() != cluster1 {
			t.Errorf("the hub got a request of %q (bootstrap %v) for cluster %q", a.GetUser(), a.GetBootstrap(), a.GetCluster())
		}
	}

	// A klusterlet that starts again does not know that its ManagedCluster exists.
	hub.refuseNext(codec.ManagedClusters, errors.NewAlreadyExists(schema.GroupResource{Group: codec.ManagedClusters.Group, Resource: "managedclusters"}, cluster2))
	again := startJoiner(t, hub.token(joiner), cluster2, b.addr)
	wants(t, again.try(command{Do: "create", Type: codec.ManagedClusters.String(), Object: aCluster(cluster2, false)}), metav1.StatusReasonAlreadyExists)

	hub.sign(cluster1, "csr1")
	k.await(t, 0, "the certificate", signed("csr1"))

	// Another account that joins the same cluster sees the cluster, and no request of others.
	other := startJoiner(t, hub.token(otherJoiner), cluster1, b.addr)
	other.await(t, 0, "the cluster", shows("added", codec.ManagedClusters, cluster1))
	other.do(command{Do: "create", Type: codec.SigningRequests.String(), Object: aRequest(cluster1, "csr2")})
	other.await(t, 0, "its own request", showsAs(codec.SigningRequests, "csr2", hasVersion))
	if got := other.since(0, shows("added", codec.SigningRequests, "csr1")); len(got) != 0 {
		t.Errorf("another account sees %v", got)
	}
}

// signed matches the lines that show a request with its certificate.
func signed(name string) func(outputLine) bool {
	return showsAs(codec.SigningRequests, name, func(o *unstructured.Unstructured) bool {
		text, _, err := unstructured.NestedString(o.Object, "status", "certificate")
		return err == nil && text == base64.StdEncoding.EncodeToString([]byte(certificateOf(name)))
	})
}

// TestKlusterlet_Renewal_IsAnswered: a member requests a renewal, and the hub answers with a certificate.
func TestKlusterlet_Renewal_IsAnswered(t *testing.T) {
	t.Parallel()
	b, hub := registering(t, cluster1)
	k := startMember(t, cluster1, b.addr)
	for _, name := range []string{"first", "second"} {
		k.do(command{Do: "create", Type: codec.SigningRequests.String(), Object: aRequest(cluster1, name)})
		k.await(t, 0, "its request with a version", showsAs(codec.SigningRequests, name, hasVersion))
		hub.sign(cluster1, name)
		k.await(t, 0, "its certificate", signed(name))
	}
	for _, a := range hub.requests.since(0, func(request) bool { return true }) {
		if a.GetBootstrap() || a.GetCluster() != cluster1 {
			t.Errorf("the hub got a request of %q (bootstrap %v) for cluster %q", a.GetUser(), a.GetBootstrap(), a.GetCluster())
		}
	}
}

func hasVersion(o *unstructured.Unstructured) bool { return o.GetResourceVersion() != "" }

// TestKlusterlet_Errors_AreThoseOfTheHub: an error of the hub reaches the klusterlet's code unchanged.
func TestKlusterlet_Errors_AreThoseOfTheHub(t *testing.T) {
	t.Parallel()
	b, hub := registering(t, cluster1)
	hub.put(objectKey{codec.AddOnsV1Beta1, cluster1, "a"}, anAddOn(codec.AddOnsV1Beta1, cluster1, "a"))
	k := startMember(t, cluster1, b.addr)
	k.await(t, 0, "its cluster", shows("added", codec.ManagedClusters, cluster1))
	k.await(t, 0, "its add-on", shows("added", codec.AddOnsV1Beta1, "a"))
	gr := schema.GroupResource{Group: codec.ManagedClusters.Group, Resource: codec.ManagedClusters.Resource}
	for _, refusal := range []errors.APIStatus{
		errors.NewConflict(gr, cluster1, fmt.Errorf("another client was faster")), errors.NewForbidden(gr, cluster1, fmt.Errorf("not you")),
		errors.NewNotFound(gr, cluster1), errors.NewInternalError(fmt.Errorf("no disk")), errors.NewTooManyRequests("later", 1),
	} {
		reason := refusal.Status().Reason
		hub.refuseNext(codec.ManagedClusters, refusal)
		wants(t, k.tryPatch(codec.ManagedClusters, cluster1, map[string]any{"version": map[string]any{"kubernetes": reason}}), reason)
		hub.refuseNext(codec.SigningRequests, refusal)
		wants(t, k.try(command{Do: "create", Type: codec.SigningRequests.String(), Object: aRequest(cluster1, "c"+strings.ToLower(string(reason)))}), reason)
		hub.refuseNext(codec.AddOnsV1Beta1, refusal)
		wants(t, k.tryPatch(codec.AddOnsV1Beta1, "a", map[string]any{"healthCheck": map[string]any{"mode": reason}}), reason)
		hub.refuseNext(codec.KubeEvents, refusal)
		wants(t, k.try(command{Do: "create", Type: codec.KubeEvents.String(), Object: anEvent(cluster1)}), reason)
	}
	// The request names another cluster. The broker rejects it with an error in the same form.
	wants(t, k.try(command{Do: "create", Type: codec.SigningRequests.String(), Object: aRequest(cluster2, "c")}), metav1.StatusReasonForbidden)
	if requests := hub.requests.since(0, func(a request) bool { return a.GetCluster() != cluster1 }); len(requests) != 0 {
		t.Errorf("the hub got the requests %v", requests)
	}
	k.do(command{Do: "create", Type: codec.SigningRequests.String(), Object: aRequest(cluster1, "after")})
}

// TestKlusterlet_NoSource_ServiceUnavailable: while no source serves registration, requests that can wait are
// retried.
func TestKlusterlet_NoSource_ServiceUnavailable(t *testing.T) {
	t.Parallel()
	b := startBroker(t, registersWith)
	k := startKlusterlet(t, cluster1, b.addr, codec.ManagedClusters)
	create := command{Do: "create", Type: codec.ManagedClusters.String(), Object: aCluster(cluster1, false)}
	wants(t, k.try(create), metav1.StatusReasonServiceUnavailable)
	newRegistrar(t).serve(b)
	k.do(create)
	k.await(t, 0, "its cluster", shows("added", codec.ManagedClusters, cluster1))
}

func anEvent(cluster string) *unstructured.Unstructured {
	return fields(map[string]any{
		"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": map[string]any{"name": "e", "namespace": cluster},
		"action": "Available", "reason": "Available", "type": "Normal", "note": "The cluster is available.",
		"reportingController": "klusterlet-agent", "reportingInstance": "klusterlet-agent-1",
	})
}

// TestKlusterlet_Event_AndItsSeries: Events are created, and only their series count is updated.
func TestKlusterlet_Event_AndItsSeries(t *testing.T) {
	t.Parallel()
	b, hub := registering(t, cluster1)
	k := startMember(t, cluster1, b.addr)
	k.do(command{Do: "create", Type: codec.KubeEvents.String(), Object: anEvent(cluster1)})
	series := json.RawMessage(`{"series":{"count":2,"lastObservedTime":"2026-01-01T00:00:00.000000Z"}}`)
	k.do(command{Do: "patch", Type: codec.KubeEvents.String(), Name: "e", Patch: series})
	requests := hub.requests.since(0, func(a request) bool { return strings.HasPrefix(a.event.Type(), codec.KubeEvents.String()) })
	if len(requests) != 2 || !strings.Contains(string(requests[1].event.Data()), `"count":2`) {
		t.Errorf("the hub got the requests %v", requests)
	}
}

// TestKlusterlet_Status_ComesBack: a status goes to the hub and comes back. A status older than the hub's is a
// conflict.
func TestKlusterlet_Status_ComesBack(t *testing.T) {
	t.Parallel()
	b, hub := registering(t, cluster1)
	k := startMember(t, cluster1, b.addr)
	k.await(t, 0, "its cluster", shows("added", codec.ManagedClusters, cluster1))
	patch := func(version string) outputLine {
		return k.tryPatch(codec.ManagedClusters, cluster1, map[string]any{"version": map[string]any{"kubernetes": version}})
	}
	if l := patch("v1.30.0"); l.Error != "" {
		t.Fatalf("status: %s", l.Error)
	}
	k.awaitHeld(codec.ManagedClusters, cluster1, hub.get(clusterKey(cluster1)).GetResourceVersion())
	stale := k.held(codec.ManagedClusters)[cluster1]
	version, _, err := unstructured.NestedString(stale.Object, "status", "version", "kubernetes")
	if err != nil || version != "v1.30.0" {
		t.Errorf("the klusterlet has version %q, %v", version, err)
	}
	hub.refuseNext(codec.ManagedClusters, errors.NewConflict(schema.GroupResource{Resource: "managedclusters"}, cluster1, fmt.Errorf("older")))
	wants(t, patch("v1.31.0"), metav1.StatusReasonConflict)
	if l := patch("v1.31.0"); l.Error != "" {
		t.Errorf("the status again: %s", l.Error)
	}
}

// TestKlusterlet_AddOnStatus_ComesBack: the status of an add-on goes to the hub and comes back, in both
// versions. Klusterlets up to OCM v1.2 use the first version, later ones the second.
func TestKlusterlet_AddOnStatus_ComesBack(t *testing.T) {
	t.Parallel()
	for _, d := range []codec.DataType{codec.AddOnsV1Alpha1, codec.AddOnsV1Beta1} {
		t.Run(d.Version, func(t *testing.T) {
			t.Parallel()
			b, hub := registering(t, cluster1)
			key := objectKey{d, cluster1, "a"}
			hub.put(key, anAddOn(d, cluster1, "a"))
			k := startKlusterlet(t, cluster1, b.addr, codec.ManagedClusters, d)
			k.await(t, 0, "its add-on", shows("added", d, "a"))
			for _, mode := range []string{"Lease", "Customized"} {
				if l := k.tryPatch(d, "a", map[string]any{"healthCheck": map[string]any{"mode": mode}}); l.Error != "" {
					t.Fatalf("status: %s", l.Error)
				}
				of := func(o *unstructured.Unstructured) string {
					is, _, err := unstructured.NestedString(o.Object, "status", "healthCheck", "mode")
					if err != nil {
						t.Error(err)
					}
					return is
				}
				on := hub.get(key)
				held := k.awaitHeld(d, "a", on.GetResourceVersion())
				if of(on) != mode || of(&held) != mode {
					t.Errorf("the hub has mode %q, the klusterlet %q, want %s", of(on), of(&held), mode)
				}
			}
			k.do(command{Do: "patch", Type: d.String(), Name: "a", Patch: json.RawMessage(`{"status":{"namespace":"of-the-add-on"}}`)})
			hub.remove(key)
			k.await(t, 0, "its end", shows("deleted", d, "a"))
		})
	}
}

// TestKlusterlet_Token_IsForTheRequester: a token goes once to the connection that requested it, and nowhere
// else.
func TestKlusterlet_Token_IsForTheRequester(t *testing.T) {
	t.Parallel()
	b, hub := registering(t, cluster1, cluster2)
	k := startMember(t, cluster1, b.addr)
	listening := b.connect(t, pki.Agent, cluster1).subscribe(transport.Filter{Cluster: cluster1, DataType: codec.TokenRequests})
	elsewhere := b.connect(t, pki.Agent, cluster2).subscribe(transport.Filter{Cluster: cluster2, DataType: codec.TokenRequests})
	for range 2 {
		l := k.do(command{Do: "token", Name: "a-agent", Count: 3600})
		token, _, err := unstructured.NestedString(l.Object.Object, "status", "token")
		if err != nil || token != "token for a-agent" {
			t.Errorf("token %q, %v", token, err)
		}
	}
	sent := b.wire.since(0, func(p passed) bool { return p.sent && strings.HasPrefix(p.event.Type(), codec.TokenRequests.String()) })
	if len(sent) != 2 || sent[0].id() == sent[1].id() {
		t.Errorf("the broker sent %v, want each token once", sent)
	}
	hub.refuseNext(codec.TokenRequests, errors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts"}, "a-agent", fmt.Errorf("not labelled")))
	if l := k.try(command{Do: "token", Name: "a-agent", Count: 3600}); !strings.Contains(l.Error, "not labelled") {
		t.Errorf("a token that the hub refuses: %q", l.Error)
	}
	all := func(codec.Event) bool { return true }
	if got := append(listening.since(0, all), elsewhere.since(0, all)...); len(got) != 0 {
		t.Errorf("other connections got %v", got)
	}
}

// TestKlusterlet_Deletion_IsByUID: a deleted object is removed from the klusterlet's cache by its uid, even if
// another object already has its name.
func TestKlusterlet_Deletion_IsByUID(t *testing.T) {
	t.Parallel()
	b, hub := registering(t, cluster1)
	key := objectKey{codec.AddOnsV1Beta1, cluster1, "a"}
	hub.put(key, anAddOn(codec.AddOnsV1Beta1, cluster1, "a"))
	k := startMember(t, cluster1, b.addr)
	first := k.await(t, 0, "the add-on", shows("added", codec.AddOnsV1Beta1, "a")).Object
	hub.remove(key)
	k.await(t, 0, "its end", shows("deleted", codec.AddOnsV1Beta1, "a"))
	from := k.position()
	hub.put(key, anAddOn(codec.AddOnsV1Beta1, cluster1, "a"))
	second := k.await(t, from, "the new one", shows("added", codec.AddOnsV1Beta1, "a")).Object
	if first.GetUID() == second.GetUID() {
		t.Fatal("the add-ons have one uid")
	}
	// Replaced in one step, as far as the klusterlet can see.
	from = k.position()
	hub.put(key, anAddOn(codec.AddOnsV1Beta1, cluster1, "a"))
	third := hub.get(key)
	k.await(t, from, "the third", func(l outputLine) bool {
		return (l.What == "added" || l.What == "modified") && l.Object != nil && l.Object.GetUID() == third.GetUID()
	})
	held := k.held(codec.AddOnsV1Beta1)["a"]
	if held.GetUID() != third.GetUID() {
		t.Errorf("the klusterlet has uid %s, want %s", held.GetUID(), third.GetUID())
	}
}

// TestKlusterlet_Resync_DeliversMissedWorks: after a broken connection, changes are sent and deleted objects
// are removed. This also works for objects that the klusterlet cannot list, because it has no version of a
// request that was not echoed.
func TestKlusterlet_Resync_DeliversMissedWorks(t *testing.T) {
	t.Parallel()
	b, hub := registering(t, cluster1)
	add := func(name string) objectKey { return objectKey{codec.AddOnsV1Beta1, cluster1, name} }
	for _, name := range []string{"stays", "changes", "goes"} {
		hub.put(add(name), anAddOn(codec.AddOnsV1Beta1, cluster1, name))
	}
	wire := newCable(t, b.addr)
	k := startMember(t, cluster1, wire.addr)
	for _, name := range []string{"stays", "changes", "goes"} {
		k.awaitHeld(codec.AddOnsV1Beta1, name, "")
	}
	k.do(command{Do: "create", Type: codec.SigningRequests.String(), Object: aRequest(cluster1, "csr1")})

	wire.cut()
	hub.remove(add("goes"))
	hub.put(add("changes"), hub.get(add("changes")))
	hub.put(add("comes"), anAddOn(codec.AddOnsV1Beta1, cluster1, "comes"))
	csr := objectKey{codec.SigningRequests, cluster1, "csr1"}
	hub.put(csr, hub.get(csr))
	wire.plug(b.addr)

	k.awaitHeld(codec.AddOnsV1Beta1, "changes", hub.get(add("changes")).GetResourceVersion())
	k.awaitHeld(codec.AddOnsV1Beta1, "comes", "")
	k.awaitHeld(codec.SigningRequests, "csr1", hub.get(csr).GetResourceVersion())
	eventually(t, "the end of what is gone", func() bool { _, is := k.held(codec.AddOnsV1Beta1)["goes"]; return !is })
	k.awaitHeld(codec.AddOnsV1Beta1, "stays", "")
}

// TestKlusterlet_Lease_ComesBackRenewed: a Lease is renewed on the way to the hub. It comes back with its new
// version, which the next renewal carries.
func TestKlusterlet_Lease_ComesBackRenewed(t *testing.T) {
	t.Parallel()
	b, hub := registering(t, cluster1)
	key := objectKey{codec.Leases, cluster1, leaseName}
	hub.put(key, aLease(cluster1, time.Now().Add(-time.Minute)))
	k := startMember(t, cluster1, b.addr)
	for range 2 {
		held := k.awaitHeld(codec.Leases, leaseName, hub.get(key).GetResourceVersion())
		held.Object["spec"].(map[string]any)["renewTime"] = metav1.NowMicro() //nolint:forcetypeassert // it is ours
		from := hub.alive.position()
		k.do(command{Do: "update", Type: codec.Leases.String(), Object: held.Object})
		renewals := hub.alive.await(t, from, "the renewal", nonEmpty)
		if got := renewals.GetRenewals()[0]; got.GetCluster() != cluster1 || got.GetAge().AsDuration() > patience {
			t.Errorf("renewal %v", got)
		}
		hub.put(key, aLease(cluster1, time.Now()))
	}
	if requests := hub.requests.since(0, func(a request) bool { return strings.HasPrefix(a.event.Type(), codec.Leases.String()) }); len(requests) != 0 {
		t.Errorf("the hub got the requests %v: a renewal waits for no answer", requests)
	}
	other := aLease(cluster2, time.Now())
	wants(t, k.try(command{Do: "update", Type: codec.Leases.String(), Object: other}), metav1.StatusReasonForbidden)
}

// TestKlusterlet_Acceptance_ReleasesExistingWorks: before its acceptance a cluster reads only its own ManagedCluster
// and requests, and gets no works. After it, everything arrives over the existing streams.
func TestKlusterlet_Acceptance_ReleasesExistingWorks(t *testing.T) {
	t.Parallel()
	b, hub := registering(t, cluster2)
	hub.put(clusterKey(cluster1), aCluster(cluster1, false))
	hub.put(objectKey{codec.Leases, cluster1, leaseName}, aLease(cluster1, time.Now()))
	hub.put(objectKey{codec.AddOnsV1Beta1, cluster1, "a"}, anAddOn(codec.AddOnsV1Beta1, cluster1, "a"))
	source := startSource(t, src2, b.addr)
	id := source.create(newWork(cluster1, "w", 1))
	k := startMember(t, cluster1, b.addr)
	works := start(t, "ocmagent", "-config", clientConfig(t, pki.Agent, cluster1, b.addr, ""), "-cluster", cluster1, "-agent-id", "a")
	k.await(t, 0, "its cluster", shows("added", codec.ManagedClusters, cluster1))
	k.do(command{Do: "create", Type: codec.SigningRequests.String(), Object: aRequest(cluster1, "csr1")})
	k.await(t, 0, "its request", showsAs(codec.SigningRequests, "csr1", hasVersion))
	early := b.wire.since(0, func(p passed) bool {
		t := p.event.Type()
		return p.sent && p.peer.Role == string(identity.Agent) && !strings.HasPrefix(t, codec.ManagedClusters.String()) && !strings.HasPrefix(t, codec.SigningRequests.String())
	})
	if len(early) != 0 {
		t.Errorf("before its acceptance the cluster was sent %v", early)
	}
	wants(t, k.try(command{Do: "create", Type: codec.KubeEvents.String(), Object: anEvent(cluster1)}), metav1.StatusReasonForbidden)

	hub.put(clusterKey(cluster1), accept(hub.get(clusterKey(cluster1)), true))
	k.awaitHeld(codec.Leases, leaseName, "")
	k.awaitHeld(codec.AddOnsV1Beta1, "a", "")
	k.do(command{Do: "create", Type: codec.KubeEvents.String(), Object: anEvent(cluster1)})
	works.await(t, 0, "the work", ofID("added", id))

	// Without acceptance works stop. With it they continue.
	hub.put(clusterKey(cluster1), accept(hub.get(clusterKey(cluster1)), false))
	k.awaitHeld(codec.ManagedClusters, cluster1, hub.get(clusterKey(cluster1)).GetResourceVersion())
	second := source.create(newWork(cluster1, "w2", 1))
	startMember(t, cluster2, b.addr).await(t, 0, "another cluster, which goes on", shows("added", codec.ManagedClusters, cluster2))
	if got := works.since(0, ofID("received", second)); len(got) != 0 {
		t.Errorf("after its acceptance was withdrawn the cluster was sent %v", got)
	}
	hub.put(clusterKey(cluster1), accept(hub.get(clusterKey(cluster1)), true))
	works.await(t, 0, "the second work", ofID("added", second))
}

func accept(o *unstructured.Unstructured, is bool) *unstructured.Unstructured {
	o.Object["spec"].(map[string]any)["hubAcceptsClient"] = is //nolint:forcetypeassert // it is ours
	return o
}

// TestKlusterlet_TypesWithoutObjects_AreQuiet: a type that the hub does not know, or has no objects of, is a
// stream without events. A klusterlet whose stream is rejected slows down for all types.
func TestKlusterlet_TypesWithoutObjects_AreQuiet(t *testing.T) {
	t.Parallel()
	b, _ := registering(t, cluster1)
	k := startKlusterlet(t, cluster1, b.addr,
		codec.ManagedClusters, codec.SigningRequests, codec.Leases, codec.AddOnsV1Alpha1, codec.AddOnsV1Beta1)
	k.await(t, 0, "its cluster", shows("added", codec.ManagedClusters, cluster1))
	for _, d := range []codec.DataType{codec.Leases, codec.AddOnsV1Alpha1, codec.AddOnsV1Beta1, codec.SigningRequests} {
		if got := k.since(0, ofType("received", d)); len(got) != 0 {
			t.Errorf("%s: received %v", d, got)
		}
		if held := k.held(d); len(held) != 0 {
			t.Errorf("%s: holds %v", d, held)
		}
	}
	if again := k.since(0, what("subscribed")); len(again) != 5 {
		t.Errorf("%d subscriptions, want 5: none is to be refused or ended", len(again))
	}
}

// TestKlusterlet_NotConfigured_IsNotServed: without a registration source the broker does not serve these
// types.
func TestKlusterlet_NotConfigured_IsNotServed(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	config := clientConfig(t, pki.Agent, cluster1, b.addr, "")
	k := start(t, "ocmregistration", "-config", config, "-cluster", cluster1, "-types", codec.KubeEvents.String())
	wants(t, k.try(command{Do: "create", Type: codec.KubeEvents.String(), Object: anEvent(cluster1)}), "PublishError")
	startAgent(t, cluster1, b.addr).await(t, 0, "works, which need no acceptance", what("subscribed"))
}

func nonEmpty(r *hawserv1.LeaseRenewals) bool { return len(r.GetRenewals()) > 0 }
