package hubsource

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/hubsource/core"
	"github.com/hawser-io/hawser/internal/leader"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

func TestSource_CarriesAWorkThereAndItsStatusBack(t *testing.T) {
	inBubble(t, func(b *bench) {
		a := b.agent("c1")
		s := b.source()
		b.hub.apply(example("c1", "w", func(w *workv1.ManifestWork) { w.Labels = map[string]string{"a": "1"} }))
		b.settle(time.Second)
		w := b.shown("c1/w", 1)
		if !hasFinalizer(w) || len(w.Status.ResourceStatus.Manifests) != 1 {
			b.Errorf("the work is %+v", w)
		}
		b.hub.apply(example("c1", "w", func(w *workv1.ManifestWork) { w.Labels = map[string]string{"a": "2"} }))
		b.hub.apply(example("c1", "w", data("more"), func(w *workv1.ManifestWork) { w.Labels = map[string]string{"a": "2"} }))
		b.settle(time.Second)
		b.shown("c1/w", 2)
		if a.held["w"].Work.Labels["a"] != "2" || len(a.held["w"].Work.Spec.Workload.Manifests) != 2 {
			b.Errorf("the agent holds %+v", a.held["w"].Work)
		}
		b.hub.apply(example("c1", "w", data("more"), func(w *workv1.ManifestWork) { w.Labels = map[string]string{"a": "3"} }))
		b.settle(time.Second)
		if a.held["w"].Work.Labels["a"] != "3" {
			b.Errorf("a change of labels alone did not arrive: %+v", a.held["w"].Work.Labels)
		}
		b.hub.remove("manifestworks", "c1/w")
		b.settle(time.Second)
		if w := b.hub.work("c1/w"); w != nil {
			b.Errorf("the work is still there: %+v", w)
		}
		if !strings.HasSuffix(a.history(), "w deleted") {
			b.Errorf("the agent saw %s", a.history())
		}
		if err := s.stop(); err != nil {
			b.Errorf("ended with %v", err)
		}
	})
}

func TestSource_MakesNoRequestAtRest(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.agent("c1")
		b.source()
		for i := range 5 {
			b.hub.apply(example("c1", fmt.Sprint("w", i)))
		}
		b.settle(2 * time.Minute) // the source reads the hub's position once more
		patches, gets := b.hub.called("PATCH manifestworks"), b.hub.called("GET manifestworks")
		if patches != 10 { // one finalizer and one status each
			b.Errorf("%d patches for 5 works", patches)
		}
		b.settle(time.Hour)
		if p, g := b.hub.called("PATCH manifestworks"), b.hub.called("GET manifestworks"); p != patches || g != gets {
			b.Errorf("%d patches and %d gets in an hour without changes", p-patches, g-gets)
		}
	})
}

func TestSource_CatchesUpWhenTheBrokerWasAway(t *testing.T) {
	inBubble(t, func(b *bench) {
		a := b.agent("c1")
		s := b.source()
		for _, name := range []string{"changed", "deleted", "reported"} {
			b.hub.apply(example("c1", name))
		}
		b.settle(time.Second)
		s.dialer.Cut()
		b.settle(time.Millisecond) // until the source notices the cut
		b.hub.apply(example("c1", "changed", data("a")))
		b.hub.apply(example("c1", "changed", data("b")))
		b.hub.remove("manifestworks", "c1/deleted")
		b.hub.apply(example("c1", "created"))
		a.send("reported", "during the outage")
		b.settle(time.Minute)
		if w := b.hub.work("c1/created"); hasFinalizer(w) {
			b.Error("a finalizer without a broker: the work could not be deleted")
		}
		s.dialer.Restore()
		b.settle(time.Minute)
		b.shown("c1/changed", 3)
		b.shown("c1/created", 1)
		if w := b.shown("c1/reported", 1); w.Status.Conditions[0].Message != "during the outage" {
			b.Errorf("the hub shows %+v", w.Status.Conditions)
		}
		if b.hub.work("c1/deleted") != nil {
			b.Error("the deleted work is still there")
		}
	})
}

func TestSource_CatchesUpWhenTheHubWasAway(t *testing.T) {
	inBubble(t, func(b *bench) {
		a := b.agent("c1")
		b.source()
		b.hub.apply(example("c1", "w"))
		b.settle(time.Second)
		b.hub.setDown(true)
		for i := range 100 {
			a.send("w", fmt.Sprint("message ", i))
			b.settle(time.Second)
		}
		b.hub.setDown(false)
		b.settle(time.Minute)
		if w := b.shown("c1/w", 1); w.Status.Conditions[0].Message != "message 99" {
			b.Errorf("the hub shows %+v", w.Status.Conditions)
		}
	})
}

func TestSource_FindsChangesMadeWhileDown(t *testing.T) {
	inBubble(t, func(b *bench) {
		a := b.agent("c1")
		s := b.source()
		for _, name := range []string{"deleted", "reported", "confirmed"} {
			b.hub.apply(example("c1", name))
		}
		b.settle(time.Second)
		b.hub.setDown(true) // the agent's report arrives at the source, but not at the hub
		b.hub.remove("manifestworks", "c1/confirmed")
		if err := s.stop(); err != nil {
			b.Fatal(err)
		}
		b.hub.setDown(false)
		b.hub.remove("manifestworks", "c1/deleted")
		a.send("reported", "no source was connected")
		b.source()
		b.settle(time.Minute)
		if w := b.shown("c1/reported", 1); w.Status.Conditions[0].Message != "no source was connected" {
			b.Errorf("the hub shows %+v", w.Status.Conditions)
		}
		for _, name := range []string{"deleted", "confirmed"} {
			if b.hub.work("c1/"+name) != nil {
				b.Errorf("%s is still there", name)
			}
		}
	})
}

func TestSource_SurvivesEventsItCannotRead(t *testing.T) {
	inBubble(t, func(b *bench) {
		s := b.source()
		good := codec.Builder{
			ID: "1", Source: "agent", Time: time.Now(), Cluster: "c1", ContentType: codec.ContentTypeJSON, Data: []byte("{}"),
			Type:       codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Status, Action: codec.UpdateRequest}.String(),
			Extensions: map[string]any{codec.ExtResourceID: "u", codec.ExtResourceVersion: int32(1), codec.ExtSequenceID: "7"},
		}
		sh := newShell(shellConfig{id: "hub", all: true, store: &stateStore{}, log: slog.New(slog.DiscardHandler), metrics: s.source.metrics})
		for name, change := range map[string]func(*codec.Builder){
			"spec":         func(e *codec.Builder) { e.Type = strings.Replace(e.Type, ".status.", ".spec.", 1) },
			"another type": func(e *codec.Builder) { e.Type = codec.TypeCheckpoint },
			"no id":        func(e *codec.Builder) { delete(e.Extensions, codec.ExtResourceID) },
			"no JSON":      func(e *codec.Builder) { e.Data = []byte("{") },
			"no metadata":  func(e *codec.Builder) { e.Extensions[codec.ExtMetadata] = "[" },
		} {
			bad := good
			bad.Extensions = maps.Clone(good.Extensions)
			change(&bad)
			e, err := bad.Event()
			if err != nil {
				b.Fatalf("%s: %v", name, err)
			}
			if err := (sessionHandler{sh, 1}).Handle(b.Context(), e); err != nil {
				b.Errorf("%s: an event that is merely bad ends the session: %v", name, err)
			}
		}
		if n := sh.core.Stats().Works; n != 0 {
			b.Errorf("%d works kept", n)
		}
		sh.shutDown()
	})
}

func TestSource_DeletesWorkRemovedWithoutFinalizer(t *testing.T) {
	inBubble(t, func(b *bench) {
		a := b.agent("c1")
		b.source()
		b.hub.apply(example("c1", "w"))
		b.settle(time.Second)
		b.hub.tear("c1/w")
		b.settle(time.Second)
		if !strings.HasSuffix(a.history(), "w deleted") {
			b.Errorf("the agent saw %s", a.history())
		}
	})
}

func TestSource_ShowsAnOversizedChangeAndKeepsTheAgentsStatus(t *testing.T) {
	inBubble(t, func(b *bench) {
		a := b.agent("c1")
		b.source()
		b.hub.apply(example("c1", "w"))
		b.settle(time.Second)
		b.hub.apply(example("c1", "w", data(strings.Repeat("x", manifestwork.MaxManifestsSize))))
		b.settle(time.Second)
		a.send("w", "still at the first")
		b.settle(time.Second)
		w := b.hub.work("c1/w")
		d := delivered(w.Status)
		if d == nil || d.Reason != core.ReasonTooLarge || d.ObservedGeneration != 2 || w.Status.Conditions[0].Message != "still at the first" {
			b.Fatalf("the hub shows %+v", w.Status.Conditions)
		}
		if h := a.history(); h != "w 1" {
			b.Errorf("the agent saw %s", h)
		}
		b.hub.apply(example("c1", "w", data("small")))
		b.settle(time.Second)
		b.wantDelivered("c1/w")
	})
}

func TestSource_ReleasesAClusterWithoutDeletingAnything(t *testing.T) {
	inBubble(t, func(b *bench) {
		for _, c := range []string{"c1", "c2"} {
			b.hub.label("managedclusters", c, map[string]string{"served": "yes"})
			b.hub.apply(example(c, "w"))
		}
		b.hub.apply(example("c3", "w")) // the cluster is not selected
		a := b.agent("c1")
		selected := func(c *Config) { c.Selection.Clusters = "served=yes" }
		s := b.source(selected)
		b.settle(time.Second)
		if r := b.records(); r != "c1/w c2/w" {
			b.Fatalf("records are %s", r)
		}
		b.hub.label("managedclusters", "c1", map[string]string{"served": "no"})
		b.settle(time.Second)
		if r := b.records(); r != "c2/w" {
			b.Errorf("after c1 left the selection, records are %s", r)
		}
		if err := s.stop(); err != nil {
			b.Fatal(err)
		}
		b.hub.label("managedclusters", "c2", nil) // no source is running
		b.source(selected)
		b.settle(time.Second)
		if r := b.records(); r != "" {
			b.Errorf("after c2 left the selection too, records are %s", r)
		}
		if h := a.history(); h != "w 1" {
			b.Errorf("the agent of a released cluster saw %s", h)
		}
		b.hub.label("managedclusters", "c1", map[string]string{"served": "yes"})
		b.settle(time.Second)
		if r := b.records(); r != "c1/w" {
			b.Errorf("after c1 connected again, the records are %s", r)
		}
		b.shown("c1/w", 1)
	})
}

func TestSource_SelectsByNamespaceLabels(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.hub.absent["managedclusters"] = true
		b.hub.label("namespaces", "c1", map[string]string{"cluster": "true"})
		b.hub.apply(example("c1", "w"))
		b.hub.apply(example("c2", "w"))
		b.source(func(c *Config) { c.Selection.Namespaces = "cluster" })
		b.settle(time.Second)
		if r := b.records(); r != "c1/w" {
			b.Errorf("records are %s", r)
		}
	})
}

func TestSource_ReportsMissingRights(t *testing.T) {
	for name, c := range map[string]struct {
		hub    func(*fakeHub)
		config func(*Config)
		want   string
	}{
		"no ManifestWork API":   {func(h *fakeHub) { h.absent["manifestworks"] = true }, func(*Config) {}, "install the CRD"},
		"no ManagedCluster API": {func(h *fakeHub) { h.absent["managedclusters"] = true }, func(c *Config) { c.Selection.Clusters = "a=b" }, "--namespace-selector"},
		"no permission":         {func(h *fakeHub) { h.forbidden["manifestworks"] = true }, func(*Config) {}, "service account"},
		"no lease":              {func(h *fakeHub) { h.forbidden["leases"] = true }, func(*Config) {}, "service account"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				c.hub(b.hub)
				s := b.source(elected(b, "only", nil), c.config)
				<-s.ended
				if err := s.stop(); err == nil || !strings.Contains(err.Error(), c.want) {
					b.Errorf("ended with %v", err)
				}
			})
		})
	}
}

// A missing role is reported as such, from the first log line on.
func TestSource_DistinguishesMissingRoleFromDeadHub(t *testing.T) {
	inBubble(t, func(b *bench) {
		var lines bytes.Buffer
		b.hub.forbidden["leases"] = true
		s := b.source(elected(b, "only", nil), func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&lines, nil)) })
		<-s.ended
		if err := s.stop(); err == nil {
			b.Error("it ended without an error")
		}
		if out := lines.String(); !strings.Contains(out, "A role is missing") || strings.Contains(out, "does not answer") {
			b.Errorf("log:\n%s", out)
		}
	})
}

func TestSource_WaitsForUnavailableHub(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.hub.setDown(true)
		b.agent("c1")
		b.source()
		b.settle(time.Minute)
		b.hub.setDown(false)
		b.hub.apply(example("c1", "w"))
		b.settle(time.Minute)
		b.shown("c1/w", 1)
	})
}

func TestSource_HandsOverWhenTheLeaderStops(t *testing.T) {
	inBubble(t, func(b *bench) {
		a := b.agent("c1")
		first := b.source(elected(b, "first", nil))
		b.settle(5 * time.Second)
		second := b.source(elected(b, "second", nil))
		b.hub.apply(example("c1", "w"))
		b.settle(5 * time.Second)
		b.shown("c1/w", 1)
		if err := second.source.cfg.Health.Ready(); err != nil {
			b.Errorf("the replica in waiting is not ready: %v", err)
		}
		if second.source.connected.Load() != nil {
			b.Error("two replicas work")
		}
		if err := first.stop(); err != nil {
			b.Errorf("the leader ended with %v", err)
		}
		b.hub.apply(example("c1", "w", data("more")))
		b.settle(5 * time.Second) // well before the Lease expires
		b.shown("c1/w", 2)
		if h := a.history(); h != "w 1, w 2" {
			b.Errorf("the agent saw %s", h)
		}
	})
}

func TestSource_IsNotReadyWithoutLeader(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.hub.forbidden["POST leases"] = true
		s := b.source(elected(b, "only", nil))
		ready := s.source.cfg.Health.Ready
		b.settle(time.Second)
		if err := ready(); err == nil || !strings.Contains(err.Error(), "hawser/hub-source") {
			b.Errorf("readiness is %v", err)
		}
		b.hub.mu.Lock()
		delete(b.hub.forbidden, "POST leases")
		b.hub.mu.Unlock()
		b.settle(time.Minute)
		if err := ready(); err != nil {
			b.Errorf("not ready: %v", err)
		}
	})
}

func TestSource_EndsWithoutLease(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.agent("c1")
		cut := false
		first := b.source(elected(b, "first", &cut))
		b.settle(5 * time.Second)
		second := b.source(elected(b, "second", nil))
		b.hub.mu.Lock()
		cut = true
		b.hub.mu.Unlock()
		<-first.ended
		if second.source.connected.Load() != nil {
			b.Error("the second replica works before the first has ended")
		}
		if err := first.stop(); !errors.Is(err, leader.ErrLost) {
			b.Errorf("the leader ended with %v", err)
		}
		b.settle(20 * time.Second)
		b.hub.apply(example("c1", "w"))
		b.settle(5 * time.Second)
		b.shown("c1/w", 1)
	})
}

func TestSource_ServesManyClustersAtOnce(t *testing.T) {
	inBubble(t, func(b *bench) {
		agents := map[string]*fakeAgent{}
		for i := range 20 {
			c := fmt.Sprintf("c%02d", i)
			agents[c] = b.agent(c)
			for j := range 20 {
				b.hub.apply(example(c, fmt.Sprint("w", j)))
			}
		}
		s := b.source()
		b.settle(10 * time.Second)
		for _, c := range slices.Sorted(maps.Keys(agents)) {
			for j := range 20 {
				b.shown(fmt.Sprintf("%s/w%d", c, j), 1)
			}
		}
		for _, m := range gather(b, s) {
			if strings.HasPrefix(m, metricPrefix+"works ") && m != metricPrefix+"works 400" {
				b.Error(m)
			}
		}
	})
}
