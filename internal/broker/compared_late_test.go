package broker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// slowBookmarks is a store that remembers nothing before the gate lets it.
type slowBookmarks struct {
	store.Store
	gate chan struct{}
}

func (s slowBookmarks) SetBookmarks(ctx context.Context, values map[string][]byte) error {
	<-s.gate
	return s.Store.SetBookmarks(ctx, values)
}

// TestCompared_DoesNotOutlastARelease:
//
// t1 A source says that it has compared a cluster; the broker begins to write that down.
// t2 The source releases the cluster, and its records are dropped.
// t3 What was begun at t1 is written.
// Therefore it counts no longer: the agent would take it that nobody wants its works,
// and evict them.
func TestCompared_DoesNotOutlastARelease(t *testing.T) {
	for name, said := range map[string]codec.Compared{
		"by name": clusters("c1"),
		"all":     {AllClusters: true},
	} {
		t.Run(name, func(t *testing.T) {
			slow := slowBookmarks{gate: make(chan struct{})}
			inWrapped(t, broker.Config{}, func(s store.Store) store.Store {
				slow.Store, slow.gate = s, make(chan struct{}) // made in the bubble
				return slow
			}, func(w *world) {
				agent, source := w.open(w.agent("c1"), hawser), w.open(w.source("src"), hawser)
				w.ask(agent)
				w.put(source.peer, work{version: 1}.event())
				said.Position = &codec.HubPosition{UID: "hub", ResourceVersion: "1"}
				done := make(chan error, 1)
				go func() { done <- source.compared(said) }() // received below
				synctest.Wait()
				w.put(source.peer, releaseOf(t, "src", "c1"))
				slow.gate <- struct{}{}
				if e := w.refused(<-done, transport.CodeUnavailable); !transport.Retryable(e) || e.Delay <= 0 {
					t.Errorf("%+v", e)
				}
				if diff := cmp.Diff([]string{}, agent.sources()); diff != "" {
					t.Error(diff)
				}
				said.Position = nil
				source.mustCompare(said) // of what is so now
				if diff := cmp.Diff([]string{"src"}, agent.sources()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// goneSoon is the context of a caller who goes away after it was looked at once.
type goneSoon struct {
	context.Context
	looked *int
}

func (c goneSoon) Err() error {
	if *c.looked++; *c.looked > 1 {
		return context.Canceled
	}
	return nil
}

// TestCompared_OfWhoWentAwayDoesNotCount, also when that was the moment after the
// call came: what the source publishes next may be a release.
func TestCompared_OfWhoWentAwayDoesNotCount(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent, source := w.open(w.agent("c1"), hawser), w.open(w.source("src"), hawser)
		w.ask(agent)
		e, err := codec.NewCompared(source.params(), clusters("c1"))
		_, err = w.Publish(goneSoon{w.Context(), new(int)}, source.peer, marshal(w, e, err), source.accepted.SubscriptionID)
		if e := w.refused(err, transport.CodeUnavailable); !transport.Retryable(e) {
			t.Errorf("%+v", e)
		}
		pass(time.Second)
		if diff := cmp.Diff([]string{}, agent.sources()); diff != "" {
			t.Error(diff)
		}
	})
}
