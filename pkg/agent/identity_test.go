package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	identities "github.com/hawser-io/hawser/pkg/agent/hubidentity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// The agent ignores all events of a broker that may not use the hub identity, until an operator hands the
// identity over.
func TestAgent_IgnoresBrokerWithoutHubIdentity(t *testing.T) {
	var refuse atomic.Bool
	refuse.Store(true)
	runAgent(t, func(r *running) {
		r.admit = func(context.Context, transport.Accepted) error {
			if refuse.Load() {
				return &identities.RefusedError{Claim: identities.Claim{Identity: "hub"}, By: identities.Rejected{Identity: "hub"}}
			}
			return nil
		}
	}, func(r *running) {
		w := hubWork("w-1", "web", 1, configMap("a", "1"))
		r.b.events <- r.events.event(w, codec.CreateRequest, nil)
		r.after(time.Minute)
		ref := r.f.Ref("v1", "ConfigMap", "default", "a")
		if r.f.Look(ref) != nil {
			t.Fatal("it was applied")
		}
		if err := r.a.IdentityReady(); err == nil || !strings.Contains(err.Error(), "hawser hub-identity transfer") {
			t.Errorf("got %v", err)
		}
		if n := len(r.b.hellos); n != 1 {
			t.Errorf("the broker got %d hellos in a minute", n)
		}
		if _, requests := r.b.statuses(); requests != 0 {
			t.Errorf("it received %d events", requests)
		}
		refuse.Store(false)
		r.after(time.Minute)
		r.b.events <- r.events.event(w, codec.CreateRequest, nil)
		r.after(time.Second)
		if r.f.Look(ref) == nil || r.a.IdentityReady() != nil {
			t.Errorf("after the move: %v", r.a.IdentityReady())
		}
	})
}

func TestGate_AnswerCountsWhileClusterIsAway(t *testing.T) {
	var answer error
	requests := 0
	g := &identityGuardDialer{log: slog.New(slog.DiscardHandler), admit: func(context.Context, transport.Accepted) error { requests++; return answer }}
	a := transport.Accepted{StoreID: "e1", Roots: []string{"ca"}}
	away := errors.New("the cluster is away")
	answer = away
	if err := g.pass(t.Context(), a); !errors.Is(err, away) {
		t.Errorf("before the first answer of the cluster: %v", err)
	}
	answer = nil
	if err := g.pass(t.Context(), a); err != nil {
		t.Error(err)
	}
	answer = away
	if err := g.pass(t.Context(), a); err != nil {
		t.Errorf("the same broker: %v", err)
	}
	for _, other := range []transport.Accepted{{StoreID: "e2", Roots: a.Roots}, {StoreID: "e1", Roots: []string{"other"}}} {
		if err := g.pass(t.Context(), other); !errors.Is(err, away) {
			t.Errorf("%+v: %v", other, err)
		}
	}
	if requests != 5 {
		t.Errorf("%d identity checks", requests)
	}
}

// AppliedManifestWorks of other hubs are counted while they share objects with a work of this hub.
func TestCore_CountsObjectsSharedWithOtherHubs(t *testing.T) {
	r := newRig(t)
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	shared := func(want ...string) {
		t.Helper()
		r.settle(time.Second)
		r.core.mu.Lock()
		got := r.core.orphans.shared()
		r.core.mu.Unlock()
		if !slices.Equal(got, want) || r.core.Counts().Shared != len(want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	foreign := appliedwork.Store{Objects: r.f, HubHash: appliedwork.HubHash("other"), AgentID: "other"}
	record := func(work, uid string) *appliedwork.Record {
		t.Helper()
		rec, err := foreign.Create(t.Context(), work, nil, appliedwork.Origin{WorkID: work})
		if err != nil {
			t.Fatal(err)
		}
		r.settle(time.Second) // the list of a record is written after the watch showed the record
		rec, err = foreign.SetEntries(t.Context(), rec, []appliedwork.Entry{{ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "default", Name: work}, Version: "v1", UID: uid}})
		if err != nil {
			t.Fatal(err)
		}
		return rec
	}
	shared()
	same := record("web", string(r.configMap("a").GetUID()))
	record("db", "another uid")
	shared(same.Owner().Name)
	r.requests()
	r.settle(time.Minute)
	r.expectRequests()
	r.f.Edit(appliedwork.Ref(same.Owner().Name), func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
	r.f.Remove(appliedwork.Ref(same.Owner().Name))
	shared()
}
