package clustercontroller

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/kubeerror"
	"github.com/hawser-io/hawser/internal/telemetry"
)

const metricPrefix = "hawser_hubsource_"

// What becomes of CSRs, beside the decisions.
const (
	signed = "signed"
	failed = "failed"
)

type metrics struct {
	active   prometheus.Gauge
	csrs     *prometheus.CounterVec
	requests *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) metrics {
	m := telemetry.NewMeter(r, metricPrefix)
	all := metrics{
		active:   m.Gauge("membership_active", "1 while this replica looks after the members of the hub."),
		csrs:     m.Counters("csrs_total", "CertificateSigningRequests of clusters, by what became of them.", "decision"),
		requests: m.Counters("membership_requests_total", "Requests to the hub about its members besides the informers', by operation and result.", "operation", "result"),
	}
	for _, decision := range []string{string(approve), string(deny), string(drop), signed, failed} {
		all.csrs.WithLabelValues(decision) // so that it can be seen to rise
	}
	return all
}

// did counts a request to the hub, and returns how it ended.
func (m metrics) did(operation string, err error) error {
	m.requests.WithLabelValues(operation, kubeerror.Result(err)).Inc()
	return err
}

// remainingSeconds exports how long the CA that signs is still valid. There is no value while
// it cannot be read.
type remainingSeconds struct{ read func() (authority, error) }

var descRemaining = prometheus.NewDesc(metricPrefix+"signer_remaining_seconds",
	"Time until the CA ends that signs the certificates of clusters; below 0 when it has ended.", nil, nil)

// Describe implements prometheus.Collector.
func (r remainingSeconds) Describe(to chan<- *prometheus.Desc) { to <- descRemaining }

// Collect implements prometheus.Collector.
func (r remainingSeconds) Collect(to chan<- prometheus.Metric) {
	if a, err := r.read(); err == nil {
		to <- prometheus.MustNewConstMetric(descRemaining, prometheus.GaugeValue, time.Until(a.cert.NotAfter).Seconds())
	}
}
