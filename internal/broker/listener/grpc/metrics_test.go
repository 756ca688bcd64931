package grpc_test

import (
	"io"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/hawser-io/hawser/internal/broker/authz"
	"github.com/hawser-io/hawser/internal/broker/listener/grpc"
	"github.com/hawser-io/hawser/internal/testkit/syncbuffer"
)

var row = regexp.MustCompile("(?m)^\\| `(hawser_listener_[a-z_]+)` \\| (counter|gauge) \\| (.*?) \\| .+ \\|$")

// TestMetrics_AreDocumented checks that docs/metrics.md and the registry agree.
func TestMetrics_AreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		want[m[1]] = m[2] + " " + strings.NewReplacer("`", "", " ", "", "–", "").Replace(m[3])
	}
	registry := prometheus.NewRegistry()
	var log syncbuffer.Buffer
	f, ca := limited(t, accepts, func(c *grpc.Config) {
		c.Registry, c.Log = registry, slog.New(slog.NewTextHandler(&log, nil))
	})
	// A metric with labels appears with its first value.
	w := openWire(t, f.addr, ca.Anonymous())
	for range 200 {
		w.data(w.call(authz.HealthCheck), true, begin(0))
	}
	w.ended()
	raw := openTCP(t, f.addr)
	if _, err := raw.Write([]byte("no TLS at all")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, raw); err != nil {
		t.Errorf("after a bad handshake: %v", err)
	}
	// The server closes the connection before it counts the handshake, so the client may see the end first.
	until(t, "a handshake is counted as refused", &log, func() bool {
		families, err := registry.Gather()
		return err == nil && slices.ContainsFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "hawser_listener_rejected_handshakes_total" })
	})
	if _, err := grpc_health_v1.NewHealthClient(dial(t, f.addr, ca.Client(agent1))).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
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
		if f.GetName() == "hawser_listener_connections" && f.GetMetric()[0].GetLabel()[0].GetValue() == "agent" && f.GetMetric()[0].GetLabel()[1].GetValue() == "grpc" && f.GetMetric()[0].GetGauge().GetValue() != 1 {
			t.Errorf("%v connections of agents", f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/metrics.md (-) and the registry (+) differ:\n%s", diff)
	}
}
