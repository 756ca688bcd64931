package broker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/storetest"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// TestSubscribe_Refuses checks C39, C50 and I8.
func TestSubscribe_Refuses(t *testing.T) {
	bundles := codec.ManifestBundles.String()
	for name, c := range map[string]struct {
		role, peer string
		raw        transport.RawSubscription
		code       transport.Code
	}{
		"no data type":           {"agent", "c1", transport.RawSubscription{Cluster: "c1"}, transport.CodeInvalid},
		"two tokens":             {"agent", "c1", transport.RawSubscription{Cluster: "c1", DataType: "a.b"}, transport.CodeInvalid},
		"unknown data type":      {"agent", "c1", transport.RawSubscription{Cluster: "c1", DataType: "a.b.c"}, transport.CodeInvalid},
		"neither":                {"agent", "c1", transport.RawSubscription{DataType: bundles}, transport.CodeInvalid},
		"both":                   {"agent", "c1", transport.RawSubscription{Cluster: "c1", Source: "c1", DataType: bundles}, transport.CodeInvalid},
		"agent of another":       {"agent", "c2", transport.RawSubscription{Cluster: "c1", DataType: bundles}, transport.CodeDenied},
		"agent as source":        {"agent", "c1", transport.RawSubscription{Source: "c1", DataType: bundles}, transport.CodeDenied},
		"source as another":      {"source", "s", transport.RawSubscription{Source: "other", DataType: bundles}, transport.CodeDenied},
		"source as agent":        {"source", "s", transport.RawSubscription{Cluster: "s", DataType: bundles}, transport.CodeDenied},
		"operator as agent":      {"operator", "c1", transport.RawSubscription{Cluster: "c1", DataType: bundles}, transport.CodeDenied},
		"viewer as source":       {"viewer", "s", transport.RawSubscription{Source: "s", DataType: bundles}, transport.CodeDenied},
		"anonymous":              {"", "", transport.RawSubscription{Cluster: "c1", DataType: bundles}, transport.CodeUnauthenticated},
		"role that is not known": {"king", "c1", transport.RawSubscription{Cluster: "c1", DataType: bundles}, transport.CodeDenied},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, broker.Config{}, func(w *world) {
				s := w.open(w.peer(c.role, c.peer), func(raw *transport.RawSubscription, _ *tap) { *raw = c.raw })
				e := w.refused(<-s.ended, c.code)
				if e.Next == transport.NextUnspecified || s.accepted.SubscriptionID != "" {
					t.Errorf("%+v, accepted %+v", e, s.accepted)
				}
				if _, ok := w.Store.Subscribed(codec.ManifestBundles, "c1"); ok {
					t.Error("the refused agent was noted")
				}
			})
		})
	}
}

// TestSubscribe_HeartbeatsUnderBacklog checks that heartbeats keep their interval with any backlog (Q19).
func TestSubscribe_HeartbeatsUnderBacklog(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		for i := range 600 {
			w.put(source, work{id: fmt.Sprint("w", i), version: 1}.event())
		}
		start := time.Now()
		agent := w.open(w.agent("c1"), func(_ *transport.RawSubscription, s *tap) { s.hold = func() { pass(100 * time.Millisecond) } })
		w.request(agent)
		pass(55 * time.Second)
		var due []time.Time
		beats := settings.NewBeats(&settings.Config{Heartbeat: broker.DefaultHeartbeat}).Schedule(agent.peer, 0)
		for at := beats.Next(start); !at.After(start.Add(55 * time.Second)); at = beats.Next(at) {
			due = append(due, at)
		}
		if got := len(agent.beats); got != len(due) {
			t.Fatalf("%d heartbeats in 55 s, want %d", got, len(due))
		}
		for i, at := range agent.beats {
			if at.Sub(due[i]) > time.Second || at.Before(due[i]) {
				t.Errorf("heartbeat %d came after %v", i, at.Sub(start))
			}
		}
		if got := len(agent.take()); got < 500 {
			t.Errorf("%d events in 55 s beside the heartbeats", got)
		}
	})
}

func TestSubscribe_HeartbeatsWhenIdle(t *testing.T) {
	inWorld(t, broker.Config{Heartbeat: 7 * time.Second}, func(w *world) {
		agent := w.subscribe(w.agent("c1"))
		pass(28 * time.Second)
		synctest.Wait()
		if got := len(agent.beats); got != 4 {
			t.Errorf("%d heartbeats in 28 s, want 4", got)
		}
	})
}

// TestSubscribe_FewerHeartbeats checks that a client gets a heartbeat a minute where it asks for that, on a stream of
// works and on one of registration. It gets them at one time.
func TestSubscribe_FewerHeartbeats(t *testing.T) {
	inWorld(t, joining(), func(w *world) {
		w.hub().snapshot(true, clusterOf("c1", 1, true))
		ask := func(d codec.DataType) *tap {
			return w.open(w.agent("c1"), func(raw *transport.RawSubscription, _ *tap) {
				raw.DataType, raw.Hello.Heartbeat = d.String(), time.Minute
			})
		}
		works, clusters := ask(codec.ManifestBundles), ask(codec.ManagedClusters)
		pass(4 * time.Minute)
		synctest.Wait()
		if len(works.beats) != 4 || !slices.Equal(works.beats, clusters.beats) {
			t.Errorf("heartbeats in four minutes: %v of works, %v of clusters", works.beats, clusters.beats)
		}
	})
}

// TestSubscribe_AnotherClusterUnderTheSameName checks that another cluster is rejected until the name is
// unbound.
func TestSubscribe_AnotherClusterUnderTheSameName(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		as := func(uid string) *tap {
			return w.open(w.agent("c1"), func(raw *transport.RawSubscription, _ *tap) {
				raw.Hello = transport.Hello{Protocol: transport.Protocol, ClusterUID: uid}
			})
		}
		running := func(s *tap) {
			t.Helper()
			select {
			case err := <-s.ended:
				t.Errorf("ended: %v", err)
			default:
			}
		}
		running(as(""))      // an agent that sends no uid
		running(as("uid-1")) // the first agent that sends a uid
		running(as("uid-1"))
		running(as(""))
		e := w.refused(<-as("uid-2").ended, transport.CodeDenied)
		if e.Next != transport.NextStop || e.Hint == "" {
			t.Errorf("%+v", e)
		}
		if err := storetest.Unbind(w.Context(), w.Store, codec.ManifestBundles, "c1"); err != nil {
			t.Fatal(err)
		}
		running(as("uid-2"))
	})
}

func TestSubscribe_StreamsOfOneClientAreBounded(t *testing.T) {
	inWorld(t, broker.Config{StreamsPerClient: 3}, func(w *world) {
		var open []*tap
		for range 3 {
			open = append(open, w.open(w.agent("c1"), nil))
		}
		e := w.refused(<-w.open(w.agent("c1"), nil).ended, transport.CodeOverloaded)
		if e.Delay <= 0 {
			t.Errorf("%+v", e)
		}
		if s := w.open(w.agent("c2"), nil); s.accepted.SubscriptionID == "" {
			t.Error("another client was rejected")
		}
		open[0].cancel()
		w.wantCode(<-open[0].ended, transport.CodeUnavailable)
		if s := w.open(w.agent("c1"), nil); s.accepted.SubscriptionID == "" {
			t.Error("refused although one has ended")
		}
	})
}

// TestSubscribe_EndsWithItsCaller checks that a subscription ends with its caller and releases its resources.
func TestSubscribe_EndsWithItsCaller(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		s := w.open(w.agent("c1"), nil)
		s.cancel()
		e := w.refused(<-s.ended, transport.CodeUnavailable)
		if !errors.Is(e, context.Canceled) {
			t.Errorf("%v does not wrap the context's error", e)
		}
		w.put(w.source("src"), work{version: 1}.event())
		s.expect()
	})
}

// TestSubscribe_EndsWhenItCannotSend checks that a failed write ends the subscription.
func TestSubscribe_EndsWhenItCannotSend(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		broken := errors.New("broken")
		peer := w.agent("c1")
		raw := transport.RawSubscription{Cluster: "c1", DataType: codec.ManifestBundles.String()}
		err := w.Subscribe(w.Context(), peer, raw, failing{accept: broken})
		if e := w.refused(err, transport.CodeUnavailable); !errors.Is(e, broken) {
			t.Errorf("accept fails: %v", err)
		}
		ended := make(chan error, 1)
		go func() { ended <- w.Subscribe(w.Context(), peer, raw, failing{send: broken}) }() // the result is received below
		synctest.Wait()
		w.put(w.source("src"), work{version: 1}.event())
		if e := w.refused(<-ended, transport.CodeUnavailable); !errors.Is(e, broken) {
			t.Errorf("send fails: %v", e)
		}
	})
}

type failing struct{ accept, send error }

func (f failing) Accept(transport.Accepted) error { return f.accept }
func (f failing) Send(...[]byte) error            { return f.send }

// getter is a store whose Get is a function.
type getter struct {
	store.Store
	get func(k store.Key) (store.Record, error)
}

func (g *getter) Get(_ context.Context, k store.Key) (store.Record, error) { return g.get(k) }

// TestSubscribe_UnreadableRecords checks three failures: a damaged record is skipped, a failing store ends the
// stream, a panic is an error of this stream only.
func TestSubscribe_UnreadableRecords(t *testing.T) {
	wrapped := &getter{}
	wrap := func(s store.Store) store.Store {
		wrapped.Store = s
		return wrapped
	}
	inWrapped(t, broker.Config{}, wrap, func(w *world) {
		wrapped.get = func(k store.Key) (store.Record, error) {
			switch k.ResourceID {
			case "damaged":
				return store.Record{}, fmt.Errorf("get: %w", &store.DamageError{Key: "k", What: "checksum"})
			case "broken":
				return store.Record{}, errors.New("disk on fire")
			case "panics":
				panic("bug")
			}
			return wrapped.Store.Get(t.Context(), k)
		}
		source := w.source("src")
		agent := w.subscribe(w.agent("c1"))
		w.put(source, work{id: "damaged", version: 1}.event())
		w.put(source, work{version: 1}.event())
		agent.expect("spec create_request w1 v1")
		for _, id := range []string{"broken", "panics"} {
			agent := w.subscribe(w.agent("c2"))
			w.put(source, work{cluster: "c2", id: id, version: 1}.event())
			if e := w.refused(<-agent.ended, transport.CodeInternal); e.Next != transport.NextBackOff || e.Delay <= 0 {
				t.Errorf("%s: %+v", id, e)
			}
		}
		w.put(source, work{version: 2}.event())
		agent.expect("spec create_request w1 v2")
	})
}

// TestSubscribe_SendsTakenSpecBeforeItsDeletion checks a spec that is deleted after it was taken from the queue.
// The agent gets that spec before the deletion.
func TestSubscribe_SendsTakenSpecBeforeItsDeletion(t *testing.T) {
	wrapped := &getter{}
	wrap := func(s store.Store) store.Store {
		wrapped.Store = s
		return wrapped
	}
	inWrapped(t, broker.Config{}, wrap, func(w *world) {
		agent, source := w.subscribe(w.agent("c1")), w.source("src")
		deleted := false
		wrapped.get = func(k store.Key) (store.Record, error) {
			if !deleted {
				deleted = true
				w.put(source, work{version: 2, deleting: true}.event())
			}
			return wrapped.Store.Get(t.Context(), k)
		}
		w.put(source, work{version: 1}.event())
		got := agent.take()
		if lines := shown(got); len(lines) < 2 || lines[0] != "spec create_request w1 v1" || lines[1] != "spec delete_request w1 v2 deleting" {
			t.Errorf("got %q", lines)
		}
	})
}
