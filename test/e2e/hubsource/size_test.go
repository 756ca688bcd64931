package hubsource

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/hubsource"
	"github.com/hawser-io/hawser/internal/hubsource/core"
)

// counted runs a hub-source. count returns the sum of a metric, only of series with one of the labels if any are
// given.
func (h *hub) counted() (count func(metric string, labels ...string) int, stop func() error) {
	reg := prometheus.NewRegistry()
	stop = h.source(func(c *hubsource.Config) { c.Registerer = reg })
	return func(metric string, labels ...string) (n int) {
		h.Helper()
		families, err := reg.Gather()
		if err != nil {
			h.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if text := m.String(); f.GetName() == metric && !containsNone(text, labels) {
					n += int(m.GetCounter().GetValue() + m.GetGauge().GetValue())
				}
			}
		}
		return n
	}, stop
}

func containsNone(text string, labels []string) bool {
	for _, l := range labels {
		if strings.Contains(text, `"`+l+`"`) {
			return false
		}
	}
	return len(labels) > 0
}

// reportsTooLargeStatus checks statuses that are larger than the hub's etcd accepts. hub-source detects that
// before a request or by its answer, and Delivered reports it. Other statuses arrive. After a restart only the
// missed ones are sent again.
func reportsTooLargeStatus(h *hub) {
	count, stop := h.counted()
	for i := range 5 {
		h.create(fmt.Sprint("before-", i), "1")
		h.shows(fmt.Sprint("before-", i), "Applied", "as sent")
	}
	h.create("larger", strings.Repeat("x", 400<<10))
	h.create("full", strings.Repeat("x", 200<<10))
	h.patch("full", `{"metadata":{"annotations":{"`+corev1.LastAppliedConfigAnnotation+`":"`+strings.Repeat("a", 220<<10)+`"}}}`) // informers do not show it
	h.shows("larger", "Applied", "as sent")
	h.shows("full", "Applied", "as sent")
	refused := func() int { return count("hawser_hubsource_hub_requests_total", "error", "rejected") }
	before := refused()
	h.agent.report("larger", largeStatus(1_400_000))
	h.shows("larger", core.ConditionDelivered, "does not fit on the hub")
	if n := refused() - before; n != 0 {
		h.Errorf("%d refused requests for a status that was seen to be too large", n)
	}
	h.agent.report("full", largeStatus(1_250_000))
	w := h.shows("full", core.ConditionDelivered, "does not fit on the hub")
	if len(w.Status.ResourceStatus.Manifests) != 0 {
		h.Errorf("%d manifests are shown", len(w.Status.ResourceStatus.Manifests))
	}
	if n := refused() - before; n != 1 {
		h.Errorf("%d refused requests, want 1", n)
	}
	acks := count("hawser_hubsource_cluster_requests_total", "ack")
	h.create("beside", "1")
	h.shows("beside", "Applied", "as sent")
	h.Eventually(func() error {
		if n := count("hawser_hubsource_pending_statuses"); n != 0 || count("hawser_hubsource_cluster_requests_total", "ack") == acks {
			return fmt.Errorf("%d statuses wait, the broker received %d acks of the statuses that are on the hub, as before", n, acks)
		}
		return nil
	})
	if err := stop(); err != nil {
		h.Fatal(err)
	}
	h.agent.report("beside", status("missed", 1))
	count, stop = h.counted()
	h.shows("beside", "Applied", "missed")
	if n := count("hawser_hubsource_statuses_total"); n > 3 {
		h.Errorf("%d statuses came again, want the one that was missed", n)
	}
	for _, name := range []string{"larger", "full"} {
		h.shows(name, core.ConditionDelivered, "does not fit on the hub")
	}
	if n := refused(); n != 0 {
		h.Errorf("%d refused requests after the restart", n)
	}
	h.agent.report("full", status("short", 1))
	h.shows("full", "Applied", "short")
	h.delivered("full", 1)
	if err := stop(); err != nil {
		h.Fatal(err)
	}
}

// largeStatus returns a status of about this size.
func largeStatus(bytes int) workv1.ManifestWorkStatus {
	s := status("large", 1)
	for i := range bytes / 30_000 {
		s.ResourceStatus.Manifests = append(s.ResourceStatus.Manifests, workv1.ManifestCondition{
			ResourceMeta: workv1.ManifestResourceMeta{Ordinal: int32(i), Version: "v1", Kind: "ConfigMap", Resource: "configmaps", Name: "a", Namespace: "default"},
			Conditions: []metav1.Condition{{Type: "Applied", Status: metav1.ConditionFalse, Reason: "AppliedManifestFailed", Message: strings.Repeat("m", 29_500),
				ObservedGeneration: 1, LastTransitionTime: metav1.NewTime(time.Now().Truncate(time.Second))}},
		})
	}
	return s
}
