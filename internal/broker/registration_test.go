package broker_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/registration"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// TestRegistration_Joins checks a cluster that requests to join with a bootstrap token, is accepted, and gets
// its first work.
func TestRegistration_Joins(t *testing.T) {
	inWorld(t, joining(), func(w *world) {
		h := w.hub()
		h.snapshot(true)
		boot := w.bootstrap("system:serviceaccount:ocm:boot")
		boot.Groups = []string{"system:bootstrappers:managedcluster"}
		seen, csrs := w.watch(boot, codec.ManagedClusters, "c1"), w.watch(boot, codec.SigningRequests, "c1")

		join := w.requests(boot, joinOf("c1"))
		req := h.one()
		if a := req.GetAgentRequest(); a.GetCluster() != "c1" || a.GetUser() != boot.User || !slices.Equal(a.GetGroups(), boot.Groups) || !a.GetBootstrap() {
			t.Errorf("the hub gets the request %v", a)
		}
		if env, err := codec.ParseEnvelope(req.GetAgentRequest().GetEvent()); err != nil || env.Cluster != "c1" || string(env.Data) != `{"metadata":{"name":"c1"}}` {
			t.Errorf("the hub is sent %+v, %v", env, err)
		}
		join.waits()
		h.must(h.answers(&hawserv1.RegistrationAnswer{Id: req.GetId()}))
		if err := join.ended(); err != nil {
			t.Fatal(err)
		}
		h.snapshot(false, clusterOf("c1", 5, false), csrOf("c1", "csr-a", boot.User, 6), csrOf("c1", "csr-b", "another", 7))
		events := seen.take()
		if len(events) != 1 || events[0].ResourceID != "uid-c1" || events[0].Source != "hub" || events[0].Cluster != "c1" ||
			events[0].Type.String() != codec.ManagedClusters.String()+".spec.update_request" || len(events[0].Data) == 0 {
			t.Errorf("the cluster is sent %+v", events)
		}
		csrs.expect("spec update_request uid-csr-a v0")

		agent := w.agent("c1")
		_, err := w.Publish(w.Context(), agent, leaseOf("c1", "uid-managed-cluster-lease"), "")
		if e := w.apiError(err, transport.CodeDenied); e.Code != 403 || e.Reason != "Forbidden" {
			t.Errorf("%+v", e)
		}
		works := w.open(agent, nil)
		refused := w.refused(<-works.ended, transport.CodeDenied)
		if refused.Next != transport.NextBackOff || refused.Delay < 10*time.Second || refused.Delay > time.Minute ||
			refused.Message != "the hub has not accepted cluster c1" || refused.Hint != "hawser accept c1" {
			t.Errorf("%+v", refused)
		}
		_, err = w.Publish(w.Context(), agent, w.event(report{cluster: "c1", id: "w1", version: 1}), "")
		w.wantCode(err, transport.CodeDenied)

		h.snapshot(false, clusterOf("c1", 8, true))
		seen.expect("spec update_request uid-c1 v0")
		works = w.subscribe(agent)
		w.put(w.source("src"), work{version: 1}.event())
		works.expect("spec create_request w1 v1")
	})
}

// TestRegistration_AnswersAreTheHubs checks that an error of the hub reaches the agent, in the form that agents
// of Open Cluster Management read.
func TestRegistration_AnswersAreTheHubs(t *testing.T) {
	inWorld(t, joining(), func(w *world) {
		h := w.hub()
		req := w.requests(w.agent("c1"), joinOf("c1"))
		h.must(h.answers(&hawserv1.RegistrationAnswer{Id: h.one().GetId(), Error: []byte(
			`{"kind":"Status","status":"Failure","reason":"AlreadyExists","code":409,"message":"managedclusters \"c1\" already exists"}`)}))
		err := req.ended()
		const want = `{"ErrStatus":{"metadata":{},"status":"Failure","code":409,"reason":"AlreadyExists","message":"managedclusters \"c1\" already exists"}}`
		if e := w.refused(err, transport.CodeAlreadyExists); e.Message != want {
			t.Errorf("got  %s\nwant %s", e.Message, want)
		}

		// An answer with an unknown id, and a second answer, are ignored: no caller waits for them.
		req = w.requests(w.agent("c1"), joinOf("c1"))
		id := h.one().GetId()
		for _, a := range []struct{ id, want string }{{"other", codec.OutcomeIgnored}, {id, codec.OutcomeAccepted}, {id, codec.OutcomeIgnored}} {
			if outcome, err := h.answers(&hawserv1.RegistrationAnswer{Id: a.id}); err != nil || outcome != a.want {
				t.Errorf("answer to %s: %q, %v; want %q", a.id, outcome, err, a.want)
			}
		}
		if err := req.ended(); err != nil {
			t.Error(err)
		}
	})
}

// TestRegistration_WithoutItsSource checks that a request fails at once without a source, and after
// AnswerTimeout if the source does not answer.
func TestRegistration_WithoutItsSource(t *testing.T) {
	inWorld(t, joining(), func(w *world) {
		agent := w.agent("c1")
		gone := func(c *pendingRequest, text string) {
			t.Helper()
			if e := c.failed(transport.CodeUnavailable); e.Code != 503 || e.Reason != "ServiceUnavailable" || !strings.Contains(e.Message, text) {
				t.Errorf("%+v, want %q", e, text)
			}
		}
		gone(w.requests(agent, joinOf("c1")), "no source")

		h := w.hub()
		req := w.requests(agent, joinOf("c1"))
		h.one()
		pass(registration.AnswerTimeout - time.Millisecond)
		req.waits()
		pass(time.Millisecond)
		gone(req, "did not answer within 10s")

		req = w.requests(agent, joinOf("c1"))
		h.one()
		h.cancel()
		gone(req, "has disconnected")
		w.wantCode(<-h.ended, transport.CodeUnavailable)
		gone(w.requests(agent, joinOf("c1")), "no source")

		// If the source does not read, queued requests end when their callers give up.
		h = w.hub()
		release := make(chan struct{})
		h.hold = func() { <-release }
		first, second := w.requests(agent, joinOf("c1")), w.requests(agent, joinOf("c1"))
		second.cancel()
		w.wantCode(second.ended(), transport.CodeUnavailable)
		first.cancel()
		w.wantCode(first.ended(), transport.CodeUnavailable)
		close(release)
		if all := h.requests(); len(all) != 1 {
			t.Errorf("%d requests, want the one that was on its way", len(all))
		}
	})
}

// TestRegistration_OneSessionCounts checks that of two sessions of the source only the later one is used.
func TestRegistration_OneSessionCounts(t *testing.T) {
	inWorld(t, joining(), func(w *world) {
		before := w.hub()
		before.snapshot(true, clusterOf("c1", 1, true))
		req := w.requests(w.agent("c1"), joinOf("c1"))
		id := before.one().GetId()
		after := w.hub()
		w.wantCode(<-before.ended, transport.CodeUnavailable)
		w.wantCode(req.ended(), transport.CodeUnavailable)
		_, err := before.answers(&hawserv1.RegistrationAnswer{Id: id})
		w.wantCode(err, transport.CodeUnavailable)
		_, err = before.publish(codec.NewRegistrationObjects(syncParams, &hawserv1.RegistrationObjects{SnapshotComplete: true}))
		w.wantCode(err, transport.CodeUnavailable)
		if err := w.Registration().Accepted("c1"); err != nil {
			t.Error(err)
		}
		after.snapshot(false, clusterOf("c2", 1, true))
		if err := w.Registration().Accepted("c1"); err != nil {
			t.Errorf("the cluster is removed before the snapshot is complete: %v", err)
		}
		after.snapshot(true)
		if w.Registration().Accepted("c1") == nil || w.Registration().Accepted("c2") != nil {
			t.Error("a cluster outside the snapshot is still accepted, or one in the snapshot is not")
		}
	})
}

// TestRegistration_OtherSourcesDoNotServe checks that subscriptions and events of other sources are rejected.
func TestRegistration_OtherSourcesDoNotServe(t *testing.T) {
	inWorld(t, joining(), func(w *world) {
		h := w.hub()
		other := w.source("other")
		s := w.open(other, func(raw *transport.RawSubscription, _ *tap) { raw.DataType = codec.Registrations.String() })
		w.wantCode(<-s.ended, transport.CodeDenied)
		forged := &hub{from: other, tap: h.tap}
		_, err := forged.publish(codec.NewRegistrationObjects(codec.SyncParams{ID: "e", Time: time.Now(), Source: "other", Owner: "other"},
			&hawserv1.RegistrationObjects{Objects: []*hawserv1.RegistrationObject{clusterOf("c1", 1, true)}}))
		w.wantCode(err, transport.CodeUnavailable)
		if w.Registration().Accepted("c1") == nil {
			t.Error("another source accepts clusters")
		}
	})
}

// TestRegistration_OutlivesARestart checks that after a restart of the broker, without the source, only
// accepted clusters get works.
func TestRegistration_OutlivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := mem.Open(mem.Options{NewID: testkit.NewIDs("store")})
		run := func(test func(w *world)) {
			w := &world{T: t, Broker: testkit.StartBroker(t, testkit.Options{Broker: broker.Config{
				Registration: "hub", Store: disk, NewID: testkit.NewIDs("id"),
			}})}
			test(w)
			w.Stop()
		}
		run(func(w *world) {
			h := w.hub()
			h.snapshot(true, clusterOf("c1", 1, true), clusterOf("c2", 1, true), clusterOf("c3", 1, false))
			h.snapshot(false, clusterOf("c2", 2, false))
		})
		run(func(w *world) {
			works := w.subscribe(w.agent("c1"))
			w.put(w.source("src"), work{version: 1}.event())
			works.expect("spec create_request w1 v1")
			for _, c := range []string{"c2", "c3", "c4"} {
				w.wantCode(<-w.open(w.agent(c), nil).ended, transport.CodeDenied)
			}
			if _, err := w.Publish(w.Context(), w.agent("c1"), leaseOf("c1", "uid-managed-cluster-lease"), ""); err != nil {
				t.Errorf("a Lease is not renewed while the source is away: %v", err)
			}
			pass(30 * time.Second)
			h := w.hub()
			for _, age := range []time.Duration{30 * time.Second, time.Minute} {
				if r := h.one().GetRenewals().GetRenewals(); len(r) != 1 || r[0].GetCluster() != "c1" || r[0].GetAge().AsDuration() != age {
					t.Errorf("renewals %v, want one that is %v old", r, age)
				}
				pass(30 * time.Second)
				h = w.hub() // the next session gets the last renewal too
			}
			h.snapshot(true)
			w.wantCode(<-works.ended, transport.CodeDenied)
		})
		if marks := disk.Bookmarks("accepted/"); len(marks) != 0 {
			t.Errorf("the store has %v", marks)
		}
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestRegistration_SavesChanges checks that the full report of the source after each connect causes no
// write.
func TestRegistration_SavesChanges(t *testing.T) {
	writes := 0
	inWrapped(t, joining(), func(s store.Store) store.Store { return &bookmarking{Store: s, writes: &writes} }, func(w *world) {
		var all []*hawserv1.RegistrationObject
		for i := range 100 {
			all = append(all, clusterOf(fmt.Sprintf("c%d", i), 1, true))
		}
		w.hub().snapshot(true, all...)
		synctest.Wait()
		if writes != 1 {
			t.Errorf("%d writes for one message", writes)
		}
		w.hub().snapshot(true, all...)
		synctest.Wait()
		if writes != 1 {
			t.Errorf("%d writes although nothing has changed", writes)
		}
	})
}
