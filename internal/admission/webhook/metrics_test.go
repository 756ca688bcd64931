package webhook

import (
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var metricRow = regexp.MustCompile("^\\| `(hawser_admission_[a-z_]+)` \\| (counter|gauge|histogram) \\| (.*?) \\| (.+) \\|$")

// TestMetrics_AreDocumented: docs/metrics.md and the registry have the same metrics.
func TestMetrics_AreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for line := range strings.Lines(string(doc)) {
		m := metricRow.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		labels := strings.Split(strings.NewReplacer("`", "", " ", "", "–", "").Replace(m[3]), ",")
		slices.Sort(labels)
		want[m[1]] = m[2] + " " + strings.Join(labels, ",")
		for _, r := range []result{resultAdmitted, resultRejected, resultFailed, resultMalformed, resultOverloaded, resultPanicked} {
			if strings.HasSuffix(m[1], "requests_total") && !strings.Contains(m[4], "`"+string(r)+"`") {
				t.Errorf("docs/metrics.md does not name the result %s", r)
			}
		}
	}
	f := newFixture(t, denied, slog.New(slog.DiscardHandler))
	f.post(Path, review("CREATE", "")) // metrics with labels appear when they count
	families, err := f.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		var labels []string
		for _, p := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, p.GetName())
		}
		slices.Sort(labels)
		if got := strings.ToLower(family.GetType().String()) + " " + strings.Join(labels, ","); want[family.GetName()] != got {
			t.Errorf("%s is %q, docs/metrics.md says %q", family.GetName(), got, want[family.GetName()])
		}
		delete(want, family.GetName())
	}
	for name := range want {
		t.Errorf("%s is documented and does not exist", name)
	}
}
