package broker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// TestRegistration_RejectsRequestsForOthers checks that forbidden requests never reach the source, and that the
// error has the form that agents of Open Cluster Management read.
func TestRegistration_RejectsRequestsForOthers(t *testing.T) {
	inWorld(t, joining(), func(w *world) {
		h := w.hub()
		h.snapshot(true, clusterOf("c1", 1, true), clusterOf("c2", 1, true), clusterOf("c3", 1, false),
			objectOf(codec.Leases, "c1", "managed-cluster-lease", 2))
		token := wish(codec.TokenRequests, codec.Spec, codec.CreateRequest, "c2", "t", "{}")
		addOn := wish(codec.AddOnsV1Beta1, codec.Status, codec.UpdateRequest, "c1", "a", "{}")
		for name, c := range map[string]struct {
			from  transport.Peer
			event []byte
		}{
			"another cluster joins":            {w.agent("c1"), joinOf("c2")},
			"another's token":                  {w.agent("c1"), token},
			"another's Lease":                  {w.agent("c1"), leaseOf("c2", "uid-managed-cluster-lease")},
			"another's Lease under one's name": {w.agent("c1"), wish(codec.Leases, codec.Spec, codec.UpdateRequest, "c1", "x", `{"metadata":{"name":"managed-cluster-lease","namespace":"c2"}}`)},
			"another Lease":                    {w.agent("c1"), wish(codec.Leases, codec.Spec, codec.UpdateRequest, "c1", "x", `{"metadata":{"name":"leader","namespace":"c1"}}`)},
			"a Lease, not accepted":            {w.agent("c3"), leaseOf("c3", "")},
			"a token, not accepted":            {w.agent("c3"), wish(codec.TokenRequests, codec.Spec, codec.CreateRequest, "c3", "t", "{}")},
			"a spec of a ManagedCluster":       {w.agent("c1"), wish(codec.ManagedClusters, codec.Spec, codec.UpdateRequest, "c1", "uid-c1", "{}")},
			"the end of a ManagedCluster":      {w.agent("c1"), wish(codec.ManagedClusters, codec.Spec, codec.DeleteRequest, "c1", "uid-c1", "{}")},
			"bootstrap: a token":               {w.bootstrap("boot"), token},
			"bootstrap: a status":              {w.bootstrap("boot"), wish(codec.ManagedClusters, codec.Status, codec.UpdateRequest, "c1", "uid-c1", "{}")},
			"bootstrap: an add-on":             {w.bootstrap("boot"), addOn},
			"bootstrap: a Lease":               {w.bootstrap("boot"), leaseOf("c1", "")},
			"a source sends agent requests":    {w.source("src"), joinOf("c1")},
			"the hub's source sends requests":  {h.from, joinOf("c1")},
		} {
			_, err := w.Publish(w.Context(), c.from, c.event, "")
			if e := w.apiError(err, transport.CodeDenied); e.Code != 403 || e.Reason != "Forbidden" || e.Message == "" {
				t.Errorf("%s: %+v", name, e)
			}
		}
		if all := h.requests(); len(all) > 0 {
			t.Errorf("the source got the requests %v", all)
		}
		// Bootstrap accounts read two types of one cluster, agents their own cluster.
		for name, s := range map[string]*tap{
			"Leases":               w.watch(w.bootstrap("boot"), codec.Leases, "c1"),
			"works":                w.watch(w.bootstrap("boot"), codec.ManifestBundles, "c1"),
			"requests of all":      w.watch(w.bootstrap("boot"), codec.Registrations, "c1"),
			"another cluster":      w.watch(w.agent("c1"), codec.ManagedClusters, "c2"),
			"a type that has none": w.watch(w.agent("c1"), codec.KubeEvents, "c1"),
			"the source's stream":  w.watch(w.agent("c1"), codec.Registrations, "c1"),
		} {
			if err := <-s.ended; transport.CodeOf(err) != transport.CodeDenied {
				t.Errorf("%s: %v", name, err)
			}
		}
		wrong, err := w.Publish(w.Context(), w.agent("c1"), leaseOf("c1", "uid-of-another"), "")
		if e := w.apiError(err, transport.CodeNotFound); e.Code != 404 || e.Reason != "NotFound" || wrong.Outcome != "" {
			t.Errorf("%+v", e)
		}
	})
}

// TestRegistration_FloodsHarmNoOthers checks that a cluster and a bootstrap account that flood requests get a
// retry delay, and that other clients are served.
func TestRegistration_FloodsHarmNoOthers(t *testing.T) {
	inWorld(t, joining(), func(w *world) {
		h := w.hub()
		h.snapshot(true, clusterOf("c1", 1, true), clusterOf("c2", 1, true))
		loud, boot := w.agent("c1"), w.bootstrap("boot")
		var floods []*pendingRequest
		for i := range 200 {
			floods = append(floods, w.requests(loud, joinOf("c1")), w.requests(boot, joinOf("one")), w.requests(boot, joinOf(fmt.Sprintf("n%d", i))))
		}
		quiet, modest := w.requests(w.agent("c2"), joinOf("c2")), w.requests(w.bootstrap("other"), joinOf("c9"))
		refused := 0
		for _, c := range floods {
			select {
			case err := <-c.done:
				if e := w.apiError(err, transport.CodeOverloaded); e.Code != 429 || e.Reason != "TooManyRequests" {
					t.Fatalf("%+v", e)
				}
				if e := w.refused(err, transport.CodeOverloaded); e.Next != transport.NextBackOff || e.Delay <= 0 {
					t.Fatalf("%+v", e)
				}
				refused++
			default:
			}
		}
		if refused < 200 {
			t.Errorf("%d of 600 requests were refused", refused)
		}
		served := map[string]int{}
		for quietDone, modestDone := false, false; !quietDone || !modestDone; {
			all := h.requests()
			if len(all) == 0 {
				t.Fatalf("nothing goes on after %v", served)
			}
			if len(all) > 128 {
				t.Fatalf("%d requests are at the source", len(all))
			}
			for _, r := range all {
				served[r.GetAgentRequest().GetCluster()]++
				quietDone = quietDone || r.GetAgentRequest().GetCluster() == "c2"
				modestDone = modestDone || r.GetAgentRequest().GetCluster() == "c9"
				if _, err := h.answers(&hawserv1.RegistrationAnswer{Id: r.GetId()}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if served["c1"] > 20 || served["one"] > 20 {
			t.Errorf("before the quiet ones were served: %v", served)
		}
		for _, c := range []*pendingRequest{quiet, modest} {
			if err := c.ended(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestRegistration_RejectsOversizedRequests checks that large, malformed and meaningless messages do not affect
// other clients.
func TestRegistration_RejectsOversizedRequests(t *testing.T) {
	inWorld(t, joining(), func(w *world) {
		h := w.hub()
		h.snapshot(true, clusterOf("c1", 1, true))
		_, err := w.Publish(w.Context(), w.agent("c1"), wish(codec.KubeEvents, codec.Spec, codec.CreateRequest, "c1", "x", strings.Repeat("x", 2<<20)), "")
		if e := w.apiError(err, transport.CodeTooLarge); e.Code != 413 {
			t.Errorf("%+v", e)
		}
		_, err = w.Publish(w.Context(), w.agent("c1"), wish(codec.Leases, codec.Spec, codec.UpdateRequest, "c1", "x", "not JSON"), "")
		if e := w.apiError(err, transport.CodeInvalid); e.Code != 400 {
			t.Errorf("%+v", e)
		}
		_, err = w.Publish(w.Context(), w.agent("c1"), wish(codec.KubeEvents, codec.Spec, codec.CreateRequest, "c1", "x", ""), "")
		w.wantCode(err, transport.CodeInvalid)

		for name, e := range map[string]*hawserv1.RegistrationObject{
			"of another type":            objectOf(codec.ManifestBundles, "c1", "w", 1),
			"of no cluster":              objectOf(codec.Leases, "", "w", 1),
			"a ManagedCluster elsewhere": objectOf(codec.ManagedClusters, "c1", "c2", 1),
		} {
			_, err := h.publish(codec.NewRegistrationObjects(syncParams, &hawserv1.RegistrationObjects{Objects: []*hawserv1.RegistrationObject{clusterOf("c8", 1, true), e}}))
			if transport.CodeOf(err) != transport.CodeInvalid || w.Registration().Accepted("c8") == nil {
				t.Errorf("%s: %v, and the events of the same batch are accepted", name, err)
			}
		}
		req, err := codec.NewRegistrationRequest(syncParams, &hawserv1.RegistrationRequest{Id: "x"})
		_, err = h.publish(req, err)
		w.wantCode(err, transport.CodeDenied)
		many, err := codec.NewRegistrationObjects(syncParams, &hawserv1.RegistrationObjects{SnapshotComplete: true})
		if err != nil {
			t.Fatal(err)
		}
		many.DataEncoded = bytes.Repeat([]byte{1<<3 | 2, 0}, 7<<20) // entries of objects without fields
		_, err = h.publish(many, nil)
		w.wantCode(err, transport.CodeTooLarge)
	})
}

// TestRegistration_TokensPassOnce checks that the token is sent once, on the connection that requested it, and
// is kept nowhere.
func TestRegistration_TokensPassOnce(t *testing.T) {
	const secret = "sehr-geheim"
	inWorld(t, joining(), func(w *world) {
		h := w.hub()
		h.snapshot(true, clusterOf("c1", 1, true))
		requester, other := w.agent("c1"), w.agent("c1")
		mine, second, others := w.watch(requester, codec.TokenRequests, "c1"), w.watch(requester, codec.TokenRequests, "c1"), w.watch(other, codec.TokenRequests, "c1")
		event := wish(codec.TokenRequests, codec.Spec, codec.CreateRequest, "c1", "request-7", `{"metadata":{"name":"sa","uid":"request-7"}}`)
		answer := func(c *pendingRequest) {
			h.must(h.answers(&hawserv1.RegistrationAnswer{Id: h.one().GetId(), TokenRequest: []byte(`{"status":{"token":"` + secret + `"}}`)}))
			if err := c.ended(); err != nil {
				t.Error(err)
			}
		}
		answer(w.requests(requester, event))
		for _, s := range []*tap{mine, second} {
			events := s.expect("spec create_request request-7 v0")
			if len(events) == 1 && !strings.Contains(string(events[0].Data), secret) {
				t.Errorf("no token in %s", events[0].Data)
			}
		}
		others.expect()
		w.watch(requester, codec.TokenRequests, "c1").expect()
		w.put(requester, build("c1", "c1", codec.EventType{DataType: codec.TokenRequests, Subresource: codec.Spec, Action: codec.ResyncRequest},
			map[string]any{}, nil, `{"resourceVersions":[]}`))
		mine.expect()

		// On a connection without such a subscription the token is lost.
		answer(w.requests(w.agent("c1"), event))
		for _, s := range []*tap{mine, second, others} {
			s.expect()
		}
		// An answer without a token is an error.
		c := w.requests(requester, event)
		h.must(h.answers(&hawserv1.RegistrationAnswer{Id: h.one().GetId()}))
		if e := c.failed(transport.CodeInternal); e.Code != 500 {
			t.Errorf("%+v", e)
		}
		mine.expect()
		for name, value := range w.Store.Bookmarks("") {
			if strings.Contains(name+string(value), secret) {
				t.Errorf("the store has the token in %s", name)
			}
		}
		if n := w.Store.Head().Revision; n != 1 {
			t.Errorf("%d writes, want only that of the accepted cluster", n)
		}
	})
}

// TestRegistration_WithdrawnAcceptance checks that the cluster gets no works, and that shown objects are not
// reported as deleted. Works continue when the cluster is accepted again.
func TestRegistration_WithdrawnAcceptance(t *testing.T) {
	inWorld(t, joining(), func(w *world) {
		h := w.hub()
		addOn := func(version int) *hawserv1.RegistrationObject {
			return objectOf(codec.AddOnsV1Beta1, "c1", "a", version)
		}
		h.snapshot(true, clusterOf("c1", 1, true), clusterOf("c2", 1, true), addOn(2))
		works, others := w.subscribe(w.agent("c1")), w.subscribe(w.agent("c2"))
		own, addOns := w.watch(w.agent("c1"), codec.ManagedClusters, "c1"), w.watch(w.agent("c1"), codec.AddOnsV1Beta1, "c1")
		own.expect("spec update_request uid-c1 v0")
		addOns.expect("spec update_request uid-a v0")

		h.snapshot(false, clusterOf("c1", 3, false), addOn(4))
		if e := w.refused(<-works.ended, transport.CodeDenied); e.Next != transport.NextBackOff || e.Delay < 10*time.Second {
			t.Errorf("%+v", e)
		}
		own.expect("spec update_request uid-c1 v0")
		addOns.expect()
		h.snapshot(false, addOn(5))
		pass(time.Minute)
		addOns.expect()
		h.snapshot(false, clusterOf("c1", 6, true))
		addOns.expect("spec update_request uid-a v0")
		h.snapshot(false, addOn(0))
		addOns.expect("spec delete_request uid-a v0 deleting")
		others.expect()
		w.put(w.source("src"), work{cluster: "c2", version: 1}.event())
		others.expect("spec create_request w1 v1")
	})
}

// TestRegistration_ListsWaitForTheWholeTruth checks that a listed object that the hub does not have is reported
// as deleted only after the source has reported everything.
func TestRegistration_ListsWaitForTheWholeTruth(t *testing.T) {
	inWorld(t, joining(), func(w *world) {
		h := w.hub()
		h.snapshot(false, clusterOf("c1", 1, true))
		p := w.agent("c1")
		s := w.watch(p, codec.SigningRequests, "c1")
		list, err := codec.NewSpecResyncRequest(codec.ResyncParams{ID: "r", Time: time.Now(), Source: "c1", Cluster: "c1", DataType: codec.SigningRequests},
			[]codec.ResourceVersion{{ResourceID: "uid-old", ResourceVersion: 3}, {ResourceID: "uid-csr", ResourceVersion: 7}})
		if err != nil {
			t.Fatal(err)
		}
		event, err := codec.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		w.put(p, event)
		s.expect()
		h.snapshot(false, csrOf("c1", "csr", "me", 7))
		s.expect("spec update_request uid-csr v0")
		h.snapshot(true)
		s.expect("spec delete_request uid-old v0 deleting")
	})
}

// TestRegistration_AgentsSeeTheirOwnRequests checks that a bootstrap client cannot stop an agent by certificate
// requests for its cluster. The agent counts the requests that it sees.
func TestRegistration_AgentsSeeTheirOwnRequests(t *testing.T) {
	inWorld(t, joining(), func(w *world) {
		h := w.hub()
		p := w.agent("c1")
		p.User = "system:open-cluster-management:c1:a1"
		s := w.watch(p, codec.SigningRequests, "c1")
		h.snapshot(true, clusterOf("c1", 1, true), csrOf("c1", "forged-1", "boot", 2), csrOf("c1", "forged-2", "system:open-cluster-management:c10:a1", 3),
			csrOf("c1", "mine", p.User, 4), csrOf("c1", "renewed", "system:open-cluster-management:c1:a2", 5), csrOf("c1", "by-hand", "", 6))
		s.expect("spec update_request uid-mine v0", "spec update_request uid-renewed v0", "spec update_request uid-by-hand v0")

		// The same holds for a user name without an agent part, and for one that a rule maps.
		for i, user := range []string{"system:open-cluster-management:c1", "of a rule"} {
			p := w.agent("c1")
			p.User = user
			s := w.watch(p, codec.SigningRequests, "c1")
			s.expect("spec update_request uid-mine v0", "spec update_request uid-renewed v0", "spec update_request uid-by-hand v0")
			h.snapshot(false, csrOf("c1", fmt.Sprintf("own-%d", i), user, 7+i))
			s.expect(fmt.Sprintf("spec update_request uid-own-%d v0", i))
		}
	})
}

// TestRegistration_ReviewsTokens checks that the broker's token reviews use the request queue of agents.
func TestRegistration_ReviewsTokens(t *testing.T) {
	inWorld(t, joining(), func(w *world) {
		review := func() (*hawserv1.TokenReviewResult, error) {
			return w.Registration().Review(w.Context(), "token", []string{"hawser"})
		}
		if _, err := review(); transport.CodeOf(err) != transport.CodeUnavailable {
			t.Errorf("without a source: %v", err)
		}
		h := w.hub()
		type outcome struct {
			result *hawserv1.TokenReviewResult
			err    error
		}
		done := make(chan outcome, 1)
		go func() { // ends with the answer
			r, err := review()
			done <- outcome{r, err}
		}()
		r := h.one()
		if r.GetReview().GetToken() != "token" || len(r.GetReview().GetAudiences()) != 1 {
			t.Errorf("the hub got the request %v", r)
		}
		h.must(h.answers(&hawserv1.RegistrationAnswer{Id: r.GetId(), Review: &hawserv1.TokenReviewResult{Authenticated: true, User: "u"}}))
		if o := <-done; o.err != nil || o.result.GetUser() != "u" || !o.result.GetAuthenticated() {
			t.Errorf("%+v", o)
		}
		var issuers []string
		w.Registration().OnKeys(func(k *hawserv1.RegistrationKeys) { issuers = append(issuers, k.GetIssuer()) })
		h.must(h.publish(codec.NewRegistrationKeys(syncParams, &hawserv1.RegistrationKeys{Issuer: "one"})))
		h.must(h.publish(codec.NewRegistrationKeys(syncParams, &hawserv1.RegistrationKeys{Issuer: "two"})))
		w.Registration().OnKeys(func(k *hawserv1.RegistrationKeys) { issuers = append(issuers, "late "+k.GetIssuer()) })
		if got := strings.Join(issuers, ","); got != "one,two,late two" {
			t.Errorf("keys: %s", got)
		}
	})
}

// TestRegistration_Drains checks that a drain ends streams and waiting calls at once.
func TestRegistration_Drains(t *testing.T) {
	inWorld(t, joining(), func(w *world) {
		h := w.hub()
		h.snapshot(true, clusterOf("c1", 1, true))
		s, req := w.watch(w.agent("c1"), codec.ManagedClusters, "c1"), w.requests(w.agent("c1"), joinOf("c1"))
		began := time.Now()
		w.Stop()
		for _, ended := range []chan error{s.ended, h.ended, req.done} {
			w.wantCode(<-ended, transport.CodeUnavailable)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("took %s", took)
		}
		w.wantCode(<-w.watch(w.agent("c1"), codec.ManagedClusters, "c1").ended, transport.CodeUnavailable)
		_, err := w.Publish(w.Context(), w.agent("c1"), joinOf("c1"), "")
		if e := w.apiError(err, transport.CodeUnavailable); e.Code != 503 || e.Reason != "ServiceUnavailable" {
			t.Errorf("%+v", e)
		}
	})
}

// TestRegistration_RefusalsInTheirWords checks that errors of the broker about an agent's lists also have the
// form that agents of Open Cluster Management read.
func TestRegistration_RefusalsInTheirWords(t *testing.T) {
	cfg := joining()
	cfg.MaxEventBytes, cfg.QueueBytes = 16<<10, 64<<10
	inWorld(t, cfg, func(w *world) {
		w.hub().snapshot(true, clusterOf("c1", 1, true))
		agent := w.agent("c1")
		seen := w.watch(agent, codec.ManagedClusters, "c1")
		list := func(data string) []byte {
			return build("c1", "c1", codec.EventType{DataType: codec.ManagedClusters, Subresource: codec.Spec, Action: codec.ResyncRequest}, nil, nil, data)
		}
		for name, c := range map[string]struct {
			event        []byte
			subscription string
			code         transport.Code
			status       int
			reason       string
		}{
			"more than there is memory for": {list(`{"resourceVersions":[` + strings.Repeat(`{"resourceID":"a"},`, 800) + `{"resourceID":"a"}]}`), seen.accepted.SubscriptionID, transport.CodeTooLarge, 413, "RequestEntityTooLarge"},
			"no list":                       {list(`{"resourceVersions":[{"resourceID":"a","resourceVersion":"x"}]}`), seen.accepted.SubscriptionID, transport.CodeInvalid, 400, "BadRequest"},
			"of no subscription":            {list(`{"resourceVersions":[]}`), "none", transport.CodeInvalid, 400, "BadRequest"},
		} {
			_, err := w.Publish(w.Context(), agent, c.event, c.subscription)
			if e := w.apiError(err, c.code); e.Code != c.status || e.Reason != c.reason || e.Message == "" {
				t.Errorf("%s: %+v", name, e)
			}
		}
	})
}

// TestRegistration_NotOverMQTT checks that registration is rejected over MQTT. MQTT answers in order, so a
// request to the hub would delay the answers to statuses.
func TestRegistration_NotOverMQTT(t *testing.T) {
	inWorld(t, joining(), func(w *world) {
		h := w.hub()
		h.snapshot(true, clusterOf("c1", 1, true))
		for _, p := range []transport.Peer{w.agent("c1"), w.bootstrap("boot")} {
			p.Transport = transport.MQTT
			e := w.requests(p, joinOf("c1")).failed(transport.CodeInvalid)
			if e.Code != 400 || e.Message != "clusters do not join over MQTT" {
				t.Errorf("%+v", e)
			}
		}
		if all := h.requests(); len(all) > 0 {
			t.Errorf("the source got the requests %v", all)
		}
	})
}

// TestRegistration_StreamsAreBoundedAndAlive checks that heartbeats continue, that an agent that does not read
// delays no other one, and that the number of streams is bounded.
func TestRegistration_StreamsAreBoundedAndAlive(t *testing.T) {
	cfg := joining()
	cfg.StreamsPerClient = 2
	inWorld(t, cfg, func(w *world) {
		h := w.hub()
		h.snapshot(true, clusterOf("c1", 1, true))
		release := make(chan struct{})
		stuck := w.open(w.agent("c1"), func(raw *transport.RawSubscription, s *tap) {
			raw.DataType = codec.ManagedClusters.String()
			s.hold = func() { <-release }
		})
		reads := w.watch(w.agent("c1"), codec.ManagedClusters, "c1")
		third := w.watch(w.agent("c1"), codec.SigningRequests, "c1")
		w.wantCode(<-third.ended, transport.CodeOverloaded)
		reads.expect("spec update_request uid-c1 v0")
		for v := range 50 {
			h.snapshot(false, clusterOf("c1", v+2, true))
			reads.expect("spec update_request uid-c1 v0")
		}
		pass(broker.DefaultHeartbeat)
		synctest.Wait()
		reads.mu.Lock()
		beats := len(reads.beats)
		reads.mu.Unlock()
		if beats != 1 {
			t.Errorf("%d heartbeats", beats)
		}
		close(release)
		if got := len(stuck.take()); got != 2 {
			t.Errorf("an agent that did not read got %d versions, want the one in flight and the last one", got)
		}
		// A bootstrap account is used by many clusters.
		boot := w.bootstrap("boot")
		for i := range 10 {
			if s := w.watch(boot, codec.ManagedClusters, fmt.Sprintf("n%d", i)); s.accepted.SubscriptionID == "" {
				t.Fatalf("stream %d: %v", i, <-s.ended)
			}
		}
	})
}

// TestRegistration_SavesLater checks that the accepted clusters are saved again after the store failed.
func TestRegistration_SavesLater(t *testing.T) {
	writes := 0
	inWrapped(t, joining(), func(s store.Store) store.Store { return &bookmarking{Store: s, writes: &writes, fail: 3} }, func(w *world) {
		w.hub().snapshot(true, clusterOf("c1", 1, true))
		pass(time.Minute)
		if marks := w.Store.Bookmarks("accepted/"); len(marks) != 1 {
			t.Errorf("the store has %v", marks)
		}
	})
}

// TestRegistration_ReportsRenewalsInBatches checks that renewals of many clusters make one request per second.
func TestRegistration_ReportsRenewalsInBatches(t *testing.T) {
	inWorld(t, joining(), func(w *world) {
		h := w.hub()
		var all []*hawserv1.RegistrationObject
		var peers []transport.Peer
		for i := range 100 {
			c := fmt.Sprintf("c%d", i)
			all, peers = append(all, clusterOf(c, 1, true)), append(peers, w.agent(c))
		}
		h.snapshot(false, all...)
		pass(time.Second)
		for range 20 {
			for _, p := range peers {
				w.put(p, leaseOf(p.Name, ""))
			}
			pass(time.Second / 10)
		}
		requests, reported := h.requests(), 0
		for _, r := range requests {
			reported += len(r.GetRenewals().GetRenewals())
		}
		if len(requests) > 4 || reported > 300 || reported < 100 {
			t.Errorf("%d requests with %d renewals in two seconds", len(requests), reported)
		}
	})
}

// TestRegistration_IsOff checks that a broker without registration rejects its types. Works need no acceptance.
func TestRegistration_IsOff(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		_, err := w.Publish(w.Context(), w.agent("c1"), joinOf("c1"), "")
		w.wantCode(err, transport.CodeInvalid)
		w.wantCode(<-w.watch(w.agent("c1"), codec.ManagedClusters, "c1").ended, transport.CodeInvalid)
		w.wantCode(<-w.hub().ended, transport.CodeInvalid)
		w.subscribe(w.agent("c1"))
		if w.Registration() != nil {
			t.Error("there is a room")
		}
	})
}

// TestRegistration_ClustersAreListed checks that clusters are listed with their facts of the hub, also those
// without works.
func TestRegistration_ClustersAreListed(t *testing.T) {
	inWorld(t, joining(), func(w *world) {
		hub := w.hub()
		hub.snapshot(false, clusterOf("c1", 1, true), clusterOf("c2", 1, false))
		w.subscribe(w.agent("c1"))
		w.put(w.source("src"), work{id: "w1", version: 1, cluster: "misspelt"}.event())
		if list := w.clusters("misspelt"); len(list) != 1 || list[0].GetRegistration().GetNotOnHub() {
			t.Errorf("before the hub has sent all its clusters: %v", list)
		}
		hub.snapshot(true, clusterOf("c1", 1, true), clusterOf("c2", 1, false))
		var got []string
		for _, c := range w.clusters("") {
			r := c.GetRegistration()
			got = append(got, fmt.Sprintf("%s accepted=%t joined=%t available=%s absent=%t %s", c.GetCluster(), r.GetAccepted(), r.GetJoined(), r.GetAvailable(), r.GetNotOnHub(), c.GetState()))
		}
		want := "c1 accepted=true joined=true available=Unknown absent=false CLUSTER_STATE_UNVERIFIED; " +
			"c2 accepted=false joined=false available=Unknown absent=false CLUSTER_STATE_NEVER_CONNECTED; " +
			"misspelt accepted=false joined=false available= absent=true CLUSTER_STATE_NEVER_CONNECTED"
		if s := strings.Join(got, "; "); s != want {
			t.Errorf("\n got %s\nwant %s", s, want)
		}
	})
}

// FuzzRegister checks each registration event of a client. It is either rejected with a known error, or becomes
// a request to the hub in the client's own name. It neither shows objects of another cluster nor accepts one.
func FuzzRegister(f *testing.F) {
	clients := []string{"hub", "agent", "bootstrap"}
	objects, err := codec.NewRegistrationObjects(syncParams, &hawserv1.RegistrationObjects{SnapshotComplete: true, Objects: []*hawserv1.RegistrationObject{clusterOf("c1", 9, true)}})
	if err != nil {
		f.Fatal(err)
	}
	answer, err := codec.NewRegistrationAnswer(syncParams, &hawserv1.RegistrationAnswer{Id: "x", Error: []byte(`{"code":403}`)})
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range []codec.Event{objects, answer} {
		b, err := codec.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, uint8(0))
	}
	for _, b := range [][]byte{joinOf("c1"), leaseOf("c1", ""), joinOf("c2")} {
		f.Add(b, uint8(1))
		f.Add(b, uint8(2))
	}
	f.Fuzz(func(t *testing.T, event []byte, client uint8) {
		inWorld(t, joining(), func(w *world) {
			h := w.hub()
			h.snapshot(true, clusterOf("c1", 1, true), clusterOf("other", 1, false))
			bystander := w.watch(w.agent("other"), codec.ManagedClusters, "other")
			bystander.take()
			from, subscription := h.from, h.accepted.SubscriptionID
			switch clients[int(client)%len(clients)] {
			case "agent":
				from, subscription = w.agent("c1"), ""
			case "bootstrap":
				from, subscription = w.bootstrap("boot"), ""
			}
			_, err := w.Publish(context.Background(), from, event, subscription) // ends after ten seconds without an answer
			var typed *transport.Error
			if err != nil && (!errors.As(err, &typed) || typed.Message == "" || typed.Next == transport.NextUnspecified) {
				t.Fatalf("refused with %v", err)
			}
			for _, r := range h.requests() {
				env, err := codec.ParseEnvelope(r.GetAgentRequest().GetEvent())
				if r.GetRenewals() == nil && (err != nil || env.Cluster != r.GetAgentRequest().GetCluster() || from.Role == "agent" && env.Cluster != from.Name) {
					t.Fatalf("the hub got the request %v: %v", r, err)
				}
			}
			if from.Role == "source" {
				return // an event about existing objects
			}
			bystander.expect()
			if w.Registration().Accepted("other") == nil {
				t.Fatal("a cluster was accepted")
			}
		})
	})
}
