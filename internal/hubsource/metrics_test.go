package hubsource

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/hubsource/core"
)

var metricRow = regexp.MustCompile("^\\| `(hawser_hubsource_[a-z_]+)` \\| (counter|gauge|histogram) \\| (.*?) \\| .+ \\|$")

// ofRegistrationControllers matches the metrics of packages with such a test of their own.
var ofRegistrationControllers = regexp.MustCompile("^hawser_hubsource_(registration|csrs|signer)_")

// TestMetrics_AreDocumented: docs/metrics.md and the registry have the same metrics.
func TestMetrics_AreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for line := range strings.Lines(string(doc)) {
		if m := metricRow.FindStringSubmatch(strings.TrimSpace(line)); m != nil && !ofRegistrationControllers.MatchString(m[1]) {
			labels := strings.Split(strings.NewReplacer("`", "", " ", "", "–", "").Replace(m[3]), ",")
			slices.Sort(labels)
			want[m[1]] = m[2] + " " + strings.Join(labels, ",")
		}
	}
	inBubble(t, func(b *bench) {
		b.agent("c1")
		b.hub.apply(example("c1", "w")) // metrics with labels appear when they count
		s := b.source()
		b.settle(time.Second)
		families, err := s.source.cfg.Registerer.(*prometheus.Registry).Gather()
		if err != nil {
			b.Fatal(err)
		}
		for _, f := range families {
			if !strings.HasPrefix(f.GetName(), metricPrefix) {
				continue
			}
			var labels []string
			for _, p := range f.GetMetric()[0].GetLabel() {
				labels = append(labels, p.GetName())
			}
			slices.Sort(labels)
			if got := strings.ToLower(f.GetType().String()) + " " + strings.Join(labels, ","); want[f.GetName()] != got {
				b.Errorf("%s is %q, docs/metrics.md says %q", f.GetName(), got, want[f.GetName()])
			}
			delete(want, f.GetName())
		}
		for name := range want {
			b.Errorf("%s is documented and does not exist", name)
		}
		for _, reason := range core.Reasons {
			if !strings.Contains(string(doc), "`"+reason+"`") {
				b.Errorf("docs/metrics.md does not name the reason %s", reason)
			}
		}
	})
}

// counters returns the counters of a source that count something, with their
// labels.
func counters(b *bench, r *running) []string {
	b.Helper()
	families, err := r.source.cfg.Registerer.(*prometheus.Registry).Gather()
	if err != nil {
		b.Fatal(err)
	}
	var lines []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.Counter == nil || m.GetCounter().GetValue() == 0 {
				continue
			}
			line := f.GetName()
			for _, l := range m.GetLabel() {
				line += " " + l.GetName() + "=" + l.GetValue()
			}
			lines = append(lines, line)
		}
	}
	return lines
}
