package hubsource

import (
	"context"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/internal/hubsource/core"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// pinned is a broker that notes on which subscription events were to go out.
type pinned map[string][]string // event types by subscription

func (p pinned) PublishOn(_ context.Context, subscription string, e codec.Event) (transport.Receipt, error) {
	p[subscription] = append(p[subscription], e.Type())
	return transport.Receipt{}, &transport.Error{Code: transport.CodeUnavailable}
}

func (pinned) Run(context.Context) error { return nil }
func (pinned) End(string)                {}

// TestShell_PublishesOnTheSubscriptionItDecidedOn: if a worker is slow, its effect must not be sent on the next
// subscription, where it is not valid.
func TestShell_PublishesOnTheSubscriptionItDecidedOn(t *testing.T) {
	m := newMetrics(prometheus.NewRegistry())
	sent := pinned{}
	s := newShell(shellConfig{id: "hub", log: slog.New(slog.DiscardHandler), metrics: m})
	s.use(sent)
	defer func() {
		s.shutDown()
	}()
	s.core.ClusterSelected(1, "cluster1")
	s.core.WorkSeen(1, newWork("w", 1, deleting))
	s.core.Connected(transport.Accepted{Protocol: transport.Protocol, SubscriptionID: "first", Resync: codec.ResyncList})
	keys := []core.Key{{UID: "uid-w"}, {Cluster: "cluster1"}, {}}
	var effects []core.Effect
	to := broker{s, sent, s.core.Subscription()}
	for _, k := range keys {
		effects = append(effects, s.core.Next(core.BrokerQueue, k))
	}
	s.core.Connected(transport.Accepted{Protocol: transport.Protocol, SubscriptionID: "second", Resync: codec.ResyncCursor})
	for i, e := range effects {
		if e == nil {
			t.Fatalf("nothing is to be done for %+v", keys[i])
		}
		s.core.Done(core.BrokerQueue, keys[i], s.do(t.Context(), to, keys[i], e))
	}
	if len(sent["first"]) != len(effects) || len(sent) != 1 {
		t.Errorf("%v went out", sent)
	}
	s.process(t.Context(), core.BrokerQueue, core.Key{})
	if len(sent["first"]) != len(effects) || len(sent["second"]) != 1 {
		t.Errorf("%v went out", sent)
	}
}

// Scenario:
//
//	t1: a work is deleted and created again under its name, and informers show the second.
//	t2: the hub goes back to a state with the first.
//	t3: informers list it: one update from the second to the first.
//
// Result: the second was not deleted, so it is missing, and a comparison has to look for it.
func TestShell_TreatsReplacedNameInNewListAsMissing(t *testing.T) {
	m := newMetrics(prometheus.NewRegistry())
	s := newShell(shellConfig{id: "hub", all: true, log: slog.New(slog.DiscardHandler), metrics: m})
	defer func() {
		s.shutDown()
	}()
	first, second := newWork("w", 1), newWork("w", 1, version("200"))
	second.UID = "uid-second"
	events := s.workEvents(s.core.Epoch())
	events.OnAdd(second, true)
	events.OnUpdate(second, first)
	s.core.Connected(transport.Accepted{Protocol: transport.Protocol, SubscriptionID: "one"})
	for _, uid := range []types.UID{second.UID, first.UID} {
		s.core.Next(core.BrokerQueue, core.Key{UID: uid})
	}
	if n := s.core.Stats().Works; n != 1 {
		t.Errorf("%d works are known, the one that is missing is left to the comparison", n)
	}
}
