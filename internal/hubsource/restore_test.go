package hubsource

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/hubsource/core"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// backUp returns a function that restores the present state of the hub.
func (h *fakeHub) backUp() (restore func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rv, objects := h.rv, map[string]map[string]object{}
	for resource, all := range h.objects {
		objects[resource] = map[string]object{}
		for key, o := range all {
			objects[resource][key] = deepCopy(o)
		}
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.rv, h.objects = rv, objects
		h.faults.lags, h.faults.since = false, nil
		for w := range h.watches {
			w.stop()
		}
	}
}

// state returns the state that the source has saved on the hub.
func (b *bench) state() core.SavedState {
	b.hub.mu.Lock()
	defer b.hub.mu.Unlock()
	data := map[string]string{}
	if o := b.hub.objects["configmaps"]["hawser/"+StateName("hub")]; o != nil {
		fields, _ := o["data"].(object)
		for k, v := range fields {
			data[k], _ = v.(string)
		}
	}
	return core.StateOf(data)
}

// gauge returns a gauge of a source.
func gauge(b *bench, r *running, name string) string {
	b.Helper()
	for _, line := range gather(b, r) {
		if v, ok := strings.CutPrefix(line, metricPrefix+name+" "); ok {
			return v
		}
	}
	b.Fatalf("no metric %s", name)
	return ""
}

func TestSource_DeletesWorkRemovedWhileDown(t *testing.T) {
	inBubble(t, func(b *bench) {
		a := b.agent("c1")
		s := b.source()
		b.hub.apply(example("c1", "torn"))
		b.hub.apply(example("c1", "kept"))
		b.settle(2 * time.Minute)
		_ = s.stop()
		b.hub.tear("c1/torn")
		s = b.source()
		b.settle(time.Minute)
		if !strings.HasSuffix(a.history(), "torn deleted") || b.records() != "c1/kept" {
			b.Errorf("the agent saw %s, the broker has %s", a.history(), b.records())
		}
		if gauge(b, s, "unsynced_clusters") != "0" || gauge(b, s, "withheld_works") != "0" {
			b.Errorf("metrics are %v", gather(b, s))
		}
	})
}

func TestSource_ResumesFromItsCursorWithoutRequests(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.agent("c1")
		s := b.source()
		for i := range 5 {
			b.hub.apply(example("c1", fmt.Sprint("w", i)))
		}
		b.settle(2 * time.Minute)
		_ = s.stop()
		cursor := b.state().Cursor
		if cursor == "" {
			b.Fatal("no cursor is on the hub")
		}
		patches := b.hub.called("PATCH manifestworks")
		before := b.broker.Store.ClusterHead(codec.ManifestBundles, "c1")
		s = b.source()
		b.settle(2 * time.Minute)
		if patched := b.hub.called("PATCH manifestworks") - patches; patched != 0 {
			b.Errorf("a restart in sync made %d patches", patched)
		}
		if now := b.broker.Store.ClusterHead(codec.ManifestBundles, "c1"); now != before {
			b.Errorf("a restart in sync changed the works of the cluster from %+v to %+v", before, now)
		}
		for _, line := range counters(b, s) {
			if strings.HasPrefix(line, metricPrefix+"publishes_total") || strings.Contains(line, "operation=request_statuses") {
				b.Errorf("a restart in sync counts %s", line)
			}
		}
		if gauge(b, s, "unsynced_clusters") != "0" {
			b.Errorf("metrics are %v", gather(b, s))
		}
	})
}

// A hub is restored: some works are older, some are missing, and a deleted one is back.
func TestSource_SurvivesARestoreOfTheHub(t *testing.T) {
	for name, running := range map[string]bool{"while it is down": false, "while it runs": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				a := b.agent("c1")
				s := b.source()
				b.hub.apply(example("c1", "older"))
				b.hub.apply(example("c1", "back"))
				b.settle(2 * time.Minute)
				restore := b.hub.backUp()
				b.hub.apply(example("c1", "older", data("b")))
				b.hub.apply(example("c1", "lost"))
				b.hub.remove("manifestworks", "c1/back")
				b.settle(2 * time.Minute)
				if !running {
					_ = s.stop()
				}
				restore()
				if !running {
					s = b.source()
				}
				b.settle(3 * time.Minute)
				b.shown("c1/older", 1)
				b.shown("c1/back", 1)
				if got := b.records(); !strings.Contains(got, "c1/back") || !strings.Contains(got, "c1/lost") {
					b.Errorf("the broker has %s", got)
				}
				if strings.Contains(a.history(), "lost deleted") {
					b.Errorf("the agent saw %s", a.history())
				}
				if gauge(b, s, "withheld_works") != "1" || gauge(b, s, "withheld_clusters") != "1" {
					b.Errorf("metrics are %v", gather(b, s))
				}
				if w := b.state().Withheld; len(w) != 1 || w[0] != "*" {
					b.Errorf("withheld is %v", w)
				}

				// Another process starts later, and still withholds the deletion.
				_ = s.stop()
				for i := range 20 {
					b.hub.apply(example("c2", fmt.Sprint("w", i)))
				}
				s = b.source()
				b.settle(3 * time.Minute)
				if !strings.Contains(b.records(), "c1/lost") || gauge(b, s, "withheld_works") != "1" {
					b.Errorf("the broker has %s", b.records())
				}

				b.hub.apply(example("c1", "lost")) // the hub has a work of that name again
				b.settle(3 * time.Minute)
				if gauge(b, s, "withheld_works") != "0" || len(b.state().Withheld) != 0 {
					b.Errorf("still withheld: %v, %v", b.state(), gather(b, s))
				}
				b.shown("c1/lost", 1)
			})
		})
	}
}

func TestSource_RepublishesMissingWorks(t *testing.T) {
	inBubble(t, func(b *bench) {
		s := b.source()
		b.hub.apply(example("c1", "w"))
		b.settle(2 * time.Minute)
		_ = s.stop()
		w := b.hub.work("c1/w")
		_, err := b.broker.Store.Commit(b.Context(), []store.Op{{
			Kind: store.Drop, Owner: "hub", At: time.Now(),
			Key: store.Key{DataType: codec.ManifestBundles, Cluster: "c1", ResourceID: string(w.UID)},
		}})
		if err != nil {
			b.Fatal(err)
		}
		s = b.source()
		b.settle(2 * time.Minute)
		if b.records() != "c1/w" {
			b.Errorf("the broker has %q, metrics %v", b.records(), gather(b, s))
		}
		tag, err := manifestwork.SpecTag(w)
		if err != nil {
			b.Fatal(err)
		}
		r, err := b.broker.Store.Get(b.Context(), store.Key{DataType: codec.ManifestBundles, Cluster: "c1", ResourceID: string(w.UID)})
		if err != nil || r.Tag != tag {
			b.Errorf("the record has tag %s, error %v, the work %s", r.Tag, err, tag)
		}
	})
}

func TestSource_ErrorNamesMissingDefinition(t *testing.T) {
	for forbidden, want := range map[string]string{"GET configmaps": "rbac.yaml", "GET namespaces": "kube-system"} {
		t.Run(forbidden, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				b.hub.forbidden[forbidden] = true
				s := b.source()
				<-s.ended
				if err := s.stop(); err == nil || !strings.Contains(err.Error(), want) {
					b.Errorf("ended with %v", err)
				}
			})
		})
	}
}

func TestSource_KeepsItsStateInMemoryIfItMust(t *testing.T) {
	k := &stateStore{}
	if _, err := k.save(t.Context(), core.SavedState{Cursor: "e/t/7", Withheld: []string{"c1"}}); err != nil {
		t.Fatal(err)
	}
	s, err := k.load(t.Context())
	if err != nil || s.Cursor != "" || len(s.Withheld) != 1 {
		t.Errorf("kept %+v, error %v", s, err)
	}
}

// Another version of the ConfigMap, or a missing ConfigMap, shows that the hub went back.
func TestStateStore_ReturnsVersionOfConfigMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub := newFakeHub(t)
		k := &stateStore{maps: hub.configMaps(), namespace: "hawser", name: StateName("hub")}
		is := func(want string) {
			if got, err := k.version(t.Context()); err != nil || got != want {
				t.Errorf("the version is %q, want %q, error %v", got, want, err)
			}
		}
		is("")
		first, err := k.save(t.Context(), core.SavedState{Cursor: "e/t/7"})
		if err != nil || first == "" {
			t.Fatalf("saved as %q, error %v", first, err)
		}
		is(first)
		if s, err := k.load(t.Context()); err != nil || s.Version != first {
			t.Errorf("read %+v, error %v", s, err)
		}
		hub.remove("configmaps", "hawser/"+StateName("hub"))
		is("")
	})
}
