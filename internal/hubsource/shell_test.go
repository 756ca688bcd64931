package hubsource

import (
	"context"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// pinned is a broker that notes on which subscription events were to go out.
type pinned map[string][]string // types by subscription

func (p pinned) PublishOn(_ context.Context, subscription string, e codec.Event) (transport.Receipt, error) {
	p[subscription] = append(p[subscription], e.Type())
	return transport.Receipt{}, &transport.Error{Code: transport.CodeUnavailable}
}

// TestShell_PublishesOnTheSubscriptionItDecidedOn: an effect whose worker was slow
// must not go out on the next one, which means nothing by it.
func TestShell_PublishesOnTheSubscriptionItDecidedOn(t *testing.T) {
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	broker := pinned{}
	s := newShell(shellConfig{id: "hub", log: slog.New(slog.DiscardHandler), metrics: m})
	s.broker = broker
	defer func() {
		for l := range s.queues {
			s.queues[l].ShutDown()
		}
	}()
	s.core.ClusterSelected("cluster1")
	s.core.WorkSeen(newWork("w", 1, deleting))
	s.core.Connected(transport.Accepted{Protocol: 1, SubscriptionID: "first", Resync: codec.ResyncList})
	keys := []Key{{UID: "uid-w"}, {Cluster: "cluster1"}, {}}
	var effects []Effect
	on := s.core.Subscription()
	for _, k := range keys {
		effects = append(effects, s.core.Next(SpecLane, k))
	}
	s.core.Connected(transport.Accepted{Protocol: 1, SubscriptionID: "second", Resync: codec.ResyncCursor})
	for i, e := range effects {
		if e == nil {
			t.Fatalf("nothing is to be done for %+v", keys[i])
		}
		s.core.Done(e, s.do(t.Context(), on, e))
	}
	if len(broker["first"]) != len(effects) || len(broker) != 1 {
		t.Errorf("%v went out", broker)
	}
	s.process(t.Context(), SpecLane, Key{})
	if len(broker["first"]) != len(effects) || len(broker["second"]) != 1 {
		t.Errorf("%v went out", broker)
	}
}

// t1 a work is deleted and made again under its name, and informers show the second, t2
// the hub goes back to where the first is, t3 informers list it: one update from the second
// to the first. Nobody deleted the second, so it is missing, and a comparison has to look
// for it.
func TestShell_TakesAWorkWhoseNameAnotherHasInANewListForMissing(t *testing.T) {
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	s := newShell(shellConfig{id: "hub", all: true, log: slog.New(slog.DiscardHandler), metrics: m})
	defer func() {
		for l := range s.queues {
			s.queues[l].ShutDown()
		}
	}()
	first, second := newWork("w", 1), newWork("w", 1, version("200"))
	second.UID = "uid-second"
	events := s.workEvents()
	events.OnAdd(second, true)
	events.OnUpdate(second, first)
	if w := s.core.works[second.UID]; w == nil || !w.gone || !w.missing {
		t.Errorf("the second work is %+v", w)
	}
	if w := s.core.works[first.UID]; w == nil || w.gone {
		t.Errorf("the first work is %+v", w)
	}
}
