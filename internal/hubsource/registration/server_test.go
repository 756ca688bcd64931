package registration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mem"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// bench is hub-source between a hub and a broker, in a synctest bubble.
type bench struct {
	testing.TB
	hub      *fakeHub
	broker   *fakeBroker
	dialer   *mem.Dialer
	server   *Server
	registry *prometheus.Registry
}

// inBubble runs a test with a server that has read everything.
func inBubble(t *testing.T, before func(b *bench, c *Config), test func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{TB: t, hub: newFakeHub(t), registry: prometheus.NewRegistry(), broker: newFakeBroker(t)}
		b.dialer = mem.New(b.broker, transport.Peer{Role: "source", Name: "hub1"})
		hub, err := NewHub(b.hub.config())
		if err != nil {
			t.Fatal(err)
		}
		c := Config{ID: "hub1", Hub: hub, Dialer: b.dialer, Registerer: b.registry, Health: &telemetry.Health{}, Log: slog.New(slog.DiscardHandler)}
		if before != nil {
			before(b, &c)
		}
		b.server = New(c)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.server.Run(ctx) }()
		b.wait(time.Second)
		test(b)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// wait lets time pass, and waits until all goroutines are idle.
func (b *bench) wait(d time.Duration) {
	<-time.After(d) // the time of the bubble
	synctest.Wait()
}

// request sends a request, and returns its answer, or the reason of a refusal.
func (b *bench) request(m *hawserv1.AgentRequest) (answer *hawserv1.RegistrationAnswer, refused string) {
	b.Helper()
	return b.answered(b.broker.send(&hawserv1.RegistrationRequest{Request: &hawserv1.RegistrationRequest_AgentRequest{AgentRequest: m}}))
}

func (b *bench) answered(c <-chan *hawserv1.RegistrationAnswer) (*hawserv1.RegistrationAnswer, string) {
	b.Helper()
	select {
	case a := <-c:
		if len(a.GetError()) > 0 {
			return a, codec.ParseAPIStatus(a.GetError()).Reason
		}
		return a, ""
	case <-time.After(30 * time.Second):
		b.Fatal("no answer")
	}
	return nil, ""
}

const (
	hubClusters = "cluster.open-cluster-management.io/managedclusters"
	hubCSRs     = "certificates.k8s.io/certificatesigningrequests"
	hubLeases   = "coordination.k8s.io/leases"
	hubAddOns   = "addon.open-cluster-management.io/managedclusteraddons"
	hubBindings = "rbac.authorization.k8s.io/rolebindings"
)

// joined puts an accepted cluster with a Lease on the hub.
func (b *bench) joined(cluster string) {
	b.hub.put(hubClusters, "", cluster, obj{"spec": obj{"hubAcceptsClient": true}})
	b.hub.put(hubLeases, cluster, ocm.LeaseName, obj{"spec": obj{"holderIdentity": ocm.LeaseName}})
}

// The broker receives all objects of the hub, then each change, and all objects again on each subscription.
// Objects that do not concern clusters are left out.
func TestServer_PublishesHubObjects(t *testing.T) {
	inBubble(t, func(b *bench, _ *Config) {
		b.joined(cluster1)
		b.hub.put(hubLeases, "kube-system", "kube-scheduler", obj{})
		b.hub.put(hubCSRs, "", "csr1", obj{"metadata": obj{"labels": obj{ocm.ClusterLabel: cluster1}, "annotations": obj{ocm.RequesterAnnotation: "u"}}})
		b.hub.put(hubCSRs, "", "of a node", obj{"metadata": obj{"labels": obj{"x": "y"}}})
		b.hub.put(hubAddOns, cluster1, "a", obj{"metadata": obj{"managedFields": []any{obj{"manager": "m"}}}})
		b.hub.missing["addon.open-cluster-management.io/v1alpha1"] = true
	}, func(b *bench) {
		want := []string{
			"v1 certificatesigningrequests cluster1/csr1", "v1 leases cluster1/" + ocm.LeaseName, "v1 managedclusters cluster1/cluster1",
			"v1beta1 managedclusteraddons cluster1/a",
		}
		listed, _, _, _ := b.broker.now()
		if got := b.broker.names(); !slices.Equal(got, want) || !listed {
			t.Fatalf("listed %v: %q", listed, got)
		}
		if o := b.broker.object(want[0]); o.GetRequester() != "u" {
			t.Errorf("requester %q", o.GetRequester())
		}
		if o := b.broker.object(want[2]); !o.GetManagedClusterStatus().GetAccepted() || !strings.Contains(string(o.GetJson()), `"hubAcceptsClient":true`) {
			t.Errorf("%v", o)
		}
		if o := b.broker.object(want[3]); strings.Contains(string(o.GetJson()), "managedFields") {
			t.Errorf("%s", o.GetJson())
		}

		b.hub.change(hubClusters, "", cluster1, func(o obj) { o["spec"].(obj)["hubAcceptsClient"] = false })
		uid, _ := b.hub.get(hubCSRs, "", "csr1")["metadata"].(obj)["uid"].(string)
		b.hub.remove(hubCSRs, "", "csr1")
		b.wait(time.Second)
		if o := b.broker.object(want[2]); o.GetManagedClusterStatus().GetAccepted() {
			t.Error("acceptance was withdrawn, the broker does not know")
		}
		if v := b.broker.came(want[0]); v[len(v)-1] != "gone "+uid {
			t.Errorf("the CSR: %q", v)
		}

		b.dialer.Cut()
		b.hub.put(hubClusters, "", "cluster2", obj{})
		b.hub.remove(hubAddOns, cluster1, "a")
		b.wait(time.Second)
		b.dialer.Restore()
		b.wait(time.Minute)
		want = []string{"v1 leases cluster1/" + ocm.LeaseName, "v1 managedclusters cluster1/cluster1", "v1 managedclusters cluster2/cluster2"}
		listed, subscriptions, _, _ := b.broker.now()
		if got := b.broker.names(); !slices.Equal(got, want) || !listed || subscriptions != 2 {
			t.Errorf("after a reconnect, listed %v, subscription %d: %q", listed, subscriptions, got)
		}

		// The hub gets the type that it lacked.
		b.hub.mu.Lock()
		delete(b.hub.missing, "addon.open-cluster-management.io/v1alpha1")
		b.hub.mu.Unlock()
		b.hub.put(hubAddOns, cluster1, "new", obj{})
		b.wait(time.Minute)
		if got := b.broker.names(); !slices.Contains(got, "v1alpha1 managedclusteraddons cluster1/new") || !slices.Contains(got, "v1beta1 managedclusteraddons cluster1/new") {
			t.Errorf("after the type came: %q", got)
		}
	})
}

// The broker receives the changes of each object in order. An object that it does not accept blocks no other.
func TestServer_PublishesInOrder(t *testing.T) {
	inBubble(t, func(b *bench, _ *Config) { b.broker.refuses = "bad" }, func(b *bench) {
		b.hub.put(hubClusters, "", "bad", obj{})
		for i := range 200 {
			b.hub.put(hubClusters, "", cluster1, obj{"spec": obj{"n": i}})
			b.hub.put(hubClusters, "", fmt.Sprint("other", i), obj{})
			if i%20 == 0 {
				b.wait(time.Millisecond)
			}
		}
		b.wait(time.Second)
		if n := len(b.broker.names()); n != 201 {
			t.Errorf("the broker has %d objects", n)
		}
		versions := b.broker.came("v1 managedclusters cluster1/cluster1")
		if !slices.IsSortedFunc(versions, func(a, c string) int { return len(a)*1000 - len(c)*1000 + strings.Compare(a, c) }) || len(versions) < 2 {
			t.Errorf("versions %q", versions)
		}
	})
}

// A cluster joins: the hub has the requested objects, created by the well-known account.
func TestServer_AClusterJoins(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		joins := obj{"metadata": obj{"name": cluster1}, "spec": obj{"hubAcceptsClient": true}}
		if _, refused := b.request(byBootstrap(parsed(b, createdCluster, cluster1, joins))); refused != "" {
			t.Fatal(refused)
		}
		if spec := b.hub.get(hubClusters, "", cluster1)["spec"].(obj); spec["hubAcceptsClient"] != false {
			t.Errorf("spec %v", spec)
		}
		b.wait(time.Second)
		if _, refused := b.request(byBootstrap(parsed(b, createdCluster, cluster1, joins))); refused != "AlreadyExists" {
			t.Errorf("again: %q", refused)
		}
		csr := csrOf(requestPEM(b, nil), nil)
		if _, refused := b.request(byBootstrap(parsed(b, createdCSR, cluster1, csr))); refused != "" {
			t.Fatal(refused)
		}
		if spec := b.hub.get(hubCSRs, "", "cluster1-abcde")["spec"].(obj); spec["username"] != ocm.Registrar {
			t.Errorf("created by %v", spec["username"])
		}
		if _, refused := b.request(parsed(b, createdCSR, cluster1, csr)); refused != "Forbidden" {
			t.Errorf("a renewal before acceptance: %q", refused)
		}

		b.joined(cluster1)
		b.wait(time.Second)
		now, _ := b.hub.get(hubClusters, "", cluster1)["metadata"].(obj)["resourceVersion"].(string)
		status := func(version string) obj {
			return obj{"metadata": obj{"name": cluster1, "resourceVersion": version}, "status": obj{"version": obj{"kubernetes": "v1"}}}
		}
		if _, refused := b.request(parsed(b, updatedCluster, cluster1, status(now))); refused != "" {
			t.Errorf("status: %q", refused)
		}
		b.wait(time.Second)
		if o := b.broker.object("v1 managedclusters cluster1/cluster1"); !strings.Contains(string(o.GetJson()), `"kubernetes":"v1"`) {
			t.Errorf("the status does not come back: %s", o.GetJson())
		}
		if _, refused := b.request(parsed(b, updatedCluster, cluster1, status(now))); refused != "Conflict" {
			t.Errorf("status of an old version: %q", refused)
		}
		for what, o := range map[codec.EventType]obj{
			createdEvent: {"metadata": obj{"namespace": cluster1, "name": "e"}, "reason": "Available"},
			updatedEvent: {"metadata": obj{"namespace": cluster1, "name": "e"}, "series": obj{"count": 2}},
		} {
			if what == updatedEvent {
				b.hub.put("events.k8s.io/events", cluster1, "e", obj{})
			} else {
				b.hub.remove("events.k8s.io/events", cluster1, "e")
			}
			if _, refused := b.request(parsed(b, what, cluster1, o)); refused != "" {
				t.Errorf("%s: %q", what, refused)
			}
		}
		b.hub.put(hubAddOns, cluster1, "a", obj{})
		version := b.hub.get(hubAddOns, cluster1, "a")["metadata"].(obj)["resourceVersion"]
		addOn := obj{"metadata": obj{"namespace": cluster1, "name": "a", "resourceVersion": version}, "status": obj{"healthCheck": obj{}}}
		if _, refused := b.request(parsed(b, updatedAddOn, cluster1, addOn)); refused != "" {
			t.Errorf("status of an add-on: %q", refused)
		}
		if _, refused := b.request(parsed(b, updatedAddOn, cluster1, addOn)); refused != "Conflict" {
			t.Errorf("status of an add-on of an old version: %q", refused)
		}

		b.hub.change(hubClusters, "", cluster1, func(o obj) { o["spec"].(obj)["hubAcceptsClient"] = false })
		b.wait(time.Second)
		if _, refused := b.request(parsed(b, createdCSR, cluster1, csr)); refused != "Forbidden" {
			t.Errorf("a renewal after acceptance was withdrawn: %q", refused)
		}
	})
}

// Tokens are only for labelled accounts in the namespace of the cluster. hub-source has the right to request
// them only there, and only while the cluster is accepted.
func TestServer_ChecksTokenAccess(t *testing.T) {
	inBubble(t, func(b *bench, _ *Config) {
		b.joined(cluster1)
		b.hub.put("serviceaccounts", cluster1, "a-agent", obj{"metadata": obj{"labels": obj{tokenLabel: "true"}}})
		b.hub.put("serviceaccounts", cluster1, "default", obj{})
	}, func(b *bench) {
		request := func(account string) *hawserv1.AgentRequest {
			return parsed(b, createdToken, cluster1, obj{"metadata": obj{"namespace": cluster1, "name": account, "uid": "mine"}, "spec": obj{"expirationSeconds": 600}})
		}
		a, refused := b.request(request("a-agent"))
		if refused != "" || !strings.Contains(string(a.GetTokenRequest()), `"token":"token of cluster1/a-agent"`) || !strings.Contains(string(a.GetTokenRequest()), `"uid":"mine"`) {
			t.Fatalf("%q %s", refused, a.GetTokenRequest())
		}
		if b.hub.get(hubBindings, cluster1, tokensRole) == nil {
			t.Error("no right was bound")
		}
		if a, refused := b.request(request("default")); refused != "Forbidden" || len(a.GetTokenRequest()) > 0 {
			t.Errorf("of an account without the label: %q %s", refused, a.GetTokenRequest())
		}
		if _, refused := b.request(request("none")); refused != "NotFound" {
			t.Errorf("of an account that is not there: %q", refused)
		}
		if n := b.hub.count("create rolebindings"); n != 1 {
			t.Errorf("bound %d times", n)
		}
		b.hub.change(hubClusters, "", cluster1, func(o obj) { o["spec"].(obj)["hubAcceptsClient"] = false })
		b.wait(time.Second)
		if b.hub.get(hubBindings, cluster1, tokensRole) != nil {
			t.Error("the right stays after acceptance was withdrawn")
		}
		if _, refused := b.request(request("a-agent")); refused != "Forbidden" {
			t.Errorf("after acceptance was withdrawn: %q", refused)
		}
	})
}

// With access reviews enabled, the hub reviews a request, and the answer is valid for ten seconds.
func TestServer_ChecksRights(t *testing.T) {
	inBubble(t, func(b *bench, c *Config) {
		c.AccessReviews = Always
		b.joined(cluster1)
	}, func(b *bench) {
		event := parsed(b, createdEvent, cluster1, obj{"metadata": obj{"namespace": cluster1, "name": "e"}})
		for range 3 {
			b.request(event)
		}
		if n := b.hub.count("create subjectaccessreviews"); n != 1 {
			t.Errorf("%d access reviews", n)
		}
		b.hub.mu.Lock()
		b.hub.denied["create "+agentOf1] = true
		b.hub.mu.Unlock()
		b.wait(11 * time.Second)
		if _, refused := b.request(event); refused != "Forbidden" {
			t.Errorf("without the right: %q", refused)
		}
	})
}

// By default access reviews are used if OCM's controllers run on the hub, or while that is unknown.
func TestServer_DetectsTokenAccess(t *testing.T) {
	var mu sync.Mutex
	shownBy, failure := "", errors.New("not now")
	inBubble(t, func(b *bench, c *Config) {
		b.joined(cluster1)
		c.AccessReviews, c.FindOCM = Auto, func(context.Context) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			return shownBy, failure
		}
	}, func(b *bench) {
		event := parsed(b, createdEvent, cluster1, obj{"metadata": obj{"namespace": cluster1, "name": "e"}})
		for n, s := range []struct {
			shownBy   string
			failure   error
			requested int
		}{{"", failure, 1}, {"", nil, 0}, {"Deployment", nil, 1}, {"", errors.New("not now"), 1}, {"", nil, 0}} {
			mu.Lock()
			shownBy, failure = s.shownBy, s.failure
			mu.Unlock()
			b.wait(lookForOCM + lookForOCMAgain)
			before := b.hub.count("create subjectaccessreviews")
			b.request(event)
			if got := b.hub.count("create subjectaccessreviews") - before; got != s.requested {
				t.Errorf("step %d: the hub got %d access reviews, want %d", n, got, s.requested)
			}
		}
	})
}

// The hub decides which account a token belongs to. Why a token is invalid is not reported.
func TestServer_ReviewsTokens(t *testing.T) {
	inBubble(t, func(b *bench, _ *Config) { b.hub.tokens["good"] = "some-user" }, func(b *bench) {
		review := func(token string) *hawserv1.RegistrationAnswer {
			a, _ := b.answered(b.broker.send(&hawserv1.RegistrationRequest{Request: &hawserv1.RegistrationRequest_Review{
				Review: &hawserv1.TokenReview{Token: token, Audiences: []string{"hawser"}},
			}}))
			return a
		}
		want := &hawserv1.TokenReviewResult{Authenticated: true, User: "some-user", Groups: []string{"g"}, Audiences: []string{"hawser"}}
		if got := review("good").GetReview(); !proto.Equal(got, want) {
			t.Errorf("%v", got)
		}
		if a := review("bad"); !proto.Equal(a.GetReview(), &hawserv1.TokenReviewResult{}) || strings.Contains(a.String(), "secret") {
			t.Errorf("%v", a)
		}
	})
}

// If the hub does not answer, clients get Unavailable in time. Requests whose client has given up are not
// carried out.
func TestServer_HubIsDown(t *testing.T) {
	inBubble(t, func(b *bench, _ *Config) { b.joined(cluster1) }, func(b *bench) {
		b.hub.setDown(true)
		event := parsed(b, createdEvent, cluster1, obj{"metadata": obj{"namespace": cluster1, "name": "e"}})
		if _, refused := b.request(event); refused != "ServiceUnavailable" {
			t.Errorf("%q", refused)
		}
	})
}

// renew reports that the agents of clusters renewed their Leases age ago.
func (b *bench) renew(age time.Duration, clusters ...string) {
	l := &hawserv1.LeaseRenewals{}
	for _, c := range clusters {
		l.Renewals = append(l.Renewals, &hawserv1.LeaseRenewal{Cluster: c, Age: durationpb.New(age)})
	}
	b.broker.send(&hawserv1.RegistrationRequest{Request: &hawserv1.RegistrationRequest_Renewals{Renewals: l}})
}

// renewTime returns the renewal time of a Lease on the hub.
func (b *bench) renewTime(cluster string) (at time.Time) {
	b.Helper()
	spec, _ := b.hub.get(hubLeases, cluster, ocm.LeaseName)["spec"].(obj)
	if spec["renewTime"] != nil {
		var err error
		if at, err = time.Parse(time.RFC3339, fmt.Sprint(spec["renewTime"])); err != nil {
			b.Fatal(err)
		}
	}
	return at
}

// A Lease may be ahead of the clock, because its agent wrote it before it used the broker. It is renewed at
// once all the same.
func TestServer_WritesLeasesAheadOfTheClock(t *testing.T) {
	inBubble(t, func(b *bench, _ *Config) {
		b.joined(cluster1)
		b.hub.change(hubLeases, cluster1, ocm.LeaseName, func(o obj) {
			o["spec"].(obj)["renewTime"] = time.Now().Add(time.Hour).UTC().Format(metav1.RFC3339Micro)
		})
	}, func(b *bench) {
		b.renew(0, cluster1)
		b.wait(time.Second)
		if age := time.Since(b.renewTime(cluster1)); age < 0 || age > 2*time.Second {
			t.Errorf("renewed %v ago", age)
		}
	})
}

// A renewal that is five periods old is not written, however long a writer or the hub takes.
func TestServer_WritesNoOldLeases(t *testing.T) {
	inBubble(t, func(b *bench, _ *Config) {
		for i := range leaseWriters {
			b.joined(fmt.Sprint("slow", i))
		}
		for _, c := range []string{"first", "second"} {
			b.joined(c)
			b.hub.change(hubClusters, "", c, func(o obj) { o["spec"].(obj)["leaseDurationSeconds"] = 1 })
		}
	}, func(b *bench) {
		b.hub.setSlow(8 * time.Second) // shorter than the timeout of a write
		b.renew(0, "first")
		b.wait(9 * time.Second)
		if at := b.renewTime("first"); !at.IsZero() {
			t.Errorf("the hub accepted the renewal %v late", 8*time.Second)
		}
		for i := range leaseWriters {
			b.renew(0, fmt.Sprint("slow", i))
		}
		b.wait(time.Second)
		b.renew(0, "second")
		b.wait(time.Second)
		b.hub.setSlow(0) // later writes are fast
		b.wait(10 * time.Second)
		if at := b.renewTime("second"); !at.IsZero() {
			t.Error("it was written after it had waited for a writer for 6 s")
		}
		b.renew(0, "first", "second")
		b.wait(time.Second)
		for _, c := range []string{"first", "second"} {
			if age := time.Since(b.renewTime(c)); age > 2*time.Second {
				t.Errorf("%s: renewed %v ago", c, age)
			}
		}
	})
}

// Leases are written once in two periods, with the hub's time. A renewal is not published.
func TestServer_WritesLeases(t *testing.T) {
	inBubble(t, func(b *bench, _ *Config) {
		b.joined(cluster1)
		b.joined("denied")
		b.hub.change(hubClusters, "", "denied", func(o obj) { o["spec"].(obj)["hubAcceptsClient"] = false })
		b.hub.put(hubClusters, "", "new", obj{"spec": obj{"hubAcceptsClient": true}}) // the cluster has no Lease
	}, func(b *bench) {
		start := time.Now()
		published := string(b.broker.object("v1 leases cluster1/" + ocm.LeaseName).GetJson())
		for range 121 {
			b.renew(500*time.Millisecond, cluster1, "denied", "new", "unknown")
			b.wait(time.Second)
		}
		if n := b.hub.count("patch leases"); n != 2 {
			t.Errorf("%d Leases were written in 121 s", n)
		}
		spec, _ := b.hub.get(hubLeases, cluster1, ocm.LeaseName)["spec"].(obj)
		at, err := time.Parse(time.RFC3339, fmt.Sprint(spec["renewTime"]))
		if off := at.Sub(start); err != nil || off < 118*time.Second || off > 122*time.Second || spec["holderIdentity"] != ocm.LeaseName {
			t.Errorf("%v, renewed %v after the start", spec, off)
		}
		if is := string(b.broker.object("v1 leases cluster1/" + ocm.LeaseName).GetJson()); published == "" || is != published {
			t.Errorf("the Lease was published as %q, and after a renewal as %q", published, is)
		}
		b.hub.change(hubLeases, cluster1, ocm.LeaseName, func(o obj) { o["spec"].(obj)["holderIdentity"] = "other" })
		b.wait(time.Second)
		if o := b.broker.object("v1 leases cluster1/" + ocm.LeaseName); !strings.Contains(string(o.GetJson()), "other") {
			t.Errorf("a change of the Lease is not published: %s", o.GetJson())
		}
		// The hub is unreachable for ten minutes. Then the last renewal would be written, but it is too old.
		b.hub.setDown(true)
		b.wait(time.Minute)
		b.renew(0, cluster1)
		b.wait(10 * time.Minute)
		b.hub.setDown(false)
		b.wait(time.Minute)
		if n := b.hub.count("patch leases"); n != 2 {
			t.Errorf("an old renewal was written: %d", n)
		}
		b.renew(0, cluster1)
		b.wait(time.Minute)
		if n := b.hub.count("patch leases"); n != 3 {
			t.Errorf("%d Leases were written in the end", n)
		}
	})
}

// The broker receives the keys that verify tokens, on each subscription and every few minutes.
func TestServer_SendsKeys(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		sent := func(want int, when string) {
			if _, _, keys, issuer := b.broker.now(); keys != want || issuer != "https://hub" {
				t.Errorf("%s: sent %d times, issuer %q", when, keys, issuer)
			}
		}
		sent(1, "at the start")
		b.wait(keysEvery)
		sent(2, "after five minutes")
		b.dialer.Cut()
		b.wait(time.Second)
		b.dialer.Restore()
		b.wait(time.Minute)
		sent(3, "after a reconnect")
	})
}

// Without requests the hub is only queried every five minutes, for the keys of tokens and certificates.
func TestServer_IsQuietAtRest(t *testing.T) {
	inBubble(t, func(b *bench, _ *Config) {
		for i := range 100 {
			b.joined(fmt.Sprint("cluster", i))
		}
	}, func(b *bench) {
		before, bundles := b.requests(), b.hub.count("get configmaps")
		b.wait(10 * time.Minute)
		bundles = b.hub.count("get configmaps") - bundles
		if n := b.requests() - before - bundles; n > 0 || bundles > 2 {
			t.Errorf("%d requests in ten minutes, and %d for authorities", n, bundles)
		}
		if err := b.server.healthy(); err != nil {
			t.Error(err)
		}
		b.dialer.Cut()
		b.wait(time.Second)
		if err := b.server.healthy(); err == nil || errors.Unwrap(err) == nil {
			t.Errorf("without a broker: %v", err)
		}
	})
}

func (b *bench) requests() (n int) {
	b.hub.mu.Lock()
	defer b.hub.mu.Unlock()
	for _, c := range b.hub.requests {
		n += c
	}
	return n
}
