package registration

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

var metricRow = regexp.MustCompile("^\\| `(hawser_hubsource_registration_[a-z_]+)` \\| (counter|gauge|histogram) \\| (.*?) \\| .+ \\|$")

// docs/metrics.md and the registry have the same metrics.
func TestMetrics_AreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for line := range strings.Lines(string(doc)) {
		if m := metricRow.FindStringSubmatch(strings.TrimSpace(line)); m != nil && !strings.Contains(m[1], "_controllers_") {
			labels := strings.Split(strings.NewReplacer("`", "", " ", "", "–", "").Replace(m[3]), ",")
			slices.Sort(labels)
			want[m[1]] = m[2] + " " + strings.Join(labels, ",")
		}
	}
	inBubble(t, func(b *bench, _ *Config) { b.joined(cluster1) }, func(b *bench) {
		b.request(parsed(b, createdEvent, cluster1, obj{"metadata": obj{"namespace": cluster1, "name": "e"}}))
		b.server.renewed(&hawserv1.LeaseRenewals{Renewals: []*hawserv1.LeaseRenewal{{Cluster: cluster1}}})
		b.wait(0)
		families, err := b.registry.Gather()
		if err != nil {
			b.Fatal(err)
		}
		for _, f := range families {
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
	})
}
