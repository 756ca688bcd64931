package broker_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// TestFence_EventsOfAnEndedSubscription checks that a publish that a broken connection has delayed has no
// effect (I2, I3).
func TestFence_EventsOfAnEndedSubscription(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent, source := w.open(w.agent("c1"), hawser), w.open(w.source("src"), hawser)
		if err := source.send(work{version: 1}.event()); err != nil {
			t.Fatal(err)
		}
		for _, s := range []*tap{agent, source} {
			s.cancel()
			w.wantCode(<-s.ended, transport.CodeUnavailable)
		}
		for what, err := range map[string]error{
			"spec":     source.send(work{version: 2}.event()),
			"deletion": source.send(work{version: 2, deleting: true}.event()),
			"release":  source.send(releaseOf(t, "src", "c1")),
			"status":   agent.send(w.event(report{version: 1})),
		} {
			if e := w.refused(err, transport.CodeUnavailable); e.Attribute != codec.HeaderSubscriptionID {
				t.Errorf("%s: %+v", what, e)
			}
		}
		late, stop := context.WithCancel(w.Context())
		stop()
		_, err := w.Publish(late, w.source("src"), work{version: 2}.event(), "")
		w.wantCode(err, transport.CodeUnavailable)
		ocm := w.open(w.agent("c1"), nil)
		w.request(ocm)
		ocm.expect("spec resync_response w1 v1") // the work is unchanged
	})
}

// TestFence_ComparingEndsEarlierSessions checks that publishes of earlier sessions are either in the inventory
// or rejected.
func TestFence_ComparingEndsEarlierSessions(t *testing.T) {
	inSlowWorld(t, broker.Config{}, func(w *world, s *slowStore) {
		old, other := w.open(w.source("src"), hawser), w.open(w.source("other"), hawser)
		moved := make(chan error, 1)
		go func() { moved <- other.send(work{source: "other", id: "other", version: 1}.event()) }() // the result is received below
		s.tokens <- nil
		if err := <-moved; err != nil {
			t.Fatal(err) // the head is moved, so that the sessions of src have an order
		}
		ocm, now := w.open(w.source("src"), nil), w.open(w.source("src"), hawser)
		queued := make(chan error, 1)
		go func() { queued <- old.send(work{version: 1}.event()) }() // the result is received below
		old.take()
		requested := make(chan error, 1)
		go func() { requested <- now.request("r", codec.InventoryRequest{}) }() // the result is received below
		synctest.Wait()
		s.tokens <- nil
		if err := <-queued; err != nil {
			t.Errorf("the event queued before: %v", err)
		}
		if len(now.takeSync(codec.TypeInventory)) != 0 {
			t.Error("the inventory came before the queued events")
		}
		s.tokens <- nil // for the commit that takes over
		e := w.refused(<-old.ended, transport.CodeUnavailable)
		if e.Next != transport.NextBackOff || e.Delay <= 0 {
			t.Errorf("the end of the session before: %+v", e)
		}
		w.wantCode(old.send(work{id: "late", version: 1}.event()), transport.CodeUnavailable)
		if err := <-requested; err != nil {
			t.Fatal(err)
		}
		pages := now.takeSync(codec.TypeInventory)
		if len(pages) != 1 {
			t.Fatalf("%d pages", len(pages))
		}
		if inv, err := codec.ParseInventory(pages[0]); err != nil || len(inv.Clusters) != 1 || inv.Clusters[0].Digest.Count != 1 {
			t.Errorf("inventory %+v, %v", inv, err)
		}
		for _, s := range []*tap{other, ocm, now} {
			if len(s.ended) != 0 {
				t.Errorf("the session of %s ended: %v", s.peer.Name, <-s.ended)
			}
		}
	})
}
