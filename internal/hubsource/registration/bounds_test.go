package registration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/codec"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

const hubEvents = "events.k8s.io/events"

// size returns the number of objects of a resource on the hub, and their bytes.
func (h *fakeHub) size(resource string) (n, bytes int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, o := range h.objects[resource] {
		text, err := json.Marshal(o)
		if err != nil {
			h.t.Fatal(err)
		}
		n, bytes = n+1, bytes+len(text)
	}
	return n, bytes
}

// received returns the number of bytes that the broker received.
func (b *fakeBroker) received() (bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range b.objects {
		bytes += len(o.GetJson())
	}
	return bytes
}

// joining is a ManagedCluster with a CA bundle of bundle bytes.
func joining(name string, bundle int) obj {
	return obj{"metadata": obj{"name": name}, "spec": obj{"managedClusterClientConfigs": []any{
		obj{"url": "https://api." + name + ".example.com:6443", "caBundle": bytes.Repeat([]byte("c"), bundle)},
	}}}
}

// joins makes an account request that a cluster joins, and returns the reason of a refusal.
func (b *bench) joins(account, name string, bundle int) string {
	m := byBootstrap(parsed(b, createdCluster, name, joining(name, bundle)))
	m.User = account
	_, refused := b.request(m)
	return refused
}

// One bootstrap token cannot fill the hub, nor the memory of hub-source and broker. An account at its limit
// does not reduce the capacity of others, and a decision frees capacity.
func TestBounds_OneToken(t *testing.T) {
	const largest, most = 11 << 10, 800 << 10 // bytes
	inBubble(t, func(_ *bench, c *Config) { c.MaxPending = 100 }, func(b *bench) {
		for i := range 20 {
			name := fmt.Sprint("large-", i)
			if refused := b.joins(bootstrapUser, name, 900<<10); refused != "RequestEntityTooLarge" {
				t.Fatalf("1.2 MiB: %q", refused)
			}
		}
		count := func() int { n, _ := b.hub.size(hubClusters); return n }
		if refused := b.joins(bootstrapUser, "usual", 8<<10); refused != "" || count() != 1 {
			t.Fatalf("a bundle of 8 KiB: %q", refused)
		}
		refused := ""
		for i := range 100 {
			if refused = b.joins(bootstrapUser, fmt.Sprint("c-", i), largest); refused != "" {
				break
			}
		}
		b.wait(time.Second)
		if n, bytes := b.hub.size(hubClusters); refused != "TooManyRequests" || n < 50 || bytes > most || b.broker.received() > most {
			t.Errorf("%q: the hub has %d of %d bytes, the broker received %d", refused, n, bytes, b.broker.received())
		}
		request := requestPEM(t, nil)
		made := -1
		for refused = ""; refused == "" && made < 15; made++ {
			_, refused = b.request(byBootstrap(parsed(t, createdCSR, cluster1, csrOf(request, func(m, _ obj) { m["name"] = fmt.Sprint("csr-", made) }))))
		}
		if _, bytes := b.hub.size(hubClusters); refused != "TooManyRequests" || made == 15 || bytes > most {
			t.Errorf("%d CSRs of an account at its limit: %q, %d bytes", made, refused, bytes)
		}
		if refused := b.joins("system:serviceaccount:other:joiner", "other", largest); refused != "" {
			t.Errorf("another account: %q", refused)
		}
		for decided, decide := range map[string]func(name string){
			"accepted": func(name string) {
				b.hub.change(hubClusters, "", name, func(o obj) { o["spec"].(obj)["hubAcceptsClient"] = true })
			},
			"removed": func(name string) { b.hub.remove(hubClusters, "", name) },
		} {
			decide(map[string]string{"accepted": "c-0", "removed": "c-1"}[decided])
			b.wait(time.Second)
			// The name is longer than that of the decided cluster, and little capacity may be left beside it.
			if refused := b.joins(bootstrapUser, "after-"+decided, largest-1<<10); refused != "" {
				t.Errorf("after one was %s: %q", decided, refused)
			}
			if refused := b.joins(bootstrapUser, "more", largest); refused != "TooManyRequests" {
				t.Errorf("more after one was %s: %q", decided, refused)
			}
		}
	})
}

// Concurrent requests do not share the same capacity, and a request that the hub refuses uses none.
func TestBounds_SideBySide(t *testing.T) {
	inBubble(t, func(_ *bench, c *Config) { c.MaxPending = 1 }, func(b *bench) {
		for range 3 {
			b.hub.setDown(true)
			if refused := b.joins(bootstrapUser, "c", 10); refused != "ServiceUnavailable" {
				t.Fatal(refused)
			}
			b.hub.setDown(false)
			b.wait(2 * time.Minute) // the hub may have created the object
			var answers []<-chan *hawserv1.RegistrationAnswer
			for i := range 32 {
				name := fmt.Sprint("c-", i)
				request := byBootstrap(parsed(t, createdCluster, name, joining(name, 10)))
				answers = append(answers, b.broker.send(&hawserv1.RegistrationRequest{Request: &hawserv1.RegistrationRequest_AgentRequest{AgentRequest: request}}))
			}
			refused := map[string]int{}
			for _, a := range answers {
				_, why := b.answered(a)
				refused[why]++
			}
			if n, _ := b.hub.size(hubClusters); n != 1 || refused["TooManyRequests"] != 31 {
				t.Errorf("the hub has %d, want 1: %v", n, refused)
			}
			for i := range 32 {
				b.hub.remove(hubClusters, "", fmt.Sprint("c-", i))
			}
			b.wait(time.Second)
		}
	})
}

// eventOf is an Event of cluster1 as a klusterlet sends it.
func eventOf(name, note string) obj {
	return obj{
		"metadata": obj{"namespace": cluster1, "name": name}, "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "klusterlet-agent",
		"reportingInstance": "klusterlet-agent-0", "action": "Report", "reason": "Available", "note": note, "type": "Normal",
		"regarding": obj{"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster", "name": cluster1},
	}
}

// One accepted agent cannot fill the hub with Events: their size and their number are limited. A refusal
// contains the time until there is capacity again, and other clusters are not affected.
func TestBounds_Events(t *testing.T) {
	inBubble(t, func(b *bench, _ *Config) {
		b.joined(cluster1)
		b.joined("cluster2")
	}, func(b *bench) {
		for _, field := range []string{"note", "reason", "action", "reportingController", "type"} {
			e := eventOf("large", "n")
			e[field] = strings.Repeat("x", 1<<20)
			if _, refused := b.request(parsed(t, createdEvent, cluster1, e)); refused == "" {
				t.Errorf("%s has a mebibyte on the hub", field)
			}
		}
		e := eventOf("where", "n")
		e["regarding"] = obj{"kind": "Pod", "fieldPath": strings.Repeat("x", 10<<10)}
		if _, refused := b.request(parsed(t, createdEvent, cluster1, e)); refused != "Invalid" {
			t.Errorf("a path of 10 KiB: %q", refused)
		}
		e = eventOf("more", "n")
		e["regarding"] = obj{"kind": "Pod", "extra": strings.Repeat("x", 10<<10)}
		e["series"] = obj{"count": 2, "extra": strings.Repeat("x", 1<<10)}
		if _, refused := b.request(parsed(t, createdEvent, cluster1, e)); refused != "" || strings.Contains(fmt.Sprint(b.hub.get(hubEvents, cluster1, "more")), "xxx") {
			t.Errorf("fields that no Event has: %q", refused)
		}
		var last *hawserv1.RegistrationAnswer
		taken := 0
		for i := range 120 {
			answer, refused := b.request(parsed(t, createdEvent, cluster1, eventOf(fmt.Sprint("e-", i), strings.Repeat("n", 1000))))
			if last = answer; refused == "" {
				taken++
			}
		}
		if n, bytes := b.hub.size(hubEvents); taken > 60 || n > 61 || bytes > 100<<10 {
			t.Errorf("%d of 120 Events were taken, %d bytes are on the hub", taken, bytes)
		}
		if e := codec.ParseAPIStatus(last.GetError()); e.Code != 429 || !strings.Contains(string(last.GetError()), `"retryAfterSeconds":5`) {
			t.Errorf("%s", last.GetError())
		}
		series := func() string {
			_, refused := b.request(parsed(t, updatedEvent, cluster1, obj{"metadata": obj{"namespace": cluster1, "name": "e-1"}, "series": obj{"count": 3, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}}))
			return refused
		}
		if refused := series(); refused != "TooManyRequests" {
			t.Errorf("a series in a flood: %q", refused)
		}
		other := eventOf("e", "n")
		other["metadata"] = obj{"namespace": "cluster2", "name": "e"}
		m := parsed(t, createdEvent, "cluster2", other)
		m.User = ocm.UserPrefix + "cluster2:agent"
		if _, refused := b.request(m); refused != "" {
			t.Errorf("another cluster: %q", refused)
		}
		b.wait(5 * time.Second)
		if refused := series(); refused != "" {
			t.Errorf("five seconds later: %q", refused)
		}
	})
}

// A klusterlet that switches between available and unavailable sends six Events in a minute. It also sends one
// status of its own and those of 20 add-ons per minute. It is never refused.
func TestBounds_AreNotFelt(t *testing.T) {
	inBubble(t, func(b *bench, _ *Config) {
		b.joined(cluster1)
		b.hub.change(hubClusters, "", cluster1, func(o obj) { o["status"] = obj{} })
		for i := range 20 {
			b.hub.put(hubAddOns, cluster1, fmt.Sprint("a-", i), obj{})
		}
	}, func(b *bench) {
		for round := range 120 {
			if _, refused := b.request(parsed(t, createdEvent, cluster1, eventOf(fmt.Sprint("e-", round), "n"))); refused != "" {
				t.Fatalf("round %d: an Event: %s", round, refused)
			}
			if round%6 == 0 {
				at := b.hub.get(hubClusters, "", cluster1)["metadata"].(obj)["resourceVersion"]
				status := obj{"conditions": []any{obj{"type": "x", "status": "True", "message": fmt.Sprint(round)}}, "clusterClaims": []any{obj{"name": "n", "value": strings.Repeat("v", 6<<10)}}}
				if _, refused := b.request(parsed(t, updatedCluster, cluster1, obj{"metadata": obj{"name": cluster1, "resourceVersion": at}, "status": status})); refused != "" {
					t.Fatalf("round %d: a status: %s", round, refused)
				}
				for i := range 20 {
					name := fmt.Sprint("a-", i)
					at := b.hub.get(hubAddOns, cluster1, name)["metadata"].(obj)["resourceVersion"]
					o := obj{"metadata": obj{"namespace": cluster1, "name": name, "resourceVersion": at}, "status": obj{"text": strings.Repeat("s", 2<<10), "round": round}}
					if _, refused := b.request(parsed(t, updatedAddOn, cluster1, o)); refused != "" {
						t.Fatalf("round %d: add-on %d: %s", round, i, refused)
					}
				}
			}
			b.wait(10 * time.Second)
		}
	})
}

// One accepted agent cannot fill the hub with statuses, nor with claims in one status.
func TestBounds_Statuses(t *testing.T) {
	inBubble(t, func(b *bench, _ *Config) { b.joined(cluster1) }, func(b *bench) {
		report := func(bytes int) string {
			at := b.hub.get(hubClusters, "", cluster1)["metadata"].(obj)["resourceVersion"]
			_, refused := b.request(parsed(t, updatedCluster, cluster1, obj{
				"metadata": obj{"name": cluster1, "resourceVersion": at},
				"status":   obj{"clusterClaims": []any{obj{"name": "n", "value": strings.Repeat("x", bytes) + fmt.Sprint(at)}}},
			}))
			b.wait(10 * time.Millisecond)
			return refused
		}
		for _, bytes := range []int{200 << 10, 1 << 20} {
			if refused := report(bytes); refused != "RequestEntityTooLarge" {
				t.Errorf("%d bytes: %q", bytes, refused)
			}
		}
		written := 0
		for range 30 {
			if report(120<<10) == "" {
				written += 120 << 10
			}
		}
		if written > 1<<20 || written == 0 {
			t.Errorf("%d bytes were written in a second", written)
		}
		b.wait(time.Minute)
		if refused := report(120 << 10); refused != "" {
			t.Errorf("a minute later: %q", refused)
		}
	})
}

// One accepted agent cannot fill the hub with renewals that are approved at once, even if hub-source restarts.
// They are counted until the hub has deleted them.
func TestBounds_Renewals(t *testing.T) {
	request := requestPEM(t, nil)
	var config Config
	inBubble(t, func(b *bench, c *Config) {
		b.joined(cluster1)
		config = *c
	}, func(b *bench) {
		renew := func(i int) string {
			name := fmt.Sprint("r-", i)
			_, refused := b.request(parsed(t, createdCSR, cluster1, csrOf(request, func(m, _ obj) { m["name"] = name })))
			if refused == "" {
				b.hub.change(hubCSRs, "", name, func(o obj) {
					o["status"] = obj{"conditions": []any{obj{"type": "Approved", "status": "True"}}, "certificate": "Q0VSVA=="}
				})
			}
			b.wait(10 * time.Millisecond)
			return refused
		}
		for i := range 150 {
			renew(i)
		}
		if n, bytes := b.hub.size(hubCSRs); n > 40 || bytes > 100<<10 {
			t.Errorf("150 renewals in two seconds made %d CSRs of %d bytes", n, bytes)
		}
		b.hub.remove(hubCSRs, "", "r-0")
		b.wait(time.Second)
		if refused := renew(1000); refused != "" {
			t.Errorf("after one CSR was deleted: %q", refused)
		}
		again := New(Config{ID: config.ID, Hub: config.Hub, Dialer: config.Dialer, Registerer: prometheus.NewRegistry(), Health: &telemetry.Health{}, Log: config.Log})
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan error, 1)
		go func() { done <- again.Run(ctx) }()
		b.wait(time.Second)
		if got := again.undecided.by[requester{cluster: cluster1, own: true}]; got.csrs != 40 || got.undecided != 0 {
			t.Errorf("another hub-source counts %+v", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Only the fields that agents act on are kept of an object.
func TestKeep_Trims(t *testing.T) {
	large := strings.Repeat("x", 100<<10)
	others := obj{"kubectl.kubernetes.io/last-applied-configuration": large, "example.com/x": large, "agent.open-cluster-management.io/a": "a"}
	o := kept(t, codec.ManagedClusters, obj{"metadata": obj{"name": "c", "annotations": others}, "spec": obj{"hubAcceptsClient": true}})
	if len(o.json) > 1<<10 || !strings.Contains(string(o.json), "agent.open-cluster-management.io/a") {
		t.Errorf("of annotations %d bytes are kept: %.300s", len(o.json), o.json)
	}
	// A ManagedCluster from before the limit counts with its whole size, and the broker gets it without the spec.
	waits := obj{"metadata": obj{"name": "c", "annotations": obj{accountAnnotation: "boot"}}, "spec": joining("c", 100<<10)["spec"]}
	if o := kept(t, codec.ManagedClusters, waits); len(o.json) > 1<<10 || o.bytes < 100<<10 || o.account != "boot" || o.cluster != "c" {
		t.Errorf("%d bytes of %d are kept for %q: %.300s", len(o.json), o.bytes, o.account, o.json)
	}
	csr := csrAs(t, ocm.Registrar, "boot", "")
	if strings.Contains(string(csr.json), `"request":`) || csr.account != "boot" {
		t.Errorf("%s", csr.json)
	}
}
