package broker_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

var row = regexp.MustCompile("^\\| `(hawser_broker_[a-z_]+)` \\| (counter|gauge|histogram) \\| (.*?) \\| .+ \\|$")

// ofOthers matches the metrics of the broker that other packages register.
var ofOthers = regexp.MustCompile("^hawser_broker_(audit|token)_")

// documented reads the tables of docs/metrics.md. The result maps a name to "type labels".
func documented(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if m := row.FindStringSubmatch(strings.TrimSpace(line)); m != nil && !ofOthers.MatchString(m[1]) {
			labels := strings.Split(strings.NewReplacer("`", "", " ", "", "–", "").Replace(m[3]), ",")
			slices.Sort(labels)
			rows[m[1]] = m[2] + " " + strings.Join(labels, ",")
		}
	}
	return rows
}

// TestMetrics_AreDocumented checks that docs/metrics.md and the registry agree.
func TestMetrics_AreDocumented(t *testing.T) {
	registry := prometheus.NewRegistry()
	cfg := ruled(identity.Limits{Works: 1}, identity.Limits{})
	cfg.Registry, cfg.Registration = registry, "hub"
	inWorld(t, cfg, func(w *world) {
		// A metric with labels appears with its first value.
		w.hub().snapshot(false, clusterOf("c1", 1, true))
		w.watch(w.agent("c1"), codec.ManagedClusters, "c1")
		w.put(w.agent("c1"), leaseOf("c1", ""))
		agent, source := w.subscribe(w.agent("c1")), w.subscribe(w.source("src"))
		w.put(source.peer, work{version: 1}.event())
		w.tries("one too many", "overloaded resourceid", source.peer, work{id: "w2", version: 1}.event())
		w.put(agent.peer, w.event(report{version: 1}))
		agent.take()
		source.take()
		ours := w.open(w.agent("c1"), hawser)
		w.request(ours)
		c := ours.checkpoint()
		ours.mustAck(c)
		ours.cancel()
		w.open(w.source("src"), from(codec.Cursor{StoreID: c.Cursor.StoreID, Incarnation: c.Cursor.Incarnation})).
			mustCompare(codec.SyncReport{AllClusters: true, Clusters: []codec.ClusterSyncReport{{Cluster: "c1"}}})
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, f := range families {
			var labels []string
			for _, p := range f.GetMetric()[0].GetLabel() {
				labels = append(labels, p.GetName())
			}
			slices.Sort(labels)
			got[f.GetName()] = strings.ToLower(f.GetType().String()) + " " + strings.Join(labels, ",")
		}
		want := documented(t)
		for name, kind := range got {
			if want[name] != kind {
				t.Errorf("%s is %q, docs/metrics.md says %q", name, kind, want[name])
			}
		}
		for name := range want {
			if got[name] == "" {
				t.Errorf("%s is documented and does not exist", name)
			}
		}
	})
}

// TestMetrics_Count checks the values of metrics after some events.
func TestMetrics_Count(t *testing.T) {
	registry := prometheus.NewRegistry()
	inWorld(t, broker.Config{Registry: registry}, func(w *world) {
		agent := w.subscribe(w.agent("c1"))
		w.put(w.source("src"), work{version: 1}.event())
		w.put(w.source("src"), work{version: 1}.event())
		if _, err := w.Publish(w.Context(), w.source("other"), work{version: 1}.event(), ""); transport.CodeOf(err) != transport.CodeDenied {
			t.Fatal(err)
		}
		agent.expect("spec create_request w1 v1")
		w.request(agent, codec.ResourceVersion{ResourceID: "orphan"})
		agent.take()
		for name, want := range map[string]float64{
			`hawser_broker_publishes_total kind=spec result=accepted`:    1,
			`hawser_broker_publishes_total kind=spec result=unchanged`:   1,
			`hawser_broker_publishes_total kind=spec result=denied`:      1,
			`hawser_broker_subscriptions role=agent transport=grpc`:      1,
			`hawser_broker_subscriptions role=source transport=grpc`:     0,
			`hawser_broker_deliveries_total subresource=spec`:            2,
			`hawser_broker_resyncs_total cause=request subresource=spec`: 2,
			`hawser_broker_orphan_works_total`:                           1,
			`hawser_broker_store_revision`:                               2,
			`hawser_broker_routed_revision`:                              2,
			`hawser_broker_delivery_queue_records`:                       0,
			`hawser_broker_queue_bytes`:                                  0,
			`hawser_broker_pending_list_bytes`:                           0,
			`hawser_broker_panics_total`:                                 0,
		} {
			if got := value(t, registry, name); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
	})
}

// value returns the value of the metric "name label=value ..." in a registry.
func value(t *testing.T, r *prometheus.Registry, wanted string) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, p := range m.GetLabel() {
				name += " " + p.GetName() + "=" + p.GetValue()
			}
			if name == wanted {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Errorf("no metric %s", wanted)
	return 0
}
