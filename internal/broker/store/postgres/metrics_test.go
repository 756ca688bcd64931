package postgres_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/postgres"
	local "github.com/hawser-io/hawser/internal/local/postgres"
)

// metricRow is a row of the section PostgreSQL.
var metricRow = regexp.MustCompile("(?m)^\\| `(hawser_database_[a-z_]+)` \\| (counter|gauge) \\| (.*?) \\| .+ \\|$")

// TestMetrics_AreDocumented: docs/metrics.md and the registry have the same metrics, and docs/operations/postgresql.md
// has each kind of error.
func TestMetrics_AreDocumented(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	registry := prometheus.NewRegistry()
	open(t, postgres.Options{URL: s.URL(newDatabase(t, s)), Registry: registry})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	page, err := os.ReadFile(root + "/docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	errors, err := os.ReadFile(root + "/docs/operations/postgresql.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		var labels []string
		for _, p := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, p.GetName())
		}
		got = append(got, f.GetName()+" "+strings.ToLower(f.GetType().String())+" "+strings.Join(labels, ","))
		for _, m := range f.GetMetric() {
			if f.GetName() == "hawser_database_errors_total" && !strings.Contains(string(errors), "| `"+m.GetLabel()[0].GetValue()+"` |") {
				t.Errorf("docs/operations/postgresql.md has no error of kind %s", m.GetLabel()[0].GetValue())
			}
		}
	}
	for _, m := range metricRow.FindAllStringSubmatch(string(page), -1) {
		want = append(want, m[1]+" "+m[2]+" "+strings.NewReplacer("`", "", "–", "").Replace(m[3]))
	}
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("docs/metrics.md (-) and the registry (+) differ:\n%s", d)
	}
}

// TestMetrics_WhileServerIsDown: the errors are counted by kind, and the lag grows until the server is back.
func TestMetrics_WhileServerIsDown(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	registry := prometheus.NewRegistry()
	st := open(t, postgres.Options{URL: s.URL(local.Superuser), Registry: registry})
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Commit(t.Context(), []store.Op{work(1, 1, nil)}); err == nil {
		t.Error("a commit without a server")
	}
	metric := func(name string, labels ...string) (v float64) { return gathered(t, registry, name, labels...) }
	if metric("hawser_database_errors_total", "unreachable") == 0 {
		t.Error("no error was counted")
	}
	down := metric("hawser_database_feed_lag_seconds")
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return metric("hawser_database_feed_lag_seconds") < down })
}

// TestMetrics_SynchronousStandby: the gauge follows the settings of the server while the broker runs.
func TestMetrics_SynchronousStandby(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	registry := prometheus.NewRegistry()
	st := open(t, postgres.Options{URL: s.URL(local.Superuser), Registry: registry})
	for value, setting := range []string{"''", "'*'", "''"} {
		execute(t, s, local.Superuser, "ALTER SYSTEM SET synchronous_standby_names = "+setting, "SELECT pg_reload_conf()")
		// No call of this test commits, which would wait for a standby.
		eventually(t, func() bool {
			if err := st.Look(t.Context()); err != nil {
				t.Fatal(err)
			}
			return gathered(t, registry, "hawser_database_synchronous_standby") == float64(value%2)
		})
	}
}

// gathered returns the value of a metric with these values of its labels.
func gathered(t *testing.T, registry *prometheus.Registry, name string, labels ...string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && slices.EqualFunc(m.GetLabel(), labels, func(l *dto.LabelPair, v string) bool { return l.GetValue() == v }) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s %q", name, labels)
	return 0
}

// eventually waits until a condition holds.
func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for deadline := time.Now().Add(time.Minute); !holds(); <-again.C {
		if time.Now().After(deadline) {
			t.Fatal("the condition does not hold after a minute")
		}
	}
}
